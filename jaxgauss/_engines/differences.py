"""The sum from differences of coordinates, a tile at a time: slow for wide points, and right at any distance."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._arrays.logits import difference_logits, dot
from .._arrays.shapes import G, K, Q, S, T, V
from .tiles import Tile, tiled_sum

DIFFERENCES_TILE = Tile(2**17, 64, 64, 2**17)


def differences_sum(queries: Q, keys: K, values: V, tau: T) -> S:
    """The Gauss sum of operands of equal rank from the differences of coordinates, at any distance from any center."""
    tile_sum = functools.partial(_difference_tile, jnp.sqrt(tau)[..., None, None])
    queries = with_axes_of(tau, queries)
    return tiled_sum(tile_sum, queries, keys, values, tile=DIFFERENCES_TILE)


def differences_pullback(queries: Q, keys: K, values: V, tau: T, cotangent: G) -> tuple[Q, K, V]:
    """`blocked_pullback` likewise."""
    total, pullback = jax.vjp(lambda q, k, v: differences_sum(q, k, v, tau), queries, keys, values)
    return pullback(jnp.broadcast_to(cotangent, total.shape))


def with_axes_of(tau: Array, points: Array) -> Array:
    """The points, stretched along the batch of τ, which is not in them where nothing is scaled."""
    return jnp.broadcast_to(points, (*jnp.broadcast_shapes(points.shape[:-2], tau.shape), *points.shape[-2:]))


def _difference_tile(scale: Array, queries: Array, keys: Array, v: Array) -> Array:
    return dot(jnp.exp(difference_logits(scale, queries, keys)), v)
