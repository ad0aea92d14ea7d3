"""`PairSums` of points that lie anywhere: by waves, by tiles of sorted points, or from differences.

In XLA alone, and on CUDA, the plan and the shapes decide. Else a CPU sums them `apart`: NumPy looks at the points, and
one program after another sums them: waves if these pay, then the queries that waves leave in doubt, or tiles. Few
points take products in float64.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._arrays.hidden import without_hidden
from .._arrays.points import as_rows, by_point, for_sums, largest_of_sums, shared, tau_of, with_rank
from .._arrays.shapes import are_known
from .._kernels.kernels import GAUSS
from .apart import apart
from .clusters.sorted_tiles import anywhere_sums, sorts
from .differences.all_pairs import sums_by_differences
from .engine import AUTO
from .fourier.boxes import Box, box
from .fourier.cost import Doubt, Sizes, at_most, doubt_resolved, finer_waves, most_blocks, waves_pay_here
from .fourier.fitting import sums_that_fit
from .fourier.sums import SUMS, Promise, sides, sums_of_sides
from .plan import Plan
from .products.pair_sums import sums_by_products
from .request import PairSums, Request, shapes_of
from .scopes import scope
from .tiles import one_by_one

REACH = 2.0**31  # squared extent in bandwidths at which products in float64 give exponents to 3e-7


def sums_anywhere(requests: Sequence[Request], plan: Plan, *operands: Array) -> list[PairSums]:
    """`PairSums` of points anywhere; if `requests` has two items, also at the keys, where g are the values.

    Values and weights whose sums might overflow are summed in a unit of their own. Keys without either may be NaN.
    """
    queries, keys, _, tau, *_ = operands
    without = requests[0].others and in_program(plan, queries, keys)  # of others, rows in doubt are always summed again
    options = tuple(requests), replace(plan.bare(), waves=False) if without else plan.bare()
    few_always = any(x.kinked for x in requests) and _are_few(requests, plan, operands)
    if few_always or in_program(plan, queries, keys):
        return _in_xla(*options, *operands)
    scale = by_point(tau, queries)
    batch = jnp.broadcast_shapes(*(x.shape[:-2] for x in (*operands[:3], scale, *operands[4:])))
    shapes = [
        shapes_of(x, *batch, len_of(points), scale=scale, points=queries)
        for x, points in zip(requests, (queries, keys), strict=False)
    ]
    return apart(_sums_apart, options, shapes, *operands, ways=functools.partial(_ways, *options, operands))


def len_of(points: Any) -> int:
    """The number of points (…, N, D)."""
    return points.shape[-2]


def in_program(plan: Plan, queries: Any, keys: Any) -> bool:
    """Whether a program sums points that lie anywhere itself: by differences, or none or an unknown number of them."""
    sizes = *queries.shape, *keys.shape
    return not plan.apart or plan.name == "differences" or not are_known(*sizes) or 0 in sizes


def _are_few(requests: Sequence[Request], plan: Plan, operands: Sequence[Any]) -> bool:
    """Whether differences of all pairs take less time than sorting, or nothing is to be sorted."""
    queries, keys, values, tau, _, weights = operands
    as_one = shared(keys, values, by_point(tau, queries), weights)  # the batch of the queries becomes more rows
    sizes = (as_rows(queries).shape[0] if as_one else len_of(queries)), *keys.shape[-2:]
    pulls = any(x.pulls.kernels for x in requests)
    return 0 in sizes or (not plan.by_waves and not sorts(plan, *sizes, pulls=pulls))


def _in_xla(requests: Sequence[Request], plan: Plan, *operands: Array) -> list[PairSums]:
    """The sums by one program."""
    return without_overflow(functools.partial(_by_shapes, requests, plan), *operands)


def without_overflow(summed: Callable[..., list[PairSums]], *operands: Any) -> list[PairSums]:
    """The sums of values and weights in a unit in which they do not overflow, without hidden keys; NumPy or JAX."""
    queries, keys, values, tau, g, w = operands
    sizes = len_of(queries), len_of(keys)
    if isinstance(keys, np.ndarray) and np.isfinite(keys.sum()) and _are_small(sizes, values, g, w):
        return summed(*operands)
    keys = without_hidden(keys, values, w)
    of_values = for_sums(values, *sizes, axes=-2)
    of_g, of_w = (for_sums(x, *sizes, axes=(-2, -1)) for x in (g, w))
    found = summed(queries, keys, values * of_values, tau, g * of_g, w * of_w)
    return [
        PairSums(x.sums / unit, x.pulls / of_g / of_w, x.spread / of_g / of_w)
        for x, unit in zip(found, (of_values, of_g), strict=False)
    ]


def _are_small(sizes: Sequence[int], *arrays: np.ndarray) -> bool:
    """Whether no sum of the numbers of an array overflows, and all are finite."""
    return all(np.abs(x).max(initial=0) <= largest_of_sums(x.dtype, *sizes) for x in arrays)


def _by_shapes(requests: Sequence[Request], plan: Plan, *operands: Array) -> list[PairSums]:
    """By waves if they are asked for, or on CUDA may pay; from differences if points are few; else by sorted tiles."""
    queries, keys, values, tau, row_weights, weights = operands
    scale = by_point(jnp.sqrt(tau), queries)
    as_one = _as_one_matrix(requests, queries, keys, values, scale, row_weights, weights)
    rows = as_rows(queries) if as_one else queries
    most, sizes = blocks_that_may_pay(requests, plan, rows, keys, values, weights)
    if most and plan.platform == "cuda" and not plan.by_waves:
        summed = functools.partial(sums_that_fit, requests, plan, most, sizes)
    elif _are_few(requests, plan, operands):
        with scope("engine", "differences"):
            return [sums_by_differences(x, *side) for x, side in zip(requests, sides(operands), strict=False)]
    elif plan.waves:
        summed = functools.partial(_by_waves, requests, plan, most, sizes)
    else:
        summed = scope("engine", "clusters")(functools.partial(anywhere_sums, requests))
    given = queries, keys, values, scale, row_weights, weights
    return _of_one_matrix(summed, *given) if as_one else one_by_one(summed, *given)


def _as_one_matrix(
    requests: Sequence[Request], queries: Any, keys: Any, values: Any, scale: Any, *weights: Any
) -> bool:
    """Whether the batch of the queries becomes more rows of one matrix, where it does not matter which row is which."""
    own = (queries, weights[0]) if requests[0].others else ()
    return shared(keys, values, scale, weights[1], *own)


def _of_one_matrix(summed: Callable[..., list[PairSums]], *operands: Any) -> list[PairSums]:
    """The sums of a batch of queries that share the keys, as more rows of one matrix."""
    queries, keys, values, scale, row_weights, weights = operands
    batch = np.broadcast_shapes(queries.shape[:-2], row_weights.shape[:-2])
    xp = np if isinstance(queries, np.ndarray) else jnp
    rows = (as_rows(xp.broadcast_to(x, (*batch, *x.shape[-2:]))) for x in (queries, row_weights))
    found = summed(next(rows), *map(as_rows, (keys, values, scale)), next(rows), as_rows(weights))
    at_queries, *at_keys = found
    at_queries = jax.tree.map(lambda x: x.reshape(*batch, len_of(queries), x.shape[-1]), at_queries)
    return [at_queries, *jax.tree.map(lambda x: with_rank(x, keys), at_keys)]


def _by_waves(requests: Sequence[Request], plan: Plan, most: int, sizes: Sizes, *operands: Array) -> list[PairSums]:
    """By as many waves as there may be: nothing waits to learn whether these are enough."""
    found = sums_of_sides(requests, most, plan, None, operands, sizes, box(*operands[:2]))
    return [x for x, _ in found]


def _ways(requests: Sequence[Request], plan: Plan, operands: Sequence[Array]) -> list[Callable[..., list[PairSums]]]:
    """The ways of `_sums_apart`, as far as they are known without the points."""
    most, _ = blocks_that_may_pay(requests, plan, *(operands[i] for i in (0, 1, 2, -1)))
    by_waves = [functools.partial(_in_xla, requests, replace(plan, waves=True))] if most else []
    by_tiles = [functools.partial(_in_xla, requests, replace(plan, waves=False))]
    return by_waves if plan.waves and most else by_waves + by_tiles


def blocks_that_may_pay(
    requests: Sequence[Request], plan: Plan, queries: Any, keys: Any, *values: Any, bandwidths: int = 1
) -> tuple[int, Sizes]:
    """The most blocks of waves that a coordinate may have, 0 if waves never pay; and the sizes."""
    pulls, channels = any(x.pulls.kernels for x in requests), max(x.shape[-1] for x in values)
    sizes = Sizes(
        len_of(queries), len_of(keys), keys.shape[-1], channels, bandwidths, pulls, on_cuda=plan.platform == "cuda"
    )
    if plan.waves is False or {GAUSS} != {y for x in requests for y in x.kernels}:
        return 0, sizes
    return at_most(sizes.dim, plan) if plan.by_waves else most_blocks(plan.precision, sizes), sizes


# What follows gets arrays of NumPy.


def _sums_apart(requests: Sequence[Request], plan: Plan, *operands: np.ndarray) -> list[PairSums]:
    return without_overflow(functools.partial(sums_by_points, requests, plan), *operands)


def sums_by_points(requests: Sequence[Request], plan: Plan, *operands: np.ndarray) -> list[PairSums]:
    """The sums of each matrix of a batch, by the way that its points need."""
    queries, keys, values, tau, row_weights, weights = operands
    scale = by_point(np.sqrt(tau)[...], queries)
    given = queries, keys, values, scale, row_weights, weights
    as_one = _as_one_matrix(requests, *given)
    rows = as_rows(queries) if as_one else queries
    most, sizes = blocks_that_may_pay(requests, plan, rows, keys, values, weights)
    if not most and _are_for_products(requests, plan, *operands):
        with jax.enable_x64(True):
            return _by_products(tuple(requests), *operands)
    if not most:
        return _batch_by_tiles(tuple(requests), TILES, *operands)
    of_matrix = functools.partial(_of_matrix, requests, plan, most, sizes)
    if as_one:
        return _of_one_matrix(of_matrix, *given)
    return in_turn(of_matrix, *given)


def in_turn(function: Callable[..., Any], *operands: np.ndarray) -> Any:
    """`one_by_one` of NumPy's arrays."""
    batch = np.broadcast_shapes(*(x.shape[:-2] for x in operands))
    found = [jax.tree.map(np.asarray, function(*x)) for x in matrices(batch, *operands)]
    return jax.tree.map(lambda *x: np.stack(x).reshape(*batch, *x[0].shape), *found)


