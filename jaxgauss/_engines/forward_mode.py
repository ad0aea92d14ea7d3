"""The sum as a primitive of JAX with a tangent and a transpose: forward mode, reverse mode, and one over the other.

Its tangent is also that of `rules`, whose other rules are those of reverse mode.
"""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array

from .._arrays.hidden import without_hidden
from .._arrays.points import center, for_sums, unbroadcast
from .._kernels.kernels import GAUSS
from .branches import one_of_two
from .channels import cheaper_by_channels, flat_channels
from .differences.all_pairs import difference_sums
from .near import are_near
from .plan import takes_half
from .products.gaussian import blocked_sum
from .request import Channels
from .run import near_sum, planned_gaussian_sum, planned_kernel_sum
from .settings import Settings


def sum_in_both_modes(settings: Settings, queries: Array, keys: Array, values: Array, tau: Array) -> Array:
    """Σ_n Φ_τ(q_m, k_n) v_n of operands of equal rank and one dtype, under all transformations."""
    return gauss_sum_p.bind(queries, keys, values, tau, settings=settings, near=False)


# Derivatives. With x = k_n - q_m and Φ = exp(-τ/2 ‖x‖²), the tangent of s_m = Σ_n Φ v_n is
#
#     ds_m = Σ_n Φ dv_n - τ Σ_n Φ v_n ⟨x, dk_n⟩ + τ ⟨Σ_n Φ v_n x, dq_m⟩ - ½ dτ Σ_n Φ v_n ‖x‖²
#
# The first two terms are a Gauss sum of values that are linear in the tangents, [dv - τ v ⟨k, dk⟩, τ v dk]. The others
# are Gauss sums of [v k, v, v ‖k‖²] times tangents. Points are about a center of the keys. The sum is linear in its
# values, so its transpose is the sum over the queries. All of it is made of the primitive itself, so every order and
# mode works. There are C(D + 1) channels; where these are many, JAX differentiates the blocked sum instead.
# Source: the product rule; compare `rules`, whose rules are the transpose.


gauss_sum_p = Primitive("gauss_sum")


def _sum(*operands: Array, settings: Settings, near: bool) -> Array:
    """The sum; `near`: whether points are known to be near."""
    return (near_sum if near else planned_gaussian_sum)(settings, *operands)


def _abstract_sum(queries, keys, values, tau, **_: Any):
    batch = jnp.broadcast_shapes(queries.shape[:-2], keys.shape[:-2], values.shape[:-2], tau.shape)
    return queries.update(shape=(*batch, queries.shape[-2], values.shape[-1]), weak_type=False)


def _primal_and_tangent(
    primals: tuple[Array, ...], tangents: tuple[Array | ad.Zero, ...], *, settings: Settings, near: bool
):
    given = [None if isinstance(x, ad.Zero) else x for x in tangents]
    if near or any(0 in x.shape for x in primals):
        return _by_moments(settings, primals, given)
    return sum_and_tangent(settings, primals, given)


def sum_and_tangent(settings: Settings, primals: tuple[Array, ...], given: list[Array | None]) -> tuple[Array, Array]:
    """The sum and its tangent, by moments for near points and by differences for others; None: no tangent."""
    return one_of_two(
        are_near(replace(settings, waves=False), *primals, pulls=True, second_order=True),
        functools.partial(_by_moments, settings),
        functools.partial(by_differences, Channels((GAUSS,), primals[2].shape[-1:])),
        primals,
        given,
    )


def by_differences(
    channels: Channels, primals: tuple[Array, ...], given: list[Array | None], *, others: bool = False
) -> tuple[Array, Array]:
    """`sum_and_tangent` of any kernels and points. Values are multiplied by a power of two if sums may overflow."""
    (queries, keys, values, tau), (*of_points, d_values, d_tau) = primals, given
    unit = for_sums(values, queries.shape[-2], keys.shape[-2])  # not of tangents, in which tangents are linear
    primals = queries, without_hidden(keys, values), unit * values, tau
    given = [*of_points, None if d_values is None else unit * d_values, d_tau]
    total, tangent = _automatic(functools.partial(difference_sums, channels, others=others), primals, given)
    return total / unit, tangent / unit


def _by_moments(settings: Settings, primals: tuple[Array, ...], tangents: list[Array | None]) -> tuple[Array, Array]:
    """The sum and its tangent by the rule above; by the blocked sum if its channels would be very many."""
    (queries, keys, values, tau), (d_queries, d_keys, d_values, d_tau) = primals, tangents
    if d_queries is d_keys is d_tau is None or cheaper_by_channels(keys, values):
        points, d_points = (queries, keys, tau), (d_queries, d_keys, d_tau)
        return _of_channels(settings, points, d_points, values, d_values)
    return _automatic(blocked_sum, primals, tangents)


