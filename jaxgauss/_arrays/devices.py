"""Where arrays live: the platform, and what their types tell, for operands that meet in one callback must live alike.

Under `jax.shard_map(…, check_vma=True)` types have the axes of the mesh that an array varies over, on a mesh with
explicit axes those that it is shared out over.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.core
import jax.extend
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from .._checks.process import refuse_fork


def platforms() -> list[str]:
    """The platforms that JAX runs on in this process, by the names that it lowers for."""
    backends = jax.extend.backend.backends()
    return sorted({_lowering_name(client.devices()[0]) for client in backends.values() if client.device_count()})


def has_cuda() -> bool:
    """Whether one of them is CUDA."""
    return "cuda" in platforms()


def expected_platform(*arrays: Any) -> str:
    """The platform of the arrays, or JAX's default one where they do not tell (tracers, NumPy arrays)."""
    refuse_fork()
    for x in arrays:
        if isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer):
            return _lowering_name(next(iter(x.devices())))
    default = jax.config.jax_default_device  # type: ignore[attr-defined]
    if isinstance(default, jax.Device):
        return _lowering_name(default)
    return _lowering_name(jax.devices(default)[0])


def _lowering_name(device: Any) -> str:
    if device.platform != "gpu":
        return device.platform
    return "rocm" if "rocm" in device.client.platform_version.lower() else "cuda"


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


def replicated(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    """The arrays, each whole on every device where its type says that it is shared out: so that it can be cut."""
    return tuple(_replicated(x) for x in arrays)


def shard_like(array: jax.Array, others: Sequence[jax.Array]) -> jax.Array:
    """The array, its first axis shared out as that of the others is whose type says that it is."""
    shardings = (jax.typeof(x).sharding for x in others)
    shared = [x for x in shardings if x.spec and x.spec[0] is not None and AxisType.Explicit in x.mesh.axis_types]
    if not shared or jax.typeof(array).sharding.spec[0] is not None:
        return array
    spec = PartitionSpec(shared[0].spec[0], *[None] * (array.ndim - 1))
    return jax.reshard(array, NamedSharding(shared[0].mesh, spec))


def _replicated(array: jax.Array) -> jax.Array:
    sharding = jax.typeof(array).sharding
    if not any(sharding.spec) or AxisType.Explicit not in sharding.mesh.axis_types:
        return array
    return jax.reshard(array, NamedSharding(sharding.mesh, PartitionSpec()))


def _varying_axes(array: jax.Array) -> frozenset[str]:
    return jax.typeof(array).manual_axis_type.varying
