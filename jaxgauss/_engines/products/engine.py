"""Products about one center: exponents by one matrix product, for points near one another."""

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from ..._arrays.devices import vary_like
from ..._arrays.points import (
    Scaled,
    aligned_sizes,
    are_within,
    by_point,
    scaled_points,
    with_norms,
)
from ..._arrays.shapes import are_known
from ..._kernels.kernels import GAUSS, Kernel
from ..branches import as_vectors, but_not, one_of_two
from ..clusters.engine import CLUSTERS
from ..costs import columns, estimates, time_on_cuda, work_of_pairs
from ..engine import Engine, Problem, Trial
from ..fourier.cost import are_for_waves
from ..gradients import in_shapes
from ..means import blocked_means, means_in_one_pass
from ..plan import NEAR, STRICTER, Plan, in_precision
from ..request import Channels, PairSums, Request
from ..scopes import scope
from ..tiles import CUDA_TILE, ONE_PASS, TILE
from .gaussian import blocked_pullback, scaled_sum, shares_norms
from .pair_sums import product_pullback, sums_by_products, within

# Another kernel takes so many times as long as a Gaussian, on CUDA more with gradients.
HEAVIER = {"cpu": 1.5, "cuda": 2.0}


@dataclass(frozen=True, repr=False)
class Blocked(Engine):
    """Products about one center, a tile of the M×N matrix at a time: linear memory, in XLA alone.

    Exponents are one matrix product, accurate for points within some bandwidths of their center (R² ≤ 128 in float32,
    1024 in float64). Farther points are summed by clusters. On CUDA exponents are from differences of coordinates.
    Every transformation of JAX works, `jax.export` included.

    Args:
        precision: float32 or float64; None: the dtype of the points.
    """

    dense: ClassVar[bool] = False
    alone = True
    anywhere = False

    def refuses(self, problem: Problem) -> str | None:
        """Logarithms of other kernels, which are summed from differences."""
        if problem.logs and problem.kernel != GAUSS:
            return "logarithms of other kernels than the Gaussian have no products"
        return super().refuses(problem)

    def automatic(self, problem: Problem) -> bool:
        """For as many pairs as the name says."""
        tile = CUDA_TILE if problem.platform == "cuda" else TILE
        return self.dense == (are_known(problem.pairs) and problem.pairs <= tile.entries)

    def cost(self, problem: Problem) -> float:
        """By the columns of both products."""
        if not problem.known:
            return math.inf
        size = problem.pairs, problem.dim, problem.channels
        times = 1 if problem.kernel == GAUSS else HEAVIER.get(problem.platform, 1)
        if problem.platform == "cuda":
            return times * time_on_cuda(self.name, *size, problem.gradients)[0]
        return times * estimates((f"xla in {self.precision}",), *size)[0][0]

    def trials(self, problem: Problem) -> Iterable[Trial]:
        """On a CPU the blocked sum; on CUDA also the dense one, where "auto" may take it."""
        on_cuda = problem.platform == "cuda"
        if self.dense and not (on_cuda and self.automatic(problem)):
            return
        row, precision = (self.name, "float32") if on_cuda else (f"xla in {problem.dtype}", problem.dtype)
        work = work_of_pairs(problem.pairs, columns(row, problem.dim, problem.channels))
        yield Trial(row, replace(self, precision=precision), work)

    def reach(self, platform: str, near: bool | None) -> float:
        """As far as products have digits; on CUDA, where nothing may wait for the device, XLA takes differences."""
        if platform == "cuda":
            return -math.inf
        return math.inf if near else NEAR.get(self.precision or "", math.inf)

    def sums(
        self, plan: Plan, near: bool | None, *operands: jax.Array, moments: int = 0, with_log: bool = False
    ) -> tuple[jax.Array, ...]:
        """Σ_n Φ v_n; nothing is kept for the pullback."""
        return _near_or_far(plan, near, functools.partial(_near_sums, moments), CLUSTERS.sums, operands)

    def pullback(self, plan: Plan, near: bool | None, *operands: jax.Array) -> tuple[jax.Array, ...]:
        """Gradients of Σ_m ⟨g_m, s_m⟩ in one pass."""
        return _near_or_far(plan, near, _near_pullback, CLUSTERS.pullback, operands, pulls=True)

    def log_means(
        self, plan: Plan, near: bool | None, *operands: jax.Array, kernel: Kernel = GAUSS
    ) -> tuple[jax.Array, ...]:
        """By `means_in_one_pass` where enough pairs pay for two programs; else by `blocked_means`."""
        anywhere = functools.partial(CLUSTERS.log_means, kernel=kernel)
        return _near_or_far(plan, near, _near_log_means, anywhere, operands)

    def pair_sums(self, plan: Plan, request: Request, *operands: jax.Array) -> PairSums:
        """By products about one center for near points, else by clusters."""

        def near(*operands: jax.Array) -> PairSums:
            found = sums_by_products(request, *operands, dense=self.dense)
            return jax.tree.map(lambda x: vary_like(x, operands), found)

        return _pairs(plan, request, near, functools.partial(CLUSTERS.pair_sums, plan, request), *operands)

    def pair_pullback(
        self, plan: Plan, channels: Channels, *operands: jax.Array, with_tau: bool = True, others: bool = False
    ) -> tuple[jax.Array, ...]:
        """With S_mn = Σ_κ ψ(u) ⟨g_m, v_n⟩, ψ = -2κ', all from one pass; the gradient of τ is valid only `with_tau`.

        dq = τ Σ_n S (k - q), dk = τ Σ_m S (q - k), dτ = -½ Σ S ‖q - k‖², and dv = Σ_m κ g_m.
        """
        request, (queries, keys, values, tau, g) = Request(channels, channels, with_tau, others=others), operands

        def near(*_: jax.Array) -> tuple[jax.Array, ...]:
            a, b = with_norms(*scaled_points(queries, keys, tau, base_2=False))
            how = {"dense": self.dense, "with_tau": with_tau, "others": others}
            da, db, dv, d_scale = product_pullback(channels, a, b, values, g, **how)
            scale = by_point(jnp.sqrt(tau), queries)
            return in_shapes((scale * da, scale * db, dv, d_scale / (2 * tau)), operands)

        anywhere = functools.partial(CLUSTERS.pair_pullback, plan, channels, with_tau=with_tau, others=others)
        return _pairs(plan, request, near, anywhere, *operands)


