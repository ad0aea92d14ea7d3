"""What `method`, `precision` and `backend` = "auto" stand for, on each platform."""

import contextlib
import functools
import math
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import jax

from .._arrays.devices import has_cuda
from .._arrays.shapes import are_known
from .._checks.settings import Settings
from . import bridge
from .costs import CARD, HALVES, WORTH, columns, cuda_costs, estimates, kernel_columns, kernel_engine
from .fourier.frequencies import DIMENSIONS, MOST, WAVES
from .tiles import CUDA_TILE, TILE

if TYPE_CHECKING:
    from torch_backend import AttentionKernel

from .._kernels.kernels import GAUSS
from .._kernels.mixtures import Mixture, mixture

IN_XLA_ALONE = ("dense", "blocked", "differences")
NATIVE = (*IN_XLA_ALONE, "fourier")
# R² up to which points are near: products about one center then give exponents, and moments for the pulls of Gaussians,
# within 1e-5 of the terms' sizes, in float64 1e-13.
NEAR = {"float32": 2.0**7, "float64": 2.0**10}
# R² must be so many times less for moments of kernels with long tails, and for moments of second order of Gaussians,
# from which gradients of τ and Stein kernels are formed.
STRICTER = 4
PASSES = 3  # logarithms and means take so many times as long as a sum in XLA on CUDA: an estimate
PULL = 10  # columns on CUDA, see `time_on_cuda`
HEAVIER = 2.0  # another kernel in XLA on CUDA: 1.5 times a Gaussian's time, as on CPUs, and more with gradients
# Errors of a mixture, relative to κ(0): below the error of each precision.
TOLERANCES = {"float16": 1e-4, "float16x2": 1e-4, "bfloat16": 1e-3, "bfloat16x2": 1e-3}
FINEST = 1e-6  # in float32 and float64


@dataclass(frozen=True)
class Plan:
    """How a Gauss sum is computed on one platform, and why.

    Attributes:
        platform: cpu, cuda, …
        method: reweight, prescale or rescale (PyTorch's attention kernel); dense, blocked, differences, anywhere or
            fourier.
        precision: of the products: float16, bfloat16, float16x2, bfloat16x2, float32 or float64.
        backend: the attention kernel (cpu, flash, efficient, cudnn), or xla.
        reason: one sentence.
        stands_in: whether XLA replaces PyTorch's kernels on a platform other than the CPU because they cannot run
            there.
        near: whether the points lie near one another; None if the points were not examined.
        waves: whether a Fourier series sums Gaussians of points that lie anywhere; None if that depends on the points.
        tolerance: of the Fourier series, relative to Σ|v|; None for the precision that sums promise.
        blocks: of its waves on CUDA, of each coordinate; None for as many as there may be.
        apart: whether far points are summed by programs of their own; else by the caller's, in XLA alone.
    """

    platform: str
    method: str
    precision: str
    backend: str
    reason: str
    stands_in: bool = False
    near: bool | None = None
    waves: bool | None = None
    tolerance: float | None = None
    blocks: int | None = None
    apart: bool = False

    def with_findings(self, settings: Settings) -> "Plan":
        """The plan with what the settings know of the points; waves are for "fourier", or for "auto" on a CPU."""
        open_to = self.native and settings.method == "auto" and self.platform == "cpu"
        waves = self.method == "fourier" or (settings.waves if open_to else False)
        apart = self.platform == "cpu" and settings.method not in IN_XLA_ALONE
        found = {"near": settings.near, "tolerance": settings.tolerance, "blocks": settings.blocks}
        return replace(self, waves=waves, apart=apart, **found)

    def bare(self) -> "Plan":
        """What a sum of points that lie anywhere needs of the plan, so that plans share its programs."""
        method = self.method if self.method in ("differences", "fourier") else "blocked"
        return replace(self, method=method, backend="xla", reason="", stands_in=False, near=None, apart=False)

    @property
    def reach(self) -> float:
        """The largest R² that the plan's method sums; points beyond it count as anywhere."""
        if self.method in ("differences", "fourier") or self.near is False:
            return -math.inf
        if self.platform == "cuda":  # nothing may wait for the device: attention has a gate, XLA takes differences
            return -math.inf if self.native else math.inf
        if self.near:
            return math.inf
        return NEAR.get(self.precision, math.inf)  # half precision has a guard of its own

    @property
    def native(self) -> bool:
        """Whether XLA computes it, without PyTorch."""
        return self.method in NATIVE


