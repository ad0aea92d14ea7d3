"""Sums and pullbacks by the engine that the plan names on each platform.

The derivative rules call the functions `planned_…`, which have no derivatives themselves.

Mapped axes of `vmap` become leading axes here. An operand that is not mapped gets an axis of length 1 and stays shared.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._arrays.devices import platforms
from .._arrays.points import aligned_sizes, side_by_side, sizes_of_each
from .._arrays.shapes import are_known
from .attention.engine import Attention, kernel_of
from .branches import lowered
from .clusters.engine import CLUSTERS
from .clusters.sorted_tiles import sorts
from .engine import Engine, as_sums
from .engines import ENGINES, exact_plan_of, plan_there
from .means import blocked_means, means_anywhere
from .plan import Plan, in_precision
from .request import NOTHING, Channels, PairSums, Request, indices
from .scopes import scope
from .settings import Settings, working_dtype
from .several_bandwidths import mixed_sums, several_in_turn, several_near, takes_several

KEPT = 16  # a kept Φ has at most so many times the numbers of the operands: memory stays linear, under vmap as well


class Operation(NamedTuple):
    """What is asked of an engine: one of its methods, and the options of that. Static."""

    method: str
    title: str  # in what `explain` says
    options: tuple[tuple[str, Any], ...] = ()

    def by(self, engine: Engine, *given: Any) -> tuple[jax.Array, ...]:
        """The results of an engine, of its plan, whether points are near, and the operands."""
        results = getattr(engine, self.method)(*given, **dict(self.options))
        return as_sums(engine, results, *given[2:]) if self.method == "sums" else results


SUM, PULLBACK = Operation("sums", "sum"), Operation("pullback", "gradients")
SUM_AND_LOG = SUM._replace(options=(("with_log", True),))


def planned_gaussian_sum(
    settings: Settings, queries: jax.Array, keys: jax.Array, values: jax.Array, tau: jax.Array
) -> jax.Array:
    """Σ_n Φ_τ(q_m, k_n) v_n of operands of equal rank in float32 or float64, wherever the points lie."""
    return lowered(_by_plan, (SUM, settings, None), queries, keys, values, tau)[0]


def near_sum(settings: Settings, *operands: jax.Array, moments: int = 0) -> jax.Array:
    """`planned_gaussian_sum` of points that are known to be near; its first channels may be `moments` for gradients."""
    operation = SUM._replace(options=(("moments", moments),)) if moments else SUM
    return lowered(_by_plan, (operation, settings, True), *operands)[0]


def near_mixed_sums(settings: Settings, with_pulls: bool, *operands: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Σ_n κ v_n (…, 1, M, C) of the one kernel κ = Σ_t share_t Φ_t, and Σ_n ψ w_n (k_n - q_m), without columns if not.

    The operands are queries, keys, values, τ and shares (…, T); points are near, and about zero. w is the first column
    of the values.
    """
    sums, pulls = lowered(_mixed_by_plan, (settings, with_pulls), *operands)
    return sums, pulls


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
    if settings.exclude_self:
        means, logs = lowered(_means_of_others, (settings, near), *operands, needed=2)
        return means, logs
    operation = Operation("log_means", "mean", (("kernel", settings.kernel),))
    means, logs = lowered(_by_plan, (operation, settings, near), *operands, needed=2)
    return means, logs


