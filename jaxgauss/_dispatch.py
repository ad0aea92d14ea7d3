"""Where a sum is computed: PyTorch's attention kernel or XLA, by platform. Beneath the derivative rules.

Mapped axes of `vmap` become leading axes here, of length 1 where an operand is not mapped: the reductions see the
whole batch, and share what is shared.
"""

import contextlib
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from . import _bridge
from ._checks import Settings, are_known, working_dtype
from ._dense import (
    FUSES,
    are_within,
    blocked_means,
    blocked_pullback,
    blocked_sum,
    differences_pullback,
    differences_sum,
    scaled_points,
    scaled_sum,
    with_norms,
)
from ._plan import NATIVE, Plan, plan, platforms, sizes
from ._varying import share_out_like, vary_like, whole

KEPT = 8  # times as many numbers as the operands have: memory stays linear, under vmap as well


def kernel_sum(settings: Settings, queries: jax.Array, keys: jax.Array, values: jax.Array, tau: jax.Array) -> jax.Array:
    """Σ_n Φ_τ(q_m, k_n) v_n of operands of equal rank in float32 or float64."""
    (total,) = _kernel_sum(settings)(queries, keys, values, tau)
    return total


def kernel_pullback(settings: Settings, *operands: jax.Array) -> tuple[jax.Array, ...]:
    """Gradients of Σ_m ⟨g_m, s_m⟩ in the shapes of queries, keys and values, at these, tau and g; all of equal rank."""
    return _kernel_pullback(settings)(*operands)


