"""The plan of a sum: which engine sums it on one platform, and what is known of its points."""

import functools
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax

from .._arrays.devices import has_cuda
from .._arrays.points import scaled_points, squared_radius, with_norms
from .engine import HALF, Auto
from .settings import Settings

# R² up to which points are near: products about one center then give exponents, and moments for the pulls of Gaussians,
# within 1e-5 of the terms' sizes, in float64 1e-13.
NEAR = {"float32": 2.0**7, "float64": 2.0**10}
# R² must be so many times less for moments of kernels with long tails, and for moments of second order of Gaussians,
# from which gradients of τ and Stein kernels are formed.
STRICTER = 4


@dataclass(frozen=True)
class Plan:
    """How a sum is computed on one platform, and why.

    Attributes:
        platform: cpu, cuda, …
        engine: what sums, with everything that it has chosen; it may be passed as `engine`.
        reason: one sentence.
        stands_in: whether XLA replaces PyTorch's kernels on a platform other than the CPU because they cannot run
            there.
        near: whether the points lie near one another; None if the points were not examined.
        waves: whether a Fourier series sums Gaussians of points that lie anywhere; None if that depends on the points.
        blocks: of its waves on CUDA, of each coordinate; None for as many as there may be.
        apart: whether far points are summed by programs of their own; else by the caller's, in XLA alone.
    """

    platform: str
    engine: Any  # an `Engine`
    reason: str
    stands_in: bool = False
    near: bool | None = None
    waves: bool | None = None
    blocks: int | None = None
    apart: bool = False

    def with_findings(self, settings: Settings) -> "Plan":
        """The plan with what the settings know of the points; waves are for "fourier", or for "auto"."""
        open_to = self.engine.in_xla and settings.automatic and self.platform in ("cpu", "cuda")
        waves = settings.waves if open_to else self.name == "fourier"
        apart = self.platform == "cpu" and not settings.engine.alone
        return replace(self, waves=waves, apart=apart, near=settings.near, blocks=settings.blocks)

    def bare(self) -> "Plan":
        """What a sum of points that lie anywhere needs of the plan, so that plans share its programs."""
        by_name = self.name == "differences" or self.by_waves
        engine = self.engine if by_name else Auto(precision=self.precision)
        return replace(self, engine=engine, reason="", stands_in=False, near=None, apart=False)

    @property
    def name(self) -> str:
        """The name of the engine."""
        return self.engine.name

    @property
    def by_waves(self) -> bool:
        """Whether a Fourier series sums all points, as is asked for by name."""
        return self.name == "fourier" and self.waves is True

    @property
    def precision(self) -> str:
        """The precision of the engine."""
        return self.engine.precision or ""

    @property
    def reach(self) -> float:
        """The largest R² that the engine sums; points beyond it count as anywhere."""
        return -math.inf if self.near is False else self.engine.reach(self.platform, self.near)

    def distance(self, queries: jax.Array, keys: jax.Array, _: jax.Array, tau: jax.Array) -> tuple[float, str]:
        """R², and in words how far the points lie from their center."""
        squared = float(squared_radius(*with_norms(*scaled_points(queries, keys, tau))))
        size = f"points lie {math.sqrt(squared):.0f} bandwidths from their center"
        return squared, f"{size}, farther than {self.precision} reaches"


def takes_half(settings: Settings) -> bool:
    """Whether the sum may be in half precision; the center is then the mean of all points."""
    if settings.engine.precision in (*HALF, "float32", "float64"):
        return settings.engine.precision in HALF
    return has_cuda() and (settings.automatic or not settings.engine.in_xla)


@functools.cache
def warn_once(reason: str) -> None:
    """Warn once for each reason that XLA stands in."""
    warnings.warn(f"jaxgauss: {reason}; XLA sums instead. Ask for that by engine='blocked'.", stacklevel=4)


def in_precision(function: Callable[..., tuple[jax.Array, ...]]) -> Callable[..., tuple[jax.Array, ...]]:
    """`function` of a plan and operands, in the plan's precision; the results have the operands' dtype."""

    def compute(plan: Plan, *operands: jax.Array) -> tuple[jax.Array, ...]:
        results = function(plan, *(x.astype(plan.precision) for x in operands))
        return tuple(x.astype(operands[0].dtype) for x in results)

    return compute
