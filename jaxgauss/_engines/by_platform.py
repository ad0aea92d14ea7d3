"""What depends on the platform that a computation is lowered for: the plan of a sum, and a branch for each."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from .._arrays.places import platforms, vary_like
from .._arrays.points import by_point
from .._checks.settings import Settings
from .kernel_plan import kernel_plan
from .plan import Plan, sizes


def by_platform(compute: Callable, *operands: jax.Array):
    """`compute(platform, *operands)` on the platform that the computation is lowered for."""
    known = platforms()
    if any(0 in x.shape for x in operands):  # nothing to sum, or nothing to sum it for
        results = jax.eval_shape(functools.partial(compute, known[0]), *operands)
        return jax.tree.map(lambda x: vary_like(jnp.zeros(x.shape, x.dtype), operands), results)
    if len(known) == 1:
        return compute(known[0], *operands)
    branches = {name: functools.partial(compute, name) for name in known}
    return lax.platform_dependent(*operands, **branches, default=branches["cpu"])


def plan_there(settings: Settings, platform: str, operands: tuple[jax.Array, ...]) -> Plan:
    """The plan there, whether or not that is the platform that was checked."""
    try:
        return kernel_plan(settings, platform, *aligned_sizes(*operands[:4])).with_looks(settings)
    except ValueError:  # not the platform that was checked: let PyTorch refuse if it is run there after all
        method = "rescale" if settings.method == "auto" else settings.method
        return Plan(platform, method, settings.precision, settings.backend, "asked for by name", waves=False)


def aligned_sizes(queries: jax.Array, keys: jax.Array, values: jax.Array, tau: jax.Array) -> tuple[int, int, int]:
    """`sizes`, of operands of equal rank."""
    return sizes(queries, keys, values, by_point(tau, queries)[..., 0, 0])
