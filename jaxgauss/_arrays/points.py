"""Points about a center, scaled by √τ, with their norms; and operands of unequal batches."""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from .._checks.settings import are_known
from .places import whole
from .shapes import K, Q, T

LOG_ZERO = -1e27  # stands for log 0: finite in float32, and below every exponent
BASE_2 = math.log2(math.e)  # exponents are those of 2^x, which is faster than e^x


def scaled_points(
    queries: Q, keys: K, tau: T, centered: bool = False, base_2: bool = True, every: bool = False
) -> tuple[Q, K]:
    """Scaled points a, b about a center, with Φ = 2^(-½‖a - b‖²), or exp without `base_2`.

    The center is that of the keys; or of the queries, if a batch shares them but not the keys, so that they stay
    shared. With `centered`, points lie about the origin already.
    """
    of_queries = shared(queries) and not shared(keys)
    c = 0 if centered else center(queries if of_queries else keys, every)
    scale = by_point(jnp.sqrt(tau * (BASE_2 if base_2 else 1)), keys)
    return (queries - c) * scale, (keys - c) * scale


def of_coordinates(tau: T, points: K) -> bool:
    """Whether each coordinate has its own τ, (*batch, D)."""
    return tau.ndim == points.ndim - 1


def by_point(tau: T, points: K) -> Float[Array, "*#batch 1 _"]:
    """τ (*batch), or τ of each coordinate, with the axes of the points."""
    return tau[..., None, :] if of_coordinates(tau, points) else tau[..., None, None]


class Scaled(NamedTuple):
    """Scaled points (…, N, D), and their squared norms (…, N, 1)."""

    points: Array
    norms: Array


def with_norms(*points: Array) -> tuple[Scaled, ...]:
    return tuple(Scaled(x, jnp.square(x).sum(-1, keepdims=True)) for x in points)


def squared_reach(a: Scaled, b: Scaled) -> Float[Array, ""]:
    """R², the largest squared distance of a point from the center in bandwidths, for points to the base of 2.

    Exponents formed by products have a rounding error of R² times the dtype's unit.
    """
    norms = jnp.concatenate(whole(a.norms.ravel(), b.norms.ravel()))
    return jnp.where(jnp.isnan(norms), 0, norms).max(initial=0) / BASE_2


def are_within(reach: float, a: Scaled, b: Scaled) -> Bool[Array, ""]:
    """Whether R² is at most `reach`, in one step of the program less than by R² itself. NaN does not count."""
    norms = jnp.concatenate(whole(a.norms.ravel(), b.norms.ravel()))
    return ~(norms > reach * BASE_2).any()


def unbroadcast(array: Array, shape: tuple[int, ...]) -> Array:
    """The sum over the axes that broadcasting has stretched from `shape` to the array's shape."""
    extra = array.ndim - len(shape)
    stretched = [i + extra for i, n in enumerate(shape) if n == 1 and array.shape[i + extra] != 1]
    return array.sum((*range(extra), *stretched)).reshape(shape) if array.shape != shape else array


def center(points: K, every: bool = False) -> Float[Array, "*#batch 1 d"]:
    """The mean of at most eight points, or of all with `every`; zero if it is not finite; without a gradient.

    In float32 any center among the points is accurate enough. Eight points need no reduction: it would be a ninth step
    in a program for few points, and XLA runs at most eight steps on one thread. In half precision the mean of all
    points saves up to a third of a gradient's error.
    """
    num, points = points.shape[-2], lax.stop_gradient(points)
    if num == 0:
        return jnp.zeros((*points.shape[:-2], 1, points.shape[-1]), points.dtype)
    if every:
        mean = jnp.nanmean(points, -2, keepdims=True)
        return jnp.where(jnp.isfinite(mean), mean, 0)
    chosen = [points[..., i : i + 1, :] for i in places_of_center(num)]
    mean = functools.reduce(jnp.add, chosen) / len(chosen)
    return jnp.where(jnp.isfinite(mean), mean, 0)


def places_of_center(num: int) -> Sequence[int]:
    """Indices of one, two, four or eight points, whose mean is not rounded by the division."""
    places = range(0, num, -(-num // 8)) if are_known(num) else [i * num // 8 for i in range(8)]
    return places[: 1 << (len(places).bit_length() - 1)]


def align(queries: Array, keys: Array, values: Array, tau: Array) -> tuple[Array, Array, Array, Array]:
    """The operands with the same number of leading axes."""
    rank = max(queries.ndim - 2, keys.ndim - 2, values.ndim - 2, tau.ndim)
    queries, keys, values = (lax.expand_dims(x, range(rank + 2 - x.ndim)) for x in (queries, keys, values))
    return queries, keys, values, lax.expand_dims(tau, range(rank - tau.ndim))


def with_axes_of(tau: Array, points: Array) -> Array:
    """The points, broadcast to the batch of τ."""
    batch = by_point(tau, points).shape[:-2]
    return jnp.broadcast_to(points, (*jnp.broadcast_shapes(points.shape[:-2], batch), *points.shape[-2:]))


def shared(*operands: Array) -> bool:
    """Whether every operand is the same for the whole batch."""
    return all(math.prod(x.shape[:-2]) == 1 for x in operands)


def as_rows(x: Array) -> Array:
    """(…, N, W) -> (B N, W)."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
