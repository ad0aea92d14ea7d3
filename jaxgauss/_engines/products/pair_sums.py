"""Sums over near points: tiles of u = ‖a - b‖² from one product; and whether products are accurate for the points."""

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..._arrays.points import (
    BASE_2,
    Scaled,
    are_within,
    dot,
    of_coordinates,
    scaled_points,
    side_by_side,
    squared_distances_of,
    squares_factors,
    unit_and_ratio,
    with_norms,
    with_rank,
)
from ..._arrays.shapes import G, V, are_known
from ..._kernels.kernels import Kernel
from ..request import Channels, Columns, PairSums, Request, Rows, differ, indices, joined
from ..tiles import by_parts_of_batch, tiled_pullback, tiled_sum
from .short import longest, summed, summed_over_rows

APART = 2**-4  # least mean of u over that of ‖a‖² + ‖b‖², weighted as in the sum, at which moments give accurate pulls
LEAST_ROWS, MOST_ROWS = 8, 64  # queries from which the separation is estimated


def sums_by_products(request: Request, *operands: Array, dense: bool = False) -> PairSums:
    """`PairSums` of near points; made of plain JAX functions, which every transformation takes."""
    queries, keys, values, tau, row_weights, weights = operands
    unit, scale, ratio = unit_and_ratio(tau, queries)
    a, b = with_norms(*scaled_points(queries, keys, unit, base_2=False))
    width = 2 if request.pulls.kernels else max(request.sums.widths, default=1)  # of the widest product, nearly

    def of_batch(*operands: Array) -> PairSums:
        a, first, g, b, second, w, v, scale, ratio = operands

        def tile_sum(rows: tuple[Any, ...], columns: tuple[Any, ...], values: Array) -> PairSums:
            (a, factors, g, i), (b, others, w, j) = rows, columns
            u = squared_distances_of(factors, others)
            return by_products(request, scale, Rows(a, g), Columns(b, values, w), u, differ(i, j), ratio)

        i, j = (request.indices(x.shape[-2]) for x in (a, b))
        return tiled_sum(tile_sum, (a, first, g, i), (b, second, w, j), v, dense=dense, width=width)

    first, second = squares_factors(a, b)
    return by_parts_of_batch(of_batch, a.points, first, row_weights, b.points, second, weights, values, scale, ratio)


def by_products(
    request: Request,
    scale: Float[Array, "*#batch 1 _"],
    rows: Rows,
    columns: Columns,
    u: Float[Array, "*batch m n"],
    keep: Bool[Array, "m n"] | None = None,
    ratio: Array | None = None,
) -> PairSums:
    """`PairSums` of a tile over the pairs to `keep`, from points times √τ about a center and u.

    `ratio` is one, and carries the derivatives of τ (see `unit_and_ratio`).
    """
    a, b = rows.points, columns.points
    scale, dim, each = with_rank(scale, a), b.shape[-1], request.spread and scale.shape[-1] > 1
    b1 = jnp.concatenate([b, jnp.ones_like(b[..., :1]), *([b * b] if each else [])], -1)
    tiles = request.of(u if ratio is None else ratio * u, keep)

    def reduced(terms: list[tuple[Kernel, Array]]) -> list[Array]:
        """Σ_n f(u) r for each f and r, by one product for each f."""
        found = {}
        for f in dict.fromkeys(f for f, _ in terms):
            rights = [right for g, right in terms if g == f]
            ends = list(itertools.accumulate(x.shape[-1] for x in rights))[:-1]
            found[f] = iter(jnp.split(summed(tiles[f], side_by_side(rights)), ends, -1))
        return [next(found[f]) for f, _ in terms]

    pulling = [(kernel.slope, g, w) for kernel, g, w in request.pulls.by_kernel(rows.weights, columns.weights)]
    single = [(psi, w * b1) for psi, _, w in pulling if w.shape[-1] == 1]
    found = reduced([*request.sums.by_kernel(columns.values), *single])
    sums, pulled = found[: len(request.sums.kernels)], iter(found[len(request.sums.kernels) :])
    pulls, spread = (jnp.zeros((*u.shape[:-1], width), u.dtype) for width in (b1.shape[-1], 1))
    for psi, g, w in pulling:
        one = w.shape[-1] == 1
        pulls += g * next(pulled) if one else summed(tiles[psi] * dot(g, w.mT), b1, pull=True)
        if request.spread and not each:
            weights = tiles[psi] * u
            spread += g * summed(weights, w) if one else (weights * dot(g, w.mT)).sum(-1, keepdims=True)
    pulls, mass, squares = pulls[..., :dim], pulls[..., dim : dim + 1], pulls[..., dim + 1 :]
    spread = squares - a * (2 * pulls - mass * a) if each else spread
    spread = spread / jnp.square(scale) if request.spread else spread
    pulls = (pulls - mass * a) / scale
    return PairSums(
        joined(sums, pulls),
        pulls if request.pulls.kernels else pulls[..., :0],
        spread if request.spread else spread[..., :0],
    )


