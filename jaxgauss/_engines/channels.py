"""Gradients of Gauss sums of near points, as Gauss sums with more channels: moments of the keys beside the values."""

import jax.numpy as jnp
from jaxtyping import Array

from .._arrays.points import by_point, center, shared
from .plan import takes_half
from .run import keeps_tile, near_sum
from .settings import Settings


def cheaper_by_channels(points: Array, values: Array) -> bool:
    """Whether C(D + 1) channels in two sums cost less than a sum and the fused backward pass, about 2.5 sums."""
    dim, channels = points.shape[-1], values.shape[-1]
    return channels == 1 or channels * (dim + 1) <= 2 * max(16, dim, channels)


def keeps_pulls(settings: Settings, queries: Array, keys: Array, values: Array, tau: Array) -> bool:
    return values.shape[-1] == 1 and not keeps_tile(settings, queries, keys, values, tau)


def flat_channels(x: Array) -> Array:
    """(…, N, C, W) -> (…, N, C·W)."""
    return x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])


def sum_and_pulls(settings: Settings, queries: Array, keys: Array, values: Array, tau: Array) -> tuple[Array, Array]:
    """s = Σ Φ v (…, M, C) and Σ Φ v (k - q) (…, M, C, D), from one sum of C(D + 1) channels."""
    c = center(keys, takes_half(settings))
    moments = values[..., :, None] * (keys - c)[..., None, :]  # (…, N, C, D)
    columns = jnp.concatenate([flat_channels(moments), _full(values, moments)], -1)
    channels, dim = moments.shape[-2:]
    total = near_sum(settings, queries, keys, columns, tau, moments=dim if channels == 1 else 0)
    first, s = total[..., : channels * dim], total[..., channels * dim :]
    first = first.reshape(*first.shape[:-1], channels, dim)
    return s, first - s[..., None] * (queries - c)[..., None, :]


def gradient_of_pulls(pulls: Array, weights: Array, tau: Array) -> Array:
    """τ Σ_c g_c (W_k,c - q s_c): the gradient (…, M, D) from pulls (…, M, C, D) and weights (…, M, C)."""
    return by_point(tau, weights) * (pulls * weights[..., None]).sum(-2)


def _full(values: Array, moments: Array) -> Array:
    return jnp.broadcast_to(values, (*moments.shape[:-2], values.shape[-1]))


def own_points(queries: Array, keys: Array, tau: Array) -> tuple[Array, Array]:
    """The points, broadcast so that their gradients keep the axes that the gradient of τ and its origin c need."""
    batch = by_point(tau, queries).shape[:-2]
    if not (shared(queries) or shared(keys)):
        batch = jnp.broadcast_shapes(queries.shape[:-2], keys.shape[:-2], batch)
    queries, keys = (
        jnp.broadcast_to(x, (*jnp.broadcast_shapes(x.shape[:-2], batch), *x.shape[-2:])) for x in (queries, keys)
    )
    return queries, keys
