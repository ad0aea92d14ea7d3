"""Gauss sums of scaled points, their pullback and logarithms, by attention: for any leading axes and array library.

Operands have equal rank and are not empty; a and b are scaled and centered, so that Φ = exp(-½|a - b|²).
"""

import functools
import math

from array_api_compat import array_namespace

from .dtypes import EPS, Array, accumulation_dtype
from .kernels import PROBES, Attend, AttentionKernel, Engine
from .layout import (
    broadcast_shapes,
    cast,
    dtype_of,
    exponent_columns,
    from_columns,
    half_squared_norms,
    nonzero,
    normalized,
    pack,
    scales_for_sums,
)
from .prescale import prescale
from .rescale import rescale, rescale_and_log, softmax_mean
from .reweight import reweight

METHODS = {"reweight": reweight, "prescale": prescale, "rescale": rescale}
EXACT = 1e-2  # the pullback treats exponents with a smaller rounding error as exact


class Fold:
    """How leading axes become the kernel's (batch, heads) without copying what a batch shares.

    If keys and values are shared, the queries' batch becomes rows. If the points are shared, the values' batch becomes
    channels, and all of it shares the exponentials, unless each channel is summed `by_channel`. Otherwise there are two
    axes, of length 1 where an operand is shared.
    """

    def __init__(self, queries: Array, keys: Array, values: Array, *others: Array, by_channel: bool = False):
        leading = [tuple(x.shape[:-2]) for x in (queries, keys, values, *others)]
        self.batch = broadcast_shapes(*leading)
        varies = [math.prod(axes) > 1 for axes in leading]
        self.rows = not any(varies[1:])
        self.channels = not (self.rows or by_channel or varies[0] or varies[1] or any(varies[3:]))

    def fold(self, operand: Array, *, of_values: bool = False) -> Array:
        """(…, N, W) -> (batch, heads, N, W); with `of_values` the last axis is the channels of the values."""
        xp = array_namespace(operand)
        if self.rows:
            return xp.reshape(operand, (1, 1, -1, operand.shape[-1]))
        matrix = tuple(operand.shape[-2:])
        if self.channels:
            operand = xp.reshape(operand, (-1, *matrix))  # (B or 1, N, W)
            if of_values:
                operand = xp.reshape(xp.moveaxis(operand, 0, 1), (1, matrix[0], -1))
            return operand[None, :1]
        operand = operand[(None,) * (len(self.batch) + 2 - operand.ndim)]
        axes = [i for i, size in enumerate(self.batch) if size != 1]
        if len(axes) > 2:  # more than two axes: the rest is merged, and copied where shared
            rest = [self.batch[i] for i in axes[1:]]
            sizes = [operand.shape[i] for i in axes]
            operand = xp.broadcast_to(xp.reshape(operand, (*sizes, *matrix)), (sizes[0], *rest, *matrix))
            return xp.reshape(operand, (sizes[0], math.prod(rest), *matrix))
        sizes = [operand.shape[i] for i in axes]
        return xp.reshape(operand, (*[1] * (2 - len(axes)), *sizes, *matrix))

    def unfold(self, result: Array, shape: tuple[int, ...], *, of_values: bool = False) -> Array:
        """The inverse of `fold`, summed over the axes along which an operand of this shape is shared."""
        xp = array_namespace(result)
        if self.channels and of_values:
            result = xp.moveaxis(xp.reshape(result[0, 0], (result.shape[-2], -1, shape[-1])), 1, 0)
            return xp.reshape(result, shape)
        if self.rows or self.channels:
            return xp.reshape(result, shape)
        return _unbroadcast(xp.reshape(result, (*self.batch, *shape[-2:])), shape)


def _unbroadcast(x: Array, shape: tuple[int, ...]) -> Array:
    """The sum over the axes that broadcasting has stretched from `shape` to the array's shape."""
    xp = array_namespace(x)
    extra = x.ndim - len(shape)
    stretched = [i + extra for i, n in enumerate(shape) if n == 1 and x.shape[i + extra] != 1]
    axes = (*range(extra), *stretched)
    return xp.reshape(xp.sum(x, axis=axes) if axes else x, shape)


