"""Whether points lie near one another: here it is decided which of two ways a sum takes, near or anywhere.

Near, products about one center make exponents, and the moments that gradients are made of. Anywhere, each tile of the
kernel matrix looks after its own digits (see `anywhere`), and so do derivatives of derivatives. On CUDA, where nothing
may wait for the device, all points count as near: what half precision does not hold, PyTorch computes again behind a
gate.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from .._arrays.places import vary_like
from .._arrays.points import BASE_2, are_within, scaled_points, with_norms
from .._checks.settings import Settings
from .by_platform import by_platform, plan_there
from .plan import NEAR, STRICTER


def within(reach: float, queries: jax.Array, keys: jax.Array, tau: jax.Array) -> jax.Array:
    """Whether all of a batch lies within R², squared bandwidths from its center: one boolean."""
    if reach == math.inf:
        return vary_like(jnp.ones((), bool), [queries, keys, tau])
    return are_within(reach / BASE_2, *with_norms(*scaled_points(queries, keys, tau, base_2=False)))


def are_near(settings: Settings, stricter: float, *operands: jax.Array) -> jax.Array:
    """Whether queries and keys are near by the plan of a sum of them, values and τ; one boolean, under `vmap` too."""
    return _are_near(settings, stricter)(*operands)


@functools.cache
def _are_near(settings: Settings, stricter: float) -> Callable[..., jax.Array]:
    def compute(platform: str, queries: jax.Array, keys: jax.Array, values: jax.Array, tau: jax.Array) -> jax.Array:
        chosen = plan_there(settings, platform, (queries, keys, values, tau))
        return within(chosen.reach / stricter, queries, keys, tau)

    return _unbatched(functools.partial(by_platform, compute))


def _unbatched(look: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """`look` at a whole batch under `vmap`, so that what depends on it stays one conditional."""

    @custom_vmap
    def looked(*operands: jax.Array) -> jax.Array:
        return look(*operands)

    @looked.def_vmap
    def _(axis_size: int, is_mapped: Sequence[bool], *operands: jax.Array):
        return looked(*(x if mapped else x[None] for x, mapped in zip(operands, is_mapped, strict=True))), False

    return lambda *operands: looked(*(lax.stop_gradient(x) for x in operands))


@_unbatched
def tiles_are_near(queries: jax.Array, keys: jax.Array, tau: jax.Array) -> jax.Array:
    """Whether they are near enough for derivatives of tiles made by products, in their own dtype."""
    return within(NEAR[queries.dtype.name] / STRICTER, queries, keys, tau)


def one_of_two(is_near: jax.Array, near: Callable, anywhere: Callable, *operands: Any) -> Any:
    """`near(*operands)` where they are near, else `anywhere(*operands)`; each has derivatives of its own."""
    return lax.cond(is_near, near, anywhere, *operands)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def near_or_anywhere(near: Callable, anywhere: Callable, is_near: jax.Array, *operands: Any) -> Any:
    """The same, with the derivatives of `anywhere`."""
    return one_of_two(is_near, near, anywhere, *operands)


def _backward(near: Callable, anywhere: Callable, operands: tuple[Any, ...], cotangents: Any) -> tuple[Any, ...]:
    return None, *jax.vjp(anywhere, *operands)[1](cotangents)


near_or_anywhere.defvjp(lambda near, anywhere, *args: (near_or_anywhere(near, anywhere, *args), args[1:]), _backward)
