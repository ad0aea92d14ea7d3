"""Products between leaves of sorted points: which of them are accurate, and sums and pulls from moments."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from ..._arrays.points import FARTHEST, Scaled, as_rows, dot, squared_distances_of, squares_factors, turned, with_norms
from ..plan import NEAR, STRICTER
from ..products.pair_sums import APART, by_products, of_leaves, powers, pulls_from_powers, separation
from ..request import NOTHING, Channels, Columns, PairSums, Request, Rows, differ

# The least u over ‖a‖² + ‖b‖² at which a product is accurate: its relative error is then at most the unit over this.
TRUSTED = {"float32": 0.1, "float64": 1e-3}
LARGEST = FARTHEST / 8  # the largest ‖a‖² for products
Kept = Bool[Array, "rows columns"]


def sums_by_moments(
    requests: Sequence[Request],
    scale: Array,
    rows: Array,
    columns: Columns,
    a: Scaled,
    b: Scaled,
    u: Array,
    keep: Kept,
    of_both: tuple[Array, Array] | None,
) -> tuple[list[Kept], list[PairSums]]:
    """Which pairs of leaves to keep are far enough apart for pulls; and `PairSums` over these pairs, whose u is given.

    The sums are at the queries, whose weights are `rows`; if `requests` has two items, also at the keys. Pairs of equal
    index are left out, if there are indices `of_both`.
    """
    of_points = of_leaves(keep, u) if of_both is None else of_leaves(keep, u) & differ(*map(as_rows, of_both))
    a, b = map(_for_products, (a, b))
    shapes, g, (v, w) = (rows.shape[:2], columns.points.shape[:2]), as_rows(rows), map(as_rows, columns[1:3])
    if len(requests) == 1:
        found = [_at_queries(requests[0], scale, g, Columns(b.points, v, w), a, b, u, of_points)]
    else:
        found = _at_both(requests, scale, g, w, a, b, u, of_points)
    kept, results = [], []
    for axis, shape, x, (sums, seen) in zip((1, 0), shapes, (a, b), found, strict=False):
        enough = jnp.ones(shape[0], bool) if seen is None else separation(jnp, x, seen, shape[0]) >= APART
        results.append(masked(PairSums(*(y.reshape(*shape, y.shape[1]) for y in sums)), enough))
        kept.append(keep & jnp.expand_dims(enough, axis))
    return kept, results


def masked(sums: PairSums, keep: Bool[Array, " leaves"]) -> PairSums:
    """The sums at the leaves to keep, and zeros at the others."""
    return jax.tree.map(lambda x: jnp.where(keep[:, None, None], x, 0), sums)


def _at_queries(
    request: Request, scale: Array, g: Array, columns: Columns, a: Scaled, b: Scaled, u: Array, keep: Array
) -> tuple[PairSums, Array | None]:
    """`PairSums` at the queries, and what `separation` needs; both are further channels of the sums."""
    slopes, num, dim = [x.slope for x in request.pulls.kernels], len(request.sums.kernels), a.points.shape[1]
    single, needs_separation = set(request.pulls.widths) == {1}, _needs_separation(request, scale, a)
    of_powers = functools.partial(powers, jnp, b, each=scale.shape[1] > 1)
    weights = request.pulls.parts(columns.weights)
    shared = single and needs_separation and request.one_sign  # the pulls tell it
    width = None if request.spread or shared else dim + 1  # squares only where they are used
    pulling = [of_powers(w)[:, :width] for w in weights] if single else []
    seen = [of_powers(jnp.abs(w).max(1, keepdims=True)) for w in weights] if needs_separation and not shared else []
    values = [*request.sums.parts(columns.values), *pulling, *seen]
    kernels = *request.sums.kernels, *slopes[: len(pulling)], *slopes[: len(seen)]
    asked = Channels(kernels, tuple(x.shape[1] for x in values))
    of_products = Request(asked, NOTHING) if single else request._replace(sums=asked)
    columns = columns._replace(values=jnp.concatenate(values or [columns.values], 1))
    found = by_products(of_products, scale, Rows(a.points, g), columns, u, keep)
    parts = asked.parts(found.sums)
    own, pulling, seen = parts[:num], parts[num : num + len(pulling)], parts[num + len(pulling) :]
    found = found._replace(sums=jnp.concatenate([found.sums[:, :0], *own], 1))
    if single:
        moments = functools.reduce(jnp.add, (g * x for g, x in zip(request.pulls.parts(g), pulling, strict=True)))
        found = _of_moments(request, scale, found.sums, a, moments)
    seen = [jnp.sign(x[:, dim : dim + 1]) * x for x in pulling] if shared else seen
    return found, functools.reduce(jnp.add, seen) if needs_separation else None


def _at_both(
    requests: Sequence[Request], scale: Array, g: Array, v: Array, a: Scaled, b: Scaled, u: Array, keep: Array
) -> list[tuple[PairSums, Array | None]]:
    """`PairSums` at queries and at keys from one u, and what `separation` needs: W gives the pulls, |W| the rest."""
    (of_queries, of_keys), each = requests, scale.shape[1] > 1
    needs_separation = _needs_separation(of_queries, scale, a)
    width = None if of_queries.spread else a.points.shape[1] + 1  # squares only where they are used
    parts, of_values = of_queries.pulls.pull(u, v, g, keep)
    at_queries, at_keys = [], []
    for (psi, left, right), channels in zip(parts, of_queries.pulls.widths, strict=True):
        sizes = psi if channels == 1 else jnp.abs(psi)
        terms = [(psi, left, right, width), (sizes, jnp.abs(left), jnp.abs(right), None)][: 1 + needs_separation]
        at_queries.append([x * dot(w, powers(jnp, b, y, each)[:, :n]) for w, x, y, n in terms])
        at_keys.append([y * turned(dot(powers(jnp, a, x, each)[:, :n].mT, w)) for w, x, y, n in terms])

    def side(request: Request, sums: Array, x: Scaled, parts: list[list[Array]]) -> tuple[PairSums, Array | None]:
        moments, *seen = (functools.reduce(jnp.add, x) for x in zip(*parts, strict=True))
        return _of_moments(request, scale, sums, x, moments), seen[0] if needs_separation else None

    return [side(of_queries, g[:, :0], a, at_queries), side(of_keys, turned(of_values), b, at_keys)]


def _needs_separation(request: Request, scale: Array, a: Scaled) -> bool:
    """Whether the separation of pairs must be checked: if there are pulls and a small u need not be accurate."""
    return bool(request.pulls.kernels) and not request.strict(a.points.shape[1], scale.shape[1])


def _of_moments(request: Request, scale: Array, sums: Array, a: Scaled, moments: Array) -> PairSums:
    toward, apart, _ = pulls_from_powers(a, moments)
    return PairSums(sums, toward / scale, apart / jnp.square(scale) if request.spread else apart[:, :0])


def about_center(scale: Array, center: Array, rows: Array, columns: Array) -> tuple[Scaled, Scaled]:
    """The points of a tile about a center, with their norms: infinite if too large for products."""
    found = with_norms(*((x - center[None, None]) * scale[None] for x in (rows, columns)))
    return tuple(x._replace(norms=jnp.where(x.norms < LARGEST, x.norms, jnp.inf)) for x in found)  # type: ignore[return-value]


def distances(a: Scaled, b: Scaled) -> Float[Array, "m n"]:
    """The u of all pairs of points of leaves, by a product; points too far for products count as the center."""
    return squared_distances_of(*squares_factors(*map(_for_products, (a, b))))


def _for_products(x: Scaled) -> Scaled:
    return Scaled(*(as_rows(jnp.where(x.norms < jnp.inf, y, 0)) for y in x))


def known_by_norms(strict: bool, a: Scaled, b: Scaled) -> Bool[Array, "rows columns"]:
    """Whether the norms show that a product gives every u between two leaves accurately.

    It does for two points near the center, where u may be small, and for two whose squared norms differ by a factor of
    `ratio`, because u is then large beside them.
    """
    dtype = a.points.dtype.name
    share, near = 1 - TRUSTED[dtype], 0 if strict else NEAR[dtype] / STRICTER
    ratio = ((1 + math.sqrt(1 - share**2)) / share) ** 2

    def ranges(norms: Array) -> Any:
        """The largest norm of near points, and the least and the largest norm of the others."""
        norms, is_near = norms[..., 0], norms[..., 0] <= near
        three = jnp.where(is_near, norms, 0), jnp.where(is_near, jnp.inf, norms), jnp.where(is_near, 0, norms)
        none = tuple(jnp.full((), x, norms.dtype) for x in (0, jnp.inf, 0))
        return lax.reduce(three, none, _joined, (1,))

    p, least, largest = (x[:, None] for x in ranges(a.norms))
    q, first, last = (x[None] for x in ranges(b.norms))
    apart = (least >= ratio * last) | (first >= ratio * largest)
    return (first >= ratio * p) & (least >= ratio * q) & apart & (jnp.maximum(largest, last) < jnp.inf)


def _joined(a: Sequence[Array], b: Sequence[Array]) -> tuple[Array, ...]:
    return jnp.maximum(a[0], b[0]), jnp.minimum(a[1], b[1]), jnp.maximum(a[2], b[2])


def known_by_product(strict: bool, a: Scaled, b: Scaled, u: Array, known: Array) -> Bool[Array, "rows columns"]:
    """Whether the norms (`known`) or a product `u` show that it is accurate for every pair of points of two leaves.

    For no pair may u - t (‖a‖² + ‖b‖²), with t from TRUSTED, be below 0, or, unless `strict`, below -1.
    """
    p, q = (TRUSTED[x.points.dtype.name] * x.norms for x in (a, b))
    rest = (u.reshape(*a.norms.shape[:2], -1) - p).min(1)  # one axis at a time: XLA takes less time for that
    rest = (rest - as_rows(q).T).reshape(-1, *b.norms.shape[:2]).min(2)
    can = a.norms.max(1) + b.norms.max(1).T < jnp.inf
    return known | can & (rest + (0 if strict else 1) >= 0)


def middles(least: Float[Array, "tiles leaves d"], largest: Float[Array, "tiles leaves d"]) -> Float[Array, "tiles d"]:
    """The middle of the most compact leaf of each tile, which neither outliers nor leaves of two clusters move.

    Halving is exact. Dividing by a number of points is not, and XLA may fuse it with one subtraction of the center and
    not with another: moments about two centers that differ in the last bit lose all their digits far from the origin.
    """
    spreads = jnp.square(largest - least).sum(-1)
    spreads = spreads.astype("float32")  # the only dtype that argmin has where JAX's 64-bit mode is off
    most_compact = lax.argmin(jnp.where(jnp.isnan(spreads), jnp.inf, spreads), 1, "int32")
    return jnp.take_along_axis((largest + least) / 2, most_compact[:, None, None], 1)[:, 0]
