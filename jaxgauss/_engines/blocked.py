"""XLA's own engine: the sum, its pullback and its softmax means from products, dense or a tile at a time."""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from .._arrays.blocks import blocks, scan, unblocks
from .._arrays.logits import dot, logit_factors, logits, squared_differences, squared_distances
from .._arrays.places import has_cuda, vary_like
from .._arrays.points import BASE_2, LOG_ZERO, Scaled, as_rows, scaled_points, shared, unbroadcast, with_norms
from .._arrays.shapes import G, K, L, Q, S, T, V, W
from .fused import FUSED_WIDTH, WIDE, fused_tile, fused_tile_sum
from .tiles import TILE, block_sizes, in_groups, tiled_means, tiled_sum

SOME_KEYS = 64  # whose exponents are looked at first: a percent of a pass over thousands


def blocked_sum(queries: Q, keys: K, values: V, tau: T) -> S:
    """The Gauss sum of operands of equal rank, a tile of the kernel matrix at a time."""
    a, b = with_norms(*scaled_points(queries, keys, tau))
    return scaled_sum(a, b, values)


def scaled_sum(a: Scaled, b: Scaled, values: V, *, whole: bool = False, fused: bool = False) -> S:
    """Σ_n 2^(-½‖a - b‖²) v of points within reach.

    `whole` takes one tile, which is the dense sum. `fused` writes products as XLA on a CPU can put them together.
    """
    channels, rows = values.shape[-1], a.points.shape[:-1]
    width = max(a.points.shape[-1], channels)
    batch = jnp.broadcast_shapes(*(x.shape[:-2] for x in (a.points, b.points, values)))
    fused = fused and width <= FUSED_WIDTH and not (whole and width >= WIDE)
    tile_sum = fused_tile_sum if fused else _whole_sum if whole else _tile_sum
    operands: tuple[Any, ...] = *((a, b) if tile_sum is _whole_sum else logit_factors(a, b)), values
    blocked = functools.partial(tiled_sum, tile_sum, whole=whole, tile=fused_tile(channels) if fused else None)
    if shared(b.points, values):  # the batch of the queries is more rows
        total = blocked(*jax.tree.map(as_rows, operands))
        total = total.reshape(*rows, channels)
        return jnp.broadcast_to(total, (*batch, *total.shape[-2:]))
    return in_groups(blocked, *operands)


def blocked_pullback(queries: Q, keys: K, values: V, tau: T, cotangent: G, *, whole: bool = False) -> tuple[Q, K, V]:
    """Gradients of Σ_m ⟨g_m, s_m⟩ in the shapes of queries, keys and values, Φ computed once.

    With S_mn = Φ ⟨g_m, v_n⟩: dv = Φᵀ g, da = S b - (S 1) a, db = Sᵀ a - (Sᵀ 1) b at scaled points, where Sᵀ 1 is
    Σ_c v dv. The transposed products are formed as (gᵀ Φ)ᵀ and (aᵀ S)ᵀ: no tile is transposed, which on a CPU costs
    more than the tile.
    """
    shapes = queries.shape, keys.shape, values.shape
    a, b = scaled_points(queries, keys, tau)
    scale = jnp.sqrt(tau / BASE_2)[..., None, None]
    v, g = values, cotangent
    if shared(keys, values, scale):
        a, b, v, g, scale = as_rows(a), as_rows(b), as_rows(v), as_rows(g), scale.reshape(1, 1)
    da, db, dv = in_groups(functools.partial(_scaled_pullback, whole=whole), a, b, v, g)
    gradients = scale * da, scale * db, dv
    return tuple(  # type: ignore[return-value]
        unbroadcast(gradient, shape) if gradient.size != math.prod(shape) else gradient.reshape(shape)
        for gradient, shape in zip(gradients, shapes, strict=True)
    )


