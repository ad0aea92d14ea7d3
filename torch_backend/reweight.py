"""Algorithm 2 of the paper: a Gauss sum from the public attention function alone.

Source: Rux & Neumayer, "Fast Gauss Sums via Flash Attention", 2026, arXiv:2609.04910.
"""

import math

from torch import Tensor

from .attention import Kernel, public_attention
from .layout import half_squared_norms, normalized, pack, rounded


def reweight(queries: Tensor, keys: Tensor, values: Tensor, kernel: Kernel) -> Tensor:
    """Σ_n exp(-½‖a_m - b_n‖²) v_n for scaled points a (B, H, M, D), b (B, H, N, D) and v (B, H, N, C).

    A dummy key that every query meets with weight 1 turns attention's normalized weights back into Gaussians:
    [α, β] = attention([a, 1, ½|a|²], [b, -½|b|², 0] and e_{D+2}, [v, 0] and κ e_{C+1}),  s = κ α / β,  κ = √(N + 1).
    By Proposition 1, κ/(N + 1) ≤ β ≤ κ and |α| ≤ max|v|. PyTorch's autograd differentiates it. Norms of one
    half-precision column: all digits are lost where ½|x|² is large.
    """
    (num_keys, dim), channels = keys.shape[-2:], values.shape[-1]
    kappa = math.sqrt(num_keys + 1)
    queries, keys = rounded(queries, kernel.dtype), rounded(keys, kernel.dtype)
    values, scale = normalized(values, kernel.dtype)

    width = kernel.width(max(dim + 2, channels + 1))
    padded_queries = pack(queries, 1, rounded(half_squared_norms(queries), kernel.dtype), width=width)  # (B, H, M, D+2)
    norms = rounded(-half_squared_norms(keys), kernel.dtype)
    padded_keys = pack(keys, norms, 0, width=width, dummy=(dim + 1, 1.0))  # (B, H, N+1, D+2)
    padded_values = pack(values, 0, width=width, dummy=(channels, kappa))  # (B, H, N+1, C+1)

    out = public_attention(padded_queries, padded_keys, padded_values, kernel)
    alpha, beta = out[..., :channels], out[..., channels : channels + 1].clamp(min=kappa / (num_keys + 1))
    return kappa * scale * (alpha / beta)
