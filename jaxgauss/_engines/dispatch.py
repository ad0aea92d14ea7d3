"""Where a sum is computed: PyTorch's attention kernel or XLA, by platform. Beneath the derivative rules.

Mapped axes of `vmap` become leading axes here, of length 1 where an operand is not mapped: the reductions see the
whole batch, and share what is shared.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from .._arrays.places import platforms
from .._arrays.points import Scaled, are_within, scaled_points, with_norms
from .._arrays.split import SPLIT_REACH
from .._checks.settings import Settings, are_known, working_dtype
from .._kernels.mixtures import Mixture
from . import float64, radial
from .attention import attended_means, attended_pullback, attended_sum, by_attention, kernel_of
from .blocked import scaled_sum, split_sum
from .by_platform import by_platform, plan_there
from .channels import NOTHING, Channels
from .differences import differences_sum
from .fused import FUSED_MEANS, FUSED_WIDTH, FUSES
from .kernel_plan import exact_plan, mixture_of
from .mapped import mapped
from .means import fused_means, split_means
from .pairs import Sums, Wanted
from .plan import Plan, sizes
from .reach import FAR, NEAR, SPLIT, splits

KEPT = 8  # times as many numbers as the operands have: memory stays linear, under vmap as well


class Operation(NamedTuple):
    """What is computed from operands of equal rank, queries, keys, values, τ, …, by every engine.

    Attributes:
        wide: in float64.
        attended: by an attention kernel; of plan, kernel, scaled points and operands.
        in_xla: of settings, plan and operands.
        num_own: the first operands, in whose shapes the results are.
        leaves_log: whether the last result is what a pullback needs of it, on CUDA.
    """

    wide: float64.Wide
    attended: Callable[..., Any]
    in_xla: Callable[..., tuple[jax.Array, ...]]
    num_own: int = 0
    leaves_log: bool = False


def gaussian_sum(
    settings: Settings, queries: jax.Array, keys: jax.Array, values: jax.Array, tau: jax.Array
) -> jax.Array:
    """Σ_n Φ_τ(q_m, k_n) v_n of operands of equal rank in float32 or float64."""
    return _computed(SUM, settings)(queries, keys, values, tau)[0]


def gaussian_sum_and_log(settings: Settings, *operands: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The sum, and what spares its pullback a pass (…, M, 1), where `saves_log`."""
    return _computed(SUM_AND_LOG, settings)(*operands)


def gaussian_pullback(settings: Settings, *operands: jax.Array) -> tuple[jax.Array, ...]:
    """Gradients of Σ_m ⟨g_m, s_m⟩ in the shapes of queries, keys and values, at these, tau and g; all of equal rank.

    A sixth operand is what the sum has left for it. Points are within reach: whoever asks has seen to it.
    """
    return _computed(PULLBACK, replace(settings, guarded=False, centered=False))(*operands)


