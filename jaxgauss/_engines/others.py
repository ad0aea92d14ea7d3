"""Sums, means and logarithms over the pairs of different index of few points, which are their own keys.

Their derivatives are those that JAX forms. On CUDA there may be many points.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._arrays.devices import has_cuda
from .._kernels.kernels import GAUSS, Kernel
from .branches import one_of_two
from .differences.all_pairs import sums_by_differences
from .far import without_overflow
from .means import blocked_means, difference_means
from .near import are_near, unbatched
from .plan import NEAR
from .positive_kernels import means_of_sums, sums_are_near, weights_of
from .products.pair_sums import sums_by_products, within
from .request import NOTHING, Channels, PairSums, Request
from .settings import Settings


def sums_of_others(settings: Settings, queries: Array, keys: Array, values: Array, tau: Array) -> Array:
    """Σ_{n ≠ m} κ v_n (…, M, C) of operands of equal rank: by products where these are accurate, else differences."""
    kernel, nothing = settings.kernel, queries[..., :0]
    request = Request(Channels((kernel,), values.shape[-1:]), NOTHING, others=True)
    by_differences = functools.partial(sums_by_differences, request, forward_mode=settings.forward_mode)

    def by_pairs(*operands: Array) -> list[PairSums]:
        if kernel.kinked or has_cuda():
            return [by_differences(*operands)]
        are_near = _look(kernel.slope)(*operands[:4])
        return [one_of_two(are_near, functools.partial(sums_by_products, request), by_differences, *operands)]

    return without_overflow(by_pairs, queries, keys, values, tau, nothing, keys[..., :0])[0].sums


def near_means_of_others(settings: Settings, *operands: Array) -> tuple[Array, Array]:
    """Σ_{n ≠ m} w κ v / Σ_{n ≠ m} w κ and log Σ_{n ≠ m} w κ of near points; operands are as of `softmax_means`."""
    if settings.kernel == GAUSS:
        return blocked_means(*operands, others=True)
    return means_of_sums(functools.partial(sums_of_others, settings), *operands)


def means_of_others(settings: Settings, *operands: Array) -> tuple[Array, Array]:
    """`near_means_of_others` of points that lie anywhere, on a CPU in float64."""
    return difference_means(settings.kernel, *operands, others=True)


def near_logs_of_others(settings: Settings, queries: Array, keys: Array, tau: Array, log_weights: Array) -> Array:
    """The logarithms alone."""
    return near_means_of_others(settings, queries, keys, log_weights[..., :0], tau, log_weights)[1]


def logs_of_others(settings: Settings, queries: Array, keys: Array, tau: Array, log_weights: Array) -> Array:
    """The logarithms alone."""
    return means_of_others(settings, queries, keys, log_weights[..., :0], tau, log_weights)[1]


def are_near_for_logs(settings: Settings, queries: Array, keys: Array, tau: Array, log_weights: Array) -> Any:
    """Whether points are near enough for logarithms and their gradients in the working dtype."""
    if settings.engine.anywhere:
        return False
    if settings.kernel != GAUSS:
        return sums_are_near(settings, queries, keys, tau, log_weights)
    return are_near(settings, queries, keys, weights_of(log_weights), tau, pulls=True, logs=True)


@functools.cache
def _look(slope: Kernel) -> Callable[..., jax.Array]:
    """Whether products give values and pulls of a kernel of this slope; one boolean, also under `vmap`."""

    def are_near(queries: Array, keys: Array, values: Array, tau: Array) -> jax.Array | bool:
        weights = jnp.abs(values).max(-1, keepdims=True, initial=0)
        return within(NEAR[queries.dtype.name], queries, keys, tau, slope, weights)

    return unbatched(are_near)
