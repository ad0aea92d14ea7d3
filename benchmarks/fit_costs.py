"""Fit the cost model by which `auto` chooses to this machine: `python -m benchmarks.fit_costs`, with `--device cuda`.

Measures all engines over a grid (two minutes), fits the three numbers of each by least squares of the relative errors,
none of them negative, and writes them into the row of this CPU's vendor, or of this CUDA device, in
jaxgauss/_engines/cpu_costs.json or cuda_costs.json; or with `--out` into a file of that row alone.
"""

import argparse
import functools
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import nnls
from tqdm import tqdm

from jaxgauss import gauss_sum
from jaxgauss._engines import costs
from jaxgauss._engines.tiles import CUDA_TILE
from torch_backend import devices, select_kernel

from .measure import JaxCall, emulated_if, environment, error, in_turns, problem, save

NUMS, CUDA_NUMS = (16, 256, 1024, 4096), (512, 4096, 16384)
EMULATED = [(8, (3, 1)), (64, (16, 16)), (64, (140, 2))]
SIZES = ((3, 1), (16, 1), (16, 16), (64, 1), (64, 64), (128, 1), (128, 128))
CUDA_SIZES = ((3, 1), (16, 16), (64, 1), (64, 64), (128, 128))
KERNELS = (("flash", "float16"), ("cudnn", "float16"), ("efficient", "float16"), ("efficient", "float32"))  # on CUDA
TOLERANCES = {"float16": 2e-2, "float32": 1e-5, "float64": 1e-5}
Row = tuple[float, float, float, float]  # 1, pairs, pairs · columns and nanoseconds
Engine = tuple[Callable, int, str]  # what computes a sum, the columns of its products, and the precision of these


def engines_of_cpu(dtype: str, num: int, dim: int, channels: int) -> dict[str, Engine]:
    """XLA's blocks and PyTorch's kernel."""
    methods = {"xla": "blocked", "kernel": "rescale"}
    return {
        name: (functools.partial(gauss_sum, method=method), costs.columns(name, dim, channels), dtype)
        for name, method in methods.items()
    }


def engines_of_cuda(dtype: str, num: int, dim: int, channels: int) -> dict[str, Engine]:
    """XLA, whole where that is what `auto` takes and in blocks, and every kernel that takes such points."""
    names = ["dense"] if num**2 <= CUDA_TILE.entries else []
    found: dict[str, Engine] = {
        name: (functools.partial(gauss_sum, method=name), costs.columns(name, dim, channels), "float32")
        for name in (*names, "blocked")
    }
    for backend, precision in KERNELS:
        try:
            kernel = select_kernel(backend, precision, "cuda", dtype, dim)
        except ValueError:  # too wide, or not on this card
            continue
        function = functools.partial(gauss_sum, method="rescale", backend=backend, precision=precision)
        found[costs.kernel_engine(kernel)] = function, costs.kernel_columns(kernel, dim, channels), precision
    return found


def measured(
    engines: Callable[..., dict[str, Engine]], dtype: str, problems: Sequence[tuple[int, tuple[int, int]]], runs: int
) -> dict[str, list[Row]]:
    """Rows of the least-squares problem of each engine."""
    rows: dict[str, list[Row]] = {}
    for num, (dim, channels) in tqdm(problems, desc=dtype, unit="size"):
        q, k, v = (jnp.asarray(x, dtype) for x in problem(num, dim, channels)[:3])
        found = engines(dtype, num, dim, channels)
        for name, (function, _, precision) in found.items():
            if not error(function, q, k, v) < TOLERANCES[precision]:
                raise AssertionError(f"{name} at N={num}, D={dim}, C={channels}")
        times = in_turns({name: JaxCall(function, q, k, v) for name, (function, *_) in found.items()}, runs)
        for name, seconds in times.items():
            pairs, columns = num**2, found[name][1]
            rows.setdefault(name, []).append((1, pairs, pairs * columns, 1e9 * float(np.median(seconds))))
    return rows


def fitted(rows: list[Row]) -> tuple[costs.Cost, float]:
    """The costs, and the largest factor by which they are off."""
    table = np.array(rows)
    design, nanoseconds = table[:, :3], table[:, 3]
    cost = costs.Cost(*(float(f"{x:.3g}") for x in nnls(design / nanoseconds[:, None], np.ones(len(rows)))[0]))
    return cost, float(np.exp(np.abs(np.log(design @ np.array(cost) / nanoseconds)).max()))


def row_of(rows: dict[str, list[Row]], what: str) -> dict[str, dict[str, float]]:
    """The fits of all engines, which are printed with how far they are off."""
    found = {}
    for engine, (cost, factor) in ((name, fitted(x)) for name, x in rows.items()):
        print(f"{what}, {engine}: {cost}, off by a factor of {factor:.2f} at most")
        found[engine] = cost._asdict()
    return found


def main(device: str, runs: int, out: Path | None = None, emulate: bool = False) -> None:
    """Measure, fit, write the table."""
    with emulated_if(emulate):
        info = environment("cpu" if emulate else device)
        row: dict = {name: info[name] for name in ("date", "commit", "device_name", "cores", "versions")}
        if device == "cuda":
            problems = EMULATED if emulate else list(itertools.product(CUDA_NUMS, CUDA_SIZES))
            row |= row_of(measured(engines_of_cuda, "float32", problems, runs), "CUDA")
            table, name = costs.CUDA_TABLE, devices.card().name
        else:
            with jax.enable_x64(True):
                for dtype in ("float32", "float64"):
                    problems = list(itertools.product(NUMS, SIZES))
                    row[dtype] = row_of(measured(engines_of_cpu, dtype, problems, runs), dtype)
            table, name = costs.TABLE, costs.vendor()
    save({name: row} if out else json.loads(table.read_text()) | {name: row}, out or table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--runs", type=int, default=10, help="timed repetitions of each method (default: 10)")
    parser.add_argument("--out", type=Path, help="write the row to this JSON file, and leave the table alone")
    parser.add_argument("--emulate", action="store_true", help="CUDA on a CPU, whose times mean nothing")
    arguments = parser.parse_args()
    if arguments.emulate and (arguments.device != "cuda" or arguments.out is None):
        parser.error("--emulate is for --device cuda, and needs --out: its times must not get into the table")
    main(**vars(arguments))
