"""Sums of Gaussians of many points in few dimensions by waves; where that pays, and which queries it leaves in doubt.

The error of a query is at most ε Σ|v|, and rounding; what a sum promises is relative to Σ Φ|v|. That comes from the
same waves: so it is known afterwards where the promise holds. The other queries, far from most keys, are for tiles.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from .._arrays.blocks import scan
from .._arrays.places import vary_like
from .._arrays.points import as_rows, by_point, shared
from .._checks.settings import are_known
from .costs import cpu_costs
from .fourier import DIMENSIONS, MOST, WAVES, Nodes, blocks_of, box, coefficients, nodes, slope, spectrum, values_at
from .plan import NEAR, Plan
from .wanted import Sums, Wanted


class Promise(NamedTuple):
    """What errors may be, relative to the sizes of terms.

    Attributes:
        of_all: in L2 over the queries.
        of_one: of each of them.
    """

    of_all: float
    of_one: float


SUMS = {"float32": Promise(2.0**-20, 2.0**-10), "float64": Promise(2.0**-41, 2.0**-30)}
LOGS = {"float32": Promise(2.0**-24, 2.0**-24), "float64": Promise(2.0**-41, 2.0**-41)}  # in float64 both
PULLS = 4  # times as much, of pulls
FARTHEST = 6  # bandwidths from which pulls count: Σ Φ|w| r is at least Σ Φ|w| r² over that, but for 1e-8
ROUNDING = 6  # units of the size of all waves that arithmetic errs by
SHARE = 2.5  # bandwidths from which a sum has its terms
# Beside all pairs by products about one center: time of tiles of points that lie anywhere, and of sorting a point.
TILES, SORTING = 2.5, 300.0
REACH = 2 * 13.2 + 4  # bandwidths that tiles look across: in which Gaussians of float32 end, and the size of two tiles
WORTH = 0.8  # of the time of pairs


def most_blocks(precision: str, num_queries: Any, num_keys: Any, dim: int, channels: int) -> int:
    """Blocks of waves of one coordinate that may pay for such sizes, on a CPU; 0 where none do."""
    if dim not in DIMENSIONS or not are_known(num_queries, num_keys) or 0 in (num_queries, num_keys, channels):
        return 0
    sizes = num_queries, num_keys, dim, channels
    of_pairs, others = TILES * _of_pairs(precision, *sizes), [1.0] * (dim - 1)
    paying = (x for x in range(MOST[dim], 0, -1) if _of_waves(precision, sizes, [float(x), *others]) < of_pairs)
    return next(paying, 0)


def by_waves(
    chosen: Plan,
    queries: Array,
    keys: Array,
    values: Array,
    tau: Array,
    precision: str | None = None,
    known: bool = False,
) -> Bool[Array, ""] | bool:
    """Whether a sum of operands of equal rank is for waves, rather than for products about one center.

    True also where that is so of all points that these products would take; only that is told of what is `known` of
    shapes alone. In another precision than the plan's if one is given.
    """
    if chosen.waves is not None:
        return chosen.waves
    scale, precision = by_point(jnp.sqrt(tau), queries), precision or chosen.precision
    num_queries = math.prod(queries.shape[:-1]) if shared(keys, values, scale) else queries.shape[-2]
    sizes = num_queries, *keys.shape[-2:], values.shape[-1]
    most = most_blocks(precision, *sizes)
    if not most:
        return False
    widest = np.full(sizes[2], 2 * math.sqrt(NEAR[precision] / sizes[2]), precision)
    if pays(np, most, precision, NEAR[precision] * 2, sizes, widest):
        return True
    if known:
        return False
    _, extent = box(*(as_rows(scale * x) for x in (queries, keys)))
    return pays(jnp, most, precision, chosen.reach, sizes, extent)


def pays(
    xp: Any, most: int, precision: str, reach: float, sizes: tuple[int, int, int, int], extent: Float[Array, " d"]
) -> Any:
    """Whether waves are estimated to take less time than pairs, of points in a box in bandwidths. `xp`: NumPy or JAX.

    Sizes are M, N, D and C; `reach` is the R² up to which products about one center take all pairs.
    """
    blocks = blocks_of(xp, extent, tolerance_of(xp, precision, extent))
    of_pairs = _of_pairs(precision, *sizes)
    of_tiles = TILES * of_pairs * xp.minimum(1, REACH / extent).prod() + SORTING * (sizes[0] + sizes[1])
    otherwise = xp.where(xp.square(extent / 2).sum() <= reach, of_pairs, of_tiles)
    return (blocks.max() <= most) & (_of_waves(precision, sizes, list(blocks)) < WORTH * otherwise)


def _of_pairs(precision: str, num_queries: int, num_keys: int, dim: int, channels: int) -> float:
    """Nanoseconds of all pairs, by products about one center."""
    costs, _ = cpu_costs()
    return costs[f"xla in {precision}"].nanoseconds(num_queries * num_keys, dim + 2 + channels)


def _of_waves(precision: str, sizes: tuple[int, int, int, int], counts: Any) -> Any:
    """Nanoseconds by so many blocks of waves of each coordinate."""
    num_queries, num_keys, dim, channels = sizes
    cost, waves = cpu_costs()[0][f"waves in {precision}"], 2 * WAVES[dim]
    blocks = math.prod(counts[1:], start=counts[0])
    of_point = blocks * (cost.pair * dim * waves + cost.column * waves**dim)
    return cost.call + channels * (num_queries + num_keys) * of_point


def tolerance_of(xp: Any, dtype: str, extent: Float[Array, " d"]) -> Any:
    """ε for all queries of a box in bandwidths: so that it does not count beside rounding, in the mean."""
    return xp.maximum(xp.minimum(1, SHARE / extent).prod() * float(np.finfo(dtype).eps), 1e-30).astype(extent.dtype)


class Layout(NamedTuple):
    """Waves of a pair of clouds: their nodes, whether these do, the error ε of Φ, and the box in bandwidths."""

    nodes: Nodes
    fits: Bool[Array, ""]
    error: Float[Array, ""]
    extent: Float[Array, " d"]


def layout(most: int, tolerance: float | None, scale: Float[Array, "1 _"], queries: Array, keys: Array) -> Layout:
    """That of a tolerance, or of one that does not count beside rounding, in at most so many blocks."""
    queries, keys, scale = map(lax.stop_gradient, (queries, keys, scale))
    center, extent = box(queries, keys)
    scales = jnp.broadcast_to(scale[0], extent.shape)
    error = tolerance_of(jnp, keys.dtype.name, extent * scales) if tolerance is None else jnp.asarray(tolerance, keys.dtype)
    return Layout(*nodes(most, center, extent, scales, error), extent * scales)


def sums_by_waves(
    wanted: Wanted,
    of: Layout,
    promise: Promise | None,
    queries: Float[Array, "m d"],
    keys: Float[Array, "n d"],
    values: Float[Array, "n c"],
    scale: Float[Array, "1 _"],
    row_weights: Float[Array, "m e"],
    weights: Float[Array, "n e"],
) -> tuple[Sums, Bool[Array, " m"]]:
    """`Sums` of Gaussians, and the queries in doubt; all of them where the layout does not do.

    Without a promise none is in doubt, and sums are functions of JAX with derivatives of every order.
    """
    dim, dtype = queries.shape[1], queries.dtype
    scales, each = jnp.broadcast_to(scale[0], (dim,)), scale.shape[1] > 1
    pulling, channels = weights.shape[1], jnp.concatenate([weights, values], 1).T
    of_keys = functools.partial(_of_channel, wanted, of.nodes, scales, each, queries, keys)
    operands = [scale, queries, keys, channels, row_weights]

    def varying(shape: tuple[int, ...], value: Any = 0) -> Array:
        return vary_like(jnp.full(shape, value, dtype), operands)

    def add(state: tuple[Array, Array, Array, Array], item: tuple[Array, Array, Array]) -> tuple[Any, Array]:
        pulls, spread, doubt, first = state
        number, v, g = item
        is_pulling = number < pulling
        if promise is None:
            found, _ = of_keys(v)
        else:
            # A channel that pulls and is summed is summed once. One of both signs is summed again, of its sizes.
            known = ~is_pulling & (v == channels[0]).all() & (pulling == 1)
            mixed = (v > 0).any() & (v < 0).any()
            nothing = jax.tree.map(lambda x: varying(x.shape), jax.eval_shape(of_keys, v))

            def if_needed(given: tuple[Array, Array]) -> tuple[Array, Array]:
                return lax.cond(given[1] & ~known, of_keys, lambda _: nothing, given[0])

            both, sizes = lax.map(if_needed, (jnp.stack([v, jnp.abs(v)]), jnp.stack([~known, mixed])))
            found = jnp.where(known, first, both[0])
            terms = jnp.where(known, 0, jnp.where(mixed, both[1], jnp.abs(both[0])))
            size = jnp.where(mixed, jnp.maximum(sizes[0], sizes[1]), sizes[0])
            error = ROUNDING * float(jnp.finfo(dtype).eps) * size + of.error * jnp.abs(v).sum()
            doubt |= _are_in_doubt(promise, error, terms[0]) & ~known
            if pulling:
                moved = jnp.abs(g)
                of_pulls = _are_in_doubt(
                    promise._replace(of_all=PULLS * promise.of_all), moved * error, moved * terms[1] / FARTHEST
                )
                doubt |= of_pulls & is_pulling
            first = jnp.where(number == 0, found, first)
        if pulling:
            weight = jnp.where(is_pulling, g, 0)
            pulls += weight * found[2 : 2 + dim]
            spread += weight * (found[2 + dim :] if each else found[1:2])
        return (pulls, spread, doubt, first), found[0]

    rows = jnp.concatenate([row_weights, jnp.zeros((len(queries), values.shape[1]), dtype)], 1).T
    num, symbols = len(queries), _symbols(wanted, dim, each)
    state = varying((dim, num)), varying((dim if each else 1, num)), varying((num,)) > 0, varying((symbols, num))
    (pulls, spread, doubt, _), sums = scan(add, state, (jnp.arange(len(channels)), channels, rows))
    spread = (spread / jnp.square(scale).T).T if wanted.spread else varying((num, 0))
    pulls = (pulls / jnp.square(scales)[:, None]).T if pulling else varying((num, 0))
    return Sums(sums[pulling:].T, pulls, spread), doubt | ~of.fits


def _symbols(wanted: Wanted, dim: int, each: bool) -> int:
    return 1 if not wanted.pulls.kernels else 2 + dim + (dim if each else 0)


def _of_channel(
    wanted: Wanted, of: Nodes, scales: Array, each: bool, queries: Array, keys: Array, v: Float[Array, " n"]
) -> tuple[Float[Array, "s m"], Float[Array, ""]]:
    """Of one channel S = Σ Φ v; if it pulls Σ Φ v u, the slopes ∂S and, of `each` coordinate, its part of the second.

    And the size of all waves. From ∂²S = Σ (u - 1) Φ v, in bandwidths and one coordinate.
    """
    found = coefficients(of, keys, v[None])
    for g in spectrum(of, scales):
        found = found * g
    symbols, dim = [found], len(scales)
    if wanted.pulls.kernels:
        slopes = [slope(of, found, d) for d in range(dim)]
        seconds = [slope(of, x, d) / jnp.square(scales[d]) + found for d, x in enumerate(slopes)]
        symbols += [functools.reduce(jnp.add, seconds), *slopes, *(seconds if each else [])]
    return values_at(of, queries, jnp.concatenate(symbols)), jnp.sqrt(jnp.square(found).sum())


def _are_in_doubt(promise: Promise, error: Array, terms: Float[Array, " m"]) -> Bool[Array, " m"]:
    """Whether errors may be more than the promise allows beside sums of terms; NaN may."""
    size = jnp.where(jnp.isfinite(terms), jnp.abs(terms), 0)
    largest = size.max()
    mean = largest * jnp.sqrt(jnp.square(size / jnp.where(largest > 0, largest, 1)).mean())
    allowed = jnp.minimum(promise.of_one * terms, promise.of_all * jnp.maximum(terms, mean))
    return ~(error <= allowed)
