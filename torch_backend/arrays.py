"""Array functions beyond the array API standard, so that reductions are written once for PyTorch, JAX and NumPy.

Dtypes are given by name.
"""

from typing import Any, TypeAlias

from array_api_compat import array_namespace, is_jax_array

Array: TypeAlias = Any  # of any library

HALF = ("float16", "bfloat16")
BITS = {"float16": (5, 10), "bfloat16": (8, 7), "float32": (8, 23), "float64": (11, 52)}  # exponent and mantissa
MAX = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38}
EPS = {dtype: 2.0**-mantissa for dtype, (_, mantissa) in BITS.items()}
SUBNORMAL = 2.0**-14, 2.0**-24  # of float16: where they begin, and the step between them


def dtype_of(x: Array) -> str:
    """The name of the array's dtype."""
    return str(x.dtype).removeprefix("torch.")


def accumulation_dtype(dtype: str) -> str:
    """The dtype in which sums are computed: float64 for float64, else float32."""
    return "float64" if dtype == "float64" else "float32"


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


def unbroadcast(x: Array, shape: tuple[int, ...]) -> Array:
    """The sum over the axes that broadcasting has stretched from `shape` to the array's shape."""
    xp = array_namespace(x)
    extra = x.ndim - len(shape)
    stretched = [i + extra for i, n in enumerate(shape) if n == 1 and x.shape[i + extra] != 1]
    axes = (*range(extra), *stretched)
    return xp.reshape(xp.sum(x, axis=axes) if axes else x, shape)
