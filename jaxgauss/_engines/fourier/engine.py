"""Fourier: the fast Gauss transform, a Fourier series of the Gaussian in up to three dimensions."""

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..._arrays.devices import has_cuda
from ..._arrays.points import shared
from ..._kernels.kernels import GAUSS
from ..engine import Engine, Problem, Trial
from ..plan import Plan
from ..request import NOTHING, Channels, Request
from . import nufft
from .boxes import Box, box
from .cost import (
    CHOICES,
    OF_SIGNS,
    WORTH_ON_CUDA,
    Sizes,
    at_most,
    estimated,
    finer_waves,
    most_blocks,
    time_of_doubt,
    transform_work,
    waves_pay_here,
)
from .frame import check_tolerance
from .frequencies import DIMENSIONS, WAVES, blocks_of, tolerance_of
from .sums import LOGS, SUMS, Promise, WaveGrid, sums_by_waves, wave_grid

ROWS = 1024  # sampled queries, for the share that is in doubt


@dataclass(frozen=True, repr=False)
class Fourier(Engine):
    """A Fourier series of the Gaussian in up to three dimensions: O(M + N) operations, by nonuniform FFTs or products.

    On CPUs and on CUDA "auto" takes it where it is estimated to be faster. Queries whose digits it does not promise are
    summed another way; by name all of them are summed by it.

    Args:
        tolerance: the largest error relative to Σ|v|, before rounding. None: below rounding.
        precision: float32 or float64; None: the dtype of the points.
    """

    tolerance: float | None = None

    anywhere = False  # a box of waves has to hold the points

    def __post_init__(self) -> None:
        """Raise TypeError or ValueError unless the tolerance is a number between 0 and 1."""
        super().__post_init__()
        check_tolerance("Fourier", self.tolerance)

    def refuses(self, problem: Problem) -> str | None:
        """Other kernels, logarithms, and more than three dimensions."""
        if problem.kernel != GAUSS or problem.logs:
            return "a Fourier series sums Gaussians, and no logarithms"
        if problem.dim not in (0, *DIMENSIONS):
            return f"a Fourier series has at most 3 dimensions, and the points {problem.dim}"
        return super().refuses(problem)

    def automatic(self, problem: Problem) -> bool:
        """On CUDA, where the device finds out whether waves hold the points: see `fitting`."""
        return problem.platform == "cuda" and problem.dim in DIMENSIONS

    def handicap(self, problem: Problem) -> float:
        """More on CUDA, where the points may need more waves, or none may serve."""
        return 1 / WORTH_ON_CUDA

    def note(self, problem: Problem) -> str:
        """What the cost on CUDA takes for granted."""
        if problem.platform != "cuda":
            return ""
        return f"if {CHOICES[problem.dim][0] * WAVES[problem.dim]} waves of each coordinate hold the points"

    def trials(self, problem: Problem) -> Iterable[Trial]:
        """One block of waves, by products; on a CPU also by fast transforms, if finufft is installed."""
        dim, on_cuda = problem.dim, problem.platform == "cuda"
        if dim not in DIMENSIONS or problem.channels != 1:
            return
        num, engine = math.isqrt(problem.pairs), Fourier(tolerance=1e-9, precision=problem.dtype)
        work = 2.0 * num * dim * 2 * WAVES[dim], 2.0 * num * (2 * WAVES[dim]) ** dim  # waves, and coefficients
        yield Trial("waves" if on_cuda else f"waves in {problem.dtype}", engine, work, _one_block)
        if not on_cuda and nufft.is_installed():
            work = transform_work(problem.dtype, Sizes(num, num, dim, 1))
            yield Trial(f"nufft in {problem.dtype}", engine, work, functools.partial(_one_block, fast=True))

    def cost(self, problem: Problem) -> float:
        """On CUDA that of the fewest waves; on a CPU it depends on the points, see `cost`."""
        if problem.platform != "cuda" or problem.dim not in DIMENSIONS or not problem.known:
            return math.inf
        num = math.sqrt(problem.pairs)
        sizes = Sizes(num, num, problem.dim, problem.channels, pulls=problem.gradients, on_cuda=True)
        return estimated(problem.working, sizes, [CHOICES[problem.dim][0]])[0] / 1e6


