"""The engine of softmax means and logarithms in XLA: in two passes, in one, or for points that lie anywhere.

For points that lie anywhere, exponents are float64, because weights are made of their differences; tiles that are near
their own center need fewer digits. The nearest tiles of sorted points come first, and tiles that can no longer change
a row are skipped. On CUDA see `cuda_tiles`.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from .._arrays.devices import has_cuda, vary_like
from .._arrays.exponential import exp
from .._arrays.points import (
    BASE_2,
    LOG_ZERO,
    Scaled,
    difference_logits,
    dot,
    least_log,
    logit_factors,
    logits,
    scaled_points,
    squared_distances_of,
    squares_factors,
    with_axes_of,
    with_norms,
)
from .._arrays.shapes import K, L, Q, S, T, V, W
from .._kernels.kernels import GAUSS, Kernel
from .apart import apart
from .clusters.leaves import in_given_order, in_leaves, leaf_order, ranges_of, squared_gaps
from .clusters.sorted_tiles import sorts
from .differences.cuda_tiles import relative_means
from .far import in_program, in_turn
from .fourier.boxes import Box, box
from .fourier.cost import Sizes, doubt_resolved, most_blocks, waves_pay_here
from .fourier.sums import LOGS, sums_by_waves, wave_grid
from .plan import NEAR, STRICTER, Plan
from .products.gaussian import scaled_sum
from .request import NOTHING, Channels, Request, differ, indices
from .scopes import scope
from .tiles import (
    DIFFERENCES_TILE,
    TILE,
    blocks,
    by_parts_of_batch,
    one_by_one,
    scan,
    tiled_means,
    unblocks,
)

LEAST = 2.0**-100  # a larger sum has lost only negligible terms
SOME_KEYS = 64  # keys whose exponents are formed first: a percent of a pass over thousands
LARGER = 20.0  # logarithm of the largest weight over the second, up to which sums are relative to the largest
FEW_ROWS = 8  # rows of a tile that may be far from its center and are summed by themselves
ROWS, COLUMNS = 1024, 512  # of a tile of sorted points
# R² of a tile up to which a product in float64 gives float32's digits of u; far less with a kink, for functions of √u.
REACH = {False: 2.0**33, True: 2.0**16}
SHARE = 1 / 16  # the least part of ‖a‖² + ‖b‖², beyond what near points have, of which a product has float64's digits


def blocked_means(
    queries: Q, keys: K, values: V, tau: T, log_weights: W, *, dense: bool = False, others: Array | None = None
) -> tuple[S, L]:
    """Σ_n w Φ v / Σ_n w Φ and log Σ_n w Φ, from terms relative to the largest so far."""
    a, b = scaled_points(queries, keys, tau, base_2=False)
    a, b = logit_factors(*with_norms(a, b))
    of_batch = functools.partial(tiled_means, logits, dense=dense, others=others)
    return by_parts_of_batch(of_batch, a, b, values, log_weights)


def means_in_one_pass(
    a: Scaled, b: Scaled, queries: Q, keys: K, values: V, tau: T, log_weights: W, *, is_apart: bool
) -> tuple[S, L]:
    """`blocked_means` as one sum of terms relative to a large one of the row; in two passes if that overflows.

    It takes the scaled points as well. The large one is the largest of the term of the key with the row's index,
    perhaps the same point, and those of 64 other keys. So no sum is below one, and a term more than 2¹²⁷ times as large
    shows, because its sum is infinite.
    """
    b = _weighted(b, norms=b.norms - 2 * BASE_2 * log_weights)
    large = _large_logit(*logit_factors(a, b))
    sums = scaled_sum(_weighted(a, norms=a.norms + 2 * large), b, _with_ones(values))
    operands = queries, keys, values, tau, log_weights

    def in_two_passes(found: tuple[S, L]) -> tuple[S, L]:
        if not is_apart:
            return blocked_means(*operands)
        return apart(_in_two_passes, (), found, *operands, ways=lambda: [blocked_means])

    return _means_of(sums, large, in_two_passes)


def _in_two_passes(*operands: np.ndarray) -> tuple[S, L]:
    return jax.jit(blocked_means)(*operands)


def _with_ones(values: V) -> Float[Array, "*#batch n one_more"]:
    return jnp.concatenate([values, jnp.ones_like(values, shape=(*values.shape[:-1], 1))], -1)


def _means_of(sums: S, large: L, otherwise: Callable[[tuple[S, L]], tuple[S, L]]) -> tuple[S, L]:
    """Means and logarithms from sums of values and of ones relative to a large term; `otherwise` if they overflow."""
    total = sums[..., -1:]
    found = sums[..., :-1] / total, (large + jnp.log2(total)) / BASE_2
    is_there = jnp.isfinite(sums).all(-1, keepdims=True) & (total > LEAST)
    return lax.cond((is_there | jnp.isnan(total)).all(), lambda found: found, otherwise, found)


def _large_logit(a: Array, b: Array) -> Float[Array, "*batch m 1"]:
    """The largest exponent of each row, from factors, among the key of the row's index and some other keys."""
    num_queries, num_keys = a.shape[-2], b.shape[-2]
    some, num = b[..., :: -(-num_keys // SOME_KEYS), :], min(num_queries, num_keys)
    row_blocks = blocks(a, min(num_queries, TILE.rows))
    largest = scan(lambda _, rows: (None, logits(rows, some).max(-1, keepdims=True)), None, row_blocks)[1]
    own = (a[..., :num, :] * b[..., :num, :]).sum(-1, keepdims=True)
    padding = [(0, 0)] * (own.ndim - 2) + [(0, num_queries - num), (0, 0)]
    return jnp.maximum(unblocks(largest, num_queries), jnp.pad(own, padding, constant_values=LOG_ZERO))


def _weighted(x: Scaled, norms: Array) -> Scaled:
    """The points with other norms, broadcast to one batch."""
    batch = jnp.broadcast_shapes(*(y.shape[:-2] for y in (x.points, norms)))
    return Scaled(*(jnp.broadcast_to(y, (*batch, *y.shape[-2:])) for y in (x.points, norms)))


def means_anywhere(
    kernel: Kernel, plan: Plan, queries: Q, keys: K, values: V, tau: T, log_weights: W, *, others: bool = False
) -> tuple[S, L]:
    """Σ_n w κ v / Σ_n w κ and log Σ_n w κ of a positive kernel and operands of equal rank; it has no derivatives.

    Values without columns, where logarithms alone are needed, take less time. With `others`, pairs of equal index are
    left out.
    """
    operands, options = (queries, keys, values, tau, log_weights), (kernel, others, plan.bare())
    if plan.platform == "cuda":
        return relative_means(kernel, *operands, others=others)
    if in_program(plan, queries, keys):
        return _in_float64(_by_shapes, (kernel, others, plan), *operands)
    batch = jnp.broadcast_shapes(tau.shape, *(x.shape[:-2] for x in (queries, keys, values, log_weights)))
    shapes = tuple(
        jax.ShapeDtypeStruct((*batch, queries.shape[-2], width), queries.dtype) for width in (values.shape[-1], 1)
    )
    ways = functools.partial(_ways, (kernel, others, plan), queries, keys, values)
    return apart(_means_apart, options, shapes, *operands, ways=ways)


def _in_float64(function: Callable, options: tuple[Kernel, bool, Plan], *operands: Array) -> tuple[S, L]:
    """The function of operands in float64, in JAX's 64-bit mode; its results in their dtype."""
    with jax.enable_x64(True):
        means, logs = function(*options, *(x.astype("float64") for x in operands))
        return means.astype(operands[0].dtype), logs.astype(operands[0].dtype)


def _by_shapes(kernel: Kernel, others: bool, plan: Plan, *operands: Array) -> tuple[S, L]:
    queries, keys, values, tau, log_weights = operands
    if not sorts(plan, queries.shape[-2], *keys.shape[-2:]):
        return difference_means(kernel, *operands, others=indices(queries.shape[-2]) if others else None)
    by_tiles = scope("engine", "clusters")(functools.partial(_sorted_means, kernel, others, plan.precision))
    return one_by_one(by_tiles, queries, keys, values, tau[..., None, None], log_weights)


def difference_means(
    kernel: Kernel, queries: Q, keys: K, values: V, tau: T, log_weights: W, *, others: Array | None = None
) -> tuple[S, L]:
    """`means_anywhere` from differences of coordinates; made of plain JAX functions.

    `others`: indices (M, 1) of the queries, which are keys; pairs of equal index are left out.
    """
    if has_cuda():
        return relative_means(kernel, queries, keys, values, tau, log_weights, others=others is not None)
    scale = jnp.sqrt(tau)[..., None, None]

    def tile_logits(queries: Array, keys: Array) -> Array:
        return kernel.log(-2 * difference_logits(scale, queries, keys))

    operands = with_axes_of(tau, queries), keys, values, log_weights
    return tiled_means(tile_logits, *operands, tile=DIFFERENCES_TILE, others=others)


def _ways(
    options: tuple[Kernel, bool, Plan], queries: Array, keys: Array, values: Array
) -> list[Callable[..., tuple[S, L]]]:
    """The ways of `_means_apart`, as far as they are known without the points."""
    kernel, _, plan = options
    most, _ = _blocks_that_may_pay(kernel, plan, queries, keys, values)
    ways = [_by_waves] * (most > 0) + [_by_shapes] * (not (plan.waves and most))
    return [functools.partial(_in_float64, way, options) for way in ways]


def _by_waves(kernel: Kernel, others: bool, plan: Plan, *operands: Array) -> tuple[S, L]:
    queries, keys, values, tau, log_weights = operands
    most, sizes = _blocks_that_may_pay(kernel, plan, queries, keys, values)

    def of_matrix(*operands: Array) -> tuple[S, L]:
        return _waves_of_matrix(most, plan, others, sizes, box(*operands[:2]), *operands)[0]

    return one_by_one(of_matrix, queries, keys, values, tau[..., None, None], log_weights)


def _blocks_that_may_pay(kernel: Kernel, plan: Plan, queries: Any, keys: Any, values: Any) -> tuple[int, Sizes]:
    sizes = Sizes(queries.shape[-2], keys.shape[-2], keys.shape[-1], 1 + values.shape[-1])
    return (most_blocks("float64", sizes) if kernel == GAUSS and plan.waves is not False else 0), sizes


def _means_apart(kernel: Kernel, others: bool, plan: Plan, *operands: np.ndarray) -> tuple[S, L]:
    """The means and logarithms of NumPy's arrays, for each element of a batch by the way that its points need."""
    queries, keys, values, tau, log_weights = (x.astype("float64") for x in operands)
    most, sizes = _blocks_that_may_pay(kernel, plan, queries, keys, values)
    with jax.enable_x64(True):
        if not most:
            return _batch_by_tiles(kernel, others, plan, queries, keys, values, tau, log_weights)
        of_matrix = functools.partial(_of_matrix, kernel, others, plan, most, sizes)
        return in_turn(of_matrix, queries, keys, values, tau[..., None, None], log_weights)


def _of_matrix(kernel: Kernel, others: bool, plan: Plan, most: int, sizes: Sizes, *operands: np.ndarray) -> tuple[S, L]:
    queries, keys, values, tau, log_weights = operands

    def by_tiles(some: Any = slice(None)) -> list[tuple[S, L]]:
        return [_batch_by_tiles(kernel, others, plan, queries[some], keys, values, tau[0, 0], log_weights)]

    def of_rows(some: np.ndarray, are_many: bool) -> tuple[S, L]:
        if are_many and others:  # tiles leave out pairs of all queries
            return jax.tree.map(lambda x: x[some], by_tiles()[0])
        if are_many:
            return by_tiles(some)[0]
        given, i = (queries[some], keys, values, tau[0, 0], log_weights), some[:, None].astype("int32")
        return _rows_by_differences(kernel, *given, others=i if others else None)

    does, around = waves_pay_here(plan, most, "float64", sizes, np.sqrt(tau), queries, keys)
    if not does:
        return by_tiles()[0]
    found, doubt = _waves_of_matrix(most, plan, others, sizes, around, *operands)
    return doubt_resolved([found], [doubt], [of_rows], by_tiles)[0]


_batch_by_tiles = jax.jit(_by_shapes, static_argnums=(0, 1, 2))
_rows_by_differences = jax.jit(difference_means, static_argnums=0)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _waves_of_matrix(
    most: int, plan: Plan, others: bool, sizes: Sizes, around: Box, *operands: Array
) -> tuple[tuple[S, L], Array]:
    """The means and logarithms of a matrix by waves, and the queries in doubt."""
    queries, keys, values, tau, log_weights = operands
    scale, promise, largest = jnp.sqrt(tau), LOGS[plan.precision], log_weights.max()
    of = wave_grid(most, plan, promise, scale, sizes, around)
    weights = jnp.exp(log_weights - largest)
    columns = jnp.concatenate([weights, weights * values], 1)
    request = Request(Channels((GAUSS,), columns.shape[1:]), NOTHING, others=others)
    with scope("waves", "float64", most, 1, *sizes):
        found, doubt = sums_by_waves(request, of, promise, queries, keys, columns, scale, queries[:, :0], keys[:, :0])
    total = found.sums[:, :1]
    return (found.sums[:, 1:] / total, largest + jnp.log(total)), doubt


def _sorted_means(
    kernel: Kernel,
    others: bool,
    digits: str,
    queries: Float[Array, "m d"],
    keys: Float[Array, "n d"],
    values: Float[Array, "n c"],
    tau: Float[Array, "1 1"],
    log_weights: Float[Array, "n 1"],
) -> tuple[Float[Array, "m c"], Float[Array, "m 1"]]:
    """Means and logarithms by tiles of sorted points; operands in float64, weights in the dtype `digits`."""
    i, j = leaf_order(queries, ROWS), leaf_order(keys, COLUMNS)
    scale, rows, points = jnp.sqrt(tau), in_leaves(queries, i, None), in_leaves(keys, j, None)
    weights = in_leaves(log_weights, j, least_log(log_weights.dtype))
    columns = points, in_leaves(_with_ones(values), j), weights, j[..., None]
    bounds = _bounds(kernel, scale, rows, points) + weights.max((1, 2))[None]
    rest = jnp.log(float(len(keys))) - math.log(float(jnp.finfo(digits).eps)) + 1
    all_digits, reach = digits == "float64", REACH[kernel.kinked]
    near = NEAR[digits] / STRICTER if kernel.decays and not kernel.kinked and not all_digits else 0

    def of_block(block: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        queries, indices, bounds = block
        order = jnp.argsort(-bounds)

        def goes_on(state: tuple[Array, ...]) -> Array:
            num, largest, *_ = state
            least = jnp.where(jnp.isnan(largest), jnp.inf, largest).min() - rest
            return (num < len(bounds)) & ~(bounds[order[jnp.minimum(num, len(bounds) - 1)]] < least)

        def add(state: tuple[Array, ...]) -> tuple[Array, ...]:
            num, largest, *sums = state
            keys, values, log_weights, of_keys = (x[order[num]] for x in columns)
            c = _medoid(keys)
            a, b = with_norms(*((x - c) * scale for x in (queries, keys)))
            factors, size = squares_factors(a, b), jnp.maximum(a.norms.max(), b.norms.max())

            def kept(tile: Array, fill: float, some: Any = slice(None)) -> Array:
                """The tile of some rows, with `fill` for pairs of equal index if these are left out."""
                return jnp.where(differ(indices[some], of_keys), tile, fill) if others else tile

            def of_largest(u: Array, some: Any = slice(None)) -> tuple[Array, ...]:
                """The largest exponent of each row, and the sums of terms relative to it."""
                logits = kept(kernel.log(u) + (log_weights - most).T, least_log(u.dtype), some)
                own = logits.max(-1, keepdims=True)
                return own + most, *summed(exp((logits - own).astype(digits)), jnp.ones_like(log_weights))

            def summed(weights: Array, of_keys: Array) -> tuple[Array, Array]:
                """The sums of ones, and of values in float64, because means may cancel."""
                total = dot(weights, of_keys.astype(digits)).astype(values.dtype)
                return total, dot(weights.astype(values.dtype), of_keys * values)

            most, is_accurate = log_weights.max(), size <= reach
            product = functools.partial(squared_distances_of, *factors)
            if all_digits:  # the product itself decides, wherever the points lie
                u = product()
                beyond = a.norms + b.norms.mT - (0 if kernel.kinked else NEAR[digits])
                is_accurate, product = (kept(u, jnp.inf) >= SHARE * beyond).all(), lambda: u
            way = jnp.where(is_accurate, 0, 1)  # NaN goes to differences
            ways = [
                lambda: of_largest(product()),
                lambda: of_largest(-2 * difference_logits(scale, queries, keys)),
            ]
            if near:
                # `least`: a lower bound of the largest term of every near query. `of_far`, `of_nearest`: upper bounds
                # of the terms of each far key, and of each query.
                is_far, beyond = b.norms > near, jnp.sqrt(a.norms) - jnp.sqrt(b.norms.max())
                of_near = jnp.where(is_far, LOG_ZERO, log_weights)
                most_near, second = of_near.max(), _second_largest(of_near) if others else of_near.max()
                least = kernel.log(jnp.full((), 4.0 * near)) + second  # the largest may be the query's own
                of_far = kernel.log(jnp.square(jnp.maximum(jnp.sqrt(b.norms) - near**0.5, 0))) + log_weights
                of_nearest = kernel.log(jnp.square(jnp.maximum(beyond, 0))) + most
                counts = ~(of_nearest < largest - rest)  # true for NaN
                far = counts & (a.norms > near)
                _, few = lax.top_k(jnp.where(far, a.norms, 0)[:, 0].astype("float32"), min(FEW_ROWS, len(queries)))
                knows = (~is_far | (of_far < least - rest)).all() & (far.sum() <= FEW_ROWS)
                knows &= most_near - second < LARGER
                way = jnp.where(knows & (jnp.where(far, a.norms, 0).max() <= reach) & (b.norms.max() <= reach), 2, way)

                def near_one_another() -> tuple[Array, ...]:
                    """Sums by products in `digits`, relative to the largest near weight; far queries in float64."""
                    kappa = kept(kernel(squared_distances_of(*(x.astype(digits) for x in factors))), 0)
                    found = summed(kappa, jnp.where(is_far, 0, jnp.exp(log_weights - most_near)))
                    of_few = of_largest(squared_distances_of(factors[0][few], factors[1]), few)
                    of_all = jnp.where(counts, most_near, largest), *(jnp.where(counts, x, 0) for x in found)
                    return tuple(x.at[few].set(y) for x, y in zip(of_all, of_few, strict=True))

                ways.append(near_one_another)
            own, *found = lax.switch(way, ways)
            new = jnp.maximum(largest, own)
            before, now = jnp.exp(largest - new), jnp.exp(own - new)
            return num + 1, new, *(x * before + y * now for x, y in zip(sums, found, strict=True))

        none = (
            jnp.zeros((), "int32"),
            jnp.full((len(queries), 1), least_log(queries.dtype)),
            *(jnp.zeros((len(queries), width)) for width in (1, values.shape[1] + 1)),
        )
        with scope("steps", len(points)):
            begun = jax.tree.map(lambda x: vary_like(x, [queries, bounds, *columns]), none)
            _, largest, total, sums = lax.while_loop(goes_on, add, begun)
        return sums[:, :-1] / sums[:, -1:], largest + jnp.log(total)

    return in_given_order(lax.map(of_block, (rows, i[..., None], bounds)), i, len(queries))


def _second_largest(x: Array) -> Array:
    return jnp.where((x == x.max()).sum() > 1, x.max(), jnp.where(x < x.max(), x, LOG_ZERO).max())


def _medoid(keys: Float[Array, "n d"]) -> Float[Array, "1 d"]:
    """The most central of eight of the keys: neither an outlier nor a point between two clusters."""
    some = keys[:: -(-len(keys) // 8)]
    distances = jnp.sqrt(jnp.square(some[:, None] - some[None]).sum(-1)).sum(1).astype("float32")  # see `_middle`
    return some[lax.argmin(jnp.where(jnp.isnan(distances), jnp.inf, distances), 0, "int32")][None]


def _bounds(kernel: Kernel, scale: Array, rows: Float[Array, "r m d"], columns: Float[Array, "c n d"]) -> Array:
    """An upper bound of log κ for each pair of tiles (rows, columns); infinite if the kernel may not decay."""
    gaps = squared_gaps(scale, ranges_of(rows), ranges_of(columns))
    return kernel.log(gaps) if kernel.decays else jnp.full_like(gaps, jnp.inf)
