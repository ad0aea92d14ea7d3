"""Sums by waves over the devices of a mesh: coefficients add up, and their number does not depend on the points."""

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool

from ..._arrays.devices import has_cuda, vary_alike
from ..._arrays.points import by_point
from ..tiles import one_by_one
from .boxes import box
from .frequencies import MOST, nodes, spectrum, tolerance_of
from .series import coefficients, values_at

Axes = tuple[str, ...]


def sums_over_devices(
    precision: str,
    tolerance: float | None,
    key_axes: Axes,
    axes: Axes,
    queries: Array,
    keys: Array,
    values: Array,
    tau: Array,
) -> tuple[Array, Bool[Array, ""]]:
    """Sums at this device's queries, from coefficients added up over `key_axes`; and whether the waves fit.

    `axes` are those over which any points are divided. Operands are not cast to vary alike, so that JAX knows what is
    the same on every device.
    """

    def of_matrix(queries: Array, keys: Array, values: Array, scale: Array) -> tuple[Array, Array]:
        around = box(*map(lax.stop_gradient, (queries, keys)), axes=axes)
        center, extent = around.center, around.extent
        scales = jnp.broadcast_to(scale[0], extent.shape)
        scales_of_waves = lax.stop_gradient(scales)
        error = tolerance or tolerance_of(jnp, precision, extent * scales_of_waves)
        of, fits, _ = nodes(MOST[len(center)], center, extent, scales_of_waves, error, at_once=has_cuda())
        found = coefficients(of, *vary_alike(keys, values.T))
        found = lax.psum(found, key_axes) if key_axes else found
        g = spectrum(of, scales[None], jnp.ones_like(scales[:1]))
        return values_at(of, *vary_alike(queries, found * g[None])).T, fits[None, None]

    queries, keys, values, tau = (x.astype(np.dtype(precision)) for x in (queries, keys, values, tau))
    total, fits = one_by_one(of_matrix, queries, keys, values, by_point(jnp.sqrt(tau), queries))
    return total, fits.all()