def fused_sum(
    method: str, a: Array, b: Array, values: Array, kernel: AttentionKernel, attend: Attend, *, with_log: bool = False
) -> tuple[Array, ...]:
    """Σ_n Φ v_n (…, M, C), and the largest sum relative to max|v|.

    With `with_log`, for `rescale` in one call, log Σ_n w_n Φ (…, M, 1) is returned between them, so that the pullback
    need not compute it again.
    """
    fold, reduction = Fold(a, b, values, by_channel=kernel.fine), METHODS[method]
    num_queries = a.shape[-2]
    a, b, v = fold.fold(a), fold.fold(b), fold.fold(values, of_values=True)
    most = kernel.channels(v.shape[-1])
    most -= method == "reweight" and most == kernel.max_width  # which adds a column of its own
    xp, logs = array_namespace(v), []
    if with_log:
        block, log_sum = rescale_and_log(a, b, v, kernel, attend)
        blocks, logs = [block], [_in_batch(fold, log_sum, num_queries)]
    else:
        blocks = [reduction(a, b, x, kernel, attend) for x in _channel_blocks(v, most)]
    sums = cast(blocks[0] if len(blocks) == 1 else xp.concat(blocks, axis=-1), dtype_of(v))
    largest = xp.max(xp.abs(sums) / nonzero(xp.max(xp.abs(v), axis=(0, 1, 2), keepdims=True)))
    return fold.unfold(sums, (*fold.batch, num_queries, values.shape[-1]), of_values=True), *logs, largest


def fused_pullback(
    a: Array,
    b: Array,
    values: Array,
    cotangent: Array,
    kernel: AttentionKernel,
    engine: Engine,
    *,
    exact: bool,
    log_sum: Array | None = None,
) -> tuple[Array, Array, Array, Array]:
    """Gradients of Σ_m ⟨g_m, s_m⟩ in the shapes of a, b and values, and the largest Σ_n Φ (1 if unknown).

    With P_mn = Φ and S_mn = Φ ⟨g_m, v_n⟩,

        dv = Pᵀ g      da = S b - (S 1) a      db = Sᵀ a - (Sᵀ 1) b.

    Unless exponents are `exact`, P is the softmax instead, which neither exceeds one nor underflows in a whole row; g
    is multiplied by the row sums of Φ. They come from `log_sum`, if the sum has returned it, else from another pass.
    """
    fold, shapes, kernel = Fold(a, b, values), [x.shape for x in (a, b, values)], kernel.backward
    a, b = fold.fold(a), fold.fold(b)
    v, g = fold.fold(values, of_values=True), fold.fold(cotangent, of_values=True)
    log_sum = log_sum if log_sum is None else fold.fold(log_sum)
    most = kernel.channels(v.shape[-1])
    blocks = zip(_channel_blocks(v, most), _channel_blocks(g, most), strict=True)
    da, db, dv, largest = zip(*(_pullback(a, b, x, y, kernel, engine, exact, log_sum) for x, y in blocks), strict=True)
    xp = array_namespace(v)
    dv = dv[0] if len(dv) == 1 else xp.concat(dv, axis=-1)
    return (
        fold.unfold(sum(da[1:], start=da[0]), shapes[0]),
        fold.unfold(sum(db[1:], start=db[0]), shapes[1]),
        fold.unfold(dv, shapes[2], of_values=True),
        xp.max(xp.stack(largest)),
    )


def fused_means(
    a: Array, b: Array, values: Array, log_weights: Array, kernel: AttentionKernel, attend: Attend
) -> tuple[Array, Array, Array]:
    """Σ_n w_n Φ v_n / Σ_n w_n Φ (…, M, C), log Σ_n w_n Φ (…, M, 1), and the largest Σ_n w_n Φ; C may be zero."""
    channels, kernel = values.shape[-1], kernel.backward if values.shape[-1] else kernel
    values = values if channels else array_namespace(values).zeros_like(log_weights)
    fold = Fold(a, b, values, log_weights)
    shape = *fold.batch, a.shape[-2]
    a, b, log_weights, v = *(fold.fold(x) for x in (a, b, log_weights)), fold.fold(values, of_values=True)
    xp, dtype = array_namespace(v), dtype_of(v)
    x, scale = normalized(v, kernel.dtype)
    blocks = _channel_blocks(x, kernel.channels(x.shape[-1]))
    means, logs = zip(*(softmax_mean(a, b, block, kernel, attend, log_weights) for block in blocks), strict=True)
    mean = cast((means[0] if len(means) == 1 else xp.concat(means, axis=-1)) * scale, dtype)
    log_sum = _in_batch(fold, cast(logs[0], dtype), shape[-1])
    largest = xp.exp(xp.max(log_sum))
    return fold.unfold(mean, (*shape, values.shape[-1]), of_values=True)[..., :channels], log_sum, largest