def planned_kernel_sum(
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
    given, request = (queries, keys, values, tau, *others), request._replace(others=settings.exclude_self)
    return PairSums(*lowered(_exactly, (_pair_sums, request, settings), *given, needed=2))


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
    return PairSums(*lowered(_exactly, (mixed_sums, request, settings), *given, needed=2))


def _of_request(request: Request, values: jax.Array, weights: tuple[jax.Array, ...]) -> list[jax.Array]:
    """The values and the weights, without columns if no sums or no pulls are wanted."""
    return [
        values if request.sums.kernels else values[..., :0],
        *(x if request.pulls.kernels else x[..., :0] for x in weights),
    ]


def planned_pair_pullback(
    settings: Settings, channels: Channels, with_tau: bool, *operands: jax.Array
) -> tuple[jax.Array, ...]:
    """Gradients of Σ_m ⟨g_m, s_m⟩ in the shapes of queries, keys, values and τ; these and g are of equal rank."""
    pullback = _PAIR_PULLBACKS[with_tau, settings.exclude_self]
    return lowered(_exactly, (pullback, channels, settings), *operands, num_own=4)


def keeps_tile(settings: Settings, queries: jax.Array, keys: jax.Array, values: jax.Array, tau: jax.Array) -> bool:
    """Whether the sum keeps Φ for its gradients: if it is dense, and Φ is not much larger than the operands."""
    operands = queries, keys, values, tau
    pairs = queries.shape[0] * keys.shape[0]
    if tau.ndim or not are_known(pairs) or not 0 < pairs <= KEPT * (queries.size + keys.size + values.size):
        return False
    plans = [plan_there(settings, platform, operands) for platform in platforms()]
    dense = "dense", working_dtype(settings.dtype).name
    return all((x.name, x.precision) == dense and x.reach > 0 for x in plans)


def sums_apart(settings: Settings, queries: jax.Array, keys: jax.Array, _: jax.Array, tau: jax.Array, *__: Any) -> bool:
    """Whether points that lie anywhere are so many that they are summed apart, on the only platform of JAX."""
    first, *others = platforms()
    plan = exact_plan_of(settings, first, (queries, keys, keys, tau))
    return plan.apart and not others and sorts(plan, queries.shape[-2], *keys.shape[-2:])


def saves_log(settings: Settings, queries: jax.Array, keys: jax.Array, values: jax.Array, tau: jax.Array) -> bool:
    """Whether a sum saves logarithms for its pullback: on CUDA, by `rescale`, in one call."""
    operands = queries, keys, values, tau
    if 0 in (*queries.shape, *keys.shape, *values.shape) or "cuda" not in platforms():
        return False
    plan, batch = plan_there(settings, "cuda", operands), math.prod(values.shape[:-2])
    if not isinstance(plan.engine, Attention) or plan.engine.method != "rescale":
        return False
    kernel, channels = kernel_of(plan.engine, "cuda", queries.dtype.name, queries.shape[-1]), values.shape[-1] * batch
    return not isinstance(kernel, str) and not kernel.fine and kernel.channels(channels) == channels


def _by_plan(
    operation: Operation, settings: Settings, near: bool | None, platform: str, *operands: jax.Array
) -> tuple[jax.Array, ...]:
    """The operation by its plan. `near`: whether points are known to be near; None if the program must find out."""
    with scope("sum", operation.title, *sizes_of_each(*operands)):
        if near is False:
            plan = exact_plan_of(settings, platform, operands)
            return operation.by(plan.engine if plan.engine.anywhere else CLUSTERS, plan, near, *operands)
        plan = plan_there(settings, platform, operands)
        return operation.by(plan.engine, plan, near, *operands)


def _mixed_by_plan(settings: Settings, with_pulls: bool, platform: str, *operands: jax.Array) -> tuple[jax.Array, ...]:
    queries, keys, values, tau, _ = operands
    columns = side_by_side([keys[..., : keys.shape[-1] * with_pulls] * values[..., :1], values])
    given = queries, keys, columns, tau
    plan, problem = plan_there(settings, platform, given), settings.problem(platform, *aligned_sizes(*given))
    with scope("sum", "sum", *sizes_of_each(*given)):
        if takes_several(plan, problem, tau.shape[-1], settings.automatic):
            return several_near(plan, with_pulls, *operands)
        return several_in_turn(plan, columns, *operands)


def _sum_and_log(settings: Settings, platform: str, *operands: jax.Array) -> tuple[jax.Array, jax.Array]:
    total, *logs = _by_plan(SUM_AND_LOG, settings, True, platform, *operands)
    return total, logs[0] if logs else jnp.zeros_like(total[..., :1])  # only CUDA reads it


def _pair_sums(request: Request, plan: Plan, *operands: jax.Array) -> PairSums:
    return _engine(plan, request.others).pair_sums(plan, request, *operands)


def _pair_pullback(channels: Channels, plan: Plan, *operands: jax.Array, with_tau: bool, others: bool) -> Any:
    how = {"others": True} if others else {}  # engines of users need not know it
    return _engine(plan, others).pair_pullback(plan, channels, *operands, with_tau=with_tau, **how)


def _engine(plan: Plan, others: bool) -> Engine:
    """The engine of a plan; for sums over others one of ours."""
    return plan.engine if not others or type(plan.engine) in map(type, ENGINES) else CLUSTERS


_PAIR_PULLBACKS = {
    (x, y): functools.partial(_pair_pullback, with_tau=x, others=y) for x in (False, True) for y in (False, True)
}


def _means_of_others(settings: Settings, near: bool, platform: str, *operands: jax.Array) -> tuple[jax.Array, ...]:
    """`kernel_means` without the pairs of equal index."""
    if near and platform != "cuda":
        return blocked_means(*operands, others=indices(operands[0].shape[-2]))
    plan = exact_plan_of(settings, platform, operands)
    return means_anywhere(settings.kernel, plan, *operands, others=True)


def _exactly(function: Callable[..., Any], what: Any, settings: Settings, platform: str, *operands: jax.Array) -> Any:
    """A function of what is asked for, a plan of XLA and operands, in the plan's precision."""
    queries, keys, _, tau, *_ = operands
    plan = exact_plan_of(settings, platform, (queries, keys, keys, tau))
    pulls = isinstance(what, Channels) or what.pulls.kernels
    with scope("sum", "sum with pulls" if pulls else "sum", *sizes_of_each(*operands)):
        return in_precision(functools.partial(function, what))(plan, *operands)
