"""Whether waves sum Gaussians of points in few dimensions: estimates of their time, and of that of all pairs."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from ..._arrays.points import as_rows, by_point, shared
from ..._arrays.shapes import are_known
from ..apart import apart
from ..clusters.sorted_tiles import LEAF
from ..costs import cpu_costs, time_of_waves_on_cuda, time_on_cuda
from ..plan import NEAR, Plan
from . import nufft
from .boxes import Box, box, boxes, points_beyond, share_in_tails
from .frequencies import DIMENSIONS, MOST, WAVES, blocks_of, tolerance_of

# TILES, DIFFERENCES: time of a pair in tiles of points that lie anywhere, and by differences, relative to products
# about one center. SORTING: nanoseconds of a point.
TILES, SORTING, DIFFERENCES = 2.5, 300.0, 4.0
OUTSIDE = 64  # at most one query in OUTSIDE may lie outside of a box
AROUND = 32  # bandwidths; the box of keys is wider than that of queries by less
END = 2 * 13.2  # bandwidths over which a point has terms: a Gaussian in float32 ends at 13.2
LONG = 4e6  # nanoseconds of all pairs from which a callback finds out whether waves pay: 0.15 ms, but less to compile
APART = 1.5e6  # nanoseconds of a callback, in which waves and tiles sum: Python looks at the points first
WORTH = 0.8  # waves must take less than this share of the time of pairs
WORTH_ON_CUDA = 0.4  # less, where it is not known whether they hold the points, and the host waits for that twice
# Gradients take so many times as long as a sum: of all pairs, and by waves, in float64. Values of both signs take twice
# as many waves as others, for Σ Φ|v|: in between is a sum whose values are not known.
PULLS_OF_PAIRS, PULLS_OF_WAVES, OF_SIGNS = 2.0, 3.0, 1.5
MORE = MOST | {2: 12}  # most blocks of a coordinate with fast transforms
CHOICES = {1: (8, 128), 2: (1, 3), 3: (1, 2)}  # blocks of a coordinate from which "auto" chooses on CUDA
POINT = 60  # a coordinate of a point takes a fast transform as long as so many numbers of its grid
IN_DOUBT = 32  # at most one query in so many is summed again by differences
OF_TAILS = 0.5  # the share of the tiles that are not zero for queries in doubt, of those for all
AT_A_TIME, PARTS = 64, 8  # queries in doubt; if they are more, their number is rounded up to an eighth of all


class Sizes(NamedTuple):
    """M, N, D and C of a sum over two matrices of points.

    Attributes:
        bandwidths: the number of Gaussians that the kernel is made of.
        pulls: whether gradients are asked for.
        on_cuda: whether a GPU sums, where a program computes one of a few `CHOICES` of blocks.
    """

    queries: Any
    keys: Any
    dim: int
    channels: int
    bandwidths: int = 1
    pulls: bool = False
    on_cuda: bool = False


def at_most(dim: int, plan: Plan | None = None) -> int:
    """The most blocks of waves that a coordinate may have, by a plan or for any on a CPU."""
    if plan is not None and plan.platform == "cuda":
        return plan.blocks or MOST[dim]
    return (MORE if nufft.is_installed() else MOST)[dim]


def most_blocks(precision: str, sizes: Sizes) -> int:
    """The most blocks of waves of each coordinate that can pay for such sizes; 0 if none can.

    All coefficients have room for as many, so that fewer take less time on a CPU.
    """
    if sizes.dim not in DIMENSIONS or not are_known(*sizes) or 0 in sizes[:4]:
        return 0
    some = CHOICES[sizes.dim][::-1] if sizes.on_cuda else range(at_most(sizes.dim), 0, -1)
    of_pairs = _of_pairs(precision, sizes) - _of_pairs(precision, sizes._replace(queries=0))  # without that of a call
    of_pairs *= (WORTH_ON_CUDA if sizes.on_cuda else TILES) * sizes.bandwidths
    paying = (x for x in some if _of_waves(np, precision, sizes, [float(x)] * sizes.dim) < of_pairs)
    return next(paying, 0)


def are_for_waves(
    plan: Plan,
    queries: Array,
    keys: Array,
    values: Array,
    tau: Array,
    *,
    precision: str | None = None,
    pulls: bool = False,
    known: bool = False,
) -> Bool[Array, ""] | bool:
    """Whether waves sum operands of equal rank, rather than products about one center.

    The answer is a Python boolean if the plan or the shapes decide. If not, the points are examined; with `known` they
    are not, and the answer is False. `precision` replaces that of the plan. `pulls`: whether gradients are asked for.
    """
    if plan.waves is not None or plan.platform == "cuda":  # where "auto" finds out at the sum: see `fitting`
        return plan.waves is not False
    scale, precision = by_point(jnp.sqrt(tau), queries), precision or plan.precision
    num_queries = math.prod(queries.shape[:-1]) if shared(keys, values, scale) else queries.shape[-2]
    sizes = Sizes(num_queries, keys.shape[-2], keys.shape[-1], values.shape[-1], pulls=pulls)
    most = most_blocks(precision, sizes)
    if not most:
        return False
    widest = np.full(sizes.dim, 2 * math.sqrt(NEAR[precision] / sizes.dim), precision)
    ends, one = np.stack([0 * widest, widest])[None], np.ones(sizes.dim, precision)
    if waves_pay(np, most, precision, math.inf, sizes, ends, one)[0]:
        return True
    if known:
        return False
    points = (as_rows(lax.stop_gradient(scale * x)) for x in (queries, keys))
    options = most, precision, plan.reach, sizes
    if not plan.apart or _of_pairs(precision, sizes) < LONG:
        return _pay(jnp, *options, *points)
    look = functools.partial(_pay, jnp, *options)
    return apart(_pay, (np, *options), jax.ShapeDtypeStruct((), np.dtype(bool)), *points, ways=lambda: [look])


def _pay(xp: Any, most: int, precision: str, reach: float, sizes: Sizes, *points: Any) -> Any:
    """`waves_pay` of scaled points."""
    ends = boxes(xp, *points)
    return waves_pay(xp, most, precision, reach, sizes, ends, xp.ones_like(ends[0, 0]))[0]


def waves_pay_here(
    plan: Plan, most: int, precision: str, sizes: Sizes, scale: Any, queries: Any, keys: Any
) -> tuple[Any, Box]:
    """Whether waves sum these points, by the plan or by `waves_pay`; and in which box. `scale` is √τ; NumPy or JAX.

    For several Gaussians, one in each row of `scale`: whether one sum of all takes less time than one sum of each.
    """
    xp: Any = np if isinstance(queries, np.ndarray) else jnp
    if xp is jnp:
        queries, keys, scale = map(lax.stop_gradient, (queries, keys, scale))
    if plan.by_waves:
        return True, box(queries, keys)
    if sizes.bandwidths == 1:
        options = plan.reach, sizes, boxes(xp, queries, keys), scale[0]
        if xp is np:  # queries in far tails are summed twice
            by_waves, otherwise, found = _fastest(np, most, precision, *options)
            tails = share_in_tails(scale[0], found.of_queries, queries, keys) if np.isfinite(by_waves) else 0
            return by_waves < (WORTH - tails) * otherwise, found
        does, found = waves_pay(xp, most, precision, *options)
        return (does if plan.waves is None else plan.waves), found
    found = box(queries, keys)

    def times(scale: Any, ratio: Any = 1.0) -> tuple[Any, Any]:
        extent = (found.extent * scale)[None]
        return _times(xp, most, precision, plan.reach, sizes, extent, extent, ratio)

    of_each = functools.reduce(xp.add, (xp.minimum(*times(x)) for x in scale))
    of_all, _ = times(scale.max(0), bandwidth_ratio(scale))
    return (of_all < WORTH * of_each)[0] if plan.waves is None else plan.waves, found


def bandwidth_ratio(scale: Float[Array, "t _"]) -> Any:
    """The ratio of the widest Gaussian's bandwidth to that of the narrowest."""
    return 1.0 if len(scale) == 1 else (scale.max(0) / scale.min(0)).max()


