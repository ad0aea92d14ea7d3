"""Points in two parts: exponents that keep their digits in float32 wherever points lie within 256 bandwidths.

A point x = h + l, its high part h on a grid so coarse that products and norms of high parts are exact in float32. Then

    -½‖a - b‖² = (h_a·h_b - ½‖h_a‖² - ½‖h_b‖²) + (h_a·l_b + l_a·b - r_a - r_b),    r = h·l + ½‖l‖²

and only the second sum is rounded, whose terms are smaller than those of the first by the grid over their distance.
Source: Ozaki, Ogita, Oishi & Rump, "Error-free transformations of matrix multiplication by using fast routines of
matrix multiplication and its applications", Numerical Algorithms, 2012, with one grid for all points.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .points import BASE_2, center, shared
from .shapes import K, Q, T

GRID = 2.0**-2  # of high parts; norms are multiples of half its square
WIDER = 3  # times as many columns as whole points have
# R² up to which they are exact: terms, with what `split_means` takes out, add up to no more than 4 R² log2(e), which is
# below 2²⁴ · GRID²/2.
SPLIT_REACH = 2.0**16


class Split(NamedTuple):
    """Points scaled to the base of 2, in two parts.

    Attributes:
        high, low: h and l (…, N, D).
        exact, rest: numbers (…, N, 1) that are added to their logits, in the first sum, on its grid, and in the second.
    """

    high: Float[Array, "*batch n d"]
    low: Float[Array, "*batch n d"]
    exact: Float[Array, "*batch n 1"]
    rest: Float[Array, "*batch n 1"]

    @property
    def points(self) -> Float[Array, "*batch n d"]:
        """Both parts of them, rounded."""
        return self.high + self.low


def split_points(queries: Q, keys: K, tau: T, centered: bool = False) -> tuple[Split, Split]:
    """a, b as `scaled_points` has them, about the same center: in float64, for their low parts' sake."""
    of_queries = shared(queries) and not shared(keys)
    c = jnp.zeros(1, keys.dtype) if centered else center(queries if of_queries else keys)
    with jax.enable_x64(True):
        queries, keys, tau, c = (x.astype("float64") for x in (queries, keys, tau, c))
        scale = jnp.sqrt(tau * BASE_2)[..., None, None]
        return _split((queries - c) * scale), _split((keys - c) * scale)


def _split(x: Array) -> Split:
    high = jnp.round(x / GRID) * GRID
    high, low = (y.astype("float32") for y in (high, x - high))
    zero = jnp.zeros((*x.shape[:-1], 1), "float32")
    return Split(high, low, zero, zero)


def query_factors(a: Split) -> tuple[Array, Array]:
    """Those of two products with `key_factors`, which are the logits together: the first is exact.

    They take three times the memory of points, so they are made of a block at a time.
    """
    one, (exact, rest) = jnp.ones_like(a.rest), _norms(a)
    return jnp.concatenate([a.high, one, exact], -1), jnp.concatenate([a.high, a.low, one, rest], -1)


def key_factors(b: Split) -> tuple[Array, Array]:
    """Those of keys."""
    one, (exact, rest) = jnp.ones_like(b.rest), _norms(b)
    return jnp.concatenate([b.high, exact, one], -1), jnp.concatenate([b.low, b.points, rest, one], -1)


def _norms(x: Split) -> tuple[Array, Array]:
    """-½‖h‖² and -r (…, N, 1), with what is added to the logits."""
    square, rest = x.high * x.high / 2, x.low * (x.high + x.low / 2)
    return x.exact - square.sum(-1, keepdims=True), x.rest - rest.sum(-1, keepdims=True)


def on_grid(logits: Array) -> Array:
    """Numbers within 2 R² log2(e) that norms stay exact with."""
    step, largest = GRID**2 / 2, 2 * BASE_2 * SPLIT_REACH
    return jnp.round(jnp.clip(logits, -largest, largest) / step) * step
