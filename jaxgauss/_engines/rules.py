"""The derivative rules: gradients of radial kernel sums are sums of radial kernels, those of Gauss sums Gauss sums."""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._arrays.custom_rule import Wanted, with_formula, with_rule
from .._arrays.devices import has_cuda, platforms, vary_like
from .._arrays.hidden import without_hidden
from .._arrays.points import by_point, center, of_coordinates, shared, unbroadcast
from .._arrays.shapes import are_known
from .._kernels.kernels import GAUSS
from . import run as dispatch
from .branches import one_of_two
from .channels import cheaper_by_channels, gradient_of_pulls, keeps_pulls, own_points, sum_and_pulls
from .clusters.sorted_tiles import FEW_DIMENSIONS
from .differences.all_pairs import sums_by_differences
from .forward_mode import by_differences, sum_and_tangent
from .fourier.frequencies import DIMENSIONS
from .fourier.pullback import waves_pullback
from .gradients import gradients_of, of_tau
from .near import are_near, known_near, tiles_are_near
from .plan import takes_half
from .products.gaussian import sum_and_tile, tile_pullback
from .products.pair_sums import sums_by_products
from .programs import How, Pushforward, Some, as_program
from .request import NOTHING, Channels, PairSums, Request
from .settings import Settings

MANY_PAIRS = {1: 2**22, 2: 2**25, 3: 2**28}  # from which tangents of Gauss sums may be by waves

# Derivatives. With u = τ‖q_m - k_n‖², s_m = Σ_n κ(u) v_n, ψ = -2κ', a cotangent g and w_mn = ψ(u) ⟨g_m, v_n⟩, from
# ∂κ/∂q = 2τ κ' (q - k) = τ ψ (k - q):
#
#     dv_n = Σ_m κ g_m        dq_m = τ Σ_n w_mn (k_n - q_m)        dk_n = τ Σ_m w_mn (q_m - k_n)
#     dτ   = -½ Σ_mn w_mn ‖q_m - k_n‖²
#
# These are `pair_sums`, whose own derivatives JAX forms, a tile at a time: the rules hold for every order.
#
# For a Gaussian κ = ψ = Φ, and for near points the gradients are Gauss sums. By channels: W = K [v_c k, v_c] holds the
# sum s and Σ_n Φ v_c k, so that dq = τ Σ_c g_c (W_k,c - q s_c), and U = Kᵀ [g_c q, g_c] holds dv and dk, with C(D + 1)
# channels each. Moments are about a center c, because Σ Φ v (k - c) - (q - c) s loses fewer digits. Since
# Σ dq + Σ dk = 0, dτ = (Σ_m q_m·dq_m + Σ_n k_n·dk_n) / 2τ at any origin. For C = 1 (MMD, flows, densities) W comes with
# the value: two sums in all. For many channels one fused backward pass gives all gradients; its own rule is written by
# channels. Where Φ is dense and hardly larger than the operands (few points of many dimensions) it is kept.
# Source: the chain rule; Rux & Neumayer 2026, section 3, for the sum as attention.


class Which(NamedTuple):
    """Which gradients are asked for."""

    queries: bool
    keys: bool
    values: bool
    tau: bool

    @property
    def pulls(self) -> bool:
        """Whether any of them is formed of pulls."""
        return self.queries or self.keys or self.tau


def _radial_forward(
    settings: Settings, channels: Channels, wanted: Wanted, *operands: Array
) -> tuple[Array, tuple[Array, Array]]:
    which = Which(*wanted)
    queries, _, values, _ = operands
    about_keys = which.keys or which.values  # if both sides are wanted, one pass afterwards gives both for near points
    if (which.queries or which.tau) and not about_keys and sum(channels.widths) == 1:
        request = Request(channels, channels, which.tau, repeats=True)
        found = pair_sums(settings, request, *operands, jnp.ones_like(queries[..., :1]), values)
        return found.sums, (found.pulls, found.spread)
    return radial_sum(settings, channels, *operands), (queries[..., :0], queries[..., :0])


