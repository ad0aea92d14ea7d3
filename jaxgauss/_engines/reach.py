"""Whether points lie near one another: here it is decided which of two ways a sum takes, near or anywhere.

Outside of `jit` many points are looked at before, and only the way that they need is compiled; else a program has both.

Near, products about one center make exponents, and the moments that gradients are made of. Anywhere, each tile of the
kernel matrix looks after its own digits (see `anywhere`), and so do derivatives of derivatives. On CUDA, where nothing
may wait for the device, all points count as near: what half precision does not hold, PyTorch computes again behind a
gate.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap

from .._arrays.places import expected_platform, vary_like
from .._arrays.points import BASE_2, are_within, scaled_points, with_norms
from .._checks.settings import Settings, working_dtype
from .anywhere import FEW
from .by_platform import by_platform, plan_there
from .plan import NEAR, STRICTER

# R² beside its limit from which it is sure on which side of it points are, about any center among them, with moments.
SURE = 16


def looked_at(settings: Settings, tau: Any, *points: Any) -> Settings:
    """The settings with what arrays of points on a CPU tell, where they are there: not within `jit` or `vmap`.

    Few are not looked at, for that would take longer than their sum, and both of their ways are compiled soon.
    """
    if settings.method == "differences" or settings.kernel.kinked:
        return settings
    tau, *given = (_differentiated(x) for x in (tau, *points))
    if not all(map(_is_here, (tau, *given))) or expected_platform(*given) != "cpu":
        return settings
    num = sum([math.prod(np.shape(x)[:-1]) for x in given])
    if num**2 * np.shape(given[0])[-1] <= 4 * FEW:
        return settings
    squared, limit = _squared_radius(tau, *given), NEAR[working_dtype(settings.dtype).name]
    if squared <= limit / SURE or squared > limit * SURE:
        return _with(settings, squared <= limit)
    return settings


@functools.lru_cache(4096)
def _with(settings: Settings, near: bool) -> Settings:
    return replace(settings, near=near)


def _differentiated(x: Any) -> Any:
    """What is differentiated outside of `jit`, or x itself."""
    while isinstance(x, jax.core.Tracer) and hasattr(x, "primal"):
        x = x.primal
    return x


def _is_here(x: Any) -> bool:
    is_traced = isinstance(x, jax.core.Tracer) or not getattr(x, "is_fully_addressable", True)
    return not is_traced and 0 not in np.shape(x)


def _squared_radius(tau: Any, *points: Any) -> float:
    """R² of all points together, whatever their batches; NaN does not count, but for a center of it."""
    arrays = [np.asarray(x) for x in {id(x): x for x in points}.values()]
    rows = [(x if x.itemsize > 2 else x.astype("float32")).reshape(-1, x.shape[-1]) for x in arrays]
    some = rows[0][:: -(-len(rows[0]) // 8)]
    with np.errstate(all="ignore"):
        center = np.add.reduce(some) / len(some)
        farthest = max(np.fmax.reduce(np.einsum("nd,nd->n", x, x)) for x in (x - center for x in rows))
        return float(farthest * np.max(tau))


def within(reach: float, queries: jax.Array, keys: jax.Array, tau: jax.Array) -> jax.Array | bool:
    """Whether all of a batch lies within R², squared bandwidths from its center: one boolean."""
    if math.isinf(reach):
        return reach > 0
    return are_within(reach / BASE_2, *with_norms(*scaled_points(queries, keys, tau, base_2=False)))


def are_near(settings: Settings, stricter: float, *operands: jax.Array) -> jax.Array | bool:
    """Whether queries and keys are near by the plan of a sum of them, values and τ; one boolean, under `vmap` too."""
    if settings.near is not None:
        return settings.near
    return _are_near(settings, stricter)(*operands)


@functools.cache
def _are_near(settings: Settings, stricter: float) -> Callable[..., jax.Array]:
    def compute(platform: str, queries: jax.Array, keys: jax.Array, values: jax.Array, tau: jax.Array) -> jax.Array:
        chosen = plan_there(settings, platform, (queries, keys, values, tau))
        is_near = within(chosen.reach / stricter, queries, keys, tau)
        return vary_like(jnp.full((), is_near), [queries, keys, tau]) if isinstance(is_near, bool) else is_near

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
def tiles_are_near(queries: jax.Array, keys: jax.Array, tau: jax.Array) -> Any:
    """Whether they are near enough for derivatives of tiles made by products, in their own dtype."""
    return within(NEAR[queries.dtype.name] / STRICTER, queries, keys, tau)


def one_of_two(is_near: jax.Array | bool, near: Callable, anywhere: Callable, *operands: Any) -> Any:
    """`near(*operands)` where they are near, else `anywhere(*operands)`; each has derivatives of its own."""
    if isinstance(is_near, bool):
        return (near if is_near else anywhere)(*operands)
    return lax.cond(is_near, near, anywhere, *operands)


def near_or_anywhere(is_near: jax.Array | bool, near: Callable, anywhere: Callable, *operands: Any) -> Any:
    """The same, with the derivatives of `anywhere`."""
    if is_near is False:
        return anywhere(*operands)
    return _with_derivatives(near, anywhere, None if is_near is True else is_near, *operands)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _with_derivatives(near: Callable, anywhere: Callable, is_near: jax.Array | None, *operands: Any) -> Any:
    return near(*operands) if is_near is None else one_of_two(is_near, near, anywhere, *operands)


def _backward(near: Callable, anywhere: Callable, operands: tuple[Any, ...], cotangents: Any) -> tuple[Any, ...]:
    return None, *jax.vjp(anywhere, *operands)[1](cotangents)


_with_derivatives.defvjp(lambda near, anywhere, *args: (_with_derivatives(near, anywhere, *args), args[1:]), _backward)
