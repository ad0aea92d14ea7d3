"""Points about a center, scaled by √τ, with their norms: and how operands of unequal batches meet."""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from .._checks.settings import are_known
from .blocks import scan
from .devices import has_cuda, replicated, vary_like
from .shapes import K, Q, T

DIMENSIONS = 8  # coordinates whose differences are added up in one pass over a tile
LOG_ZERO = -1e27  # the logarithm of a weight of zero: finite in float32, and below every exponent
BASE_2 = math.log2(math.e)  # exponents are formed for 2^x, which is computed faster than e^x


def scaled_points(
    queries: Q, keys: K, tau: T, centered: bool = False, base_2: bool = True, every: bool = False
) -> tuple[Q, K]:
    """a, b about a center, with Φ = 2^(-½‖a - b‖²), or e to that power: small norms keep the digits.

    It is that of the keys, or of queries that are shared where keys are not: so they stay shared. `centered` points lie
    about the origin, and none is taken once more.
    """
    of_queries = shared(queries) and not shared(keys)
    c = 0 if centered else center(queries if of_queries else keys, every)
    scale = by_point(jnp.sqrt(tau * (BASE_2 if base_2 else 1)), keys)
    return (queries - c) * scale, (keys - c) * scale


def of_coordinates(tau: T, points: K) -> bool:
    """Whether each coordinate has a τ of its own, (*batch, D)."""
    return tau.ndim == points.ndim - 1


def by_point(tau: T, points: K) -> Float[Array, "*#batch 1 _"]:
    """τ (*batch), or that of each coordinate, with the axes of the points."""
    return tau[..., None, :] if of_coordinates(tau, points) else tau[..., None, None]


class Scaled(NamedTuple):
    """Scaled points (…, N, D), and their squared norms (…, N, 1)."""

    points: Array
    norms: Array


def with_norms(*points: Array) -> tuple[Scaled, ...]:
    """Both of each."""
    return tuple(Scaled(x, jnp.square(x).sum(-1, keepdims=True)) for x in points)


def squared_radius(a: Scaled, b: Scaled) -> Float[Array, ""]:
    """R², how far in squared bandwidths the farthest of the points lies from the center; points to the base of 2.

    Rounding moves exponents that products make by its unit times R².
    """
    norms = jnp.concatenate(replicated(a.norms.ravel(), b.norms.ravel()))
    return jnp.where(jnp.isnan(norms), 0, norms).max(initial=0) / BASE_2


def are_within(reach: float, a: Scaled, b: Scaled) -> Bool[Array, ""]:
    """Whether R² is at most `reach`, in a step less than by R² itself: see `center`.

    NaN, which spoils a row whatever is done, does not count.
    """
    norms = jnp.concatenate(replicated(a.norms.ravel(), b.norms.ravel()))
    return ~(norms > reach * BASE_2).any()


def unbroadcast(array: Array, shape: tuple[int, ...]) -> Array:
    """The sum over the axes that broadcasting `shape` to the array's shape has stretched."""
    extra = array.ndim - len(shape)
    stretched = [i + extra for i, n in enumerate(shape) if n == 1 and array.shape[i + extra] != 1]
    return array.sum((*range(extra), *stretched)).reshape(shape) if array.shape != shape else array


def center(points: K, every: bool = False) -> Float[Array, "*#batch 1 d"]:
    """The mean of eight of the points at most, or of `every` one; zero where that is not finite; without a gradient.

    Any place among the points keeps the digits of float32. A reduction over all of them would be a ninth step of the
    program for a few points, and XLA runs eight at most on one thread: a call of 64 points would wait for others. In
    half precision the very mean, of what is no NaN, saves up to a third of a gradient's error.
    """
    num, points = points.shape[-2], lax.stop_gradient(points)
    if num == 0:
        return jnp.zeros((*points.shape[:-2], 1, points.shape[-1]), points.dtype)
    if every:
        mean = jnp.nanmean(points, -2, keepdims=True)
        return jnp.where(jnp.isfinite(mean), mean, 0)
    chosen = [points[..., i : i + 1, :] for i in center_indices(num)]
    mean = functools.reduce(jnp.add, chosen) / len(chosen)
    return jnp.where(jnp.isfinite(mean), mean, 0)


