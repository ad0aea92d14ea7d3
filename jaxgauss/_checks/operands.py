"""Checks of the arguments of sums: points, values, weights, τ, options and meshes."""

import math
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh

from .arguments import floating_dtype
from .settings import TAU_RANGE, axis_names, working_dtype


class Traced(TypeError):
    """A function that needs the values of its arguments was traced."""


def check_operands(function: str, queries: Any, keys: Any, values: Any, tau: Any) -> str:
    """Raise TypeError or ValueError unless the arguments fit together; return the name of the promoted dtype."""
    where = f"`jaxgauss.{function}`"
    operands = {"queries": queries, "keys": keys, "values": values}
    dtypes = [floating_dtype(where, name, x) for name, x in operands.items()]
    shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in operands.items())
    for name in ("queries", "keys"):
        if len(operands[name].shape) < 2:
            raise ValueError(
                f"{where}: `{name}` must be points (…, number, dimension); got {shapes}."
                f" One-dimensional points are {name}[:, None]."
            )
    if len(values.shape) < 1:
        raise ValueError(f"{where}: `values` must be weights (N,) or values (…, N, C); got {shapes}. Pass one a key.")
    if queries.shape[-1] != keys.shape[-1]:
        raise ValueError(
            f"{where}: `queries` and `keys` must be points of the same dimension; got {shapes}."
            " Their last axes must be equal."
        )
    if keys.shape[-1] == 0:
        raise ValueError(
            f"{where}: `queries` and `keys` must have at least one dimension; got {shapes}. Add a column of zeros."
        )
    num_values = values.shape[0] if len(values.shape) == 1 else values.shape[-2]
    if num_values != keys.shape[-2]:
        fix = f"Weights are one for each key, ({keys.shape[-2]},)."
        if len(values.shape) > 1:
            fix = "The last two axes of values are keys and channels, (…, N, C)."
            if values.shape[-1] == keys.shape[-2]:
                batched = len(queries.shape) > 2 or len(keys.shape) > 2 or np.ndim(tau) > 0
                fix = "Weights in batches need an axis of channels: values[..., None]."
                fix = fix if batched else "Keys come first: values.T."
        raise ValueError(f"{where}: `values` must hold one row for each key; got {shapes}. {fix}")
    dtype = dtypes[0] if len(set(dtypes)) == 1 else jnp.result_type(*dtypes)
    tau_shape = check_tau(where, tau, working_dtype(dtype))
    leading = {tau_shape, *(tuple(x.shape[:-2]) for x in operands.values())}
    try:
        jnp.broadcast_shapes(*leading)
    except ValueError:
        fix = "Add axes of length 1."
        if tau_shape and tau_shape[-1] == keys.shape[-1]:
            fix += " For one bandwidth in each dimension scale the points: queries * jnp.sqrt(tau)."
        raise ValueError(
            f"{where}: leading axes must broadcast as in jnp.matmul, and `tau` against them; got {shapes},"
            f" tau {tau_shape}. {fix}"
        ) from None
    return dtype.name


def as_operand(tau: Any, dtype: Any) -> Any:
    """Convert τ to an array that `jax.jit` takes, even if it is a large integer."""
    return tau if isinstance(tau, (jax.Array, float)) else np.asarray(tau, working_dtype(dtype))


def check_weights(function: str, name: str, weights: Any, keys: Any) -> Any:
    """Raise unless weights are None or one per key, (…, N); return an array in the shape of values (…, N, 1)."""
    where = f"`jaxgauss.{function}`"
    if not hasattr(keys, "shape") or len(keys.shape) < 2:
        return keys  # refused later
    if weights is None:
        return jax.ShapeDtypeStruct((keys.shape[-2], 1), keys.dtype)
    floating_dtype(where, name, weights)
    if len(weights.shape) < 1 or weights.shape[-1] != keys.shape[-2]:
        raise ValueError(
            f"{where}: `{name}` must hold one weight for each key; got {name} {tuple(weights.shape)}, keys"
            f" {tuple(keys.shape)}. Its last axis must be that of the keys."
        )
    return jax.ShapeDtypeStruct((*weights.shape, 1), weights.dtype)


