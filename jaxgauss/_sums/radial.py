"""Sums of radial kernels that XLA evaluates, and the derivative rules that make their gradients radial sums again."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from .._arrays.points import unbroadcast
from .._checks.settings import Settings
from .._engines import dispatch
from .._engines.channels import NOTHING, Channels
from .._engines.pairs import Sums, Wanted
from .._engines.radial import difference_sums, gradients_of, sums_by_differences, sums_by_products
from .._engines.reach import are_near

# Derivatives. With u = τ‖q_m - k_n‖², κ' the derivative of κ, ψ = -2κ', a cotangent g and w_mn = ψ(u) ⟨g_m, v_n⟩, from
# ∂κ/∂q = 2τ κ' (q - k) = τ ψ (k - q):
#
#     dv_n = Σ_m κ g_m        dq_m = τ Σ_n w_mn (k_n - q_m)        dk_n = τ Σ_m w_mn (q_m - k_n)
#     dτ   = -½ Σ_mn w_mn ‖q_m - k_n‖²
#
# These are the rules of `gauss_sum`, where ψ = κ. Here κ and ψ are two kernels, so that the sum itself has no use for
# the gradients. The gradients are `pair_sums` once more, whose own derivatives JAX forms, a tile at a time: from
# products where points are near one another, else from differences of coordinates.
# Source: the chain rule.


radial_sum = jax.custom_vjp(dispatch.radial_sum, nondiff_argnums=(0, 1))
pair_sums = jax.custom_vjp(dispatch.pair_sums, nondiff_argnums=(0, 1))
_pullback = jax.custom_vjp(dispatch.radial_pullback, nondiff_argnums=(0, 1, 2))


def _forward(settings: Settings, channels: Channels, queries, keys, values, tau):
    wanted = queries.perturbed or keys.perturbed, tau.perturbed
    operands = tuple(x.value for x in (queries, keys, values, tau))
    # which gradients are wanted travels as the shape of an array: see `gauss_sum`
    return radial_sum(settings, channels, *operands), (operands, jnp.zeros([1 + x for x in wanted], bool))


def _backward(settings: Settings, channels: Channels, residuals: Any, g: Any):
    (queries, keys, values, tau), pattern = residuals
    if isinstance(g, jax.custom_derivatives.SymbolicZero):
        return None, None, None, None
    of_points, of_tau = (size == 2 for size in pattern.shape)
    if not (of_points or of_tau):
        d_values = radial_sum(settings, channels, keys, queries, g, tau)
        return None, None, unbroadcast(d_values, values.shape), None
    return _pullback(settings, channels, of_tau, queries, keys, values, tau, g)


radial_sum.defvjp(_forward, _backward, symbolic_zeros=True)


def _pullback_forward(settings: Settings, channels: Channels, with_tau: bool, *operands: Array):
    return _pullback(settings, channels, with_tau, *operands), operands


def _pullback_backward(settings: Settings, channels: Channels, _: bool, operands: tuple[Array, ...], cotangents: Any):
    return jax.vjp(functools.partial(_pullback_by_pairs, settings, channels), *operands)[1](cotangents)


_pullback.defvjp(_pullback_forward, _pullback_backward)


def _pullback_by_pairs(settings: Settings, channels: Channels, queries, keys, values, tau, g) -> tuple[Array, ...]:
    """The rules above, by sums about the queries and about the keys."""
    of_rows = pair_sums(settings, Wanted(NOTHING, channels, True), queries, keys, keys[..., :0], tau, g, values)
    of_columns = pair_sums(settings, Wanted(channels, channels), keys, queries, g, tau, values, g)
    return gradients_of(of_rows, of_columns, queries, keys, values, tau)


def _pair_sums_backward(settings: Settings, wanted: Wanted, operands: tuple[Array, ...], cotangents: Sums):
    def pullback(function: Any, *operands: Array) -> Any:
        return jax.vjp(functools.partial(function, wanted), *operands)[1](cotangents)

    by_products, by_differences = (functools.partial(pullback, x) for x in (sums_by_products, sums_by_differences))
    if wanted.kinked:
        return by_differences(*operands)
    return lax.cond(are_near(*operands[:2], operands[3]), by_products, by_differences, *operands)


pair_sums.defvjp(lambda *args: (pair_sums(*args), args[2:]), _pair_sums_backward)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def radial_sum_in_both_modes(settings: Settings, channels: Channels, *operands: Array) -> Array:
    """The same sum under all transformations: its derivatives are those of the sum from differences."""
    return dispatch.radial_sum(settings, channels, *operands)


@radial_sum_in_both_modes.defjvp
def _tangent(settings: Settings, channels: Channels, primals: tuple[Array, ...], tangents: tuple[Array, ...]):
    _, tangent = jax.jvp(functools.partial(difference_sums, channels), primals, tangents)
    return radial_sum_in_both_modes(settings, channels, *primals), tangent
