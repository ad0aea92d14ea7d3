"""The engine of pairs on CUDA: differences of coordinates, in reductions that XLA fuses, wherever the points lie.

A branch or a loop of unknown length would make the host wait for the device. So every pair takes the same way, and none
is skipped. No array of M N D numbers is written. Sums over coordinates are over the first of three axes: an H200 takes
half the time that it takes over the last one (1024 points of 64 dimensions).
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from ..._arrays.devices import vary_like
from ..._arrays.points import LOG_ZERO, dot, with_axes_of, with_rank
from ..._arrays.shapes import K, L, Q, S, T, V, W
from ..._kernels.kernels import GAUSS, Kernel
from ..request import Columns, PairSums, Request, Rows, joined
from ..tiles import CUDA_TILE, block_sizes, blocks, scan, tiled_sum, unblocks
from .tile_sums import FARTHEST, cut_off, largest_coordinate

CUT_OFF = FARTHEST**0.5  # bandwidths, of a coordinate
ONCE = 32  # coordinates from which distances take longer than to transpose them


def cuda_tile(request: Request, scale: Array, rows: Rows, columns: Columns, ratio: Array) -> PairSums:
    """`PairSums` of a tile from differences of unscaled points (*batch, N, D); `scale` is √τ (*batch, 1, 1 or D)."""
    a, b = _subtractable(rows.points), _subtractable(columns.points)
    scale = with_rank(scale, a)
    once = request.at_keys and a.shape[-1] >= ONCE  # as at the queries: XLA then computes u once for both
    u = squared_distances_on_cuda(scale, b, a).mT if once else squared_distances_on_cuda(scale, a, b)
    of_kernels = request.of(ratio * u)
    sums = [_summed(of_kernels[kernel], v) for kernel, v in request.sums.by_kernel(columns.values)]
    weights, each = jnp.zeros_like(u), request.spread and scale.shape[-1] > 1
    for kernel, g, w in request.pulls.by_kernel(rows.weights, columns.weights):
        weights += of_kernels[kernel.slope] * (g * w.mT if w.shape[-1] == 1 else dot(g, w.mT))
    batch = weights.shape[:-2]
    a, b = (jnp.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (a, b))
    pulled, spread = pulls(weights, a, b) if request.pulls.kernels else a[..., :0], a[..., :0]
    if each:
        spread = (weights[..., None, :, :] * jnp.square(_differences(a, b))).sum(-1).mT
    elif request.spread:
        spread = (weights * u).sum(-1, keepdims=True) / jnp.square(scale)
    return PairSums(joined(sums, pulled), pulled, spread)


# Sums over coordinates or over keys. The derivatives of each are made of the others, so that no order of derivatives
# holds an array of M N D numbers. With a cotangent W, and b a constant,
#
#     P = Σ_d s² (k - b)((k - q) + (b - q)):    dq_m = -2 s² Σ_n W (k_n - b_m)    dk_n = 2 s² Σ_m W (k_n - q_m)
#
# For b = q this is u, with the same rule. But then b is no constant to the next derivative: u has its own function.


def squared_distances_on_cuda(scale: Array, q: Array, k: Array) -> Array:
    """The u of all pairs, (*batch, M, N), from unscaled points (*batch, N, D)."""
    return cut_off(_squares(*_of_one_batch(scale, q, k)))


def products_of_differences(scale: Array, q: Array, b: Array, k: Array) -> Array:
    """Σ_d s² (k_n - b_m)((k_n - q_m) + (b_m - q_m)), (*batch, M, N), for a constant b."""
    return _products(*_of_one_batch(scale, q, b, k))


def _of_one_batch(*operands: Array) -> list[Array]:
    batch = jnp.broadcast_shapes(*(x.shape[:-2] for x in operands))
    return [jnp.broadcast_to(x, (*batch, *x.shape[-2:])) for x in operands]


@jax.custom_vjp
def _squares(scale: Array, q: Array, k: Array) -> Array:
    return _scaled_squares(scale, q, k).sum(-3)


@jax.custom_vjp
def _products(scale: Array, q: Array, b: Array, k: Array) -> Array:
    return _scaled_products(scale, q, b, k).sum(-3)


def _scaled_squares(scale: Array, q: Array, k: Array) -> Array:
    return jnp.square(scale.mT[..., None] * _differences(q, k))


def _scaled_products(scale: Array, q: Array, b: Array, k: Array) -> Array:
    scale = scale.mT[..., None]
    factors = scale * _differences(b, k), scale * (_differences(q, k) + (b - q).mT[..., None])
    # not by `jnp.clip`: where tiles are differentiated twice, JAX 0.10.2 gives its constants to the rule as operands
    first, second = (jnp.maximum(jnp.minimum(x, CUT_OFF), -CUT_OFF) for x in factors)
    return first * second


def _squares_backward(operands: tuple[Array, ...], weights: Array) -> tuple[Array, ...]:
    scale, q, k = operands
    return _gradients(weights, _scaled_squares(*operands), scale, q, q, k)


def _products_backward(operands: tuple[Array, ...], weights: Array) -> tuple[Array, ...]:
    d_scale, d_queries, d_keys = _gradients(weights, _scaled_products(*operands), *operands)
    return d_scale, d_queries, jnp.zeros_like(operands[2]), d_keys


def _gradients(weights: Array, terms: Array, scale: Array, q: Array, b: Array, k: Array) -> tuple[Array, Array, Array]:
    """Those of √τ, queries and keys, from the terms of the sums (*batch, D, M, N), which XLA fuses."""
    squares = -2 * jnp.square(scale)
    d_queries, d_keys = squares * pulls(weights, b, k), squares * pulls(weights.mT, k, q)
    if scale.shape[-1] == 1:
        of_scale = (weights * terms.sum(-3)).sum((-2, -1), keepdims=True)
    else:
        of_scale = (weights[..., None, :, :] * terms).sum((-2, -1))[..., None, :]
    return 2 / scale * of_scale, d_queries, d_keys


@jax.custom_vjp
def pulls(weights: Array, a: Array, b: Array) -> Array:
    """Σ_n W (b_n - a_m), (*batch, M, D), from arrays of one batch."""
    return (weights[..., None] * (b[..., None, :, :] - a[..., :, None, :])).sum(-2)


@jax.custom_vjp
def _inner(g: Array, a: Array, b: Array) -> Array:
    """Σ_d g_m (b_n - a_m), (*batch, M, N), from arrays of one batch."""
    return (g.mT[..., None] * _differences(a, b)).sum(-3)


def _pulls_backward(operands: tuple[Array, Array, Array], g: Array) -> tuple[Array, ...]:
    weights, a, b = operands
    return _inner(g, a, b), -g * weights.sum(-1, keepdims=True), dot(weights.mT, g)


def _inner_backward(operands: tuple[Array, Array, Array], weights: Array) -> tuple[Array, ...]:
    g, a, b = operands
    return pulls(weights, a, b), -g * weights.sum(-1, keepdims=True), dot(weights.mT, g)


_squares.defvjp(lambda *operands: (_squares(*operands), operands), _squares_backward)
_products.defvjp(lambda *operands: (_products(*operands), operands), _products_backward)
pulls.defvjp(lambda *operands: (pulls(*operands), operands), _pulls_backward)
_inner.defvjp(lambda *operands: (_inner(*operands), operands), _inner_backward)


def _differences(a: Array, b: Array) -> Array:
    """b_n - a_m, (*batch, D, M, N)."""
    return b.mT[..., :, None, :] - a.mT[..., :, :, None]


def _subtractable(points: Array) -> Array:
    """The points with finite differences, so that a weight of 0 makes them 0."""
    most = largest_coordinate(points.dtype)
    return jnp.clip(points, -most, most)


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
    q, k = with_axes_of(tau, _subtractable(queries)), _subtractable(keys)
    largest = jax.tree.map(lax.stop_gradient, _largest_terms(kernel, scale, q, k, log_weights))

    def tile_sum(rows: tuple[Array, Largest], columns: tuple[Array, Array], values: Array) -> Array:
        (q, largest), (k, log_weights) = rows, columns
        if kernel == GAUSS:
            logs = products_of_differences(scale, q, largest.key, k) / -2 + log_weights.mT - largest.log_weight
        else:
            logs = kernel.log(squared_distances_on_cuda(scale, q, k)) + log_weights.mT - largest.log
        terms = jnp.exp(jnp.where(logs > 1, 0, logs))  # only rounding makes a term larger than the largest
        of_ones = values[..., -1:]
        return jnp.concatenate([_summed(terms, values[..., :-1]), _summed(terms, of_ones)], -1)

    ones = jnp.ones_like(values, shape=(*values.shape[:-1], 1))
    sums = tiled_sum(tile_sum, (q, largest), (k, log_weights), jnp.concatenate([values, ones], -1), tile=CUDA_TILE)
    total, log = sums[..., -1:], largest.log
    if kernel == GAUSS:
        squares = jnp.square(jnp.clip(scale * (q - largest.key), -CUT_OFF, CUT_OFF))
        log = largest.log_weight - cut_off(squares.sum(-1, keepdims=True)) / 2
    return sums[..., :-1] / total, log + jnp.log(total)


def _largest_terms(kernel: Kernel, scale: Array, queries: Array, keys: Array, log_weights: Array) -> Largest:
    """The largest term of each query, and its key, a tile at a time."""
    operands = scale, queries, keys, log_weights
    batch, sizes = jnp.broadcast_shapes(*(x.shape[:-2] for x in operands)), (queries.shape[-2], keys.shape[-2])
    rows, columns = block_sizes(math.prod(batch), *sizes, False, CUDA_TILE)
    key_blocks = blocks(keys, columns), blocks(log_weights, columns, -jnp.inf)

    def add_rows(_: None, q: Array) -> tuple[None, Largest]:
        def add_columns(largest: Largest, block: tuple[Array, Array]) -> tuple[Largest, None]:
            k, log_weights = block
            logs = kernel.log(squared_distances_on_cuda(scale, q, k)) + log_weights.mT
            index, (k, w) = logs.argmax(-1)[..., None], (jnp.broadcast_to(x, (*batch, *x.shape[-2:])) for x in block)
            own = Largest(logs.max(-1, keepdims=True), *(jnp.take_along_axis(x, index, -2) for x in (w, k)))
            is_larger = ~(own.log <= largest.log)  # true for NaN
            return jax.tree.map(lambda x, y: jnp.where(is_larger, x, y), own, largest), None

        widths = (1, -jnp.inf), (1, LOG_ZERO), (keys.shape[-1], 0)
        none = Largest(*(jnp.full((*batch, rows, width), fill, queries.dtype) for width, fill in widths))
        return None, scan(add_columns, jax.tree.map(lambda x: vary_like(x, operands), none), key_blocks)[0]

    found = scan(add_rows, None, blocks(queries, rows))[1]
    return jax.tree.map(lambda x: unblocks(x, sizes[0]), found)