def gaussian_means(settings: Settings, *operands: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Σ_n w Φ v / Σ_n w Φ and log Σ_n w Φ at queries, keys, values, tau and log-weights (…, N, 1), of equal rank."""
    return _computed(MEANS, replace(settings, guarded=False, centered=False))(*operands)


def closer_points(settings: Settings, points: jax.Array, tau: jax.Array) -> jax.Array:
    """All points (P, D) there are, in float64, closer together where `torch_backend.closer` is: on CPUs."""
    return _closer(settings)(points, tau)[0]


def radial_sum(
    settings: Settings, channels: Channels, queries: jax.Array, keys: jax.Array, values: jax.Array, tau: jax.Array
) -> jax.Array:
    """Σ_n κ(u) v_n of operands of equal rank, κ evaluated in XLA, each channel with its own."""
    nothing = queries[..., :0], keys[..., :0]
    return pair_sums(settings, Wanted(channels, NOTHING), queries, keys, values, tau, *nothing).sums


def pair_sums(
    settings: Settings,
    wanted: Wanted,
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    tau: jax.Array,
    row_weights: jax.Array,
    weights: jax.Array,
) -> Sums:
    """`radial.pair_sums`, of operands of equal rank, evaluated in XLA; without what is not wanted."""
    given = [queries, keys, tau]
    given += [values] if wanted.sums.kernels else []
    given += [row_weights, weights] if wanted.pulls.kernels else []
    return Sums(*_radial(_pair_sums, settings, wanted)(*given))


def _pair_sums(wanted: Wanted, chosen: Plan, queries: jax.Array, keys: jax.Array, tau: jax.Array, *given: jax.Array):
    values, given = (given[0], given[1:]) if wanted.sums.kernels else (keys[..., :0], given)
    weights = given or (queries[..., :0], keys[..., :0])
    return tuple(radial.pair_sums(wanted, chosen, queries, keys, values, tau, *weights))


def radial_pullback(
    settings: Settings, channels: Channels, with_tau: bool, *operands: jax.Array
) -> tuple[jax.Array, ...]:
    """Gradients of Σ_m ⟨g_m, s_m⟩ in the shapes of queries, keys, values and τ, at these and g; all of equal rank."""
    return _radial(_RADIAL_PULLBACK[with_tau], settings, channels)(*operands)


def keeps_tile(settings: Settings, queries: jax.Array, keys: jax.Array, values: jax.Array, tau: jax.Array) -> bool:
    """Whether Φ is kept from the sum for its gradients: where it is dense, and not much larger than the operands."""
    operands = queries, keys, values, tau
    pairs = queries.shape[0] * keys.shape[0]
    if tau.ndim or not are_known(pairs) or not 0 < pairs <= KEPT * (queries.size + keys.size + values.size):
        return False
    plans = [plan_there(settings, platform, operands) for platform in platforms()]
    return all((x.method, x.precision) == ("dense", working_dtype(settings.dtype).name) for x in plans)


def uses_mixture(settings: Settings, *operands: Any) -> Mixture | None:
    """The mixture that the settings' kernel is summed by where JAX runs, if it is, of operands of such shapes."""
    plans = [plan_there(settings, platform, operands) for platform in platforms()]
    chosen = next((x for x in plans if x.method == "mixture"), None)
    return None if chosen is None else mixture_of(settings, chosen.precision)


def saves_log(settings: Settings, queries: jax.Array, keys: jax.Array, values: jax.Array, tau: jax.Array) -> bool:
    """Whether a sum leaves something for its pullback: on CUDA, by `rescale`, in one call."""
    operands = queries, keys, values, tau
    if settings.wide or 0 in (*queries.shape, *keys.shape, *values.shape) or "cuda" not in platforms():
        return False
    chosen, batch = plan_there(settings, "cuda", operands), math.prod(values.shape[:-2])
    kernel = None if chosen.native or chosen.method != "rescale" else kernel_of(chosen, queries)
    channels = values.shape[-1] * batch
    return kernel is not None and not isinstance(kernel, str) and kernel.channels(channels) == channels


@functools.cache
def _computed(operation: Operation, settings: Settings) -> Callable[..., Any]:
    def compute(platform: str, *operands: jax.Array) -> tuple[jax.Array, ...]:
        if settings.wide:
            return float64.in_tiles(operation.wide, platform, settings, *operands)
        chosen = plan_there(settings, platform, operands)
        if chosen.native:
            return operation.in_xla(settings, chosen, operands)
        return by_attention(settings, chosen, operation.attended, operation.wide, operands)

    def compute_all(platform: str, *operands: jax.Array) -> tuple[jax.Array, ...]:
        results = compute(platform, *operands)
        if operation.leaves_log and len(results) == 1:
            return *results, jnp.zeros_like(results[0][..., :1])  # which nobody reads
        return results

    return mapped(settings, functools.partial(by_platform, compute_all), operation.num_own)


def _sum_in_xla(settings: Settings, chosen: Plan, operands: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    """The sum, and a look whether points are within its reach; both from the same scaled points."""
    if chosen.method == "differences":
        return (differences_sum(*operands),)
    dtype = operands[0].dtype
    queries, keys, values, tau = (x.astype(chosen.precision) for x in operands)
    fused = _fuses(chosen)

    def scaled() -> tuple[Scaled, ...]:
        return with_norms(*scaled_points(queries, keys, tau, settings.centered))

    a, b = scaled()

    def run(*_: jax.Array) -> tuple[jax.Array]:
        return (scaled_sum(a, b, values, whole=chosen.method == "dense", fused=fused).astype(dtype),)

    def run_again(*_: jax.Array) -> tuple[jax.Array]:  # with points scaled again, not held beside other branches
        a, b = scaled()
        return (scaled_sum(a, b, values, whole=chosen.method == "dense", fused=fused).astype(dtype),)

    def run_split(*_: jax.Array) -> tuple[jax.Array]:
        return (split_sum(queries, keys, values, tau, settings.centered, fused=fused).astype(dtype),)

    if settings.split:
        return run_split()
    if not settings.guarded or chosen.reach == math.inf:
        return run()
    far = float64.out_of_reach(settings, float64.SUM, chosen.platform)
    within = are_within(chosen.reach, a, b)
    if not splits(settings, *operands):
        return lax.cond(within, run, far, *operands)
    way = jnp.where(within, NEAR, jnp.where(are_within(SPLIT_REACH, a, b), SPLIT, FAR))
    return lax.switch(way, (run_again, run_split, far), *operands)


def _fuses(chosen: Plan) -> bool:
    return FUSES and (chosen.platform, chosen.precision) == ("cpu", "float32")


def _pullback_in_xla(settings: Settings, chosen: Plan, operands: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    """In blocks."""
    return _in_blocks(float64.PULLBACK, chosen, operands, split=settings.split)


def _in_blocks(
    wide: float64.Wide, chosen: Plan, operands: tuple[jax.Array, ...], **options: bool
) -> tuple[jax.Array, ...]:
    """XLA's blocks, which serve in float64 as well, in the plan's precision."""
    dtype = operands[0].dtype
    cast = (x.astype(chosen.precision) for x in operands[: wide.num_operands])
    return jax.tree.map(lambda x: x.astype(dtype), wide.in_blocks(*cast, whole=chosen.method == "dense", **options))


def _means_in_xla(settings: Settings, chosen: Plan, operands: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    """By `fused_means` where XLA fuses, of so many pairs that it is worth two programs; else in blocks."""
    pairs, dim, channels = sizes(*operands[:4])
    fused = _fuses(chosen) and max(dim, channels + 1) <= FUSED_WIDTH and are_known(pairs) and pairs >= FUSED_MEANS
    if not fused and not settings.split:
        return _in_blocks(float64.MEANS, chosen, operands)
    cast = [x.astype(chosen.precision) for x in operands]
    if settings.split:
        far = float64.out_of_reach(replace(settings, split=False), float64.MEANS, chosen.platform)
        found = split_means(*cast, otherwise=lambda: far(*operands), fused=_fuses(chosen))
    else:
        found = fused_means(*cast)
    return tuple(x.astype(operands[0].dtype) for x in found)


SUM = Operation(float64.SUM, attended_sum, _sum_in_xla)
SUM_AND_LOG = SUM._replace(attended=functools.partial(attended_sum, with_log=True), leaves_log=True)
PULLBACK = Operation(float64.PULLBACK, attended_pullback, _pullback_in_xla, num_own=3)
MEANS = Operation(float64.MEANS, attended_means, _means_in_xla)


_RADIAL_PULLBACK = {x: functools.partial(radial.radial_pullback, with_tau=x) for x in (False, True)}


@functools.cache
def _radial(function: Callable[..., Any], settings: Settings, what: Any) -> Callable[..., Any]:
    def compute(platform: str, *operands: jax.Array) -> tuple[jax.Array, ...]:
        queries, keys, tau = operands[0], operands[1], operands[2 if function is _pair_sums else 3]
        chosen, dtype = exact_plan(settings, platform, sizes(queries, keys, keys, tau)[0]), queries.dtype
        results = function(what, chosen, *(x.astype(chosen.precision) for x in operands))
        return tuple(x.astype(dtype) for x in results)

    return mapped(settings, functools.partial(by_platform, compute), 0 if function is _pair_sums else 4)


@functools.cache
def _closer(settings: Settings) -> Callable[..., Any]:
    def compute(platform: str, *operands: jax.Array) -> tuple[jax.Array, ...]:
        return float64.closer(platform, settings, *operands)

    return mapped(settings, functools.partial(by_platform, compute), 1)
