"""The first steps of every public function: check the arguments, make the plan."""

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from .._arrays.devices import expected_platform
from .._arrays.points import sizes
from .._arrays.shapes import are_known
from .._checks.operands import as_operand, check_operands, check_tau
from .._checks.settings import Settings, matmul_precision, working_dtype
from .._engines.bridge import warn_of_earlier_sums
from .._engines.engines import plan_of
from .._engines.near import OfEach as OfEach
from .._engines.near import examined as of_samples
from .._engines.near import is_differentiated as is_differentiated
from .._engines.plan import Plan
from .._kernels.kernels import GAUSS

VALUES = jax.Array | np.ndarray | jax.ShapeDtypeStruct  # of weights the shape alone, see `check_weights`
TAUS = float | int | jax.Array | np.ndarray | np.generic


def checked(asked: Settings, queries: Any, keys: Any, values: Any, tau: Any) -> tuple[Settings, Plan]:
    """The settings with the promoted dtype, and their plan; ValueError or TypeError if arguments are wrong.

    The results depend only on shapes, dtypes and options, and are cached by these; the value of τ is always checked.
    """
    warn_of_earlier_sums()
    platform, operands = expected_platform(queries, keys, values), (queries, keys, values)
    are_arrays = all(isinstance(x, jax.Array | np.ndarray) for x in (queries, keys)) and isinstance(values, VALUES)
    if not are_arrays or not isinstance(tau, TAUS) or isinstance(tau, jax.core.Tracer):
        return _checked(asked, platform, *operands, tau)
    config: Any = jax.config
    modes = matmul_precision(), config.jax_enable_x64, config.jax_numpy_dtype_promotion
    shapes = ((x.shape, x.dtype) for x in operands)
    settings, plan = _remembered(asked, platform, modes, getattr(tau, "shape", ()), *shapes)
    check_tau(f"`jaxgauss.{asked.function}`", tau, working_dtype(settings.dtype))
    return settings, plan


@functools.lru_cache(4096)
def _remembered(asked: Settings, platform: str, modes: Any, tau_shape: Any, *operands: Any) -> tuple[Settings, Plan]:
    queries, keys, values = (jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in operands)
    return _checked(asked, platform, queries, keys, values, np.ones(tau_shape, "float32"))


def _checked(asked: Settings, platform: str, queries: Any, keys: Any, values: Any, tau: Any) -> tuple[Settings, Plan]:
    dtype = check_operands(asked.function, queries, keys, values, tau)
    settings = replace(asked, dtype=dtype, matmul_precision=asked.matmul_precision or matmul_precision())
    return settings, plan_of(settings, platform, *sizes(queries, keys, values, np.shape(tau)))


def check_plan(settings: Settings, tau: Any, pairs: int, dim: int, channels: int, *arrays: Any) -> Any:
    """Raise ValueError if what was asked for by name cannot run on this platform; return τ as `jax.jit` takes it."""
    warn_of_earlier_sums()
    planned: Any = _planned if are_known(pairs, dim, channels) else _planned.__wrapped__
    planned(settings, expected_platform(*arrays), jax.config.jax_enable_x64, pairs, dim, channels)  # type: ignore[attr-defined]
    return as_operand(tau, settings.dtype)


@functools.lru_cache(4096)
def _planned(settings: Settings, platform: str, _: bool, *sizes: Any) -> Plan:
    return plan_of(settings, platform, *sizes)


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
    second_order: bool = False,
) -> Any:
    """The settings after `examined`, for a kernel method whose points do not move; and τ from `check_plan`.

    Weights are one array for each array of points, None for equal weights, or zero; `pulls` and `second_order`: whether
    the method forms them.
    """
    tau = check_plan(settings, tau, pairs, dim, channels, *points)
    values, pulls = None, pulls or is_differentiated(tau, points, weights)
    if pulls and any(x is not None for x in weights) and are_known(*(x.shape[-2] for x in points)):
        alike = {None: lambda n: 1 / max(1, n), 0: lambda n: 0}
        values = tuple(
            w if np.ndim(w) else np.full(x.shape[-2], alike[w](x.shape[-2]), "float32")
            for x, w in zip(points, weights, strict=True)
        )
    settings = settings if settings.kernel == GAUSS else replace(settings, pulls=pulls)  # a mixture is chosen by them
    return examined(settings, tau, points, values=values, pulls=pulls, second_order=second_order), tau


def examined(settings: Settings, tau: Any, queries: Any, keys: Any = None, values: Any = None, **how: Any) -> Settings:
    """`examined` of the engines, for samples, weights and τ of a kernel method; batches are not, as under `vmap`."""
    points, others = jax.tree.leaves((queries, keys)), jax.tree.leaves((tau, values))
    if any(len(x.shape) > 2 for x in points) or any(np.ndim(x) > 1 for x in others):
        return settings
    return of_samples(settings, tau, queries, keys, values, **how)


def forget_plans() -> None:
    """Drop all plans and compiled programs, so that sums are planned again by the present costs."""
    for remembered in (_remembered, _planned):
        remembered.cache_clear()
    jax.clear_caches()


def none_are_zero(log_weights: Any, keys: Any, settings: Settings) -> jax.Array:
    """The log-weights (…, N); zeros if there are none."""
    return jnp.zeros(keys.shape[-2:-1], working_dtype(settings.dtype)) if log_weights is None else log_weights
