"""Differences on CUDA: every pair from differences of its coordinates, in reductions that XLA fuses.

Every pair takes the same way, and none is skipped: no program depends on where the points lie. Each coordinate of the
points is an array of its own, so that a loop reads it where it lies, and neighboring threads take neighboring points.
Sums over up to `WRITTEN` coordinates and channels are written out: a step is then one kernel, which holds no pair in
memory. More coordinates are summed by eights: XLA would compile a reduction over all of them for minutes.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from ..._arrays.custom_rule import with_pullback
from ..._arrays.devices import vary_like
from ..._arrays.points import FARTHEST, LOG_ZERO, cut_off, dot, unit_and_ratio, with_axes_of, with_rank
from ..._arrays.shapes import G, K, L, Q, S, T, V, W
from ..._kernels.kernels import GAUSS, Kernel
from ..request import Channels, PairSums, Request, differ, indices
from ..tiles import CUDA_TILE, Tile, block_sizes, blocks, scan, tiled_sum, unblocks
from .tile_sums import largest_coordinate

CUT_OFF = FARTHEST**0.5  # bandwidths, of a coordinate
WRITTEN, GROUP = 16, 8  # coordinates of which each is an array, and how many of more are one
ONCE = 32  # coordinates from which distances take longer than to transpose them
# For 65536 points 16 steps of one kernel, which holds no pair in memory; or with pulls 256, of which each holds 64 MiB.
SUMS_TILE, PULLS_TILE = Tile(2**28, 2**16, 4096, 2**28), Tile(2**24, 2**16, 256, 2**24)
STEEP = 2.0**40  # the largest √τ at which squares of unscaled differences keep their digits

Rows: TypeAlias = tuple[Array, ...]  # (*batch, 1 or 8, N): coordinates or channels of points, see `in_rows`


def sums_on_cuda(request: Request, queries: Q, keys: K, values: V, tau: T, row_weights: G, weights: W) -> PairSums:
    """`PairSums` of all pairs; made of plain JAX functions with derivatives of every order."""
    _, scale, ratio = unit_and_ratio(tau, queries)
    power, scale, queries, keys = _in_units(scale, queries, keys)
    dim = queries.shape[-1]

    def tile_sum(rows: tuple[Any, ...], columns: tuple[Any, ...], values: Rows) -> PairSums:
        (a, g, i), (b, w, j) = rows, columns
        keep = differ(i[0].mT, j[0].mT) if request.others else None
        found = _tile(request, in_rows(scale, 1), ratio, a, g, b, w, values, keep)
        return PairSums(*(x[..., :width, :].mT for x, width in zip(found, widths, strict=True)))

    widths = request.widths(dim, scale.shape[-1])
    i, j = (request.indices(x.shape[-2]) for x in (queries, keys))
    rows, columns = (with_axes_of(tau, queries), row_weights, i), (keys, weights, j)
    tile = _tile_for(max(dim, weights.shape[-1]), sum(widths))
    found = tiled_sum(tile_sum, rows, columns, values, tile=tile, laid=in_rows)
    pulls = found.pulls / power if request.pulls.kernels else found.pulls
    return PairSums(found.sums, pulls, found.spread / jnp.square(power) if request.spread else found.spread)


def _tile_for(dim: int, num_sums: int) -> Tile:
    """The tile for so many sums over keys. For one XLA computes each pair as it adds it; for more it writes a tile."""
    if dim > WRITTEN:
        return CUDA_TILE
    return SUMS_TILE if num_sums == 1 else PULLS_TILE


def _in_units(scale: Array, queries: Array, keys: Array) -> tuple[Array, Array, Array, Array]:
    """A power of two p, √τ / p, and the points times p: differences of these are as exact, and do not overflow.

    p is one for usual τ. It keeps squares of differences from overflow at a small τ, and from underflow at a large one.
    """
    rounded = lax.reduce_precision(lax.stop_gradient(scale), jnp.finfo(scale.dtype).nexp, 0)
    power = with_rank(jnp.minimum(rounded, 1) * jnp.maximum(rounded / STEEP, 1), queries)
    most = largest_coordinate(scale.dtype)
    q, k = (jnp.clip(power * x, -most, most) for x in (queries, keys))  # a weight of 0 then makes a difference 0
    return power, scale / power, q, k


def in_rows(x: Array, fill: float = 0.0) -> Rows:
    """(…, N, W) -> W arrays (…, 1, N); of more columns than `WRITTEN`, filled up, arrays (…, 8, N)."""
    width, in_memory = x.shape[-1], lax.optimization_barrier
    if width <= 1:
        return (x.mT,)
    if width <= WRITTEN:
        return in_memory(tuple(part.mT for part in jnp.split(x, width, -1)))
    x = in_memory(jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -width % GROUP)], constant_values=fill).mT)
    return tuple(jnp.split(x, x.shape[-2] // GROUP, -2))


def _tile(
    request: Request, scale: Rows, ratio: Array, a: Rows, g: Rows, b: Rows, w: Rows, values: Rows, keep: Array | None
) -> tuple[Array, ...]:
    """The sums, pulls and spread (*batch, ·, M) of a tile of queries a, with weights g, and keys b, with weights w."""
    once = request.at_keys and sum(x.shape[-2] for x in a) >= ONCE  # as at the queries: XLA then computes u once
    u = squared_distances(scale, b, a).mT if once else squared_distances(scale, a, b)
    of_kernels, sums, spread = request.of(ratio * u, keep), [], []
    for kernel, own in zip(request.sums.kernels, _of_kernels(request.sums, values), strict=True):
        sums += _sums_over(of_kernels[kernel], own)
    weights, sides = jnp.zeros_like(u), (_of_kernels(request.pulls, x) for x in (g, w))
    for kernel, *own in zip(request.pulls.kernels, *sides, strict=True):
        weights += of_kernels[kernel.slope] * _products_of_channels(*own)
    batch = weights.shape[:-2]
    a, b = (tuple(jnp.broadcast_to(x, (*batch, *x.shape[-2:])) for x in rows) for rows in (a, b))
    if request.spread and len(scale) > 1:
        squares = (jnp.square(_difference(*x)) for x in zip(a, b, strict=True))
        spread = [(weights[..., None, :, :] * x).sum(-1) for x in squares]
    elif request.spread:
        spread = [(weights * u).sum(-1)[..., None, :] / jnp.square(*scale)]
    none = jnp.zeros((*batch, 0, u.shape[-2]), u.dtype)
    pulled = pulls(weights, a, b) if request.pulls.kernels else ()
    return tuple(jnp.concatenate(x, -2) if x else none for x in (sums, pulled, spread))


def _sums_over(tile: Array, values: Rows) -> list[Array]:
    """Σ_n of a tile (*batch, M, N) and values, as arrays of channels (*batch, ·, M)."""
    return [(tile * v).sum(-1)[..., None, :] if v.shape[-2] == 1 else dot(v, tile.mT) for v in values]


def _of_kernels(channels: Channels, rows: Rows) -> list[Rows]:
    """The channels of each kernel: arrays of one, or one array of many."""
    ends = [sum(channels.widths[: i + 1]) for i in range(len(channels.widths))]
    own = [slice(end - width, end) for end, width in zip(ends, channels.widths, strict=True)]
    if not rows or rows[0].shape[-2] == 1:
        return [rows[x] for x in own]
    whole = jnp.concatenate(rows, -2)
    return [(whole[..., x, :],) for x in own]


def _products_of_channels(g: Rows, w: Rows) -> Array:
    """⟨g_m, w_n⟩, (*batch, M, N)."""
    products = (x.mT * y if x.shape[-2] == 1 else dot(x.mT, y) for x, y in zip(g, w, strict=True))
    return functools.reduce(jnp.add, products)


# Sums over coordinates or over keys. The derivatives of each are made of the others, so that no order of derivatives
# holds an array of M N D numbers. With a cotangent W, and b a constant,
#
#     P = Σ_d s² (k - b)((k - q) + (b - q)):    dq_m = -2 s² Σ_n W (k_n - b_m)    dk_n = 2 s² Σ_m W (k_n - q_m)
#
# For b = q this is u, with the same rule. But then b is no constant to the next derivative: u has its own function.


def squared_distances(scale: Rows, q: Rows, k: Rows) -> Array:
    """The u of all pairs, (*batch, M, N); `scale` is √τ, one number or one for each coordinate."""
    return jnp.minimum(_squares(*_of_one_batch(scale, q, k)), FARTHEST)


def products_of_differences(scale: Rows, q: Rows, b: Rows, k: Rows) -> Array:
    """Σ_d s² (k_n - b_m)((k_n - q_m) + (b_m - q_m)), (*batch, M, N), for a constant b."""
    return _products(*_of_one_batch(scale, q, b, k))


def _of_one_batch(*operands: Rows) -> list[Rows]:
    batch = jnp.broadcast_shapes(*(x[0].shape[:-2] for x in operands))
    return [tuple(jnp.broadcast_to(x, (*batch, *x.shape[-2:])) for x in rows) for rows in operands]


def _squares_of_one_batch(scale: Rows, q: Rows, k: Rows) -> Array:
    if len(scale) > 1:
        return _added(_scaled_square, scale, q, k)
    return jnp.square(*scale) * _added(lambda q, k: jnp.square(_difference(q, k)), q, k)


def _products_of_one_batch(scale: Rows, q: Rows, b: Rows, k: Rows) -> Array:
    return _added(_scaled_product, scale, q, b, k)


def _scaled_square(scale: Array, q: Array, k: Array) -> Array:
    return jnp.square(scale[..., None] * _difference(q, k))


def _scaled_product(scale: Array, q: Array, b: Array, k: Array) -> Array:
    scale = scale[..., None]
    factors = scale * _difference(b, k), scale * (_difference(q, k) + (b - q)[..., None])
    # not by `jnp.clip`: where tiles are differentiated twice, JAX 0.10.2 gives its constants to the rule as operands
    first, second = (jnp.maximum(jnp.minimum(x, CUT_OFF), -CUT_OFF) for x in factors)
    return first * second


def _squares_backward(operands: tuple[Rows, ...], weights: Array) -> tuple[Rows, ...]:
    scale, q, k = operands
    return _gradients(weights, _scaled_square, operands, scale, q, q, k)


def _products_backward(operands: tuple[Rows, ...], weights: Array) -> tuple[Rows, ...]:
    d_scale, d_queries, d_keys = _gradients(weights, _scaled_product, operands, *operands)
    return d_scale, d_queries, tuple(map(jnp.zeros_like, operands[2])), d_keys


def _gradients(
    weights: Array, term: Callable, operands: tuple[Rows, ...], scale: Rows, q: Rows, b: Rows, k: Rows
) -> tuple[Rows, Rows, Rows]:
    """Those of √τ, queries and keys, from the terms of the sums, of the operands of each coordinate."""
    pulled = pulls(weights, b, k), pulls(weights.mT, k, q)
    d_queries, d_keys = (tuple(-2 * jnp.square(s) * x for s, x in _aligned(scale, rows)) for rows in pulled)
    if len(scale) > 1:
        sums = [(weights[..., None, :, :] * term(*x)).sum((-2, -1))[..., None] for x in _aligned(*operands)]
    else:
        sums = [(weights * _added(term, *operands)).sum((-2, -1), keepdims=True)]
    return tuple(2 / s * x for s, x in zip(scale, sums, strict=True)), d_queries, d_keys


def _pulls(weights: Array, a: Rows, b: Rows) -> Rows:
    """Σ_n W (b_n - a_m), (*batch, D, M), from arrays of one batch."""
    return tuple((weights[..., None, :, :] * _difference(*x)).sum(-1) for x in zip(a, b, strict=True))


def _inner_products(g: Rows, a: Rows, b: Rows) -> Array:
    """Σ_d g_m (b_n - a_m), (*batch, M, N), from arrays of one batch."""
    return _added(lambda g, a, b: g[..., None] * _difference(a, b), g, a, b)


def _pulls_backward(operands: tuple[Array, Rows, Rows], g: Rows) -> tuple[Array, Rows, Rows]:
    weights, a, b = operands
    total = weights.sum(-1)[..., None, :]
    return _inner(g, a, b), tuple(-x * total for x in g), _products_of_rows(g, weights)


def _inner_backward(operands: tuple[Rows, Rows, Rows], weights: Array) -> tuple[Rows, ...]:
    g, a, b = operands
    total = weights.sum(-1)[..., None, :]
    return pulls(weights, a, b), tuple(-x * total for x in g), _products_of_rows(g, weights)


def _products_of_rows(g: Rows, weights: Array) -> Rows:
    """Σ_m g_m W of all coordinates."""
    return tuple(jnp.split(dot(jnp.concatenate(g, -2), weights), len(g), -2))


_squares = with_pullback(_squares_of_one_batch, 0, _squares_backward)
_products = with_pullback(_products_of_one_batch, 0, _products_backward)
pulls = with_pullback(_pulls, 0, _pulls_backward)
_inner = with_pullback(_inner_products, 0, _inner_backward)


def _added(term: Callable[..., Array], *rows: Rows) -> Array:
    """Σ_d of terms (*batch, 1 or 8, M, N) of all coordinates."""
    return functools.reduce(jnp.add, (term(*x) for x in _aligned(*rows))).sum(-3)


def _aligned(*rows: Rows) -> list[tuple[Array, ...]]:
    """The arrays of each coordinate; what has only one array has that for all coordinates."""
    num = max(map(len, rows))
    return list(zip(*(x * num if len(x) == 1 else x for x in rows), strict=True))


def _difference(a: Array, b: Array) -> Array:
    """b_n - a_m, (*batch, 1 or 8, M, N)."""
    return b[..., None, :] - a[..., :, None]


class Largest(NamedTuple):
    """The largest term of each query: its logarithm, that of its weight (…, M, 1), and its key (…, M, D)."""

    log: Array
    log_weight: Array
    key: Array


def relative_means(
    kernel: Kernel, queries: Q, keys: K, values: V, tau: T, log_weights: W, *, others: bool = False
) -> tuple[S, L]:
    """Σ_n w κ v / Σ_n w κ and log Σ_n w κ of a positive kernel; made of plain JAX functions.

    With `others`, pairs of equal index are left out. Terms are relative to the largest of the query. For a Gaussian,
    whose key is b, the logarithm of such a term is

        -τ/2 (‖q - k‖² - ‖q - b‖²) = -τ/2 ⟨k - b, (k - q) + (b - q)⟩,

    which errs by the unit times ‖k - b‖ ‖q - b‖, where the difference of the exponents would err by ‖q - b‖² times it.
    """
    _, scale, q, k = _in_units(jnp.sqrt(tau)[..., None, None], queries, keys)
    q, root = with_axes_of(tau, q), (scale,)
    i, j = (indices(x.shape[-2]) if others else None for x in (q, k))
    largest = jax.tree.map(lax.stop_gradient, _largest_terms(kernel, scale, q, k, log_weights, i, j))

    def tile_sum(rows: tuple[Any, ...], columns: tuple[Any, ...], values: Rows) -> Array:
        (q, largest, i), (k, (log_weights,), ones, j) = rows, columns
        if kernel == GAUSS:
            logs = products_of_differences(root, q, largest.key, k) / -2 - largest.log_weight[0].mT
        else:
            logs = kernel.log(squared_distances(root, q, k)) - largest.log[0].mT
        logs = logs + log_weights
        if others:
            logs = jnp.where(differ(i[0].mT, j[0].mT), logs, -jnp.inf)
        terms = jnp.exp(jnp.where(logs > 1, 0, logs))  # only rounding makes a term larger than the largest
        sums = jnp.concatenate(_sums_over(terms, values), -2)[..., :channels, :]
        return jnp.concatenate([sums, *_sums_over(terms, ones)], -2).mT

    channels, ones = values.shape[-1], jnp.ones_like(log_weights)  # zero where keys are filled up
    columns, tile = (k, log_weights, ones, j), _tile_for(keys.shape[-1], channels + 1)
    sums = tiled_sum(tile_sum, (q, largest, i), columns, values, tile=tile, laid=in_rows)
    total, log = sums[..., -1:], largest.log
    if kernel == GAUSS:
        squares = jnp.square(jnp.clip(scale * (q - largest.key), -CUT_OFF, CUT_OFF))
        log = largest.log_weight - cut_off(squares.sum(-1, keepdims=True)) / 2
    return sums[..., :-1] / total, log + jnp.log(total)


def _largest_terms(
    kernel: Kernel, scale: Array, queries: Array, keys: Array, log_weights: Array, i: Array | None, j: Array | None
) -> Largest:
    """The largest term of each query, and its key, a tile at a time; `i` and `j`: indices that must differ."""
    operands = scale, queries, keys, log_weights
    batch, sizes = jnp.broadcast_shapes(*(x.shape[:-2] for x in operands)), (queries.shape[-2], keys.shape[-2])
    rows, columns = block_sizes(math.prod(batch), *sizes, False, CUDA_TILE)
    key_blocks = (
        blocks(keys, columns),
        blocks(log_weights, columns, -jnp.inf),
        None if j is None else blocks(j, columns),
    )

    def add_rows(_: None, row_block: tuple[Array, Array | None]) -> tuple[None, Largest]:
        q, i = row_block
        own = in_rows(q)

        def add_columns(largest: Largest, block: tuple[Array, Array, Array | None]) -> tuple[Largest, None]:
            k, log_weights, j = block
            logs = kernel.log(squared_distances((scale,), own, in_rows(k))) + log_weights.mT
            if i is not None:
                logs = jnp.where(differ(i, j), logs, -jnp.inf)
            index = logs.argmax(-1)[..., None]
            k, w = (jnp.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (k, log_weights))
            new = Largest(logs.max(-1, keepdims=True), *(jnp.take_along_axis(x, index, -2) for x in (w, k)))
            is_larger = ~(new.log <= largest.log)  # true for NaN
            return jax.tree.map(lambda x, y: jnp.where(is_larger, x, y), new, largest), None

        widths = (1, -jnp.inf), (1, LOG_ZERO), (keys.shape[-1], 0)
        none = Largest(*(jnp.full((*batch, rows, width), fill, q.dtype) for width, fill in widths))
        return None, scan(add_columns, jax.tree.map(lambda x: vary_like(x, operands), none), key_blocks)[0]

    found = scan(add_rows, None, (blocks(queries, rows), None if i is None else blocks(i, rows)))[1]
    return jax.tree.map(lambda x: unblocks(x, sizes[0]), found)
