"""Points about a center, scaled by √τ, with their norms; and operands of unequal batches."""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from .devices import replicated, vary_like
from .shapes import K, Numbers, Q, T, are_known

DIMENSIONS = 8  # coordinates per pass over a tile
MANY = 2**30  # stands for an unknown number of points
SAMPLE = 128  # points whose mean is the center in half precision: a GPU adds so many in one step
FARTHEST = 2.0**120  # the largest u of which all kernels, slopes and logarithms can be computed in float32
LOG_ZERO = -(2.0**126)  # stands for log 0: finite in float32, and below the exponent of every u
JOINED = 2**13  # so many values are looked at together with points; more, in a step of their own
BLOCK = 64  # sums of NumPy arrays are compiled for multiples of this number of points
BASE_2 = math.log2(math.e)  # exponents are those of 2^x, which is faster than e^x


def scaled_points(
    queries: Q, keys: K, tau: T, centered: bool = False, base_2: bool = True, many: bool = False, of_both: bool = False
) -> tuple[Q, K]:
    """Scaled points a, b about a center, with Φ = 2^(-½‖a - b‖²), or exp without `base_2`.

    The center is that of the keys; or of the queries, if a batch shares them but not the keys, so that they stay
    shared. It is between the two with `of_both`, so that a sum over the queries has the same one. With `centered`,
    points lie about the origin already.
    """
    of_queries = shared(queries) and not shared(keys)
    c = 0 if centered else center(queries if of_queries else keys, many)
    if of_both and shared(queries) == shared(keys):
        c = (center(queries, many) + c) / 2
    scale = by_point(jnp.sqrt(tau * (BASE_2 if base_2 else 1)), keys)
    return (queries - c) * scale, (keys - c) * scale


def of_coordinates(tau: Numbers, points: Numbers) -> bool:
    """Whether each coordinate has its own τ, (*batch, D)."""
    return tau.ndim == points.ndim - 1


def by_point(tau: Numbers, points: Numbers) -> Any:
    """τ (*batch), or τ of each coordinate, with the axes of the points."""
    return tau[..., None, :] if of_coordinates(tau, points) else tau[..., None, None]


def tau_of(scale: Numbers) -> Any:
    """τ, or τ of each coordinate, of one matrix of points, from its root (1, 1 or D)."""
    return (scale[0] if scale.shape[1] > 1 else scale[0, 0]) ** 2


# Derivatives with respect to τ do not go through the points: u = ρ u₀ with u₀ = τ₀ ‖k - q‖², where τ₀ = τ is a constant
# to JAX, and ρ = τ/τ₀ is one. Otherwise derivatives of Σ W u / τ would have terms that nearly cancel for small u.
def unit_and_ratio(tau: T, points: Q) -> tuple[T, Array, Array]:
    """τ₀, its root and ρ; if each coordinate has its own τ, τ₀ carries the derivatives and ρ is a constant."""
    by_coordinate = of_coordinates(tau, points)
    unit = tau if by_coordinate else lax.stop_gradient(tau)
    ratio = by_point(tau / unit, points)
    return unit, by_point(jnp.sqrt(unit), points), jnp.ones_like(ratio[..., :1]) if by_coordinate else ratio


class Scaled(NamedTuple):
    """Scaled points (…, N, D), and their squared norms (…, N, 1)."""

    points: Array
    norms: Array


def with_norms(*points: Array) -> tuple[Scaled, ...]:
    return tuple(Scaled(x, jnp.square(x).sum(-1, keepdims=True)) for x in points)


def squared_radius(a: Scaled, b: Scaled) -> Float[Array, ""]:
    """R², the largest squared distance of a point from the center in bandwidths, for points to the base of 2.

    Exponents formed by products have a rounding error of R² times the dtype's unit.
    """
    norms = jnp.concatenate(replicated(a.norms.ravel(), b.norms.ravel()))
    return jnp.where(jnp.isnan(norms), 0, norms).max(initial=0) / BASE_2


