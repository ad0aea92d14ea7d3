"""Our own reduction: the norms of the keys enter the logits, so nothing under- or overflows.

Compare `prescale` and `reweight`, the paper's Algorithms 1 and 2.
"""

import math

import torch
from torch import Tensor

from .attention import HALF, Kernel, attention
from .layout import pack, point_columns, signs_and_log_rows, split

# S: float16 ends at 65504, which ½|b|² passes 362 bandwidths from the center; so it is stored divided by S.
SCALE = {torch.float16: 1024.0}


def rescale(queries: Tensor, keys: Tensor, values: Tensor, kernel: Kernel) -> Tensor:
    """Σ_n exp(-½‖a_m - b_n‖²) v_n for scaled points a (B, H, M, D), b (B, H, N, D) and v (B, H, N, C).

    attention([a, S, S], [b, -h, -l], v) · exp(lse - ½|a|²), where S (h + l) = ½|b|² in two columns of its dtype: the
    norms of the rounded points, so that this is the exact sum of the rounded points. In half precision the size of a
    row of v is a weight in the logits as well, and of one channel only the signs are left to be averaged.
    """
    if kernel.dtype not in HALF:
        mean, log_sum = softmax_mean(queries, keys, values.to(kernel.dtype), kernel)
        return _product(mean, log_sum.clamp(max=math.log(keys.shape[-2])))  # log Σ_n Φ ≤ log N

    x, log_rows, scale = signs_and_log_rows(values)
    channels = x.shape[-1]
    if channels == 1:  # signs, and their sizes as a second channel that meets the same rounded weights
        mean, log_sum = softmax_mean(queries, keys, torch.cat([x, x.abs()], -1).to(kernel.dtype), kernel, log_rows)
        mean = mean[..., :1] / mean[..., 1:].clamp(min=torch.finfo(mean.dtype).tiny)  # 1 where all signs are the same
    else:  # values are split like points where there is width for it
        parts = kernel.parts if 2 * channels <= kernel.width(kernel.columns(keys.shape[-1])) else 1
        mean, log_sum = softmax_mean(queries, keys, torch.cat(split(x, kernel.dtype, parts), -1), kernel, log_rows)
        mean = mean.unflatten(-1, (parts, channels)).sum(-2)
    return _product(mean * scale, torch.minimum(log_sum, log_rows.logsumexp(-2, keepdim=True)))


def _product(mean: Tensor, log_sum: Tensor) -> Tensor:
    """mean · exp(log_sum), where the exponential alone might underflow."""
    factor = (log_sum / 2).exp()
    return mean * factor * factor


def softmax_mean(
    queries: Tensor, keys: Tensor, values: Tensor, kernel: Kernel, log_weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Σ_n w_n Φ v_n / Σ_n w_n Φ (B, H, M, C) and log Σ_n w_n Φ (B, H, M, 1), for values that the dtype holds."""
    query_columns, query_norms = point_columns(queries, kernel)
    key_columns, key_norms = point_columns(keys, kernel, of_keys=True)
    bias = -key_norms if log_weights is None else log_weights - key_norms
    mean, lse = biased_attention(query_columns, key_columns, values, bias, kernel)
    return mean, lse - query_norms


def biased_attention(
    query_columns: list[Tensor], key_columns: list[Tensor], values: Tensor, bias: Tensor, kernel: Kernel
) -> tuple[Tensor, Tensor]:
    """Attention with logits a·b + bias, bias (B, H, N, 1): as the kernel's own bias, or in columns."""
    dim, channels = sum(x.shape[-1] for x in query_columns), values.shape[-1]
    if kernel.takes_bias:
        width, bias = kernel.width(max(dim, channels)), bias.mT
        padded_queries, padded_keys = pack(*query_columns, width=width), pack(*key_columns, width=width)
        out, lse = attention(padded_queries, padded_keys, pack(values, width=width), kernel, bias=bias)
    else:
        width = kernel.width(max(dim + kernel.norm_columns, channels))
        scale, columns = bias_columns(bias, kernel)
        padded_queries = pack(*query_columns, *(scale for _ in columns), width=width)
        padded_keys = pack(*key_columns, *columns, width=width)
        out, lse = attention(padded_queries, padded_keys, pack(values, width=width), kernel)
    return out[..., :channels], lse


def bias_columns(bias: Tensor, kernel: Kernel) -> tuple[float, list[Tensor]]:
    """S, and columns of the kernel's dtype that sum to bias / S."""
    scale = SCALE.get(kernel.dtype, 1.0)
    return scale, split(bias / scale, kernel.dtype, kernel.norm_columns)