def gauss_plan(settings: Settings, platform: str, pairs: int, dim: int, channels: int) -> Plan:
    """The plan of a Gauss sum. ValueError if what was asked for by name cannot run on the platform."""
    where = f"`jaxgauss.{settings.function}`"
    working = "float64" if "float64" in (settings.dtype, settings.precision) else "float32"
    if settings.method in NATIVE:
        if settings.backend != "auto" or settings.precision not in ("auto", "float32", "float64"):
            raise ValueError(
                f"{where}: `precision` must be 'float32' or 'float64', and `backend` 'auto', in XLA; got precision"
                f" {settings.precision!r}, backend {settings.backend!r}, method {settings.method!r}. Use method='auto'."
            )
        if settings.method == "fourier" and dim not in (0, *DIMENSIONS):
            raise ValueError(
                f"{where}: `method` must be another in more than 3 dimensions; got 'fourier' in {dim}. Use 'auto'."
            )
        precision = working if settings.precision == "auto" else settings.precision
        if precision == "float64" and not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
            raise ValueError(
                f"{where}: method {settings.method!r} in precision 'float64' needs JAX's 64-bit mode; got it switched"
                " off. Use method='rescale', or jax.config.update('jax_enable_x64', True)."
            )
        return Plan(platform, settings.method, precision, "xla", "asked for by name")

    obstacle = None
    if not are_known(pairs):
        obstacle = "PyTorch's kernels take no symbolic shapes"
    elif not bridge.serves(platform):
        obstacle = f"the PyTorch installed here does not run on JAX's platform {platform!r}"
    elif platform == "cuda" and (settings.dtype if settings.precision == "auto" else settings.precision) == "float64":
        obstacle = "PyTorch has no fused attention in float64 on CUDA"
    if obstacle is not None:
        if not settings.automatic:
            raise ValueError(
                f"{where}: {obstacle}; got method {settings.method!r}, precision {settings.precision!r}, backend"
                f" {settings.backend!r}. Leave them on 'auto', or use method='blocked'."
            )
        return Plan(platform, "blocked", working, "xla", obstacle, stands_in=platform != "cpu")
    if platform == "cuda":
        return _on_cuda(settings, working, pairs, dim, channels)

    own = "float64" if settings.dtype == "float64" else "float32"
    (in_xla, by_kernel), row = estimates((f"xla in {own}", f"kernel in {own}"), pairs, dim, channels)
    if settings.method == settings.backend == "auto" and settings.precision in ("auto", own):
        reason = f"an estimated {in_xla:.3g} ms in XLA, {by_kernel:.3g} ms by PyTorch's kernel ({row})"
        if in_xla <= WORTH * by_kernel:
            in_half, _ = estimates(("kernel in bfloat16",), pairs, dim, channels)
            reason += "".join(f"; {x:.3g} ms in bfloat16" for x in in_half if own == "float32" and WORTH * x < in_xla)
            return Plan(platform, "dense" if pairs <= TILE.entries else "blocked", own, "xla", reason)
    else:
        asked, _ = estimates((f"kernel in {settings.precision}",), pairs, dim, channels)
        reason = "asked for by name" + "".join(f", an estimated {x:.3g} ms" for x in asked)
        reason += f"; {own} takes an estimated {min(in_xla, by_kernel):.3g} ms ({row})"
    names = settings.backend, settings.precision
    kernel = bridge.select_kernel(*names, platform, settings.dtype, dim, settings.function)
    method = "rescale" if settings.method == "auto" else settings.method
    return Plan(platform, method, kernel.precision, kernel.name, reason)


