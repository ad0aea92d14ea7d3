"""What a pass over the pairs sums: kernels of u, and for each of them its own channels of the values."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

from .._arrays.logits import dot
from .._arrays.shapes import G, V
from .._kernels.kernels import Kernel


class Channels(NamedTuple):
    """Kernels, and how many channels each of them sums, side by side in one array of values.

    Static, as kernels are: what is summed is a function of both.
    """

    kernels: tuple[Kernel, ...]
    widths: tuple[int, ...]

    def split(self, *values: Array) -> zip:
        """The kernels with their own channels of each array."""
        return zip(self.kernels, *map(self.parts, values), strict=True)

    def parts(self, values: Array) -> list[Array]:
        """The channels of each kernel."""
        ends = [sum(self.widths[: i + 1]) for i in range(len(self.widths) - 1)]
        return jnp.split(values, ends, -1) if self.kernels else []

    def pull(
        self, u: Array, values: V, g: G, keep: Array | None = None
    ) -> tuple[list[tuple[Array, Array, Array]], Array]:
        """ψ(u) and the g and v of which S = ψ ⟨g, v⟩, for every kernel; and Σ_m κ g_m, transposed (…, C, N).

        Of one channel they are those; of more, their product is in ψ already, and they are one. Pairs that are not to
        `keep` do not count.
        """
        parts, d_values, one = [], [], jnp.ones((1,) * u.ndim, u.dtype)
        for kernel, v, g_own in self.split(values, g):
            tiles = kernel.with_slope(u)
            kappa, psi = tiles if keep is None else (jnp.where(keep, x, 0) for x in tiles)
            d_values.append(dot(g_own.mT, kappa))
            single = v.shape[-1] == 1
            parts.append((psi, g_own, v) if single else (psi * dot(g_own, v.mT), one, one))
        batch = jnp.broadcast_shapes(*(x.shape[:-2] for x in d_values))
        return parts, jnp.concatenate([jnp.broadcast_to(x, (*batch, *x.shape[-2:])) for x in d_values], -2)


NOTHING = Channels((), ())
