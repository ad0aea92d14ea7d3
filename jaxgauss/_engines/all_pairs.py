"""Sums over all pairs as plain JAX functions, of which derivatives of every order are formed."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from .._arrays.devices import has_cuda
from .._arrays.points import (
    by_point,
    of_coordinates,
    scaled_points,
    squared_distances_of,
    squares_factors,
    with_axes_of,
    with_norms,
)
from .._arrays.shapes import K, Q, S, T, V
from .cuda_tiles import cuda_tile
from .pairs import by_products, difference_tile, subtractable
from .tiles import CUDA_TILE, DIFFERENCES_TILE, by_parts_of_batch, tiled_sum
from .wanted import NOTHING, Channels, Columns, PairSums, Rows, Wanted

# Derivatives with respect to τ do not go through the points: u = ρ u₀ with u₀ = τ₀ ‖k - q‖², where τ₀ = τ is a constant
# to JAX, and ρ = τ/τ₀ is one. Otherwise derivatives of Σ W u / τ would have terms that nearly cancel for small u.


def sums_by_products(wanted: Wanted, *operands: Array, dense: bool = False) -> PairSums:
    """`PairSums` of near points; made of plain JAX functions, which every transformation takes."""
    queries, keys, values, tau, row_weights, weights = operands
    unit, scale, ratio = _unit_and_ratio(tau, queries)
    a, b = with_norms(*scaled_points(queries, keys, unit, base_2=False))

    def summed(*operands: Array) -> PairSums:
        a, first, g, b, second, w, v, scale, ratio = operands

        def tile_sum(rows: tuple[Array, Array, Array], columns: tuple[Array, Array, Array], values: Array) -> PairSums:
            (a, factors, g), (b, others, w) = rows, columns
            u = squared_distances_of(factors, others)
            return by_products(wanted, scale, Rows(a, g), Columns(b, values, w), u, ratio=ratio)

        return tiled_sum(tile_sum, (a, first, g), (b, second, w), v, dense=dense)

    first, second = squares_factors(a, b)
    return by_parts_of_batch(summed, a.points, first, row_weights, b.points, second, weights, values, scale, ratio)


def sums_by_differences(wanted: Wanted, *operands: Array, forward_mode: bool = False) -> PairSums:
    """`PairSums` of all pairs from differences of coordinates; made of plain JAX functions."""
    queries, keys, values, tau, row_weights, weights = operands
    _, scale, ratio = _unit_and_ratio(tau, queries)

    cuda = has_cuda() and not forward_mode  # the rules of `cuda_tile` are for reverse mode
    of_tile, tile = (cuda_tile, CUDA_TILE) if cuda else (difference_tile, DIFFERENCES_TILE)

    def tile_sum(rows: Rows, columns: tuple[Array, Array], values: Array) -> PairSums:
        return of_tile(wanted, scale, rows, Columns(columns[0], values, columns[1]), ratio)

    if not cuda:
        queries, keys = subtractable(queries), subtractable(keys)
    rows = Rows(with_axes_of(tau, queries), row_weights)
    return tiled_sum(tile_sum, rows, (keys, weights), values, tile=tile)


def _unit_and_ratio(tau: T, points: Q) -> tuple[T, Array, Array]:
    """τ₀, its root and ρ; if each coordinate has its own τ, τ₀ carries the derivatives and ρ is a constant."""
    by_coordinate = of_coordinates(tau, points)
    unit = tau if by_coordinate else lax.stop_gradient(tau)
    ratio = by_point(tau / unit, points)
    return unit, by_point(jnp.sqrt(unit), points), jnp.ones_like(ratio[..., :1]) if by_coordinate else ratio


def difference_sums(channels: Channels, queries: Q, keys: K, values: V, tau: T) -> S:
    """The sums of `sums_by_differences`, without pulls, for derivatives of either mode."""
    operands = queries, keys, values, tau, queries[..., :0], keys[..., :0]
    return sums_by_differences(Wanted(channels, NOTHING), *operands, forward_mode=True).sums
