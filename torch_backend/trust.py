"""What a precision holds, and what is done with points that it does not: decided here, from the data.

An exponent -½|a - b|² is formed as a·b - ½|a|² - ½|b|², about the center of the points. Of its error

    rounding of the points, u each:  u R r,      rounding of the three terms to float32:  2⁻²⁴ R²,

R is how far points lie from the center and r how far from each other, in bandwidths. Both are read off cheaply: R²
bounds what can be lost, and how small the largest sum is tells r. That is less than the bound by up to √D, where errors
of coordinates are independent, and by nothing where coordinates have few values: so a few pairs are looked at.
"""

import logging
import threading
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import torch
from array_api_compat import array_namespace
from torch import Tensor

from .arrays import EPS, Array, held, nonzero, without_nan
from .kernels import Kernel, wide_kernel
from .layout import half_squared_norms

# The largest R² at which a reduction keeps the promise of its precision.
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
REACH_AGAIN = {"cuda": 2**16, "cpu": 2**36}  # R² of float32 after half precision, of float64 after float32
# Root-mean-square errors of exponents beyond which a sum is computed again.
DOUBT = {"float16": 5e-3, "bfloat16": 4e-2, "float16x2": 4e-4, "bfloat16x2": 2e-3}
LOOKED_AT = 16  # sampled queries, and sampled keys
SMALLEST = 1e-37  # smaller sums have no accurate digits in float32


Compute: TypeAlias = Callable[[Kernel, str], tuple[Array, ...]]  # last result: the largest sum if |v| ≤ 1


def squared_reach(a: Array, b: Array) -> Array:
    """R²: the largest |a|² or |b|²."""
    xp = array_namespace(a, b)
    a, b = (2 * xp.max(without_nan(half_squared_norms(x))) for x in (a, b))
    return xp.maximum(a, b)


def guarded(method: str, kernel: Kernel, points: tuple[Tensor, Tensor], compute: Compute) -> tuple[Tensor, ...]:
    """`compute(kernel, method)`, or `compute(kernel)` by `rescale` where the precision does not hold the points."""
    if kernel.device == "cuda":
        return gated(method, kernel, points, compute)
    result, reach = compute(kernel, method), squared_reach(*points)
    if method == "rescale" and kernel.dtype == "float64":  # there is nothing better
        report(reach > REACH[method][kernel.precision])
        return result
    if not is_doubted(method, kernel, points, reach, result[-1]):
        return result
    report(reach > REACH_AGAIN["cpu"])
    holds = kernel.dtype != "float64" and reach <= REACH["rescale"]["float32"]
    return compute(wide_kernel("cpu", "float32" if holds else "float64"), "rescale")


def gated(method: str, kernel: Kernel, points: tuple[Array, Array], compute: Compute) -> tuple[Array, ...]:
    """The same on CUDA, where nothing waits: a second kernel, in float32, is launched behind a gate.

    The device opens the gate. What float32 does not hold is reported later.
    """
    reach = squared_reach(*points)
    if method == "rescale" and not kernel.half:  # there is nothing better
        return compute(replace(kernel, alarm=reach > REACH[method][kernel.precision]), method)
    result = compute(kernel, method)
    gate = is_doubted(method, kernel, points, reach, result[-1])
    again = compute(replace(wide_kernel("cuda", "float32"), gate=gate, alarm=reach > REACH_AGAIN["cuda"]), "rescale")
    xp = array_namespace(reach)
    return tuple(xp.where(gate, x, y) for x, y in zip(again, result, strict=True))


def is_doubted(method: str, kernel: Kernel, points: tuple[Array, Array], reach: Array, largest: Array) -> Array:
    """Whether points at R² lie beyond the kernel's precision, or half precision has lost digits."""
    beyond = reach > REACH[method][kernel.precision]
    return beyond | doubtful(method, kernel, points, largest) if kernel.half else beyond


def doubtful(method: str, kernel: Kernel, points: tuple[Array, Array], largest: Array) -> Array:
    """Whether half precision has lost digits, by the largest of the sums (of values of at most one).

    Where all of them are small, all that meets is far apart, r² ≥ -2 log(largest), and what exponents of other pairs
    have lost, in proportion to how far apart these are, is lost there. In `reweight` a sum also stands beside a dummy
    of weight one, in float16.
    """
    xp = array_namespace(largest)
    apart = xp.sqrt(-2 * xp.log(xp.clip(largest, SMALLEST, 1.0)))
    lost = relative_loss(*points, kernel) * apart
    doubt = (lost > DOUBT[kernel.precision]) | (largest <= SMALLEST)
    return doubt | (largest < 2**-12) if method == "reweight" and kernel.dtype == "float16" else doubt


def relative_loss(a: Array, b: Array, kernel: Kernel) -> Array:
    """What half precision moves an exponent by, over how far its points lie apart: the root mean square of 256 pairs.

    Of split points its bound, u² R.
    """
    xp = array_namespace(a, b)
    if kernel.parts == 2:
        return (EPS[kernel.dtype] / 2) ** 2 * xp.sqrt(squared_reach(a, b))
    a, b = (without_nan(x[..., :: max(1, x.shape[-2] // LOOKED_AT), :][..., :LOOKED_AT, :]) for x in (a, b))
    apart = a[..., :, None, :] - b[..., None, :, :]
    moved = (held(a, kernel.dtype) - a)[..., :, None, :] - (held(b, kernel.dtype) - b)[..., None, :, :]
    squared = nonzero(xp.sum(apart * apart, axis=-1))
    exponents = xp.sum(moved * (apart + moved / 2), axis=-1)
    return xp.sqrt(xp.max(xp.mean(exponents * exponents / squared, axis=(-2, -1))))


def report(flag: Tensor) -> None:
    """Warn if the flag is true; where it is on a device, see `report_later`."""
    if flag.device.type != "cpu":
        report_later(flag)
    elif flag:
        _warn()


_pending: deque = deque()
_one_at_a_time = threading.Lock()  # each device has its own thread


def report_later(flag: Tensor) -> None:
    """Warn of flags of calls before that have reached the host, and send this one on its way: nothing waits."""
    with _one_at_a_time:
        arrived = [_pending.popleft()[1] for _ in range(len(_pending)) if _pending[0][0].query()]
        event = torch.cuda.Event()
        on_host = flag.to("cpu", non_blocking=True, copy=True)  # into pinned memory
        event.record()
        _pending.append((event, on_host))
    if any(arrived):
        try:
            _warn()
        except UserWarning as error:  # a warning filter raises it: it must not end another sum
            logging.getLogger(__name__).warning(str(error))


def _warn() -> None:
    warnings.warn(
        "torch_backend: points of a Gauss sum lie farther from their center, in bandwidths, than its precision reaches;"
        " its result is bounded but has few right digits. Use a smaller tau, or points in one place.",
        stacklevel=2,
    )