def are_within(reach: float, a: Scaled, b: Scaled, values: Array | None = None) -> Bool[Array, ""]:
    """Whether R² is at most `reach`, no sum of values overflows, and no key is NaN. NaN in queries is ignored.

    The program is one step shorter than a comparison of R².
    """
    limit, found = reach * BASE_2, [a.norms.ravel(), jnp.where(jnp.isnan(b.norms), jnp.inf, b.norms).ravel()]
    if values is None:
        return _none_beyond(limit, found)
    most = largest_of_sums(values.dtype, *(x.norms.shape[-2] for x in (a, b)))
    if are_known(values.size) and values.size <= JOINED:
        return _none_beyond(limit, [*found, (jnp.abs(values) * (limit / most)).ravel()])
    return _none_beyond(limit, found) & (jnp.abs(values).max() <= most)


def _none_beyond(limit: float, found: list[Array]) -> Bool[Array, ""]:
    """Whether no number is larger. A sum is one step on a CPU, where `any` of many takes several."""
    return (jnp.concatenate(replicated(*found)) > limit).astype("float32").sum() == 0


def largest_of_sums(dtype: Any, *nums: int) -> float:
    """The largest value of which as many as each of `nums` have a sum; half of that, to be safe."""
    return float(jnp.finfo(dtype).max) / (2 * _most(nums))


def may_overflow(xp: Any, x: Any, *nums: int, axes: Any = None) -> Any:
    """Whether a sum of as many finite numbers of x as each of `nums` may overflow. `xp` is NumPy or JAX."""
    finite = xp.where(xp.isfinite(x), x, 0)
    return xp.abs(finite).max(axes, keepdims=axes is not None, initial=0) > largest_of_sums(x.dtype, *nums)


def for_sums(x: Numbers, *nums: int, axes: int | tuple[int, ...] | None = None) -> Any:
    """The power of two by which x is multiplied before it is summed: one, unless a sum `may_overflow`."""
    xp = np if isinstance(x, np.ndarray) else jnp
    is_large = may_overflow(xp, x if xp is np else lax.stop_gradient(x), *nums, axes=axes)
    return xp.where(is_large, small_unit(*nums), 1.0).astype(x.dtype)


def small_unit(*nums: int) -> float:
    """The power of two in which sums of as many numbers as each of `nums` are finite."""
    return 2.0 ** -(_most(nums).bit_length() + 1)


def _most(nums: Sequence[int]) -> int:
    return max(1, *nums) if are_known(*nums) else MANY


def unbroadcast(array: Array, shape: tuple[int, ...]) -> Array:
    """The sum over the axes that broadcasting has stretched from `shape` to the array's shape."""
    extra = array.ndim - len(shape)
    stretched = [i + extra for i, n in enumerate(shape) if n == 1 and array.shape[i + extra] != 1]
    return array.sum((*range(extra), *stretched)).reshape(shape) if array.shape != shape else array


