"""Exponents -½‖a - b‖² of all pairs of points, by one product or from differences of coordinates."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from .blocks import scan
from .places import has_cuda, vary_like
from .points import Scaled

DIMENSIONS = 8  # coordinates per pass over a tile


def logit_factors(a: Scaled, b: Scaled) -> tuple[Array, Array]:
    """[a, 1, -½‖a‖²] and [b, -½‖b‖², 1], whose product is the exponents."""
    one_a, one_b = (jnp.ones_like(x.norms) for x in (a, b))
    factors = (a.points, one_a, a.norms / -2), (b.points, b.norms / -2, one_b)
    return tuple(jnp.concatenate(x, -1) for x in factors)  # type: ignore[return-value]


def difference_logits(scale: Array, queries: Array, keys: Array) -> Array:
    """-½ Σ_d (scale (q_md - k_nd))², eight dimensions at a time, clipped so that squares do not overflow."""

    @jax.checkpoint  # else derivatives would store the differences of every dimension, each the size of a tile
    def add(total: Array, columns: tuple[Array, Array]) -> tuple[Array, None]:
        for q, k in zip(*columns, strict=True):
            total = total + jnp.square(_scaled_difference(scale, q, k))
        return total, None

    batch = jnp.broadcast_shapes(scale.shape[:-2], queries.shape[:-2], keys.shape[:-2])
    zero = jnp.zeros((*batch, queries.shape[-2], keys.shape[-2]), queries.dtype)
    columns = _dimensions(queries), _dimensions(keys)
    return scan(add, vary_like(zero, [queries, keys, scale]), columns)[0] / -2


def squared_distances(a: Scaled, b: Scaled) -> Array:
    """‖a - b‖² of all pairs of few points.

    On CUDA from differences of coordinates, in one pass without an array of them, because the host must not wait to
    learn how far points lie. Elsewhere by a product, which is faster and accurate for near points.
    """
    if has_cuda():
        return squared_differences(a.points, b.points)
    return a.norms + b.norms.mT - 2 * dot(a.points, b.points.mT)


@jax.checkpoint  # else derivatives would store all differences
def squared_differences(a: Array, b: Array) -> Array:
    """‖a - b‖² of all pairs, from differences of coordinates."""
    return jnp.square(_cut_off(a[..., :, None, :] - b[..., None, :, :])).sum(-1)


def _scaled_difference(scale: Array, q: Array, k: Array) -> Array:
    """scale (q_m - k_n) for one coordinate (*batch, number)."""
    return _cut_off(scale * (q[..., :, None] - k[..., None, :]))


def _cut_off(differences: Array) -> Array:
    """Differences, clipped so that sums of their squares are finite."""
    far = math.sqrt(float(jnp.finfo(differences.dtype).max)) / 1e6
    return jnp.clip(differences, -far, far)


def _dimensions(points: Array) -> Array:
    """(*batch, N, D) -> (steps, 8 or D, *batch, N), padded with zeros."""
    step = min(points.shape[-1], DIMENSIONS)
    padding = [(0, 0)] * (points.ndim - 1) + [(0, -points.shape[-1] % step)]
    x = jnp.moveaxis(jnp.pad(points, padding), -1, 0)
    return x.reshape(x.shape[0] // step, step, *x.shape[1:])


def logits(a: Any, b: Any) -> Array:
    """The product A Bᵀ of two factors, or the sum of products of several. Rounding may leave it slightly above zero."""
    products = (dot(x, y.mT) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))
    return functools.reduce(jnp.add, products)


dot = functools.partial(jnp.matmul, precision=lax.Precision.HIGHEST)
