"""explain: what `gauss_sum` does with given arguments, and why."""

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Unpack, overload

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.lax import Precision
from jaxtyping import Array

from .._arrays.devices import replicated
from .._arrays.points import align, scaled_points, shared, sizes, squared_radius, with_norms
from .._calls import also_called
from .._checks.arguments import public
from .._checks.data import checked_data
from .._checks.names import as_engine, as_kernel
from .._checks.settings import Keys, Options, Queries, Settings, Tau, Values, working_dtype
from .._engines import bridge
from .._engines.attention.engine import Attention, kernel_of
from .._engines.clusters.engine import Clusters
from .._engines.clusters.sorted_tiles import share_of_tiles
from .._engines.costs import time_of_waves_on_cuda, time_on_cuda
from .._engines.engine import Engine
from .._engines.engines import exact_plan_of
from .._engines.fourier.cost import OF_SIGNS, Sizes, at_most, estimated, most_blocks, waves_pay_here
from .._engines.fourier.engine import Fourier
from .._engines.fourier.frequencies import WAVES, with_blocks
from .._engines.fourier.sums import SUMS, sums_by_waves, wave_grid
from .._engines.mixture import Mixture
from .._engines.plan import NEAR, Plan
from .._engines.products.gaussian import blocked_sum
from .._engines.request import NOTHING, Channels, Request
from .._kernels.kernels import GAUSS, Kernel
from .explanation import Explanation, explained
from .preparation import checked

ROWS = 1024  # sampled queries, for the share that waves leave in doubt


