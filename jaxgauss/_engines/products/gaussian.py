"""The engines dense and blocked: XLA forms the sum and its pullback by matrix products."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from ..._arrays.exponential import SHORT, exp2
from ..._arrays.points import (
    BASE_2,
    Scaled,
    as_rows,
    by_point,
    dot,
    logit_factors,
    logits,
    scaled_points,
    shared,
    sizes_of_each,
    squared_distances,
    unbroadcast,
    with_norms,
)
from ..._arrays.shapes import G, K, Q, S, T, V, are_known
from ..scopes import scope
from ..tiles import by_parts_of_batch, tiled_pullback, tiled_sum
from .short import PIECE, longest, summed, summed_over_rows

FEW_PAIRS = 2**14  # whose norms and tile are steps of their own
WIDE = 32  # dimensions
ALONE = 3  # so many channels beside moments are products by themselves: of one column they may be longer
TURNED = 8, 128  # a long product of at most so many channels and at least so many rows takes less time as (vᵀ tileᵀ)ᵀ


def blocked_sum(queries: Q, keys: K, values: V, tau: T) -> S:
    """The Gauss sum of operands of equal rank, a tile of the kernel matrix at a time."""
    a, b = with_norms(*scaled_points(queries, keys, tau))
    return scaled_sum(a, b, values)


def scaled_sum(a: Scaled, b: Scaled, values: V, *, dense: bool = False, moments: int = 0) -> S:
    """Σ_n 2^(-½‖a - b‖²) v_n of points within reach; `dense` takes all rows in a tile.

    The first channels may be `moments` for gradients, of which longer products are accurate enough.
    """
    kernel, first, second = _kernel_of(a, b, values, dense, moments)
    tile_sum, width = functools.partial(_tile_sum, kernel, moments), 1 if values.shape[-1] - moments <= ALONE else None
    return _sum_of_tiles(functools.partial(tiled_sum, tile_sum, dense=dense, width=width), first, second, values)


def shares_norms(pairs: int, values: V, moments: int = 0) -> bool:
    """Whether tiles of so few pairs are formed from norms that are known, not in one step of XLA with the points."""
    several = values.shape[-1] - moments > ALONE and are_known(values.shape[-2]) and values.shape[-2] > longest(values)
    return are_known(pairs) and pairs <= (SHORT if several else FEW_PAIRS)


def _kernel_of(a: Scaled, b: Scaled, values: V, dense: bool, moments: int = 0) -> tuple[Callable[..., Array], Any, Any]:
    """The function that forms a tile of Φ, and its operands: few or wide points themselves, or factors of exponents.

    With several channels XLA forms and multiplies tiles of points in one step on a CPU, without an array for them.
    """
    batch = math.prod(jnp.broadcast_shapes(*(x.shape[:-2] for x in (a.points, b.points, values))))
    pairs, dim = a.points.shape[-2] * b.points.shape[-2], b.points.shape[-1]
    if dense and are_known(pairs):
        if shares_norms(batch * pairs, values, moments):
            return _of_norms, a, b
        if pairs <= SHORT or (values.shape[-1] - moments > ALONE and dim >= WIDE):
            return _of_points, a.points, b.points
    return _of_factors, *logit_factors(a, b)


def _sum_of_tiles(blocked: Callable, a: Any, b: Any, values: V) -> S:
    """blocked(a, b, values) of the whole batch; a and b are arrays, or trees of several."""
    first, second = (jax.tree.leaves(x)[0] for x in (a, b))
    if shared(second, values):  # the batch of the queries becomes more rows
        total = blocked(*jax.tree.map(as_rows, (a, b, values)))
        total = total.reshape(*first.shape[:-1], values.shape[-1])
        batch = jnp.broadcast_shapes(*(x.shape[:-2] for x in (first, second, values)))
        return jnp.broadcast_to(total, (*batch, *total.shape[-2:]))
    return by_parts_of_batch(blocked, a, b, values)


def blocked_pullback(
    a: Scaled, b: Scaled, queries: Q, keys: K, values: V, tau: T, cotangent: G, *, dense: bool = False
) -> tuple[Q, K, V]:
    """Gradients of Σ_m ⟨g_m, s_m⟩ in the shapes of queries, keys and values, Φ computed once from scaled points.

    With S_mn = Φ ⟨g_m, v_n⟩: dv = Φᵀ g, da = S b - (S 1) a, db = Sᵀ a - (Sᵀ 1) b at scaled points, where Sᵀ 1 is
    Σ_c v dv. The transposed products are formed as (gᵀ Φ)ᵀ and (aᵀ S)ᵀ, because transposing a tile costs more on a
    CPU than forming it.
    """
    shapes = queries.shape, keys.shape, values.shape
    kernel, first, second = _kernel_of(a, b, values, dense)
    operands = (first, a.points), (second, b.points), values, cotangent
    scale = by_point(jnp.sqrt(tau / BASE_2), keys)
    if shared(keys, values, scale):
        operands, scale = jax.tree.map(as_rows, (operands, scale))
    da, db, dv = by_parts_of_batch(functools.partial(_scaled_pullback, kernel, dense), *operands)
    gradients = scale * da, scale * db, dv
    return tuple(  # type: ignore[return-value]
        unbroadcast(gradient, shape) if gradient.size != math.prod(shape) else gradient.reshape(shape)
        for gradient, shape in zip(gradients, shapes, strict=True)
    )


def _scaled_pullback(
    kernel: Callable, dense: bool, queries: tuple[Any, Array], keys: tuple[Any, Array], v: Array, g: Array
) -> tuple[Array, Array, Array]:
    """Gradients of `blocked_pullback` with respect to the scaled points and the values, for the whole batch.

    `queries` and `keys` are each what a tile is formed from, and the scaled points.
    """

    def of_tile(queries: tuple[Any, Array], keys: tuple[Any, Array], v: Array, g: Array) -> tuple[Array, ...]:
        (first, a), (second, b) = queries, keys
        return *_pulls(kernel(first, second), a, b, v, g), jnp.zeros((), v.dtype)

    da, sa, dv, _ = tiled_pullback(of_tile, queries[1].shape[-1], queries, keys, v, g, dense=dense)
    return da, sa - (v * dv).sum(-1, keepdims=True) * keys[1], dv


def _pulls(tile: Array, a: Array, b: Array, v: Array, g: Array) -> tuple[Array, Array, Array]:
    """S b - (S 1) a, (Sᵀ a)ᵀ and gᵀ Φ of a tile Φ. For one channel g and v multiply the points: S is not formed."""
    if v.shape[-1] == 1:
        a1, b1 = (jnp.concatenate([x, jnp.ones_like(x[..., :1])], -1) for x in (a, b))
        of_rows, of_columns = summed(tile, v * b1, pull=True), _turned_dot(g * a1, tile)
        da = g * (of_rows[..., :-1] - of_rows[..., -1:] * a)
        return da, v.mT * of_columns[..., :-1, :], of_columns[..., -1:, :]
    s = tile * dot(g, v.mT)
    return summed(s, b, pull=True) - s.sum(-1, keepdims=True) * a, _turned_dot(a, s), _turned_dot(g, tile)


class KeptTile(NamedTuple):
    """Φ of a few points, and these points scaled."""

    tile: Float[Array, "m n"]
    a: Float[Array, "m d"]
    b: Float[Array, "n d"]


def sum_and_tile(
    queries: Float[Array, "m d"], keys: Float[Array, "n d"], values: Float[Array, "n c"], tau: Float[Array, ""]
) -> tuple[Float[Array, "m c"], KeptTile]:
    """The Gauss sum, and Φ for `tile_pullback`; made of plain JAX functions."""
    with scope("sum", "sum", *sizes_of_each(queries, keys, values)), scope("engine", f"dense in {queries.dtype}"):
        a, b = scaled_points(queries, keys, tau)
        tile = _of_points(a, b)
        return summed(tile, values), KeptTile(tile, a, b)


def tile_pullback(
    kept: KeptTile, values: Float[Array, "n c"], tau: Float[Array, ""], g: Float[Array, "m c"]
) -> tuple[Array, Array, Array]:
    """The gradients of `blocked_pullback` from Φ."""
    da, sa, dv = _pulls(*kept, values, g)
    sa, dv, scale = sa.T, dv.T, jnp.sqrt(tau / BASE_2)
    return scale * da, scale * (sa - (values * dv).sum(1, keepdims=True) * kept.b), dv


def _turned_dot(x: Array, tile: Array) -> Array:
    """(tileᵀ x)ᵀ as xᵀ tile; the barrier keeps XLA from transposing the tile instead."""
    return lax.optimization_barrier(summed_over_rows(x, tile, longest(x, pull=True)))


def _tile_sum(kernel: Callable[..., Array], moments: int, a: Any, b: Any, v: Array) -> Array:
    num, channels, rows = *v.shape[-2:], jax.tree.leaves(a)[0].shape[-2]
    if channels == 1 or not are_known(num, rows) or num <= longest(v):
        return summed(kernel(a, b), v)
    if channels <= TURNED[0] and rows >= TURNED[1] and num > longest(v, 1):
        return lax.optimization_barrier(summed_over_rows(v, kernel(b, a), PIECE[False])).mT
    if channels - moments > ALONE:
        return summed(kernel(a, b), v)
    tile = lax.optimization_barrier(kernel(a, b))
    first, *others = jnp.split(v, [*range(moments or 1, channels)], -1)
    return jnp.concatenate([summed(tile, first, pull=moments > 0), *(summed(tile, x) for x in others)], -1)


def _of_factors(a: Any, b: Any) -> Array:
    return exp2(logits(a, b))


def _of_norms(a: Scaled, b: Scaled) -> Array:
    return jnp.exp2(squared_distances(a, b) / -2)


def _of_points(a: Array, b: Array) -> Array:
    return _of_norms(*with_norms(a, b))
