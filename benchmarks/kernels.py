"""Other kernels than the Gaussian: N = M = 8192 points N(0, I/D), C = 1, float32, under `jit`, τ = 1.

PyKeOps, which takes seconds a call, sums all kernels forward at one width, and one of them with gradients (of queries,
keys and values, as everywhere). And the memory of a value with its gradients.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from scipy.spatial.distance import cdist

from jaxgauss import gauss_sum, kernel_sum

from . import rivals
from .grids import WHAT
from .plots import by_method, having, pivot, prose, span
from .rivals import Problem
from .study import Cell, Cells, Study, relative, unchecked
from .tools.fit_mixtures import KERNELS

NUM, DIMS, LARGE = 8192, (3, 16, 64), (16384, 32768)
ROOT = "Sqrt(IntCst({})*SqDist(x,y))"
KEOPS = {  # (p-p): as PyKeOps wants a parameter to be used
    "matern12": "Exp(-Sqrt(SqDist(x,y)))+(p-p)",
    "matern32": f"(IntCst(1)+{ROOT})*Exp(-{ROOT})+(p-p)".format(3, 3),
    "matern52": f"(IntCst(1)+{ROOT}+p*SqDist(x,y))*Exp(-{ROOT})".format(5, 5),
    "imq": "Rsqrt(IntCst(1)+SqDist(x,y))+(p-p)",
    "cauchy": "Inv(IntCst(1)+SqDist(x,y))+(p-p)",
    "energy": "-Sqrt(SqDist(x,y))+(p-p)",
}
BY_KEOPS = [(kernel, 16, "forward") for kernel in KEOPS] + [("imq", 3, "gradients")]
TOLERANCE = 1e-5  # relative to what a sum has in it: that of float32 sums everywhere


def steps(device: str) -> Iterator[Cell]:
    """What other kernels cost beside the Gaussian, and whether PyKeOps is faster."""
    for kernel, dim, what in itertools.product(KEOPS, DIMS, WHAT):
        yield cell("time", kernel, Problem(NUM, dim, 1), what)
    for kernel, num in itertools.product(("matern12", "imq"), LARGE):
        yield cell("memory", kernel, Problem(num, 16, 1), "gradients")


def cell(figure: str, kernel: str, problem: Problem, what: str) -> Cell:
    """All methods at one size; only ours where its memory is asked for."""
    methods: dict[str, Callable] = {
        "kernel_sum": lambda: rivals.in_jax(functools.partial(kernel_sum, kernel=kernel))(problem, what)
    }
    if figure == "time":
        methods = {"gauss_sum": lambda: unchecked(rivals.in_jax(gauss_sum)(problem, what))} | methods
    if figure == "time" and (kernel, problem.dim, what) in BY_KEOPS and rivals.is_installed("PyKeOps"):
        methods["PyKeOps"] = lambda: rivals.by_keops(problem, what, KEOPS[kernel], 5 / 3)

    def error(results: Any) -> float:
        q, k, v, _ = problem.arrays
        sums = results if what == "forward" else results[0]
        return relative(np.asarray(sums)[: rivals.ROWS], KERNELS[kernel](cdist(q[: rivals.ROWS], k) ** 2) @ v)

    about = {"figure": figure, "kernel": kernel, "n": problem.num, "d": problem.dim, "c": 1, "what": what}
    return Cell(about, methods, error, TOLERANCE)


def report(data: dict) -> str:
    """Times of `kernel_sum` over those of `gauss_sum`, and in brackets what PyKeOps takes over ours."""
    found = by_method(having(data["cells"], figure="time"), "kernel", "what", "d")
    times: Cells = [x["kernel_sum"] | {"others": x} for _, x in sorted(found.items(), key=lambda item: item[0][1])]
    ratios = [ratio(c, "gauss_sum") for c in times]
    keops = [1 / ratio(c, "PyKeOps") for c in times if ratio(c, "PyKeOps")]
    memory = {(c["kernel"], c["n"]): c["mib"] for c in having(data["cells"], figure="memory")}
    (few, many), names = sorted({n for _, n in memory}), sorted({name for name, _ in memory})
    spans = [" and ".join(f"{memory[name, n]:.0f}" for name in names) for n in (few, many)]
    text = prose(
        f"{sum(x <= 1.6 for x in ratios)} of these {len(ratios)} figures are at most 1.6, and PyKeOps takes",
        f"{span(keops)} times as long as `kernel_sum`. A value with all gradients at D = 16 needs {spans[0]} MiB",
        f"at N = {few} and {spans[1]} MiB at N = {many} ({' and '.join(names)}).",
    )
    rows = pivot("kernel", times, lambda c: c["kernel"], lambda c: f"{c['what']}, D = {c['d']}", entry)
    return f"{rows}\n{text}"


def ratio(cell: dict, other: str) -> float:
    """How many times the other's time; nought if that was not timed."""
    return cell["median"] / cell["others"].get(other, {}).get("median", math.inf)


def entry(cell: dict) -> str:
    """Both."""
    keops = ratio(cell, "PyKeOps")
    return f"{ratio(cell, 'gauss_sum'):.2f}" + (f" ({1 / keops:.0f})" if keops else "")


STUDY = Study(steps, report, ours=("gauss_sum", "kernel_sum"))
