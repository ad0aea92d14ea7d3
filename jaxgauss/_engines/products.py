"""u = ‖a - b‖² of tiles by products, with the digits that kernels with a kink need of it.

Such a kernel is a function of √u, of which a product of points R bandwidths from their center knows no more than
2⁻¹² R: a tile that holds a pair closer than R/11 takes a second product, of what rounding left of the first; its
gradients take differences. Equal points in rows and columns of one number, the diagonal of a sample with itself, are
told by that number, and are no such pair.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from .._arrays.logits import dot
from .._arrays.places import whole as whole_there
from .._arrays.points import Scaled, as_rows, shared
from .._arrays.shapes import G, S, V
from .._checks.settings import are_known
from .channels import Channels
from .plan import Plan
from .tiles import in_groups, tiled_pullback, tiled_sum

NEAR = 2.0**-7  # u over R² below which the root of one product has lost digits


class Products(NamedTuple):
    """Scaled points as factors [-2a, 1, ‖a‖²] and [b, ‖b‖², 1] of a product that makes u.

    Attributes:
        a, b: (…, M, W) and (…, N, W): the factors; for kernels with a kink also the number of the row, -1 where the
            column of that number is another point.
        reach: R² of all points, for kernels with a kink; or None.
        looks: whether tiles take the second product only where they must; not on CUDA, where a look waits for the host.
    """

    a: Array
    b: Array
    reach: Array | None
    looks: bool = True

    @classmethod
    def of(cls, a: Scaled, b: Scaled, channels: Channels, chosen: Plan) -> "Products":
        """Of scaled points."""
        factors = _factors(a.points, b.points, a.norms, b.norms)
        if not channels.kinked:
            return cls(*factors, None)
        norms = jnp.concatenate(whole_there(a.norms.ravel(), b.norms.ravel()))
        reach = jnp.where(jnp.isfinite(norms), norms, 0).max()
        numbered = (jnp.concatenate(x, -1) for x in zip(factors, _numbers(a.points, b.points), strict=True))
        return cls(*numbered, reach=reach, looks=chosen.platform != "cuda")

    def sums(self, channels: Channels, values: V, *, whole: bool) -> S:
        """Σ_n κ(u) v_n, by tiles."""
        a, b, width = self.a, self.b, values.shape[-1]

        def tile_sum(a: Array, b: Array, v: Array) -> Array:
            def of(u: Array) -> Array:
                return channels.sum(u, v)

            tile = self._replace(a=a, b=b)
            return tile.apply(of, lambda: of(_split_squares(tile.reach, *tile.points)))

        def summed(a: Array, b: Array, v: Array) -> Array:
            return tiled_sum(tile_sum, a, b, v, whole=whole)

        batch = jnp.broadcast_shapes(*(x.shape[:-2] for x in (a, b, values)))
        if shared(b, values):  # the batch of the queries is more rows
            total = summed(*(as_rows(x) for x in (a, b, values))).reshape(*a.shape[:-1], width)
            return jnp.broadcast_to(total, (*batch, *total.shape[-2:]))
        return in_groups(summed, a, b, values)

    def pullback(self, channels: Channels, values: V, g: G, *, whole: bool, with_tau: bool) -> tuple[Array, ...]:
        """Gradients of the whole batch: with respect to scaled points and values, and -Σ_mn S u (*batch,)."""
        dim = self.points[0].shape[-1]

        def pull(a: Array, b: Array, v: Array, g: Array) -> tuple[Array, ...]:
            tile = self._replace(a=a, b=b)
            return tile.apply(
                lambda u: _pull(channels, *tile.points, u, v, g, with_tau),
                lambda: _pull_exactly(channels, *tile.points, v, g),
            )

        return in_groups(functools.partial(tiled_pullback, pull, dim, whole=whole), self.a, self.b, values, g)

    @property
    def points(self) -> tuple[Array, Array]:
        """What is in the factors."""
        dim = self.a.shape[-1] - (2 if self.reach is None else 3)
        return self.a[..., :dim] / -2, self.b[..., :dim]

    def apply(self, function: Callable[[Array], Any], exactly: Callable[[], Any]) -> Any:
        """`function` of u of all pairs; or what is `exactly` the same, where pairs are too near for one product.

        NaN marks these, for it is seen in the sums: nothing of a tile's size is looked at.
        """
        if self.reach is None:
            return function(jnp.maximum(dot(self.a, self.b.mT), 0))
        if not self.looks:
            return function(_split_squares(self.reach, *self.points))
        i, j, near = self.a[..., -1:], self.b[..., -1:].mT, NEAR * self.reach
        a, b = self._with_far_filling()

        def marked() -> Array:
            u = dot(a, b.mT)
            return jnp.where(u < near, jnp.nan, u)

        on_diagonal = jnp.any((i >= j[..., :1]) & (i <= j.max(-1, keepdims=True)))  # numbers rise; filling has none
        found = lax.cond(on_diagonal, lambda: function(jnp.where(i == j, 0, marked())), lambda: function(marked()))
        any_near = jnp.stack([jnp.isnan(x).any() for x in jax.tree.leaves(found)]).any()
        return lax.cond(any_near, exactly, lambda: found)

    def _with_far_filling(self) -> tuple[Array, Array]:
        """The factors, with zeros that fill a tile made points that are far from all: they are no near pair."""
        dim = self.a.shape[-1] - 3
        far = 4 * jnp.asarray(self.reach, self.a.dtype)
        (ones_a, norms_a), (norms_b, ones_b) = (
            (x[..., dim : dim + 1], x[..., dim + 1 : dim + 2]) for x in (self.a, self.b)
        )
        a = jnp.concatenate([self.a[..., : dim + 1], jnp.where(ones_a == 0, far, norms_a)], -1)
        columns = jnp.where(ones_b == 0, far, norms_b), jnp.ones_like(ones_b)
        return a, jnp.concatenate([self.b[..., :dim], *columns], -1)


def _pull(channels: Channels, x: Array, y: Array, u: Array, v: Array, g: Array, with_tau: bool) -> tuple[Array, ...]:
    """Of a tile, da (…, rows, D), dbᵀ (…, D, columns), dvᵀ (…, C, columns) and -Σ S u (…).

    g and v of one channel go with the points, not with ψ: nothing else of a tile's size is made.
    """
    batch = jnp.broadcast_shapes(*(z.shape[:-2] for z in (x, y, v, g)))
    x1, y1 = (jnp.concatenate([z, jnp.ones_like(z[..., :1])], -1) for z in (x, y))  # S [b, 1]: S b and its row sums
    parts, dv = channels.pull(u, v, g)
    da = functools.reduce(jnp.add, (left * dot(s, right * y1) for s, left, right in parts))
    db = functools.reduce(jnp.add, (right.mT * dot((left * x1).mT, s) for s, left, right in parts))
    total = jnp.zeros(batch, u.dtype)
    if with_tau:
        total -= functools.reduce(jnp.add, ((s * u * left * right.mT).sum((-2, -1)) for s, left, right in parts))
    da, db = da[..., :-1] - da[..., -1:] * x, db[..., :-1, :] - db[..., -1:, :] * y.mT
    return *(jnp.broadcast_to(z, (*batch, *z.shape[-2:])) for z in (da, db, dv)), total


def _pull_exactly(channels: Channels, x: Array, y: Array, v: Array, g: Array) -> tuple[Array, ...]:
    """The same from differences of coordinates."""
    batch = jnp.broadcast_shapes(*(z.shape[:-2] for z in (x, y, v, g)))
    full = (jnp.broadcast_to(z, (*batch, *z.shape[-2:])) for z in (x, y, v))
    total, pullback = jax.vjp(channels.sum_of_differences, jnp.ones((*batch, 1, 1), x.dtype), *full)
    d_scale, da, db, dv = pullback(jnp.broadcast_to(g, total.shape))
    return da, db.mT, dv.mT, d_scale[..., 0, 0]


def _factors(a: Array, b: Array, a_terms: Array, b_terms: Array) -> tuple[Array, Array]:
    """Of -2abᵀ and a term for each row and each column."""
    ones = [jnp.ones_like(x) for x in (a_terms, b_terms)]
    return jnp.concatenate([-2 * a, ones[0], a_terms], -1), jnp.concatenate([b, b_terms, ones[1]], -1)


def _split_squares(reach: Array | None, a: Array, b: Array) -> Array:
    """‖a - b‖² from two products, with half as many digits again: up to 2⁻³⁴ R² in float32; of pairs below, zero.

    Points are sums x + δ of few digits and the rest. ‖x - y‖² comes out exactly, for all its terms are multiples of one
    number; 2⟨x - y, δ - ε⟩ + ‖δ - ε‖² is small.
    Source: Ozaki, Ogita, Oishi & Rump, "Error-free Transformations of Matrix Multiplication", 2012.
    """
    assert reach is not None
    digits = jnp.finfo(a.dtype).nmant + 1
    unit = jnp.ldexp(jnp.ones((), a.dtype), jnp.frexp(jnp.sqrt(reach))[1] + 2 - digits // 2)

    def split(points: Array) -> tuple[Array, Array]:
        first = jnp.round(points / unit) * unit
        return first, points - first

    def paired(points: Array, others: Array) -> Array:
        return (points * others).sum(-1, keepdims=True)

    (x, dx), (y, dy) = split(a), split(b)
    first, second = _factors(x, y, paired(x, x), paired(y, y))
    rest = jnp.concatenate([x, dx], -1), jnp.concatenate([dy, y + dy], -1)
    third, fourth = _factors(*rest, paired(dx, 2 * x + dx), paired(dy, 2 * y + dy))
    u = dot(first, second.mT) + dot(third, fourth.mT)
    return jnp.where(u < 2.0 ** (8 - 3 * digits // 2) * reach, 0, u)


def _numbers(a: Array, b: Array) -> tuple[Float[Array, "*batch m 1"], Float[Array, "*batch n 1"]]:
    """The number of each row, or -1 where it is not the point of the column of that number; and of each column."""
    num_rows, num_columns = a.shape[-2], b.shape[-2]
    first = min(num_rows, num_columns) if are_known(num_rows, num_columns) else 0
    equal = (a[..., :first, :] == b[..., :first, :]).all(-1, keepdims=True)
    rows = jnp.where(equal, jnp.arange(first, dtype=a.dtype)[:, None], -1)
    rows = jnp.pad(rows, [(0, 0)] * (rows.ndim - 2) + [(0, num_rows - first), (0, 0)], constant_values=-1)
    batch = jnp.broadcast_shapes(a.shape[:-2], rows.shape[:-2])
    columns = jnp.arange(num_columns, dtype=b.dtype)[:, None]
    return jnp.broadcast_to(rows, (*batch, *rows.shape[-2:])), jnp.broadcast_to(columns, (*b.shape[:-1], 1))