def _radial_gradients(
    settings: Settings, channels: Channels, wanted: Wanted, operands: tuple[Array, ...], kept: Any, g: Array
) -> list[Array]:
    """Gradients by a pass at the queries, at the keys, or both; `kept` are pulls and spread from the sum, if any."""
    which, (queries, keys, values, tau), (pulls, spread) = Which(*wanted), operands, kept
    nothing, scale, about_keys = queries[..., :0], by_point(tau, queries), which.keys or which.values
    d_queries = d_keys = d_values = d_tau = None
    if pulls.size:
        d_queries = scale * g * pulls
    if spread.size:
        d_tau = of_tau(g * spread, tau)
    needs_rows, needs_tau = which.queries and d_queries is None, which.tau and d_tau is None
    if needs_rows and about_keys:
        d_queries, d_keys, d_values, d_tau = radial_pullback(settings, channels, which.tau, *operands, g)
    elif about_keys or (needs_tau and not needs_rows):
        summed, pulling = (channels if x else NOTHING for x in (which.values, which.keys or needs_tau))
        request = Request(summed, pulling, needs_tau, repeats=summed == pulling, at_keys=True)
        found = pair_sums(settings, request, keys, queries, g if which.values else nothing, tau, values, g)
        d_keys, d_values = scale * found.pulls, found.sums
        d_tau = of_tau(found.spread, tau) if needs_tau else d_tau
    elif needs_rows:
        request = Request(NOTHING, channels, needs_tau)
        found = pair_sums(settings, request, queries, keys, keys[..., :0], tau, g, values)
        d_queries = scale * found.pulls
        d_tau = of_tau(found.spread, tau) if needs_tau else d_tau
    gradients = zip((d_queries, d_keys, d_values, d_tau), which, operands, strict=True)
    return [unbroadcast(d, x.shape) for d, is_wanted, x in gradients if is_wanted]  # type: ignore[arg-type]


def _radial_tangent(settings: Settings, channels: Channels, wanted: Wanted, operands: Any, directions: Any) -> Any:
    if {*channels.kernels} == {GAUSS} and _are_for_waves(*operands):
        return None
    return by_differences(channels, operands, _given(wanted, directions), others=settings.exclude_self)[1]


def _given(wanted: Wanted, directions: Any) -> list[Array | None]:
    """The tangents of all operands, None where there is none."""
    moving = iter(directions)
    return [next(moving) if is_wanted else None for is_wanted in wanted]


def _are_for_waves(queries: Array, keys: Array, *_: Array) -> bool:
    """Whether waves may sum so many points of few dimensions: by them the rules of gradients take less time."""
    num, dim = queries.shape[-2] * keys.shape[-2], queries.shape[-1]
    return dim in DIMENSIONS and are_known(num) and num > MANY_PAIRS[dim]


radial_sum = with_rule(dispatch.planned_kernel_sum, 2, _radial_gradients, _radial_forward, _radial_tangent)


def _by_pairs(settings: Settings, channels: Channels, _: bool, queries, keys, values, tau, g) -> tuple[Array, ...]:
    """The rules above, by `pair_sums` at the queries and at the keys."""
    of_rows = pair_sums(settings, Request(NOTHING, channels, True), queries, keys, keys[..., :0], tau, g, values)
    request = Request(channels, channels, repeats=True, at_keys=True)
    of_columns = pair_sums(settings, request, keys, queries, g, tau, values, g)
    return gradients_of(of_rows, of_columns, queries, keys, values, tau)


radial_pullback = with_formula(dispatch.planned_pair_pullback, 3, _by_pairs)


def _pair_sums_tangent(settings: Settings, request: Request, wanted: Wanted, operands: Any, directions: Any) -> Any:
    if {*request.kernels} == {GAUSS} and operands[0].shape[-1] in DIMENSIONS:
        return None  # waves may do it
    request = request._replace(others=settings.exclude_self)
    pushed = Pushforward(_pairs_by_tiles, wanted)
    if not request.others and dispatch.sums_apart(settings, *operands):
        return as_program(How(apart=True, double=False), pushed, (request,), operands, directions)
    return pushed(request, operands, directions)


def _pairs_by_tiles(request: Request, *operands: Array) -> PairSums:
    return _by_tiles(lambda function, *operands: function(*operands), request, *operands)


def _pair_sums_pullback(
    settings: Settings, request: Request, wanted: Wanted, operands: Any, _: Any, cotangents: PairSums
) -> list[Array]:
    """Of many points on a CPU by a program apart."""
    request = request._replace(others=settings.exclude_self)
    some, options = Some(_pullback_of_pairs, wanted), (settings, request)
    if not request.others and dispatch.sums_apart(settings, *operands):
        return as_program(How(apart=True, double=False), some, options, operands, cotangents)
    return some(*options, operands, cotangents)


