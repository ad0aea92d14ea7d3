"""Which u = ‖a - b‖² a product about the center of a tile knows: told by norms, or by the product itself."""

import math
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from .._arrays.points import Scaled, as_rows, dot, squares_factors, with_norms
from .pairs import FARTHEST
from .plan import NEAR, STRICTER

SPREAD = 2**-4  # the least mean of u over ‖a‖² + ‖b‖², weighted as in the sum, for moments to make slopes


def powers(xp: Any, b: Scaled, weights: Any, each: bool) -> Any:
    """The columns w [b, 1, ‖b‖²], or of `each` coordinate its square; `xp` is NumPy or JAX."""
    squares = b.points * b.points if each else b.norms
    return xp.concatenate([b.points, xp.ones_like(b.norms), squares], -1) * weights


def about(a: Scaled, sums: Any) -> tuple[Any, Any, Any]:
    """Σ W (b - a), Σ W ‖b - a‖² and Σ W (‖a‖² + ‖b‖²) of Σ_n ψ `powers` at the rows; of each coordinate its parts."""
    dim = a.points.shape[-1]
    first, mass, second = sums[..., :dim], sums[..., dim : dim + 1], sums[..., dim + 1 :]
    cross, norms = a.points * first, a.points * a.points
    if second.shape[-1] < dim:
        cross, norms = cross.sum(-1, keepdims=True), a.norms
    size = mass * norms + second
    return first - mass * a.points, size - 2 * cross, size


def spread(xp: Any, a: Scaled, sums: Any, groups: int = 1) -> Any:
    """The mean of u over that of ‖a‖² + ‖b‖² for each group of rows (*batch, groups), of Σ_n |ψ w| [b, 1, ‖b‖²].

    Of all pairs of a group, or of a row's in the mean if that is less; of several coordinates the least.
    """
    moment, size = (z.reshape(*z.shape[:-2], groups, -1, z.shape[-1]) for z in about(a, sums)[1:])
    seen = size > 0  # not of NaN, nor of a query that is far from all keys
    own = xp.where(seen, moment / xp.where(seen, size, 1), 1).mean(-2)
    moment, size = (xp.where(seen, z, 0).sum(-2) for z in (moment, size))
    return xp.minimum(xp.where(size > 0, moment / xp.where(size > 0, size, 1), 1), own).min(-1)


# Beside ‖a‖² + ‖b‖², what u must be for a product to make it: its relative error is then at most the unit over this.
TRUSTED = {"float32": 0.1, "float64": 1e-3}
LARGEST = FARTHEST / 8  # of ‖a‖² for products


def about_center(scale: Array, rows: Array, columns: Array) -> tuple[Scaled, Scaled]:
    """The points of a tile about the center of its keys, with their norms: infinite where products cannot take them."""
    center = _middle(columns)
    found = with_norms(*((x - center[None, None]) * scale[None] for x in (rows, columns)))
    return tuple(x._replace(norms=jnp.where(x.norms < LARGEST, x.norms, jnp.inf)) for x in found)  # type: ignore[return-value]


def known_by_norms(strict: bool, a: Scaled, b: Scaled) -> Bool[Array, "rows columns"]:
    """Whether norms tell that a product knows every u of two leaves.

    Points that are near the center are known beside one another; two of which one is `ratio` times as far are so far
    from one another that their u is known as well.
    """
    dtype = a.points.dtype.name
    share, near = 1 - TRUSTED[dtype], 0 if strict else NEAR[dtype] / STRICTER
    ratio = ((1 + math.sqrt(1 - share**2)) / share) ** 2

    def ranges(norms: Array) -> Iterator[Array]:
        """The largest of those that are near, the least and the largest of the others."""
        norms, is_near = norms[..., 0], norms[..., 0] <= near
        three = jnp.where(is_near, norms, 0), jnp.where(is_near, -jnp.inf, -norms), jnp.where(is_near, 0, norms)
        found, signs = jnp.stack(three).max(2), jnp.array([1, -1, 1], norms.dtype)
        return iter(found * signs[:, None])

    p, least, largest = (x[:, None] for x in ranges(a.norms))
    q, first, last = (x[None] for x in ranges(b.norms))
    apart = (least >= ratio * last) | (first >= ratio * largest)
    return (first >= ratio * p) & (least >= ratio * q) & apart & (jnp.maximum(largest, last) < jnp.inf)


def known_by_product(strict: bool, a: Scaled, b: Scaled, known: Array) -> Bool[Array, "rows columns"]:
    """Whether norms or a product know every u of two leaves.

    By what u is more than that share of ‖a‖² + ‖b‖² which it must be: its minimum is compared with one number.
    """
    trusted = TRUSTED[a.points.dtype.name]
    first, second = map(as_rows, squares_factors(*(x._replace(norms=(1 - trusted) * x.norms) for x in (a, b))))
    rest = dot(first, second.T).reshape(*a.norms.shape[:2], *b.norms.shape[:2]).min((1, 3))
    can = a.norms.max(1) + b.norms.max(1).T < jnp.inf
    return known | can & (rest + (0 if strict else 1) >= 0)


def _middle(leaves: Float[Array, "leaves size d"]) -> Float[Array, " d"]:
    """Of the most compact leaf: neither an outlier moves it, nor a leaf with points of two clusters.

    Halves are exact. A mean is not, and its last step may be fused with one subtraction of it and not with another:
    moments about two centers that differ in the last bit lose all their digits far from the origin.
    """
    largest, least = leaves.max(1), leaves.min(1)
    spreads = jnp.square(largest - least).sum(-1)
    spreads = spreads.astype("float32")  # the only dtype that argmin has where JAX's 64-bit mode is off
    most_compact = lax.argmin(jnp.where(jnp.isnan(spreads), jnp.inf, spreads), 0, "int32")
    return (largest[most_compact] + least[most_compact]) / 2
