"""Candidates for a bandwidth, and the choice among them where points are equal."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool

from .._arrays.devices import replicated

TIED = 0.5  # the largest logarithm of a density, over that without equal points, that may count
OUTLIER = 30  # a coordinate counts as at most so many times as far from the median as the median of all


@jax.jit
def merged(points: Array, weights: Array, values: Array | None) -> tuple[Array, Bool[Array, ""]]:
    """The weights (N,), with those of equal points summed into one of them; and whether points with weight are equal.

    With values (N, C), equal points that differ in value stand for noise that can be seen: then nothing is merged.
    """
    x, weights = replicated(*map(lax.stop_gradient, (points, weights)))
    x = jnp.where(x == 0, 0, x)  # -0 equals 0
    order = jnp.lexsort((*_hashes(x), weights <= 0))
    x, w = x[order], weights[order]
    are_equal = (x[1:] == x[:-1]).all(-1) & (w[1:] > 0)
    any_equal = are_equal.any()
    if values is not None:
        (v,) = replicated(lax.stop_gradient(values))
        any_equal &= ~(are_equal & (v[order][1:] != v[order][:-1]).any(-1)).any()
    are_first = jnp.concatenate([jnp.ones(1, bool), ~are_equal])
    sets = jnp.cumsum(are_first, dtype="int32") - 1
    sums = jax.ops.segment_sum(w, sets, len(w))
    found = jnp.zeros_like(w).at[order].set(jnp.where(are_first, sums[sets], 0))
    return jnp.where(any_equal, found, weights), any_equal


def _hashes(x: Array) -> tuple[Array, Array]:
    """Two integers for each point (N, D), the same for equal points: sums of integers have no rounding."""
    bits = lax.bitcast_convert_type(x, "uint32").reshape(len(x), -1)
    factors = np.random.default_rng(0).integers(1, 2**32, (2, bits.shape[1]), dtype="uint32") | np.uint32(1)
    first, second = ((bits * factor[None]).sum(-1, dtype="uint32") for factor in factors)
    return first, second


# Ties. If each point equals another one, a density's score grows without bound as the kernel narrows; if many do, as
# counts or rounded numbers do, its maximum is narrower than their grid. Let S be the score, and S' the one in which
# all points that equal x_i are left out with it: that of one point of each set of equal ones, with all of its weight.
# S - S' is the mean logarithm of p_{-i} over the part of it from different points. If that is more than TIED at the
# largest S, the largest S' decides, which is at τ ≤ D/δ² for the distance δ of the nearest two sets:
# dS'/dτ = D/2τ - ½ mean of ‖x_i - x_j‖² < 0 beyond. Regressions are rewarded for equal points of equal value: there the
# logarithm is that of the errors' ratio.


@functools.partial(jax.jit, static_argnums=(0, 1))
def chosen(of_density: bool, shape: tuple[int, ...], taus: Array, scores: Array, without: Array, own: Array) -> Array:
    """The best τ if some points are equal; if all with weight are, the candidate nearest to Scott's τ."""
    best = scores.argmax()
    tied = (scores - without if of_density else jnp.log(without / scores))[best] > TIED
    tau = jnp.where(tied, jnp.minimum(taus[best], taus[without.argmax()]), taus[best])
    nearest = jnp.abs(jnp.log(taus / _scott(shape))).argmin()
    return jnp.where((own > 0).sum() > 1, tau, taus[nearest])


@functools.partial(jax.jit, static_argnums=1)
def candidates(points: Any, dtype: Any) -> Array:
    """25 τ about Scott's, for the variance of points (N, D) whose outliers are brought nearer."""
    (x,) = replicated(lax.stop_gradient(jnp.asarray(points, dtype)))
    limits = jnp.finfo(x.dtype)
    x = x - jnp.sort(x, 0)[(len(x) - 1) // 2][None]  # zero where all are equal: the mean would be rounded
    far = jnp.sort(jnp.where(x == 0, jnp.inf, jnp.abs(x)), 0)
    middle = jnp.maximum(jnp.isfinite(far).sum(0) - 1, 0) // 2
    limit = OUTLIER * jnp.take_along_axis(far, middle[None], 0)
    x = jnp.clip(x, -limit, limit)  # infinite if all are equal
    scale = jnp.abs(x).max()  # squares must not over- or underflow
    scale = jnp.where(scale > 0, scale, 1)
    variance = (x / scale).var(0).mean()
    variance = jnp.where(variance > 0, variance, 1)  # if all points are equal, any finite bandwidth will do
    taus = _scott(x.shape) / variance * 2 ** jnp.linspace(-4, 12, 25, dtype=x.dtype)
    return jnp.clip(taus / scale / scale, limits.tiny, limits.max)


def _scott(shape: tuple[int, ...]) -> float:
    """Scott's τ if the variance is one."""
    return shape[0] ** (2 / (shape[1] + 4))
