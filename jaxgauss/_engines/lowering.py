"""What depends on the platform that a computation is lowered for: the plan of a sum, and a branch for each."""

import contextlib
import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from .._arrays.places import platforms, share_out_like, vary_like, whole
from .._arrays.points import by_point
from .._checks.settings import Settings
from .plan import Plan, kernel_plan, sizes


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


def _width(operands: Sequence[jax.Array]) -> contextlib.AbstractContextManager:
    """The mode that operands in float64 need, for what JAX traces later than it was called."""
    return jax.enable_x64(True) if operands[0].dtype == jnp.float64 else contextlib.nullcontext()


def mapped(function: Callable, num_own: int) -> Callable:
    """`function`, vmapped by one more leading axis, of length 1 where an operand is not mapped.

    The first `num_own` operands, in whose shapes the results are, get the whole axis: each element has its own result.
    """

    @custom_vmap
    def mapped(*operands: jax.Array) -> tuple[jax.Array, ...]:
        with _width(operands):
            return tuple(function(*operands))

    @mapped.def_vmap
    def _(axis_size: int, is_mapped: Sequence[bool], *operands: jax.Array):
        sizes = (axis_size if i < num_own else 1 for i in range(len(operands)))
        with _width(operands):
            batched = [
                x if has_axis else jnp.broadcast_to(x, (size, *x.shape))
                for x, has_axis, size in zip(operands, is_mapped, sizes, strict=True)
            ]
            results = mapped(*whole(*batched)) if batched[0].dtype == jnp.float64 else mapped(*batched)
            return tuple(share_out_like(x, batched) for x in results), (True,) * len(results)

    return mapped