def _pullback(
    a: Array, b: Array, v: Array, g: Array, kernel: AttentionKernel, engine: Engine, exact: bool, log_sum: Array | None
) -> tuple[Array, Array, Array, Array]:
    """da, db, dv, and the largest Σ_n Φ."""
    xp, dtype, dim, channels = array_namespace(v), dtype_of(a), a.shape[-1], v.shape[-1]
    working = accumulation_dtype(kernel.dtype)
    query_columns, key_columns, half_norms = exponent_columns(a, b, kernel)
    v, v_scale = normalized(v, kernel.dtype)
    g, g_size = normalized(g, kernel.dtype, axis=(-2, -1))
    v_size = xp.max(v_scale, axis=-1, keepdims=True) if kernel.half else 1.0
    # Two more columns, [0, 1] and [1, 0], add nothing to the inner products; the pullback returns S 1 and Sᵀ 1 in them.
    ones = kernel.columns(dim)
    width = kernel.width(max(ones + PROBES, channels))
    packed = functools.partial(pack, width=width, dtype=kernel.dtype)
    padded_a, padded_b = packed(*query_columns, 0.0, 1.0), packed(*key_columns, 1.0, 0.0)
    packed = functools.partial(pack, width=kernel.value_width(channels, width), dtype=kernel.dtype)
    padded_v = packed(v)

    if exact:
        lse, largest = half_norms, xp.ones_like(xp.max(half_norms))  # P = Φ
        sums = 1.0
    elif log_sum is None:
        _, lse = engine.attend(padded_a, padded_b, padded_v, kernel)  # P = softmax
        lse = cast(lse, dtype)
        sums = xp.exp(xp.clip(lse - half_norms, None, math.log(b.shape[-2])))
        largest = xp.max(sums)
    else:  # P = softmax as well, with row sums from the sum's own pass
        is_unknown = log_sum == math.inf
        log_sum = xp.where(is_unknown, 0.0, log_sum)
        sums = xp.exp(xp.clip(log_sum, None, math.log(b.shape[-2])))
        lse = half_norms + log_sum
        largest = xp.where(xp.any(is_unknown), 0.0, xp.max(sums))  # at zero the gradient is computed again
    # The channels of v were divided by v_scale. So g is multiplied by it, for S, and dv is divided by it. The sizes of
    # v and g, whose product may overflow in float32, are multiplied at the end.
    v_scale = v_scale / v_size
    g_scale, p_scale = scales_for_sums(g * v_scale, sums, (a, b), kernel.dtype)
    g = g * v_scale * sums / (g_scale * p_scale)
    if kernel.half:
        lse = lse - xp.log(p_scale)
    gradients = engine.pullback(packed(g), padded_a, padded_b, padded_v, cast(lse, working), kernel)

    sb, sa, pg = (cast(gradient, dtype) for gradient in gradients)
    da = g_scale * (from_columns(sb, dim, kernel, of_keys=True) - sb[..., ones : ones + 1] * a)
    db = g_scale * (from_columns(sa, dim, kernel) - sa[..., ones + 1 : ones + 2] * b)
    dv = g_scale * pg[..., :channels] / v_scale
    return da * v_size * g_size, db * v_size * g_size, dv * g_size, largest


def _in_batch(fold: Fold, log_sum: Array, num_queries: int) -> Array:
    """Logarithms (…, M, 1) for the whole batch; channels share them."""
    shape = (*fold.batch, num_queries, 1)
    return array_namespace(log_sum).broadcast_to(log_sum[0, 0], shape) if fold.channels else fold.unfold(log_sum, shape)


def are_exact(a: Array, b: Array, kernel: AttentionKernel) -> Array | bool:
    """Whether exponents err by less than `EXACT`: on a CPU, in float32 or better, for points within reach."""
    if kernel.device != "cpu" or kernel.half:
        return False
    xp = array_namespace(a, b)
    return xp.max(half_squared_norms(a)) * EPS[kernel.dtype] < EXACT


def _channel_blocks(x: Array, size: int) -> list[Array]:
    return [x[..., start : start + size] for start in range(0, x.shape[-1], size)]