def matrices(batch: tuple[int, ...], *operands: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
    """The matrices of each element of a batch."""
    every = [np.broadcast_to(x, (*batch, *x.shape[-2:])) for x in operands]
    return (tuple(x[i] for x in every) for i in np.ndindex(batch))


def _of_matrix(
    requests: Sequence[Request], plan: Plan, most: int, sizes: Sizes, *operands: np.ndarray
) -> list[PairSums]:
    queries, keys, _, scale, *_ = operands
    tau = tau_of(scale)

    def by_tiles() -> list[PairSums]:
        return _batch_by_tiles(tuple(requests), TILES, *operands[:3], tau, *operands[4:])

    def of_rows(request: Request, side: Sequence[np.ndarray], some: np.ndarray, are_many: bool) -> PairSums:
        queries, keys, values, _, row_weights, weights = side
        if are_many and request.others:  # tiles leave out pairs of all queries
            every = _batch_by_tiles((request,), TILES, queries, keys, values, tau, row_weights, weights)[0]
            return jax.tree.map(lambda x: np.asarray(x)[some], every)
        given = queries[some], keys, values, tau, row_weights[some], weights
        if are_many:
            return _batch_by_tiles((request,), TILES, *given)[0]
        return _rows_by_differences(request, *given, of_rows=some[:, None].astype("int32"))

    does, around = waves_pay_here(plan, most, plan.precision, sizes, scale, queries, keys)
    if not does:
        return by_tiles()
    each = [functools.partial(of_rows, *x) for x in zip(requests, sides(operands), strict=False)]
    return doubt_resolved(*waves_of_matrix(requests, plan, most, sizes, around, None, *operands), each, by_tiles)


def _are_for_products(requests: Sequence[Request], plan: Plan, *operands: np.ndarray) -> bool:
    """Whether points are few, and products about one center in float64 have all digits of float32."""
    queries, keys, _, tau, *_ = operands
    if queries.dtype != "float32" or any(x.kinked for x in requests) or not _are_few(requests, plan, operands):
        return False
    ends = [f(x, axis=(*range(x.ndim - 1),)) for x in (queries, keys) for f in (np.max, np.min)]
    extent = np.maximum(ends[0], ends[2]) - np.minimum(ends[1], ends[3])
    return bool(np.square(by_point(np.sqrt(tau)[...], queries) * extent).sum(-1).max() <= REACH)


@functools.partial(jax.jit, static_argnums=0)
def _by_products(requests: Sequence[Request], *operands: Array) -> list[PairSums]:
    both = sides([x.astype("float64") for x in operands])
    found = [sums_by_products(x, *side, dense=True) for x, side in zip(requests, both, strict=False)]
    return jax.tree.map(lambda x: x.astype("float32"), found)


TILES = Plan("cpu", AUTO, "", waves=False)
_batch_by_tiles = jax.jit(_by_shapes, static_argnums=(0, 1))
_rows_by_differences = jax.jit(sums_by_differences, static_argnums=0)


def waves_of_matrix(
    requests: Sequence[Request],
    plan: Plan,
    most: int,
    sizes: Sizes,
    around: Box,
    shares: np.ndarray | None,
    *operands: np.ndarray,
) -> tuple[list[PairSums], list[Doubt]]:
    """The sums of a matrix by waves, and the queries in doubt: by waves in float64 if that mends many of these.

    Pulls are in float64 already, and of several Gaussians each may be summed by waves of its own.
    """
    promise = None if plan.by_waves and not requests[0].others else SUMS[plan.precision]
    found, doubt = _waves(tuple(requests), most, plan, promise, operands, sizes, around, shares)
    share = max(float(np.asarray(x).mean()) for x in doubt)
    if promise is None or plan.precision != "float32" or sizes.pulls or sizes.bandwidths > 1 or not share:
        return found, doubt
    queries, keys, _, scale, *_ = operands
    if (finer := finer_waves(plan, sizes, share, scale, queries, keys)) is None:
        return found, doubt
    with jax.enable_x64(True):
        most, around = finer
        given = [x.astype("float64") for x in operands]
        found, doubt = _waves(tuple(requests), most, plan, promise, given, sizes, around, shares)
    return jax.tree.map(lambda x: np.asarray(x, plan.precision), found), doubt


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3, 5))
def _waves(request: Any, most: int, plan: Plan, promise: Promise | None, operands: Any, sizes: Sizes, *of: Any) -> Any:
    found = sums_of_sides(request, most, plan, promise, operands, sizes, *of)
    return [x for x, _ in found], [x for _, x in found]
