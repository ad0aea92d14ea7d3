"""Logarithms of sums and softmax means, and their derivative rules: of near points, or of any points in float64."""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._arrays.custom_rule import Wanted, with_rule
from .._arrays.devices import has_cuda, replicated, vary_alike, vary_like
from .._arrays.points import LOG_ZERO, center, common_center, unbroadcast
from .._kernels.kernels import GAUSS
from .branches import one_of_two
from .near import are_near
from .plan import takes_half
from .positive_kernels import (
    logs_of_any,
    means_formula,
    means_of_any,
    positive_logs,
    positive_means,
    weights_of,
)
from .programs import Pullback, Pushforward, Some, in_float64, with_all_digits
from .run import kernel_means
from .settings import Settings, working_dtype

LARGEST = 60.0  # the largest logarithm of one sum over another

# Derivatives. For L_m = log Σ_n w_n Φ_mn, weights P_mn = w_n Φ_mn exp(-L_m) and means V_m = Σ_n P_mn v_n,
#
#     dL_m = Σ_n P_mn d(log w_n + log Φ_mn)        dV_m = Σ_n P_mn (dv_n + (v_n - V_m) d(log w_n + log Φ_mn))
#
# so with cotangents g of V and h of L every derivative is a sum over t_mn = P_mn (h_m + ⟨g_m, v_n - V_m⟩):
#
#     dq_m = τ Σ_n t_mn (k_n - q_m)     dk_n = τ Σ_m t_mn (q_m - k_n)     d log w_n = Σ_m t_mn     dv_n = Σ_m P_mn g_m
#
# Sums over n are means again. So are sums over m, with keys and queries exchanged and weights exp(-L_m):
# Σ_m P_mn x_m = exp(log w_n + L'_n) V'_n, where the exponential is never above M. dτ comes from dq and dk, as in
# `rules`. The rules are made of `means` alone, so they hold for every order.
#
# Of points that are not near everything is in float64, because weights depend on differences of exponents. Results are
# of the working dtype. If τ is differentiated, gradients are those of the formula, because moments about a center
# cancel in the gradient of τ. Other kernels: see `positive_kernels`.


def log_sums(settings: Settings, queries: Array, keys: Array, tau: Array, log_weights: Array) -> Array:
    """log Σ_n w_n κ (…, M, 1) of operands of equal rank in the working dtype, with log w (…, N, 1)."""
    operands = queries, keys, tau, jnp.maximum(log_weights, LOG_ZERO)
    if settings.kernel != GAUSS:
        return positive_logs(settings, *operands)
    nothing = vary_like(jnp.zeros_like(log_weights), [log_weights])
    return _by_rules(LOGS, settings, *_are_near(settings, queries, keys, nothing, tau, log_weights), *operands)


def softmax_means(settings: Settings, *operands: Array) -> tuple[Array, Array]:
    """Σ_n w κ v / Σ_n w κ (…, M, C) and log Σ_n w κ (…, M, 1).

    Operands are queries, keys, values, τ and log w (…, N, 1) ≥ LOG_ZERO, of equal rank in the working dtype.
    """
    if settings.kernel != GAUSS:
        return positive_means(settings, *operands)
    return _by_rules(MEANS, settings, *_are_near(settings, *operands), *operands)


def relative_sum(
    settings: Settings, queries: Array, keys: Array, values: Array, log_weights: Array, tau: Array, logs: Array
) -> Array:
    """Σ_n w_n Φ v_n exp(-logs_m) (…, M, C) of operands of equal rank, w ≥ 0 and any v; at most 1e26 times the mean.

    Never in half precision: it is rarely needed, and every program would have to contain another branch.
    """
    operands = vary_alike(*replicated(queries, keys, tau, log_weights, values, logs))
    return with_all_digits(settings, _relative_sum, *operands)


@jax.jit
def as_weights(log_weights: Array) -> Array:
    """`weights_of` (…, N) at once, (…, N, 1), of at least float32, which holds LOG_ZERO."""
    return weights_of(log_weights.astype(working_dtype(log_weights.dtype.name))[..., None])


