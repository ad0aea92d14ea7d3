"""Tiles whose u a product knows: sums, and pulls as moments about the center where pairs are spread enough."""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool

from .._arrays.logits import dot
from .._arrays.points import Scaled, as_rows
from .channels import NOTHING, Channels
from .pairs import by_products
from .products import squared_distances_of, squares_factors
from .spread import SPREAD, about, powers, spread
from .wanted import Columns, Rows, Sums, Wanted

Kept = Bool[Array, "rows columns"]


def sums_by_moments(
    wanted: Sequence[Wanted], scale: Array, rows: Array, columns: Columns, a: Scaled, b: Scaled, keep: Kept
) -> tuple[list[Kept], list[Sums]]:
    """Sums of the pairs of leaves to keep; and of which of these they have the digits of pulls as well.

    At the queries, of weights `rows`; if two are wanted also at the keys.
    """
    a, b = (Scaled(*(as_rows(jnp.where(x.norms < jnp.inf, y, 0)) for y in x)) for x in (a, b))
    shapes, g, (v, w) = (rows.shape[:2], columns.points.shape[:2]), as_rows(rows), map(as_rows, columns[1:])
    if len(wanted) == 1:
        found = [_at_queries(wanted[0], scale, g, Columns(b.points, v, w), a, b, keep)]
    else:
        found = _at_both(wanted, scale, g, w, a, b, keep)
    kept, results = [], []
    for axis, shape, x, (sums, seen) in zip((1, 0), shapes, (a, b), found, strict=False):
        enough = jnp.ones(shape[0], bool) if seen is None else spread(jnp, x, seen, shape[0]) >= SPREAD
        results.append(masked(Sums(*(y.reshape(*shape, y.shape[1]) for y in sums)), enough))
        kept.append(keep & jnp.expand_dims(enough, axis))
    return kept, results


def masked(sums: Sums, keep: Bool[Array, " leaves"]) -> Sums:
    """Of some leaves, and zero of the others."""
    return jax.tree.map(lambda x: jnp.where(keep[:, None, None], x, 0), sums)


def _at_queries(
    wanted: Wanted, scale: Array, g: Array, columns: Columns, a: Scaled, b: Scaled, keep: Kept
) -> tuple[Sums, Array | None]:
    """By fused products: pulls of one channel are further sums, and so is what tells how far pairs are spread."""
    slopes, num, dim = [x.slope for x in wanted.pulls.kernels], len(wanted.sums.kernels), a.points.shape[1]
    single, looks = set(wanted.pulls.widths) == {1}, _looks(wanted, scale, a)
    of_powers = functools.partial(powers, jnp, b, each=scale.shape[1] > 1)
    weights = wanted.pulls.parts(columns.weights)
    shared = single and looks and wanted.one_sign  # what pulls tells it
    width = None if wanted.spread or shared else dim + 1  # no squares but where they are used
    pulling = [of_powers(w)[:, :width] for w in weights] if single else []
    seen = [of_powers(jnp.abs(w).max(1, keepdims=True)) for w in weights] if looks and not shared else []
    values = [*wanted.sums.parts(columns.values), *pulling, *seen]
    kernels = *wanted.sums.kernels, *slopes[: len(pulling)], *slopes[: len(seen)]
    asked = Channels(kernels, tuple(x.shape[1] for x in values))
    of_products = Wanted(asked, NOTHING) if single else wanted._replace(sums=asked)
    columns = columns._replace(values=jnp.concatenate(values or [columns.values], 1))
    found = by_products(of_products, scale, Rows(a.points, g), columns, squares_factors(a, b), keep)
    parts = asked.parts(found.sums)
    own, pulling, seen = parts[:num], parts[num : num + len(pulling)], parts[num + len(pulling) :]
    found = found._replace(sums=jnp.concatenate([found.sums[:, :0], *own], 1))
    if single:
        moments = functools.reduce(jnp.add, (g * x for g, x in zip(wanted.pulls.parts(g), pulling, strict=True)))
        found = _of_moments(wanted, scale, found.sums, a, moments)
    seen = [jnp.sign(x[:, dim : dim + 1]) * x for x in pulling] if shared else seen
    return found, functools.reduce(jnp.add, seen) if looks else None


def _at_both(
    wanted: Sequence[Wanted], scale: Array, g: Array, v: Array, a: Scaled, b: Scaled, keep: Kept
) -> list[tuple[Sums, Array | None]]:
    """By one product: its tile is kept, and κ and ψ of it are for both sides, W and |W| for pulls and their spread."""
    (of_queries, of_keys), each, looks = wanted, scale.shape[1] > 1, _looks(wanted[0], scale, a)
    u = squared_distances_of(*squares_factors(a, b))
    leaves = keep.shape[0], u.shape[0] // keep.shape[0], keep.shape[1], u.shape[1] // keep.shape[1]
    kept = jnp.broadcast_to(keep[:, None, :, None], leaves).reshape(u.shape)
    width = None if of_queries.spread else a.points.shape[1] + 1  # no squares but where they are used
    parts, of_values = of_queries.pulls.pull(u, v, g, kept)
    at_queries, at_keys = [], []
    for (psi, left, right), channels in zip(parts, of_queries.pulls.widths, strict=True):
        sizes = psi if channels == 1 else jnp.abs(psi)
        terms = [(psi, left, right, width), (sizes, jnp.abs(left), jnp.abs(right), None)][: 1 + looks]
        at_queries.append([x * dot(w, powers(jnp, b, y, each)[:, :n]) for w, x, y, n in terms])
        at_keys.append([y * _turned(dot(powers(jnp, a, x, each)[:, :n].mT, w)) for w, x, y, n in terms])

    def side(wanted: Wanted, sums: Array, x: Scaled, parts: list[list[Array]]) -> tuple[Sums, Array | None]:
        moments, *seen = (functools.reduce(jnp.add, x) for x in zip(*parts, strict=True))
        return _of_moments(wanted, scale, sums, x, moments), seen[0] if looks else None

    return [side(of_queries, g[:, :0], a, at_queries), side(of_keys, _turned(of_values), b, at_keys)]


def _looks(wanted: Wanted, scale: Array, a: Scaled) -> bool:
    """Whether it is to be seen how far pairs are spread."""
    return bool(wanted.pulls.kernels) and not wanted.strict(a.points.shape[1], scale.shape[1])


def _turned(product: Array) -> Array:
    """The transpose of Lᵀ S; else XLA on a CPU forms Sᵀ L, which takes five times as long for a tile S."""
    return lax.optimization_barrier(product).mT


def _of_moments(wanted: Wanted, scale: Array, sums: Array, a: Scaled, moments: Array) -> Sums:
    toward, apart, _ = about(a, moments)
    return Sums(sums, toward / scale, apart / jnp.square(scale) if wanted.spread else apart[:, :0])
