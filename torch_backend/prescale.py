"""Algorithm 1 of the paper: a Gauss sum from attention and its log-sum-exp.

Source: Rux & Neumayer, "Fast Gauss Sums via Flash Attention", 2026, arXiv:2609.04910.
"""

from array_api_compat import array_namespace

from .dtypes import Array
from .kernels import Attend, AttentionKernel
from .layout import cast, dtype_of, normalized, pack, point_columns

LARGEST = {"float32": 80.0, "float64": 700.0}  # larger exponents overflow; the values are zero there


def prescale(queries: Array, keys: Array, values: Array, kernel: AttentionKernel, attend: Attend) -> Array:
    """Σ_n exp(-½‖a_m - b_n‖²) v_n for scaled points a (B, H, M, D), b (B, H, N, D) and v (B, H, N, C).

    attention(a, b, v exp(-½|b|²)) · exp(lse - ½|a|²). It takes the fewest columns and loses accuracy first: the scaled
    values underflow once |b|² exceeds twice the logarithm of the dtype's range.
    """
    xp = array_namespace(values)
    query_columns, query_norms = point_columns(queries, kernel)
    key_columns, key_norms = point_columns(keys, kernel, of_keys=True)
    channels, dim = values.shape[-1], sum(x.shape[-1] for x in key_columns)
    scaled, scale = normalized(values * xp.exp(-key_norms), kernel.dtype)

    layout = {"width": kernel.width(max(dim, channels)), "dtype": kernel.dtype}
    packed = pack(*query_columns, **layout), pack(*key_columns, **layout), pack(scaled, **layout)
    out, lse = attend(*packed, kernel)
    out, exponents = cast(out[..., :channels], dtype_of(scaled)), cast(lse, dtype_of(scaled)) - query_norms
    return out * scale * xp.exp(xp.clip(exponents, None, LARGEST[dtype_of(lse)]))