def center(points: K, many: bool = False) -> Float[Array, "*#batch 1 d"]:
    """The mean of at most eight points, or of a sample with `many`; zero if it is not finite; without a gradient.

    In float32 any center among the points is accurate enough. Eight points need no reduction: it would be a ninth step
    in a program for few points, and XLA runs at most eight steps on one thread. In half precision the mean of many
    points saves up to a third of a gradient's error.
    """
    num, points = points.shape[-2], lax.stop_gradient(points)
    if num == 0:
        return jnp.zeros((*points.shape[:-2], 1, points.shape[-1]), points.dtype)
    if many:
        sample = points[..., :: max(1, num // SAMPLE), :][..., :SAMPLE, :] if are_known(num) else points
        mean = jnp.nanmean(sample, -2, keepdims=True)
        return jnp.where(jnp.isfinite(mean), mean, 0)
    chosen = [points[..., i : i + 1, :] for i in center_indices(num)]
    mean = functools.reduce(jnp.add, chosen) / len(chosen)
    return jnp.where(jnp.isfinite(mean), mean, 0)


def common_center(points: K, c: Float[Array, "*#batch 1 d"]) -> Float[Array, "*#batch 1 d"]:
    """The center c of points that lie anywhere, zero in coordinates in which a point is not nearer to it than to zero.

    Points about it lose no digits that they had: neither beside an outlier nor in clusters far apart.
    """
    x = lax.stop_gradient(points)
    return jnp.where((jnp.abs(x - c) > jnp.abs(x)).any(-2, keepdims=True), 0, lax.stop_gradient(c))


def center_indices(num: int) -> Sequence[int]:
    """Indices of one, two, four or eight points, whose mean is not rounded by the division."""
    indices = range(0, num, -(-num // 8)) if are_known(num) else [i * num // 8 for i in range(8)]
    return indices[: 1 << (len(indices).bit_length() - 1)]


def least_log(dtype: Any) -> float:
    """Stands for the logarithm of an empty sum: below that of any term, however far apart the points are."""
    return float(jnp.finfo(dtype).min) / 4


def align(queries: Array, keys: Array, values: Array, tau: Array) -> tuple[Array, Array, Array, Array]:
    """The operands with the same number of leading axes."""
    rank = max(queries.ndim - 2, keys.ndim - 2, values.ndim - 2, tau.ndim)
    queries, keys, values = (lax.expand_dims(x, range(rank + 2 - x.ndim)) for x in (queries, keys, values))
    return queries, keys, values, lax.expand_dims(tau, range(rank - tau.ndim))


def with_rank(x: Array, like: Array) -> Array:
    """x with leading axes of length one, so that it has the rank of the other."""
    return lax.expand_dims(x, range(like.ndim - x.ndim))


def sizes(queries: Any, keys: Any, values: Any, batch_of_tau: tuple[int, ...]) -> tuple[int, int, int]:
    """Kernel evaluations (batch · M · N), dimension and channels of a sum."""
    leading = {batch_of_tau, *(tuple(x.shape[:-2]) for x in (queries, keys, values))}
    batch = math.prod(jnp.broadcast_shapes(*leading))
    channels = values.shape[-1] if len(values.shape) > 1 else 1
    return batch * queries.shape[-2] * keys.shape[-2], queries.shape[-1], channels


def aligned_sizes(queries: Array, keys: Array, values: Array, tau: Array) -> tuple[int, int, int]:
    """The `sizes` of operands of equal rank, which may have one τ for each coordinate."""
    return sizes(queries, keys, values, tau.shape[: queries.ndim - 2])


def sizes_of_each(queries: Array, keys: Array, values: Array, *others: Array) -> tuple[Any, ...]:
    """The number of sums of a batch; M, N, D and C of each."""
    batch = math.prod(jnp.broadcast_shapes(*(x.shape[:-2] for x in (queries, keys, values))))
    return batch, queries.shape[-2], *keys.shape[-2:], values.shape[-1]


def with_axes_of(tau: Array, points: Array) -> Array:
    """The points, broadcast to the batch of τ."""
    batch = by_point(tau, points).shape[:-2]
    return jnp.broadcast_to(points, (*jnp.broadcast_shapes(points.shape[:-2], batch), *points.shape[-2:]))


def side_by_side(columns: Sequence[Array | None]) -> Array:
    """One array of the columns that are not None, broadcast to one batch."""
    there = [x for x in columns if x is not None]
    batch = jnp.broadcast_shapes(*(x.shape[:-1] for x in there))
    return jnp.concatenate([jnp.broadcast_to(x, (*batch, x.shape[-1])) for x in there], -1)


def shared(*operands: Numbers) -> bool:
    """Whether every operand is the same for the whole batch."""
    return all(math.prod(x.shape[:-2]) == 1 for x in operands)


def as_rows(x: Numbers) -> Any:
    """(…, N, W) -> (B N, W)."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def logit_factors(a: Scaled, b: Scaled) -> tuple[Array, Array]:
    """[a, 1, -½‖a‖²] and [b, -½‖b‖², 1], whose product is the exponents."""
    one_a, one_b = (jnp.ones_like(x.norms) for x in (a, b))
    factors = (a.points, one_a, a.norms / -2), (b.points, b.norms / -2, one_b)
    return tuple(jnp.concatenate(x, -1) for x in factors)  # type: ignore[return-value]


def difference_logits(scale: Array, queries: Array, keys: Array) -> Array:
    """-½ Σ_d (scale (q_md - k_nd))², eight dimensions at a time, clipped so that squares do not overflow."""

    @jax.checkpoint  # else derivatives would store the differences of every dimension, each the size of a tile
    def add(total: Array, columns: tuple[Array, Array]) -> tuple[Array, None]:
        for q, k in zip(*columns, strict=True):
            total = total + jnp.square(_scaled_difference(scale, q, k))
        return total, None

    batch = jnp.broadcast_shapes(scale.shape[:-2], queries.shape[:-2], keys.shape[:-2])
    zero = jnp.zeros((*batch, queries.shape[-2], keys.shape[-2]), queries.dtype)
    columns = _dimensions(queries), _dimensions(keys)
    return lax.scan(add, vary_like(zero, [queries, keys, scale]), columns)[0] / -2


def squares_factors(a: Scaled, b: Scaled) -> tuple[Array, Array]:
    """[-2a, 1, ‖a‖²] and [b, ‖b‖², 1], whose product is u."""
    ones = [jnp.ones_like(x.norms) for x in (a, b)]
    return jnp.concatenate([-2 * a.points, ones[0], a.norms], -1), jnp.concatenate([b.points, b.norms, ones[1]], -1)


def squared_distances_of(first: Array, second: Array) -> Array:
    """u, the product of `squares_factors`."""
    return jnp.maximum(dot(first, second.mT), 0)


def squared_distances(a: Scaled, b: Scaled) -> Array:
    """‖a - b‖² of all pairs of few near points, by a product."""
    return a.norms + b.norms.mT - 2 * dot(a.points, b.points.mT)


def cut_off(u: Array) -> Array:
    """The u, at most FARTHEST; NaN stays NaN, which XLA's minimum on a CPU would lose."""
    return jnp.where(u > FARTHEST, FARTHEST, u)


@jax.checkpoint  # else derivatives would store all differences
def squared_differences(a: Array, b: Array) -> Array:
    """‖a - b‖² of all pairs, from differences of coordinates."""
    return jnp.square(_clipped(a[..., :, None, :] - b[..., None, :, :])).sum(-1)


def _scaled_difference(scale: Array, q: Array, k: Array) -> Array:
    """scale (q_m - k_n) for one coordinate (*batch, number)."""
    return _clipped(scale * (q[..., :, None] - k[..., None, :]))


def _clipped(differences: Array) -> Array:
    """Differences, clipped so that sums of their squares are finite."""
    far = math.sqrt(float(jnp.finfo(differences.dtype).max)) / 1e6
    return jnp.clip(differences, -far, far)


def _dimensions(points: Array) -> Array:
    """(*batch, N, D) -> (steps, 8 or D, *batch, N), padded with zeros."""
    step = min(points.shape[-1], DIMENSIONS)
    padding = [(0, 0)] * (points.ndim - 1) + [(0, -points.shape[-1] % step)]
    x = jnp.moveaxis(jnp.pad(points, padding), -1, 0)
    return x.reshape(x.shape[0] // step, step, *x.shape[1:])


def logits(a: Any, b: Any) -> Array:
    """The product A Bᵀ of two factors, or the sum of products of several. Rounding may leave it slightly above zero."""
    products = (dot(x, y.mT) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))
    return functools.reduce(jnp.add, products)


dot = functools.partial(jnp.matmul, precision=lax.Precision.HIGHEST)
weighted_sum = functools.partial(jnp.tensordot, axes=1, precision=lax.Precision.HIGHEST)  # Σ_t w_t x_t


def turned(product: Array) -> Array:
    """The transpose of Lᵀ S; without the barrier XLA on a CPU forms Sᵀ L, which takes five times as long."""
    return lax.optimization_barrier(product).mT


def padded(x: np.ndarray, mode: Any = "edge") -> np.ndarray:
    """Add rows to a `padded_number` of them."""
    return np.pad(x, ((0, padded_number(len(x)) - len(x)), *[(0, 0)] * (x.ndim - 1)), mode=mode)


def padded_number(num: int) -> int:
    """The number rounded up, by at most an eighth beyond 512, so that many numbers of points share a program."""
    block = max(BLOCK, 1 << max(num.bit_length() - 4, 0))
    return num + -num % block
