"""XLA's engine for points that lie anywhere: each tile of the kernel matrix looks after its own digits.

Points are sorted, so that leaves are compact; leaves too far apart for a kernel that ends are skipped. In few
dimensions pairs are formed from differences of coordinates. In more, tiles of several leaves take one product about the
center of their keys: u = ‖a‖² + ‖b‖² - 2⟨a, b⟩ then errs by 2⁻²⁴ (‖a‖² + ‖b‖²), which is little beside u itself but
where a pair is near and its center far. Pairs of leaves that hold such a pair are left out there, and formed from
differences afterwards.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from .._arrays.logits import dot
from .._arrays.places import vary_like
from .._arrays.points import Scaled, as_rows, with_norms
from .._checks.settings import are_known
from .._kernels.kernels import Kernel
from .channels import NOTHING, Channels
from .pairs import (
    FARTHEST,
    Columns,
    Rows,
    Sums,
    Wanted,
    by_differences,
    by_products,
    cut_off,
    of_one_scale,
    subtractable,
    with_rank,
    zeros_of,
)
from .plan import Plan
from .products import squares_factors
from .sorting import leaf_order

FEW_DIMENSIONS = 8  # where differences take not much longer than products, and most leaves hold a near pair
LEAF = {True: 256, False: 64}  # points, in few dimensions and in many
ROWS, COLUMNS = 32, 8  # leaves of a tile of products: few of keys, which then lie about one center
FEW = 2**18  # pairs times dimensions whose differences take less time than sorting
CHUNK = 2**18  # pairs of points whose differences are formed at a time
FLAGS = 2**16  # pairs of leaves that are looked at, at a time
# Beside ‖a‖² + ‖b‖², what u must be for a product to make it: its relative error is then at most the unit over this.
TRUSTED = {"float32": 0.1, "float64": 1e-3}
# The share of that which it must be for pulls, even of u below one, of which a kernel needs fewer digits: moments about
# the center then err by the unit over the root of both.
PULLED = 0.1


def sorts(chosen: Plan, *sizes: int) -> bool:
    """Whether points are sorted: of M queries, N keys and D coordinates on a CPU, unless there are few."""
    wanted = chosen.platform == "cpu" and chosen.method != "differences" and are_known(*sizes)
    return wanted and math.prod(sizes) > FEW


def anywhere_sums(
    wanted: Wanted,
    queries: Float[Array, "m d"],
    keys: Float[Array, "n d"],
    values: Float[Array, "n c"],
    scale: Float[Array, "1 _"],
    row_weights: Float[Array, "m e"],
    column_weights: Float[Array, "n e"],
) -> Sums:
    """`Sums` at the queries, in their order; scale is √τ, or that of each coordinate."""
    queries, keys = subtractable(queries), subtractable(keys)
    few = queries.shape[1] <= FEW_DIMENSIONS
    i, j = (_order(wanted, scale, x) for x in (queries, keys))
    rows = Rows(in_leaves(queries, i, None), in_leaves(row_weights, i))
    columns = Columns(in_leaves(keys, j, None), *(in_leaves(x, j) for x in (values, column_weights)))
    tiles = _few if few else _many
    num = max(1, min(len(i), FLAGS // len(j) if few else ROWS))  # leaves of a block of rows
    num = 1 << (num.bit_length() - 1)
    blocks = _in_groups(rows, num)
    found = lax.map(lambda block: tiles(wanted, scale, block, columns), blocks)
    return jax.tree.map(lambda x: in_place(as_rows(x), i.ravel(), len(queries)), found)


def share_left(kernel: Kernel, queries: Array, keys: Array, scale: Array) -> Float[Array, ""]:
    """Of the kernel matrix in tiles, the share that is not left out because the kernel is zero there."""
    wanted = Wanted(Channels((kernel,), (1,)), NOTHING)
    rows, columns = (in_leaves(x, _order(wanted, scale, x), None) for x in (queries, keys))
    if queries.shape[1] > FEW_DIMENSIONS:
        tiles = (rows, ROWS), (columns, COLUMNS)
        rows, columns = (x.reshape(-1, min(num, len(x)) * x.shape[1], x.shape[2]) for x, num in tiles)
    return lax.map(lambda x: _are_here(wanted, scale, x[None], columns).mean(), rows).mean()


def _order(wanted: Wanted, scale: Array, points: Array) -> Array:
    """The points of each leaf; as they come where it does not matter which."""
    few = points.shape[1] <= FEW_DIMENSIONS
    compact = not few or bool(wanted.pulls.kernels) or wanted.end(points.dtype.name) < math.inf
    return leaf_order(lax.stop_gradient(scale * points), LEAF[few], in_order=not compact)


def in_place(x: Array, places: Array, num: int) -> Array:
    """Rows back in their order, without those that filled leaves up."""
    return jnp.zeros((num, x.shape[-1]), x.dtype).at[places].set(x, mode="drop", unique_indices=True)


def _in_groups(arrays: Any, size: int) -> Any:
    """(leaves, …) -> (leaves / size, size, …)."""
    return jax.tree.map(lambda x: x.reshape(len(x) // size, size, *x.shape[1:]), arrays)


def in_leaves(x: Array, order: Array, fill: float | None = 0.0) -> Array:
    """Rows in the order of leaves (leaves, size, W); what fills leaves up is zero, or the last point."""
    rows = x[jnp.minimum(order, len(x) - 1)]
    return rows if fill is None else jnp.where((order < len(x))[..., None], rows, fill)


def _few(wanted: Wanted, scale: Array, rows: Rows, columns: Columns) -> Sums:
    """All pairs of leaves that are not apart, from differences."""
    here = _are_here(wanted, scale, rows.points, columns.points)
    return _add_differences(_zeros(wanted, scale, rows, columns), here, wanted, scale, rows, columns)


def _are_here(wanted: Wanted, scale: Array, a: Array, b: Array) -> Bool[Array, "rows columns"]:
    """Whether a kernel is not zero between two leaves."""
    return ~(squared_gaps(scale, a, b) > wanted.end(a.dtype.name))


def _many(wanted: Wanted, scale: Array, rows: Rows, columns: Columns) -> Sums:
    """A block of rows by products, tile by tile; and pairs of leaves that those do not hold from differences."""
    num, size, dim = rows.points.shape
    each = min(COLUMNS, len(columns.points))
    tiles, every = _in_groups(columns, each), Rows(*map(as_rows, rows))
    here = _are_here(wanted, scale, every.points[None], tiles.points.reshape(len(tiles.points), -1, dim))
    places, number = _listed(here.ravel())

    def add(state: tuple[Array, Sums, Array]) -> tuple[Array, Sums, Array]:
        start, total, flags = state
        place = places[start]
        tile = Columns(*(x[place] for x in tiles))
        center = _middle(tile.points)
        a, b = ((x - center[None]) * scale for x in (every.points, as_rows(tile.points)))
        scaled_a, scaled_b = with_norms(a, b)
        trusted = TRUSTED[a.dtype.name]
        first, second = squares_factors(*(x._replace(norms=(1 - trusted) * x.norms) for x in (scaled_a, scaled_b)))
        rest = dot(first, second.T)
        doubtful = _are_doubtful(wanted, trusted, rest, scaled_a, scaled_b, (num, size, each, tile.points.shape[1]))
        u = rest + trusted * (scaled_a.norms + scaled_b.norms.T)
        u = cut_off(jnp.where(u < 0, 0, u))
        keep = ~doubtful[:, None, :, None] & jnp.ones((1, size, 1, u.shape[1] // each), bool)
        here = Columns(_finite(b), *map(as_rows, tile[1:]))
        found = by_products(wanted, scale, every._replace(points=_finite(a)), here, u, keep)
        total = jax.tree.map(lambda x, y: x + y.reshape(x.shape), total, found)
        return start + 1, total, flags.at[:, place].set(doubtful)

    start, flags = (vary_like(x, [here]) for x in (jnp.zeros((), "int32"), jnp.zeros((num, here.size, each), bool)))
    state = start, _zeros(wanted, scale, rows, columns), flags
    _, total, flags = lax.while_loop(lambda state: state[0] < number, add, state)
    return _add_differences(total, flags.reshape(num, -1), wanted, scale, rows, columns)


def _listed(flags: Bool[Array, " n"]) -> tuple[Array, Array]:
    """The places that are flagged, first, and their number."""
    places = jnp.where(flags, jnp.arange(flags.size, dtype="int32"), flags.size)
    return lax.sort(places), flags.sum(dtype="int32")


def _are_doubtful(
    wanted: Wanted, trusted: float, rest: Array, a: Scaled, b: Scaled, shape: tuple[int, ...]
) -> Bool[Array, "rows columns"]:
    """Whether a pair of leaves may hold one whose u, or whose pull, a product does not know.

    `rest` is what u is more than that share of ‖a‖² + ‖b‖²: what is compared with one number takes the least time.
    """
    norms = a.norms.reshape(shape[0], 1, -1), b.norms.reshape(1, shape[2], -1)
    least, largest = (sum(f(x, -1) for x in norms) for f in (jnp.min, jnp.max))
    slack: Any = 0 if wanted.kinked else 1
    if slack and wanted.pulls.kernels:
        slack = jnp.minimum(slack, (1 - PULLED) * trusted * least)
    return ~((rest.reshape(shape).min((1, 3)) + slack >= 0) & (largest < FARTHEST))


def _add_differences(
    total: Sums, flags: Bool[Array, "rows columns"], wanted: Wanted, scale: Array, rows: Rows, columns: Columns
) -> Sums:
    """The total with the flagged pairs of leaves from differences, some at a time."""
    num_columns = flags.shape[1]
    each = max(1, min(flags.size, CHUNK // (rows.weights.shape[1] * columns.weights.shape[1])))
    places, number = _listed(flags.ravel())
    places = jnp.pad(places, (0, each), constant_values=flags.size)
    rows, columns = rows._replace(points=rows.points.mT), columns._replace(points=columns.points.mT)
    one_scale = None  # in few dimensions differences once more take as long as moments
    if wanted.pulls.kernels and rows.points.shape[1] > FEW_DIMENSIONS:
        one_scale = of_one_scale(*(with_rank(scale.T, x.points) * x.points for x in (rows, columns)))

    def add(state: tuple[Array, Sums]) -> tuple[Array, Sums]:
        start, total = state
        place = lax.dynamic_slice(places, (start,), (each,))
        i, j = place // num_columns, place % num_columns  # i is no leaf where there are no more
        pair = Rows(*(x[i] for x in rows)), Columns(*(x[j] for x in columns))
        found = by_differences(wanted, scale.T, *pair, one_scale=one_scale)
        return start + each, jax.tree.map(lambda x, y: x.at[i].add(y, mode="drop"), total, found)

    start = vary_like(jnp.zeros((), "int32"), [flags])
    return lax.while_loop(lambda state: state[0] < number, add, (start, total))[1]


def squared_gaps(scale: Array, a: Float[Array, "r m d"], b: Float[Array, "c n d"]) -> Float[Array, "r c"]:
    """The least u that points of two leaves may have."""
    gaps = jnp.maximum(a.min(1)[:, None] - b.max(1)[None], b.min(1)[None] - a.max(1)[:, None])
    return _squares(scale, jnp.maximum(gaps, 0))


def _squares(scale: Array, differences: Float[Array, "*shape d"]) -> Float[Array, "*shape"]:
    return jnp.square(differences * with_rank(scale, differences)).sum(-1)


def _zeros(wanted: Wanted, scale: Array, rows: Rows, columns: Columns) -> Sums:
    zeros = zeros_of(wanted, *rows.points.shape[:2], scale=scale, points=rows.points)
    operands = [scale, *rows, *columns]
    return jax.tree.map(lambda x: vary_like(x, operands), zeros)


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


def _finite(x: Array) -> Array:
    """Zero for what products cannot take: it is doubtful."""
    return jnp.where(jnp.abs(x) < math.sqrt(FARTHEST), x, 0)
