"""Weights of points: their defaults, and the factor that leaves out the pairs i = i."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from .._arrays.devices import replicated
from .._checks.samples import is_mask
from .._checks.settings import Settings, working_dtype
from .._kernels.profiles import Energy


def weights_or_mean(weights: Array | None, points: Array, settings: Settings) -> Array:
    """The weights, normalized if asked for. Without weights, or by a mask, the N points that count get 1/N each.

    1/N is in the working dtype, because it may underflow in half precision.
    """
    if weights is None:
        num, dtype = points.shape[0], working_dtype(settings.dtype)
        return jnp.full(num, 1 / num if num != 0 else 0, dtype)
    if is_mask(weights) or settings.normalize:
        kept = jnp.asarray(weights, working_dtype(settings.dtype))
        return kept / kept.sum()
    return weights


def normalized(settings: Settings, weights: Array | None, points: Array) -> Array:
    """The weights (N,), divided by their sum."""
    w = jnp.asarray(weights_or_mean(weights, points, settings), points.dtype)
    return w / w.sum()


def distinct_pairs_factor(a: Array) -> Array:
    """(Σa)² / Σ_{i ≠ j} a_i a_j for weights a (…, N, 1): the factor of sums over i ≠ j in unbiased estimates."""
    total = jnp.square(a.sum((-2, -1)))
    return total / (total - jnp.square(a).sum((-2, -1)))


def in_own_unit(settings: Settings, *points: Array) -> tuple[Array, tuple[Array, ...]]:
    """A unit, and the points in that unit: for "energy" the power of two nearest to the largest coordinate, else 1.

    -‖x - y‖ is homogeneous, so the sum is that of the scaled points times the unit. NaN if a coordinate is infinite.
    """
    dtype = working_dtype(settings.dtype)
    points = tuple(jnp.asarray(x, dtype) for x in points)
    if not isinstance(settings.kernel.profile, Energy):
        return jnp.ones((), dtype), points
    sizes = [jnp.abs(x).max() for x in replicated(*(lax.stop_gradient(x) for x in points)) if x.size]
    largest = jnp.stack(sizes).max()
    exponent = jnp.round(jnp.log2(jnp.where(largest > 0, largest, 1)))
    unit = jnp.where(jnp.isfinite(largest), jnp.ldexp(jnp.ones((), dtype), exponent.astype("int32")), jnp.nan)
    return unit, tuple(x / unit for x in points)
