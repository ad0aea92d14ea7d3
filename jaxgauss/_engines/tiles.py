"""Sums over tiles of the kernel matrix: the size of a tile, and the loops over rows, columns and batches of tiles."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from .._arrays.compensated import RunningSum
from .._arrays.devices import has_cuda, vary_like
from .._arrays.exponential import exp
from .._arrays.points import as_rows, dot, least_log, shared
from .._arrays.shapes import are_known
from .products.short import NO_LIMIT, PIECE, longest

ONE_PASS = 2**18  # pairs from which means are one sum


class Tile(NamedTuple):
    """The size of the part of the kernel matrix that is held at a time.

    Attributes:
        entries, rows: the most that a tile has.
        columns: the most that a tile has, unless more are needed for `worth` entries.
        worth: the entries that pay for a step of a loop.
    """

    entries: int
    rows: int
    columns: int
    worth: int


# Measured best on CPUs, 8 and 4 MiB in float32. Differences need more arrays of a tile's size, and XLA allocates
# workspace for every branch, taken or not.
TILE = Tile(2**21, 4096, 512, 2**20)
PULL_TILE = Tile(2**20, 2048, 512, 2**20)  # of gradients
# 64 MiB in float32: an estimated 70 µs of work, on a card that takes 20 µs to launch a step.
CUDA_TILE = Tile(2**24, 4096, 4096, 2**24)
DIFFERENCES_TILE = Tile(2**17, 64, 64, 2**17)  # of differences of coordinates

FEW_ROWS = 512  # fewer rows take a longer tile, whose product is added in pieces, in less time than several tiles
FEW_TILES, MANY_TILES = 8, 64  # so few are added without a loop if all rows are in a tile; more, with compensation


def own_tile() -> Tile:
    """The tile of JAX's device."""
    return CUDA_TILE if has_cuda() else TILE


