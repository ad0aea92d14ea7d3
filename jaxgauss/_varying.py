"""Varying axes under `jax.shard_map(…, check_vma=True)`: operands that meet in one callback must vary alike."""

from collections.abc import Sequence

import jax
from jax import lax


def vary_alike(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    """The arrays, each varying over every mesh axis that one of them varies over.

    To be called outside of a custom rule: the transpose of the cast is the psum that the gradient of a replicated
    array needs.
    """
    return tuple(vary_like(x, arrays) for x in arrays)


def vary_like(array: jax.Array, others: Sequence[jax.Array]) -> jax.Array:
    """The array, varying also over the mesh axes that the others vary over."""
    axes = frozenset().union(*(_varying_axes(x) for x in others)) - _varying_axes(array)
    return lax.pcast(array, tuple(sorted(axes)), to="varying") if axes else array


def _varying_axes(array: jax.Array) -> frozenset[str]:
    return jax.typeof(array).manual_axis_type.varying