def _scaled_pullback(a: Array, b: Array, v: Array, g: Array, *, whole: bool) -> tuple[Array, Array, Array]:
    """`blocked_pullback` with respect to the scaled points and the values, for all of a batch."""
    batch = jnp.broadcast_shapes(*(x.shape[:-2] for x in (a, b, v, g)))
    num_queries, num_keys, dim = a.shape[-2], b.shape[-2], a.shape[-1]
    rows, columns = block_sizes(math.prod(batch), num_queries, num_keys, whole)

    scaled = with_norms(a, b)
    kernel = _kernel if whole else lambda a, b: jnp.exp2(logits(a, b))
    a0, b0 = scaled if whole else logit_factors(*scaled)
    key_blocks = jax.tree.map(lambda x: blocks(x, columns), (b0, b, v))

    def add_rows(total: tuple[Array, Array], block: tuple[Any, Array, Array]):
        a0, a, g = block

        def add_columns(sums: tuple[Array, Array], block: tuple[Any, Array, Array]):
            b0, b, v = block
            tile = kernel(a0, b0)  # (*batch, rows, columns)
            s = tile * dot(g, v.mT)
            sums = sums[0] + dot(s, b), sums[1] + s.sum(-1, keepdims=True)
            return sums, (dot(a.mT, s), dot(g.mT, tile))

        zeros = (vary_like(jnp.zeros((*batch, rows, width), a.dtype), [a, b, v, g]) for width in (dim, 1))
        (sb, s1), parts = scan(add_columns, tuple(zeros), key_blocks)
        return jax.tree.map(jnp.add, total, parts), sb - s1 * a

    num_blocks = -(-num_keys // columns)
    zeros = tuple(
        vary_like(jnp.zeros((num_blocks, *batch, width, columns), a.dtype), [a, b, v, g])
        for width in (dim, v.shape[-1])
    )
    (sa, pg), da = scan(add_rows, zeros, jax.tree.map(lambda x: blocks(x, rows), (a0, a, g)))
    sa, dv = unblocks(sa.mT, num_keys), unblocks(pg.mT, num_keys)  # (*batch, N, D), (*batch, N, C)
    return unblocks(da, num_queries), sa - (v * dv).sum(-1, keepdims=True) * b, dv


class KeptTile(NamedTuple):
    """Φ of a few points, and the scaled points that it is of."""

    phi: Float[Array, "m n"]
    a: Float[Array, "m d"]
    b: Float[Array, "n d"]


def sum_and_tile(
    queries: Float[Array, "m d"], keys: Float[Array, "n d"], values: Float[Array, "n c"], tau: Float[Array, ""]
) -> tuple[Float[Array, "m c"], KeptTile]:
    """The Gauss sum and Φ, for `tile_pullback`; of ordinary JAX functions."""
    a, b = scaled_points(queries, keys, tau)
    phi = _kernel(*with_norms(a, b))
    return dot(phi, values), KeptTile(phi, a, b)


def tile_pullback(
    kept: KeptTile, values: Float[Array, "n c"], tau: Float[Array, ""], g: Float[Array, "m c"]
) -> tuple[Array, Array, Array]:
    """What `blocked_pullback` is, from Φ. Of one channel, g and v go with the points, and S is not formed."""
    phi, a, b = kept
    dv = _transposed_dot(g, phi)
    if values.shape[-1] == 1:
        da = g * (dot(phi, values * b) - dot(phi, values) * a)
        db = values * (_transposed_dot(g * a, phi) - dv * b)
    else:
        s = phi * dot(g, values.mT)
        da = dot(s, b) - s.sum(-1, keepdims=True) * a
        db = _transposed_dot(a, s) - (values * dv).sum(-1, keepdims=True) * b
    scale = jnp.sqrt(tau / BASE_2)
    return scale * da, scale * db, dv


def _transposed_dot(x: Array, tile: Array) -> Array:
    """Tileᵀ x as (xᵀ tile)ᵀ, which XLA must not turn back."""
    return lax.optimization_barrier(dot(x.mT, tile)).mT


def blocked_means(queries: Q, keys: K, values: V, tau: T, log_weights: W, *, whole: bool = False) -> tuple[S, L]:
    """Σ_n w Φ v / Σ_n w Φ and log Σ_n w Φ, with the largest term so far taken out."""
    a, b = scaled_points(queries, keys, tau, base_2=False)
    if whole and has_cuda():
        return in_groups(functools.partial(tiled_means, _near_logits, whole=True), a, b, values, log_weights)
    a, b = logit_factors(*with_norms(a, b))
    return in_groups(functools.partial(tiled_means, logits, whole=whole), a, b, values, log_weights)


def fused_means(queries: Q, keys: K, values: V, tau: T, log_weights: W) -> tuple[S, L]:
    """`blocked_means` as one fused sum, of terms over a large one of their row; in two passes where that overflows.

    The large one is that of the key of the row's own number, which may be the same point, or of 64 others. So no sum
    is below one, and what is twice as far from it as float32 reaches, 2¹²⁷ times as large, is found by its sum.
    """
    a, b = with_norms(*scaled_points(queries, keys, tau))
    b = _of_one_batch(b.points, b.norms - 2 * BASE_2 * log_weights)
    large = _large_logit(*logit_factors(a, b))
    columns = jnp.concatenate([values, jnp.ones_like(values[..., :1])], -1)
    sums = scaled_sum(_of_one_batch(a.points, a.norms + 2 * large), b, columns, fused=True)
    total = sums[..., -1:]
    found = sums[..., :-1] / total, (large + jnp.log2(total)) / BASE_2
    in_two_passes = functools.partial(blocked_means, queries, keys, values, tau, log_weights)
    return lax.cond((jnp.isfinite(sums) | jnp.isnan(large)).all(), lambda: found, in_two_passes)


def _large_logit(a: Array, b: Array) -> Float[Array, "*batch m 1"]:
    """A large exponent of each row, of factors: of the key of its own number, or of some others."""
    num_queries, num_keys = a.shape[-2], b.shape[-2]
    some, num = b[..., :: -(-num_keys // SOME_KEYS), :], min(num_queries, num_keys)
    largest = scan(
        lambda _, rows: (None, logits(rows, some).max(-1, keepdims=True)), None, blocks(a, min(num_queries, TILE.rows))
    )[1]
    own = (a[..., :num, :] * b[..., :num, :]).sum(-1, keepdims=True)
    padding = [(0, 0)] * (own.ndim - 2) + [(0, num_queries - num), (0, 0)]
    return jnp.maximum(unblocks(largest, num_queries), jnp.pad(own, padding, constant_values=LOG_ZERO))


def _of_one_batch(points: Array, norms: Array) -> Scaled:
    """Points, and norms that may have more of the batch."""
    return Scaled(jnp.broadcast_to(points, (*norms.shape[:-1], points.shape[-1])), norms)


def _tile_sum(a: Array, b: Array, v: Array) -> Array:
    return dot(jnp.exp2(logits(a, b)), v)


def _whole_sum(a: Scaled, b: Scaled, v: Array) -> Array:
    return dot(_kernel(a, b), v)


def _kernel(a: Scaled, b: Scaled) -> Array:
    """Φ of points scaled to the base of 2, all of it: there, the factors are not worth putting together."""
    return jnp.exp2(squared_distances(a, b) / -2)


def _near_logits(a: Array, b: Array) -> Array:
    return squared_differences(a, b) / -2
