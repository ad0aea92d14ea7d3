"""Gauss sums in plain JAX, dense and blocked, under all transformations: the reference of tests and benchmarks."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from .._arrays.devices import replicated, vary_alike
from .._arrays.points import align, dot, scaled_points
from .._checks.given import public
from .._checks.operands import as_operand, check_operands
from .._checks.settings import Keys, Queries, Sums, Tau, Values, working_dtype
from .._engines.tiles import tiled_sum


@public()
def gauss_sum_dense(queries: Queries, keys: Keys, values: Values, tau: Tau = 1.0) -> Sums:
    """Sum Gaussian kernels in plain JAX, with the M×N kernel matrix in memory: Σ_n exp(-τ/2 ‖q_m - k_n‖²) v_n.

    Arguments, result and errors are those of `gauss_sum`. Every JAX transformation works, forward mode included. O(MN)
    memory. Computed in float32, or in float64 for float64 arguments.

    Precision:
        Exponents are formed by one matrix product. If the farthest point is R bandwidths from the center, the error
        relative to Σ Φ|v| is 2⁻²⁴ R² in float32 and 2⁻⁵³ R² in float64. Beyond R = 45 (4096 in float64) rows may be
        wrong, without a warning. There, compare with `gauss_sum(…, method="differences")` instead.
    """
    return _native("gauss_sum_dense", _formula, queries, keys, values, tau)


@public()
def gauss_sum_blocked(queries: Queries, keys: Keys, values: Values, tau: Tau = 1.0) -> Sums:
    """Sum Gaussian kernels in plain JAX, one tile of the kernel matrix at a time: Σ_n exp(-τ/2 ‖q_m - k_n‖²) v_n.

    Arguments, result and errors are those of `gauss_sum`. Every JAX transformation works, forward mode included. Linear
    memory, forward and backward: `jax.checkpoint` computes tiles again for gradients.

    Precision:
        As for `gauss_sum_dense`.
    """
    return _native("gauss_sum_blocked", _formula_by_blocks, queries, keys, values, tau)


def _native(function: str, reduction: Callable, queries: Queries, keys: Keys, values: Values, tau: Tau) -> Array:
    """Check and promote the public arguments, and return their reduction in the promoted dtype."""
    dtype = check_operands(function, queries, keys, values, tau)
    return _checked_native(reduction, dtype, queries, keys, values, as_operand(tau, dtype))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _checked_native(reduction: Callable, dtype: str, *operands: Array) -> Array:
    q, k, v, t = replicated(*(jnp.asarray(x, working_dtype(dtype)) for x in operands))
    weights = v.ndim == 1
    q, k, v, t = align(*vary_alike(q, k, v[:, None] if weights else v, t))
    total = reduction(*scaled_points(q, k, t, base_2=False), v).astype(dtype)
    return total[..., 0] if weights else total


def _formula(a: Array, b: Array, v: Array) -> Array:
    """The formula of the sum. Exponents that rounding leaves above zero, by any amount, are cut off."""
    logits = dot(a, b.mT) - jnp.square(a).sum(-1)[..., :, None] / 2 - jnp.square(b).sum(-1)[..., None, :] / 2
    return dot(jnp.exp(logits - lax.stop_gradient(jnp.maximum(logits, 0))), v)


def _formula_by_blocks(a: Array, b: Array, v: Array) -> Array:
    return tiled_sum(_formula, a, b, v)