def check_others(function: str, points: dict[str, Any], *, segments: Any = None, mesh: Any = None) -> None:
    """Raise ValueError unless pairs of equal index can be left out: of as many queries as keys, of equal labels."""
    if mesh is not None:
        raise ValueError(
            f"`jaxgauss.{function}`: `mesh` must be left out with exclude_self; got a mesh of {dict(mesh.shape)}."
            " One device sums."
        )
    where, numbers = f"`jaxgauss.{function}`", [x.shape[-2] for x in points.values()]
    if numbers[0] != numbers[1]:
        shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in points.items())
        raise ValueError(
            f"{where}: `exclude_self` must be False unless {' and '.join(points)} are the same points; got {shapes}."
            " Pass the same array as both."
        )
    if segments is not None and not np.array_equal(*segments):
        raise ValueError(
            f"{where}: `segments` must be the same labels twice with exclude_self; got labels {segments[0].shape} and"
            f" {segments[1].shape} that differ. Pass (labels, labels)."
        )


def check_mesh(function: str, mesh: Any, query_axis: Any, key_axis: Any) -> None:
    """Raise unless the axes belong to the mesh and differ from each other, or there are neither mesh nor axes."""
    where = f"`jaxgauss.{function}`"
    if mesh is not None and not isinstance(mesh, (Mesh, AbstractMesh)):
        raise TypeError(f"{where}: `mesh` must be a jax.sharding.Mesh; got {type(mesh).__name__}. See jax.make_mesh.")
    are_names = all(x is None or isinstance(x, str | tuple) for x in (query_axis, key_axis))
    axes = [*axis_names(query_axis), *axis_names(key_axis)] if are_names else [None]
    names = () if mesh is None else mesh.axis_names
    if (mesh is not None) != bool(axes) or not set(axes) <= set(names) or len(set(axes)) < len(axes):
        fix = f"Pass query_axis={names[0]!r}, for example." if names else "Make a mesh by jax.make_mesh."
        raise ValueError(
            f"{where}: `query_axis` and `key_axis` must name axes of `mesh`, at least one, and no axis twice; got"
            f" query_axis {query_axis!r}, key_axis {key_axis!r}, axes of the mesh {names}. {fix}"
        )


def check_tau(where: str, tau: Any, dtype: np.dtype, name: str = "tau") -> tuple[int, ...]:
    """Check tau and return its shape; its sign is not checked under `jit` or on another device."""
    if type(tau) is float and TAU_RANGE[0] < tau < TAU_RANGE[1]:
        return ()
    fix = "Pass 1 / sigma**2."
    if isinstance(tau, jax.Array):
        kind = tau.dtype
        if isinstance(tau, jax.core.Tracer) or any(device.platform != "cpu" for device in tau.devices()):
            if not _is_real(kind):
                raise TypeError(f"{where}: `{name}` must be a real number or array; got {name} {kind}. {fix}")
            return tau.shape
    try:
        value = np.asarray(tau)
    except (TypeError, ValueError, RuntimeError):
        value = np.asarray(None)
    if isinstance(tau, bool) or not (_is_real(value.dtype) or isinstance(tau, int)):
        raise TypeError(f"{where}: `{name}` must be a real number or array; got {name} {tau!r}. {fix}")
    with np.errstate(over="ignore"):
        try:
            value = value.astype(dtype)
        except OverflowError:  # an integer too large for a float
            value = np.asarray(math.inf)
    if not np.all((value >= np.finfo(dtype).tiny) & (value < math.inf)):
        raise ValueError(f"{where}: `{name}` must be positive and finite in {dtype}; got {name} {tau}. {fix}")
    return value.shape


def _is_real(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)
