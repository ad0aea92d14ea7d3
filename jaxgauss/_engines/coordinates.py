"""Kernels with a kink in few dimensions: every pair from the differences of its coordinates, in all digits.

There most pairs are near, in some coordinate or in all, and differences cost little more than a product: one array for
each coordinate, for XLA reads its numbers one after the other.
"""

import functools

import jax.numpy as jnp
from jaxtyping import Array

from .._arrays.shapes import G, K, Q, S, T, V
from .channels import Channels
from .tiles import in_groups, tiled_pullback, tiled_sum

FEW_DIMENSIONS = 3


def coordinate_sums(channels: Channels, queries: Q, keys: K, values: V, tau: T, *, whole: bool) -> S:
    """Σ_n κ(u) v_n of operands of equal rank."""
    dim = queries.shape[-1]

    def sums(*operands: Array) -> Array:
        *columns, scale, values = operands

        def tile_sum(a: list[Array], b: list[Array], v: Array) -> Array:
            return channels.sum(_squares(_differences(scale, a, b)), v)

        return tiled_sum(tile_sum, columns[:dim], columns[dim:], values, whole=whole)

    return in_groups(sums, *_columns(queries), *_columns(keys), jnp.sqrt(tau)[..., None, None], values)


def coordinate_pullback(
    channels: Channels, queries: Q, keys: K, values: V, tau: T, cotangent: G, *, whole: bool, with_tau: bool
) -> tuple[Array, Array, Array, Array]:
    """Gradients of Σ_m ⟨g_m, s_m⟩, of the whole batch: those of points and values, and -Σ_mn S u (*batch,)."""
    dim = queries.shape[-1]

    def gradients(*operands: Array) -> tuple[Array, ...]:
        *columns, scale, values, g = operands

        def pull(a: list[Array], b: list[Array], v: Array, g: Array) -> tuple[Array, ...]:
            differences = _differences(scale, a, b)
            u = _squares(differences)
            parts, d_values = channels.pull(u, v, g)
            s = functools.reduce(jnp.add, (psi * (g_own * v_own.mT) for psi, g_own, v_own in parts))
            moved = [scale * s * x for x in differences]
            da = jnp.concatenate([-x.sum(-1, keepdims=True) for x in moved], -1)
            db = jnp.concatenate([x.sum(-2, keepdims=True) for x in moved], -2)
            total = -(s * u).sum((-2, -1)) if with_tau else jnp.zeros(s.shape[:-2], s.dtype)
            return da, db, d_values, total

        return tiled_pullback(pull, dim, columns[:dim], columns[dim:], values, g, whole=whole)

    scale = jnp.sqrt(tau)[..., None, None]
    return in_groups(gradients, *_columns(queries), *_columns(keys), scale, values, cotangent)


def _columns(points: Array) -> list[Array]:
    """Coordinates (…, N, 1)."""
    return jnp.split(points, points.shape[-1], -1)


def _differences(scale: Array, a: list[Array], b: list[Array]) -> list[Array]:
    """√τ (q - k) of all pairs, coordinate by coordinate."""
    return [scale * (x - y.mT) for x, y in zip(a, b, strict=True)]


def _squares(differences: list[Array]) -> Array:
    """Their sum, cut off where it would overflow."""
    total = functools.reduce(jnp.add, map(jnp.square, differences))
    return jnp.minimum(total, float(jnp.finfo(total.dtype).max) / 1e12)