def _by_tiles(made_of: Callable, request: Request, *operands: Array) -> Any:
    """What is made of the sums by products or by differences, which JAX differentiates."""
    ways = (functools.partial(x, request) for x in (sums_by_products, sums_by_differences))
    by_products, by_differences = (functools.partial(made_of, x) for x in ways)
    queries, keys, _, tau, *_ = operands
    if request.kinked or of_coordinates(tau, queries) or has_cuda() or queries.shape[-1] <= FEW_DIMENSIONS:
        return by_differences(*operands)
    return one_of_two(tiles_are_near(queries, keys, tau), by_products, by_differences, *operands)


def _pullback_of_pairs(settings: Settings, request: Request, operands: tuple[Array, ...], cotangents: PairSums):
    def pullback(function: Any, *operands: Array) -> Any:
        return jax.vjp(function, *operands)[1](cotangents)

    by_pairs, (queries, keys, _, tau, *_) = functools.partial(_by_tiles, pullback, request), operands
    if {*request.kernels} != {GAUSS} or len(platforms()) > 1 or request.others:
        return by_pairs(*operands)
    plan = dispatch.exact_plan_of(settings, platforms()[0], (queries, keys, keys, tau))
    return waves_pullback(request, plan, by_pairs, operands, cotangents)


pair_sums = with_rule(dispatch.planned_pair_sums, 2, _pair_sums_pullback, tangent=_pair_sums_tangent)


def _one_by_one(settings: Settings, request: Request, queries, keys, values, tau, shares, *weights) -> PairSums:
    """The sums of the mixture, from those of each Gaussian by itself."""
    found = pair_sums(settings, request, queries, keys, values, tau, *weights).mixed(tau, shares)
    return jax.tree.map(lambda x: x[None], found)


mixed_sums = with_formula(dispatch.planned_mixed_sums, 2, _one_by_one)


def near_or_anywhere(is_near: jax.Array | bool, near: Callable, anywhere: Callable, *operands: Any) -> Any:
    """`one_of_two`, with the derivatives of `anywhere` for both."""
    if is_near is False:
        return anywhere(*operands)
    return _with_derivatives(near, anywhere, None if is_near is True else is_near, *operands)


def _either(near: Callable, anywhere: Callable, is_near: jax.Array | None, *operands: Any) -> Any:
    return near(*operands) if is_near is None else one_of_two(is_near, near, anywhere, *operands)


def _anywhere(near: Callable, anywhere: Callable, is_near: jax.Array | None, *operands: Any) -> Any:
    return anywhere(*operands)


_with_derivatives = with_formula(_either, 2, _anywhere)


def _gaussian_forward(settings: Settings, wanted: Wanted, *operands: Array) -> tuple[Array, Any]:
    which = Which(*wanted)
    settings = replace(settings, pulls=which.pulls)
    is_near = are_near(settings, *operands, pulls=which.pulls, second_order=which.tau)
    ways = (functools.partial(f, which.queries or which.tau, settings) for f in (_near_and_kept, _anywhere_and_kept))
    total, kept = near_or_anywhere(is_near, *ways, *operands)
    return total, (jnp.zeros(0, bool) if isinstance(is_near, bool) else is_near, kept)


def _gaussian_gradients(settings: Settings, wanted: Wanted, operands: tuple[Array, ...], residuals: Any, g: Array):
    which, (queries, keys, values, tau), (looked, kept) = Which(*wanted), operands, residuals
    settings = replace(settings, pulls=which.pulls)
    is_near: Any = looked if looked.size else known_near(settings, *operands, pulls=which.pulls)
    if not which.pulls and not dispatch.keeps_tile(settings, *operands):
        keys = without_hidden(keys, values)
        return [unbroadcast(gaussian_sum(settings, keys, queries, g, tau), values.shape)]
    ways = (functools.partial(f, which, settings) for f in (_near_gradients, _anywhere_gradients))
    return near_or_anywhere(is_near, *ways, *operands, g, kept)


