"""The sine of a part of a turn, as a polynomial."""

import functools
import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

# Terms of the sine of x turns, |x| ≤ ¼, relative to 2πx, in powers of x²: errors below half of the last digit.
TERMS = {"float32": 5, "float64": 10}


def sine(x: Array) -> Array:
    """Of x turns, |x| ≤ ¼: in a fifth of the time of `jnp.sin`, which takes x of any size."""
    y, angle, total = jnp.square(x), (2 * math.pi) * x, jnp.zeros_like(x)
    for term in _terms(x.dtype.name)[::-1]:
        total = total * y + term
    return angle + angle * y * total


@functools.cache
def _terms(dtype: str) -> list[float]:
    """Of (sin z / z - 1) / x², z = 2πx, in powers of x²: interpolated at Chebyshev's points."""
    num = TERMS[dtype]
    y = (np.cos(math.pi * (np.arange(num) + 0.5) / num) + 1) / 32
    z = 2 * math.pi * np.sqrt(y)
    return np.polynomial.Polynomial.fit(y, (np.sin(z) / z - 1) / y, num - 1, domain=[0, 1 / 16]).convert().coef.tolist()
