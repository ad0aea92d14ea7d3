"""Products of tiles and values of which only some terms are added one after the other.

A product on a CPU adds terms in order, and roundings of equal terms go one way: n terms err by up to 1e-8 n of their
sum in float32. One column is added as eight numbers. On CUDA products stay as they are.
"""

import functools
import math

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from ..._arrays.devices import has_cuda
from ..._arrays.points import dot
from ..._arrays.shapes import are_known

LONGEST = {True: 1024, False: 192}  # terms of a product of one column, and of several, in a sum
LONGEST_PULL = 1024  # in a gradient, which may err five times as much
NO_LIMIT = 2**62
FEW_PIECES = 8  # so few pieces of a product are products of their own; more are a batch, for which the tile is copied
PIECE = {True: 512, False: 128}  # terms of a piece of a longer product, of one column and of several


def longest(v: Array, width: int | None = None, *, pull: bool = False) -> int:
    """The most terms of a product with v, of `width` columns, that are added one after the other on JAX's device."""
    if has_cuda() or v.dtype == "float64":
        return NO_LIMIT
    return LONGEST_PULL if pull else LONGEST[(width or v.shape[-1]) == 1]


def summed(tile: Array, v: Array, *, pull: bool = False) -> Array:
    """The product of a tile and values, of which no more than the `longest` terms are added one after the other."""
    terms, width = v.shape[-2:]
    if not are_known(terms) or terms <= (most := longest(v, pull=pull)):
        return dot(tile, v)
    if (num := -(-terms // most)) <= FEW_PIECES:
        size = 8 * -(-terms // (8 * num))
        pieces = [slice(i, i + size) for i in range(0, terms, size)]
        return functools.reduce(jnp.add, (dot(tile[..., x], v[..., x, :]) for x in pieces))
    values = in_pieces(v, PIECE[width == 1 or pull])
    tile = jnp.pad(tile, [(0, 0)] * (tile.ndim - 1) + [(0, math.prod(values.shape[-3:-1]) - terms)])
    tile = tile.reshape(*tile.shape[:-1], *values.shape[-3:-1])
    return dot(jnp.moveaxis(tile, -2, -3), values).sum(-3)


def summed_over_rows(x: Array, tile: Array, most: int | None = None) -> Array:
    """(tileᵀ x)ᵀ = xᵀ tile. One row alone, whose terms would be added in order, takes a row of ones with it.

    With `most`, at most so many terms are added one after the other.
    """
    if has_cuda():
        return dot(x.mT, tile)
    if most and are_known(x.shape[-2]) and x.shape[-2] > most:
        return dot(in_pieces(x, PIECE[False]).mT, in_pieces(tile, PIECE[False])).sum(-3)
    if x.shape[-1] != 1:
        return dot(x.mT, tile)
    return dot(jnp.concatenate([x, jnp.ones_like(x)], -1).mT, tile)[..., :1, :]


def short_sum(x: Array) -> Array:
    """The sum over rows, a piece at a time."""
    if has_cuda() or not are_known(x.shape[-2]) or x.shape[-2] <= PIECE[False]:
        return x.sum(-2)
    return lax.optimization_barrier(in_pieces(x, PIECE[False]).sum(-2)).sum(-2)  # XLA would join the two sums


def in_pieces(x: Float[Array, "*batch n w"], piece: int) -> Float[Array, "*batch pieces piece w"]:
    """Rows in pieces whose products are added one by one; the last one is padded with zeros."""
    num, width = x.shape[-2:]
    x = jnp.pad(x, [(0, 0)] * (x.ndim - 2) + [(0, -num % piece), (0, 0)])
    return x.reshape(*x.shape[:-2], -1, piece, width)