def waves_pay(xp: Any, most: int, precision: str, reach: float, sizes: Sizes, ends: Any, scale: Any) -> tuple[Any, Box]:
    """Whether waves are estimated to take less time than pairs, for the best of several `boxes`; and that box."""
    by_waves, otherwise, found = _fastest(xp, most, precision, reach, sizes, ends, scale)
    return by_waves < WORTH * otherwise, found


def finer_waves(plan: Plan, sizes: Sizes, share: float, scale: Any, queries: Any, keys: Any) -> tuple[int, Box] | None:
    """The most blocks and the box of waves in float64 for NumPy's points in float32, if that pays; else None.

    It pays if they are estimated to take less time than pairs in float32 take for this share of the queries.
    """
    most, in_double = most_blocks("float64", sizes), [x.astype("float64") for x in (queries, keys)]
    if not most:
        return None
    options = plan.reach, sizes
    _, otherwise, _ = _fastest(np, most, "float32", *options, boxes(np, queries, keys), scale[0])
    by_waves, _, found = _fastest(np, most, "float64", *options, boxes(np, *in_double), scale[0].astype("float64"))
    return (most, found) if by_waves < WORTH * share * otherwise else None


def _fastest(
    xp: Any, most: int, precision: str, reach: float, sizes: Sizes, ends: Any, scale: Any
) -> tuple[Any, Any, Box]:
    """Nanoseconds by waves, for the best of several `boxes`, and by pairs; and that box.

    `reach` is the R² up to which products about one center sum all pairs. `xp` is NumPy or JAX.
    """
    lower, upper, scale = ends[:, 0], ends[:, 1], scale[None]
    extent = (upper - lower) * scale
    sees = xp.sqrt(-2 * xp.log(tolerance_of(xp, precision, extent + AROUND))) + 1
    around = sees[:, None] / scale
    lower, upper = xp.maximum(lower[:1], lower - around), xp.minimum(upper[:1], upper + around)
    by_waves, otherwise = _times(xp, most, precision, reach, sizes, (upper - lower) * scale, extent)
    best = xp.where(by_waves <= by_waves.min(), np.arange(len(ends), dtype="int32"), len(ends) - 1).min()
    error = xp.where(best > 0, (1 + sees) * xp.exp(xp.square(sees) / -2), 0)
    found = Box(ends[best], xp.stack([lower, upper], 1)[best], error[best])
    return by_waves[best], otherwise, found


