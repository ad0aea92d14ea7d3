"""Algorithm 1 of the paper: a Gauss sum from attention and its log-sum-exp.

Source: Rux & Neumayer, "Fast Gauss Sums via Flash Attention", 2026, arXiv:2609.04910.
"""

import torch
from torch import Tensor

from .attention import Kernel, attention
from .layout import half_squared_norms, normalized, pack, rounded

LARGEST = {torch.float32: 80.0, torch.float64: 700.0}  # exponents beyond this overflow; the values are zero there


def prescale(queries: Tensor, keys: Tensor, values: Tensor, kernel: Kernel) -> Tensor:
    """Σ_n exp(-½‖a_m - b_n‖²) v_n for scaled points a (B, H, M, D), b (B, H, N, D) and v (B, H, N, C).

    attention(a, b, v exp(-½|b|²)) · exp(lse - ½|a|²). The narrowest of the three, and the first to lose digits: the
    scaled values underflow once |b|² passes twice the logarithm of the range of the dtype.
    """
    dim, channels = keys.shape[-1], values.shape[-1]
    queries, keys = rounded(queries, kernel.dtype), rounded(keys, kernel.dtype)
    values, scale = normalized(values * (-half_squared_norms(keys)).exp(), kernel.dtype)

    width = kernel.width(max(dim, channels))
    out, lse = attention(pack(queries, width=width), pack(keys, width=width), pack(values, width=width), kernel)
    factor = (lse - half_squared_norms(queries)).clamp(max=LARGEST[lse.dtype]).exp()
    return out[..., :channels] * (scale * factor)
