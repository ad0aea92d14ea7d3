"""Our own reduction: the norms of the keys enter the logits, so nothing under- or overflows.

Compare `prescale` and `reweight`, the paper's Algorithms 1 and 2.
"""

import math

import torch
from torch import Tensor

from .attention import Kernel, attention
from .layout import half_squared_norms, normalized, pack, rounded

# S: float16 ends at 65504, which ½|b|² passes 362 bandwidths from the center; so it is stored divided by S. The price
# is an absolute error of S · 2⁻²⁵ in the exponent, far below that of float16 weights.
SCALE = {torch.float16: 1024.0}


def rescale(queries: Tensor, keys: Tensor, values: Tensor, kernel: Kernel) -> Tensor:
    """Σ_n exp(-½‖a_m - b_n‖²) v_n for scaled points a (B, H, M, D), b (B, H, N, D) and v (B, H, N, C).

    attention([a, S, S], [b, -h, -l], v) · exp(lse - ½|a|²), where S (h + l) = ½|b|² in two columns of its dtype.
    A kernel that takes a bias in float32 or better gets -½|b|² as the bias and needs no column.
    """
    dim, channels = keys.shape[-1], values.shape[-1]
    queries, keys = (
        rounded(queries, kernel.dtype),
        rounded(keys, kernel.dtype),
    )  # what follows is exact for these
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


def with_norms(
    queries: Tensor, keys: Tensor, width: int, kernel: Kernel, *probes: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """[a, S, S] and [b, -h, -l], of inner products a·b - ½|b|²; each probe (x, y) adds a column x and a column y."""
    scale = SCALE.get(kernel.dtype, 1.0)
    norms = half_squared_norms(keys) / -scale  # (B, H, N, 1)
    high = rounded(norms, kernel.dtype)
    columns = (high, rounded(norms - high, kernel.dtype))[: kernel.norm_columns]
    query_probes, key_probes = ([probe[i] for probe in probes] for i in (0, 1))
    padded_queries = pack(queries, *(scale for _ in columns), *query_probes, width=width)
    return padded_queries, pack(keys, *columns, *key_probes, width=width)
