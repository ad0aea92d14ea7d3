"""Scale points for the energy kernel, which has no length scale, so that squares stay within the dtype."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from .._arrays.devices import replicated
from .._checks.settings import Settings, working_dtype
from .._kernels.profiles import Energy


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