def block_sizes(
    batch: int,
    num_queries: int,
    num_keys: int,
    dense: bool,
    tile: Tile | None = None,
    most: int = NO_LIMIT,
    few: int = FEW_ROWS,
) -> tuple[int, int]:
    """Rows and columns of a tile that holds the whole batch, or all rows if `dense`; symbolic sizes take full tiles.

    A tile has at most `most` columns, unless it has fewer than `few` rows.
    """
    tile = tile or own_tile()
    if not are_known(batch, num_queries, num_keys):
        return (num_queries, num_keys) if dense else (tile.rows, min(tile.columns, most))
    rows = max(1, num_queries if dense else min(num_queries, tile.rows))
    columns = num_keys if dense else max(tile.columns, tile.worth // max(1, batch * rows))
    if rows >= few or num_keys <= 2 * most:
        columns = min(columns, most)
    columns = max(1, min(num_keys, columns))
    if not dense:
        rows = max(1, min(rows, tile.entries // max(1, batch * columns)))
    unit = PIECE[True] if columns > most else 8 if columns < num_keys and not has_cuda() else 1
    return _evened(num_queries, rows), _evened(num_keys, columns, unit)


def pull_sizes(batch: int, num_queries: int, v: Array, dense: bool) -> tuple[int, int]:
    """`block_sizes` of gradients, of keys with the values v."""
    tile = CUDA_TILE if has_cuda() else PULL_TILE
    most = longest(v, pull=True)
    rows, columns = block_sizes(batch, num_queries, v.shape[-2], dense, tile, most, FEW_ROWS // 2)
    if not dense and are_known(num_queries, rows) and rows > most:  # sums over rows, too
        rows = _evened(num_queries, most)
    return rows, columns


def _evened(num: int, largest: int, unit: int = 1) -> int:
    """The size of the fewest blocks of nearly equal size, a multiple of `unit`: the last one is nearly full."""
    size = -(-max(1, num) // -(-max(1, num) // largest))
    return size + -size % unit


def by_parts_of_batch(function: Callable, *operands: Any):
    """`function` of operands that share a batch, for as many of its elements at a time as fill a tile together.

    A tile of all elements would take too little of each: products of many small tiles are slow on a CPU. If an operand
    has only some axes of the batch, all elements go in such tiles, because nothing is to be repeated. The first two
    operands are queries and keys; each may be several arrays.
    """
    arrays, tree = jax.tree.flatten(operands)
    a, b = (jax.tree.leaves(x)[0] for x in operands[:2])
    batch = jnp.broadcast_shapes(*(x.shape[:-2] for x in arrays))
    size, entries = math.prod(batch), a.shape[-2] * b.shape[-2]
    known = are_known(size, entries)
    group = max(1, own_tile().entries // max(1, entries)) if known else 1
    together = size <= group if known else size == 1
    are_alike = [shared(x) or x.shape[-1] == 0 for x in arrays]
    if together or not all(alike or x.shape[:-2] == batch for alike, x in zip(are_alike, arrays, strict=True)):
        return function(*operands)
    is_mapped = [x.shape[:-2] == batch and x.shape[-1] > 0 for x in arrays]

    def of_element(elements: list[Array]):
        own = iter(elements)
        every = [next(own) if m else x[(0,) * (x.ndim - 2)] for m, x in zip(is_mapped, arrays, strict=True)]
        return function(*tree.unflatten(every))

    steps = -(-size // group) if known else size
    each = -(-size // steps) if known else 1
    axes = (steps, each) if group > 1 else (steps,)  # batches of `lax.map` may not be without columns

    def in_steps(x: Array) -> Array:
        padding = ((0, steps * each - size), (0, 0), (0, 0))
        return jnp.pad(x.reshape(size, *x.shape[-2:]), padding, mode="edge").reshape(*axes, *x.shape[-2:])

    elements = [in_steps(x) for m, x in zip(is_mapped, arrays, strict=True) if m]
    results = lax.map(jax.vmap(of_element) if group > 1 else of_element, elements)
    of_each = jax.tree.map(lambda x: x.reshape(steps * each, *x.shape[len(axes) :])[:size], results)
    return jax.tree.map(lambda x: x.reshape(*batch, *x.shape[1:]), of_each)


def one_by_one(function: Callable, *operands: Array) -> Any:
    """`function` of the matrices of each element of a batch, one after the other; shared operands are not repeated."""
    batch = jnp.broadcast_shapes(*(x.shape[:-2] for x in operands))
    is_mapped = [not shared(x) for x in operands]
    every = [
        jnp.broadcast_to(x, (*batch, *x.shape[-2:])).reshape(math.prod(batch), *x.shape[-2:])
        for x, m in zip(operands, is_mapped, strict=True)
        if m
    ]

    def of_element(elements: list[Array]) -> Any:
        own = iter(elements)
        return function(*(next(own) if m else as_rows(x) for x, m in zip(operands, is_mapped, strict=True)))

    found = lax.map(of_element, every) if every else jax.tree.map(lambda x: x[None], of_element([]))
    return jax.tree.map(lambda x: x.reshape(*batch, *x.shape[1:]), found)


def tiled_sum(
    tile_sum: Callable,
    a: Any,
    b: Any,
    v: Array,
    *,
    dense: bool = False,
    tile: Tile | None = None,
    width: int | None = None,
    laid: Callable = lambda x: x,
) -> Any:
    """The sums of tile_sum(a, b, v) over blocks of keys, for each block of queries; padding keys have the value 0.

    a and b are arrays or trees of several, and so are the sums of a tile (…, rows, ·), by products of `width` columns:
    by default those of the values. Blocks are as `laid` makes them.
    """
    operands: list[Array] = jax.tree.leaves((a, b, v))
    batch = jnp.broadcast_shapes(*(x.shape[:-2] for x in operands))
    sizes = operands[0].shape[-2], v.shape[-2]
    most = longest(v, width)
    rows, columns = block_sizes(math.prod(batch), *sizes, dense, tile, most)
    num_tiles = -(-v.shape[-2] // columns)
    key_blocks = jax.tree.map(laid, (_blocks(b, columns), blocks(v, columns)))
    row_blocks = jax.tree.map(laid, _blocks(a, rows))
    tile_sum = tile_sum if (rows, columns) == sizes else jax.checkpoint(tile_sum)  # derivatives keep one tile at most

    def add_rows(_: None, a: Any):
        def add_columns(sums: RunningSum, block: tuple[Any, Array]):
            b, v = block
            return sums.plus(tile_sum(a, b, v)), None

        def of_one(a: Any, blocks: tuple[Any, Array]) -> Any:
            return tile_sum(a, *_any_block(blocks))

        shapes = jax.eval_shape(of_one, a, key_blocks)
        zeros = jax.tree.map(lambda x: vary_like(jnp.zeros((*batch, *x.shape[-2:]), x.dtype), operands), shapes)
        sums, _ = scan(add_columns, _sum_of(num_tiles, zeros), key_blocks, FEW_TILES if dense else 1)
        return None, sums.value()

    return jax.tree.map(lambda x: unblocks(x, sizes[0]), scan(add_rows, None, row_blocks)[1])


def tiled_pullback(
    tile_pullback: Callable, dim: int, a: Any, b: Any, v: Array, g: Array, *, dense: bool = False
) -> tuple[Array, Array, Array, Array]:
    """Gradients with respect to queries, keys, values and one number (*batch,), added up over tiles.

    Those of a tile are (…, rows, D), (…, D, columns), (…, C, columns) and (…), so that no tile is transposed.
    """
    operands: list[Array] = jax.tree.leaves((a, b, v, g))
    batch = jnp.broadcast_shapes(*(x.shape[:-2] for x in operands))
    num_queries, num_keys = g.shape[-2], v.shape[-2]
    rows, columns = pull_sizes(math.prod(batch), num_queries, v, dense)
    key_blocks = _blocks((b, v), columns)

    def zeros(*shape: int) -> Array:
        return vary_like(jnp.zeros(shape, v.dtype), operands)

    def add_rows(sums: RunningSum, block: tuple[Any, Array]):
        a, g = block

        def add_columns(carry: tuple[Array, Array], block: tuple[Any, Array]):
            b, v = block
            da, db, dv, d_number = tile_pullback(a, b, v, g)
            return (carry[0] + da, carry[1] + d_number), (db, dv)

        (da, d_number), parts = scan(add_columns, (zeros(*batch, rows, dim), zeros(*batch)), key_blocks)
        return sums.plus((*parts, d_number)), da

    num_blocks, row_blocks = -(-num_keys // columns), _blocks((a, g), rows)
    none = *(zeros(num_blocks, *batch, width, columns) for width in (dim, v.shape[-1])), zeros(*batch)
    sums, da = scan(add_rows, _sum_of(row_blocks[1].shape[0], none), row_blocks)
    db, dv, d_number = sums.value()
    return unblocks(da, num_queries), unblocks(db.mT, num_keys), unblocks(dv.mT, num_keys), d_number


def _sum_of(num: int, zeros: Any) -> RunningSum:
    return RunningSum(zeros, zeros if are_known(num) and num > MANY_TILES else None)


def _blocks(arrays: Any, size: int) -> Any:
    return jax.tree.map(lambda x: blocks(x, size), arrays)


def tiled_means(
    tile_logits: Callable,
    a: Array,
    b: Array,
    v: Array,
    log_weights: Array,
    *,
    dense: bool = False,
    tile: Tile | None = None,
    others: Array | None = None,
) -> tuple[Array, Array]:
    """Softmax means of values, and the logarithms of their denominators, over blocks of queries and of keys.

    `others`: indices (M, 1) of the queries, which are keys; pairs of equal index are left out.
    """
    batch = jnp.broadcast_shapes(*(x.shape[:-2] for x in (a, b, v, log_weights)))
    num_queries, _ = sizes = a.shape[-2], b.shape[-2]
    rows, columns = block_sizes(math.prod(batch), *sizes, dense, tile)
    i, j = others, None if others is None else jnp.arange(sizes[1], dtype="int32")[:, None]
    key_blocks = *_blocks((b, v, j), columns), blocks(log_weights, columns, least_log(a.dtype))
    operands = [a, b, v, log_weights]

    def add_rows(_: None, row_block: tuple[Array, Array | None]):
        a, i = row_block

        def add_columns(carry: tuple[Array, Array, Array], block: tuple[Array, Array, Array | None, Array]):
            largest, total, sums = carry
            b, v, j, log_weights = block
            logits = tile_logits(a, b) + log_weights.mT
            if i is not None and j is not None:
                logits = jnp.where(i != j.mT, logits, least_log(a.dtype))
            new = lax.stop_gradient(jnp.maximum(largest, logits.max(-1, keepdims=True)))
            weights, before = exp(logits - new), jnp.exp(largest - new)
            total = total * before + weights.sum(-1, keepdims=True)
            return (new, total, sums * before + dot(weights, v)), None

        def full(width: int, value: float) -> Array:
            return vary_like(jnp.full((*batch, rows, width), value, a.dtype), operands)

        carry = full(1, least_log(a.dtype)), full(1, 0.0), full(v.shape[-1], 0.0)
        many = (rows, columns) != sizes
        largest, total, sums = scan(jax.checkpoint(add_columns) if many else add_columns, carry, key_blocks)[0]
        return None, (sums / total, largest + jnp.log(total))

    means, logs = scan(add_rows, None, _blocks((a, i), rows))[1]
    return unblocks(means, num_queries), unblocks(logs, num_queries)


def blocks(x: Array, size: int, fill: float | None = 0.0) -> Array:
    """(*batch, N, W) -> (blocks, *batch, size, W), padded with `fill`, or with the last row if `fill` is None."""
    num_blocks = -(-x.shape[-2] // size)
    padding = [(0, 0)] * (x.ndim - 2) + [(0, num_blocks * size - x.shape[-2]), (0, 0)]
    padded = jnp.pad(x, padding, mode="edge") if fill is None else jnp.pad(x, padding, constant_values=fill)
    return jnp.moveaxis(padded.reshape(*x.shape[:-2], num_blocks, size, x.shape[-1]), -3, 0)


def unblocks(x: Array, num: int) -> Array:
    """The inverse of `blocks`."""
    x = jnp.moveaxis(x, 0, -3)
    return x.reshape(*x.shape[:-3], x.shape[-3] * x.shape[-2], x.shape[-1])[..., :num, :]


def scan(body: Callable, carry, blocks, few: int = 1):
    """`lax.scan`, without a loop for at most so `few` blocks; of no blocks, also without `jit`."""
    num = jax.tree.leaves(blocks)[0].shape[0]
    if are_known(num) and num == 0:
        shapes = jax.eval_shape(lambda carry, blocks: body(carry, _any_block(blocks))[1], carry, blocks)
        like = jax.tree.leaves((carry, blocks))
        return carry, jax.tree.map(lambda x: vary_like(jnp.zeros((0, *x.shape), x.dtype), like), shapes)
    if num != 1:
        return lax.scan(body, carry, blocks, unroll=num if are_known(num) and num <= few else 1)
    carry, out = body(carry, jax.tree.map(lambda x: x[0], blocks))
    return carry, jax.tree.map(lambda x: x[None], out)


def _any_block(blocks: Any) -> Any:
    """Stands for a block where only shapes are asked for, even if there is none."""
    return jax.tree.map(lambda x: x.sum(0, dtype=x.dtype), blocks)
