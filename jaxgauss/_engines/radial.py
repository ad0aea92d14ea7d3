"""XLA's engine of all radial kernels: κ itself, of u = ‖a - b‖², which products make, or differences of coordinates.

Several kernels share one pass over the pairs, each with channels of its own.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from .._arrays.logits import difference_logits
from .._arrays.points import Scaled, are_within, scaled_points, unbroadcast, with_norms
from .._arrays.shapes import G, K, L, Q, S, T, V, W
from .._checks.settings import are_known
from .._kernels.kernels import Kernel
from .channels import Channels
from .coordinates import FEW_DIMENSIONS, coordinate_pullback, coordinate_sums
from .differences import DIFFERENCES_TILE, with_axes_of
from .plan import REACH, Plan
from .products import Products
from .tiles import tiled_means, tiled_sum

FEW = 2**18  # pairs times dimensions that differences take no time for
STRICTER = 16  # times in R² than sums: derivatives are made of moments about a center


def radial_sums(channels: Channels, chosen: Plan, queries: Q, keys: K, values: V, tau: T) -> S:
    """Σ_n κ(τ‖q_m - k_n‖²) v_n of operands of equal rank, for every channel with its own κ."""
    whole, operands = chosen.method == "dense", (queries, keys, values, tau)
    if _by_differences(channels, chosen, queries, keys):
        return difference_sums(channels, *operands)
    if _by_coordinates(channels, queries):
        return coordinate_sums(channels, *operands, whole=whole)
    a, b = with_norms(*scaled_points(queries, keys, tau, base_2=False))

    def by_products(*_: Array) -> Array:
        return Products.of(a, b, channels, chosen).sums(channels, values, whole=whole)

    within = _are_within(channels, chosen, 1, a, b)
    return lax.cond(within, by_products, functools.partial(difference_sums, channels), *operands)


def radial_pullback(
    channels: Channels, chosen: Plan, queries: Q, keys: K, values: V, tau: T, cotangent: G, *, with_tau: bool = True
) -> tuple[Q, K, V, T]:
    """Gradients of Σ_m ⟨g_m, s_m⟩ in the shapes of the operands; unless `with_tau`, that of τ is of no use.

    With S_mn = Σ_κ ψ(u) ⟨g_m, v_n⟩, ψ = -2κ': dq = τ Σ_n S (k - q), dk = τ Σ_m S (q - k), dτ = -½ Σ S ‖q - k‖², and
    dv = Σ_m κ g_m, all from one pass.
    """
    whole, operands = chosen.method == "dense", (queries, keys, values, tau, cotangent)
    if _by_differences(channels, chosen, queries, keys):
        return difference_pullback(channels, *operands)
    if _by_coordinates(channels, queries):
        *gradients, d_scale = coordinate_pullback(channels, *operands, whole=whole, with_tau=with_tau)
        return _in_shapes((*gradients, d_scale / (2 * tau)), operands)
    a, b = with_norms(*scaled_points(queries, keys, tau, base_2=False))

    def by_products(*_: Array) -> Any:
        points, scale = Products.of(a, b, channels, chosen), jnp.sqrt(tau)[..., None, None]
        da, db, dv, d_scale = points.pullback(channels, values, cotangent, whole=whole, with_tau=with_tau)
        return _in_shapes((scale * da, scale * db, dv, d_scale / (2 * tau)), operands)

    within = _are_within(channels, chosen, STRICTER, a, b)
    return lax.cond(within, by_products, functools.partial(difference_pullback, channels), *operands)


def difference_sums(channels: Channels, queries: Q, keys: K, values: V, tau: T) -> S:
    """The same sums from differences of coordinates: of ordinary functions of JAX, which every transformation takes."""
    tile_sum = functools.partial(channels.sum_of_differences, jnp.sqrt(tau)[..., None, None])
    return tiled_sum(tile_sum, with_axes_of(tau, queries), keys, values, tile=DIFFERENCES_TILE)


def difference_pullback(channels: Channels, queries: Q, keys: K, values: V, tau: T, g: G) -> tuple[Q, K, V, T]:
    """Their gradients, likewise."""
    total, pullback = jax.vjp(functools.partial(difference_sums, channels), queries, keys, values, tau)
    return pullback(jnp.broadcast_to(g, total.shape))


def difference_means(kernel: Kernel, queries: Q, keys: K, values: V, tau: T, log_weights: W) -> tuple[S, L]:
    """Σ_n w κ v / Σ_n w κ and log Σ_n w κ of operands of equal rank, κ ≥ 0; by ordinary functions of JAX."""
    scale = jnp.sqrt(tau)[..., None, None]

    def logits(queries: Array, keys: Array) -> Array:
        return kernel.log(-2 * difference_logits(scale, queries, keys))

    return tiled_means(logits, with_axes_of(tau, queries), keys, values, log_weights, tile=DIFFERENCES_TILE)


def _by_differences(channels: Channels, chosen: Plan, queries: Array, keys: Array) -> bool:
    sizes = *queries.shape, keys.shape[-2]
    few = are_known(*sizes) and math.prod(sizes) <= FEW and queries.shape[-1] > FEW_DIMENSIONS
    return chosen.method == "differences" or (channels.kinked and few)


def _by_coordinates(channels: Channels, queries: Array) -> bool:
    return channels.kinked and queries.shape[-1] <= FEW_DIMENSIONS


def _are_within(channels: Channels, chosen: Plan, stricter: int, a: Scaled, b: Scaled) -> Array:
    """Whether products do, of points scaled to the base of e; of kernels with a kink, wherever they are finite."""
    if channels.kinked:
        return are_within(float(jnp.finfo(a.norms.dtype).max) / 8, a, b)
    return are_within(REACH[chosen.precision] / stricter / math.log2(math.e), a, b)


def _in_shapes(gradients: tuple[Array, ...], operands: tuple[Array, ...]) -> Any:
    return tuple(unbroadcast(d, x.shape) for d, x in zip(gradients, operands, strict=False))