def _automatic(function: Callable, primals: tuple[Array, ...], tangents: list[Array | None]) -> tuple[Array, Array]:
    directions = tuple(jnp.zeros_like(x) if d_x is None else d_x for x, d_x in zip(primals, tangents, strict=True))
    return jax.jvp(function, primals, directions)


def _of_channels(
    settings: Settings,
    points: tuple[Array, Array, Array],
    d_points: tuple[Array | None, Array | None, Array | None],
    values: Array,
    d_values: Array | None,
) -> tuple[Array, Array]:
    (queries, keys, tau), (d_queries, d_keys, d_tau) = points, d_points
    channels = values.shape[-1]
    c, scale = center(keys, takes_half(settings)), tau[..., None, None]
    q, k = (queries - c)[..., None, :], (keys - c)[..., None, :]  # (…, M or N, 1, D)

    def sums(*columns: Array) -> list[Array]:
        """Gauss sums of (…, N, C, W), each (…, M, C, W)."""
        widths = [x.shape[-1] for x in columns]
        batch = jnp.broadcast_shapes(*(x.shape[:-1] for x in columns))
        side_by_side = jnp.concatenate([jnp.broadcast_to(x, (*batch, x.shape[-1])) for x in columns], -1)
        total = gauss_sum_p.bind(queries, keys, flat_channels(side_by_side), tau, settings=settings, near=True)
        total = total.reshape(*total.shape[:-1], channels, sum(widths))
        return jnp.split(total, np.cumsum(widths)[:-1], -1)

    v = values[..., None]  # (…, N, C, 1)
    firsts = [v * k] if d_queries is not None or d_tau is not None else []
    seconds = [v * jnp.square(k).sum(-1, keepdims=True)] if d_tau is not None else []
    total, *moments = sums(v, *firsts, *seconds)
    tangent = jnp.zeros_like(total)
    if d_queries is not None:
        pulls = moments[0] - q * total
        tangent += scale[..., None] * (pulls * d_queries[..., None, :]).sum(-1, keepdims=True)
    if d_tau is not None:
        spread = moments[1] - 2 * (q * moments[0]).sum(-1, keepdims=True) + jnp.square(q).sum(-1, keepdims=True) * total
        tangent -= d_tau[..., None, None, None] / 2 * spread
    if d_keys is not None:
        move = scale[..., None] * v * d_keys[..., None, :]  # (…, N, C, D)
        along = -(k * move).sum(-1, keepdims=True)
        first, moved = sums(along if d_values is None else along + d_values[..., None], move)
        tangent += first + (q * moved).sum(-1, keepdims=True)
    elif d_values is not None:
        tangent += sums(d_values[..., None])[0]
    return total[..., 0], tangent[..., 0]


def _transpose(g, queries: Array, keys: Array, values: ad.UndefinedPrimal, tau: Array, **how: Any):
    if type(g) is ad.Zero:
        return None, None, ad.Zero(values.aval), None
    d_values = gauss_sum_p.bind(keys, queries, g, tau, **how)
    return None, None, unbroadcast(d_values, values.aval.shape), None


def _batched(operands, axes, **how: Any):
    queries, keys, values, tau = operands
    if all(axis is None for axis in (axes[0], axes[1], axes[3])):  # one kernel matrix: the axis becomes more channels
        values = jnp.moveaxis(values, axes[2], -1)  # (…, N, C, B)
        total = gauss_sum_p.bind(queries, keys, flat_channels(values), tau, **how)
        return total.reshape(*total.shape[:-1], *values.shape[-2:]), total.ndim
    operands = [x[None] if axis is None else jnp.moveaxis(x, axis, 0) for x, axis in zip(operands, axes, strict=True)]
    return gauss_sum_p.bind(*operands, **how), 0


gauss_sum_p.def_impl(jax.jit(_sum, static_argnames=("settings", "near")))


gauss_sum_p.def_abstract_eval(_abstract_sum)


ad.primitive_jvps[gauss_sum_p] = _primal_and_tangent
ad.primitive_transposes[gauss_sum_p] = _transpose
batching.primitive_batchers[gauss_sum_p] = _batched


mlir.register_lowering(gauss_sum_p, mlir.lower_fun(_sum, multiple_results=False))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def radial_sum_in_both_modes(settings: Settings, channels: Channels, *operands: Array) -> Array:
    """The sum of radial kernels under all transformations; its derivatives are those of the sum from differences."""
    return planned_kernel_sum(settings, channels, *operands)


@radial_sum_in_both_modes.defjvp
def _tangent(settings: Settings, channels: Channels, primals: tuple[Array, ...], tangents: tuple[Array, ...]):
    _, tangent = by_differences(channels, primals, [*tangents], others=settings.exclude_self)
    return radial_sum_in_both_modes(settings, channels, *primals), tangent