def _on_cuda(settings: Settings, working: str, pairs: int, dim: int, channels: int) -> Plan:
    """The plan on CUDA: an attention kernel, or XLA if that is estimated to be faster."""
    precision, card = settings.precision, bridge.card()
    if precision == "auto" and settings.matmul_precision in ("high", "highest"):
        split = "bfloat16x2" if settings.dtype == "bfloat16" else "float16x2"
        precision = split if settings.matmul_precision == "high" else "float32"
    kernel = bridge.select_kernel(settings.backend, precision, "cuda", settings.dtype, dim, settings.function)
    if settings.method != "auto" or settings.backend != "auto":
        method = "rescale" if settings.method == "auto" else settings.method
        return Plan("cuda", method, kernel.precision, kernel.name, f"asked for by name, on {card}")

    kernels = [kernel]
    with contextlib.suppress(ValueError):  # points may be too wide for cuDNN, or of another dtype
        if kernel.half and card.prefers_cudnn:
            kernels.append(bridge.select_kernel("cudnn", kernel.precision, "cuda", settings.dtype, dim))
    size = pairs, dim, channels, settings.pulls
    times = {x: time_on_cuda(x, *size)[0] for x in kernels}
    kernel, native = min(times, key=times.__getitem__), "dense" if pairs <= CUDA_TILE.entries else "blocked"
    in_xla, basis = time_on_cuda(native, *size)
    reason = f"{in_xla:.3g} ms in XLA, {times[kernel]:.3g} ms by {kernel} ({basis}: {card})"
    if settings.kernel == GAUSS and dim in DIMENSIONS:
        by_waves = time_of_waves_on_cuda(2 * math.sqrt(pairs), dim, channels, MOST[dim])
        if by_waves < min(in_xla, times[kernel]):
            reason += f"; {by_waves:.3g} ms by method 'fourier', if it takes all of its waves"
    if in_xla <= _worth(settings, kernel) * times[kernel] and settings.precision in ("auto", "float32"):
        return Plan("cuda", native, working, "xla", reason)
    return Plan("cuda", "rescale", kernel.precision, kernel.name, reason)


def _worth(settings: Settings, kernel: "AttentionKernel") -> float:
    """How many times as fast as XLA a kernel must be: more if it loses digits, less for logarithms and means.

    Mostly logarithms and means ask for float32; for them XLA needs another pass, which finds the largest terms.
    """
    if kernel.precision == "float32":
        return 1 / PASSES
    return HALVES if settings.dtype == "float32" and kernel.precision in ("float16", "bfloat16") else 1.0


def time_on_cuda(
    engine: "AttentionKernel | str", pairs: int, dim: int, channels: int, pulls: bool = False
) -> tuple[float, str]:
    """Milliseconds of a sum, with gradients if there are `pulls`, by a kernel or in XLA; and where the costs are from.

    In XLA, from differences of coordinates, pulls are no products: on an H200 a coordinate of them takes as long as ten
    columns. By a kernel gradients are a second sum for one channel, and a backward pass for many.
    """
    costs, are_measured = cuda_costs(bridge.card().name)
    if isinstance(engine, str):
        nanoseconds = costs[engine].nanoseconds(pairs, columns(engine, dim, channels) + PULL * dim * pulls)
    else:
        nanoseconds = costs[kernel_engine(engine)].nanoseconds(pairs, kernel_columns(engine, dim, channels))
        nanoseconds *= 1 if not pulls else 2 if channels == 1 else 3
    return nanoseconds / 1e6, "measured" if are_measured else f"measured on an {CARD}, not here"


def time_of_waves_on_cuda(points: float, dim: int, channels: int, blocks: int) -> float:
    """Milliseconds of a sum by waves, with so many blocks of each coordinate, at queries and keys together."""
    costs, _ = cuda_costs(bridge.card().name if bridge.serves("cuda") else CARD)
    cost, waves = costs["waves"], 2 * WAVES[dim] * blocks
    return (cost.call + channels * points * (cost.pair * dim * waves + cost.column * waves**dim)) / 1e6


def takes_half(settings: Settings) -> bool:
    """Whether the sum may be in half precision; the center is then the mean of all points."""
    if settings.precision == "auto":
        return settings.method not in NATIVE and has_cuda()
    return settings.precision not in ("float32", "float64")


