"""The order of points by a balanced tree: leaves of one size, of points that lie close together."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

LANES = 8  # of which the size of a leaf is a multiple
REACH = 4  # times the mean distance, within which coordinates are told apart
WAYS = 3  # levels of halves that a sort makes at once


def leaf_order(points: Float[Array, "n d"], largest: int, in_order: bool = False) -> Int[Array, "leaves size"]:
    """Numbers of the points in each leaf, or as they come, `in_order`; those from N on fill up the last leaves.

    Each round sorts all segments by the coordinate in which they are widest and cuts them into eight. Coordinates are
    rounded, to make room for the position within 32 bits: one array of integers sorts seven times as fast as two.
    """
    num = points.shape[0]
    levels = max(0, (-(-num // largest) - 1).bit_length())
    size = -(-num // 2**levels)
    size = size if size < LANES else -(-size // LANES) * LANES
    order = jnp.arange(size << levels, dtype="int32")[None]
    if in_order:
        return order.reshape(-1, size)
    points = jnp.where(jnp.isfinite(points), points, 0).astype("float32")
    for level in range(0, levels, WAYS):
        segments = points[jnp.minimum(order, num - 1)]  # (segments, each, D)
        widest = lax.argmax(segments.max(1) - segments.min(1), 1, "int32")
        coordinate = jnp.take_along_axis(segments, widest[:, None, None], 2)[..., 0]
        first = _sorted_positions(coordinate, order < num)
        order = jnp.take_along_axis(order, first, 1).reshape(len(order) << min(WAYS, levels - level), -1)
    return order


def _sorted_positions(x: Float[Array, "segments n"], is_there: Bool[Array, "segments n"]) -> Int[Array, "segments n"]:
    """Those that are not there come last. What is far beyond the mean distance from the mean is not told apart."""
    num = x.shape[1]
    centered = x - (x / num).sum(1, keepdims=True)
    extent = REACH * (jnp.abs(centered) / num).sum(1, keepdims=True)
    bits = (num - 1).bit_length()
    places = jnp.clip(centered / jnp.where(extent > 0, extent, 1), -1, 1) * 2.0 ** (30 - bits)
    ordered = jnp.where(is_there, lax.round(places).astype("int32"), 2 ** (31 - bits) - 1)
    positions = jnp.arange(num, dtype="int32")
    return lax.sort((ordered << bits) | positions[None], dimension=1) & (2**bits - 1)
