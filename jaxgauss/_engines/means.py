"""XLA's own engine for softmax means and logarithms: in two passes, or as one sum of terms over a large one."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from .._arrays.blocks import blocks, scan, unblocks
from .._arrays.logits import logit_factors, logits, squared_differences
from .._arrays.places import has_cuda
from .._arrays.points import BASE_2, LOG_ZERO, Scaled, scaled_points, with_norms
from .._arrays.shapes import K, L, Q, S, T, V, W
from .._arrays.split import WIDER, Split, key_factors, on_grid, query_factors, split_points
from .blocked import SPLIT_FACTORS, scaled_sum, sum_of_factors
from .fused import FUSED_WIDTH, fused_tile
from .tiles import PAIR_TILE, TILE, in_groups, tiled_max, tiled_means

LEAST = 2.0**-100  # a sum whose terms that are lost do not count
SOME_KEYS = 64  # whose exponents are looked at first: a percent of a pass over thousands
Points = TypeVar("Points", Scaled, Split)
EXACT_FACTORS = (lambda a: query_factors(a)[0]), (lambda b: key_factors(b)[0])


def blocked_means(queries: Q, keys: K, values: V, tau: T, log_weights: W, *, whole: bool = False) -> tuple[S, L]:
    """Σ_n w Φ v / Σ_n w Φ and log Σ_n w Φ, with the largest term so far taken out."""
    a, b = scaled_points(queries, keys, tau, base_2=False)
    if whole and has_cuda():
        return in_groups(functools.partial(tiled_means, _near_logits, whole=True), a, b, values, log_weights)
    a, b = logit_factors(*with_norms(a, b))
    return in_groups(functools.partial(tiled_means, logits, whole=whole), a, b, values, log_weights)


def fused_means(queries: Q, keys: K, values: V, tau: T, log_weights: W) -> tuple[S, L]:
    """`blocked_means` as one fused sum, of terms over a large one of their row; in two passes where that overflows.

    The large one is that of the key of the row's own number, which may be the same point, or of 64 others. So no sum
    is below one, and what is twice as far from it as float32 reaches, 2¹²⁷ times as large, is found by its sum.
    """
    a, b = with_norms(*scaled_points(queries, keys, tau))
    b = _weighted(b, norms=b.norms - 2 * BASE_2 * log_weights)
    large = _large_logit(*logit_factors(a, b))
    sums = scaled_sum(_weighted(a, norms=a.norms + 2 * large), b, _with_ones(values), fused=True)
    in_two_passes = functools.partial(blocked_means, queries, keys, values, tau, log_weights)
    return _means_of(sums, large, in_two_passes)


def split_means(
    queries: Q, keys: K, values: V, tau: T, log_weights: W, *, otherwise: Callable[[], Any], fused: bool = False
) -> tuple[S, L]:
    """`fused_means` of points in two parts, over the largest term of a row by the first product: a pass of its own.

    That exponent is taken out on the grid: what is left of the first product is exact as well. The second one may move
    a term by tens; rows that it leaves too small or too large, or without any weight, are found `otherwise`.
    """
    a, b = split_points(queries, keys, tau)
    fused = fused and max(WIDER * queries.shape[-1], values.shape[-1] + 1) <= FUSED_WIDTH
    largest = functools.partial(tiled_max, factors=EXACT_FACTORS, tile=fused_tile(1) if fused else PAIR_TILE)
    large = on_grid(in_groups(largest, a, _weighted(b, exact=BASE_2 * log_weights)))
    a, b = _weighted(a, exact=-large), _weighted(b, rest=BASE_2 * log_weights)
    return _means_of(sum_of_factors(a, b, _with_ones(values), SPLIT_FACTORS, fused=fused), large, otherwise)


def _with_ones(values: V) -> V:
    return jnp.concatenate([values, jnp.ones_like(values[..., :1])], -1)


def _means_of(sums: S, large: L, otherwise: Callable[[], Any]) -> tuple[S, L]:
    """Means and logarithms of sums of values, and of ones, relative to a large term; or others where these overflow."""
    total = sums[..., -1:]
    found = sums[..., :-1] / total, (large + jnp.log2(total)) / BASE_2
    is_there = jnp.isfinite(sums).all(-1, keepdims=True) & (total > LEAST)
    return lax.cond((is_there | jnp.isnan(total)).all(), lambda: found, otherwise)


def _large_logit(a: Any, b: Any) -> Float[Array, "*batch m 1"]:
    """A large exponent of each row, of factors: of the key of its own number, or of some others."""
    num_queries, num_keys = (jax.tree.leaves(x)[0].shape[-2] for x in (a, b))
    some, num = jax.tree.map(lambda x: x[..., :: -(-num_keys // SOME_KEYS), :], b), min(num_queries, num_keys)
    row_blocks = jax.tree.map(lambda x: blocks(x, min(num_queries, TILE.rows)), a)
    largest = scan(lambda _, rows: (None, logits(rows, some).max(-1, keepdims=True)), None, row_blocks)[1]
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    of_pairs = ((x[..., :num, :] * y[..., :num, :]).sum(-1, keepdims=True) for x, y in pairs)
    own = functools.reduce(jnp.add, of_pairs)
    padding = [(0, 0)] * (own.ndim - 2) + [(0, num_queries - num), (0, 0)]
    return jnp.maximum(unblocks(largest, num_queries), jnp.pad(own, padding, constant_values=LOG_ZERO))


def _weighted(x: Points, **norms: Array) -> Points:
    """The points with other norms, in the batch of both."""
    weighted = x._replace(**norms)
    batch = jnp.broadcast_shapes(*(y.shape[:-2] for y in weighted))
    return type(x)(*(jnp.broadcast_to(y, (*batch, *y.shape[-2:])) for y in weighted))


def _near_logits(a: Array, b: Array) -> Array:
    return squared_differences(a, b) / -2
