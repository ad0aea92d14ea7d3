"""Sums over the pairs of a tile from differences of coordinates: kernels of u = τ‖q - k‖², and pulls at the queries."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from ..._arrays.devices import vary_like
from ..._arrays.points import cut_off, dot, turned, with_rank
from ..._arrays.shapes import are_known
from ..._kernels.kernels import Kernel
from ..products.short import longest, short_sum, summed_over_rows
from ..request import Columns, PairSums, Request, Rows, differ, joined
from ..tiles import scan

GROUP = 8  # coordinates whose differences are formed in one pass over a tile
PARTS = 4  # into which the queries of a tile are divided
ONE_SCALE = 2.0**30  # ratio of an extent to a distance at which float64 keeps 23 bits of the distance


def by_differences(
    request: Request,
    scale: Array,
    rows: Rows,
    columns: Columns,
    ratio: Array | None = None,
    moments: bool = False,
) -> PairSums:
    """`PairSums` of a tile from differences of unscaled points (*batch, D, N); `scale` is √τ (*batch, 1 or D, 1).

    With `moments`, pulls may be moments in float64, which must not be
    differentiated. Tiles are (…, N, M): reductions over keys are then vectorized over queries.
    """
    u = _squares(scale, rows.points, columns.points)
    of_kernels = request.of(u if ratio is None else ratio * u, differ(columns.indices, rows.indices))
    sums = [_summed(of_kernels[kernel], v) for kernel, v in request.sums.by_kernel(columns.values)]
    pulls, spread = _pulls(request, scale, u, of_kernels, rows, columns, moments)
    return PairSums(joined(sums, pulls), pulls, spread)


def both_by_differences(
    requests: Sequence[Request], scale: Array, rows: Rows, columns: Columns, moments: bool
) -> list[PairSums]:
    """`PairSums` at the queries and at the keys, from weights g_m and v_n; u, κ and ψ are formed once for both."""
    of_queries, of_keys = requests
    u = _squares(scale, rows.points, columns.points)
    of_kernels = of_keys.of(u, differ(columns.indices, rows.indices))
    sums = [dot(of_kernels[kernel], g) for kernel, g in of_keys.sums.by_kernel(rows.weights)]
    pulls, spread, at_keys = _pulls(of_queries, scale, u, of_kernels, rows, columns, moments, both=True)
    at_queries = PairSums(pulls[..., :0], pulls, spread)
    return [at_queries, PairSums(joined(sums, at_keys), at_keys, at_keys[..., :0])]


def _squares(scale: Array, queries: Array, keys: Array) -> Float[Array, "*batch n m"]:
    """The u of all pairs, a group of coordinates at a time."""

    def add(u: Array, x: tuple[Array, Array, Array]) -> tuple[Array, None]:
        squares = (jnp.square(with_rank(s[..., None], u) * _differences(q, k)) for q, k, s in zip(*x, strict=True))
        return functools.reduce(jnp.add, squares, u), None

    scale = with_rank(scale, queries)
    operands = queries, keys, jnp.broadcast_to(scale, (*scale.shape[:-2], queries.shape[-2], 1))
    batch = jnp.broadcast_shapes(queries.shape[:-2], keys.shape[:-2])
    zero = vary_like(jnp.zeros((*batch, keys.shape[-1], queries.shape[-1]), queries.dtype), operands)
    return cut_off(scan(add, zero, tuple(map(_grouped, operands)))[0])


def _pulls(
    request: Request,
    scale: Array,
    u: Array,
    of_kernels: dict[Kernel, Array],
    rows: Rows,
    columns: Columns,
    moments: bool,
    both: bool = False,
) -> list[Array]:
    """Pulls and spread at the queries (*batch, M, ·); for `both`, also the pulls Σ_m W (q - k) at the keys."""
    weights = jnp.zeros_like(u)
    for kernel, g, w in request.pulls.by_kernel(rows.weights, columns.weights):
        weights += of_kernels[kernel.slope] * (w * g.mT if w.shape[-1] == 1 else dot(w, g.mT))
    pulls = spread = jnp.zeros((*u.shape[:-2], u.shape[-1], 0), u.dtype)
    scale = with_rank(scale, rows.points)
    each, others = request.spread and scale.shape[-2] > 1, []
    if request.pulls.kernels:
        points, differences = (rows.points, columns.points), functools.partial(_pulled, each, both)
        if each or not moments:
            found = differences(weights, *points)
        else:  # points that coincide do not pull: without their weights, perhaps the largest, moments lose fewer digits
            weights, one_scale = jnp.where(u == 0, 0, weights), _are_of_one_scale(scale, u, *points)
            in_float64 = functools.partial(_pulled_in_float64, both)
            found = lax.cond(one_scale, in_float64, differences, weights, *points)
        pulls, *others = (x.mT for x in found)
        spread = others.pop() if each else spread
    if request.spread and not each:
        spread = short_sum(weights * u)[..., None] / jnp.square(scale)
    return [pulls, spread, *others]


def _pulled(each: bool, both: bool, weights: Array, queries: Array, keys: Array) -> list[Array]:
    """Σ_n W (k - q); for `both`, Σ_m W (q - k); for `each` coordinate, Σ_n W (k - q)²; all (*batch, D, ·)."""
    weights = lax.optimization_barrier(weights)

    def pull(x: tuple[Array, Array]) -> list[Array]:
        differences = _differences(*x)
        terms = weights * differences
        at_keys, squares = [-terms.sum(-1)] if both else [], [short_sum(terms * differences)] if each else []
        return [short_sum(terms), *at_keys, *squares]

    found = lax.map(pull, tuple(jnp.moveaxis(x, -2, 0) for x in (queries, keys)))
    return [jnp.moveaxis(x, 0, -2) for x in found]


def _pulled_in_float64(both: bool, weights: Array, queries: Array, keys: Array) -> list[Array]:
    """The pulls of `_pulled` from float64 moments about the middle of the keys; faster in many dimensions."""
    dtype, middle = keys.dtype, (keys.max(-1, keepdims=True) + keys.min(-1, keepdims=True)) / 2

    def pulled(own: Array, others: Array, weights: Array) -> Array:
        moments = dot(jnp.concatenate([others, jnp.ones_like(others[..., :1, :])], -2), weights)
        return (moments[..., :-1, :] - own * moments[..., -1:, :]).astype(dtype)

    with jax.enable_x64(True):
        weights, queries, keys, middle = (x.astype("float64") for x in (weights, queries, keys, middle))
        q, k = queries - middle, keys - middle
        return [pulled(q, k, weights), *([pulled(k, q, weights.mT)] if both else [])]


def _are_of_one_scale(scale: Array, u: Array, queries: Array, keys: Array) -> Bool[Array, ""]:
    """Whether float64 keeps the distance of the nearest points, whatever center among all points is used."""
    extent = jnp.maximum(queries.max(-1), keys.max(-1)) - jnp.minimum(queries.min(-1), keys.min(-1))
    nearest = jnp.where(u > 0, u, jnp.inf).min()
    return jnp.square(scale[..., 0] * extent).max() < ONE_SCALE**2 * nearest


def difference_tile(request: Request, scale: Array, rows: Rows, columns: Columns, ratio: Array) -> PairSums:
    """`by_differences` of points (*batch, N, D), with queries in parts: XLA reduces a batch of tiles faster."""
    num = rows.points.shape[-2]
    parts = PARTS if are_known(num) and num % PARTS == 0 else 1

    def in_parts(x: Array) -> Array:
        return x.reshape(*x.shape[:-2], parts, num // parts, x.shape[-1])

    rows, columns = jax.tree.map(in_parts, rows), jax.tree.map(lambda x: x[..., None, :, :], columns)
    a, b = (lax.optimization_barrier(x.points.mT) for x in (rows, columns))
    rows, columns = rows._replace(points=a), columns._replace(points=b)
    found = by_differences(request, scale.mT[..., None, :, :], rows, columns, ratio[..., None, :, :])
    return jax.tree.map(lambda x: x.reshape(*x.shape[:-3], num, x.shape[-1]), found)


def subtractable(x: Array) -> Array:
    """The points, with finite coordinates clipped so that their differences do not overflow."""
    largest = largest_coordinate(x.dtype)
    return jnp.where((jnp.abs(x) > largest) & jnp.isfinite(x), jnp.sign(x) * largest, x)


def largest_coordinate(dtype: Any) -> float:
    """Of points that can be subtracted, and their differences added, without overflow."""
    return float(jnp.finfo(dtype).max) / 4


def _summed(tile: Float[Array, "*#batch n m"], v: Float[Array, "*#batch n c"]) -> Float[Array, "*sums m c"]:
    """Σ_n over a tile times v."""
    if v.shape[-1] == 1:
        return short_sum(tile * v)[..., None]
    return turned(summed_over_rows(v, tile, longest(v)))


def _differences(q: Array, k: Array) -> Array:
    """k - q of one coordinate, (*batch, N, M)."""
    return k[..., :, None] - q[..., None, :]


def _grouped(points: Float[Array, "*batch d n"]) -> Float[Array, "groups each *batch n"]:
    x = jnp.moveaxis(points, -2, 0)
    each = x.shape[0] if x.shape[0] <= GROUP else GROUP
    x = jnp.pad(x, [(0, -x.shape[0] % each)] + [(0, 0)] * (x.ndim - 1))
    return x.reshape(math.ceil(x.shape[0] / each), each, *x.shape[1:])
