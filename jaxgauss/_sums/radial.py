"""Sums of radial kernels that XLA evaluates, and the derivative rules that make their gradients radial sums again."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._arrays.places import has_cuda, platforms
from .._arrays.points import by_point, of_coordinates, unbroadcast
from .._checks.settings import Settings
from .._engines import dispatch
from .._engines.anywhere import FEW_DIMENSIONS
from .._engines.radial import (
    difference_sums,
    gradients_of,
    of_tau,
    sums_by_differences,
    sums_by_products,
    waves_pullback,
)
from .._engines.reach import one_of_two, tiles_are_near
from .._engines.wanted import NOTHING, Channels, Sums, Wanted
from .._kernels.kernels import GAUSS

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


radial_sum: Any = jax.custom_vjp(dispatch.radial_sum, nondiff_argnums=(0, 1))
pair_sums: Any = jax.custom_vjp(dispatch.pair_sums, nondiff_argnums=(0, 1))
mixed_sums: Any = jax.custom_vjp(dispatch.mixed_sums, nondiff_argnums=(0, 1))
radial_gradients: Any = jax.custom_vjp(dispatch.radial_pullback, nondiff_argnums=(0, 1, 2))


class Which(NamedTuple):
    """Which gradients are asked for."""

    queries: bool
    keys: bool
    values: bool
    tau: bool


def _forward(settings: Settings, channels: Channels, *primals: Any):
    which, operands = Which(*(x.perturbed for x in primals)), tuple(x.value for x in primals)
    queries, _, values, _ = operands
    pulls = spread = queries[..., :0]
    about_keys = which.keys or which.values  # where both are wanted, near points have them from one pass afterwards
    if (which.queries or which.tau) and not about_keys and sum(channels.widths) == 1:
        wanted = Wanted(channels, channels, which.tau, repeats=True)
        total, pulls, spread = pair_sums(settings, wanted, *operands, jnp.ones_like(queries[..., :1]), values)
    else:
        total = radial_sum(settings, channels, *operands)
    # which gradients are wanted travels as the shape of an array: see `gauss_sum`
    return total, (operands, pulls, spread, jnp.zeros([1 + x for x in which], bool))


def _backward(settings: Settings, channels: Channels, residuals: Any, g: Any):
    (queries, keys, values, tau), pulls, spread, pattern = residuals
    which = Which(*(size == 2 for size in pattern.shape))
    if isinstance(g, jax.custom_derivatives.SymbolicZero):
        return None, None, None, None
    return wanted_gradients(settings, channels, which, queries, keys, values, tau, g, pulls, spread)


def wanted_gradients(
    settings: Settings,
    channels: Channels,
    which: Which,
    queries: Array,
    keys: Array,
    values: Array,
    tau: Array,
    g: Array,
    pulls: Array,
    spread: Array,
) -> tuple[Array | None, ...]:
    """By a pass about the queries, a pass about the keys, or both; `pulls` and `spread` are the sum's own, if any."""
    operands, nothing = (queries, keys, values, tau), queries[..., :0]
    scale, about_keys = by_point(tau, queries), which.keys or which.values
    d_queries = d_keys = d_values = d_tau = None
    if pulls.size:
        d_queries = scale * g * pulls
    if spread.size:
        d_tau = of_tau(g * spread, tau)
    needs_rows, needs_tau = which.queries and d_queries is None, which.tau and d_tau is None
    if needs_rows and about_keys:
        d_queries, d_keys, d_values, d_tau = radial_gradients(settings, channels, which.tau, *operands, g)
    elif about_keys or (needs_tau and not needs_rows):
        summed, pulling = (channels if x else NOTHING for x in (which.values, which.keys or needs_tau))
        wanted, summed = Wanted(summed, pulling, needs_tau, repeats=summed == pulling), g if which.values else nothing
        found = pair_sums(settings, wanted, keys, queries, summed, tau, values, g)
        d_keys, d_values = scale * found.pulls, found.sums
        d_tau = of_tau(found.spread, tau) if needs_tau else d_tau
    elif needs_rows:
        wanted = Wanted(NOTHING, channels, needs_tau)
        found = pair_sums(settings, wanted, queries, keys, keys[..., :0], tau, g, values)
        d_queries = scale * found.pulls
        d_tau = of_tau(found.spread, tau) if needs_tau else d_tau
    gradients = zip((d_queries, d_keys, d_values, d_tau), which, operands, strict=True)
    return tuple(unbroadcast(d, x.shape) if is_wanted else None for d, is_wanted, x in gradients)  # type: ignore[arg-type]


