"""The engine of pairs on CUDA: differences of coordinates, in reductions that XLA fuses, wherever the points lie.

A branch or a loop of unknown length would make the host wait for the device. So every pair takes the same way, and none
is skipped. No array of M N D numbers is written, and none of M N for one channel of points in few dimensions.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from .._arrays.devices import vary_like
from .._arrays.points import LOG_ZERO, dot, with_axes_of
from .._arrays.shapes import K, L, Q, S, T, V, W
from .._kernels.kernels import GAUSS, Kernel
from .pairs import cut_off, results_of, subtractable, with_rank
from .tiles import CUDA_TILE, block_sizes, blocks, scan, tiled_sum, unblocks
from .wanted import Columns, Rows, Sums, Wanted

FARTHEST = 2.0**60  # bandwidths; the square of a difference that is cut off there is finite in float32
UNROLLED = 16  # dimensions up to which each coordinate is an operation of its own, so that a pass has one reduction


def fused_tile(wanted: Wanted, scale: Array, rows: Rows, columns: Columns, ratio: Array) -> Sums:
    """`Sums` of a tile from differences of unscaled points (*batch, N, D); `scale` is √τ (*batch, 1, 1 or D)."""
    a, b = rows.points, columns.points
    scale = with_rank(scale, a)
    u = squared_distances(scale, a, b)
    of_kernels = wanted.of(ratio * u)
    sums = [_summed(of_kernels[kernel], v) for kernel, v in wanted.sums.by_kernel(columns.values)]
    weights, each = jnp.zeros_like(u), wanted.spread and scale.shape[-1] > 1
    for kernel, g, w in wanted.pulls.by_kernel(rows.weights, columns.weights):
        weights += of_kernels[kernel.slope] * (g * w.mT if w.shape[-1] == 1 else dot(g, w.mT))
    pulls = _weighted(weights, a, b) if wanted.pulls.kernels else a[..., :0]
    spread = a[..., :0]
    if each:
        spread = _weighted(weights, a, b, squared=True)
    elif wanted.spread:
        spread = (weights * u).sum(-1, keepdims=True) / jnp.square(scale)
    return results_of(wanted, sums, pulls, spread)


def squared_distances(scale: Array, a: Array, b: Array) -> Array:
    """The u of all pairs, (*batch, M, N), from unscaled points (*batch, N, D)."""
    if a.shape[-1] > UNROLLED:
        return cut_off(_sum_of_squares(scale, a, b))
    scale = jnp.broadcast_to(scale, (*scale.shape[:-1], a.shape[-1]))
    squares = [jnp.square(s * x) for s, x in zip(_columns(scale), _differences(a, b), strict=True)]
    return cut_off(functools.reduce(jnp.add, squares))


@jax.checkpoint  # else derivatives would store all differences
def _sum_of_squares(scale: Array, a: Array, b: Array) -> Array:
    return jnp.square(scale[..., None] * (b[..., None, :, :] - a[..., :, None, :])).sum(-1)


def _differences(a: Array, b: Array) -> list[Array]:
    """b - a of each coordinate, (*batch, M, N)."""
    return [y - x for x, y in zip(_columns(a), _rows(b), strict=True)]


def _columns(x: Array) -> list[Array]:
    """Each coordinate, (*batch, N, 1)."""
    return [x[..., i : i + 1] for i in range(x.shape[-1])]


def _rows(x: Array) -> list[Array]:
    """Each coordinate, (*batch, 1, N)."""
    return [y.mT for y in _columns(x)]


def _weighted(weights: Array, a: Array, b: Array, squared: bool = False) -> Array:
    """Σ_n W (b_n - a_m), or of the square of each coordinate, (*batch, M, D)."""

    def term(weights: Array, x: Array) -> Array:
        return weights * x * x if squared else weights * x

    if a.shape[-1] <= UNROLLED:
        return jnp.stack([term(weights, x).sum(-1) for x in _differences(a, b)], -1)

    @jax.checkpoint
    def summed(weights: Array, a: Array, b: Array) -> Array:
        return term(weights[..., None], b[..., None, :, :] - a[..., :, None, :]).sum(-2)

    return summed(weights, a, b)


def _summed(tile: Array, v: Array) -> Array:
    return (tile * v.mT).sum(-1, keepdims=True) if v.shape[-1] == 1 else dot(tile, v)


class Largest(NamedTuple):
    """The largest term of each query: its logarithm, that of its weight (…, M, 1), and its key (…, M, D)."""

    log: Array
    log_weight: Array
    key: Array


def relative_means(kernel: Kernel, queries: Q, keys: K, values: V, tau: T, log_weights: W) -> tuple[S, L]:
    """Σ_n w κ v / Σ_n w κ and log Σ_n w κ of a positive kernel; made of plain JAX functions.

    Terms are relative to the largest of the query. For a Gaussian, whose key is b, the logarithm of such a term is

        -τ/2 (‖q - k‖² - ‖q - b‖²) = -τ/2 ⟨k - b, (k - q) + (b - q)⟩,

    which errs by the unit times ‖k - b‖ ‖q - b‖, where the difference of the exponents would err by ‖q - b‖² times it.
    """
    scale = with_rank(jnp.sqrt(tau)[..., None, None], queries)
    q, k = with_axes_of(tau, subtractable(queries)), subtractable(keys)
    largest = jax.tree.map(lax.stop_gradient, _largest_terms(kernel, scale, q, k, log_weights))

    def tile_sum(rows: tuple[Array, Largest], columns: tuple[Array, Array], values: Array) -> Array:
        (q, largest), (k, log_weights) = rows, columns
        if kernel == GAUSS:
            logs = _product_of_differences(scale, q, largest.key, k) / -2 + log_weights.mT - largest.log_weight
        else:
            logs = kernel.log(squared_distances(scale, q, k)) + log_weights.mT - largest.log
        terms = jnp.exp(jnp.where(logs > 1, 0, logs))  # only rounding makes a term larger than the largest
        of_ones = values[..., -1:]
        return jnp.concatenate([_summed(terms, values[..., :-1]), _summed(terms, of_ones)], -1)

    ones = jnp.ones_like(values[..., :1])
    sums = tiled_sum(tile_sum, (q, largest), (k, log_weights), jnp.concatenate([values, ones], -1), tile=CUDA_TILE)
    total, log = sums[..., -1:], largest.log
    if kernel == GAUSS:
        squares = jnp.square(jnp.clip(scale * (q - largest.key), -FARTHEST, FARTHEST))
        log = largest.log_weight - cut_off(squares.sum(-1, keepdims=True)) / 2
    return sums[..., :-1] / total, log + jnp.log(total)


def _largest_terms(kernel: Kernel, scale: Array, queries: Array, keys: Array, log_weights: Array) -> Largest:
    """The largest term of each query, and its key, a tile at a time."""
    operands = scale, queries, keys, log_weights
    batch, sizes = jnp.broadcast_shapes(*(x.shape[:-2] for x in operands)), (queries.shape[-2], keys.shape[-2])
    rows, columns = block_sizes(1, *sizes, False, CUDA_TILE)
    key_blocks = blocks(keys, columns), blocks(log_weights, columns, -jnp.inf)

    def add_rows(_: None, q: Array) -> tuple[None, Largest]:
        def add_columns(largest: Largest, block: tuple[Array, Array]) -> tuple[Largest, None]:
            k, log_weights = block
            logs = kernel.log(squared_distances(scale, q, k)) + log_weights.mT
            index, (k, w) = logs.argmax(-1)[..., None], (jnp.broadcast_to(x, (*batch, *x.shape[-2:])) for x in block)
            own = Largest(logs.max(-1, keepdims=True), *(jnp.take_along_axis(x, index, -2) for x in (w, k)))
            is_larger = ~(own.log <= largest.log)  # true for NaN
            return jax.tree.map(lambda x, y: jnp.where(is_larger, x, y), own, largest), None

        widths = (1, -jnp.inf), (1, LOG_ZERO), (keys.shape[-1], 0)
        none = Largest(*(jnp.full((*batch, rows, width), fill, queries.dtype) for width, fill in widths))
        return None, scan(add_columns, jax.tree.map(lambda x: vary_like(x, operands), none), key_blocks)[0]

    found = scan(add_rows, None, blocks(queries, rows))[1]
    return jax.tree.map(lambda x: unblocks(x, sizes[0]), found)


def _product_of_differences(scale: Array, q: Array, b: Array, k: Array) -> Array:
    """τ ⟨k_n - b_m, (k_n - q_m) + (b_m - q_m)⟩, (*batch, M, N)."""
    if k.shape[-1] > UNROLLED:
        return _sum_of_products(scale, q, b, k)
    scale = jnp.broadcast_to(scale, (*scale.shape[:-1], k.shape[-1]))
    terms = [
        _product(scale[..., i : i + 1], *x) for i, x in enumerate(zip(*map(_columns, (q, b)), _rows(k), strict=True))
    ]
    return functools.reduce(jnp.add, terms)


@jax.checkpoint  # else derivatives would store all differences
def _sum_of_products(scale: Array, q: Array, b: Array, k: Array) -> Array:
    return _product(scale[..., None], q[..., :, None, :], b[..., :, None, :], k[..., None, :, :]).sum(-1)


def _product(scale: Array, q: Array, b: Array, k: Array) -> Array:
    factors = scale * (k - b), scale * ((k - q) + (b - q))
    return jnp.clip(factors[0], -FARTHEST, FARTHEST) * jnp.clip(factors[1], -FARTHEST, FARTHEST)
