"""What every public function begins with: its arguments checked, and what was asked for by name planned."""

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.core
import numpy as np

from .._arrays.devices import expected_platform
from .._checks.operands import as_operand, check_names, check_operands, check_tau, sizes
from .._checks.settings import Settings, are_known, matmul_precision, methods_of, working_dtype
from .._engines import costs
from .._engines.near import examined
from .._engines.plan import Plan, plan

TAUS = float | int | jax.Array | np.ndarray | np.generic


def checked(
    asked: Settings, queries: Any, keys: Any, values: Any, tau: Any, *, methods: tuple[str, ...] = ()
) -> tuple[Settings, Plan]:
    """What was asked for, with the promoted dtype, and the plan of it; ValueError or TypeError if it cannot be done.

    All of it depends on shapes, dtypes and options, and is found once for these; but for the value of τ.
    """
    methods = methods or methods_of(asked.kernel)
    platform, operands = expected_platform(queries, keys, values), (queries, keys, values)
    are_arrays = all(isinstance(x, jax.Array | np.ndarray) for x in operands)
    if not are_arrays or not isinstance(tau, TAUS) or isinstance(tau, jax.core.Tracer):
        return _checked(asked, methods, platform, *operands, tau)
    config: Any = jax.config
    modes = matmul_precision(), config.jax_enable_x64, config.jax_numpy_dtype_promotion
    shapes = ((x.shape, x.dtype) for x in operands)
    settings, chosen = _remembered(asked, methods, platform, modes, getattr(tau, "shape", ()), *shapes)
    check_tau(f"`jaxgauss.{asked.function}`", tau, working_dtype(settings.dtype))
    return settings, chosen


@functools.lru_cache(4096)
def _remembered(
    asked: Settings, methods: tuple[str, ...], platform: str, modes: Any, tau_shape: Any, *operands: Any
) -> tuple[Settings, Plan]:
    queries, keys, values = (jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in operands)
    return _checked(asked, methods, platform, queries, keys, values, np.ones(tau_shape, "float32"))


def _checked(
    asked: Settings, methods: tuple[str, ...], platform: str, queries: Any, keys: Any, values: Any, tau: Any
) -> tuple[Settings, Plan]:
    check_names(asked.function, asked.method, asked.precision, asked.backend, methods)
    dtype = check_operands(asked.function, queries, keys, values, tau)
    settings = replace(asked, dtype=dtype, matmul_precision=asked.matmul_precision or matmul_precision())
    return settings, plan(settings, platform, *sizes(queries, keys, values, tau))


def check_plan(settings: Settings, tau: Any, pairs: int, dim: int, channels: int, *arrays: Any) -> Any:
    """Raise ValueError if what was asked for by name cannot run there; return τ as JAX may take it."""
    plan(settings, expected_platform(*arrays), pairs, dim, channels)
    return as_operand(tau, settings.dtype)


def check_and_examine(
    settings: Settings,
    tau: Any,
    pairs: int,
    dim: int,
    channels: int,
    points: tuple[Any, ...],
    weights: tuple[Any, ...] = (),
    *,
    pulls: bool = False,
) -> Any:
    """The settings, with what all points of a method that does not move them tell, and τ as `check_plan` returns it.

    Weights are those of the points, each None for the mean; `pulls`: whether the method makes them.
    """
    chosen = check_plan(settings, tau, pairs, dim, channels, *points)
    if any(x is not None for x in weights) and are_known(*(x.shape[0] for x in points)):
        alike = (np.full(len(x), 1 / max(1, len(x)), "float32") for x in points)
        values = tuple(x if w is None else w for x, w in zip(alike, weights, strict=True))
        return examined(settings, tau, points, values=values, pulls=pulls), chosen
    return examined(settings, tau, points, pulls=pulls), chosen


def forget() -> None:
    """Plan all sums afresh, by the costs that there are now: those that JAX has compiled, as well."""
    costs.forget()
    _remembered.cache_clear()
    jax.clear_caches()