def _times(
    xp: Any, most: int, precision: str, reach: float, sizes: Sizes, extent: Any, inner: Any, ratio: Any = 1.0
) -> Any:
    """Nanoseconds by waves, for each box, and by pairs. The waves serve Gaussians up to `ratio` times as wide.

    `extent` (boxes, D) is the size of all that is summed, `inner` that of the part in which nearly all points are.
    """
    blocks = blocks_of(xp, extent, tolerance_of(xp, precision, extent), ratio)
    of_pairs = _of_pairs(precision, sizes)
    of_call = 0.0 if sizes.on_cuda else APART
    of_tiles = TILES * of_pairs * share_within(xp, sizes, inner) + SORTING * (sizes.queries + sizes.keys) + of_call
    is_near = sizes.on_cuda or xp.square(inner[0] / 2).sum() <= reach
    otherwise = xp.where(is_near, of_pairs, of_tiles.max())
    in_doubt = 2 * sizes.dim * points_beyond(len(extent))
    of_row = (1.0 if sizes.on_cuda else DIFFERENCES) * of_pairs / sizes.queries
    of_doubt = np.where(OUTSIDE * in_doubt < sizes.queries, in_doubt * of_row, np.inf)
    of_waves = _of_waves(xp, precision, sizes, list(xp.moveaxis(blocks, -1, 0))) + of_call
    return xp.where(blocks.max(-1) <= most, of_waves + of_doubt.astype(extent.dtype), xp.inf), otherwise


def share_within(xp: Any, sizes: Sizes, inner: Any) -> Any:
    """The share of the tiles of sorted points that are not zero, of points in a box of this size in bandwidths."""
    leaf = min(1, LEAF[True] / min(sizes.queries, sizes.keys)) ** (1 / sizes.dim)  # its share of each coordinate
    return xp.minimum(1, END / inner + 2 * leaf).prod(-1)


def estimated(precision: str, sizes: Sizes, counts: Any) -> tuple[float, float]:
    """Nanoseconds by waves, with `counts` blocks of each coordinate, and of all pairs."""
    return _of_waves(np, precision, sizes, counts), _of_pairs(precision, sizes)


def _of_pairs(precision: str, sizes: Sizes) -> float:
    """Nanoseconds of all pairs: on a CPU by products about one center, on CUDA from differences."""
    if sizes.on_cuda:
        of_sum, _ = time_on_cuda("blocked", sizes.queries * sizes.keys, sizes.dim, sizes.channels, sizes.pulls)
        return 1e6 * of_sum
    cost = cpu_costs()[0][f"xla in {precision}"]
    of_sum = cost.nanoseconds(sizes.queries * sizes.keys, sizes.dim + 2 + sizes.channels)
    return (PULLS_OF_PAIRS if sizes.pulls else 1) * of_sum


