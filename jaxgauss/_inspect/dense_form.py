"""What a function would take in plain JAX with the full matrix of every sum, and whether jaxgauss is worth it.

Nothing is traced for that: constants stand for the form that one writes, for XLA on a CPU as for a card. They are from
`python -m benchmarks --suite jax`: dense sums of 64 to 8192 points in 3 to 128 dimensions, and their gradients.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from .._engines.costs import Cost

# Nanoseconds of a byte of a matrix that is so large that the system takes its pages back after every call.
WRITTEN, KEPT = 0.33, 2**25
# Gradients take 12 `pair` more than the sum, and three products for its two; two more matrices exist at a time.
OF_GRADIENTS, PRODUCTS, MORE = 12.0, 2.0, 2
# The field of a drift takes the exponentials of softmaxes over rows and over columns, and three matrices at a time.
OF_DRIFT, MATRICES_OF_DRIFT = 8.0, 3
EQUATIONS = {False: 50, True: 150}  # of a sum, and with its gradients
# Of tracing and compiling: `python -m benchmarks --suite compiling` took 0.24 s for a sum, a program of 103 equations,
# 0.36 for a density of 177, and 1.4 for the gradient of HSIC, 742, on two cores with jax 0.10.
SECONDS_OF_EQUATION = 2.5e-3
FASTER, GIBIBYTE = 1.5, 1024.0  # times; estimates may be wrong by a factor of two
MANY = 1000  # calls: what pays later is not worth the seconds of compiling


class DenseForm(NamedTuple):
    """What a function is estimated to take in plain JAX, with the full matrix of every sum.

    Attributes:
        milliseconds: of a call.
        mebibytes: the most memory of its matrices at a time.
        seconds: of compiling it.
    """

    milliseconds: float
    mebibytes: float
    seconds: float


def dense_form(parts: Sequence[Any], gradients: bool, cost: Cost, size: int) -> DenseForm:
    """The estimate for the parts of an explanation, and their gradients; `size` is that of a number in bytes."""
    forward = [x for x in parts if not x.backward]  # of which JAX makes the others
    with_own = {x.kind for x in parts if x.backward}
    time, largest, kept, equations = cost.call, 0.0, 0.0, 0
    for x in forward:
        drifts = x.kind == "drift"
        pulled = gradients and (not drifts or x.kind in with_own)  # the field of a drift is seldom differentiated
        of_pair = cost.pair * (1 + OF_DRIFT * drifts + OF_GRADIENTS * pulled)
        channels = max(1, x.channels // (x.dim + 1)) if pulled else x.channels  # without those of moments
        of_pair += cost.column * (x.dim + 2 + channels) * (1 + PRODUCTS * pulled)
        matrix, number = float(x.queries * x.keys * size), MATRICES_OF_DRIFT if drifts else 1
        written = (number + MORE * pulled) * matrix * WRITTEN if matrix > KEPT else 0.0
        time += x.number * (x.queries * x.keys * of_pair + written)
        largest = max(largest, (MORE if pulled else number) * matrix)
        kept += x.number * number * matrix * pulled
        equations += EQUATIONS[pulled]
    return DenseForm(time / 1e6, (largest + kept) / 2**20, equations * SECONDS_OF_EQUATION)


def verdict(milliseconds: float, mebibytes: float, seconds: float, dense: DenseForm) -> tuple[bool, str]:
    """Whether it is worth it, and why."""
    if math.isinf(milliseconds):
        return False, "no card has timed its kernel"
    ratio, saved = dense.milliseconds / milliseconds, dense.mebibytes / max(mebibytes, 1e-3)
    less = f", and takes {_share(saved)} of the memory" if saved >= 2 else ""
    if ratio >= FASTER:
        calls = int(1e3 * (seconds - dense.seconds) / (dense.milliseconds - milliseconds)) + 1
        if calls > MANY:
            return False, f"it is {ratio:.2g} times as fast, but makes up for compiling after {calls} calls"
        start = f", from {calls} calls on" if calls > 1 else ""
        return True, f"it is {ratio:.2g} times as fast{start}{less}"
    slower = "as fast" if ratio > 1 / FASTER else f"{1 / ratio:.2g} times as fast"
    if dense.mebibytes >= GIBIBYTE and saved >= 2:
        return True, f"the full matrix takes {memory(dense.mebibytes)}, though that is {slower}"
    return False, f"plain JAX is {slower}, and its matrix takes {memory(dense.mebibytes)}"


def _share(times: float) -> str:
    return f"1/{times:.0f}" if times < 1000 else f"1/{times:.0e}"


def memory(mebibytes: float) -> str:
    """A size in words."""
    if mebibytes >= GIBIBYTE:
        return f"{mebibytes / GIBIBYTE:.3g} GiB"
    return f"{mebibytes:.3g} MiB" if mebibytes >= 0.1 else f"{1024 * mebibytes:.3g} KiB"