def _near_and_kept(with_pulls: bool, settings: Settings, queries: Array, keys: Array, values: Array, tau: Array):
    """The sum, and what is kept of it for the gradients: a tile, the pulls, or nothing."""
    operands = queries, keys, values, tau
    if dispatch.keeps_tile(settings, *operands):
        return sum_and_tile(*operands)
    if with_pulls and cheaper_by_channels(queries, values):
        return sum_and_pulls(settings, *operands)
    if with_pulls and dispatch.saves_log(settings, *operands):
        return dispatch.near_sum_and_log(settings, *operands)
    total = dispatch.near_sum(settings, *operands)
    return total, vary_like(jnp.zeros(0, total.dtype), [total])


def _anywhere_and_kept(with_pulls: bool, settings: Settings, queries: Array, keys: Array, values: Array, tau: Array):
    """`_near_and_kept` for points anywhere: the pulls of one channel are kept, or zeros like what is kept near."""
    operands = queries, without_hidden(keys, values), values, tau
    channels = Channels((GAUSS,), values.shape[-1:])
    if with_pulls and keeps_pulls(settings, *operands):
        weights = jnp.ones_like(queries[..., :1]), values
        found = pair_sums(settings, Request(channels, channels, repeats=True), *operands, *weights)
        return found.sums, found.pulls[..., None, :]
    kept = jax.eval_shape(functools.partial(_near_and_kept, with_pulls, settings), *operands)[1]
    total = radial_sum(settings, channels, *operands)
    return total, jax.tree.map(lambda x: vary_like(jnp.zeros(x.shape, x.dtype), [total]), kept)


def _near_gradients(which: Which, settings: Settings, *operands: Any):
    """The gradients that are asked for, of near points, by Gauss sums."""
    *primals, g, kept = operands
    queries, keys, values, tau = primals
    d_queries = d_keys = d_values = d_tau = jnp.zeros(0)
    if dispatch.keeps_tile(settings, *primals):
        d_queries, d_keys, d_values = tile_pullback(kept, values, tau, g)
    elif cheaper_by_channels(queries, values):
        if which.queries or which.tau:
            d_queries = gradient_of_pulls(kept, g, tau)
        if which.keys or which.tau:
            d_values, key_pulls = sum_and_pulls(settings, keys, queries, g, tau)
            d_keys = gradient_of_pulls(key_pulls, values, tau)
        elif which.values:
            d_values = dispatch.near_sum(settings, keys, queries, g, tau)
    else:
        points = own_points(queries, keys, tau) if which.tau else (queries, keys)
        of_sum = [kept] if dispatch.saves_log(settings, *primals) and kept.size else []
        d_queries, d_keys, d_values = dispatch.near_pullback(settings, *points, values, tau, g, *of_sum)
    if which.tau:
        c = center(queries if shared(queries) else keys, takes_half(settings))
        moments = (((x - c) * d_x).sum(-2, keepdims=True) for x, d_x in ((queries, d_queries), (keys, d_keys)))
        of_queries, of_keys = (unbroadcast(x, by_point(tau, x).shape) for x in moments)
        d_tau = (of_queries + of_keys).reshape(tau.shape) / (2 * tau)
    gradients = zip((d_queries, d_keys, d_values, d_tau), which, primals, strict=True)
    return tuple(unbroadcast(gradient, x.shape) for gradient, is_wanted, x in gradients if is_wanted)


def _anywhere_gradients(which: Which, settings: Settings, *operands: Any):
    """The gradients that are asked for, of points that lie anywhere."""
    queries, keys, values, tau, g, kept = operands
    primals = queries, without_hidden(keys, values), values, tau
    channels, nothing = Channels((GAUSS,), values.shape[-1:]), queries[..., :0]
    pulls = kept[..., 0, :] if (which.queries or which.tau) and keeps_pulls(settings, *primals) else nothing
    return tuple(_radial_gradients(settings, channels, which, primals, (pulls, nothing), g))


def _gaussian_tangent(settings: Settings, wanted: Wanted, operands: Any, directions: Any) -> Any:
    if _are_for_waves(*operands):
        return None
    if of_coordinates(operands[3], operands[0]):
        return _radial_tangent(settings, Channels((GAUSS,), operands[2].shape[-1:]), wanted, operands, directions)
    return sum_and_tangent(settings, operands, _given(wanted, directions))[1]


gaussian_sum = with_rule(dispatch.planned_gaussian_sum, 1, _gaussian_gradients, _gaussian_forward, _gaussian_tangent)
