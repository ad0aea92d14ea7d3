"""Sums and pullbacks by the engine that the plan names on each platform.

The derivative rules call the functions `planned_…`, which have no derivatives themselves.

Mapped axes of `vmap` become leading axes here. An operand that is not mapped gets an axis of length 1 and stays shared.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._arrays.devices import platforms
from .._arrays.points import Scaled, aligned_sizes, are_within, scaled_points, sizes_of_each, with_norms
from .._arrays.shapes import are_known
from .._checks.settings import Settings, working_dtype
from .._kernels.kernels import GAUSS, Kernel
from .._kernels.mixtures import Mixture
from . import radial
from . import several_bandwidths as mixed
from .attention.reductions import attended_means, attended_pullback, attended_sum, by_attention, kernel_of
from .branches import but_not, lowered, one_of_two, plan_there
from .clusters.sorted_tiles import sorts
from .fourier.cost import are_for_waves
from .means import blocked_means, means_anywhere, means_in_one_pass
from .plan import Plan, exact_plan, mixture_of
from .products.gaussian import blocked_pullback, scaled_sum
from .request import NOTHING, Channels, PairSums, Request
from .scopes import scope
from .tiles import ONE_PASS

KEPT = 16  # a kept Φ has at most so many times the numbers of the operands: memory stays linear, under vmap as well


class Operation(NamedTuple):
    """One computation by three engines, from operands of equal rank: queries, keys, values, τ, ….

    Attributes:
        name: what `explain` calls it.
        anywhere: for points that lie anywhere; takes a plan and the operands.
        attended: by an attention kernel; takes a plan, its kernel, the scaled points and the operands.
        in_xla: for near points, in XLA; takes a plan, the scaled points with their norms, and the operands.
    """

    name: str
    anywhere: Callable[..., tuple[jax.Array, ...]]
    attended: Callable[..., Any]
    in_xla: Callable[..., tuple[jax.Array, ...]]


def planned_gaussian_sum(
    settings: Settings, queries: jax.Array, keys: jax.Array, values: jax.Array, tau: jax.Array
) -> jax.Array:
    """Σ_n Φ_τ(q_m, k_n) v_n of operands of equal rank in float32 or float64, wherever the points lie."""
    return lowered(_by_plan, (SUM, settings, None), queries, keys, values, tau)[0]


def near_sum(settings: Settings, *operands: jax.Array, moments: int = 0) -> jax.Array:
    """`planned_gaussian_sum` of points that are known to be near; its first channels may be `moments` for gradients."""
    return lowered(_by_plan, (_sum_with(moments), settings, True), *operands)[0]


def near_sum_and_log(settings: Settings, *operands: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The sum of near points and, where `saves_log`, logarithms (…, M, 1) that spare its pullback one pass."""
    total, log = lowered(_sum_and_log, (settings,), *operands)
    return total, log


def near_pullback(settings: Settings, *operands: jax.Array) -> tuple[jax.Array, ...]:
    """Gradients of Σ_m ⟨g_m, s_m⟩ for near points, in the shapes of queries, keys and values.

    The operands are queries, keys, values, τ and g, all of equal rank, and the logarithms if the sum has saved them.
    """
    return lowered(_by_plan, (PULLBACK, settings, True), *operands, num_own=3)


