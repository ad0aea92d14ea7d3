"""Decide from the data whether a precision is too coarse, and compute the sum again if it is.

An exponent -½|a - b|² is formed as a·b - ½|a|² - ½|b|², about the center of the points. It has two errors:

    rounding of the points, u each:  u R r,      rounding of the three terms to float32:  2⁻²⁴ R².

R is the distance of points from the center and r that from each other, in bandwidths. R² bounds the second error. For
the first, a few sampled pairs give the error divided by r, which is up to √D below u R if errors of coordinates are
independent; and the largest sum gives a lower bound of r.
"""

import functools
import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import torch
from array_api_compat import array_namespace
from torch import Tensor

from . import exact
from .dtypes import EPS, Array
from .kernels import AttentionKernel, finest_kernel
from .layout import held, nonzero, squared_radius, without_nan

# The largest R² at which a reduction is as accurate as its precision promises.
REACH = {
    "rescale": {
        "float16": 2**10,
        "bfloat16": 2**8,
        "float16x2": 2**12,
        "bfloat16x2": 2**12,
        "float32": 2**11,
        "float64": 2**24,
    },
    "reweight": {  # norms in one column of half precision, or in two
        "float16": 2**5,
        "bfloat16": 2**5,
        "float16x2": 2**10,
        "bfloat16x2": 2**10,
        "float32": 2**11,
        "float64": 2**24,
    },
    "prescale": {  # exp(-½|b|²) in the range of the dtype
        "float16": 2**4,
        "bfloat16": 2**6,
        "float16x2": 2**4,
        "bfloat16x2": 2**6,
        "float32": 2**7,
        "float64": 2**9,
    },
}
# The largest R² at which CUDA's kernels keep float32's digits. Tensor cores drop bits of what they add: where one term
# is nearly all of a sum, that errs by up to 2e-7 R² by products in TF32, and by twice as much by log-sum-exps alone.
REACH_OF_CORES, REACH_OF_FINE = 2**6, 2**5
REACH_AGAIN = {"cuda": exact.REACH**2, "cpu": 2**36}  # the largest R² of a sum computed again; on a CPU in float64
# Root-mean-square errors of exponents beyond which a sum is computed again.
DOUBT = {"float16": 5e-3, "bfloat16": 4e-2, "float16x2": 4e-4, "bfloat16x2": 2e-3, "float32": 2e-5}
LOOKED_AT = 16  # sampled queries, and sampled keys
SMALLEST = 1e-37  # smaller sums have no accurate digits in float32


Compute: TypeAlias = Callable[[AttentionKernel, str], tuple[Array, ...]]  # last result: the largest sum if |v| ≤ 1


def guarded(
    method: str, kernel: AttentionKernel, points: tuple[Tensor, Tensor], compute: Compute
) -> tuple[Tensor, ...]:
    """`compute(kernel, method)`; or, if the precision is too coarse for the points, `rescale` in a finer one."""
    if kernel.device == "cuda":
        return gated(method, kernel, points, compute)
    result, reach = compute(kernel, method), squared_radius(*points)
    if method == "rescale" and kernel.dtype == "float64":  # there is nothing better
        report(reach, reach_of(method, kernel))
        return result
    if not is_doubted(method, kernel, points, reach, result[-1]):
        return result
    report(reach, REACH_AGAIN["cpu"])
    holds = kernel.dtype != "float64" and reach <= REACH["rescale"]["float32"]
    return compute(finest_kernel("cpu", "float32" if holds else "float64"), "rescale")


def gated(method: str, kernel: AttentionKernel, points: tuple[Tensor, Tensor], compute: Compute) -> tuple[Tensor, ...]:
    """`guarded` on CUDA without waiting: a second kernel, of `exact` columns, runs behind a gate that the device opens.

    PyTorch has no conditional. XLA has one, and needs no gate.
    """
    result, doubted = judged(method, kernel, points, compute)
    again = compute(replace(finest_kernel("cuda", "float32"), gate=doubted), "rescale")
    return tuple(torch.where(doubted, x, y) for x, y in zip(again, result, strict=True))


def judged(
    method: str, kernel: AttentionKernel, points: tuple[Array, Array], compute: Compute
) -> tuple[tuple[Array, ...], Array]:
    """`compute(kernel, method)` on CUDA, and whether it must be computed again.

    A later call warns of points that lie beyond the reach of the second kernel.
    """
    reach = squared_radius(*points)
    result = compute(replace(kernel, reported=reach), method)
    return result, is_doubted(method, kernel, points, reach, result[-1])