def _relative_sum(settings: Settings, queries, keys, tau, log_weights, values, logs):
    operands = queries, keys, values, tau, log_weights
    by_rules = settings.kernel == GAUSS and not has_cuda()
    found, own_logs = means(settings, False, *operands) if by_rules else means_of_any(settings, *operands)
    return found * jnp.exp(jnp.minimum(own_logs - logs, LARGEST))


def _are_near(
    settings: Settings, queries: Array, keys: Array, values: Array, tau: Array, log_weights: Array
) -> tuple[Any, Any]:
    """Whether points are near: for the results, and for their pulls. One boolean decides for a whole batch."""
    if settings.engine.anywhere:
        return False, False
    for_values = are_near(settings, queries, keys, values, tau, logs=True)
    return for_values, are_near(settings, queries, keys, weights_of(log_weights), tau, pulls=True, logs=True)


def _log_sum(settings: Settings, near: bool, queries: Array, keys: Array, tau: Array, log_weights: Array) -> Array:
    some = near and not has_cuda()  # on a CPU products take a column
    nothing = vary_like(jnp.zeros_like(log_weights), [log_weights]) if some else log_weights[..., :0]
    return means(settings, near, queries, keys, nothing, tau, log_weights)[1]


def _log_sum_forward(settings: Settings, near: bool, _: Wanted, queries, keys, tau, log_weights):
    """The logarithms, and Σ_n P_mn (k_n - q_m), from one call."""
    c = _center(settings, near, keys)
    mean_keys, logs = means(settings, near, queries, keys, keys - c, tau, log_weights)
    return logs, (mean_keys - (queries - c), logs)


def _log_sum_backward(settings: Settings, near: bool, wanted: Wanted, operands, kept, h: Array) -> list[Array]:
    (queries, keys, tau, log_weights), (shifts, logs) = operands, kept
    c = _center(settings, near, keys)
    d_queries = tau[..., None, None] * h * shifts
    (weight,), (first,) = _transposed(settings, near, c, queries, keys, tau, log_weights, logs, h)
    d_keys = tau[..., None, None] * (first - (keys - c) * weight)
    return [*itertools.compress(_collected(operands, c, d_queries, d_keys, weight), wanted)]


def _means_forward(settings: Settings, near: bool, _: Wanted, *operands: Array):
    results = means(settings, near, *operands)
    return results, results


def _means_backward(settings: Settings, near: bool, wanted: Wanted, operands, kept, cotangents) -> list[Array]:
    (queries, keys, values, tau, log_weights), (found, logs), (g, h) = operands, kept, cotangents
    c = _center(settings, near, keys)
    q, k = queries - c, keys - c
    products = values[..., :, None] * k[..., None, :]  # (…, N, C, D)
    batch = jnp.broadcast_shapes(products.shape[:-3], k.shape[:-2])
    flat = jnp.broadcast_to(products, (*batch, *products.shape[-3:])).reshape(*batch, k.shape[-2], -1)
    columns = jnp.concatenate([flat, jnp.broadcast_to(k, (*batch, *k.shape[-2:]))], -1)
    moments, _ = means(settings, near, queries, keys, columns, tau, log_weights)
    dim = k.shape[-1]
    mean_keys = moments[..., -dim:]
    mean_products = moments[..., :-dim].reshape(*moments.shape[:-1], -1, dim)  # (…, M, C, D)
    pulls = (g[..., None] * (mean_products - found[..., None] * mean_keys[..., None, :])).sum(-2)
    d_queries = tau[..., None, None] * (pulls + h * (mean_keys - q))

    remainder = h - (g * found).sum(-1, keepdims=True)
    g = jnp.concatenate([remainder, g], -1)
    weights, firsts = _transposed(settings, near, c, queries, keys, tau, log_weights, logs, g)
    d_values = jnp.concatenate(weights[1:], -1)
    total = weights[0] + (values * d_values).sum(-1, keepdims=True)
    first = firsts[0] + sum(values[..., i : i + 1] * x for i, x in enumerate(firsts[1:]))
    d_keys = tau[..., None, None] * (first - k * total)
    of_logs = queries, keys, tau, log_weights
    d_queries, d_keys, d_tau, d_log_weights = _collected(of_logs, c, d_queries, d_keys, total)
    gradients = d_queries, d_keys, unbroadcast(d_values, values.shape), d_tau, d_log_weights
    return [*itertools.compress(gradients, wanted)]