def seen_by_waves(plan: Plan, queries: Array, keys: Array, values: Array, tau: Array) -> Plan | None:
    """The plan if waves sum Gaussians of points that are seen, for `explain`; else None."""
    if plan.waves is False or not shared(queries, keys, values, tau[..., None, None]):
        return None
    q, k, v, scale = (x.reshape(x.shape[-2:]) for x in (queries, keys, values, jnp.sqrt(tau)[..., None, None]))
    sizes, by_name = Sizes(len(q), len(k), k.shape[1], v.shape[1], on_cuda=plan.platform == "cuda"), plan.by_waves
    most = at_most(sizes.dim, plan) if by_name else most_blocks(plan.precision, sizes)
    if not most:
        return None
    given = (scale, q, k) if sizes.on_cuda else map(np.asarray, (scale, q, k))
    does, around = waves_pay_here(plan, most, plan.precision, sizes, *given)
    if not does:
        size = " × ".join(f"{x:.0f}" for x in np.asarray(scale[0] * around.extent))
        why = f"a box of {size} bandwidths takes more waves than pay: differences of coordinates sum all pairs"
        return replace(plan, waves=False, reason=why) if sizes.on_cuda else None
    some, promise = q[:: -(-len(q) // ROWS)], SUMS[plan.precision]
    of = wave_grid(most, plan, promise, scale, sizes, around)
    if not of.fits:
        engine = replace(plan.engine.rest, precision=plan.precision)
        return replace(plan, engine=engine, near=False, reason="too many waves: tiles of sorted points take it")
    _, doubt = _by_grid(of, promise, some, k, v, scale)
    found = np.asarray(of.nodes.counts) * WAVES[sizes.dim], np.round(np.asarray(scale[0] * around.extent), 1)
    waves, size = (" × ".join(map(str, x)) for x in found)
    counts, signs = list(map(float, of.nodes.counts)), 1.0
    if sizes.on_cuda:
        counts = [most if by_name else next(x for x in CHOICES[sizes.dim] if x >= max(counts))]
    else:  # values of both signs take twice as many
        signs = float(jnp.where(((v > 0).any(0) & (v < 0).any(0)).any(), 2, 1)) / OF_SIGNS
    times = estimated(plan.precision, sizes, counts)
    milliseconds = [signs * times[0] / 1e6, times[1] / 1e6]
    way = "finufft" if of.nodes.eps else "products"
    points = "nearly all points'" if around.error > 0 else "the points'"
    reason = f"{waves} waves hold {points} box of {size} bandwidths to {float(of.error):.0e} of Σ|v|; by {way} an"
    reason += f" estimated {milliseconds[0]:.3g} ms, all pairs {milliseconds[1]:.3g} ms; "
    share = f"{float(doubt.mean()):.1%} of {len(some)} queries are in doubt"
    if by_name:
        reason += f"asked for by name, {share}"
    elif sizes.on_cuda or not doubt.any():
        reason += f"{share}, and summed from differences"
    else:
        _, again = second_time(plan, False, sizes, *(np.asarray(x * scale) for x in (q, k)))
        reason += f"{share}, and summed again, from differences or by tiles, in an estimated {again / 1e6:.3g} ms more"
    engine = plan.engine if by_name else Fourier(precision=plan.precision)
    return replace(plan, engine=engine, waves=True, reason=reason)


def second_time(plan: Plan, logs: bool, sizes: Sizes, queries: np.ndarray, keys: np.ndarray) -> tuple[float, float]:
    """The share of sampled queries that waves leave in doubt, and the nanoseconds in which these are summed again.

    Points are in bandwidths, for `explain`; `sizes` are those of the sum. None of values of one sign.
    """
    precision = "float64" if logs or sizes.pulls else plan.precision
    promise, scale = (LOGS if logs else SUMS)[plan.precision], np.ones((1, 1))
    with jax.enable_x64(True):
        given = [x.astype("float64" if logs else plan.precision) for x in (scale, queries, keys)]
        most = most_blocks("float64" if logs else plan.precision, sizes)
        does, around = waves_pay_here(plan, max(1, most), precision, sizes, *given)
        if not (most and does):
            return 0.0, 0.0
        share = _share_in_doubt(plan, promise, sizes, most, around, *given)
        if share and precision == "float32" and (finer := finer_waves(plan, sizes, share, *given)) is not None:
            most, around = finer
            blocks = blocks_of(np, around.extent, tolerance_of(np, "float64", around.extent))
            time = estimated("float64", sizes, list(blocks))[0]
            left = _share_in_doubt(plan, promise, sizes, most, around, *(x.astype("float64") for x in given))
            return share, float(time) + time_of_doubt("float32", sizes, left, around.extent)
        return share, time_of_doubt(precision, sizes, share, around.extent)


def _share_in_doubt(
    plan: Plan, promise: Promise, sizes: Sizes, most: int, around: Box, scale: Any, queries: Any, keys: Any
) -> float:
    """The share of up to ROWS queries that waves leave in doubt, of sums or pulls of ones."""
    some = queries[:: -(-len(queries) // ROWS)]
    return float(_doubt(plan, promise, sizes._replace(queries=len(some), channels=1), most, around, scale, some, keys))


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _doubt(
    plan: Plan, promise: Promise, sizes: Sizes, most: int, around: Box, scale: Array, queries: Array, keys: Array
) -> Array:
    of, ones = wave_grid(most, plan, promise, scale, sizes, around), [jnp.ones_like(x[:, :1]) for x in (queries, keys)]
    own, other = Channels((GAUSS,), (1,)), NOTHING
    request = Request(other, own) if sizes.pulls else Request(own, other)
    values, *weights = ones[1], *(x if sizes.pulls else x[:, :0] for x in ones)
    values = values[:, :0] if sizes.pulls else values
    return sums_by_waves(request, of, promise, queries, keys, values, scale, *weights)[1].mean()


def _one_block(queries: Array, keys: Array, values: Array, fast: bool = False) -> Array:
    """The sum by one block of waves, by fast transforms or by products."""
    dtype, tau = queries.dtype.name, jnp.ones((1, 1), queries.dtype)
    plan = Plan("cuda" if has_cuda() else "cpu", Fourier(tolerance=1e-9, precision=dtype), "")
    of = wave_grid(1, plan, None, tau, Sizes(len(queries), len(keys), keys.shape[1], 1), box(queries, keys))
    eps = jnp.full((), nufft.LEAST[dtype], dtype) if fast else None
    of = of._replace(nodes=of.nodes._replace(eps=eps))
    return _by_grid(of, None, queries, keys, values, tau)[0].sums


def _by_grid(of: WaveGrid, promise: Promise | None, queries: Array, keys: Array, values: Array, scale: Array) -> Any:
    request = Request(Channels((GAUSS,), values.shape[1:]), NOTHING)
    return sums_by_waves(request, of, promise, queries, keys, values, scale, queries[:, :0], keys[:, :0])
