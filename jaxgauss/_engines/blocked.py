"""The engines dense and blocked: XLA forms the sum and its pullback by matrix products."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from .._arrays.devices import vary_like
from .._arrays.exponential import SHORT, exp2
from .._arrays.points import (
    BASE_2,
    Scaled,
    as_rows,
    by_point,
    dot,
    logit_factors,
    logits,
    scaled_points,
    shared,
    squared_distances,
    unbroadcast,
    with_norms,
)
from .._arrays.shapes import G, K, Q, S, T, V, are_known
from .tiles import (
    block_sizes,
    blocks,
    by_parts_of_batch,
    pull_tile,
    scan,
    tiled_sum,
    unblocks,
)

TURNED = range(9, 25)  # channels for which (vᵀ tileᵀ)ᵀ takes up to a fifth less time, since jaxlib 0.12, of many tiles


def blocked_sum(queries: Q, keys: K, values: V, tau: T) -> S:
    """The Gauss sum of operands of equal rank, a tile of the kernel matrix at a time."""
    a, b = with_norms(*scaled_points(queries, keys, tau))
    return scaled_sum(a, b, values)


def scaled_sum(a: Scaled, b: Scaled, values: V, *, dense: bool = False) -> S:
    """Σ_n 2^(-½‖a - b‖²) v_n of points within reach; `dense` takes one tile."""
    kernel, first, second = _kernel_of(a, b, dense)
    summed = functools.partial(_sum_turned if not dense and values.shape[-1] in TURNED else _tile_sum, kernel)
    return _sum_of_tiles(functools.partial(tiled_sum, summed, dense=dense), first, second, values)


def _kernel_of(a: Scaled, b: Scaled, dense: bool) -> tuple[Callable[..., Array], Any, Any]:
    """The function that forms a tile of Φ, and its operands: few points themselves, or factors of the exponents."""
    pairs = math.prod(x.norms.shape[-2] for x in (a, b))
    if dense and are_known(pairs) and pairs <= SHORT:
        return _of_points, a, b
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
    kernel, first, second = _kernel_of(a, b, dense)
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
    num_queries, num_keys, dim = g.shape[-2], v.shape[-2], queries[1].shape[-1]
    operands: list[Array] = jax.tree.leaves((queries, keys, v, g))
    batch = jnp.broadcast_shapes(*(x.shape[:-2] for x in operands))
    rows, columns = block_sizes(math.prod(batch), num_queries, num_keys, dense, pull_tile())

    key_blocks = jax.tree.map(lambda x: blocks(x, columns), (*keys, v))

    def add_rows(total: tuple[Array, Array], block: tuple[Any, Any, Array]):
        first, a, g = block

        def add_columns(sums: tuple[Array, Array], block: tuple[Any, Any, Array]):
            second, b, v = block
            tile = kernel(first, second)  # (*batch, rows, columns)
            s = tile * dot(g, v.mT)
            sums = sums[0] + dot(s, b), sums[1] + s.sum(-1, keepdims=True)
            return sums, (dot(a.mT, s), dot(g.mT, tile))

        zeros = (vary_like(jnp.zeros((*batch, rows, width), v.dtype), operands) for width in (dim, 1))
        (sb, s1), parts = scan(add_columns, tuple(zeros), key_blocks)
        return jax.tree.map(jnp.add, total, parts), sb - s1 * a

    num_blocks = -(-num_keys // columns)
    zeros = tuple(
        vary_like(jnp.zeros((num_blocks, *batch, width, columns), v.dtype), operands) for width in (dim, v.shape[-1])
    )
    (sa, pg), da = scan(add_rows, zeros, jax.tree.map(lambda x: blocks(x, rows), (*queries, g)))
    _, b, v = key_blocks
    sa, dv = sa.mT, pg.mT  # (blocks, *batch, columns, D or C)
    db = sa - (v * dv).sum(-1, keepdims=True) * b
    return unblocks(da, num_queries), unblocks(db, num_keys), unblocks(dv, num_keys)


class KeptTile(NamedTuple):
    """Φ of a few points, and these points scaled."""

    phi: Float[Array, "m n"]
    a: Float[Array, "m d"]
    b: Float[Array, "n d"]


def sum_and_tile(
    queries: Float[Array, "m d"], keys: Float[Array, "n d"], values: Float[Array, "n c"], tau: Float[Array, ""]
) -> tuple[Float[Array, "m c"], KeptTile]:
    """The Gauss sum, and Φ for `tile_pullback`; made of plain JAX functions."""
    a, b = scaled_points(queries, keys, tau)
    phi = _of_points(*with_norms(a, b))
    return dot(phi, values), KeptTile(phi, a, b)


def tile_pullback(
    kept: KeptTile, values: Float[Array, "n c"], tau: Float[Array, ""], g: Float[Array, "m c"]
) -> tuple[Array, Array, Array]:
    """The gradients of `blocked_pullback` from Φ. For one channel g and v multiply the points, and S is not formed."""
    phi, a, b = kept
    if values.shape[-1] == 1:
        a1, b1 = (jnp.concatenate([x, jnp.ones_like(x[:, :1])], 1) for x in (a, b))
        of_rows, of_columns = dot(phi, values * b1), _transposed_dot(g * a1, phi)
        dv = of_columns[:, -1:]
        da = g * (of_rows[:, :-1] - of_rows[:, -1:] * a)
        db = values * (of_columns[:, :-1] - dv * b)
    else:
        s, dv = phi * dot(g, values.mT), _transposed_dot(g, phi)
        da = dot(s, b) - s.sum(-1, keepdims=True) * a
        db = _transposed_dot(a, s) - (values * dv).sum(-1, keepdims=True) * b
    scale = jnp.sqrt(tau / BASE_2)
    return scale * da, scale * db, dv


def _transposed_dot(x: Array, tile: Array) -> Array:
    """Tileᵀ x as (xᵀ tile)ᵀ; the barrier keeps XLA from transposing the tile instead."""
    return lax.optimization_barrier(dot(x.mT, tile)).mT


def _tile_sum(kernel: Callable[..., Array], a: Any, b: Any, v: Array) -> Array:
    return dot(kernel(a, b), v)


def _sum_turned(kernel: Callable[..., Array], a: Any, b: Any, v: Array) -> Array:
    return _transposed_dot(v, kernel(b, a))


def _of_factors(a: Any, b: Any) -> Array:
    return exp2(logits(a, b))


def _of_points(a: Scaled, b: Scaled) -> Array:
    return exp2(squared_distances(a, b) / -2)
