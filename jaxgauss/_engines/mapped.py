"""How functions of operands are vmapped: mapped axes become leading axes, and what is shared stays shared."""

import contextlib
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from .._arrays.places import share_out_like, whole


def _width(operands: Sequence[jax.Array]) -> contextlib.AbstractContextManager:
    """The mode that operands in float64 need, for what JAX traces later than it was called."""
    return jax.enable_x64(True) if operands[0].dtype == jnp.float64 else contextlib.nullcontext()


def mapped(function: Callable, num_own: int) -> Callable:
    """`function`, vmapped by one more leading axis, of length 1 where an operand is not mapped.

    The first `num_own` operands, in whose shapes the results are, get the whole axis: each element has its own result.
    """

    @custom_vmap
    def mapped(*operands: jax.Array) -> tuple[jax.Array, ...]:
        with _width(operands):
            return tuple(function(*operands))

    @mapped.def_vmap
    def _(axis_size: int, is_mapped: Sequence[bool], *operands: jax.Array):
        sizes = (axis_size if i < num_own else 1 for i in range(len(operands)))
        with _width(operands):
            batched = [
                x if has_axis else jnp.broadcast_to(x, (size, *x.shape))
                for x, has_axis, size in zip(operands, is_mapped, sizes, strict=True)
            ]
            results = mapped(*whole(*batched)) if batched[0].dtype == jnp.float64 else mapped(*batched)
            return tuple(share_out_like(x, batched) for x in results), (True,) * len(results)

    return mapped