def _transposed(
    settings: Settings,
    near: bool,
    c: Array,
    queries: Array,
    keys: Array,
    tau: Array,
    log_weights: Array,
    logs: Array,
    g: Array,
):
    """Σ_m P_mn g_m (…, N, 1) for each channel of g, and Σ_m P_mn g_m (q_m - c) (…, N, D)."""
    q, (num_queries, dim) = queries - c, queries.shape[-2:]
    batch = jnp.broadcast_shapes(q.shape[:-2], g.shape[:-2])
    q1 = jnp.concatenate([q, jnp.ones_like(q[..., :1])], -1)
    products = jnp.broadcast_to(g[..., :, None] * q1[..., None, :], (*batch, num_queries, g.shape[-1], dim + 1))
    found, log_sums = means(settings, near, keys, queries, products.reshape(*batch, num_queries, -1), tau, -logs)
    sums = found * jnp.exp(jnp.minimum(log_weights + log_sums, math.log(num_queries)))
    parts = [sums[..., i * (dim + 1) : (i + 1) * (dim + 1)] for i in range(g.shape[-1])]
    return [x[..., dim:] for x in parts], [x[..., :dim] for x in parts]


def _collected(operands: tuple[Array, ...], c: Array, d_queries: Array, d_keys: Array, d_log_weights: Array):
    """Gradients in the shapes of queries, keys, tau and log-weights."""
    queries, keys, tau, log_weights = operands
    moments = (((x - c) * d_x).sum((-2, -1)) for x, d_x in ((queries, d_queries), (keys, d_keys)))
    d_tau = sum(unbroadcast(x, tau.shape) for x in moments) / (2 * tau)
    gradients = (d_queries, queries), (d_keys, keys), (d_tau, tau), (d_log_weights, log_weights)
    return tuple(unbroadcast(gradient, x.shape) for gradient, x in gradients)


def _center(settings: Settings, near: bool, keys: Array) -> Array:
    c = center(keys, takes_half(settings))
    return c if near else common_center(keys, c)


@dataclass(frozen=True)
class Rule:
    """A function of settings, whether points are near, and operands; and its derivatives.

    Attributes:
        function, forward, backward: as `with_rule` takes them, for near points or any.
        formula: of settings and operands, from differences.
        of_any: of settings and operands, wherever points lie, with the derivatives of the formula.
        tau: the number of the operand τ.
    """

    function: Callable
    forward: Callable
    backward: Callable
    formula: Callable
    of_any: Callable
    tau: int

    def by_formula(self, wanted: Sequence[bool]) -> bool:
        """Whether gradients of points that are not near are those of the formula."""
        return has_cuda() or wanted[self.tau]


def _log_formula(settings: Settings, queries: Array, keys: Array, tau: Array, log_weights: Array) -> Array:
    return means_formula(settings, queries, keys, log_weights[..., :0], tau, log_weights)[1]


def _by(formula: Callable) -> Callable:
    """The tangents of a formula."""

    def tangent(settings: Settings, near: bool, wanted: Wanted, operands: Any, directions: Any) -> Any:
        return Pushforward(formula, wanted)(settings, operands, directions)

    return tangent


means: Any = with_rule(kernel_means, 2, _means_backward, _means_forward, _by(means_formula))
LOGS = Rule(
    with_rule(_log_sum, 2, _log_sum_backward, _log_sum_forward, _by(_log_formula)),
    *(_log_sum_forward, _log_sum_backward, _log_formula, logs_of_any),
    tau=2,
)
MEANS = Rule(means, _means_forward, _means_backward, means_formula, means_of_any, tau=3)


