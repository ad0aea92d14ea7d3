"""Other kernels than the Gaussian, beside `gauss_sum` and PyKeOps: `python -m benchmarks.kernels`.

N = M = 8192 points N(0, I/D), C = 1, float32, under `jit`, τ = 1; checked against float64 before anything is timed,
then all methods in turn. PyKeOps, which takes seconds a call, sums all kernels forward at one width, and one of them
with gradients (of queries, keys and values, as everywhere). And the memory of a value with its gradients.
Results go to outputs/benchmarks, with `--keep` to benchmarks/results.
"""

import argparse
import functools
import importlib.util
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch
from scipy.spatial.distance import cdist
from tqdm import tqdm

from jaxgauss import gauss_sum, kernel_sum

from .measure import (
    Call,
    JaxCall,
    add_destination,
    destination,
    environment,
    in_turns,
    peak_mebibytes,
    problem,
    quartiles,
    relative,
    save,
    shown,
    value_and_pullback,
)

NUM, DIMS, LARGE = 8192, (3, 16, 64), (16384, 32768)
WHAT = ("forward", "gradients")
EXACT = {
    "matern12": lambda r: np.exp(-r),
    "matern32": lambda r: (1 + 3**0.5 * r) * np.exp(-(3**0.5) * r),
    "matern52": lambda r: (1 + 5**0.5 * r + 5 / 3 * r**2) * np.exp(-(5**0.5) * r),
    "imq": lambda r: (1 + r**2) ** -0.5,
    "cauchy": lambda r: 1 / (1 + r**2),
    "energy": lambda r: -r,
}
ROOT = "Sqrt(IntCst({})*SqDist(x,y))"
KEOPS = {
    "matern12": "Exp(-Sqrt(SqDist(x,y)))",
    "matern32": f"(IntCst(1)+{ROOT})*Exp(-{ROOT})".format(3, 3),
    "matern52": f"(IntCst(1)+{ROOT}+p*SqDist(x,y))*Exp(-{ROOT})".format(5, 5),
    "imq": "Rsqrt(IntCst(1)+SqDist(x,y))",
    "cauchy": "Inv(IntCst(1)+SqDist(x,y))",
    "energy": "-Sqrt(SqDist(x,y))",
}
KEOPS_WIDTH = 16  # forward for every kernel; it takes seconds a call
KEOPS_GRADIENTS = "imq", 3
TOLERANCE = 1e-5  # relative to what a sum has in it: that of float32 sums everywhere


def by_jax(function, arrays: tuple, what: str) -> Call:
    """Under `jit`; with gradients, the sum and its pullback."""
    if what == "forward":
        return JaxCall(function, *arrays[:3])
    return JaxCall(functools.partial(value_and_pullback, function), *arrays)


def by_keops(kernel: str, arrays: tuple, what: str) -> Call:
    """PyKeOps' compiled reduction of the formula, and of its derivatives."""
    from pykeops.torch import Genred  # pyright: ignore[reportMissingImports]

    dim = arrays[0].shape[1]
    aliases = [f"x=Vi({dim})", f"y=Vj({dim})", "b=Vj(1)", "p=Pm(1)"]
    reduction = Genred(f"({KEOPS[kernel]})*b + (p-p)*b", aliases, reduction_op="Sum", axis=1)
    *points, g = (torch.from_numpy(np.array(x)) for x in arrays)
    factor = torch.tensor([5 / 3])

    def forward() -> tuple:
        with torch.no_grad():
            return (reduction(*points, factor, backend="CPU"),)

    def gradients() -> tuple:
        operands = [x.detach().requires_grad_() for x in points]
        value: Any = reduction(*operands, factor, backend="CPU")
        return value.detach(), *torch.autograd.grad(value, operands, g)

    return forward if what == "forward" else gradients


def cell(kernel: str, dim: int, what: str, runs: int) -> list[dict]:
    """All methods at one size."""
    arrays = problem(NUM, dim, 1)
    calls = {
        "gauss_sum": by_jax(gauss_sum, arrays, what),
        "kernel_sum": by_jax(functools.partial(kernel_sum, kernel=kernel), arrays, what),
    }
    if importlib.util.find_spec("pykeops") and (
        (what, dim) == ("forward", KEOPS_WIDTH) or (what, kernel, dim) == ("gradients", *KEOPS_GRADIENTS)
    ):
        calls["PyKeOps"] = by_keops(kernel, arrays, what)
    q, k, v = (np.asarray(x, np.float64) for x in arrays[:3])
    phi = EXACT[kernel](cdist(q[:512], k))
    errors = {}
    for name, call in calls.items():
        results = call()
        found = np.asarray(results[0] if isinstance(results, tuple | list) else results)[:512]
        errors[name] = relative(found, phi @ v) if name != "gauss_sum" else None
        if name != "gauss_sum" and not errors[name] <= TOLERANCE:
            raise AssertionError(f"{name}, {kernel}, D = {dim}: relative error {errors[name]}")
    found = in_turns(calls, runs)
    about = {"suite": "kernels", "figure": "time", "kernel": kernel, "n": NUM, "d": dim, "c": 1, "what": what}
    rows = [about | {"method": name, "error": errors[name], "seconds": x} for name, x in found.items()]
    return [row | quartiles(row) for row in rows]


def memory(kernel: str, num: int) -> dict:
    """MiB of a value with its gradients, beyond what there was before."""
    call = by_jax(functools.partial(kernel_sum, kernel=kernel), problem(num, 16, 1), "gradients")
    call()
    about = {"suite": "kernels", "figure": "memory", "kernel": kernel, "n": num, "d": 16, "c": 1}
    return about | {"method": "kernel_sum", "mib": peak_mebibytes(call)}


def ratios(cells: list[dict], method: str, other: str) -> dict[tuple[str, int, str], float]:
    """How many times the time of `other` a method takes, by kernel, dimension and what."""
    times = {(c["method"], c["kernel"], c["d"], c["what"]): c["median"] for c in cells if c["figure"] == "time"}
    return {key[1:]: x / times[other, *key[1:]] for key, x in times.items() if key[0] == method}


def report(cells: list[dict]) -> str:
    """Times of `kernel_sum` over those of `gauss_sum`, and in brackets what PyKeOps takes over ours."""
    from .plots import table

    ours, keops = ratios(cells, "kernel_sum", "gauss_sum"), ratios(cells, "PyKeOps", "kernel_sum")
    rows = [["kernel", *(f"{what}, D = {dim}" for what in WHAT for dim in DIMS)]]
    for kernel in EXACT:
        keys = [(kernel, dim, what) for what in WHAT for dim in DIMS]
        rows.append([kernel, *(f"{ours[x]:.2f}" + (f" ({keops[x]:.0f})" if x in keops else "") for x in keys)])
    return table(rows)


def main(runs: int, out: Path | None, keep: bool = False) -> None:
    """Measure, write the JSON, print the table."""
    info, cells = environment("cpu"), []
    path = destination(info, "kernels", out, keep)
    keys = [(kernel, dim, what) for kernel in EXACT for dim in DIMS for what in WHAT]
    for kernel, dim, what in tqdm(keys, unit="cell"):
        cells += cell(kernel, dim, what, runs)
        save(info | {"cells": cells}, path)
    cells += [memory(kernel, num) for kernel in ("matern12", "imq") for num in LARGE]
    save(info | {"cells": cells}, path)
    print(report(cells))
    print(f"raw data: {shown(path)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10, help="timed runs of each cell (default: 10)")
    add_destination(parser)
    jax.config.update("jax_platforms", "cpu")
    main(**vars(parser.parse_args()))
