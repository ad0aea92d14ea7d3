"""XLA's own engine: the sum, its pullback and its softmax means from products, dense or a tile at a time."""

import functools
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._arrays.blocks import blocks, scan, unblocks
from .._arrays.logits import dot, logit_factors, logits, squared_distances
from .._arrays.places import has_cuda, vary_like
from .._arrays.points import BASE_2, Scaled, as_rows, scaled_points, shared, unbroadcast, with_norms
from .._arrays.shapes import G, K, L, Q, S, T, V, W
from .fused import FUSED_WIDTH, WIDE, fused_tile, fused_tile_sum
from .tiles import block_sizes, in_groups, tiled_means, tiled_sum


def blocked_sum(queries: Q, keys: K, values: V, tau: T) -> S:
    """The Gauss sum of operands of equal rank, a tile of the kernel matrix at a time."""
    a, b = with_norms(*scaled_points(queries, keys, tau))
    return scaled_sum(a, b, values)


def scaled_sum(a: Scaled, b: Scaled, values: V, *, whole: bool = False, fused: bool = False) -> S:
    """Σ_n 2^(-½‖a - b‖²) v of points within reach.

    `whole` takes one tile, which is the dense sum. `fused` writes products as XLA on a CPU can put them together.
    """
    channels = values.shape[-1]
    fused = fused and max(a.points.shape[-1], channels) <= FUSED_WIDTH
    if fused and not (whole and channels >= WIDE):
        operands, tile_sum, tile = logit_factors(a, b), fused_tile_sum, fused_tile(channels)
    elif whole:
        operands, tile_sum, tile = (a.points, b.points), _whole_sum, None
    else:
        operands, tile_sum, tile = logit_factors(a, b), _tile_sum, None
    blocked = functools.partial(tiled_sum, tile_sum, whole=whole, tile=tile)
    batch, rows = jnp.broadcast_shapes(*(x.shape[:-2] for x in (*operands, values))), a.points.shape[:-1]
    if shared(operands[1], values):  # the batch of the queries is more rows
        total = blocked(*(as_rows(x) for x in (*operands, values)))
        total = total.reshape(*rows, channels)
        return jnp.broadcast_to(total, (*batch, *total.shape[-2:]))
    return in_groups(blocked, *operands, values)


def blocked_pullback(
    queries: Q, keys: K, values: V, tau: T, cotangent: G, *, whole: bool = False, phi: Float[Array, "m n"] | None = None
) -> tuple[Q, K, V]:
    """Gradients of Σ_m ⟨g_m, s_m⟩ in the shapes of queries, keys and values, Φ computed once, or given.

    With S_mn = Φ ⟨g_m, v_n⟩: dv = Φᵀ g, da = S b - (S 1) a, db = Sᵀ a - (Sᵀ 1) b at scaled points. The transposed
    products are formed as (gᵀ Φ)ᵀ and (aᵀ S)ᵀ: no tile is transposed, which on a CPU costs more than the tile.
    """
    shapes = queries.shape, keys.shape, values.shape
    a, b = scaled_points(queries, keys, tau)
    scale = jnp.sqrt(tau / BASE_2)[..., None, None]
    v, g = values, cotangent
    if shared(keys, values, scale):
        a, b, v, g, scale = as_rows(a), as_rows(b), as_rows(v), as_rows(g), scale.reshape(1, 1)
    da, db, dv = in_groups(functools.partial(_scaled_pullback, whole=whole, phi=phi), a, b, v, g)
    gradients = scale * da, scale * db, dv
    return tuple(  # type: ignore[return-value]
        unbroadcast(gradient, shape) if gradient.size != math.prod(shape) else gradient.reshape(shape)
        for gradient, shape in zip(gradients, shapes, strict=True)
    )