@dataclass(frozen=True, repr=False)
class Dense(Blocked):
    """Products about one center with up to all of the M×N matrix in memory, as plain JAX has it; else as `Blocked`.

    Args:
        precision: float32 or float64; None: the dtype of the points.
    """

    dense = True


def _near_or_far(
    plan: Plan, near: bool | None, summed: Callable, far: Callable, operands: tuple[jax.Array, ...], pulls: bool = False
) -> tuple[jax.Array, ...]:
    """`summed` if the points are near, else `far`. `near`: whether they are known to be; None if not."""
    if not near and plan.reach == -math.inf:
        return far(plan, None, *operands)
    return in_precision(functools.partial(_by_points, near, summed, far, pulls))(plan, *operands)


def _by_points(
    near: bool | None, summed: Callable, far: Callable, pulls: bool, plan: Plan, *operands: jax.Array
) -> tuple[jax.Array, ...]:
    """The points are scaled to find out whether they are near, and again for the sum unless that `shares_norms`."""
    queries, keys, values, tau, *_ = operands
    here = scope("engine", str(plan.engine))(functools.partial(summed, plan))

    def scaled(*operands: jax.Array) -> tuple[Scaled, ...]:
        queries, keys, _, tau, *_ = operands
        return with_norms(*scaled_points(queries, keys, tau))

    if near:
        return here(scaled(*operands), *operands)
    a, b = scaled(*operands)
    is_near = plan.reach == math.inf or are_within(plan.reach, a, b, values)
    is_near = but_not(is_near, are_for_waves(plan, *operands[:4], pulls=pulls))
    pairs, *_ = aligned_sizes(queries, keys, values, tau)
    results = one_of_two(
        is_near,
        lambda points, *x: as_vectors(here(points or scaled(*x), *x)),
        lambda _, *x: as_vectors(far(plan, None, *x)),
        (a, b) if shares_norms(pairs, values) else None,
        *operands,
    )
    return tuple(x if x.ndim == queries.ndim else x[..., None] for x in results)


def _pairs(plan: Plan, request: Request, near: Callable, anywhere: Callable, *operands: jax.Array) -> Any:
    """One of two functions, by the points; for Gaussians `anywhere`, because near ones have engines of their own.

    Sums over others have none: they are by products unless waves take less time.
    """
    queries, keys, values, tau, *weights = operands
    near = scope("engine", str(plan.engine))(near)
    if request.kinked or (GAUSS in request.kernels and not request.others):
        return anywhere(*operands)
    reach, slope, weighed = plan.reach, None, values
    if request.pulls.kernels:
        slopes = [kernel.slope for kernel in request.pulls.kernels]
        strict = request.spread or {*request.kernels} != {GAUSS}
        reach, slope = reach / (STRICTER if strict else 1), lambda u: functools.reduce(jnp.add, [f(u) for f in slopes])
        weighed = jnp.abs(weights[1] if len(weights) > 1 else values).max(-1, keepdims=True, initial=0)
    is_near = within(reach, queries, keys, tau, slope, weighed)
    if {*request.kernels} == {GAUSS} and is_near is not False:
        given = queries, keys, weighed, tau
        is_near = but_not(is_near, are_for_waves(plan, *given, pulls=slope is not None))
    return one_of_two(is_near, near, anywhere, *operands)


def _near_sums(moments: int, plan: Plan, points: tuple[Scaled, Scaled], *operands: jax.Array) -> tuple[jax.Array, ...]:
    return (scaled_sum(*points, operands[2], dense=plan.name == "dense", moments=moments),)


def _near_pullback(plan: Plan, points: tuple[Scaled, Scaled], *operands: jax.Array) -> tuple[jax.Array, ...]:
    return blocked_pullback(*points, *operands[:5], dense=plan.name == "dense")


def _near_log_means(plan: Plan, points: tuple[Scaled, Scaled], *operands: jax.Array) -> tuple[jax.Array, ...]:
    pairs, *_ = aligned_sizes(*operands[:4])
    if (plan.platform, plan.precision) == ("cpu", "float32") and are_known(pairs) and pairs >= ONE_PASS:
        return means_in_one_pass(*points, *operands, is_apart=plan.apart)
    return blocked_means(*operands, dense=plan.name == "dense")
