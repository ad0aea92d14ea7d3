"""Where arrays live: their platform, and the mesh axes that their types name.

Operands of one callback must agree in both. Under `jax.shard_map(…, check_vma=True)` a type names the mesh axes over
which an array varies; on a mesh with explicit axes, those along which it is sharded.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.core
import jax.extend
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from .process import refuse_fork


def platforms() -> list[str]:
    """The platforms of JAX in this process, by the names that it lowers for."""
    backends = jax.extend.backend.backends()
    return sorted({_lowering_name(client.devices()[0]) for client in backends.values() if client.device_count()})


def has_cuda() -> bool:
    """Whether CUDA is one of the platforms."""
    return "cuda" in platforms()


def expected_platform(*arrays: Any) -> str:
    """The platform of the arrays, or of JAX's default device for tracers and NumPy arrays."""
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


def is_visible(array: Any) -> bool:
    """Whether the host knows the values without waiting: not under `jit`, nor on another device or process."""
    if not isinstance(array, jax.Array):
        return True
    is_traced = isinstance(array, jax.core.Tracer)
    return not is_traced and array.is_fully_addressable and all(x.platform == "cpu" for x in array.devices())


def visible(array: Any) -> np.ndarray | None:
    """The values of an array in float64, or None if the host does not know them."""
    return np.asarray(array, np.float64) if is_visible(array) else None


def vary_alike(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    """The arrays, each varying over every mesh axis over which one of them varies.

    Call it outside of a custom rule: the transpose of the cast is the psum that the gradient of a replicated array
    needs.
    """
    return tuple(vary_like(x, arrays) for x in arrays)


def vary_like(array: jax.Array, others: Sequence[jax.Array]) -> jax.Array:
    """The array, varying also over the mesh axes over which the others vary."""
    axes = frozenset().union(*(_varying_axes(x) for x in others)) - _varying_axes(array)
    return lax.pcast(array, tuple(sorted(axes)), to="varying") if axes else array


def replicated(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    """The arrays, replicated where their types say that they are sharded, so that they can be sliced."""
    return tuple(_replicated(x) for x in arrays)


def shard_like(array: jax.Array, others: Sequence[jax.Array]) -> jax.Array:
    """The array, with its first axis sharded like that of the others, if their types say that it is."""
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