def of_leaves(keep: Bool[Array, "rows columns"], tile: Array) -> Bool[Array, "m n"]:
    """For each pair of points whether the pair of their leaves is to be kept."""
    sizes = keep.shape[0], tile.shape[0] // keep.shape[0], keep.shape[1], tile.shape[1] // keep.shape[1]
    return jnp.broadcast_to(keep[:, None, :, None], sizes).reshape(tile.shape)


def product_pullback(
    channels: Channels, a: Scaled, b: Scaled, values: V, g: G, *, dense: bool, with_tau: bool, others: bool = False
) -> tuple[Array, ...]:
    """Gradients with respect to scaled points and values, and -Σ_mn S u (*batch,), for the whole batch.

    With `others`, pairs of equal index are left out.
    """
    dim = a.points.shape[-1]

    def pull(rows: tuple[Array, Any], columns: tuple[Array, Any], v: Array, g: Array) -> tuple[Array, ...]:
        (first, i), (second, j) = rows, columns
        u, keep = squared_distances_of(first, second), differ(i, j)
        return _pull(channels, first[..., :dim] / -2, second[..., :dim], u, v, g, with_tau, keep)

    def of_batch(first: Array, second: Array, values: Array, g: Array) -> tuple[Array, ...]:
        i, j = (indices(x.shape[-2]) if others else None for x in (first, second))
        return tiled_pullback(pull, dim, (first, i), (second, j), values, g, dense=dense)

    return by_parts_of_batch(of_batch, *squares_factors(a, b), values, g)


def _pull(
    channels: Channels, x: Array, y: Array, u: Array, v: Array, g: Array, with_tau: bool, keep: Array | None
) -> tuple[Array, ...]:
    """The gradients of a tile: da (…, rows, D), dbᵀ (…, D, columns), dvᵀ (…, C, columns) and -Σ S u (…).

    For one channel g and v multiply the points, not ψ, so that no other array of a tile's size is formed.
    """
    batch = jnp.broadcast_shapes(*(z.shape[:-2] for z in (x, y, v, g)))
    x1, y1 = (jnp.concatenate([z, jnp.ones_like(z[..., :1])], -1) for z in (x, y))  # S [b, 1]: S b and its row sums
    parts, dv = channels.pull(u, v, g, keep)
    da = functools.reduce(jnp.add, (left * summed(s, right * y1, pull=True) for s, left, right in parts))
    db = functools.reduce(
        jnp.add, (right.mT * summed_over_rows(left * x1, s, longest(v, pull=True)) for s, left, right in parts)
    )
    total = jnp.zeros(batch, u.dtype)
    if with_tau:
        total -= functools.reduce(jnp.add, ((s * u * left * right.mT).sum((-2, -1)) for s, left, right in parts))
    da, db = da[..., :-1] - da[..., -1:] * x, db[..., :-1, :] - db[..., -1:, :] * y.mT
    return *(jnp.broadcast_to(z, (*batch, *z.shape[-2:])) for z in (da, db, dv)), total


