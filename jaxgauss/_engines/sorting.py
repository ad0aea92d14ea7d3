"""The order of points by a balanced tree: leaves of one size, of points that lie close together."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

LANES = 8  # of which the size of a leaf is a multiple
INT_MAX = 2**31 - 1
WAYS = 3  # levels of halves that a sort makes at once


def leaf_order(points: Float[Array, "n d"], largest: int, in_order: bool = False) -> Int[Array, "leaves size"]:
    """Numbers of the points in each leaf, or as they come, `in_order`; those from N on fill up the last leaves.

    Each round sorts all segments by the coordinate in which they are widest and cuts them into eight. Coordinate and
    position are one integer of 64 bits: an array of these sorts five times as fast as two arrays.
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
    """Those that are not there come last."""
    bits = lax.bitcast_convert_type(x, "int32")
    ordered = jnp.where(is_there, jnp.where(bits < 0, bits ^ INT_MAX, bits), INT_MAX)  # as the floats are
    with jax.enable_x64(True):
        both = (ordered.astype("int64") << 32) | jnp.arange(x.shape[1], dtype="int64")[None]
        return (lax.sort(both, dimension=1) & INT_MAX).astype("int32")
