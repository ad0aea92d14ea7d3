"""Our own reduction: the norms of the keys enter the logits, so nothing over- or underflows.

Compare `prescale` and `reweight`, the paper's Algorithms 1 and 2.
"""

import functools
import math

from array_api_compat import array_namespace

from .dtypes import Array
from .heads import attend_in_heads
from .kernels import PROBES, Attend, AttentionKernel
from .layout import (
    LOG_ZERO,
    cast,
    dtype_of,
    exponent_columns,
    in_parts,
    pack,
    point_columns,
    signs_and_log_rows,
)
from .signed import signed_sum

SMALL_ROWS = -12 * math.log(2)  # from this logarithm up, half precision can hold the sizes of rows in the values
SMALLEST = 2.0**-126  # normal number of float32


def rescale(queries: Array, keys: Array, values: Array, kernel: AttentionKernel, attend: Attend) -> Array:
    """Σ_n exp(-½‖a_m - b_n‖²) v_n for scaled points a (B, H, M, D), b (B, H, N, D) and v (B, H, N, C).

    attention([a, S, S'], [b, -h, -l], v) · exp(lse - ½|a|²). Two columns hold ½|b|² = S h + S' l, the norms of the
    *rounded* points, so this is the exact sum of the rounded points. In half precision the size of a row of v is a
    weight in the logits, too; for one channel only signs are averaged, and for a `fine` kernel nothing.
    """
    return rescale_and_log(queries, keys, values, kernel, attend, of_all=False)[0]


def rescale_and_log(
    queries: Array, keys: Array, values: Array, kernel: AttentionKernel, attend: Attend, *, of_all: bool = True
) -> tuple[Array, Array]:
    """`rescale`, and log Σ_n w_n Φ (B, H, M, 1) for the pullback, with w from 2⁻¹² to 1; +∞ if a w would be smaller.

    `of_all` gives rows of zeros a weight, too.
    """
    xp = array_namespace(values)
    if not kernel.half:
        own = _in_all(values) if kernel.device == "cpu" else 0.0
        mean, log_sum = softmax_mean(queries, keys, values - own, kernel, attend)
        return _product(mean + own, xp.clip(log_sum, None, math.log(keys.shape[-2]))), log_sum  # log Σ_n Φ ≤ log N

    if kernel.fine:
        of_logs = functools.partial(log_of_sum, kernel, attend)
        sums = [signed_sum(queries, keys, values[..., i : i + 1], of_logs) for i in range(values.shape[-1])]
        return xp.concat(sums, axis=-1), xp.full_like(sums[0], math.inf)
    x, log_rows, scale = signs_and_log_rows(values)
    channels = x.shape[-1]
    if channels == 1:  # signs, and their sizes as a second channel, averaged with the same rounded weights
        both = xp.concat([x, xp.abs(x)], axis=-1)
        mean, log_sum = softmax_mean(queries, keys, both, kernel, attend, log_rows)
        mean = mean[..., :1] / xp.clip(mean[..., 1:], SMALLEST, None)  # 1 where all signs are the same
        is_small = xp.ones_like(log_rows[..., :1, :], dtype=xp.bool)  # the pullback's weights are not needed for signs
    else:  # values get two parts, like points, if the width allows
        is_small = xp.any((log_rows > LOG_ZERO) & (log_rows < SMALL_ROWS), axis=-2, keepdims=True)
        log_rows = xp.where(is_small, log_rows, xp.clip(log_rows, SMALL_ROWS, None)) if of_all else log_rows
        parts = kernel.parts if 2 * channels <= kernel.width(kernel.columns(keys.shape[-1])) else 1
        columns = xp.concat(in_parts(x, kernel.dtype, parts), axis=-1)
        mean, log_sum = softmax_mean(queries, keys, columns, kernel, attend, log_rows)
        mean = sum(mean[..., i * channels : (i + 1) * channels] for i in range(parts))
    total = _product(mean * scale, xp.clip(log_sum, None, math.log(keys.shape[-2])))  # weights are at most one
    return total, xp.where(is_small, math.inf, log_sum)


def _in_all(values: Array) -> Array:
    """What all values of a channel (…, 1, C) have in common: the least in size, if all have one sign; else zero.

    A mean of what is left, plus it, is the mean of the values. PyTorch's kernel on a CPU adds terms in order, and the
    roundings of equal terms go one way.
    """
    xp = array_namespace(values)
    low, high = (f(values, axis=-2, keepdims=True) for f in (xp.min, xp.max))
    least = xp.where(low > 0, low, xp.clip(high, None, 0.0))
    return xp.where(xp.isfinite(least), least, 0.0)


def log_of_sum(kernel: AttentionKernel, attend: Attend, queries: Array, keys: Array, log_weights: Array) -> Array:
    """log Σ_n w_n Φ (B, H, M, 1)."""
    nothing = array_namespace(keys).zeros_like(keys[:1, :1, :, :1])
    return softmax_mean(queries, keys, nothing, kernel, attend, log_weights)[1]


def _product(mean: Array, log_sum: Array) -> Array:
    """mean · exp(log_sum), which may be finite where the exponential alone underflows."""
    factor = array_namespace(mean).exp(log_sum / 2)
    return mean * factor * factor


def softmax_mean(
    queries: Array,
    keys: Array,
    values: Array,
    kernel: AttentionKernel,
    attend: Attend,
    log_weights: Array | float = 0.0,
) -> tuple[Array, Array]:
    """Σ_n w_n Φ v_n / Σ_n w_n Φ (B, H, M, C) and log Σ_n w_n Φ (B, H, M, 1), for values that the dtype holds."""
    xp = array_namespace(queries)
    dim, channels, biases = queries.shape[-1], values.shape[-1], ()
    if kernel.takes_bias:
        query_columns, query_norms = point_columns(queries, kernel)
        key_columns, key_norms = point_columns(keys, kernel)
        biases = (cast((log_weights - key_norms).mT, kernel.dtype),)
        if kernel.is_flex:  # takes those of queries, too, and so rounds small numbers
            biases, query_norms = (*biases, cast(-query_norms, kernel.dtype)), xp.zeros_like(query_norms)
    else:
        query_columns, key_columns, query_norms = exponent_columns(queries, keys, kernel, log_weights)
    columns, own_dtype = dim if kernel.takes_bias else kernel.columns(dim), kernel.dtype
    width = kernel.width(columns if kernel.is_flex else max(columns + (PROBES if kernel.exact else 0), channels))
    is_shared = kernel.device == "cuda" and not kernel.is_flex
    if is_shared and columns + PROBES <= width:  # as the pullback packs them: XLA then does it once
        query_columns, key_columns = [*query_columns, 0.0, 1.0], [*key_columns, 1.0, 0.0]
    a, b = (pack(*x, width=width, dtype=own_dtype) for x in (query_columns, key_columns))
    padded_values = pack(values, width=kernel.value_width(channels, width), dtype=own_dtype)
    out, lse = attend_in_heads(attend, a, b, padded_values, kernel, biases)
    dtype = dtype_of(query_norms)
    return cast(out[..., :channels], dtype), cast(lse, dtype) - query_norms
