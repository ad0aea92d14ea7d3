"""Dtypes by name, for arrays of every library."""

from typing import Any, TypeAlias

Array: TypeAlias = Any  # of any library

HALF = ("float16", "bfloat16")
BITS = {"float16": (5, 10), "bfloat16": (8, 7), "float32": (8, 23), "float64": (11, 52)}  # exponent and mantissa
MAX = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38}
EPS = {dtype: 2.0**-mantissa for dtype, (_, mantissa) in BITS.items()}
SUBNORMAL = 2.0**-14, 2.0**-24  # of float16: where they begin, and the step between them


def accumulation_dtype(dtype: str) -> str:
    """The dtype in which sums are computed: float64 for float64, else float32."""
    return "float64" if dtype == "float64" else "float32"
