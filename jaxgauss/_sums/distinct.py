"""Sums over pairs of different points, for estimates that leave out the pairs i = i.

Such an estimate subtracts the pairs i = i from sums over all pairs. Where points are so sparse that these hide all
others, the difference has no digits: there the others are summed by themselves, in float64.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool

from .._arrays.devices import has_cuda, replicated, vary_alike, vary_like
from .._arrays.points import difference_logits, dot, squared_differences
from .._arrays.shapes import are_known
from .._checks.settings import Settings, working_dtype
from .._engines.near import unbatched
from .._engines.programs import in_float64
from .._kernels.kernels import Kernel

SHARE = 1 / 2  # if other pairs amount to less than this part of the pairs i = i, they are summed by themselves
SAMPLED = 8  # points whose pairs are compared
MOST = 2**14  # points of which all pairs are summed in float64
AT_ONCE = 2**20  # differences of coordinates in one array: for more, a loop over coordinates takes less memory
PAIRS, LEAST_ROWS = 2**16, 8  # pairs of points at a time, in at least so many rows


def usual_or_sparse(
    settings: Settings, is_sparse: Bool[Array, ""] | bool, usual: Callable, sparse: Callable, *operands: Array
) -> Any:
    """usual(*operands); or sparse(settings, *operands) in float64 if the pairs i = i hide all others."""
    if isinstance(is_sparse, bool):
        return usual(*operands)

    def varying(function: Callable) -> Callable:
        return lambda *x: jax.tree.map(lambda z: vary_like(z, x), function(*x))

    operands = vary_alike(*replicated(*(jnp.asarray(x, working_dtype(settings.dtype)) for x in operands)))
    ways = functools.partial(in_float64, settings, sparse, far=True), usual
    return lax.cond(is_sparse, *map(varying, ways), *operands)


def are_looked_at(settings: Settings, num: Any) -> bool:
    """Whether so many points may be summed as sparse ones: not on CUDA, where nothing may wait, nor over a mesh."""
    few = are_known(num) and 0 < num <= MOST
    return few and settings.kernel.at_zero != 0 and settings.mesh is None and not has_cuda()


def are_sparse(settings: Settings, samples: tuple[Any, ...], weights: tuple[Any, ...], tau: Any, alike: bool) -> Any:
    """Whether the pairs i = i hide all others: estimated from a few points of samples with weights, perhaps `alike`."""
    if not are_looked_at(settings, sum(x.shape[0] for x in samples)):
        return False
    dtype = working_dtype(settings.dtype)
    points, w = (jnp.concatenate(replicated(*(jnp.asarray(x, dtype) for x in z))) for z in (samples, weights))
    (tau,) = replicated(jnp.asarray(tau, dtype))
    return _look(settings.kernel, alike)(points, w, jnp.atleast_1d(tau))


def are_hidden(settings: Settings, num: Any, others: Array, own: Array) -> Any:
    """Whether the sums of other pairs are small beside those of the pairs i = i, (…)."""
    return _are_small(others, own) if are_looked_at(settings, num) else False


@unbatched
def _are_small(others: Array, own: Array) -> Array:
    return (jnp.abs(others) < SHARE * jnp.abs(own)).any()


@functools.cache
def _look(kernel: Kernel, alike: bool) -> Callable[..., Bool[Array, ""]]:
    return unbatched(functools.partial(_are_sparse, kernel, alike))


def _are_sparse(kernel: Kernel, alike: bool, points: Array, weights: Array, tau: Array) -> Bool[Array, ""]:
    """Whether the pairs of some points, of large weight, with all others amount to little beside their own terms.

    Points (*batch, N, D), weights (*batch, N), τ (*batch, T); true if they do in one of the batch.
    """
    w, num = jnp.abs(weights), weights.shape[-1]
    rows = _some_of_each(w, alike)
    x, own = jnp.take_along_axis(points, rows[..., None], -2), jnp.take_along_axis(w, rows, -1)
    at_once = are_known(points.size) and SAMPLED * points.size <= AT_ONCE
    one = jnp.ones_like(points[..., :1, :1])
    squared = squared_differences(x, points) if at_once else -2 * difference_logits(one, x, points)  # (…, some, N)
    are_others = rows[..., None] != jnp.expand_dims(jnp.arange(num, dtype="int32"), range(rows.ndim))
    kappa = [jnp.abs(kernel(t[..., None, None] * squared)) for t in jnp.moveaxis(tau, -1, 0)]
    mean = functools.reduce(jnp.add, kappa) / len(kappa)
    others = (own[..., None] * jnp.where(are_others, mean, 0) * w[..., None, :]).sum((-2, -1))
    return (others < SHARE * abs(kernel.at_zero) * jnp.square(own).sum(-1)).any()


def _some_of_each(w: Array, alike: bool) -> Array:
    """Indices of some points (*batch, some), from everywhere: of every so many, the one of the largest weight."""
    num = w.shape[-1]
    some = min(SAMPLED, num)
    spread = (0.618034 * np.arange(1, some + 1)) % 1
    if alike:
        return jnp.expand_dims(jnp.asarray(num * spread, "int32"), range(w.ndim - 1))
    batch = w.shape[:-1]
    spread = jnp.asarray(1 + 0.618034 * np.arange(num) % 1, w.dtype)  # else equal weights give the first points
    scores = jnp.pad(w * jnp.expand_dims(spread, range(len(batch))), [(0, 0)] * len(batch) + [(0, -num % some)])
    first = scores.reshape(*batch, -1, some).argmax(-2).astype("int32")
    return jnp.minimum(some * first + jnp.expand_dims(jnp.arange(some, dtype="int32"), range(len(batch))), num - 1)


def sums_of_others(
    tile: Callable[[Array, Callable[[Array], Array]], Array], columns: Array, sets: Array | None = None
) -> Array:
    """Σ_{j ≠ i} tile_ij c_j (N, K) of columns (N, K), some rows at a time.

    `tile` gets the indices of rows, and a function of points (N, D) that gives ‖x_i - x_j‖², or one for i = j. With
    `sets` (N,) only points of one set are summed.
    """
    num = len(columns)
    rows = min(num, max(LEAST_ROWS, PAIRS // num))
    one = jnp.ones((1, 1), columns.dtype)

    @jax.checkpoint
    def of_some(indices: Array) -> Array:
        count = indices[:, None] != jnp.arange(num, dtype="int32")[None]
        if sets is not None:
            count &= sets[indices][:, None] == sets[None]

        def squared(points: Array) -> Array:
            return jnp.where(count, -2 * difference_logits(one, points[indices], points), 1)

        return dot(jnp.where(count, tile(indices, squared), 0), columns)

    steps = -(-num // rows)
    indices = jnp.minimum(jnp.arange(steps * rows, dtype="int32"), num - 1).reshape(steps, rows)
    return lax.map(of_some, indices).reshape(-1, columns.shape[1])[:num]


def mean_kernel(kernel: Kernel, tau: Array, points: Array) -> Callable[[Array, Callable[[Array], Array]], Array]:
    """The tile of a kernel, or the mean of those of several τ."""

    def tile(_: Array, squared: Callable[[Array], Array]) -> Array:
        distances = squared(points)
        return functools.reduce(jnp.add, [kernel(t * distances) for t in jnp.atleast_1d(tau)]) / max(1, tau.size)

    return tile
