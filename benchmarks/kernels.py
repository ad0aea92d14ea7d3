"""Other kernels than the Gaussian: N = M = 8192 points N(0, I/D), C = 1, float32, under `jit`, τ = 1.

PyKeOps, which takes seconds a call, sums all kernels forward at one width, and one of them with gradients (of queries,
keys and values, as everywhere).
"""

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from scipy.spatial.distance import cdist

from jaxgauss import gauss_sum, kernel_sum

from . import rivals
from .grids import WHAT
from .plots import by_method, pivot
from .rivals import Problem
from .study import Cell, Cells, Study, relative, unchecked

NUM, DIMS = 8192, (3, 16, 64)
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
FORMULAS = {  # of u = τ·|q - k|²
    "matern12": lambda u: np.exp(-np.sqrt(u)),
    "matern32": lambda u: (1 + np.sqrt(3 * u)) * np.exp(-np.sqrt(3 * u)),
    "matern52": lambda u: (1 + np.sqrt(5 * u) + 5 * u / 3) * np.exp(-np.sqrt(5 * u)),
    "imq": lambda u: (1 + u) ** -0.5,
    "cauchy": lambda u: 1 / (1 + u),
    "rational_quadratic(2.0)": lambda u: (1 + u / 4) ** -2,
    "energy": lambda u: -np.sqrt(u),
}


def steps(device: str) -> Iterator[Cell]:
    """What other kernels cost beside the Gaussian, and whether PyKeOps is faster."""
    for kernel, dim, what in itertools.product(KEOPS, DIMS, WHAT):
        yield cell(kernel, Problem(NUM, dim, 1), what)


def cell(kernel: str, problem: Problem, what: str) -> Cell:
    """All methods at one size."""
    methods: dict[str, Callable] = {
        "gauss_sum": lambda: unchecked(rivals.in_jax(gauss_sum)(problem, what)),
        "kernel_sum": lambda: rivals.in_jax(functools.partial(kernel_sum, kernel=kernel))(problem, what),
    }
    if (kernel, problem.dim, what) in BY_KEOPS and rivals.is_installed("PyKeOps"):
        methods["PyKeOps"] = lambda: rivals.by_keops(problem, what, KEOPS[kernel], 5 / 3)

    def error(results: Any) -> float:
        q, k, v, _ = problem.arrays
        sums = results if what == "forward" else results[0]
        return relative(np.asarray(sums)[: rivals.ROWS], FORMULAS[kernel](cdist(q[: rivals.ROWS], k) ** 2) @ v)

    about = {"figure": "time", "kernel": kernel, "n": problem.num, "d": problem.dim, "c": 1, "what": what}
    return Cell(about, methods, error, 1e-5)  # relative to what a sum has in it


def report(data: dict) -> str:
    """Times of `kernel_sum` over those of `gauss_sum`, and in brackets what PyKeOps takes over ours."""
    found = by_method(data["cells"], "kernel", "what", "d")
    times: Cells = []
    for _, x in sorted(found.items(), key=lambda item: item[0][1]):
        ours = x["kernel_sum"]["median"]
        keops = x["PyKeOps"]["median"] / ours if "median" in x.get("PyKeOps", {}) else None
        times.append(x["kernel_sum"] | {"ratio": ours / x["gauss_sum"]["median"], "keops": keops})

    def entry(c: dict) -> str:
        return f"{c['ratio']:.2f}" + (f" ({c['keops']:.0f})" if c["keops"] else "")

    return pivot("kernel", times, "{kernel}", "{what}, D = {d}", entry)


STUDY = Study(steps, report, ours=("gauss_sum", "kernel_sum"))
