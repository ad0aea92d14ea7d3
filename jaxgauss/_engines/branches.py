"""Branches of a program: one for each platform; one for near points and one for any.

Mapped axes of `vmap` become leading axes.
"""

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from .._arrays.custom_rule import is_plain
from .._arrays.devices import platforms, replicated, shard_like, vary_like
from .scopes import scope


def lowered(
    compute: Callable[..., Any],
    options: tuple[Any, ...],
    *operands: jax.Array,
    num_own: int = 0,
    needed: int | None = None,
) -> tuple[jax.Array, ...]:
    """`compute(*options, platform, *operands)` for the platform of the program; under `vmap`, of the whole batch.

    A mapped axis becomes a leading axis, of length one for an operand that is not mapped. The first `num_own` operands
    get the whole axis, because results have their shapes. If one of the first `needed` operands (None: of all) is
    empty, results are zero. What settings say is plain is JAX's to map.
    """
    if is_plain(options):
        return tuple(by_platform(compute, options, *operands, needed=needed))
    return _batched(compute, options, num_own, needed)(*operands)


@functools.cache
def _batched(
    compute: Callable[..., Any], options: tuple[Any, ...], num_own: int, needed: int | None
) -> Callable[..., tuple[jax.Array, ...]]:
    @custom_vmap
    def batched(*operands: jax.Array) -> tuple[jax.Array, ...]:
        with _mode_of(operands):
            return tuple(by_platform(compute, options, *operands, needed=needed))

    @batched.def_vmap
    def _(axis_size: int, is_mapped: Sequence[bool], *operands: jax.Array):
        sizes = (axis_size if i < num_own else 1 for i in range(len(operands)))
        with _mode_of(operands):
            stacked = [
                x if has_axis else jnp.broadcast_to(x, (size, *x.shape))
                for x, has_axis, size in zip(operands, is_mapped, sizes, strict=True)
            ]
            results = batched(*replicated(*stacked)) if stacked[0].dtype == jnp.float64 else batched(*stacked)
            return tuple(shard_like(x, stacked) for x in results), (True,) * len(results)

    return batched


def _mode_of(operands: Sequence[jax.Array]) -> contextlib.AbstractContextManager:
    """JAX's 64-bit mode for operands in float64: JAX may trace a rule after the caller has left that mode."""
    return jax.enable_x64(True) if operands[0].dtype == jnp.float64 else contextlib.nullcontext()


def by_platform(
    compute: Callable[..., Any], options: tuple[Any, ...], *operands: jax.Array, needed: int | None = None
) -> Any:
    """`compute(*options, platform, *operands)` for the platform of the program; zeros for empty operands."""
    known, on = platforms(), {name: functools.partial(compute, *options, name) for name in platforms()}
    if any(0 in x.shape for x in operands[:needed]):
        results = jax.eval_shape(on[known[0]], *operands)
        return jax.tree.map(lambda x: vary_like(jnp.zeros(x.shape, x.dtype), operands), results)
    return on[known[0]](*operands) if len(known) == 1 else lax.platform_dependent(*operands, **on, default=on["cpu"])


def one_of_two(is_near: jax.Array | bool, near: Callable, anywhere: Callable, *operands: Any) -> Any:
    """`near(*operands)` if they are near, else `anywhere(*operands)`; each has its own derivatives."""
    if isinstance(is_near, bool):
        return (near if is_near else anywhere)(*operands)
    return lax.cond(is_near, scope("near")(near), anywhere, *operands)


def as_vectors(arrays: Sequence[jax.Array]) -> list[jax.Array]:
    """Columns as vectors: XLA lays a column out in one of two ways, and copies it after a `cond`."""
    return [x[..., 0] if x.shape[-1] == 1 else x for x in arrays]


def but_not(is_near: jax.Array | bool, waves: jax.Array | bool) -> jax.Array | bool:
    """Whether points are near and not summed by waves."""
    if isinstance(waves, bool):
        return False if waves else is_near
    return is_near & ~waves
