"""The way out where float32 has not the digits: the same function in float64, of points brought closer together.

Points that lie far from their center, in bandwidths, are one such place; derivatives of derivatives are another, for
they are made of second moments, Σ Φ v (k - q)(k - q)ᵀ, whose terms about a center cancel. Inside, JAX's 64-bit mode is
on, whatever it is outside; arguments and results are of the working dtype.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from .._checks.settings import Settings
from .._engines.dispatch import closer_points
from .._engines.float64 import in_float64
from .._engines.reach import NEAR, in_two_parts

# Times in R² than sums: derivatives are made of moments about a center, which lose digits with R, that of τ as R².
STRICTER, STRICTER_IN_TAU = 16, 256


def reaching(
    settings: Settings, function: Callable, within: Array | bool, points: tuple[Array, ...], tau: Array, *others: Any
) -> Any:
    """function(settings, points, tau, *others) where the points are `within` reach of the settings; else in float64.

    `within` is a boolean, or a number of `way_there`: then there is a way between. Where it is one for each τ of (T,),
    and not all are within, each τ goes its own way; results then have the axis of τ first, or no elements.
    The function must depend on differences of points alone, and on those of pairs that see one another. Its derivatives
    are formed in float64 in any case: here they are derivatives of derivatives, or of moments.
    """
    if not settings.guarded:
        return function(settings, points, tau, *others)
    if settings.method == "differences":
        return wide(settings, _OfCloser(function), points, tau, *others)
    return _near_or_wide(settings, function, within, points, tau, *others)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _near_or_wide(
    settings: Settings, function: Callable, within: Array | bool, points: Any, tau: Array, *others: Any
) -> Any:
    near = functools.partial(function, replace(settings, guarded=False))
    split = functools.partial(function, in_two_parts(settings))
    far = functools.partial(wide, replace(settings, far=True), _OfCloser(function))

    def go(within: Array | bool, *operands: Any) -> Any:
        if _is_boolean(within):
            return lax.cond(within, near, far, *operands)
        return lax.switch(within, (near, split, far), *operands)

    if not jnp.ndim(within):
        return go(within, points, tau, *others)

    def of_one(one: tuple[Array, Array]) -> Any:
        own, tau = one
        return go(own, points, tau[None], *others)

    def of_each(points: Any, tau: Array, *others: Any) -> Any:
        together = jax.eval_shape(near, points, tau, *others)
        return jax.tree.map(lambda x, y: x.reshape(y.shape), lax.map(of_one, (within, tau)), together)

    are_near = within if _is_boolean(within) else within == NEAR
    return lax.cond(jnp.all(are_near), near, of_each, points, tau, *others)


def _is_boolean(x: Array | bool) -> bool:
    return jnp.issubdtype(jnp.result_type(x), jnp.bool_)


def _near_or_wide_forward(settings: Settings, function: Callable, within: Array, *operands: Any):
    return _near_or_wide(settings, function, within, *operands), operands


def _near_or_wide_backward(settings: Settings, function: Callable, operands: tuple[Any, ...], cotangents: Any):
    gradients: Any = wide(settings, Pullback(_OfCloser(function)), operands, cotangents)
    return None, *gradients


_near_or_wide.defvjp(_near_or_wide_forward, _near_or_wide_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def wide(settings: Settings, function: Callable, *operands: Any) -> Any:
    """function(settings, *operands) in float64; the results in the working dtype.

    Its derivatives, of any order, are formed in there as well: JAX's 64-bit mode must be on where they are traced.
    """
    return in_float64(settings, function, *operands)


def _wide_backward(settings: Settings, function: Callable, operands: tuple[Any, ...], cotangents: Any) -> Any:
    return wide(settings, Pullback(function), operands, cotangents)


wide.defvjp(lambda *args: (wide(*args), args[2:]), _wide_backward)


def split_or_wide(settings: Settings, function: Callable, within: Array | None, *operands: Any) -> Any:
    """function(settings, *operands) of points in two parts where they are `within` their reach; else in float64.

    So are its derivatives wherever points lie. Without a look at the reach there is no program for two parts.
    """
    if within is None:
        return wide(settings, function, *operands)
    return _split_or_wide(settings, function, within, *operands)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _split_or_wide(settings: Settings, function: Callable, within: Array, *operands: Any) -> Any:
    split = functools.partial(function, in_two_parts(settings))
    return lax.cond(within, split, functools.partial(wide, settings, function), *operands)


def _split_or_wide_backward(settings: Settings, function: Callable, operands: tuple[Any, ...], cotangents: Any) -> Any:
    gradients: Any = wide(settings, Pullback(function), operands, cotangents)
    return None, *gradients


_split_or_wide.defvjp(lambda *args: (_split_or_wide(*args), args[3:]), _split_or_wide_backward)


@dataclass(frozen=True)
class Pullback:
    """The gradients of a function at its operands, times cotangents."""

    function: Callable

    def __call__(self, settings: Settings, operands: tuple[Any, ...], cotangents: Any) -> tuple[Any, ...]:
        """In reverse mode."""
        return jax.vjp(functools.partial(self.function, settings), *operands)[1](cotangents)


@dataclass(frozen=True)
class _OfCloser:
    """The function, of points brought closer."""

    function: Callable

    def __call__(self, settings: Settings, points: tuple[Array, ...], tau: Array, *others: Any) -> Any:
        return self.function(settings, _closer(settings, points, tau), tau, *others)


def _closer(settings: Settings, points: tuple[Array, ...], tau: Array) -> tuple[Array, ...]:
    """The points (…, N, D), with wide gaps between their coordinates made narrow: gradients are those of the others."""
    flat = jnp.concatenate([x.reshape(-1, x.shape[-1]) for x in points])
    moved = closer_points(settings, lax.stop_gradient(flat), lax.stop_gradient(tau))
    ends = np.cumsum([x.size // max(1, x.shape[-1]) for x in points])[:-1]
    parts = zip(jnp.split(moved, ends), points, strict=True)
    return tuple(part.reshape(x.shape) + (x - lax.stop_gradient(x)) for part, x in parts)