def kernel_means(settings: Settings, near: bool, *operands: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Σ_n w κ v / Σ_n w κ and log Σ_n w κ of queries, keys, values, τ and log-weights (…, N, 1), of equal rank.

    `near`: whether points are known to be near, and the kernel is Gaussian; else they may lie anywhere, and values may
    have no columns.
    """
    means, logs = lowered(_by_plan, (_means_of(settings.kernel), settings, near), *operands, needed=2)
    return means, logs


def planned_radial_sum(
    settings: Settings, channels: Channels, queries: jax.Array, keys: jax.Array, values: jax.Array, tau: jax.Array
) -> jax.Array:
    """Σ_n κ(u) v_n of operands of equal rank; XLA evaluates κ, and each channel has its own."""
    nothing = queries[..., :0], keys[..., :0]
    return planned_pair_sums(settings, Request(channels, NOTHING), queries, keys, values, tau, *nothing).sums


def planned_pair_sums(
    settings: Settings,
    request: Request,
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    tau: jax.Array,
    *weights: jax.Array,
) -> PairSums:
    """`PairSums` of operands of equal rank; `weights` are those of the queries and those of the keys."""
    values, *others = _of_request(request, values, weights)
    given = queries, keys, values, tau, *others
    return PairSums(*lowered(_exactly, (radial.pair_sums_in_xla, request, settings), *given, needed=2))


def planned_mixed_sums(
    settings: Settings,
    request: Request,
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    tau: jax.Array,
    shares: jax.Array,
    *weights: jax.Array,
) -> PairSums:
    """`PairSums` of a mixture, of operands of equal rank, with the shares (…, T) of the Gaussians."""
    values, *others = _of_request(request, values, weights)
    given = queries, keys, values, tau, shares, *others
    return PairSums(*lowered(_exactly, (mixed.mixed_sums_in_xla, request, settings), *given, needed=2))


def _of_request(request: Request, values: jax.Array, weights: tuple[jax.Array, ...]) -> list[jax.Array]:
    """The values and the weights, without columns if no sums or no pulls are wanted."""
    return [
        values if request.sums.kernels else values[..., :0],
        *(x if request.pulls.kernels else x[..., :0] for x in weights),
    ]


def planned_radial_pullback(
    settings: Settings, channels: Channels, with_tau: bool, *operands: jax.Array
) -> tuple[jax.Array, ...]:
    """Gradients of Σ_m ⟨g_m, s_m⟩ in the shapes of queries, keys, values and τ; these and g are of equal rank."""
    return lowered(_exactly, (_RADIAL_PULLBACK[with_tau], channels, settings), *operands, num_own=4)


def keeps_tile(settings: Settings, queries: jax.Array, keys: jax.Array, values: jax.Array, tau: jax.Array) -> bool:
    """Whether the sum keeps Φ for its gradients: if it is dense, and Φ is not much larger than the operands."""
    operands = queries, keys, values, tau
    pairs = queries.shape[0] * keys.shape[0]
    if tau.ndim or not are_known(pairs) or not 0 < pairs <= KEPT * (queries.size + keys.size + values.size):
        return False
    plans = [plan_there(settings, platform, operands) for platform in platforms()]
    dense = "dense", working_dtype(settings.dtype).name
    return all((x.method, x.precision) == dense and x.reach > 0 for x in plans)


def sums_apart(settings: Settings, queries: jax.Array, keys: jax.Array, _: jax.Array, tau: jax.Array, *__: Any) -> bool:
    """Whether points that lie anywhere are so many that they are summed apart, on the only platform of JAX."""
    first, *others = platforms()
    plan = exact_plan_of(settings, first, (queries, keys, keys, tau))
    return plan.apart and not others and sorts(plan, queries.shape[-2], *keys.shape[-2:])


def uses_mixture(settings: Settings, *operands: Any) -> Mixture | None:
    """The mixture that stands for the kernel on a platform of JAX, for operands of such shapes; None without one."""
    plans = [plan_there(settings, platform, operands) for platform in platforms()]
    plan = next((x for x in plans if x.method == "mixture"), None)
    return None if plan is None else mixture_of(settings, plan.precision)


def saves_log(settings: Settings, queries: jax.Array, keys: jax.Array, values: jax.Array, tau: jax.Array) -> bool:
    """Whether a sum saves logarithms for its pullback: on CUDA, by `rescale`, in one call."""
    operands = queries, keys, values, tau
    if 0 in (*queries.shape, *keys.shape, *values.shape) or "cuda" not in platforms():
        return False
    plan, batch = plan_there(settings, "cuda", operands), math.prod(values.shape[:-2])
    kernel = None if plan.native or plan.method != "rescale" else kernel_of(plan, queries)
    channels = values.shape[-1] * batch
    return kernel is not None and not isinstance(kernel, str) and kernel.channels(channels) == channels


def _by_plan(
    operation: Operation, settings: Settings, near: bool | None, platform: str, *operands: jax.Array
) -> tuple[jax.Array, ...]:
    """The operation by its plan. `near`: whether points are known to be near; None if the program must find out."""
    with scope("sum", operation.name, *sizes_of_each(*operands)):
        return _as_planned(operation, settings, near, platform, *operands)


def _as_planned(
    operation: Operation, settings: Settings, near: bool | None, platform: str, *operands: jax.Array
) -> tuple[jax.Array, ...]:
    if near is False:
        return operation.anywhere(exact_plan_of(settings, platform, operands), *operands)
    plan = plan_there(settings, platform, operands)
    if plan.method in ("differences", "fourier"):
        return operation.anywhere(plan, *operands)
    if not plan.native:
        return by_attention(plan, operation.attended, operation.anywhere, operands, near is None)
    if not near and plan.reach == -math.inf:
        return operation.anywhere(plan, *operands)
    return _in_precision(functools.partial(_in_xla, operation, near))(plan, *operands)


def _in_xla(operation: Operation, near: bool | None, plan: Plan, *operands: jax.Array) -> tuple[jax.Array, ...]:
    """The operation by XLA. Points are scaled once, to find out whether they are near, and for the sum."""
    queries, keys, _, tau, *_ = operands
    points = with_norms(*scaled_points(queries, keys, tau))
    here = scope("engine", f"{plan.method} in {plan.precision}")(functools.partial(operation.in_xla, plan))
    if near:
        return here(points, *operands)
    is_near = plan.reach == math.inf or are_within(plan.reach, points[0], points[1], operands[2])
    is_near = but_not(is_near, are_for_waves(plan, *operands[:4], pulls=operation is PULLBACK))
    ways = _flat(here), _flat(lambda _, *x: operation.anywhere(plan, *x))
    results = one_of_two(is_near, *ways, points, *operands)
    return tuple(x if x.ndim == queries.ndim else x[..., None] for x in results)


def _flat(function: Callable[..., tuple[jax.Array, ...]]) -> Callable[..., list[jax.Array]]:
    """The function with columns as vectors: XLA lays a column out in one of two ways, and copies it after a `cond`."""
    return lambda *x: [y[..., 0] if y.shape[-1] == 1 else y for y in function(*x)]


def _sum_and_log(settings: Settings, platform: str, *operands: jax.Array) -> tuple[jax.Array, jax.Array]:
    total, *logs = _by_plan(SUM_AND_LOG, settings, True, platform, *operands)
    return total, logs[0] if logs else jnp.zeros_like(total[..., :1])  # only CUDA reads it


def _exactly(function: Callable[..., Any], what: Any, settings: Settings, platform: str, *operands: jax.Array) -> Any:
    """A function of `radial` or `mixed` with its plan, in the plan's precision."""
    queries, keys, _, tau, *_ = operands
    plan = exact_plan_of(settings, platform, (queries, keys, keys, tau))
    pulls = isinstance(what, Channels) or what.pulls.kernels
    with scope("sum", "sum with pulls" if pulls else "sum", *sizes_of_each(*operands)):
        return _in_precision(functools.partial(function, what))(plan, *operands)


def _in_precision(function: Callable) -> Callable[..., tuple[jax.Array, ...]]:
    """`function` of a plan and operands, in the plan's precision; the results have the operands' dtype."""

    def compute(plan: Plan, *operands: jax.Array) -> tuple[jax.Array, ...]:
        results = function(plan, *(x.astype(plan.precision) for x in operands))
        return tuple(x.astype(operands[0].dtype) for x in results)

    return compute


def _sum_in_xla(
    plan: Plan, points: tuple[Scaled, Scaled], *operands: jax.Array, moments: int = 0
) -> tuple[jax.Array, ...]:
    return (scaled_sum(*points, operands[2], dense=plan.method == "dense", moments=moments),)


@_in_precision
def _sum_anywhere(plan: Plan, queries: jax.Array, keys: jax.Array, values: jax.Array, tau: jax.Array):
    request = Request(Channels((GAUSS,), values.shape[-1:]), NOTHING)
    nothing = queries[..., :0], keys[..., :0]
    return (radial.sums_anywhere([request], plan, queries, keys, values, tau, *nothing)[0].sums,)


def _pullback_in_xla(plan: Plan, points: tuple[Scaled, Scaled], *operands: jax.Array) -> tuple[jax.Array, ...]:
    return blocked_pullback(*points, *operands[:5], dense=plan.method == "dense")


@_in_precision
def _pullback_anywhere(plan: Plan, *operands: jax.Array) -> tuple[jax.Array, ...]:
    channels = Channels((GAUSS,), operands[2].shape[-1:])
    return radial.pullback_anywhere(channels, plan, *operands[:5], with_tau=False)[:3]


def _means_in_xla(plan: Plan, points: tuple[Scaled, Scaled], *operands: jax.Array) -> tuple[jax.Array, ...]:
    """By `means_in_one_pass` where enough pairs pay for two programs; else by `blocked_means`."""
    pairs, *_ = aligned_sizes(*operands[:4])
    if (plan.platform, plan.precision) == ("cpu", "float32") and are_known(pairs) and pairs >= ONE_PASS:
        return means_in_one_pass(*points, *operands, is_apart=plan.apart)
    return blocked_means(*operands, dense=plan.method == "dense")


SUM = Operation("sum", _sum_anywhere, attended_sum, _sum_in_xla)
SUM_AND_LOG = SUM._replace(attended=functools.partial(attended_sum, with_log=True))
PULLBACK = Operation("gradients", _pullback_anywhere, attended_pullback, _pullback_in_xla)


@functools.cache
def _sum_with(moments: int) -> Operation:
    return SUM._replace(in_xla=functools.partial(_sum_in_xla, moments=moments)) if moments else SUM


@functools.cache
def _means_of(kernel: Kernel) -> Operation:
    return Operation("mean", functools.partial(means_anywhere, kernel), attended_means, _means_in_xla)


_RADIAL_PULLBACK = {x: functools.partial(radial.radial_pullback_in_xla, with_tau=x) for x in (False, True)}


def exact_plan_of(settings: Settings, platform: str, operands: tuple[jax.Array, ...]) -> Plan:
    """`exact_plan`; for Gaussians in the working dtype, since the precision asked for may be an attention kernel's."""
    if settings.kernel == GAUSS:
        settings = replace(settings, precision="auto", backend="auto")
    return exact_plan(settings, platform, aligned_sizes(*operands[:4])[0]).with_findings(settings)
