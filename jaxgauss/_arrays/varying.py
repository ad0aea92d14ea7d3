"""Where arrays live, as their types tell: operands that meet in one callback must live alike.

Under `jax.shard_map(…, check_vma=True)` types have the axes of the mesh that an array varies over, on a mesh with
explicit axes those that it is shared out over.
"""

from collections.abc import Sequence

import jax
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec


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


def whole(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    """The arrays, each whole on every device where its type says that it is shared out: so that it can be cut."""
    return tuple(_whole(x) for x in arrays)


def share_out_like(array: jax.Array, others: Sequence[jax.Array]) -> jax.Array:
    """The array, its first axis shared out as that of the others is whose type says that it is."""
    shardings = (jax.typeof(x).sharding for x in others)
    shared = [x for x in shardings if x.spec and x.spec[0] is not None and AxisType.Explicit in x.mesh.axis_types]
    if not shared or jax.typeof(array).sharding.spec[0] is not None:
        return array
    spec = PartitionSpec(shared[0].spec[0], *[None] * (array.ndim - 1))
    return jax.reshard(array, NamedSharding(shared[0].mesh, spec))


def _whole(array: jax.Array) -> jax.Array:
    sharding = jax.typeof(array).sharding
    if not any(sharding.spec) or AxisType.Explicit not in sharding.mesh.axis_types:
        return array
    return jax.reshard(array, NamedSharding(sharding.mesh, PartitionSpec()))


def _varying_axes(array: jax.Array) -> frozenset[str]:
    return jax.typeof(array).manual_axis_type.varying
