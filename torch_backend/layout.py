"""Points and values as one attention call takes them: centered, scaled, rounded, padded.

Array functions beyond the array API standard are here too, so that reductions are written once for PyTorch, JAX and
NumPy. Dtypes are given by name.
"""

import math
from collections.abc import Sequence

from array_api_compat import array_namespace, is_jax_array
from torch import broadcast_shapes as _broadcast_shapes

from . import exact
from .dtypes import BITS, HALF, MAX, SUBNORMAL, Array
from .kernels import AttentionKernel

MOST = 2.0**15  # the largest weight or cotangent in half precision
# ½|b|² exceeds 65504, the largest number of float16, beyond 362 bandwidths; and what a part leaves of it may be below
# 2⁻²⁴, the smallest. So each part is stored divided by a scale S of its own, which the queries have in that column.
SCALES = {"float16": (2.0**10, 1.0, 2.0**-10)}
LOG_ZERO = -1e4  # stands for log 0: its exponential is zero in every dtype, and its product with S is finite


def dtype_of(x: Array) -> str:
    """The name of the array's dtype."""
    return str(x.dtype).removeprefix("torch.")


def cast(x: Array, dtype: str) -> Array:
    """The array in another dtype."""
    xp = array_namespace(x)
    return x if dtype_of(x) == dtype else xp.astype(x, getattr(xp, dtype))


def held(x: Array, dtype: str) -> Array:
    """Round x to a dtype, clipped to its range, but keep it in its own dtype.

    XLA may remove a cast and the cast back. It keeps its rounding operation, which ignores float16's subnormal numbers.
    """
    xp = array_namespace(x)
    if dtype_of(x) == dtype:
        return x
    if dtype in HALF:
        x = xp.clip(x, -MAX[dtype], MAX[dtype])
    if not is_jax_array(x):
        return cast(cast(x, dtype), dtype_of(x))
    from jax import lax

    rounded = lax.reduce_precision(x, *BITS[dtype])
    if dtype != "float16":
        return rounded
    begin, step = SUBNORMAL
    return xp.where(xp.abs(x) < begin, xp.round(x / step) * step, rounded)


def without_nan(x: Array) -> Array:
    """The array with zeros for NaN."""
    xp = array_namespace(x)
    return xp.where(xp.isnan(x), xp.zeros_like(x), x)


def nonzero(x: Array) -> Array:
    """The array with ones for zeros, to divide by."""
    xp = array_namespace(x)
    return xp.where(x == 0, xp.ones_like(x), x)


def half_squared_norms(points: Array) -> Array:
    """½|x|² of every point, (…, N, D) -> (…, N, 1)."""
    return array_namespace(points).sum(points * points, axis=-1, keepdims=True) / 2


def squared_radius(a: Array, b: Array) -> Array:
    """R²: the largest |a|² or |b|²."""
    xp = array_namespace(a, b)
    norms = [without_nan(xp.sum(x * x, axis=-1)) for x in (a, b)]
    same = norms[0].shape == norms[1].shape  # then XLA finds R² once for both orders of the points
    return xp.max(xp.maximum(*norms) if same else xp.concat([xp.reshape(x, (-1,)) for x in norms]))


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """`torch.broadcast_shapes`, but at once if all shapes are equal: PyTorch's takes as long as a small kernel."""
    return tuple(shapes[0] if all(shape == shapes[0] for shape in shapes) else _broadcast_shapes(*shapes))


def scaled_points(queries: Array, keys: Array, tau: Array) -> tuple[Array, Array]:
    """a = √τ (q - c) and b = √τ (k - c); the center c affects only the rounding of exponents.

    c is the mean of the points that a batch shares, else of the keys, so that shared points stay shared. It ignores
    NaN: a NaN affects only its own row.
    """
    xp = array_namespace(queries, keys)
    shared = queries if math.prod(queries.shape[:-2]) < math.prod(keys.shape[:-2]) else keys
    number = shared.shape[-2] - xp.sum(cast(xp.isnan(shared), dtype_of(shared)), axis=-2, keepdims=True)
    mean = xp.sum(without_nan(shared), axis=-2, keepdims=True) / nonzero(number)
    center = xp.where(xp.isfinite(mean), mean, xp.zeros_like(mean))
    scale = xp.sqrt(tau)
    return (queries - center) * scale, (keys - center) * scale