@overload
def explain(function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Explanation: ...


@overload
def explain(
    queries: Queries | jax.ShapeDtypeStruct,
    keys: Keys | jax.ShapeDtypeStruct,
    values: Values | jax.ShapeDtypeStruct,
    tau: Tau = 1.0,
    *,
    kernel: str | Kernel = "gauss",
    **options: Unpack[Options],
) -> Plan: ...


def explain(*arguments: Any, **options: Any) -> Plan | Explanation:
    """Tell what a function sums, and how long that takes; or what `gauss_sum` or `kernel_sum` does, and why.

    `explain(function, *arguments, **options)` takes any function that JAX can trace, such as `mmd_flow_velocity` or
    `jax.grad(loss)`, and does not run it. It lists all sums, each with its engine and estimated time. A loop whose
    length depends on results counts as one step; points of which only shapes are known count as near.

    `explain(queries, keys, values, tau)` gives the engine of one sum, with all that it has chosen, and the reason.
    Shapes are enough (`jax.ShapeDtypeStruct`). The reason holds the time estimates by which "auto" chose, and where
    they come from (see `calibrate`). For other kernels it also tells whether a mixture of Gaussians stands for the
    kernel, how many there are, and their error. If the arrays have values, the points are examined, too:

    - Points of up to three dimensions: whether a Fourier series sums them, with how many waves, what error and what
      estimated time, and the share of 1024 sampled queries that must be summed another way.
    - Other points: whether they lie near one another, and if not, how they are summed.
    - Half precision: whether the sums at 256 sampled queries are so small that rounding changes them. On CUDA a second
      kernel then runs; its cost is in the reason.

    Likely mistakes in the data are warnings: NaN among points, and a τ by which the kernel is zero between all of them.

    Args:
        *arguments, **options: a function and its arguments; or queries, keys, values, tau, kernel, engine and
            precision, as for `kernel_sum`.

    Returns:
        For a function an `Explanation`, with `milliseconds` and `parts`; print it. For a sum the `Plan` on the platform
        of the arrays, or of JAX's default device if the arrays have none.

    Raises:
        ValueError, TypeError: as `gauss_sum` or the function does; or the function cannot be traced.

    Example:
        >>> import jax, jaxgauss
        >>> points = jax.ShapeDtypeStruct((8192, 16), "float32")
        >>> weights = jax.ShapeDtypeStruct((8192,), "float32")
        >>> jaxgauss.explain(points, points, weights, engine="attention").engine
        Attention(kernel='cpu', precision='float32')
        >>> jaxgauss.explain(jaxgauss.mmd_squared, points, points, 1.0).parts[0].kind
        'sum'
    """
    if arguments and callable(arguments[0]):
        return explained(*arguments, **options)
    with checked_data():
        return _plan_of(*arguments, **options)


@public()
@functools.partial(also_called, "explain")
def _plan_of(
    queries: Any,
    keys: Any,
    values: Any,
    tau: Any = 1.0,
    *,
    kernel: str | Kernel = "gauss",
    engine: str | Engine = "auto",
    precision: str | Precision | None = None,
) -> Plan:
    kernel = as_kernel("explain", kernel)
    asked = Settings(as_engine("explain", engine, precision), function="explain", kernel=kernel)
    settings, plan = checked(asked, queries, keys, values, tau)
    if any(isinstance(x, (jax.ShapeDtypeStruct, jax.core.Tracer)) for x in (queries, keys, tau)):
        return plan
    work = working_dtype(settings.dtype)
    given = isinstance(values, jax.Array | np.ndarray) and not isinstance(values, jax.core.Tracer)
    v = jnp.asarray(values, work) if given else jnp.ones(keys.shape[-2], work)
    q, k, v, t = align(
        *replicated(*(jnp.asarray(x, work) for x in (queries, keys, v[:, None] if v.ndim == 1 else v, tau)))
    )
    if 0 in (*q.shape, *k.shape, *v.shape):
        return plan
    if plan.platform == "cuda" and settings.engine.name == "fourier":
        settings = with_blocks(settings, tau, queries, keys)
    by_waves = _by_waves(settings, plan, q, k, v, t)
    if by_waves is not None:
        return by_waves
    if isinstance(plan.engine, Mixture):
        return plan
    reach = float(squared_radius(*with_norms(*scaled_points(q, k, t))))
    far = f"points lie {math.sqrt(reach):.0f} bandwidths from their center, farther than {plan.precision} reaches"
    if isinstance(plan.engine, Attention):
        return _by_attention(plan, far, q, k, v, t, sizes(queries, keys, values, np.shape(tau)))
    if plan.engine.anywhere or plan.platform != "cpu" or not (kernel.kinked or reach > plan.reach):
        return plan
    reason = "distances need all digits" if kernel.kinked else far
    reason += ": tiles of sorted points look after their own"
    share = share_of_tiles(kernel, plan, q, k, t)
    reason += "" if share == 1 else f"; {share:.1%} of the tiles are summed, in the others the kernel is zero"
    return replace(plan, engine=Clusters(precision=plan.precision), near=False, reason=reason)


def _by_waves(settings: Settings, plan: Plan, q: Array, k: Array, v: Array, tau: Array) -> Plan | None:
    """The plan if waves sum these points; else None."""
    if settings.kernel != GAUSS or not shared(q, k, v, tau[..., None, None]):
        return None
    plan = exact_plan_of(settings, plan.platform, (q, k, v, tau))
    if plan.waves is False:
        return None
    q, k, v, scale = (x.reshape(x.shape[-2:]) for x in (q, k, v, jnp.sqrt(tau)[..., None, None]))
    sizes, by_name = Sizes(len(q), len(k), k.shape[1], v.shape[1]), plan.name == "fourier"
    most = at_most(sizes.dim, plan) if by_name else most_blocks(plan.precision, sizes)
    if not most:
        return None
    does, around = waves_pay_here(plan, most, plan.precision, sizes, scale, q, k)
    if not does:
        return None
    some = q[:: -(-len(q) // ROWS)]
    of = wave_grid(most, plan, SUMS[plan.precision], scale, sizes, around)
    if not of.fits:
        engine = Clusters(precision=plan.precision)
        return replace(plan, engine=engine, near=False, reason="too many waves: tiles of sorted points take it")
    request = Request(Channels((GAUSS,), v.shape[-1:]), NOTHING)
    _, doubt = sums_by_waves(request, of, SUMS[plan.precision], some, k, v, scale, some[:, :0], k[:, :0])
    found = np.asarray(of.nodes.counts) * WAVES[sizes.dim], np.round(np.asarray(scale[0] * around.extent), 1)
    waves, size = (" × ".join(map(str, x)) for x in found)
    if plan.platform == "cuda":
        pairs = time_on_cuda("blocked", len(q) * len(k), sizes.dim, sizes.channels)[0]
        milliseconds = [time_of_waves_on_cuda(len(q) + len(k), sizes.dim, sizes.channels, most), pairs]
    else:
        times = estimated(plan.precision, sizes, list(map(float, of.nodes.counts)))
        signs = jnp.where(((v > 0).any(0) & (v < 0).any(0)).any(), 2, 1) / OF_SIGNS  # values of both take twice as many
        milliseconds = [float(signs) * times[0] / 1e6, times[1] / 1e6]
    way = "finufft" if of.nodes.eps else "products"
    points = "nearly all points'" if around.error > 0 else "the points'"
    reason = f"{waves} waves hold {points} box of {size} bandwidths to {float(of.error):.0e} of Σ|v|; by {way} an"
    reason += f" estimated {milliseconds[0]:.3g} ms, all pairs {milliseconds[1]:.3g} ms; "
    share = f"{float(doubt.mean()):.1%} of {len(some)} queries are in doubt"
    reason += f"asked for by name, {share}" if by_name else f"{share}, and summed from differences or by tiles"
    engine = plan.engine if by_name else Fourier(precision=plan.precision)
    return replace(plan, engine=engine, waves=True, reason=reason)


def _by_attention(plan: Plan, far: str, q: Array, k: Array, v: Array, tau: Array, size: tuple[int, int, int]) -> Plan:
    """The plan of an attention kernel, or of what sums again if its precision is too coarse for the points."""
    engine, guard = plan.engine, bridge.torch_backend().guard
    kernel = kernel_of(engine, plan.platform, q.dtype.name, q.shape[-1])
    if isinstance(kernel, str):
        return plan
    points = scaled_points(q, k, tau, base_2=False, many=kernel.half)
    reach = guard.squared_radius(*points)
    is_far = reach > min(plan.reach, guard.REACH[engine.method][engine.precision])
    if not is_far and not (kernel.half and guard.doubtful(engine.method, kernel, points, _largest(q, k, v, tau))):
        return plan
    reason = far if is_far else f"all sums are so small that {plan.precision} has lost their digits"
    if plan.platform != "cuda":
        near = reach <= NEAR[q.dtype.name]
        own = (Attention if near else Clusters)(precision=q.dtype.name)
        return replace(plan, engine=replace(own, kernel="cpu") if near else own, reason=reason)
    milliseconds, basis = time_on_cuda(guard.finest_kernel("cuda", "float32"), *size)
    reason += f": a second kernel computes them again, in {milliseconds:.3g} ms more ({basis})"
    return replace(plan, engine=Attention(kernel="efficient", precision="float32"), reason=reason)


def _largest(q: Array, k: Array, v: Array, tau: Array) -> Array:
    """The largest sum at 256 queries, for values scaled to at most one."""
    sums = blocked_sum(q[..., :: -(-q.shape[-2] // 256), :], k, v, tau)
    largest = [jnp.abs(x).max((*range(x.ndim - 1),)) for x in (sums, v)]
    return (largest[0] / jnp.where(largest[1] == 0, 1, largest[1])).max()