def within(
    reach: float,
    queries: jax.Array,
    keys: jax.Array,
    tau: jax.Array,
    slope: Callable[..., Any] | None = None,
    weights: jax.Array | None = None,
) -> jax.Array | bool:
    """Whether R² of the whole batch is at most `reach`, and no sum of weights overflows: one boolean.

    With a slope ψ, also whether pairs, weighted by ψ and weights of keys (…, N, 1), are far enough apart.
    """
    if math.isinf(reach):
        return reach > 0
    tau = largest_tau(tau, queries, keys)
    a, b = with_norms(*scaled_points(queries, keys, tau, base_2=False))
    is_near = are_within(reach / BASE_2, a, b, weights)
    if slope is None or 0 in (*queries.shape, *keys.shape):
        return is_near
    return is_near & (separation_of(jnp, slope, a, b, weights, of_coordinates(tau, keys)) >= APART)


def largest_tau(tau: Array, *points: Array) -> Array:
    """The largest τ of those that share their points: if products are accurate for it, they are for the others.

    Smaller ones reach farther pairs as well, whose u is larger beside their norms.
    """
    if any(x.ndim - 2 != tau.ndim for x in points):
        return tau
    axes = (i for i, n in enumerate(tau.shape) if are_known(n) and n > 1 and all(x.shape[i] == 1 for x in points))
    return tau.max(tuple(axes), keepdims=True)


def separation_of(xp: Any, slope: Callable[..., Any], a: Scaled, b: Scaled, weights: Any, each: bool) -> Any:
    """The `separation` of pairs, estimated from some queries: the least of a batch. `xp` is NumPy or JAX."""
    num = a.points.shape[-2]
    if are_known(num):
        rows = min(num, MOST_ROWS, max(LEAST_ROWS, num // MOST_ROWS))
        indices: Any = np.int32(num * (0.618034 * np.arange(1, rows + 1) % 1))  # golden ratio: avoids any period
    else:
        indices = (num * (0.618034 * jnp.arange(1, LEAST_ROWS + 1, dtype="float32") % 1)).astype("int32")
    a = Scaled(a.points[..., indices, :], a.norms[..., indices, :])
    psi = xp.abs(slope(xp.maximum(a.norms + b.norms.mT - 2 * a.points @ b.points.mT, 0)))
    ones = xp.ones_like(b.norms)
    return separation(xp, a, psi @ powers(xp, b, ones if weights is None else xp.abs(weights), each)).min()


def separation(xp: Any, a: Scaled, sums: Any, groups: int = 1) -> Any:
    """The mean of u over that of ‖a‖² + ‖b‖² for each group of rows (*batch, groups), from Σ_n |ψ w| [b, 1, ‖b‖²].

    It is the ratio over all pairs of a group, or the mean of the ratios of its rows if that is less. Of parts by
    coordinate it is the least.
    """
    moment, size = (z.reshape(*z.shape[:-2], groups, -1, z.shape[-1]) for z in pulls_from_powers(a, sums)[1:])
    seen = size > 0  # false for NaN, and for a query that is far from all keys
    own = xp.where(seen, moment / xp.where(seen, size, 1), 1)
    columns = own, xp.where(seen, moment, 0), xp.where(seen, size, 0)
    own, moment, size = xp.split(xp.concatenate(columns, -1).mean(-2), 3, -1)  # one reduction compiles in less time
    return xp.minimum(xp.where(size > 0, moment / xp.where(size > 0, size, 1), 1), own).min(-1)


def powers(xp: Any, b: Scaled, weights: Any, each: bool) -> Any:
    """The columns w [b, 1, ‖b‖²], with the square of `each` coordinate instead if asked for. `xp` is NumPy or JAX."""
    squares = b.points * b.points if each else b.norms
    return xp.concatenate([b.points, xp.ones_like(b.norms), squares], -1) * weights


def pulls_from_powers(a: Scaled, sums: Any) -> tuple[Any, Any, Any]:
    """Σ W (b - a), Σ W ‖b - a‖² and Σ W (‖a‖² + ‖b‖²) from Σ_n ψ `powers` at the rows, or their parts by coordinate."""
    dim = a.points.shape[-1]
    first, mass, second = sums[..., :dim], sums[..., dim : dim + 1], sums[..., dim + 1 :]
    cross, norms = a.points * first, a.points * a.points
    if second.shape[-1] < dim:
        cross, norms = cross.sum(-1, keepdims=True), a.norms
    size = mass * norms + second
    return first - mass * a.points, size - 2 * cross, size