def normalized(values: Array, dtype: str, axis: int | tuple[int, ...] = -2) -> tuple[Array, Array | float]:
    """Values scaled into the range of `dtype`, and the factor that undoes it: in half precision the axis' largest."""
    if dtype not in HALF:
        return values, 1.0
    xp = array_namespace(values)
    scale = nonzero(xp.max(_finite_sizes(values), axis=axis, keepdims=True))
    return values / scale, scale


def _finite_sizes(x: Array) -> Array:
    """|x|, with zero for NaN and infinities, so that they affect only their own rows and channels."""
    xp = array_namespace(x)
    return xp.where(xp.isfinite(x), xp.abs(x), xp.zeros_like(x))


def signs_and_log_rows(values: Array) -> tuple[Array, Array, Array]:
    """v = scale · exp(log_rows) · x with |x| ≤ 1: x (B, H, N, C), log_rows (B, H, N, 1) and scale (B, H, 1, C).

    Half precision holds nothing below 1e-7 of the largest number. So the sizes of channels become factors, and the
    sizes of rows become weights in the logits, which may be 1e-30.
    """
    xp = array_namespace(values)
    sizes = _finite_sizes(values)
    scale = nonzero(xp.max(sizes, axis=-2, keepdims=True))
    roots = xp.sqrt(sizes) / xp.sqrt(scale)  # the quotient itself may be too small for float32
    rows = xp.max(roots, axis=-1, keepdims=True)
    ratios = roots / nonzero(rows)
    x = xp.where(xp.isfinite(values), xp.copysign(ratios * ratios, values), math.nan)  # of its channel alone
    return x, xp.clip(2 * xp.log(rows), LOG_ZERO, None), scale


def scales_for_sums(
    cotangent: Array, sums: Array | float, points: tuple[Array, Array], dtype: str
) -> tuple[Array | float, Array | float]:
    """Factors s and t: with g Σ/(s t) and t P the pullback keeps the digits of half precision and does not overflow.

    Here Σ_m = Σ_n w_n Φ, with |v_n| ≤ w_n from 2⁻¹² to 1, are the row sums by which Φ is divided and g multiplied, so
    that P = Φ/Σ is at most 2¹². Per coordinate of the points, the sums of the pullback times s are at most

        Σ_m Φ |g_m| ≤ Σ_m |g_m|      and      |g_m| Σ_n Φ |v_n| ≤ |g_m| Σ_m.

    P is about 1/N, for which float16 has fewer and fewer bits from N = 2¹⁴ on: hence t.
    """
    if dtype not in HALF:
        return 1.0, 1.0
    xp = array_namespace(cotangent)
    sizes, sums = _finite_sizes(cotangent), _finite_sizes(sums)
    reach = xp.clip(xp.sqrt(squared_radius(*points)), 1.0, None)  # of coordinates, and of ones
    rows = xp.sum(sizes, axis=-1, keepdims=True)
    over_queries, over_keys = xp.sum(rows, axis=-2, keepdims=True), xp.max(rows * sums, axis=-2, keepdims=True)
    largest = xp.max(sizes * sums, axis=(-2, -1), keepdims=True)
    s = nonzero(xp.maximum(xp.maximum(over_queries, over_keys) * reach * (2 / MAX[dtype]), largest / MOST))
    least = xp.clip(xp.min(sums, axis=(-2, -1), keepdims=True), 2.0**-12, 1.0)
    return s, xp.clip(largest / s, 1.0, MOST * least)


def in_every_head(x: Array, batch: int, heads: int) -> Array:
    """Rows (B, 1 or batch, M, W) for every one of so many heads of each element of a batch; one shares them."""
    if batch == 1:
        return x
    xp, shape = array_namespace(x), (x.shape[0], batch, heads, *x.shape[2:])
    return xp.reshape(xp.broadcast_to(x[:, :, None], shape), (shape[0], -1, *shape[3:]))