def kernel_means(settings: Settings, *operands: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Σ_n w Φ v / Σ_n w Φ and log Σ_n w Φ at queries, keys, values, tau and log-weights (…, N, 1), of equal rank."""
    return _kernel_means(settings)(*operands)


def kernel_closer(settings: Settings, points: jax.Array, tau: jax.Array) -> jax.Array:
    """All points (P, D) there are, closer together where `torch_backend.closer` is: on CPUs."""
    (moved,) = _kernel_closer(settings)(points, tau)
    return moved


def in_float64(settings: Settings, function: Callable, *operands: Any) -> Any:
    """function(settings, *operands) in float64, whatever JAX's mode; the results in the working dtype."""
    dtype = working_dtype(settings.dtype)
    with jax.enable_x64(True):
        operands = jax.tree.map(lambda x: x.astype("float64"), operands)
        results = function(replace(settings, wide=True, guarded=False), *operands)
        return jax.tree.map(lambda x: x.astype(dtype), results)


def within_reach(settings: Settings, *operands: jax.Array, each_tau: bool = False) -> jax.Array:
    """Whether all of a batch lies close enough to its center for the exponents to have their digits: one boolean.

    Or one for `each_tau` of τ (T,). On CUDA it is simply true, for there nothing may wait for the device: what half
    precision does not hold, PyTorch computes again behind a gate.
    """
    operands = tuple(lax.stop_gradient(x) for x in operands)
    return _within_reach(settings, each_tau)(*operands)


def keeps_tile(settings: Settings, queries: jax.Array, keys: jax.Array, values: jax.Array, tau: jax.Array) -> bool:
    """Whether Φ is kept from the sum for its gradients: where it is dense, and not much larger than the operands."""
    operands = queries, keys, values, tau
    pairs = queries.shape[0] * keys.shape[0]
    if tau.ndim or not are_known(pairs) or not 0 < pairs <= KEPT * (queries.size + keys.size + values.size):
        return False
    plans = [_plan_there(settings, platform, operands) for platform in platforms()]
    return all((x.method, x.precision) == ("dense", working_dtype(settings.dtype).name) for x in plans)


@functools.cache
def _kernel_sum(settings: Settings) -> Callable:
    def in_tiles(platform: str, settings: Settings, *operands: jax.Array) -> jax.Array:
        return _in_tiles(settings, platform, operands, _bridge.torch_wide_sum, differences_sum, blocked_sum)

    def compute(platform: str, *operands: jax.Array) -> jax.Array:
        if settings.method == "differences":
            return differences_sum(*operands)
        if settings.wide:
            return in_tiles(platform, settings, *operands)
        chosen = _plan_there(settings, platform, operands)
        if chosen.native:
            run, within = _prepared(chosen, settings.centered, *operands)
        else:
            run, within = functools.partial(_bridge.torch_sum, chosen), _is_within(chosen, operands)
        if chosen.reach == math.inf or not settings.guarded:
            return run(*operands)
        far = functools.partial(in_float64, replace(settings, far=True), functools.partial(in_tiles, platform))
        return lax.cond(within, run, far, *operands)

    return _mapped(settings, lambda *operands: (_by_platform(compute, operands),), 0)


@functools.cache
def _kernel_pullback(settings: Settings) -> Callable:
    def compute(platform: str, *operands: jax.Array) -> tuple[jax.Array, ...]:
        if settings.wide:
            ways = _bridge.torch_wide_pullback, differences_pullback, blocked_pullback
            return _in_tiles(settings, platform, operands, *ways)
        return _engine(_plan_there(settings, platform, operands), blocked_pullback, _bridge.torch_pullback)(*operands)

    return _mapped(settings, lambda *operands: _by_platform(compute, operands), 3)


@functools.cache
def _kernel_means(settings: Settings) -> Callable:
    def compute(platform: str, *operands: jax.Array) -> tuple[jax.Array, ...]:
        if settings.wide:
            return _in_tiles(settings, platform, operands, _bridge.torch_wide_means, blocked_means, blocked_means)
        return _engine(_plan_there(settings, platform, operands), blocked_means, _bridge.torch_means)(*operands)

    return _mapped(settings, lambda *operands: _by_platform(compute, operands), 0)


@functools.cache
def _within_reach(settings: Settings, each_tau: bool) -> Callable:
    def compute(platform: str, *operands: jax.Array) -> jax.Array:
        return _is_within(_plan_there(settings, platform, operands), operands, each_tau)

    @custom_vmap
    def within(*operands: jax.Array) -> jax.Array:
        return _by_platform(compute, operands)

    @within.def_vmap
    def _(axis_size: int, is_mapped: Sequence[bool], *operands: jax.Array):
        # unbatched, so that what depends on it stays one conditional
        return within(*(x if has_axis else x[None] for x, has_axis in zip(operands, is_mapped, strict=True))), False

    return within


def _in_tiles(settings: Settings, platform: str, operands: tuple[jax.Array, ...], *ways: Callable):
    """In float64: by PyTorch; where XLA is to do without it, by differences; and on other platforms in XLA's blocks."""
    by_torch, by_differences, in_blocks = ways
    if platform != "cpu":
        return in_blocks(*operands)
    known = are_known(*(size for x in operands for size in x.shape))
    return by_torch(settings, *operands) if known and settings.method not in NATIVE else by_differences(*operands)


@functools.cache
def _kernel_closer(settings: Settings) -> Callable:
    def compute(platform: str, points: jax.Array, tau: jax.Array) -> tuple[jax.Array]:
        def as_they_are(points: jax.Array, tau: jax.Array) -> jax.Array:
            return points

        return (_in_tiles(settings, platform, (points, tau), _bridge.torch_closer, as_they_are, as_they_are),)

    return _mapped(settings, lambda *operands: _by_platform(compute, operands), 1)


def _width(settings: Settings) -> contextlib.AbstractContextManager:
    """The mode that the settings' operands need, for what JAX traces later than it was called."""
    return jax.enable_x64(True) if settings.wide else contextlib.nullcontext()


def _mapped(settings: Settings, function: Callable, num_own: int) -> Callable:
    """`function`, vmapped by one more leading axis, of length 1 where an operand is not mapped.

    The first `num_own` operands, in whose shapes the results are, get the whole axis: each element has its own result.
    """

    @custom_vmap
    def mapped(*operands: jax.Array) -> tuple[jax.Array, ...]:
        with _width(settings):
            return tuple(function(*operands))

    @mapped.def_vmap
    def _(axis_size: int, is_mapped: Sequence[bool], *operands: jax.Array):
        sizes = (axis_size if i < num_own else 1 for i in range(len(operands)))
        with _width(settings):
            batched = [
                x if has_axis else jnp.broadcast_to(x, (size, *x.shape))
                for x, has_axis, size in zip(operands, is_mapped, sizes, strict=True)
            ]
            results = mapped(*whole(*batched)) if settings.wide else mapped(*batched)
            return tuple(share_out_like(x, batched) for x in results), (True,) * len(results)

    return mapped


def _by_platform(compute: Callable, operands: tuple[jax.Array, ...]):
    """`compute(platform, *operands)` on the platform that the computation is lowered for."""
    known = platforms()
    if any(0 in x.shape for x in operands):  # nothing to sum, or nothing to sum it for
        results = jax.eval_shape(functools.partial(compute, known[0]), *operands)
        return jax.tree.map(lambda x: vary_like(jnp.zeros(x.shape, x.dtype), operands), results)
    if len(known) == 1:
        return compute(known[0], *operands)
    branches = {name: functools.partial(compute, name) for name in known}
    return lax.platform_dependent(*operands, **branches, default=branches["cpu"])


def _plan_there(settings: Settings, platform: str, operands: tuple[jax.Array, ...]) -> Plan:
    try:
        return plan(settings, platform, *sizes(*operands[:4]))
    except ValueError:  # not the platform that was checked: let PyTorch refuse if it is run there after all
        method = "rescale" if settings.method == "auto" else settings.method
        return Plan(platform, method, settings.precision, settings.backend, "asked for by name")


def _engine(chosen: Plan, blocks: Callable, kernel: Callable) -> Callable:
    if not chosen.native:
        return functools.partial(kernel, chosen)

    def run(*operands: jax.Array):
        work, dtype = jnp.dtype(chosen.precision), operands[0].dtype
        results = blocks(*(x.astype(work) for x in operands), whole=chosen.method == "dense")
        return jax.tree.map(lambda x: x.astype(dtype), results)

    return run


def _prepared(chosen: Plan, centered: bool, *operands: jax.Array) -> tuple[Callable, jax.Array]:
    """XLA's sum, and whether the points are within its reach; both from the same scaled points."""
    dtype = operands[0].dtype
    queries, keys, values, tau = (x.astype(chosen.precision) for x in operands)
    a, b = with_norms(*scaled_points(queries, keys, tau, centered))
    fused = FUSES and (chosen.platform, chosen.precision) == ("cpu", "float32")

    def run(*_: jax.Array) -> jax.Array:
        return scaled_sum(a, b, values, whole=chosen.method == "dense", fused=fused).astype(dtype)

    return run, are_within(chosen.reach, a, b)


def _is_within(chosen: Plan, operands: tuple[jax.Array, ...], each_tau: bool = False) -> jax.Array:
    queries, keys, _, tau, *_ = operands
    if chosen.reach == math.inf:
        return vary_like(jnp.ones(tau.shape[-1:] if each_tau else (), bool), operands)
    a, b = with_norms(*scaled_points(queries, keys, tau))
    return are_within(chosen.reach, a, b, each_tau)