@functools.cache
def warn_once(reason: str) -> None:
    """Warn once for each reason that the blocked JAX sum stands in."""
    warnings.warn(f"jaxgauss: {reason}; the blocked JAX sum stands in (method='blocked').", stacklevel=4)


def plan_of(settings: Settings, platform: str, pairs: int, dim: int, channels: int) -> Plan:
    """The plan of a sum of the settings' kernel. ValueError if what was asked for by name cannot run."""
    size = pairs, dim, channels
    if settings.kernel == GAUSS or settings.method in NATIVE:
        return gauss_plan(settings, platform, *size)
    in_xla = settings.precision in ("auto", "float32", "float64") and settings.backend == "auto"
    if settings.method == "auto" and in_xla:
        exact = replace(exact_plan(settings, platform, pairs), reason="XLA evaluates the kernel itself")
        if platform != "cuda" or not are_known(pairs) or exact.precision == "float64":
            return exact
        if settings.kernel.kinked:
            return replace(exact, reason=f"{exact.reason}: distances need all digits")
        return _cheaper(settings, exact, *size)
    return _of_mixture(settings, platform, *size)


def exact_plan(settings: Settings, platform: str, pairs: int) -> Plan:
    """The plan that evaluates κ itself in XLA, whatever the kernel. ValueError if its precision cannot run."""
    tile = CUDA_TILE if platform == "cuda" else TILE
    native = "dense" if are_known(pairs) and pairs <= tile.entries else "blocked"
    method = settings.method if settings.method in NATIVE else native
    return gauss_plan(replace(settings, method=method), platform, pairs, 0, 0)  # in XLA D and C do not matter


def mixture_of(settings: Settings, precision: str) -> Mixture:
    """The mixture that stands for the kernel in a precision; ValueError if it has none."""
    found = mixture(settings.kernel, TOLERANCES.get(precision, FINEST))
    if found is None:
        raise ValueError(
            f"`jaxgauss.{settings.function}`: `method`, `precision` and `backend` must be ones of XLA for a kernel"
            f" without a mixture of Gaussians; got kernel {settings.kernel!r}, method {settings.method!r}, precision"
            f" {settings.precision!r}, backend {settings.backend!r}. Leave them on 'auto'."
        )
    return found


def of_gaussians(settings: Settings) -> Settings:
    """The settings of the Gauss sums that a mixture is made of."""
    return replace(settings, kernel=GAUSS, method="auto", near=None, waves=None)  # found for another τ


def _of_mixture(settings: Settings, platform: str, pairs: int, dim: int, channels: int) -> Plan:
    inner = gauss_plan(of_gaussians(settings), platform, pairs, dim, channels)
    found = mixture_of(settings, inner.precision)
    inner = gauss_plan(of_gaussians(settings), platform, pairs * found.terms, dim, channels)
    return replace(inner, method="mixture", reason=f"{found}, each by {inner.method}: {inner.reason}")


def _cheaper(settings: Settings, exact: Plan, pairs: int, dim: int, channels: int) -> Plan:
    """The plan of the mixture on CUDA if it is estimated to be faster than κ itself, else that of κ."""
    if mixture(settings.kernel, FINEST) is None:
        return exact
    by_mixture = _of_mixture(settings, "cuda", pairs, dim, channels)
    if by_mixture.backend == "xla":
        return exact
    terms = mixture_of(settings, by_mixture.precision).terms
    kernel = bridge.select_kernel(by_mixture.backend, by_mixture.precision, "cuda", settings.dtype, dim)
    milliseconds, basis = time_on_cuda(kernel, pairs * terms, dim, channels)
    in_xla = HEAVIER * time_on_cuda(exact.method, pairs, dim, channels)[0]
    reason = f"{in_xla:.3g} ms in XLA, {milliseconds:.3g} ms by a mixture ({basis})"
    if in_xla <= milliseconds:
        return replace(exact, reason=reason)
    return replace(by_mixture, reason=f"{by_mixture.reason}; {reason}")
