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
from ._attended import attended_means, attended_pullback, attended_sum
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
    (total,) = _kernel_sum(settings, False)(queries, keys, values, tau)
    return total


def kernel_sum_and_log(settings: Settings, *operands: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The sum, and what spares its pullback a pass (…, M, 1), where `saves_log`."""
    total, log_sum = _kernel_sum(settings, True)(*operands)
    return total, log_sum


def kernel_pullback(settings: Settings, *operands: jax.Array) -> tuple[jax.Array, ...]:
    """Gradients of Σ_m ⟨g_m, s_m⟩ in the shapes of queries, keys and values, at these, tau and g; all of equal rank.

    A sixth operand is what the sum has left for it.
    """
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


def saves_log(settings: Settings, queries: jax.Array, keys: jax.Array, values: jax.Array, tau: jax.Array) -> bool:
    """Whether a sum leaves something for its pullback: on CUDA, by `rescale`, in one call."""
    operands = queries, keys, values, tau
    if settings.wide or 0 in (*queries.shape, *keys.shape, *values.shape) or "cuda" not in platforms():
        return False
    chosen, batch = _plan_there(settings, "cuda", operands), math.prod(values.shape[:-2])
    kernel = None if chosen.native or chosen.method != "rescale" else _bridge.kernel(chosen, queries)
    channels = values.shape[-1] * batch
    return kernel is not None and not isinstance(kernel, str) and kernel.channels(channels) == channels


@functools.cache
def _kernel_sum(settings: Settings, with_log: bool) -> Callable:
    def in_tiles(platform: str, settings: Settings, *operands: jax.Array) -> tuple[jax.Array]:
        return (_in_tiles(settings, platform, operands, _bridge.torch_wide_sum, differences_sum, blocked_sum),)

    def compute(platform: str, *operands: jax.Array) -> tuple[jax.Array, ...]:
        if settings.method == "differences":
            return (differences_sum(*operands),)
        if settings.wide:
            return in_tiles(platform, settings, *operands)
        chosen = _plan_there(settings, platform, operands)
        if not chosen.native:
            attended = functools.partial(attended_sum, with_log=with_log and platform == "cuda")
            return _by_kernel(settings, chosen, attended, in_tiles, operands)
        run, within = _prepared(chosen, settings.centered, *operands)
        return lax.cond(within, run, _far(settings, platform, in_tiles), *operands) if settings.guarded else run()

    def compute_all(platform: str, *operands: jax.Array) -> tuple[jax.Array, ...]:
        results = compute(platform, *operands)
        if not with_log or len(results) == 2:
            return results
        return *results, jnp.zeros_like(results[0][..., :1])  # which nobody reads

    return _mapped(settings, lambda *operands: _by_platform(compute_all, operands), 0)


@functools.cache
def _kernel_pullback(settings: Settings) -> Callable:
    ways = _bridge.torch_wide_pullback, differences_pullback, blocked_pullback

    def in_tiles(platform: str, settings: Settings, *operands: jax.Array) -> tuple[jax.Array, ...]:
        return _in_tiles(settings, platform, operands[:5], *ways)

    def compute(platform: str, *operands: jax.Array) -> tuple[jax.Array, ...]:
        if settings.wide:
            return in_tiles(platform, settings, *operands)
        chosen = _plan_there(settings, platform, operands)
        if chosen.native:
            return _in_precision(chosen, blocked_pullback, operands[:5])
        reached = replace(settings, guarded=False, centered=False)  # whoever asks has seen to it: see `_wide`
        return _by_kernel(reached, chosen, attended_pullback, in_tiles, operands)

    return _mapped(settings, lambda *operands: _by_platform(compute, operands), 3)


@functools.cache
def _kernel_means(settings: Settings) -> Callable:
    def in_tiles(platform: str, settings: Settings, *operands: jax.Array) -> tuple[jax.Array, ...]:
        return _in_tiles(settings, platform, operands, _bridge.torch_wide_means, blocked_means, blocked_means)

    def compute(platform: str, *operands: jax.Array) -> tuple[jax.Array, ...]:
        if settings.wide:
            return in_tiles(platform, settings, *operands)
        chosen = _plan_there(settings, platform, operands)
        if chosen.native:
            return _in_precision(chosen, blocked_means, operands)
        reached = replace(settings, guarded=False, centered=False)
        return _by_kernel(reached, chosen, attended_means, in_tiles, operands)

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


def _far(settings: Settings, platform: str, in_tiles: Callable) -> Callable:
    """What is done in tiles, in float64, with points out of reach."""
    return functools.partial(in_float64, replace(settings, far=True), functools.partial(in_tiles, platform))


def _by_kernel(
    settings: Settings, chosen: Plan, attended: Callable, in_tiles: Callable, operands: tuple[jax.Array, ...]
) -> tuple[jax.Array, ...]:
    """What an attention kernel makes of the operands; where its precision does not hold them, `rescale` in their own.

    And where that does not, tiles in float64; but it is asked only if the settings are guarded.
    """
    kernel, dtype = _bridge.kernel(chosen, operands[0]), operands[0].dtype
    settings = replace(settings, dtype=dtype.name)
    far = _far(settings, chosen.platform, in_tiles)
    if any(0 in x.shape for x in operands):
        return far(*operands)  # for its shapes
    if isinstance(kernel, str):
        shapes = [x.shape for x in jax.eval_shape(far, *operands)]
        return tuple(_bridge.torch_refusal(kernel, shapes, operands))
    if kernel.dtype == "float64" and dtype != jnp.float64:
        with jax.enable_x64(True):
            results = _by_kernel(settings, chosen, attended, in_tiles, tuple(x.astype("float64") for x in operands))
            return tuple(x.astype(dtype) for x in results)

    queries, keys, _, tau, *_ = operands
    points = scaled_points(queries, keys, tau, settings.centered, base_2=False)

    def run(*_: jax.Array) -> tuple[jax.Array, ...]:
        return attended(chosen, kernel, points, operands)[:-1]

    is_last = chosen.method == "rescale" and not kernel.half
    if chosen.platform != "cpu" or (is_last and not settings.guarded):
        return run()
    trust = _bridge.backend().trust
    reach = trust.squared_reach(*points)
    within = reach <= _bridge.reach(chosen.method, kernel.precision)
    if is_last:
        return lax.cond(within, run, far, *operands)
    own = replace(chosen, method="rescale", precision=dtype.name)

    def again(*operands: jax.Array) -> tuple[jax.Array, ...]:
        return _by_kernel(replace(settings, guarded=True), own, attended, in_tiles, operands)

    def unless_doubted(*operands: jax.Array) -> tuple[jax.Array, ...]:
        *results, largest = attended(chosen, kernel, points, operands)
        doubted = trust.doubtful(chosen.method, kernel, reach, largest)
        return lax.cond(doubted, again, lambda *_: tuple(results), *operands)

    return lax.cond(within, unless_doubted if kernel.half else run, again, *operands)


def _in_precision(chosen: Plan, blocks: Callable, operands: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    """What XLA makes of the operands in the plan's precision."""
    dtype = operands[0].dtype
    results = blocks(*(x.astype(chosen.precision) for x in operands), whole=chosen.method == "dense")
    return jax.tree.map(lambda x: x.astype(dtype), results)


def _prepared(chosen: Plan, centered: bool, *operands: jax.Array) -> tuple[Callable, jax.Array]:
    """XLA's sum, and whether the points are within its reach; both from the same scaled points."""
    dtype = operands[0].dtype
    queries, keys, values, tau = (x.astype(chosen.precision) for x in operands)
    a, b = with_norms(*scaled_points(queries, keys, tau, centered))
    fused = FUSES and (chosen.platform, chosen.precision) == ("cpu", "float32")

    def run(*_: jax.Array) -> tuple[jax.Array]:
        return (scaled_sum(a, b, values, whole=chosen.method == "dense", fused=fused).astype(dtype),)

    return run, are_within(chosen.reach, a, b)


def _is_within(chosen: Plan, operands: tuple[jax.Array, ...], each_tau: bool = False) -> jax.Array:
    queries, keys, _, tau, *_ = operands
    if chosen.reach == math.inf:
        return vary_like(jnp.ones(tau.shape[-1:] if each_tau else (), bool), operands)
    a, b = with_norms(*scaled_points(queries, keys, tau))
    return are_within(chosen.reach, a, b, each_tau)
