"""Algorithm 2 of the paper: a Gauss sum from the public attention function alone.

Source: Rux & Neumayer, "Fast Gauss Sums via Flash Attention", 2026, arXiv:2609.04910.
"""

import math

from torch import Tensor

from .attention import Kernel, public_attention
from .layout import normalized, pack, point_columns, split


def reweight(queries: Tensor, keys: Tensor, values: Tensor, kernel: Kernel) -> Tensor:
    """Σ_n exp(-½‖a_m - b_n‖²) v_n for scaled points a (B, H, M, D), b (B, H, N, D) and v (B, H, N, C).

    A dummy key that every query meets with weight 1 turns attention's normalized weights back into Gaussians:
    [α, β] = attention([a, 1, ½|a|²], [b, -½|b|², 0] and e_{D+2}, [v, 0] and κ e_{C+1}),  s = κ α / β,  κ = √(N + 1).
    By Proposition 1, κ/(N + 1) ≤ β ≤ κ and |α| ≤ max|v|. PyTorch's autograd differentiates it. Norms of one
    half-precision column (two for split points): all digits are lost where ½|x|² is large.
    """
    num_keys, channels = keys.shape[-2], values.shape[-1]
    kappa = math.sqrt(num_keys + 1)
    query_columns, query_norms = point_columns(queries, kernel)
    key_columns, key_norms = point_columns(keys, kernel, of_keys=True)
    values, scale = normalized(values, kernel.dtype)
    query_norms = split(query_norms, kernel.dtype, kernel.parts)
    key_norms = split(-key_norms, kernel.dtype, kernel.parts)
    ones, zeros, dim = [1.0] * kernel.parts, [0.0] * kernel.parts, sum(x.shape[-1] for x in key_columns)

    width = kernel.width(max(dim + 2 * kernel.parts, channels + 1))
    padded_queries = pack(*query_columns, *ones, *query_norms, width=width)  # (B, H, M, D+2)
    dummy = {dim + kernel.parts + i: 1.0 for i in range(kernel.parts)}
    padded_keys = pack(*key_columns, *key_norms, *zeros, width=width, dummy=dummy)  # (B, H, N+1, D+2)
    padded_values = pack(values, 0.0, width=width, dummy={channels: kappa})  # (B, H, N+1, C+1)

    out = public_attention(padded_queries, padded_keys, padded_values, kernel)
    alpha, beta = out[..., :channels], out[..., channels : channels + 1].clamp(min=kappa / (num_keys + 1))
    return kappa * scale * (alpha / beta)