def _scaled_pullback(
    a: Array, b: Array, v: Array, g: Array, *, whole: bool, phi: Array | None
) -> tuple[Array, Array, Array]:
    """`blocked_pullback` with respect to the scaled points and the values, for all of a batch."""
    batch = jnp.broadcast_shapes(*(x.shape[:-2] for x in (a, b, v, g)))
    num_queries, num_keys, dim = a.shape[-2], b.shape[-2], a.shape[-1]
    rows, columns = block_sizes(math.prod(batch), num_queries, num_keys, whole)

    kernel = _kernel if whole else lambda a, b: jnp.exp2(logits(a, b))
    a1, b1 = (jnp.concatenate([x, jnp.ones_like(x[..., :1])], -1) for x in (a, b))  # S [b, 1]: S b and its row sums
    a0, b0 = (a, b) if whole else logit_factors(*with_norms(a, b))
    key_blocks = blocks(b0, columns), blocks(b1, columns), blocks(v, columns)

    def add_rows(total: tuple[Array, Array], block: tuple[Array, Array, Array]):
        a0, a1, g = block

        def add_columns(sb: Array, block: tuple[Array, Array, Array]):
            b0, b1, v = block
            tile = kernel(a0, b0) if phi is None else phi  # (*batch, rows, columns)
            s = tile * dot(g, v.mT)
            return sb + dot(s, b1), (dot(a1.mT, s), dot(g.mT, tile))

        zero = vary_like(jnp.zeros((*batch, rows, dim + 1), a.dtype), [a, b, v, g])
        sb, parts = scan(add_columns, zero, key_blocks)
        return jax.tree.map(jnp.add, total, parts), sb[..., :dim] - sb[..., dim:] * a1[..., :dim]

    num_blocks = -(-num_keys // columns)
    zeros = tuple(
        vary_like(jnp.zeros((num_blocks, *batch, width, columns), a.dtype), [a, b, v, g])
        for width in (dim + 1, v.shape[-1])
    )
    (sa, pg), da = scan(add_rows, zeros, (blocks(a0, rows), blocks(a1, rows), blocks(g, rows)))
    sa, dv = unblocks(sa.mT, num_keys), unblocks(pg.mT, num_keys)  # (*batch, N, D+1), (*batch, N, C)
    db = sa[..., :dim] - sa[..., dim:] * b
    return unblocks(da, num_queries), db, dv


def sum_and_tile(
    queries: Float[Array, "m d"], keys: Float[Array, "n d"], values: Float[Array, "n c"], tau: Float[Array, ""]
) -> tuple[Float[Array, "m c"], Float[Array, "m n"]]:
    """The Gauss sum and Φ, for `blocked_pullback`; of ordinary JAX functions."""
    phi = _kernel(*scaled_points(queries, keys, tau))
    return dot(phi, values), phi


def blocked_means(queries: Q, keys: K, values: V, tau: T, log_weights: W, *, whole: bool = False) -> tuple[S, L]:
    """Σ_n w Φ v / Σ_n w Φ and log Σ_n w Φ, with the largest term so far taken out."""
    a, b = scaled_points(queries, keys, tau, base_2=False)
    if whole and has_cuda():
        return in_groups(functools.partial(tiled_means, _whole_logits, whole=True), a, b, values, log_weights)
    a, b = logit_factors(*with_norms(a, b))
    return in_groups(functools.partial(tiled_means, logits, whole=whole), a, b, values, log_weights)


def _tile_sum(a: Array, b: Array, v: Array) -> Array:
    return dot(jnp.exp2(logits(a, b)), v)


def _whole_sum(a: Array, b: Array, v: Array) -> Array:
    return dot(_kernel(a, b), v)


def _kernel(a: Array, b: Array) -> Array:
    """Φ of points scaled to the base of 2, all of it: there, the factors are not worth putting together."""
    return jnp.exp2(_whole_logits(a, b))


def _whole_logits(a: Array, b: Array) -> Array:
    return squared_distances(a, b) / -2
