"""The engine for points that lie anywhere: each tile of the kernel matrix keeps its own digits.

Points are sorted into leaves, and pairs of leaves between which the kernel is zero are skipped. A tile takes
u = ‖a‖² + ‖b‖² - 2⟨a, b⟩ from a product about the center of its keys where the error, 2⁻²⁴ (‖a‖² + ‖b‖²), is small in
itself or beside u, and from differences of coordinates elsewhere.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxlib.version import __version_info__ as JAXLIB
from jaxtyping import Array, Bool, Float

from ..._arrays.compensated import RunningSum
from ..._arrays.devices import vary_like
from ..._arrays.points import by_point
from ..._arrays.shapes import K, Q, T, are_known
from ..._kernels.kernels import Kernel
from ..differences.tile_sums import both_by_differences, by_differences, subtractable
from ..plan import Plan
from ..request import NOTHING, Channels, Columns, PairSums, Request, Rows, zeros_of
from ..scopes import scope
from ..tiles import one_by_one
from .leaf_products import (
    about_center,
    distances,
    known_by_norms,
    known_by_product,
    masked,
    middles,
    sums_by_moments,
)
from .leaves import in_given_order, in_leaves, leaf_order, padded_rows, ranges_of, squared_gaps

FEW_DIMENSIONS = 8  # up to these, differences take little longer than a product that tells whether they are needed
LEAF = {True: 256, False: 64}  # points of a leaf, in few dimensions and in many
ROWS = 4096  # queries of a tile of products
# Keys of a tile: few enough to lie about one center; half of that for more channels than the cache holds.
COLUMNS, MANY = {True: 512, False: 256}, 96
WORTH = {True: 0.4, False: 0}  # share of a tile's pairs of leaves above which a product takes less time
CHUNK = {True: 2**18, False: 2**16}  # pairs of points whose differences are formed at a time
OF_KINKED = 0.5  # share of the pairs of leaves that kernels with a kink sum from differences in many dimensions
SORTED = 2**14  # flags that are listed by a sort, which compiles in half of the time; a million take 34 ms, counted 5
# M N D up to which pulls, and sums, of points that lie anywhere take less time from differences than by sorting. A
# branch that sorts costs time even where it is not taken: XLA takes 0.1 µs a call for each of its hundreds of buffers.
FEW = {True: 2**18, False: 2**22 if JAXLIB >= (0, 12) else 2**20}


def sorts(plan: Plan, *sizes: int, pulls: bool = True) -> bool:
    """Whether points are sorted: on a CPU, if `sizes` M, N and D are known and M N D is large; larger without pulls."""
    are_many = plan.platform == "cpu" and plan.name != "differences" and are_known(*sizes)
    return are_many and math.prod(sizes) > FEW[pulls]


def anywhere_sums(
    requests: Sequence[Request],
    queries: Float[Array, "m d"],
    keys: Float[Array, "n d"],
    values: Float[Array, "n c"],
    scale: Float[Array, "1 _"],
    row_weights: Float[Array, "m e"],
    column_weights: Float[Array, "n e"],
) -> list[PairSums]:
    """`PairSums` at the queries; if `requests` has two items, also at the keys, where the row weights are summed.

    One pass gives both. `scale` is √τ, one or one for each coordinate.
    """
    points = [subtractable(x) for x in (queries, keys)]
    order = _orders(functools.partial(_order, requests[-1], scale), *points)
    dim = queries.shape[1]
    rows = _with_weights(points[0], order[0], row_weights)
    columns = _with_weights(points[1], order[1], values, column_weights)
    ends = dim, dim + values.shape[1]  # of the points and of the values in the columns
    channels = values.shape[1] + (dim if requests[-1].pulls.kernels else 0)
    each = COLUMNS[dim <= FEW_DIMENSIONS] // (1 if channels <= MANY else 2)
    tiles = _in_groups(columns, each)
    of_rows, of_columns = (x[..., None] if requests[0].others else None for x in order)
    of_tiles = _in_groups(of_columns, each)

    def add(at_keys: list[PairSums], block: tuple[Array, Any]) -> tuple[list[PairSums], PairSums]:
        at_queries, *at_keys = _block_sums(requests, scale, ends, *block, tiles, of_tiles, at_keys)
        return at_keys, at_queries

    at_keys = [zeros_of(x, *columns.shape[:2], scale=scale, points=points[1]) for x in requests[1:]]
    at_keys = jax.tree.map(lambda x: vary_like(x, [scale, rows, columns]), at_keys)
    at_keys, at_queries = lax.scan(add, at_keys, _in_groups((rows, of_rows), ROWS))
    found = zip((at_queries, *at_keys), order, points, strict=False)
    return [in_given_order(sums, i, len(x)) for sums, i, x in found]


def _orders(order: Callable[[Array], Array], queries: Array, keys: Array) -> list[Array]:
    """The indices of the points of each leaf, of queries and of keys.

    As many keys as queries, and the halves of twice as many, are sorted like the queries: perhaps they are the same
    points, as in MMD, and then only leaves of equal index have pairs of coinciding points.
    """
    num, parts = len(queries), len(keys) // max(1, len(queries))
    if len(keys) != parts * num or parts > 2:
        return [order(queries), order(keys)]
    of_queries, *of_parts = jax.vmap(order)(jnp.stack([queries, *jnp.split(keys, parts)]))  # one program
    padding = of_queries.size - num
    shifted = [jnp.where(x < num, x + i * num, x + (parts - 1) * num + i * padding) for i, x in enumerate(of_parts)]
    return [of_queries, jnp.concatenate(shifted)]


def share_left(kernel: Kernel, queries: Array, keys: Array, scale: Array) -> Float[Array, ""]:
    """The share of the pairs of leaves that are not skipped; the kernel is zero between the others."""
    request = Request(Channels((kernel,), (1,)), NOTHING)
    rows, columns = (ranges_of(in_leaves(x, _order(request, scale, x), None)) for x in (queries, keys))
    each = lax.map(lambda x: (~_are_apart(request, scale, (x[0][None], x[1][None]), columns)).mean(), rows)
    return each.mean()


def _order(request: Request, scale: Array, points: Array) -> Array:
    """Indices of the points of each leaf; points keep their order where compact leaves gain nothing."""
    few = points.shape[1] <= FEW_DIMENSIONS
    compact = not few or bool(request.pulls.kernels) or request.end(points.dtype.name) < math.inf
    return leaf_order(lax.stop_gradient(scale * points), LEAF[few], in_order=not compact)


def _in_groups(leaves: Any, points: int) -> Any:
    """(leaves, size, …) -> (groups, leaves, size, …); a group has a power of two leaves and at most `points` points."""

    def grouped(x: Array) -> Array:
        num = min(len(x), 1 << (max(1, points // x.shape[1]).bit_length() - 1))
        return x.reshape(len(x) // num, num, *x.shape[1:])

    return jax.tree.map(grouped, leaves)


def _with_weights(points: Array, order: Array, *weights: Array) -> Array:
    """Points and weights side by side, in the order of leaves; those that pad a leaf have no weights."""
    columns = padded_rows(points, order.size), *(padded_rows(x, order.size, 0) for x in weights)
    return jnp.concatenate(columns, 1)[order]


def _are_apart(
    request: Request, scale: Array, a: tuple[Array, Array], b: tuple[Array, Array]
) -> Bool[Array, "rows columns"]:
    """Whether all kernels are zero between two leaves, for every pair of leaves; from their `ranges_of`."""
    return squared_gaps(scale, a, b) > request.end(scale.dtype.name)


def _block_sums(
    requests: Sequence[Request],
    scale: Array,
    ends: Sequence[int],
    rows: Array,
    of_rows: Array | None,
    tiles: Array,
    of_tiles: Array | None,
    at_keys: list[PairSums],
) -> list[PairSums]:
    """`PairSums` of a block of rows: by products where these are accurate, a tile at a time, else from differences.

    The sums at the keys are added to `at_keys`, those of earlier blocks. Points and weights are side by side, because a
    program of fewer arrays compiles in less time. `PairSums` are not: XLA leaves out those that nobody reads. Pairs of
    equal index are left out, if there are indices of rows and of tiles.
    """
    num, each, dim = len(rows), tiles.shape[1], ends[0]
    columns = tiles.reshape(-1, *tiles.shape[2:])
    own, others = (ranges_of(x[..., :dim]) for x in (rows, columns))
    left = ~_are_apart(requests[-1], scale, own, others).reshape(num, -1, each).swapaxes(0, 1)
    few, operands = dim <= FEW_DIMENSIONS, [scale, rows, columns]

    def varying(results: Any) -> Any:
        return jax.tree.map(lambda x: vary_like(x, operands), results)

    strict, centers = requests[-1].strict(dim, scale.shape[1]), middles(*(x.reshape(-1, each, dim) for x in others))
    sizes = rows.shape[:2], tiles.shape[1:3]
    none = [zeros_of(x, *size, scale=scale, points=rows[..., :dim]) for x, size in zip(requests, sizes, strict=False)]
    indices, number = flagged_indices(left.any((1, 2)))

    def add(state: tuple[Array, list[PairSums], PairSums, list[Array]]) -> tuple[Any, ...]:
        start, total, lacking, left = state
        index = indices[start]
        tile, here = Columns(*jnp.split(tiles[index], ends, 2)), left[0][index]
        of_both = None if of_rows is None or of_tiles is None else (of_rows, of_tiles[index])
        a, b = about_center(scale, centers[index], rows[..., :dim], tile.points)
        known = known_by_norms(strict, a, b)
        u = None if few else distances(a, b)
        if u is not None:
            look = functools.partial(known_by_product, strict, a, b, u)
            known = lax.cond((here & ~known).any(), look, lambda known: known, known)
        keep = here & known
        kept, found = lax.cond(
            keep.mean() > WORTH[few],
            lambda: varying(
                sums_by_moments(
                    requests, scale, rows[..., dim:], tile, a, b, distances(a, b) if u is None else u, keep, of_both
                )
            ),
            lambda: varying(([jnp.zeros_like(keep)] * len(requests), none)),
        )
        own, lacking = RunningSum(total[0], lacking).plus(found[0])
        leaves = index * each + jnp.arange(each, dtype="int32")
        total = [own, *(_added(*x, leaves) for x in zip(total[1:], found[1:], strict=True))]
        return start + 1, total, lacking, [x.at[index].set(here & ~y) for x, y in zip(left, kept, strict=True)]

    state = varying((jnp.zeros((), "int32"), [none[0], *at_keys], none[0], [left] * len(requests)))
    with scope("steps", len(tiles)):
        _, total, lacking, left = lax.while_loop(lambda state: state[0] < number, add, state)
    total[0] = RunningSum(total[0], lacking).value()
    flags = [x.swapaxes(0, 1).reshape(num, -1) for x in left]
    every = [None if x is None else x.reshape(-1, *x.shape[-2:]) for x in (of_rows, of_tiles)]
    return _add_differences(total, flags, requests, scale, ends, rows, columns, every)


def _added(total: PairSums, found: PairSums, indices: Array) -> PairSums:
    """The total with `found` added to the leaves of these indices; an index beyond the last is ignored."""
    return jax.tree.map(lambda x, y: x.at[indices].add(y, mode="drop"), total, found)


def flagged_indices(flags: Bool[Array, " n"], more: int = 0) -> tuple[Array, Array]:
    """The flagged indices, followed by an index beyond the last, (n + `more`,); and their number."""
    indices, number = jnp.arange(flags.size, dtype="int32"), flags.sum(dtype="int32")
    if flags.size <= SORTED:
        return lax.sort(jnp.pad(jnp.where(flags, indices, flags.size), (0, more), constant_values=flags.size)), number
    place = jnp.where(flags, jnp.cumsum(flags, dtype="int32") - 1, flags.size + more)
    beyond = jnp.full(flags.size + more, flags.size, "int32")
    return beyond.at[place].set(indices, mode="drop"), number


def _add_differences(
    total: list[PairSums],
    flags: list[Bool[Array, "rows columns"]],
    requests: Sequence[Request],
    scale: Array,
    ends: Sequence[int],
    rows: Array,
    columns: Array,
    every: Sequence[Array | None],
) -> list[PairSums]:
    """The total plus the pairs of leaves that are flagged for either side, from differences, some at a time."""
    (_, num_columns), size, few = flags[0].shape, flags[0].size, ends[0] <= FEW_DIMENSIONS
    each = max(1, min(size, CHUNK[few] // (rows.shape[1] * columns.shape[1])))
    indices, number = flagged_indices(functools.reduce(jnp.logical_or, flags).ravel(), more=each)
    sides = [(x[..., : ends[0]].mT, x[..., ends[0] :]) for x in (rows, columns)]

    def add(state: tuple[Array, list[PairSums]]) -> tuple[Array, list[PairSums]]:
        start, total = state
        index = lax.dynamic_slice(indices, (start,), (each,))
        i, j = index // num_columns, index % num_columns  # after the last pair, i is beyond the last leaf
        (a, g), (b, of_keys) = ([x[k] for x in side] for side, k in zip(sides, (i, j), strict=True))
        (v, w), of_pair = jnp.split(of_keys, [ends[1] - ends[0]], 2), zip(every, (i, j), strict=True)
        of_a, of_b = (None if x is None else x[k] for x, k in of_pair)
        pair = Rows(a, g, of_a), Columns(b, v, w, of_b)
        # in few dimensions, forming the differences again takes as long as moments
        if len(requests) == 1:
            found = [by_differences(requests[0], scale.T, *pair, moments=not few)]
        else:
            found = both_by_differences(requests, scale.T, *pair, moments=not few)
            are_flagged = (x.ravel().at[index].get(mode="fill", fill_value=False) for x in flags)
            found = map(masked, found, are_flagged)
        return start + each, [_added(*x) for x in zip(total, found, (i, j), strict=False)]

    start = vary_like(jnp.zeros((), "int32"), flags)
    kinked = any(x.kinked for x in requests)
    steps = size / each * (1.0 if few else OF_KINKED if kinked else 0.0)  # as products are seldom accurate enough
    with scope("steps", steps):
        return lax.while_loop(lambda state: state[0] < number, add, (start, total))[1]


@functools.partial(jax.jit, static_argnums=0)
def mean_share(kernel: Kernel, queries: Q, keys: K, tau: T) -> Array:
    """The share of tiles that are summed for points that lie anywhere, or the mean share of a batch."""
    share = functools.partial(share_left, kernel)
    return one_by_one(share, queries, keys, by_point(jnp.sqrt(tau), queries)).mean()