def center_indices(num: int) -> Sequence[int]:
    """One, two, four or eight: the mean of others would be rounded, and maybe not everywhere alike."""
    indices = range(0, num, -(-num // 8)) if are_known(num) else [i * num // 8 for i in range(8)]
    return indices[: 1 << (len(indices).bit_length() - 1)]


def align(queries: Array, keys: Array, values: Array, tau: Array) -> tuple[Array, Array, Array, Array]:
    """The operands with the same number of leading axes."""
    rank = max(queries.ndim - 2, keys.ndim - 2, values.ndim - 2, tau.ndim)
    queries, keys, values = (lax.expand_dims(x, range(rank + 2 - x.ndim)) for x in (queries, keys, values))
    return queries, keys, values, lax.expand_dims(tau, range(rank - tau.ndim))


def with_axes_of(tau: Array, points: Array) -> Array:
    """The points, stretched along the batch of τ, which is not in them where nothing is scaled."""
    batch = by_point(tau, points).shape[:-2]
    return jnp.broadcast_to(points, (*jnp.broadcast_shapes(points.shape[:-2], batch), *points.shape[-2:]))


def shared(*operands: Array) -> bool:
    """Whether every operand is the same for all of the batch."""
    return all(math.prod(x.shape[:-2]) == 1 for x in operands)


def as_rows(x: Array) -> Array:
    """(…, N, W) -> (B N, W)."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def logit_factors(a: Scaled, b: Scaled) -> tuple[Array, Array]:
    """[a, 1, -½‖a‖²] and [b, -½‖b‖², 1]: one product makes the logits, nothing is left to be added to them."""
    one_a, one_b = (jnp.ones_like(x.norms) for x in (a, b))
    factors = (a.points, one_a, a.norms / -2), (b.points, b.norms / -2, one_b)
    return tuple(jnp.concatenate(x, -1) for x in factors)  # type: ignore[return-value]


def difference_logits(scale: Array, queries: Array, keys: Array) -> Array:
    """-½ Σ_d (scale (q_md - k_nd))², eight dimensions at a time; cut off where its square would overflow."""

    @jax.checkpoint  # or derivatives would hold the differences of every dimension, each of a tile's size
    def add(total: Array, columns: tuple[Array, Array]) -> tuple[Array, None]:
        for q, k in zip(*columns, strict=True):
            total = total + jnp.square(_scaled_difference(scale, q, k))
        return total, None

    batch = jnp.broadcast_shapes(scale.shape[:-2], queries.shape[:-2], keys.shape[:-2])
    zero = jnp.zeros((*batch, queries.shape[-2], keys.shape[-2]), queries.dtype)
    columns = _dimensions(queries), _dimensions(keys)
    return scan(add, vary_like(zero, [queries, keys, scale]), columns)[0] / -2


def squares_factors(a: Scaled, b: Scaled) -> tuple[Array, Array]:
    """[-2a, 1, ‖a‖²] and [b, ‖b‖², 1], whose product is u."""
    ones = [jnp.ones_like(x.norms) for x in (a, b)]
    return jnp.concatenate([-2 * a.points, ones[0], a.norms], -1), jnp.concatenate([b.points, b.norms, ones[1]], -1)


def squared_distances_of(first: Array, second: Array) -> Array:
    """The product of such factors."""
    return jnp.maximum(dot(first, second.mT), 0)


def squared_distances(a: Scaled, b: Scaled) -> Array:
    """‖a - b‖² of all pairs of few points.

    On CUDA from differences, of which XLA makes one pass without an array of them all: what is lost grows as R r, not
    as R², and no host need look how far points lie. Elsewhere by a product, which is faster, of points within reach.
    """
    if has_cuda():
        return squared_differences(a.points, b.points)
    return a.norms + b.norms.mT - 2 * dot(a.points, b.points.mT)


@jax.checkpoint  # or derivatives would hold all differences
def squared_differences(a: Array, b: Array) -> Array:
    """‖a - b‖² of all pairs, from differences."""
    return jnp.square(_cut_off(a[..., :, None, :] - b[..., None, :, :])).sum(-1)


def _scaled_difference(scale: Array, q: Array, k: Array) -> Array:
    """scale (q_m - k_n) of one coordinate (*batch, number)."""
    return _cut_off(scale * (q[..., :, None] - k[..., None, :]))


def _cut_off(differences: Array) -> Array:
    """Differences in bandwidths, at most so large that sums of their squares are finite."""
    far = math.sqrt(float(jnp.finfo(differences.dtype).max)) / 1e6
    return jnp.clip(differences, -far, far)


def _dimensions(points: Array) -> Array:
    """(*batch, N, D) -> (steps, 8 or D, *batch, N), zeros at the end."""
    step = min(points.shape[-1], DIMENSIONS)
    padding = [(0, 0)] * (points.ndim - 1) + [(0, -points.shape[-1] % step)]
    x = jnp.moveaxis(jnp.pad(points, padding), -1, 0)
    return x.reshape(x.shape[0] // step, step, *x.shape[1:])


def logits(a: Any, b: Any) -> Array:
    """A Bᵀ of factors, or of pairs of them the sum. Rounding may leave it above zero, by no more than anywhere."""
    products = (dot(x, y.mT) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))
    return functools.reduce(jnp.add, products)


dot = functools.partial(jnp.matmul, precision=lax.Precision.HIGHEST)
