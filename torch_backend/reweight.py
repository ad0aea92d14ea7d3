"""Algorithm 2 of the paper: a Gauss sum from attention alone, without its log-sum-exp.

Source: Rux & Neumayer, "Fast Gauss Sums via Flash Attention", 2026, arXiv:2609.04910.
"""

import math

from array_api_compat import array_namespace

from .dtypes import Array
from .kernels import Attend, AttentionKernel
from .layout import cast, dtype_of, in_parts, normalized, pack, point_columns


def reweight(queries: Array, keys: Array, values: Array, kernel: AttentionKernel, attend: Attend) -> Array:
    """Σ_n exp(-½‖a_m - b_n‖²) v_n for scaled points a (B, H, M, D), b (B, H, N, D) and v (B, H, N, C).

    A dummy key, which has weight 1 for every query, turns attention's normalized weights back into Gaussians: [α, β] =
    attention([a, 1, ½|a|²], [b, -½|b|², 0] and e_{D+2}, [v, 0] and κ e_{C+1}), s = κ α / β, κ = √(N + 1). By
    Proposition 1, κ/(N + 1) ≤ β ≤ κ and |α| ≤ max|v|. PyTorch's autograd differentiates it. Norms have one
    half-precision column (two for two-part points), so all accuracy is lost where ½|x|² is large.
    """
    xp = array_namespace(values)
    num_keys, channels = keys.shape[-2], values.shape[-1]
    kappa = math.sqrt(num_keys + 1)
    query_columns, query_norms = point_columns(queries, kernel)
    key_columns, key_norms = point_columns(keys, kernel, of_keys=True)
    values, scale = normalized(values, kernel.dtype)
    query_norms = in_parts(query_norms, kernel.dtype, kernel.parts)
    key_norms = in_parts(-key_norms, kernel.dtype, kernel.parts)
    ones, zeros, dim = [1.0] * kernel.parts, [0.0] * kernel.parts, sum(x.shape[-1] for x in key_columns)

    layout = {"width": kernel.width(max(dim + 2 * kernel.parts, channels + 1)), "dtype": kernel.dtype}
    dummy_key = (*(0.0 for _ in key_columns), *zeros, *ones)
    padded_queries = pack(*query_columns, *ones, *query_norms, **layout)  # (B, H, M, D+2)
    padded_keys = pack(*key_columns, *key_norms, *zeros, **layout, last=dummy_key)  # (B, H, N+1, D+2)
    padded_values = pack(values, 0.0, **layout, last=(0.0, kappa))  # (B, H, N+1, C+1)

    out, _ = attend(padded_queries, padded_keys, padded_values, kernel, needs_lse=False)
    out = cast(out, dtype_of(values))
    alpha, beta = out[..., :channels], xp.clip(out[..., channels : channels + 1], kappa / (num_keys + 1), None)
    return kappa * scale * (alpha / beta)