def in_parts(x: Array, dtype: str, parts: int, scales: Sequence[float] = (1.0, 1.0, 1.0)) -> list[Array]:
    """Numbers of `dtype` whose sum is x, times their scales: each rounds what the earlier ones leave."""
    found = []
    for scale in scales[:parts]:
        found.append(held(x / scale, dtype))
        x = x - scale * found[-1]
    return found


def point_columns(points: Array, kernel: AttentionKernel, *, of_keys: bool = False) -> tuple[list[Array], Array]:
    """Columns of the points in the kernel's dtype, and ½|x|² of the rounded points.

    Columns of queries times columns of keys is a·b. Two-part points take three times the columns, a_h·b_h + a_l·b_h +
    a_h·b_l; a_l·b_l is below rounding.
    """
    parts = in_parts(points, kernel.dtype, kernel.parts)
    norms = half_squared_norms(sum(parts[1:], start=parts[0]))
    if len(parts) == 1:
        return parts, norms
    high, low = parts
    return [high, high, low] if of_keys else [high, low, high], norms


def exponent_columns(
    queries: Array, keys: Array, kernel: AttentionKernel, log_weights: Array | float = 0.0
) -> tuple[list[Array | float], list[Array | float], Array]:
    """Columns of queries and keys, and norms: a product of columns is -½|a - b|² + log w plus the norm of the query."""
    if kernel.exact:
        columns = exact.columns(queries), exact.columns(keys, of_keys=True, log_weights=log_weights)
        return *columns, array_namespace(queries).zeros_like(queries[..., :1])
    query_columns, query_norms = point_columns(queries, kernel)
    key_columns, key_norms = point_columns(keys, kernel, of_keys=True)
    scales = SCALES.get(kernel.dtype, (1.0,) * 3)[: kernel.norm_columns]
    parts = in_parts(log_weights - key_norms, kernel.dtype, len(scales), scales)
    return [*query_columns, *scales], [*key_columns, *parts], query_norms


def from_columns(x: Array, dim: int, kernel: AttentionKernel, *, of_keys: bool = False) -> Array:
    """The points (…, N, D) from their columns: the high parts plus the low parts."""
    if kernel.exact:
        return exact.from_columns(x, dim, of_keys=of_keys)
    if kernel.parts == 1:
        return x[..., :dim]
    low = 2 * dim if of_keys else dim
    return x[..., :dim] + x[..., low : low + dim]


def pack(*columns: Array | float, width: int, dtype: str, last: tuple[float, ...] | None = None) -> Array:
    """Concatenate columns, (…, N, D), (…, N, 1) or numbers, and pad with zeros to (…, N, width), in a dtype.

    `last` is one more row at the end, with one number for each of the columns.
    """
    first: Array = columns[0]
    xp = array_namespace(first)
    arrays: list[Array] = [xp.full_like(first[..., :1], x) if isinstance(x, float) else x for x in columns]
    batch = broadcast_shapes(*(x.shape[:-2] for x in arrays))
    missing = width - sum(x.shape[-1] for x in arrays)
    if missing:
        arrays.append(xp.zeros_like(first[..., :1]))

    def joined(arrays: list[Array]) -> Array:
        shapes = [(*batch, *x.shape[-2:]) for x in arrays]
        if missing:
            shapes[-1] = (*shapes[-1][:-1], missing)
        stretched = [xp.broadcast_to(x, shape) for x, shape in zip(arrays, shapes, strict=True)]
        return stretched[0] if len(stretched) == 1 else xp.concat(stretched, axis=-1)

    rows = joined(arrays)
    if last is not None:
        numbers = (*last, 0.0)[: len(arrays)]
        row = joined([xp.full_like(x[..., :1, :], number) for x, number in zip(arrays, numbers, strict=True)])
        rows = xp.concat([rows, row], axis=-2)
    return cast(rows, dtype)