radial_sum.defvjp(_forward, _backward, symbolic_zeros=True)


def _gradients_forward(settings: Settings, channels: Channels, with_tau: bool, *operands: Array):
    return radial_gradients(settings, channels, with_tau, *operands), operands


def _gradients_backward(settings: Settings, channels: Channels, _: bool, operands: tuple[Array, ...], cotangents: Any):
    return jax.vjp(functools.partial(_by_pairs, settings, channels), *operands)[1](cotangents)


radial_gradients.defvjp(_gradients_forward, _gradients_backward)


def _by_pairs(settings: Settings, channels: Channels, queries, keys, values, tau, g) -> tuple[Array, ...]:
    """The rules above, by sums about the queries and about the keys."""
    of_rows = pair_sums(settings, Wanted(NOTHING, channels, True), queries, keys, keys[..., :0], tau, g, values)
    of_columns = pair_sums(settings, Wanted(channels, channels, repeats=True), keys, queries, g, tau, values, g)
    return gradients_of(of_rows, of_columns, queries, keys, values, tau)


def _pair_sums_backward(settings: Settings, wanted: Wanted, operands: tuple[Array, ...], cotangents: Sums):
    def pullback(function: Any, *operands: Array) -> Any:
        return jax.vjp(functools.partial(function, wanted), *operands)[1](cotangents)

    by_products, by_differences = (functools.partial(pullback, x) for x in (sums_by_products, sums_by_differences))
    queries, keys, _, tau, *_ = operands

    def by_pairs(*operands: Array) -> Any:
        if wanted.kinked or of_coordinates(tau, queries) or has_cuda() or queries.shape[-1] <= FEW_DIMENSIONS:
            return by_differences(*operands)
        return one_of_two(tiles_are_near(queries, keys, tau), by_products, by_differences, *operands)

    if {*wanted.kernels} != {GAUSS} or len(platforms()) > 1:
        return by_pairs(*operands)
    chosen = dispatch.exact_plan_of(settings, platforms()[0], (queries, keys, keys, tau))
    return waves_pullback(wanted, chosen, by_pairs, operands, cotangents)


pair_sums.defvjp(lambda *args: (pair_sums(*args), args[2:]), _pair_sums_backward)


def _mixed_sums_backward(settings: Settings, wanted: Wanted, operands: tuple[Array, ...], cotangents: Sums):
    """Of one Gaussian after the other."""

    def one_by_one(queries: Array, keys: Array, values: Array, tau: Array, shares: Array, *weights: Array) -> Sums:
        found = pair_sums(settings, wanted, queries, keys, values, tau, *weights).mixed(tau, shares)
        return jax.tree.map(lambda x: x[None], found)

    return jax.vjp(one_by_one, *operands)[1](cotangents)


mixed_sums.defvjp(lambda *args: (mixed_sums(*args), args[2:]), _mixed_sums_backward)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def radial_sum_in_both_modes(settings: Settings, channels: Channels, *operands: Array) -> Array:
    """The same sum under all transformations: its derivatives are those of the sum from differences."""
    return dispatch.radial_sum(settings, channels, *operands)


@radial_sum_in_both_modes.defjvp
def _tangent(settings: Settings, channels: Channels, primals: tuple[Array, ...], tangents: tuple[Array, ...]):
    _, tangent = jax.jvp(functools.partial(difference_sums, channels), primals, tangents)
    return radial_sum_in_both_modes(settings, channels, *primals), tangent