def _by_rules(rule: Rule, settings: Settings, for_values: Any, for_pulls: Any, *operands: Array) -> Any:
    """The function as for near points if `for_values`; where it is differentiated, if `for_pulls`."""
    if for_pulls is True:
        return rule.function(settings, True, *operands)
    if for_pulls is False:  # a custom rule would make it an array
        for_values = for_pulls = None
    return _of_either(rule, settings, for_values, for_pulls, *operands)


def _either(is_near: Array | None, near: Callable, anywhere: Callable, *operands: Any) -> Any:
    return one_of_two(False if is_near is None else is_near, near, anywhere, *operands)


def _by_points(rule: Rule, settings: Settings, for_values: Array | None, _: Array | None, *operands: Array) -> Any:
    near = functools.partial(rule.function, settings, True)
    return _either(for_values, near, functools.partial(rule.of_any, settings), *operands)


def _forward(rule: Rule, settings: Settings, wanted: Wanted, _: Any, is_near: Array | None, *operands: Array) -> Any:
    far, wanted = is_near is not None, wanted[-len(operands) :]

    def zeros(like: Any) -> Any:
        return jax.tree.map(lambda x: vary_like(jnp.zeros(x.shape, x.dtype), operands), like)

    def near(*operands: Array) -> Any:
        results, kept = rule.forward(settings, True, wanted, *operands)
        return results, (kept, zeros(kept))

    def anywhere(*operands: Array) -> Any:
        in_two_parts = functools.partial(in_float64, settings, _InTwoParts(rule.forward, wanted), far=far)
        if rule.by_formula(wanted):
            return rule.of_any(settings, *operands), zeros(jax.eval_shape(in_two_parts, *operands)[1])
        return in_two_parts(*operands)

    return _either(is_near, near, anywhere, *operands)


def _backward(rule: Rule, settings: Settings, wanted: Wanted, given: Any, parts: Any, cotangents: Any) -> Any:
    _, is_near, *operands = given
    far, wanted = is_near is not None, wanted[-len(operands) :]

    def near(operands: Any, parts: Any, cotangents: Any) -> Any:
        return rule.backward(settings, True, wanted, operands, parts[0], cotangents)

    def anywhere(operands: Any, parts: Any, cotangents: Any) -> Any:
        if rule.by_formula(wanted):
            return with_all_digits(settings, Some(Pullback(rule.formula), wanted), operands, cotangents, far=far)
        return in_float64(settings, _OfTwoParts(rule.backward, wanted), operands, parts, cotangents, far=far)

    return _either(is_near, near, anywhere, tuple(operands), parts, cotangents)


def _tangent(rule: Rule, settings: Settings, wanted: Wanted, given: Any, directions: Any) -> Any:
    _, is_near, *operands = given
    pushed = Pushforward(rule.formula, wanted[-len(operands) :])
    return with_all_digits(settings, pushed, tuple(operands), directions, far=is_near is not None)


_of_either = with_rule(_by_points, 2, _backward, _forward, _tangent)


@dataclass(frozen=True)
class _InTwoParts:
    """A forward rule for points that are not near; each number that it keeps is a sum of two that float32 holds."""

    forward: Callable
    wanted: Wanted

    def __call__(self, settings: Settings, *operands: Array) -> tuple[Any, Any]:
        results, kept = self.forward(settings, False, self.wanted, *operands)
        high = jax.tree.map(lambda x: x.astype("float32").astype("float64"), kept)
        return results, (high, jax.tree.map(jnp.subtract, kept, high))


@dataclass(frozen=True)
class _OfTwoParts:
    """A backward rule for points that are not near, from what is kept in two parts."""

    backward: Callable
    wanted: Wanted

    def __call__(self, settings: Settings, operands: tuple[Array, ...], parts: tuple[Any, Any], cotangents: Any) -> Any:
        return self.backward(settings, False, self.wanted, operands, jax.tree.map(jnp.add, *parts), cotangents)
