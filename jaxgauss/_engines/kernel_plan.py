"""What a sum of any radial kernel is computed by: κ itself in XLA, or a mixture of Gaussians by attention kernels."""

from dataclasses import replace

from .._checks.settings import Settings, are_known
from .._kernels.kernels import GAUSS
from .._kernels.mixtures import Mixture, mixture
from . import bridge
from .plan import NATIVE, Plan, plan, time_on_cuda
from .tiles import CUDA_TILE, TILE

HEAVIER = 1.5  # times as long as a Gaussian takes another kernel in XLA: measured on CPUs, on CUDA an estimate
# Errors of a mixture, relative to κ(0), that are below those of a precision.
TOLERANCES = {"float16": 1e-4, "float16x2": 1e-4, "bfloat16": 1e-3, "bfloat16x2": 1e-3}
FINEST = 1e-6  # of float32 and float64


def kernel_plan(settings: Settings, platform: str, pairs: int, dim: int, channels: int) -> Plan:
    """`plan`, of a sum of the settings' kernel. ValueError if what was asked for by name cannot run."""
    size = pairs, dim, channels
    if settings.kernel == GAUSS or settings.method in NATIVE:
        return plan(settings, platform, *size)
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
    """That of κ itself, in XLA, whatever the kernel. ValueError if its precision cannot run."""
    tile = CUDA_TILE if platform == "cuda" else TILE
    native = "dense" if are_known(pairs) and pairs <= tile.entries else "blocked"
    method = settings.method if settings.method in NATIVE else native
    return plan(replace(settings, method=method), platform, pairs, 0, 0)  # in XLA no matter how wide


def mixture_of(settings: Settings, precision: str) -> Mixture:
    """The mixture that stands for the kernel where sums are in a precision; ValueError if it has none."""
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
    return replace(settings, kernel=GAUSS, method="auto", near=None, waves=None)  # of other bandwidths


def _of_mixture(settings: Settings, platform: str, pairs: int, dim: int, channels: int) -> Plan:
    inner = plan(of_gaussians(settings), platform, pairs, dim, channels)
    found = mixture_of(settings, inner.precision)
    inner = plan(of_gaussians(settings), platform, pairs * found.terms, dim, channels)
    return replace(inner, method="mixture", reason=f"{found}, each by {inner.method}: {inner.reason}")


def _cheaper(settings: Settings, exact: Plan, pairs: int, dim: int, channels: int) -> Plan:
    """On CUDA: the mixture, if it is estimated to be cheaper than κ itself."""
    if mixture(settings.kernel, FINEST) is None:
        return exact
    by_mixture = _of_mixture(settings, "cuda", pairs, dim, channels)
    if by_mixture.backend == "xla":
        return exact
    terms = mixture_of(settings, by_mixture.precision).terms
    kernel = bridge.backend().select_kernel(by_mixture.backend, by_mixture.precision, "cuda", settings.dtype, dim)
    milliseconds, basis = time_on_cuda(kernel, pairs * terms, dim, channels)
    in_xla = HEAVIER * time_on_cuda(exact.method, pairs, dim, channels)[0]
    reason = f"{in_xla:.3g} ms in XLA, {milliseconds:.3g} ms by a mixture ({basis})"
    if in_xla <= milliseconds:
        return replace(exact, reason=reason)
    return replace(by_mixture, reason=f"{by_mixture.reason}; {reason}")
