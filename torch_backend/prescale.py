"""Algorithm 1 of the paper: a Gauss sum from attention and its log-sum-exp.

Source: Rux & Neumayer, "Fast Gauss Sums via Flash Attention", 2026, arXiv:2609.04910.
"""

import torch
from torch import Tensor

from .attention import Kernel, attention
from .layout import normalized, pack, point_columns

LARGEST = {torch.float32: 80.0, torch.float64: 700.0}  # exponents beyond this overflow; the values are zero there


def prescale(queries: Tensor, keys: Tensor, values: Tensor, kernel: Kernel) -> Tensor:
    """Σ_n exp(-½‖a_m - b_n‖²) v_n for scaled points a (B, H, M, D), b (B, H, N, D) and v (B, H, N, C).

    attention(a, b, v exp(-½|b|²)) · exp(lse - ½|a|²). The narrowest of the three, and the first to lose digits: the
    scaled values underflow once |b|² passes twice the logarithm of the range of the dtype.
    """
    (query_columns, query_norms), (key_columns, key_norms) = (
        point_columns(queries, kernel),
        point_columns(keys, kernel, of_keys=True),
    )
    channels, dim = values.shape[-1], sum(x.shape[-1] for x in key_columns)
    values, scale = normalized(values * (-key_norms).exp(), kernel.dtype)

    width = kernel.width(max(dim, channels))
    padded = pack(*query_columns, width=width), pack(*key_columns, width=width), pack(values, width=width)
    out, lse = attention(*padded, kernel)
    factor = (lse - query_norms).clamp(max=LARGEST[lse.dtype]).exp()
    return out[..., :channels] * (scale * factor)
