"""Whether points are near: a sum then takes products about one center, otherwise tiles of sorted points or waves.

Outside of `jit` many points are `examined` beforehand, and the program has one branch; else it has both.

On CUDA, where nothing may wait for the device, the plan decides: attention takes all points as near, and sums again
behind a gate where half precision is not enough; XLA takes differences of coordinates.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from .._arrays.devices import platforms, vary_like
from .._kernels.kernels import GAUSS
from .branches import but_not, by_platform
from .engines import plan_there
from .fourier.cost import are_for_waves
from .plan import NEAR, STRICTER, Plan
from .products.pair_sums import within
from .settings import Settings


def are_near(
    settings: Settings, *operands: jax.Array, pulls: bool = False, second_order: bool = False, logs: bool = False
) -> jax.Array | bool:
    """Whether queries, keys, values and τ are summed as near points, by their plan; one boolean, also under `vmap`.

    `pulls`: near enough for pulls from moments; `second_order`: for moments of second order. False where waves sum the
    points; waves of `logs` are in float64.
    """
    known = known_near(settings, *operands, pulls=pulls, logs=logs)
    return _look(settings, pulls, second_order, logs)(*operands) if known is None else known


def known_near(settings: Settings, *operands: jax.Array, pulls: bool = False, logs: bool = False) -> bool | None:
    """`are_near` where the settings or the shapes alone decide it; else None."""
    if settings.by_products is not None or len(platforms()) > 1:
        return settings.by_products
    plan, precision = plan_there(settings, platforms()[0], operands), "float64" if logs else None
    reach = _reach(plan, pulls)
    if math.isinf(reach):
        return reach > 0
    return False if are_for_waves(plan, *operands, precision=precision, pulls=pulls, known=True) is True else None


def _reach(plan: Plan, pulls: bool) -> float:
    """The plan's reach. A sum in half precision has a guard; its pulls are moments, in float32 where the guard acts."""
    guarded = plan.platform == "cpu" and plan.precision not in NEAR and plan.near is None
    return NEAR["float32"] if guarded and pulls else plan.reach


@functools.cache
def _look(*options: Any) -> Callable[..., jax.Array]:
    return unbatched(functools.partial(by_platform, _are_near, options))


def _are_near(
    settings: Settings, pulls: bool, second_order: bool, logs: bool, platform: str, *operands: jax.Array
) -> jax.Array:
    queries, keys, values, tau = operands
    plan = plan_there(settings, platform, operands)
    reach, slope = _reach(plan, pulls) / (STRICTER if second_order else 1), settings.kernel.slope if pulls else None
    is_near = within(reach, queries, keys, tau, slope, jnp.abs(values).max(-1, keepdims=True, initial=0))
    is_near = but_not(is_near, are_for_waves(plan, *operands, precision="float64" if logs else None, pulls=pulls))
    return vary_like(jnp.full((), is_near), [queries, keys, tau]) if isinstance(is_near, bool) else is_near


def unbatched(look: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """`look`, which under `vmap` gets the whole batch, so that what depends on its boolean stays one conditional."""

    @custom_vmap
    def looked(*operands: jax.Array) -> jax.Array:
        return look(*operands)

    @looked.def_vmap
    def _(axis_size: int, is_mapped: Sequence[bool], *operands: jax.Array):
        return looked(*(x if mapped else x[None] for x, mapped in zip(operands, is_mapped, strict=True))), False

    return lambda *operands: looked(*(lax.stop_gradient(x) for x in operands))


@unbatched
def tiles_are_near(queries: jax.Array, keys: jax.Array, tau: jax.Array) -> Any:
    """Whether points are near enough for derivatives of tiles from products, in their own dtype."""
    return within(NEAR[queries.dtype.name] / STRICTER, queries, keys, tau, GAUSS.slope)
