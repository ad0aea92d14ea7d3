"""The sine and the cosine of turns, in a fifth of the time of XLA's, which take angles of any size."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

# The number of terms of the sine of x turns, |x| ≤ ¼, relative to 2πx, in powers of x²: errors are below half of the
# last digit.
TERMS = {"float32": 5, "float64": 10}


@jax.custom_jvp
def circle(turns: Float[Array, "*any"]) -> tuple[Array, Array]:
    """The cosine and the sine of any number of turns."""
    rest = turns - jnp.round(turns)
    return sine(0.25 - jnp.abs(rest)), sine_of(rest)


@circle.defjvp
def _circle_tangent(primals: tuple[Array], tangents: tuple[Array]) -> tuple[tuple, tuple]:
    cosine, sine = circle(*primals)
    angle = 2 * math.pi * tangents[0]
    return (cosine, sine), (-sine * angle, cosine * angle)


def sine_of(turns: Array) -> Array:
    """The sine of turns, |turns| ≤ ½."""
    half = jnp.where(turns > 0, 0.5, -0.5).astype(turns.dtype)
    return sine(jnp.where(jnp.abs(turns) > 0.25, half - turns, turns))


def sine(x: Array) -> Array:
    """The sine of x turns, |x| ≤ ¼, in a fifth of the time of `jnp.sin`, which takes x of any size."""
    y, angle, total = jnp.square(x), (2 * math.pi) * x, jnp.zeros_like(x)
    for term in _terms(x.dtype.name)[::-1]:
        total = total * y + term
    return angle + angle * y * total


@functools.cache
def _terms(dtype: str) -> list[float]:
    """Coefficients of (sin z / z - 1) / x², z = 2πx, in powers of x², interpolated at Chebyshev's points."""
    num = TERMS[dtype]
    y = (np.cos(math.pi * (np.arange(num) + 0.5) / num) + 1) / 32
    z = 2 * math.pi * np.sqrt(y)
    return np.polynomial.Polynomial.fit(y, (np.sin(z) / z - 1) / y, num - 1, domain=[0, 1 / 16]).convert().coef.tolist()
