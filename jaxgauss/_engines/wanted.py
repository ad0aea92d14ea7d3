"""What is summed over pairs of points, by every engine of tiles: the operands, and the results."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._arrays.points import dot
from .._arrays.shapes import G, V
from .._kernels.kernels import Kernel


class Channels(NamedTuple):
    """Kernels, and how many channels each of them sums, side by side in one array of values.

    Static, as kernels are: what is summed is a function of both.
    """

    kernels: tuple[Kernel, ...]
    widths: tuple[int, ...]

    def by_kernel(self, *values: Array) -> zip:
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
        for kernel, v, g_own in self.by_kernel(values, g):
            tiles = kernel.with_slope(u)
            kappa, psi = tiles if keep is None else (jnp.where(keep, x, 0) for x in tiles)
            d_values.append(dot(g_own.mT, kappa))
            single = v.shape[-1] == 1
            parts.append((psi, g_own, v) if single else (psi * dot(g_own, v.mT), one, one))
        batch = jnp.broadcast_shapes(*(x.shape[:-2] for x in d_values))
        return parts, jnp.concatenate([jnp.broadcast_to(x, (*batch, *x.shape[-2:])) for x in d_values], -2)


NOTHING = Channels((), ())


MANY_DIMENSIONS = 32  # more than these: see `strict`


class Wanted(NamedTuple):
    """What is summed at each query. Static, as kernels are.

    Attributes:
        sums: kernels κ, and how many channels of the values each of them has.
        pulls: kernels whose slopes ψ = -2κ' pull, and how many channels of the weights each of them has.
        spread: whether Σ_n W ‖k_n - q_m‖² is asked for, or each coordinate's part of it.
        one_sign: whether the weights of what pulls are known to have one sign.
        repeats: whether these weights are also the first of the values.
    """

    sums: Channels
    pulls: Channels
    spread: bool = False
    one_sign: bool = False
    repeats: bool = False

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """All of them."""
        return *self.sums.kernels, *self.pulls.kernels

    @property
    def kinked(self) -> bool:
        """Whether a kernel needs distances, and not only their squares."""
        return any(kernel.kinked for kernel in self.kernels)

    def strict(self, dim: int, scales: int) -> bool:
        """Whether each u must have its digits, however small, in so many dimensions, of one scale or as many.

        So it is with a kink, and for pulls by slopes that may change their sign; or of points in many dimensions, where
        u is seldom small, and sums that tell how far pairs are spread take longer than a look at each. Where each
        coordinate has a scale, those that are near in one may be far in others: u tells nothing of that.
        """
        many = bool(self.pulls.kernels) and scales == 1 and dim > MANY_DIMENSIONS
        return many or self.kinked or not all(kernel.decays for kernel in self.pulls.kernels)

    def end(self, dtype: str) -> float:
        """The u from which all of the kernels are zero in float32 or float64."""
        return max(kernel.end(dtype) for kernel in self.kernels)

    def widths(self, dim: int, scales: int) -> tuple[int, int, int]:
        """Columns of the results, for points of so many dimensions, and one scale or as many."""
        return sum(self.sums.widths), dim if self.pulls.kernels else 0, scales if self.spread else 0

    def of(self, u: Array) -> dict[Kernel, Array]:
        """κ(u) of what is summed and ψ(u) of what pulls: what both are made of is computed once."""
        both = {kernel: kernel.with_slope(u) for kernel in self.pulls.kernels}
        values = {kernel: both[kernel][0] if kernel in both else kernel(u) for kernel in self.sums.kernels}
        return values | {kernel.slope: psi for kernel, (_, psi) in both.items()}


class Rows(NamedTuple):
    """Queries, and their weights g."""

    points: Float[Array, "*batch m d"]
    weights: Float[Array, "*batch m e"]


class Columns(NamedTuple):
    """Keys, the values v that are summed, and the weights w of what pulls."""

    points: Float[Array, "*batch n d"]
    values: Float[Array, "*batch n c"]
    weights: Float[Array, "*batch n e"]


class Sums(NamedTuple):
    """At each query, with W = Σ ψ(u) ⟨g_m, w_n⟩ over the kernels that pull.

    Attributes:
        sums: Σ_n κ(u) v_n.
        pulls: Σ_n W (k_n - q_m).
        spread: Σ_n W ‖k_n - q_m‖²; where each coordinate has a scale, its part.
    """

    sums: Float[Array, "*batch m c"]
    pulls: Float[Array, "*batch m d"]
    spread: Float[Array, "*batch m s"]

    def mixed(self, tau: Float[Array, "*batch t"], shares: Float[Array, "*batch t"]) -> "Sums":
        """Those of each κ_t (…, T, M, ·) as those of the one kernel Σ_t share_t κ_t, whose own τ is one."""
        weights = shares, shares * tau, shares * tau
        return Sums(*((w[..., None, None] * x).sum(-3) for w, x in zip(weights, self, strict=True)))
