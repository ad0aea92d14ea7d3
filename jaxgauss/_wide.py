"""The way out where float32 has not the digits: the same function in float64, of points brought closer together.

Points that lie far from their center, in bandwidths, are one such place; derivatives of derivatives are another, for
they are made of second moments, Σ Φ v (k - q)(k - q)ᵀ, whose terms about a center cancel. Inside, JAX's 64-bit mode is
on, whatever it is outside; arguments and results are of the working dtype.
"""

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from ._checks import Settings, working_dtype

STRICTER = 16  # times in R² than sums: moments about a center, from which derivatives are made, lose R times the digits
GAP = 40.0  # bandwidths; a pair this far apart has a kernel of zero, in float64 too
SPREAD = 64.0  # bandwidths: float64 has digits for more, but fourth moments, in derivatives of τ, take many of them


def reaching(
    settings: Settings, function: Callable, within: Array, points: tuple[Array, ...], tau: Array, *others: Any
) -> Any:
    """function(settings, points, tau, *others) where the points are `within` reach of the settings; else in float64.

    The function must depend on differences of points alone, and on those of pairs that see one another. Its derivatives
    are formed in float64 in any case: here they are derivatives of derivatives, or of moments.
    """
    if not settings.guarded:
        return function(settings, points, tau, *others)
    if settings.method == "differences":
        return wide(settings, _OfCloser(function), points, tau, *others)
    return _near_or_wide(settings, function, within, points, tau, *others)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _near_or_wide(settings: Settings, function: Callable, within: Array, *operands: Any) -> Any:
    near = functools.partial(function, replace(settings, guarded=False))
    return lax.cond(within, near, functools.partial(wide, settings, _OfCloser(function)), *operands)


def _near_or_wide_forward(settings: Settings, function: Callable, within: Array, *operands: Any):
    return _near_or_wide(settings, function, within, *operands), operands


def _near_or_wide_backward(settings: Settings, function: Callable, operands: tuple[Any, ...], cotangents: Any):
    return None, *wide(settings, _Pullback(_OfCloser(function)), operands, cotangents)


_near_or_wide.defvjp(_near_or_wide_forward, _near_or_wide_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def wide(settings: Settings, function: Callable, *operands: Any) -> Any:
    """function(settings, *operands) in float64; the results in the working dtype.

    Its derivatives, of any order, are formed in there as well: JAX's 64-bit mode must be on where they are traced.
    """
    return in_float64(settings, function, *operands)


def _wide_backward(settings: Settings, function: Callable, operands: tuple[Any, ...], cotangents: Any):
    return wide(settings, _Pullback(function), operands, cotangents)


wide.defvjp(lambda *args: (wide(*args), args[2:]), _wide_backward)


def in_float64(settings: Settings, function: Callable, *operands: Any) -> Any:
    """The same, without derivatives."""
    dtype = working_dtype(settings.dtype)
    with jax.enable_x64(True):
        operands = jax.tree.map(lambda x: x.astype("float64"), operands)
        results = function(replace(settings, wide=True, guarded=False), *operands)
        return jax.tree.map(lambda x: x.astype(dtype), results)


def width(settings: Settings) -> contextlib.AbstractContextManager:
    """The mode that the settings' operands need, for what JAX traces later than it was called."""
    return jax.enable_x64(True) if settings.wide else contextlib.nullcontext()


@dataclass(frozen=True)
class _Pullback:
    """The gradients of a function at its operands, times cotangents; a value, so that it is traced once."""

    function: Callable

    def __call__(self, settings: Settings, operands: tuple[Any, ...], cotangents: Any) -> tuple[Any, ...]:
        return jax.vjp(functools.partial(self.function, settings), *operands)[1](cotangents)


@dataclass(frozen=True)
class _OfCloser:
    """The function, of points brought closer."""

    function: Callable

    def __call__(self, settings: Settings, points: tuple[Array, ...], tau: Array, *others: Any) -> Any:
        return self.function(settings, closer(points, tau), tau, *others)


def closer(points: tuple[Array, ...], tau: Array) -> tuple[Array, ...]:
    """The points (…, N, D), with wide gaps between their coordinates made narrow where that is needed for digits.

    Who is on one side of a gap does not see who is on the other, before or after; all other differences are kept, and
    gradients are those of the points as they were.
    """
    if any(x.size == 0 for x in points):
        return points
    flat = jnp.concatenate([lax.stop_gradient(x).reshape(-1, x.shape[-1]) for x in points])
    tau = lax.stop_gradient(tau)

    def close(flat: Array) -> Array:
        order = jnp.argsort(flat, axis=0)
        steps = jnp.diff(jnp.take_along_axis(flat, order, 0), axis=0, prepend=flat.min(0, keepdims=True))
        moved = jnp.minimum(steps, GAP / jnp.sqrt(tau.min())).cumsum(0)
        return jnp.take_along_axis(moved, jnp.argsort(order, axis=0), 0)

    far = (flat.max(0) - flat.min(0)).max() * jnp.sqrt(tau.max()) > SPREAD
    moved = iter(jnp.split(lax.cond(far, close, lambda x: x, flat), _ends(points)))
    return tuple(next(moved).reshape(x.shape) + (x - lax.stop_gradient(x)) for x in points)


def _ends(points: tuple[Array, ...]) -> list[int]:
    ends = [0]
    for x in points[:-1]:
        ends.append(ends[-1] + x.size // x.shape[-1])
    return ends[1:]
