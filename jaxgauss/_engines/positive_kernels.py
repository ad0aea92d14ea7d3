"""Means and logarithms of any positive kernel, and their derivatives.

Of near points they are ratios and logarithms of sums, which do not underflow there: one pass over the pairs gives the
gradients. Of others they are the engine's of means, and the derivatives those of its formula, in float64.
"""

import functools
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from .._arrays.custom_rule import with_formula
from .._arrays.points import LOG_ZERO
from .branches import one_of_two
from .means import difference_means
from .near import are_near
from .programs import differentiated_in_float64
from .request import Channels, indices
from .rules import radial_sum
from .run import kernel_means
from .settings import Settings


def weights_of(log_weights: Any) -> Any:
    """Weights from their logarithms (…, N, 1), relative to the largest."""
    return jnp.exp(log_weights - _largest(log_weights))


def _largest(log_weights: Any) -> Any:
    return lax.stop_gradient(jnp.max(log_weights, -2, keepdims=True, initial=LOG_ZERO))


def positive_means(
    settings: Settings, queries: Array, keys: Array, values: Array, tau: Array, log_weights: Array
) -> tuple[Array, Array]:
    """Σ_n w κ v / Σ_n w κ (…, M, C) and log Σ_n w κ (…, M, 1), of operands of equal rank with log w (…, N, 1)."""
    operands = queries, keys, values, tau, log_weights
    near, is_near = functools.partial(_of_sums, settings), sums_are_near(settings, queries, keys, tau, log_weights)
    anywhere = functools.partial(differentiated_in_float64, settings, means_of_any, not isinstance(is_near, bool))
    return one_of_two(is_near, near, anywhere, *operands)


def positive_logs(settings: Settings, queries: Array, keys: Array, tau: Array, log_weights: Array) -> Array:
    """log Σ_n w κ (…, M, 1) of operands of equal rank with log w (…, N, 1)."""

    def near(queries: Array, keys: Array, tau: Array, log_weights: Array) -> Array:
        return _of_sums(settings, queries, keys, log_weights[..., :0], tau, log_weights)[1]

    operands = queries, keys, tau, log_weights
    is_near = sums_are_near(settings, *operands)
    anywhere = functools.partial(differentiated_in_float64, settings, logs_of_any, not isinstance(is_near, bool))
    return one_of_two(is_near, near, anywhere, *operands)


def sums_are_near(settings: Settings, queries: Array, keys: Array, tau: Array, log_weights: Array) -> Any:
    """Whether sums of the kernel do not underflow, and have accurate pulls; those with a kink have them anywhere."""
    if not settings.kernel.decays:
        return False
    pulls = not settings.kernel.kinked
    return are_near(settings, queries, keys, weights_of(log_weights), tau, pulls=pulls, second_order=pulls)


def _of_sums(
    settings: Settings, queries: Array, keys: Array, values: Array, tau: Array, log_weights: Array
) -> tuple[Array, Array]:
    """The means and logarithms of near points."""
    weights, settings = weights_of(log_weights), replace(settings, near=True, waves=False)
    products = weights * values
    columns = jnp.concatenate([products, jnp.broadcast_to(weights, (*products.shape[:-1], 1))], -1)
    sums = radial_sum(settings, Channels((settings.kernel,), columns.shape[-1:]), queries, keys, columns, tau)
    unit = lax.stop_gradient(sums[..., -1:])  # else a square in the derivative of the ratio may underflow
    sums = sums / unit
    return sums[..., :-1] / sums[..., -1:], _largest(log_weights) + jnp.log(unit) + jnp.log(sums[..., -1:])


def _means_of_any(settings: Settings, *operands: Array) -> tuple[Array, Array]:
    return kernel_means(settings, False, *operands)


def means_formula(settings: Settings, *operands: Array) -> tuple[Array, Array]:
    """The means and logarithms from differences of coordinates."""
    others = indices(operands[0].shape[-2]) if settings.exclude_self else None
    return difference_means(settings.kernel, *operands, others=others)


means_of_any = with_formula(_means_of_any, 1, means_formula)


def logs_of_any(settings: Settings, queries: Array, keys: Array, tau: Array, log_weights: Array) -> Array:
    """The logarithms alone."""
    return means_of_any(settings, queries, keys, log_weights[..., :0], tau, log_weights)[1]