def reach_of(method: str, kernel: AttentionKernel) -> float:
    """The largest R² at which the sums of a kernel are as accurate as it promises."""
    on_cores = kernel.device == "cuda" and kernel.precision == "float32" and not kernel.exact
    most = REACH_OF_FINE if kernel.fine else REACH_OF_CORES if on_cores else math.inf
    return min(REACH[method][kernel.precision], most)


def is_doubted(
    method: str, kernel: AttentionKernel, points: tuple[Array, Array], reach: Array, largest: Array
) -> Array:
    """Whether R² is beyond the kernel's reach, or half precision has lost accuracy."""
    beyond = reach > reach_of(method, kernel)
    return beyond | doubtful(method, kernel, points, largest) if kernel.half else beyond


def doubtful(method: str, kernel: AttentionKernel, points: tuple[Array, Array], largest: Array) -> Array:
    """Whether half precision has lost accuracy, judged by the largest sum for |v| ≤ 1.

    If all sums are small, all points are at least r apart, r² ≥ -2 log(largest), and the errors of exponents grow with
    r. In `reweight` with float16, small sums are also lost beside the dummy key's weight of one.
    """
    xp = array_namespace(largest)
    apart = xp.sqrt(-2 * xp.log(xp.clip(largest, SMALLEST, 1.0)))
    lost = relative_loss(*points, kernel) * apart
    doubt = (lost > DOUBT[kernel.precision]) | (largest <= SMALLEST)
    return doubt | (largest < 2**-12) if method == "reweight" and kernel.dtype == "float16" else doubt


def relative_loss(a: Array, b: Array, kernel: AttentionKernel) -> Array:
    """The error of an exponent in half precision divided by the distance r of its points.

    It is the root mean square of 256 pairs; for two-part points the bound u² R.
    """
    xp = array_namespace(a, b)
    if kernel.parts == 2:
        return (EPS[kernel.dtype] / 2) ** 2 * xp.sqrt(squared_radius(a, b))
    a, b = (without_nan(x[..., :: max(1, x.shape[-2] // LOOKED_AT), :][..., :LOOKED_AT, :]) for x in (a, b))
    apart = a[..., :, None, :] - b[..., None, :, :]
    moved = (held(a, kernel.dtype) - a)[..., :, None, :] - (held(b, kernel.dtype) - b)[..., None, :, :]
    squared = nonzero(xp.sum(apart * apart, axis=-1))
    exponents = xp.sum(moved * (apart + moved / 2), axis=-1)
    return xp.sqrt(xp.max(xp.mean(exponents * exponents / squared, axis=(-2, -1))))


def report(reach: Tensor, most: float) -> None:
    """Warn if R² is larger than that; of R² on a device `warn_of_earlier_sums` warns later."""
    if reach.device.type != "cpu":
        report_later(reach)
    elif reach > most:
        _warn()


def report_later(reach: Tensor) -> None:
    """Remember the largest R² of a device, and tell the host without waiting; a CUDA graph may record this."""
    index = reach.device.index or 0
    if index not in _largest:
        _largest[index] = torch.zeros_like(reach, dtype=torch.float32)
    torch.maximum(_largest[index], reach, out=_largest[index])
    _on_host()[index].copy_(_largest[index], non_blocking=True)


_largest: dict[int, Tensor] = {}  # R² of the sums of a device


@functools.cache
def _on_host() -> Tensor:
    """Copies of them on the host, in registered memory; PyTorch's own pinned memory is tied to streams."""
    copies = torch.zeros(max(1, torch.cuda.device_count()))
    if runtime := torch.cuda.cudart() if torch.cuda.is_available() else None:
        runtime.cudaHostRegister(copies.data_ptr(), copies.nbytes, 0)
    return copies


def warn_of_earlier_sums() -> None:
    """Warn if an R² that has reached the host by now is larger than the second kernel's reach."""
    if _largest and (_on_host() > REACH_AGAIN["cuda"]).any():
        with torch.inference_mode():
            for x in (_on_host(), *_largest.values()):
                x.zero_()
        _warn()


def _warn() -> None:
    warnings.warn(
        "torch_backend: points of a Gauss sum lie farther from their center, in bandwidths, than its precision reaches;"
        " its result is bounded but has few right digits. Use a smaller tau, or points in one place.",
        stacklevel=2,
    )
