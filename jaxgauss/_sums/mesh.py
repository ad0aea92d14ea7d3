"""Gauss sums over a mesh of devices. They are not normalized, so partial sums add up and nothing is gathered."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import Precision
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from .._arrays.custom_rule import transposable
from .._arrays.devices import has_cuda, vary_alike
from .._arrays.points import LOG_ZERO, align, for_sums, small_unit
from .._arrays.shapes import padded_to_multiple
from .._arrays.tracing import jitted
from .._calls import also_called
from .._checks.arguments import public
from .._checks.names import as_engine, as_kernel
from .._checks.operands import as_operand, check_mesh
from .._checks.settings import Keys, MeshAxis, Queries, Settings, Sums, Tau, Values, axis_names, working_dtype
from .._engines.engine import AUTO, Engine
from .._engines.fourier.devices import sums_over_devices
from .._engines.log_rules import relative_sum
from .._engines.near import examined
from .._engines.rules import gaussian_sum
from .._kernels.kernels import Kernel
from .kernel_sum import unrounded_kernel_sum
from .log_gauss_sum import unrounded_log_sum
from .others import relative_sum_of_others
from .preparation import checked


@public()
def gauss_sum_sharded(
    queries: Queries,
    keys: Keys,
    values: Values,
    tau: Tau = 1.0,
    *,
    mesh: Mesh | AbstractMesh,
    query_axis: MeshAxis = None,
    key_axis: MeshAxis = None,
    kernel: str | Kernel = "gauss",
    engine: str | Engine = "auto",
    precision: str | Precision | None = None,
) -> Sums:
    """Sum Gaussian kernels over the devices of a mesh: s_m = Σ_n exp(-τ/2 ‖q_m - k_n‖²) v_n.

    `query_axis` divides the queries, which needs no communication. `key_axis` divides keys and values; one all-reduce
    of 2 M C numbers then adds the partial sums. With both, each device sums one block of the kernel matrix. The mesh
    may span several processes (docs/scale.md).

    Args:
        queries: points q, (…, M, D).
        keys: points k, (…, N, D).
        values: v, (…, N, C); or one weight per key, (N,).
        tau: τ = 1/σ², as for `gauss_sum`.
        mesh: the devices, as from `jax.make_mesh`.
        query_axis: the axis of the mesh, or several, that divide M. None: the queries are replicated.
        key_axis: the axis of the mesh, or several, that divide N. None: keys and values are replicated.
        kernel, engine, precision: as for `kernel_sum`, on every device. With "fourier" the all-reduce adds
            coefficients, whose number does not depend on M.

    Returns:
        s, (…, M, C), or (…, M) for values (N,), sharded along `query_axis`. Partial sums are added in float32 or
        better.

    Raises:
        ValueError: as `gauss_sum` does; or the mesh has no such axis, or does not divide the number of points.
        TypeError: as `gauss_sum` does; or mesh is not a mesh.

    Derivatives:
        As for `gauss_sum`, in linear memory on every device. An all-reduce adds up the gradient of a replicated
        argument; that of a sharded argument stays where it is. On a mesh with explicit axes, take gradients under
        `jax.set_mesh(mesh)`.

    Precision:
        As for `gauss_sum`; each device checks its own points.

    Example:
        >>> import jax, jax.numpy as jnp, jaxgauss
        >>> mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
        >>> points = jnp.arange(4.0 * jax.device_count())[:, None]
        >>> sums = jaxgauss.gauss_sum_sharded(points, points, points, 1.0, mesh=mesh, key_axis="data")
        >>> bool(jnp.allclose(sums, jaxgauss.gauss_sum(points, points, points)))
        True
    """
    function = "gauss_sum_sharded"
    check_mesh(function, mesh, query_axis, key_axis)
    kernel = as_kernel(function, kernel)
    where = {"mesh": mesh, "query_axis": query_axis, "key_axis": key_axis}
    asked = Settings(as_engine(function, engine, precision), "", function, kernel=kernel, **where)
    settings, plan = checked(asked, queries, keys, values, tau)
    for name, x, axis in (("queries", queries, query_axis), ("keys", keys, key_axis)):
        parts, given = _parts(mesh, axis), f"{name} {tuple(x.shape)} over {axis!r} of {dict(mesh.shape)}"
        if x.shape[-2] % parts:
            fix = f"Pad with {-x.shape[-2] % parts} more" + (", of value zero." if name == "keys" else ".")
            raise ValueError(f"`jaxgauss.{function}`: `mesh` must divide the number of {name}; got {given}. {fix}")
    if plan.platform == "cuda":
        examined(settings, tau, queries, keys)  # an error, if waves cannot hold the points
    return _checked_sum(settings, queries, keys, values, as_operand(tau, settings.dtype))


kernel_sum_sharded = public()(also_called("kernel_sum_sharded", gauss_sum_sharded))


@functools.partial(jitted, num_static=1)
def _checked_sum(settings: Settings, queries: Array, keys: Array, values: Array, tau: Array) -> Array:
    weights = values.ndim == 1
    values = values[:, None] if weights else values
    operands = map(jnp.asarray, (queries, keys, values, tau))
    total = _transposable_sum(settings, *operands).astype(settings.dtype)
    return total[..., 0] if weights else total


def sum_over_mesh(settings: Settings, queries: Array, keys: Array, values: Array, tau: Array) -> Array:
    """`unrounded_kernel_sum` of values with channels, over the mesh of the settings if there is one."""
    if settings.mesh is None:
        return unrounded_kernel_sum(settings, queries, keys, values, tau)
    queries, keys, values, tau = align(queries, keys, values, jnp.asarray(tau))
    return _over_mesh(settings, unrounded_kernel_sum, queries, keys, values, tau)


_transposable_sum = transposable(sum_over_mesh, 1, 2)


def product_over_mesh(settings: Settings, x: Array, y: Array, values: Array, tau_x: Array, tau_y: Array) -> Array:
    """Σ_j Φ(x_i, x_j) Φ(y_i, y_j) v_j (S, T, N, C) for all pairs of τ (S,) and (T,), over the mesh if there is one.

    x and y are (N, ·). It is a Gauss sum of the pairs (x, y), in which each coordinate has its own τ.
    """
    shape = len(tau_x), len(tau_y)
    own = (jnp.broadcast_to(t, (*shape, z.shape[-1])) for t, z in ((tau_x[:, None, None], x), (tau_y[:, None], y)))
    points, tau = jnp.concatenate([x, y], -1)[None, None], jnp.concatenate(list(own), -1)
    if settings.mesh is None:
        return gaussian_sum(settings, points, points, values[None, None], tau)
    return _over_mesh(settings, gaussian_sum, points, points, values[None, None], tau)


def _over_mesh(settings: Settings, summed: Callable, queries: Array, keys: Array, values: Array, tau: Array) -> Array:
    axes, num_keys = axis_names(settings.key_axis), keys.shape[-2]

    def local(tau: Array, queries: Array, keys: Array, values: Array) -> Array:
        values = values.astype(working_dtype(settings.dtype))
        by_waves = settings.engine.name == "fourier"
        unit = jnp.ones((), values.dtype)
        if axes or by_waves:  # other sums of one device look after themselves
            unit = for_sums(values, num_keys)
        if by_waves and axes:  # coefficients are added in one unit
            unit = lax.pmin(unit, axes)
        operands = queries, keys, unit * values, tau

        def by_parts(settings: Settings) -> Array:
            return _added_in_units(settings, summed(without_mesh(settings), *vary_alike(*operands)), unit, num_keys)

        if not by_waves:
            return by_parts(settings)
        every = axis_names(settings.query_axis) + axes
        total, fits = sums_over_devices(settings.precision, settings.tolerance, axes, every, *operands)
        total = (total / unit.astype(total.dtype)).astype(values.dtype)
        if has_cuda():  # nothing may wait for the device
            return total
        by_tiles = functools.partial(by_parts, replace(settings, engine=AUTO, near=False, waves=False))
        return lax.cond(fits, lambda: total, by_tiles)

    total = over_mesh(settings, local, (tau,), (queries,), (keys, values), alike=False)
    return first_rows(settings, total, queries.shape[-2])


def _added_in_units(settings: Settings, total: Array, unit: Array, num_keys: int) -> Array:
    """The sums of all devices from those in the unit of each, one or the `small_unit`, by one all-reduce."""
    if not settings.key_axis:
        return total / unit
    each = jnp.stack([jnp.where(unit == 1, total, 0), jnp.where(unit == 1, 0, total)])
    (most, large), small = added_over_devices(settings, each), small_unit(num_keys)
    return jnp.where(large == 0, most, (small * most + large) / small)


def log_sum_over_mesh(settings: Settings, queries: Array, keys: Array, log_weights: Array, tau: Array) -> Array:
    """`unrounded_log_sum` (…, M, 1) with log-weights (…, N, 1), over the mesh of the settings if there is one."""
    if settings.mesh is None:
        return unrounded_log_sum(settings, queries, keys, log_weights, tau)
    queries, keys, log_weights, tau = align(queries, keys, log_weights, jnp.asarray(tau))
    axes = axis_names(settings.key_axis)

    def local(tau: Array, queries: Array, keys: Array, log_weights: Array) -> Array:
        logs = unrounded_log_sum(without_mesh(settings), queries, keys, log_weights, tau)
        largest = jnp.maximum(lax.stop_gradient(logs), LOG_ZERO)
        largest = lax.pmax(largest, axes) if axes else largest
        return largest + jnp.log(added_over_devices(settings, jnp.exp(logs - largest)))

    logs = over_mesh(settings, local, (tau,), (queries,), (keys, log_weights), fill=LOG_ZERO)
    return first_rows(settings, logs, queries.shape[-2])


def relative_sum_over_mesh(
    settings: Settings, queries: Array, keys: Array, values: Array, counts: Array, tau: Array, logs: Array
) -> Array:
    """`relative_sum` of the keys whose `counts` (…, N, 1) are positive, over the mesh; logs are (…, M, 1)."""
    queries, keys, values, tau = align(queries, keys, values, tau)
    counts = counts.reshape(values.shape)

    def local(tau: Array, queries: Array, logs: Array, keys: Array, values: Array, counts: Array) -> Array:
        log_weights = jnp.where(counts > 0, 0, LOG_ZERO).astype(values.dtype)
        summed = relative_sum_of_others if settings.exclude_self else relative_sum
        return added_over_devices(
            settings, summed(without_mesh(settings), queries, keys, values, log_weights, tau, logs)
        )

    if settings.mesh is None:
        return local(tau, queries, logs, keys, values, counts)
    sums = over_mesh(settings, local, (tau,), (queries, logs), (keys, values, counts))
    return first_rows(settings, sums, queries.shape[-2])


def over_mesh(
    settings: Settings,
    local: Callable[..., Any],
    copies: Sequence[Array],
    rows: Sequence[Array | None],
    columns: Sequence[Array | None],
    *,
    fill: float = 0.0,
    alike: bool = True,
) -> Any:
    """local(*copies, *rows, *columns) on each device of the mesh, with its part of the rows and of the columns.

    The first of the rows (…, M, W) and of the columns (…, N, W) are points. If the mesh does not divide them, points
    are padded with the last of them, other rows with zeros, other columns with `fill`. Results are padded rows of equal
    rank. `alike`: whether operands are cast to vary over the same axes.
    """
    mesh, queries = settings.mesh, rows[0]
    assert mesh is not None and queries is not None
    leading = [None] * (queries.ndim - 2)
    row, column = P(*leading, settings.query_axis), P(*leading, settings.key_axis)
    rows = padded_to_multiple(rows, _parts(mesh, settings.query_axis), 0.0)
    columns = padded_to_multiple(columns, _parts(mesh, settings.key_axis), fill)
    rows, columns = _placed(settings, rows, settings.query_axis), _placed(settings, columns, settings.key_axis)

    def run(*operands: Any) -> Any:
        arrays, structure = jax.tree.flatten(operands)
        copies, rows, columns = jax.tree.unflatten(structure, vary_alike(*arrays) if alike else arrays)
        return local(*copies, *rows, *columns)

    shared_out = jax.shard_map(run, mesh=mesh, in_specs=(P(), row, column), out_specs=row)
    return shared_out(tuple(copies), rows, columns)


def first_rows(settings: Settings, x: Array, num_rows: int) -> Array:
    """The rows of `over_mesh` that are not padding."""
    return x if x.shape[-2] == num_rows else replicated_over_mesh(settings, x)[0][..., :num_rows, :]


def replicated_over_mesh(settings: Settings, *arrays: Array) -> list[Any]:
    """The arrays, replicated on the mesh of the settings, so that they can be sliced and concatenated."""
    return _placed(settings, arrays, None)


def _placed(settings: Settings, arrays: Sequence[Array | None], axis: MeshAxis) -> list[Any]:
    """Arrays (…, N, W), sharded over those of the axes that are explicit: JAX does not move data along them unasked."""
    mesh = settings.mesh
    kinds = {} if mesh is None else dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    if mesh is None or AxisType.Explicit not in kinds.values():
        return list(arrays)
    names = tuple(x for x in axis_names(axis) if kinds[x] == AxisType.Explicit)

    def place(x: Array) -> Array:
        return jax.reshard(x, NamedSharding(mesh, P(*[None] * (x.ndim - 2), names) if names else P()))

    return [None if x is None else place(x) for x in arrays]


def added_over_devices(settings: Settings, partial_sums: Any) -> Any:
    """The partial sums of all devices, added up over the axes that divide the keys."""
    axes = axis_names(settings.key_axis)
    return lax.psum(partial_sums, axes) if axes else partial_sums


def without_mesh(settings: Settings) -> Settings:
    """The settings without the mesh, for the sum on each device."""
    return replace(settings, mesh=None, query_axis=None, key_axis=None)


def _parts(mesh: Mesh | AbstractMesh, axis: MeshAxis) -> int:
    """How many parts an axis of an array is divided into."""
    return math.prod(mesh.shape[name] for name in axis_names(axis))
