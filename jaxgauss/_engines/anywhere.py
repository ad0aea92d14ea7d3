"""XLA's engine for points that lie anywhere: each tile of the kernel matrix looks after its own digits.

Points are sorted, so that leaves are compact; leaves too far apart for a kernel that ends are skipped. A tile of
several leaves takes one product about the center of its keys: u = ‖a‖² + ‖b‖² - 2⟨a, b⟩ then errs by
2⁻²⁴ (‖a‖² + ‖b‖²). That is little where norms are small, and where u is not small beside them. Norms tell it of most
pairs of leaves, in many dimensions a product of the others; those in doubt are formed from differences of coordinates.
Slopes are moments about the center, where pairs are spread enough.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from .._arrays.places import vary_like
from .._arrays.points import Scaled, as_rows
from .._checks.settings import are_known
from .._kernels.kernels import Kernel
from .channels import NOTHING, Channels
from .digits import about_center, knows, looked_at
from .pairs import by_differences, by_products, subtractable, with_rank, zeros_of
from .plan import Plan
from .products import squares_factors
from .sorting import leaf_order
from .spread import SPREAD, about, powers, spread
from .wanted import Columns, Rows, Sums, Wanted

FEW_DIMENSIONS = 8  # where differences take not much longer than a product that tells whether they are needed
LEAF = {True: 256, False: 64}  # points, in few dimensions and in many
ROWS = 4096  # points of a tile of products
# Keys of a tile: few, which then lie about one center; of many channels fewer, for values to stay in the cache.
COLUMNS, MANY = {True: 512, False: 256}, 96
WORTH = {True: 0.25, False: 0}  # the share of the pairs of leaves from which a product of a tile takes less time
FEW = 2**18  # pairs times dimensions whose differences take less time than sorting
CHUNK = {True: 2**18, False: 2**16}  # pairs of points whose differences are formed at a time


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
    i, j = (_order(wanted, scale, x) for x in (queries, keys))
    rows = Rows(in_leaves(queries, i, None), in_leaves(row_weights, i))
    columns = Columns(in_leaves(keys, j, None), *(in_leaves(x, j) for x in (values, column_weights)))
    channels = values.shape[1] + (queries.shape[1] if wanted.pulls.kernels else 0)
    each = COLUMNS[queries.shape[1] <= FEW_DIMENSIONS] // (1 if channels <= MANY else 2)
    tiles = _in_groups(columns, each)
    found = lax.map(lambda block: _block_sums(wanted, scale, block, tiles), _in_groups(rows, ROWS))
    return jax.tree.map(lambda x: in_place(as_rows(x), i.ravel(), len(queries)), found)


def share_left(kernel: Kernel, queries: Array, keys: Array, scale: Array) -> Float[Array, ""]:
    """Of the kernel matrix in tiles, the share that is not left out because the kernel is zero there."""
    wanted = Wanted(Channels((kernel,), (1,)), NOTHING)
    rows, columns = (in_leaves(x, _order(wanted, scale, x), None) for x in (queries, keys))
    return lax.map(lambda x: (~_are_apart(wanted, scale, x[None], columns)).mean(), rows).mean()


def _order(wanted: Wanted, scale: Array, points: Array) -> Array:
    """The points of each leaf; as they come where it does not matter which."""
    few = points.shape[1] <= FEW_DIMENSIONS
    compact = not few or bool(wanted.pulls.kernels) or wanted.end(points.dtype.name) < math.inf
    return leaf_order(lax.stop_gradient(scale * points), LEAF[few], in_order=not compact)


def in_place(x: Array, places: Array, num: int) -> Array:
    """Rows back in their order, without those that filled leaves up."""
    return jnp.zeros((num, x.shape[-1]), x.dtype).at[places].set(x, mode="drop", unique_indices=True)


def _in_groups(leaves: Any, points: int) -> Any:
    """(leaves, size, …) -> (groups, leaves, size, …): a power of two, of so many points if there are."""

    def grouped(x: Array) -> Array:
        num = min(len(x), 1 << (max(1, points // x.shape[1]).bit_length() - 1))
        return x.reshape(len(x) // num, num, *x.shape[1:])

    return jax.tree.map(grouped, leaves)


def in_leaves(x: Array, order: Array, fill: float | None = 0.0) -> Array:
    """Rows in the order of leaves (leaves, size, W); what fills leaves up is zero, or the first row of the leaf."""
    is_there = order < len(x)
    rows = x[jnp.minimum(jnp.where(is_there, order, order[:, :1]), len(x) - 1)]
    return rows if fill is None else jnp.where(is_there[..., None], rows, fill)


def _are_apart(wanted: Wanted, scale: Array, a: Array, b: Array) -> Bool[Array, "rows columns"]:
    """Whether every kernel is zero between two leaves."""
    return squared_gaps(scale, a, b) > wanted.end(a.dtype.name)


def _block_sums(wanted: Wanted, scale: Array, rows: Rows, tiles: Columns) -> Sums:
    """A block of rows: what products know by products, tile by tile, and the other pairs of leaves from differences."""
    num, each = len(rows.points), tiles.points.shape[1]
    columns = jax.tree.map(lambda x: x.reshape(x.shape[0] * each, *x.shape[2:]), tiles)
    left = ~_are_apart(wanted, scale, rows.points, columns.points).reshape(num, -1, each).swapaxes(0, 1)
    none = zeros_of(wanted, *rows.points.shape[:2], scale=scale, points=rows.points)
    dim, few = rows.points.shape[2], rows.points.shape[2] <= FEW_DIMENSIONS
    operands = [scale, *rows, *columns]

    def varying(results: Any) -> Any:
        return jax.tree.map(lambda x: vary_like(x, operands), results)

    strict = wanted.strict(dim, scale.shape[1])
    places, number = _listed(left.any((1, 2)))

    def add(state: tuple[Array, Sums, Array]) -> tuple[Array, Sums, Array]:
        start, total, left = state
        place = places[start]
        tile, here = Columns(*(x[place] for x in tiles)), left[place]
        a, b = about_center(scale, rows.points, tile.points)
        known = knows(strict, a, b)
        if not few:
            look = functools.partial(looked_at, strict, a, b)
            known = lax.cond((here & ~known).any(), look, lambda known: known, known)
        keep = here & known
        products = functools.partial(_products, wanted, scale, rows.weights, tile, a, b)
        pays = keep.mean() > WORTH[few]
        keep, found = lax.cond(pays, lambda: varying(products(keep)), lambda: varying((jnp.zeros_like(keep), none)))
        return start + 1, jax.tree.map(jnp.add, total, found), left.at[place].set(here & ~keep)

    state = varying((jnp.zeros((), "int32"), none, left))
    _, total, left = lax.while_loop(lambda state: state[0] < number, add, state)
    return _add_differences(total, left.swapaxes(0, 1).reshape(num, -1), wanted, scale, rows, columns)


def _products(
    wanted: Wanted, scale: Array, row_weights: Array, columns: Columns, a: Scaled, b: Scaled, keep: Array
) -> tuple[Array, Sums]:
    """Sums of the pairs of leaves to keep, by products; and of which of these they have the digits of pulls as well.

    Pulls of one channel are made of further sums at the rows, and so is what tells how far pairs are spread.
    """
    a, b = (Scaled(*(as_rows(jnp.where(x.norms < jnp.inf, y, 0)) for y in x)) for x in (a, b))
    rows, columns = Rows(a.points, as_rows(row_weights)), Columns(b.points, *map(as_rows, columns[1:]))
    slopes, num, dim = [x.slope for x in wanted.pulls.kernels], len(wanted.sums.kernels), a.points.shape[1]
    single, looks = set(wanted.pulls.widths) == {1}, bool(slopes) and not wanted.strict(dim, scale.shape[1])
    of_powers = functools.partial(powers, jnp, b, each=scale.shape[1] > 1)
    weights = wanted.pulls.parts(columns.weights)
    shared = single and looks and wanted.one_sign  # what pulls tells it
    width = None if wanted.spread or shared else dim + 1  # no squares but where they are used
    pulling = [of_powers(w)[:, :width] for w in weights] if single else []
    seen = [of_powers(jnp.abs(w).max(1, keepdims=True)) for w in weights] if looks and not shared else []
    values = [*wanted.sums.parts(columns.values), *pulling, *seen]
    kernels = *wanted.sums.kernels, *slopes[: len(pulling)], *slopes[: len(seen)]
    asked = Channels(kernels, tuple(x.shape[1] for x in values))
    of_products = Wanted(asked, NOTHING) if single else wanted._replace(sums=asked)
    columns = columns._replace(values=jnp.concatenate(values or [columns.values], 1))
    found = by_products(of_products, scale, rows, columns, squares_factors(a, b), keep)
    parts = asked.parts(found.sums)
    own, pulling, seen = parts[:num], parts[num : num + len(pulling)], parts[num + len(pulling) :]
    found = found._replace(sums=jnp.concatenate([found.sums[:, :0], *own], 1))
    if single:
        total = functools.reduce(
            jnp.add, (g * x for g, x in zip(wanted.pulls.parts(rows.weights), pulling, strict=True))
        )
        toward, apart, _ = about(a, total)
        found = found._replace(
            pulls=toward / scale, spread=apart / jnp.square(scale) if wanted.spread else apart[:, :0]
        )
    if looks:
        seen = [jnp.sign(x[:, dim : dim + 1]) * x for x in pulling] if shared else seen
        enough = spread(jnp, a, functools.reduce(jnp.add, seen), len(keep)) >= SPREAD
        keep &= enough[:, None]
        found = jax.tree.map(lambda x: jnp.where(jnp.repeat(enough, len(x) // len(keep))[:, None], x, 0), found)
    return keep, jax.tree.map(lambda x: x.reshape(*row_weights.shape[:2], x.shape[1]), found)


def _listed(flags: Bool[Array, " n"]) -> tuple[Array, Array]:
    """The places that are flagged, first, and their number."""
    places = jnp.where(flags, jnp.arange(flags.size, dtype="int32"), flags.size)
    return lax.sort(places), flags.sum(dtype="int32")


def _add_differences(
    total: Sums, flags: Bool[Array, "rows columns"], wanted: Wanted, scale: Array, rows: Rows, columns: Columns
) -> Sums:
    """The total with the flagged pairs of leaves from differences, some at a time."""
    num_columns, few = flags.shape[1], rows.points.shape[2] <= FEW_DIMENSIONS
    each = max(1, min(flags.size, CHUNK[few] // (rows.weights.shape[1] * columns.weights.shape[1])))
    places, number = _listed(flags.ravel())
    places = jnp.pad(places, (0, each), constant_values=flags.size)
    rows, columns = rows._replace(points=rows.points.mT), columns._replace(points=columns.points.mT)

    def add(state: tuple[Array, Sums]) -> tuple[Array, Sums]:
        start, total = state
        place = lax.dynamic_slice(places, (start,), (each,))
        i, j = place // num_columns, place % num_columns  # i is no leaf where there are no more
        pair = Rows(*(x[i] for x in rows)), Columns(*(x[j] for x in columns))
        # in few dimensions differences once more take as long as moments
        found = by_differences(wanted, scale.T, *pair, moments=not few)
        return start + each, jax.tree.map(lambda x, y: x.at[i].add(y, mode="drop"), total, found)

    start = vary_like(jnp.zeros((), "int32"), [flags])
    return lax.while_loop(lambda state: state[0] < number, add, (start, total))[1]


def squared_gaps(scale: Array, a: Float[Array, "r m d"], b: Float[Array, "c n d"]) -> Float[Array, "r c"]:
    """The least u that points of two leaves may have."""
    gaps = jnp.maximum(a.min(1)[:, None] - b.max(1)[None], b.min(1)[None] - a.max(1)[:, None])
    return _squares(scale, jnp.maximum(gaps, 0))


def _squares(scale: Array, differences: Float[Array, "*shape d"]) -> Float[Array, "*shape"]:
    return jnp.square(differences * with_rank(scale, differences)).sum(-1)
