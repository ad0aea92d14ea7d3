"""Records of what engines sum over pairs of points: what is wanted, the operands, the results."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._arrays.points import dot
from .._arrays.shapes import G, Numbers, V
from .._kernels.kernels import Kernel
from .products.short import longest, summed_over_rows

MANY_DIMENSIONS = 32  # pulls in more dimensions need an accurate u: see `strict`


class Channels(NamedTuple):
    """Kernels, and how many channels each of them has, side by side in one array. Static, as kernels are."""

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
        """ψ(u), g and v, with S = ψ ⟨g, v⟩, for each kernel; and Σ_m κ g_m, transposed (…, C, N).

        For more than one channel ψ already contains ⟨g, v⟩, and g and v are replaced by ones. Pairs that are not to
        `keep` do not count.
        """
        parts, d_values, one = [], [], jnp.ones((1,) * u.ndim, u.dtype)
        for kernel, v, g_own in self.by_kernel(values, g):
            tiles = kernel.with_slope(u)
            kappa, psi = tiles if keep is None else (jnp.where(keep, x, 0) for x in tiles)
            d_values.append(summed_over_rows(g_own, kappa, longest(g_own, pull=True)))
            single = v.shape[-1] == 1
            parts.append((psi, g_own, v) if single else (psi * dot(g_own, v.mT), one, one))
        batch = jnp.broadcast_shapes(*(x.shape[:-2] for x in d_values))
        return parts, jnp.concatenate([jnp.broadcast_to(x, (*batch, *x.shape[-2:])) for x in d_values], -2)


NOTHING = Channels((), ())


class Request(NamedTuple):
    """What is summed at each query. Static, as kernels are.

    Attributes:
        sums: kernels κ, and the channels of the values of each.
        pulls: kernels whose slopes ψ = -2κ' pull, and the channels of the weights of each.
        spread: whether Σ_n W ‖k_n - q_m‖² is wanted, or each coordinate's part of it.
        one_sign: whether the weights are known to have one sign.
        repeats: whether the weights are also the first channels of the values.
        at_keys: whether the queries here are the keys of a sum, and the other way round.
        others: whether pairs of equal index are left out.
    """

    sums: Channels
    pulls: Channels
    spread: bool = False
    one_sign: bool = False
    repeats: bool = False
    at_keys: bool = False
    others: bool = False

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels of the sums and of the pulls."""
        return *self.sums.kernels, *self.pulls.kernels

    @property
    def kinked(self) -> bool:
        """Whether a kernel has a kink: it needs distances, not only their squares."""
        return any(kernel.kinked for kernel in self.kernels)

    def strict(self, dim: int, scales: int) -> bool:
        """Whether even a small u must be accurate, for points of `dim` coordinates and one τ or one for each.

        It must for a kernel with a kink, and for pulls by slopes that may change their sign. It must also for pulls in
        many dimensions, where u is seldom small, and where checking each u takes less time than the sums for `spread`;
        but not if each coordinate has its own τ: u does not tell which points are near in one coordinate.
        """
        many = bool(self.pulls.kernels) and scales == 1 and dim > MANY_DIMENSIONS
        return many or self.kinked or not all(kernel.decays for kernel in self.pulls.kernels)

    def end(self, dtype: str) -> float:
        """The u beyond which all kernels are zero in float32 or float64."""
        return max(kernel.end(dtype) for kernel in self.kernels)

    def widths(self, dim: int, scales: int) -> tuple[int, int, int]:
        """The columns of the three `PairSums`, for points of `dim` coordinates and one τ or one for each."""
        return sum(self.sums.widths), dim if self.pulls.kernels else 0, scales if self.spread else 0

    def of(self, u: Array, keep: Array | None = None) -> dict[Kernel, Array]:
        """κ(u) for the sums and ψ(u) for the pulls, zero but for pairs to `keep`; what both need is computed once.

        XLA is faster if other pairs get a u beyond the end of all kernels than if their zeros are selected.
        """
        if keep is not None and self.kernels and (end := self.end(u.dtype.name)) < math.inf:
            u, keep = jnp.where(keep, u, 2 * end), None
        both = {kernel: kernel.with_slope(u) for kernel in self.pulls.kernels}
        values = {kernel: both[kernel][0] if kernel in both else kernel(u) for kernel in self.sums.kernels}
        tiles = values | {kernel.slope: psi for kernel, (_, psi) in both.items()}
        return tiles if keep is None else {kernel: jnp.where(keep, x, 0) for kernel, x in tiles.items()}

    def indices(self, num: Any) -> Int[Array, "num 1"] | None:
        """Those of so many points, where pairs of equal index are left out."""
        return indices(num) if self.others else None


class Rows(NamedTuple):
    """Queries, their weights g, and their indices if pairs of equal index are left out."""

    points: Float[Array, "*batch m d"]
    weights: Float[Array, "*batch m e"]
    indices: Int[Array, "*batch m 1"] | None = None


class Columns(NamedTuple):
    """Keys, their values v, their weights w for the pulls, and their indices."""

    points: Float[Array, "*batch n d"]
    values: Float[Array, "*batch n c"]
    weights: Float[Array, "*batch n e"]
    indices: Int[Array, "*batch n 1"] | None = None


def indices(num: Any) -> Int[Array, "num 1"]:
    """The indices of so many points, a row for each."""
    return jnp.arange(num, dtype="int32")[:, None]


def differ(rows: Array | None, columns: Array | None) -> Any:
    """Which pairs of a tile have different `indices`, (*batch, M, N); None if those are None."""
    return None if rows is None or columns is None else rows != columns.mT


class PairSums(NamedTuple):
    """Sums at each query, with W = Σ ψ(u) ⟨g_m, w_n⟩ over the kernels of the pulls.

    Attributes:
        sums: Σ_n κ(u) v_n.
        pulls: Σ_n W (k_n - q_m).
        spread: Σ_n W ‖k_n - q_m‖², or its part from each coordinate if each has its own τ.
    """

    sums: Float[Array, "*batch m c"]
    pulls: Float[Array, "*batch m d"]
    spread: Float[Array, "*batch m s"]

    def mixed(self, tau: Numbers, shares: Numbers) -> "PairSums":
        """The sums of the one kernel Σ_t share_t κ_t, whose own τ is one, from those of each κ_t, (…, T, M, ·)."""
        weights = shares, shares * tau, shares * tau
        return PairSums(*((w[..., None, None] * x).sum(-3) for w, x in zip(weights, self, strict=True)))


def joined(sums: list[Array], like: Array) -> Array:
    """The sums of all kernels side by side; of no kernel, without columns."""
    return jnp.concatenate(sums, -1) if sums else like[..., :0]


def shapes_of(request: Request, *shape: int, scale: Array, points: Array) -> Any:
    """The shapes of `PairSums`, for queries of this shape."""
    widths = request.widths(points.shape[-1], scale.shape[-1])
    found: list[Any] = [jax.ShapeDtypeStruct((*shape, width), points.dtype) for width in widths]
    return PairSums(*found)


def zeros_of(request: Request, *shape: int, scale: Array, points: Array) -> PairSums:
    """`PairSums` of zeros, for queries of this shape."""
    found = shapes_of(request, *shape, scale=scale, points=points)
    return PairSums(*(jnp.zeros(x.shape, x.dtype) for x in found))
