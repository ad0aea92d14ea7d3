"""log_gauss_sum: the logarithm of a Gauss sum with positive weights."""

import functools
import math
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.lax import Precision
from jaxtyping import Array, Float

from .._arrays.devices import replicated, vary_alike
from .._arrays.points import LOG_ZERO, align
from .._arrays.tracing import jitted
from .._calls import also_called
from .._checks.arguments import public
from .._checks.names import as_engine
from .._checks.operands import as_operand, check_others, check_weights
from .._checks.samples import check_kernel
from .._checks.settings import Keys, Queries, Segments, Settings, Tau, working_dtype
from .._engines.engine import Engine
from .._engines.log_rules import as_weights, log_sums
from .._engines.near import examined
from .._kernels.kernels import Kernel
from .others import log_sums_of_others
from .preparation import checked, none_are_zero
from .segments import by_segments

LogWeights = Float[Array | np.ndarray, "*#batch n"] | None


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
    exclude_self: bool = False,
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
        exclude_self, segments: as for `gauss_sum`.

    Returns:
        (…, M) in the promoted dtype of queries, keys and log-weights. Without keys, or others, or if all weights are
        zero: -inf.

    Raises:
        ValueError: shapes do not fit, tau is not positive, or an engine or a precision cannot run there.
        TypeError: an argument is not a floating array, or labels are not known integers.

    Derivatives:
        Any order, both modes. With P_mn = w_n Φ_mn / Σ_n w_n Φ_mn, ∂q = τ (Σ_n P_mn k_n - q_m), the score of a
        mixture, comes from the same call. Gradients of other kernels take several times as long in
        many dimensions if points lie far apart.

    Precision:
        In float32 within 1e-5 · max(1, |log|), wherever the points lie; gradients within 2e-5 of the sizes of their
        terms. On CUDA the error grows with the squared distance of the points from their center (docs/precision.md).
        Distances count up to 1e18 bandwidths; logarithms below -4e37 saturate.

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
    settings, _ = checked(replace(asked, exclude_self=bool(exclude_self)), queries, keys, values, tau)
    if exclude_self:
        check_others(function, {"queries": queries, "keys": keys})
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
    queries, keys, log_weights, tau = vary_alike(*align(queries, keys, log_weights, tau))
    if keys.shape[-2] <= settings.exclude_self:
        batch = jnp.broadcast_shapes(*(x.shape[:-2] for x in (queries, keys, log_weights)), tau.shape)
        return jnp.full((*batch, queries.shape[-2], 1), -math.inf, dtype)
    summed = log_sums_of_others if settings.exclude_self else log_sums
    logs, count = summed(settings, queries, keys, tau, log_weights), (log_weights > LOG_ZERO / 2).astype(dtype)
    some = count.sum(-2, keepdims=True) > (count if settings.exclude_self else 0)
    return jnp.where(logs <= LOG_ZERO / 2, jnp.where(some, LOG_ZERO / 2, -math.inf), logs)
