"""Our own reduction: the norms of the keys enter the logits, so nothing under- or overflows.

Compare `prescale` and `reweight`, the paper's Algorithms 1 and 2.
"""

import math

from torch import Tensor

from .attention import Kernel, attention
from .layout import half_squared_norms, normalized, pack


def rescale(queries: Tensor, keys: Tensor, values: Tensor, kernel: Kernel) -> Tensor:
    """Σ_n exp(-½‖a_m - b_n‖²) v_n for scaled points a (B, H, M, D), b (B, H, N, D) and v (B, H, N, C).

    attention([a, 1, 1], [b, -h, -l], v) · exp(lse - ½|a|²), where h + l = ½|b|² in two columns of the kernel's dtype.
    A kernel that takes a bias in float32 or better gets -½|b|² as the bias and needs no column.
    """
    dim, channels = keys.shape[-1], values.shape[-1]
    queries, keys = queries.to(kernel.dtype), keys.to(kernel.dtype)  # round first: what follows is exact for these
    values, scale = normalized(values, kernel.dtype)

    if kernel.takes_bias:
        width, bias = kernel.width(max(dim, channels)), -half_squared_norms(keys).mT
        padded_queries, padded_keys = pack(queries, width=width), pack(keys, width=width)
    else:
        width, bias = kernel.width(max(dim + kernel.norm_columns, channels)), None
        padded_queries, padded_keys = with_norms(queries, keys, width, kernel)
    out, lse = attention(padded_queries, padded_keys, pack(values, width=width), kernel, bias=bias)
    log_sum = (lse - half_squared_norms(queries)).clamp(max=math.log(keys.shape[-2]))  # log Σ_n Φ(q_m, k_n) ≤ log N
    return out[..., :channels] * (scale * log_sum.exp())


def with_norms(queries: Tensor, keys: Tensor, width: int, kernel: Kernel, *probe: int) -> tuple[Tensor, Tensor]:
    """[a, 1, 1, 0] and [b, -h, -l, 1]: inner products a·b - ½|b|². The last column is there with `probe` = (1,)."""
    half_norms = half_squared_norms(keys)  # (B, H, N, 1)
    high = half_norms.to(kernel.dtype)
    columns = (-high, -(half_norms - high))[: kernel.norm_columns]
    zeros = (0,) * len(probe)
    return pack(queries, *(1 for _ in columns), *zeros, width=width), pack(keys, *columns, *probe, width=width)
