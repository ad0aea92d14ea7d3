"""Points about a center, scaled by √τ, with their norms: and how operands of unequal batches meet."""

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


def squared_reach(a: Scaled, b: Scaled) -> Float[Array, ""]:
    """R², how far in squared bandwidths the farthest of the points lies from the center; points to the base of 2.

    Rounding moves exponents that products make by its unit times R².
    """
    norms = jnp.concatenate(whole(a.norms.ravel(), b.norms.ravel()))
    return jnp.where(jnp.isnan(norms), 0, norms).max(initial=0) / BASE_2


def are_within(reach: float, a: Scaled, b: Scaled) -> Bool[Array, ""]:
    """Whether R² is at most `reach`, in a step less than by R² itself: see `center`.

    NaN, which spoils a row whatever is done, does not count.
    """
    norms = jnp.concatenate(whole(a.norms.ravel(), b.norms.ravel()))
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
    chosen = [points[..., i : i + 1, :] for i in places_of_center(num)]
    mean = functools.reduce(jnp.add, chosen) / len(chosen)
    return jnp.where(jnp.isfinite(mean), mean, 0)


def places_of_center(num: int) -> Sequence[int]:
    """One, two, four or eight: the mean of others would be rounded, and maybe not everywhere alike."""
    places = range(0, num, -(-num // 8)) if are_known(num) else [i * num // 8 for i in range(8)]
    return places[: 1 << (len(places).bit_length() - 1)]


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
