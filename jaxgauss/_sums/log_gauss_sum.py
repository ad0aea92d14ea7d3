"""log_gauss_sum: the logarithm of a Gauss sum with positive weights; its derivative rules are softmax means."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import Precision
from jaxtyping import Array, Float

from .._arrays.devices import has_cuda, replicated, vary_alike, vary_like
from .._arrays.points import LOG_ZERO, align, center, common_center, unbroadcast
from .._arrays.tracing import jitted
from .._calls import also_called
from .._checks.arguments import public
from .._checks.names import as_engine
from .._checks.operands import as_operand, check_weights
from .._checks.samples import check_kernel
from .._checks.settings import Keys, Queries, Segments, Settings, Tau, working_dtype
from .._engines.engine import Engine
from .._engines.inspection import examined
from .._engines.near import are_near
from .._engines.plan import takes_half
from .._engines.run import kernel_means
from .._kernels.kernels import GAUSS, Kernel
from .float64 import Rules, by_rules, with_all_digits
from .positive_kernels import as_weights, logs_of_any, means_formula, means_of_any, positive_logs, weights_of
from .preparation import checked, none_are_zero, reverse_only
from .segments import by_segments

LogWeights = Float[Array | np.ndarray, "*#batch n"] | None
LARGEST = 60.0  # the largest logarithm of one sum over another


@public()
def log_gauss_sum(
    queries: Queries,
    keys: Keys,
    log_weights: LogWeights = None,
    tau: Tau = 1.0,
    *,
    kernel: str | Kernel = "gauss",
    engine: str | Engine = "auto",
    precision: str | Precision | None = None,
    segments: Segments = None,
) -> Float[Array, "*result m"]:
    """Logarithm of a sum of Gaussian kernels, log Σ_n w_n exp(-τ/2 ‖q_m - k_n‖²), also where the sum itself underflows.

    It is the log-sum-exp of one attention call: O(MND) operations and O((M + N) D) memory.

    Args:
        queries: points q, (…, M, D).
        keys: points k, (…, N, D).
        log_weights: log w, (…, N), whose leading axes broadcast; -inf is a weight of zero. None: all weights are one.
        tau: τ = 1/σ², positive: a number, or an array that broadcasts against the leading axes, as for `gauss_sum`.
        kernel: a name or a `Kernel` that is nowhere negative: not "energy". The logarithm of a named kernel is accurate
            where κ underflows; that of a `Kernel(profile)` is not.
        engine: as for `gauss_sum`: "auto", "attention", "blocked", "dense", "clusters" or "differences". Kernels other
            than the Gaussian take "auto", "clusters" or "differences".
        precision: as for `gauss_sum`, except that None is float32 on CUDA.
        segments: as for `gauss_sum`.

    Returns:
        (…, M) in the promoted dtype of queries, keys and log-weights. Without keys, or if all weights are zero: -inf.

    Raises:
        ValueError: shapes do not fit, tau is not positive, or an engine or a precision cannot run there.
        TypeError: an argument is not a floating array, or labels are not known integers.

    Derivatives:
        Reverse mode of any order. With P_mn = w_n Φ_mn / Σ_n w_n Φ_mn, ∂q = τ (Σ_n P_mn k_n - q_m), the score of a
        mixture, comes from the same call. Gradients of other kernels take several times as long in
        many dimensions if points lie far apart.
        Forward mode is an error; a Hessian is `jax.jacrev(jax.grad(f))`.

    Precision:
        In float32 within 1e-5 · max(1, |log|), wherever the points lie; gradients within 2e-5 of the sizes of their
        terms. On CUDA the error grows with the squared distance of the points from their center (docs/precision.md).
        Logarithms below -1e26 saturate.

    Example:
        >>> import jax.numpy as jnp, jaxgauss
        >>> float(jaxgauss.log_gauss_sum(jnp.array([[100.0]]), jnp.array([[0.0]]))[0])
        -5000.0

    References:
        Rux & Neumayer, "Fast Gauss Sums via Flash Attention", 2026, arXiv:2609.04910.
    """
    function = "log_gauss_sum"
    values = check_weights(function, "log_weights", log_weights, keys)
    kernel = check_kernel(function, kernel, positive=True)
    asked = Settings(as_engine(function, engine, precision), "", function, "highest", kernel=kernel, logs=True)
    settings, _ = checked(asked, queries, keys, values, tau)
    if segments is not None:
        operands = queries, keys, none_are_zero(log_weights, keys, settings)[..., None], tau
        return by_segments(unrounded_log_sum, settings, segments, *operands, empty=-math.inf)[..., 0]
    given = None if log_weights is None else as_weights(log_weights)
    settings = examined(settings, tau, queries, keys, given, logs=True)
    return _checked_log_sum(settings, queries, keys, log_weights, as_operand(tau, settings.dtype))


log_kernel_sum = public()(also_called("log_kernel_sum", log_gauss_sum))


@functools.partial(jitted, num_static=1)
def _checked_log_sum(settings: Settings, queries: Array, keys: Array, log_weights: Any, tau: Array) -> Array:
    weights = none_are_zero(log_weights, keys, settings)[..., None]
    return unrounded_log_sum(settings, queries, keys, weights, tau)[..., 0].astype(settings.dtype)


def unrounded_log_sum(settings: Settings, queries: Array, keys: Array, log_weights: Array, tau: Array) -> Array:
    """log Σ_n w_n Φ (…, M, 1) in the working dtype, from checked arguments with log w (…, N, 1)."""
    dtype = working_dtype(settings.dtype)
    queries, keys, log_weights, tau = replicated(*(jnp.asarray(x, dtype) for x in (queries, keys, log_weights, tau)))
    operands = vary_alike(*align(queries, keys, log_weights, tau))
    queries, keys, log_weights, tau = reverse_only(settings.function, *operands)
    if keys.shape[-2] == 0:
        batch = jnp.broadcast_shapes(*(x.shape[:-2] for x in (queries, keys, log_weights)), tau.shape)
        return jnp.full((*batch, queries.shape[-2], 1), -math.inf, dtype)
    operands = queries, keys, tau, jnp.maximum(log_weights, LOG_ZERO)
    if settings.kernel != GAUSS:
        logs: Any = positive_logs(settings, *operands)
    else:
        are_near = near_by_logs(settings, queries, keys, log_weights, tau, log_weights)
        logs = by_rules(LOGS, settings, *are_near, *operands)
    return jnp.where(logs <= LOG_ZERO / 2, -math.inf, logs)


def near_by_logs(
    settings: Settings, queries: Array, keys: Array, values: Array, tau: Array, log_weights: Array
) -> tuple[Any, Any]:
    """Whether points are near: for the logarithms, and for their pulls.

    One boolean decides for a whole batch, so that `vmap` leaves a conditional.
    """
    if settings.engine.anywhere:
        return False, False
    for_values = are_near(settings, queries, keys, values, tau, logs=True)
    return for_values, are_near(settings, queries, keys, weights_of(log_weights), tau, pulls=True, logs=True)


def relative_sum(
    settings: Settings, queries: Array, keys: Array, values: Array, log_weights: Array, tau: Array, logs: Array
) -> Array:
    """Σ_n w_n Φ v_n exp(-logs_m) (…, M, C) of operands of equal rank, w ≥ 0 and any v; at most 1e26 times the mean.

    Never in half precision: it is rarely needed, and every program would have to contain another branch.
    """
    operands = vary_alike(*replicated(queries, keys, tau, log_weights, values, logs))
    return with_all_digits(settings, _relative_sum, *operands)


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


means: Any = jax.custom_vjp(kernel_means, nondiff_argnums=(0, 1))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _log_sum(settings: Settings, near: bool, queries: Array, keys: Array, tau: Array, log_weights: Array) -> Array:
    """log Σ_n w_n Φ (…, M, 1)."""
    nothing = vary_like(jnp.zeros_like(log_weights), [log_weights]) if near else log_weights[..., :0]
    return means(settings, near, queries, keys, nothing, tau, log_weights)[1]


def _log_sum_forward(settings: Settings, near: bool, *operands: Array):
    shifts, logs = _shifts_and_logs(settings, near, *operands)
    return logs, (*operands, shifts, logs)


def _log_sum_backward(settings: Settings, near: bool, residuals, h: Array):
    queries, keys, tau, log_weights, shifts, logs = residuals
    c = _center(settings, near, keys)
    d_queries = tau[..., None, None] * h * shifts
    (weight,), (first,) = _transposed(settings, near, queries - c, keys - c, tau, log_weights, logs, h)
    d_keys = tau[..., None, None] * (first - (keys - c) * weight)
    return _collected((queries, keys, tau, log_weights), c, d_queries, d_keys, weight)


_log_sum.defvjp(_log_sum_forward, _log_sum_backward)


def _center(settings: Settings, near: bool, keys: Array) -> Array:
    c = center(keys, takes_half(settings))
    return c if near else common_center(keys, c)


def _shifts_and_logs(settings: Settings, near: bool, queries, keys, tau, log_weights):
    """Σ_n P_mn (k_n - q_m), and the logarithms, from one call."""
    c = _center(settings, near, keys)
    mean_keys, logs = means(settings, near, queries, keys, keys - c, tau, log_weights)
    return mean_keys - (queries - c), logs


def _relative_sum(settings: Settings, queries, keys, tau, log_weights, values, logs):
    operands = queries, keys, values, tau, log_weights
    by_rules = settings.kernel == GAUSS and not has_cuda()
    found, own_logs = means(settings, False, *operands) if by_rules else means_of_any(settings, *operands)
    return found * jnp.exp(jnp.minimum(own_logs - logs, LARGEST))


def _means_forward(settings: Settings, near: bool, *operands):
    found, logs = means(settings, near, *operands)
    return (found, logs), (*operands, found, logs)


def _means_backward(settings: Settings, near: bool, residuals, cotangents):
    queries, keys, values, tau, log_weights, found, logs = residuals
    g, h = cotangents
    c = _center(settings, near, keys)
    q, k = queries - c, keys - c
    products = values[..., :, None] * k[..., None, :]  # (…, N, C, D)
    batch = jnp.broadcast_shapes(products.shape[:-3], k.shape[:-2])
    flat = jnp.broadcast_to(products, (*batch, *products.shape[-3:])).reshape(*batch, k.shape[-2], -1)
    columns = jnp.concatenate([flat, jnp.broadcast_to(k, (*batch, *k.shape[-2:]))], -1)
    moments, _ = means(settings, near, q, k, columns, tau, log_weights)
    dim = k.shape[-1]
    mean_keys = moments[..., -dim:]
    mean_products = moments[..., :-dim].reshape(*moments.shape[:-1], -1, dim)  # (…, M, C, D)
    pulls = (g[..., None] * (mean_products - found[..., None] * mean_keys[..., None, :])).sum(-2)
    d_queries = tau[..., None, None] * (pulls + h * (mean_keys - q))

    remainder = h - (g * found).sum(-1, keepdims=True)
    weights, firsts = _transposed(settings, near, q, k, tau, log_weights, logs, jnp.concatenate([remainder, g], -1))
    d_values = jnp.concatenate(weights[1:], -1)
    total = weights[0] + (values * d_values).sum(-1, keepdims=True)
    first = firsts[0] + sum(values[..., i : i + 1] * x for i, x in enumerate(firsts[1:]))
    d_keys = tau[..., None, None] * (first - k * total)
    d_queries, d_keys, d_tau, d_log_weights = _collected((queries, keys, tau, log_weights), c, d_queries, d_keys, total)
    return d_queries, d_keys, unbroadcast(d_values, values.shape), d_tau, d_log_weights


means.defvjp(_means_forward, _means_backward)


def _log_formula(settings: Settings, queries: Array, keys: Array, tau: Array, log_weights: Array) -> Array:
    return means_formula(settings, queries, keys, log_weights[..., :0], tau, log_weights)[1]


LOGS = Rules(_log_sum, _log_sum_forward, _log_sum_backward, _log_formula, logs_of_any, tau=2)
MEANS = Rules(means, _means_forward, _means_backward, means_formula, means_of_any, tau=3)


def _transposed(
    settings: Settings, near: bool, q: Array, k: Array, tau: Array, log_weights: Array, logs: Array, g: Array
):
    """Σ_m P_mn g_mc, (…, N, 1) for each channel c, and Σ_m P_mn g_mc q_m, (…, N, D)."""
    num_queries, dim = q.shape[-2:]
    batch = jnp.broadcast_shapes(q.shape[:-2], g.shape[:-2])
    q1 = jnp.concatenate([q, jnp.ones_like(q[..., :1])], -1)
    products = jnp.broadcast_to(g[..., :, None] * q1[..., None, :], (*batch, num_queries, g.shape[-1], dim + 1))
    found, log_sums = means(settings, near, k, q, products.reshape(*batch, num_queries, -1), tau, -logs)
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