def _of_waves(xp: Any, precision: str, sizes: Sizes, counts: Any) -> Any:
    """Nanoseconds by waves, by products or by fast transforms, whichever take less; on CUDA by equally many of each."""
    if sizes.on_cuda:
        points, blocks = sizes.queries + sizes.keys, functools.reduce(xp.maximum, counts)
        times = PULLS_OF_WAVES if sizes.pulls else 1.0
        return times * 1e6 * time_of_waves_on_cuda(points, sizes.dim, sizes.channels, blocks)
    precision, factor = ("float64", PULLS_OF_WAVES) if sizes.pulls else (precision, OF_SIGNS)
    times = _of_products(precision, sizes, counts)
    if nufft.is_installed():
        times = xp.minimum(times, _of_transforms(precision, sizes, counts))
    return factor * times


def transforms_pay(precision: str, sizes: Sizes, most: int, counts: Array) -> Bool[Array, ""] | bool:
    """Whether fast transforms are estimated to take less time than products, with `counts` blocks of waves.

    Both times are linear in the number of blocks: if one block and the most blocks agree, so do all between.
    """

    def pay(counts: Any) -> Any:
        return _of_transforms(precision, sizes, counts) < _of_products(precision, sizes, counts)

    of_one, of_most = (pay([x] * sizes.dim) for x in (1.0, float(most)))
    return of_one if of_one == of_most else pay(counts)


def _of_products(precision: str, sizes: Sizes, counts: Any) -> Any:
    cost, waves = cpu_costs()[0][f"waves in {precision}"], 2 * WAVES[sizes.dim]
    of_point = math.prod(counts[1:], start=counts[0]) * (cost.pair * sizes.dim * waves + cost.column * waves**sizes.dim)
    return cost.call + sizes.channels * (sizes.queries + sizes.keys) * of_point


def _of_transforms(precision: str, sizes: Sizes, counts: Any) -> Any:
    cost, of_points, grid = cpu_costs()[0][f"nufft in {precision}"], *transform_work(precision, sizes)
    blocks = math.prod(counts[1:], start=counts[0])
    return sizes.channels * (cost.call + cost.pair * of_points + cost.column * grid * blocks)


def transform_work(precision: str, sizes: Sizes) -> tuple[float, float]:
    """The work of a channel's two fast transforms: numbers that points touch, and numbers of a block's grid."""
    width = nufft.WIDTH[precision] ** sizes.dim + POINT * sizes.dim
    return float((sizes.queries + sizes.keys) * width), 2.0 * (4 * WAVES[sizes.dim]) ** sizes.dim


Doubt = Bool[Array, " m"]


def doubt_resolved(
    found: Sequence[Any],
    doubt: Sequence[Doubt],
    of_rows: Sequence[Callable[[np.ndarray, bool], Any]],
    by_tiles: Callable[[], list[Any]],
) -> list[Any]:
    """Results by waves, with the queries in doubt summed again; if nearly all are, all of them by tiles.

    Each of several results has its own queries: its function `of_rows` sums at those of given indices, from differences
    or, if they are many, by tiles.
    """
    flags = [np.asarray(x) for x in doubt]
    if sum(x.mean() for x in flags) > 1 - 1 / PARTS:
        return by_tiles()
    return [_corrected(*x) for x in zip(flags, found, of_rows, strict=True)]


def time_of_doubt(precision: str, sizes: Sizes, share: float, extent: Any) -> float:
    """Nanoseconds of `doubt_resolved`: a share of the queries, in a box of this size in bandwidths, is in doubt."""
    of_pairs = _of_pairs(precision, sizes)
    if share <= 1 / IN_DOUBT:
        rows = AT_A_TIME * math.ceil(share * sizes.queries / AT_A_TIME)
        return DIFFERENCES * of_pairs * rows / sizes.queries
    share = math.ceil(share * PARTS) / PARTS
    of_tiles = OF_TAILS * TILES * of_pairs * share * float(share_within(np, sizes, extent))
    return of_tiles + SORTING * (share * sizes.queries + sizes.keys)


def _corrected(doubt: np.ndarray, found: Any, of_rows: Callable[[np.ndarray, bool], Any]) -> Any:
    """The results, those in doubt replaced by sums of `of_rows`, of few numbers of queries: each is a program."""
    if not doubt.any():
        return found
    total = jax.tree.map(np.array, found)
    every, num = np.flatnonzero(doubt), len(doubt)
    are_many = len(every) > num // IN_DOUBT
    at_a_time = -(-len(every) * PARTS // num) * -(-num // PARTS) if are_many else AT_A_TIME
    for start in range(0, len(every), at_a_time):
        some = np.resize(every[start : start + at_a_time], at_a_time)
        for x, y in zip(jax.tree.leaves(total), jax.tree.leaves(of_rows(some, are_many)), strict=True):
            x[some] = y
    return total
