"""The order of points by a balanced tree: leaves of one size, of points that lie close together."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

WAYS = 3  # levels of halves that a sort makes at once


def leaf_order(points: Float[Array, "n d"], largest: int, in_order: bool = False) -> Int[Array, "leaves size"]:
    """Numbers of the points in each leaf, or as they come, `in_order`; those from N on stand for the last point.

    Each round sorts all segments by the coordinate in which they are widest and cuts them into eight. Coordinates are
    rounded, to make room for the position within 32 bits: one array of integers sorts seven times as fast as two.
    """
    num = points.shape[0]
    levels = max(0, (-(-num // largest) - 1).bit_length())
    size = -(-num // 2**levels)
    order = jnp.arange(size << levels, dtype="int32")[None]
    if in_order:
        return order.reshape(-1, size)
    points = jnp.where(jnp.isfinite(points), points, 0).astype("float32")
    for level in range(0, levels, WAYS):
        segments = points[jnp.minimum(order, num - 1)]  # (segments, each, D)
        widest = lax.argmax(segments.max(1) - segments.min(1), 1, "int32")
        coordinate = jnp.take_along_axis(segments, widest[:, None, None], 2)[..., 0]
        first = _sorted_positions(coordinate - coordinate.mean(1, keepdims=True))
        order = jnp.take_along_axis(order, first, 1).reshape(len(order) << min(WAYS, levels - level), -1)
    return order


def _sorted_positions(x: Float[Array, "segments n"]) -> Int[Array, "segments n"]:
    bits = lax.bitcast_convert_type(x, "uint32")
    ordered = jnp.where(bits >> 31, ~bits, bits | jnp.uint32(1 << 31))  # as integers, in the order of the numbers
    mask = jnp.uint32((1 << (x.shape[1] - 1).bit_length()) - 1)
    positions = jnp.arange(x.shape[1], dtype="uint32")
    return (lax.sort((ordered & ~mask) | positions[None], dimension=1) & mask).astype("int32")
