"""Leaves: a few points that lie close together, neighbors in the order of the sorted points."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from ..._arrays.points import as_rows, with_rank

LANES = 8  # the size of a leaf is a multiple of this, unless it is smaller
INT_MAX = 2**31 - 1
WAYS = 3  # levels of halving for each sort


def leaf_order(points: Float[Array, "n d"], largest: int, in_order: bool = False) -> Int[Array, "leaves size"]:
    """Indices of the points of each leaf, unsorted if `in_order`; indices from N on stand for copies of the last point.

    Each round sorts every segment by its widest coordinate and cuts it into eight. Coordinate and position are one
    integer of 64 bits: an array of these sorts five times as fast as two arrays.
    """
    num = points.shape[0]
    levels = max(0, (-(-num // largest) - 1).bit_length())
    size = -(-num // 2**levels)
    size = size if size < LANES else -(-size // LANES) * LANES
    order = jnp.arange(size << levels, dtype="int32")[None]
    if in_order:
        return order.reshape(-1, size)
    points = lax.optimization_barrier(points)  # XLA would sort constant points as it compiles, in many times as long
    points = padded_rows(jnp.where(jnp.isfinite(points), points, 0).astype("float32"), order.size)
    for level in range(0, levels, WAYS):
        segments = points[order] if level else points[None]  # (segments, each, D)
        widest = lax.argmax(segments.max(1) - segments.min(1), 1, "int32")
        first = _sorted_positions(jnp.take_along_axis(segments, widest[:, None, None], 2)[..., 0])
        order = jnp.take_along_axis(order, first, 1).reshape(len(order) << min(WAYS, levels - level), -1)
    return order


def _sorted_positions(x: Float[Array, "segments n"]) -> Int[Array, "segments n"]:
    """The positions that sort each segment."""
    bits = lax.bitcast_convert_type(x, "int32")
    ordered = jnp.where(bits < 0, bits ^ INT_MAX, bits)  # in the order of the floats
    with jax.enable_x64(True):
        both = (ordered.astype("int64") << 32) | jnp.arange(x.shape[1], dtype="int64")[None]
        return (lax.sort(both, dimension=1) & INT_MAX).astype("int32")


def in_leaves(x: Array, order: Array, fill: float | None = 0.0) -> Array:
    """Rows in the order of leaves, (leaves, size, W); padding is `fill`, or copies of the last row if that is None."""
    return padded_rows(x, order.size, fill)[order]


def in_given_order(found: Any, order: Array, num: int) -> Any:
    """The rows of leaves in the order in which the points were given, without padding."""

    def placed(x: Array) -> Array:
        empty = jnp.zeros((num, x.shape[-1]), x.dtype)
        return empty.at[order.ravel()].set(as_rows(x), mode="drop", unique_indices=True)

    return jax.tree.map(placed, found)


def padded_rows(x: Float[Array, "n d"], num: int, fill: float | None = None) -> Float[Array, "num d"]:
    """The rows, and more of them: copies of the last, or `fill`."""
    padding = (0, num - len(x)), (0, 0)
    return jnp.pad(x, padding, mode="edge") if fill is None else jnp.pad(x, padding, constant_values=fill)


def ranges_of(leaves: Float[Array, "leaves size d"]) -> tuple[Float[Array, "leaves d"], Float[Array, "leaves d"]]:
    """The least and the largest coordinates of the points of each leaf."""
    return leaves.min(1), leaves.max(1)


def squared_gaps(scale: Array, a: tuple[Array, Array], b: tuple[Array, Array]) -> Float[Array, "r c"]:
    """A lower bound of u between the points of two leaves, for every pair of leaves; from their `ranges_of`."""
    gaps = jnp.maximum(a[0][:, None] - b[1][None], b[0][None] - a[1][:, None])
    return _squares(scale, jnp.maximum(gaps, 0))


def _squares(scale: Array, differences: Float[Array, "*shape d"]) -> Float[Array, "*shape"]:
    return jnp.square(differences * with_rank(scale, differences)).sum(-1)
