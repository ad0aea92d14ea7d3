"""Fit the cost model by which `auto` chooses on a CPU to this machine: `python -m benchmarks.fit_costs`.

Measures both engines over a grid (two minutes), fits the three numbers of each by least squares of the relative errors,
none of them negative, and writes them into the row of this CPU's vendor in jaxgauss/_engines/cpu_costs.json.
"""

import argparse
import functools
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import nnls
from tqdm import tqdm

from jaxgauss import gauss_sum
from jaxgauss._engines import costs

from .measure import JaxCall, environment, error, in_turns, problem

NUMS, SIZES = (16, 256, 1024, 4096), ((3, 1), (16, 1), (16, 16), (64, 1), (64, 64), (128, 1), (128, 128))
METHODS = {"xla": "blocked", "kernel": "rescale"}
Row = tuple[float, float, float, float]  # 1, pairs, pairs · columns and nanoseconds


def measured(dtype: str, runs: int) -> dict[str, list[Row]]:
    """Rows of the least-squares problem of each engine."""
    rows: dict[str, list[Row]] = {engine: [] for engine in METHODS}
    for num, (dim, channels) in tqdm(list(itertools.product(NUMS, SIZES)), desc=dtype, unit="size"):
        q, k, v = (jnp.asarray(x, dtype) for x in problem(num, dim, channels)[:3])
        functions = {engine: functools.partial(gauss_sum, method=method) for engine, method in METHODS.items()}
        for name, function in functions.items():
            if not error(function, q, k, v) < 1e-5:
                raise AssertionError(f"{name} at N={num}, D={dim}, C={channels}")
        times = in_turns({engine: JaxCall(function, q, k, v) for engine, function in functions.items()}, runs)
        for engine, seconds in times.items():
            columns = costs.columns(engine, dim, channels)
            rows[engine].append((1, num**2, num**2 * columns, 1e9 * float(np.median(seconds))))
    return rows


def fitted(rows: list[Row]) -> tuple[costs.Cost, float]:
    """The costs, and the largest factor by which they are off."""
    table = np.array(rows)
    design, nanoseconds = table[:, :3], table[:, 3]
    cost = costs.Cost(*(float(f"{x:.3g}") for x in nnls(design / nanoseconds[:, None], np.ones(len(rows)))[0]))
    return cost, float(np.exp(np.abs(np.log(design @ np.array(cost) / nanoseconds)).max()))


def main(runs: int) -> None:
    """Measure, fit, write the table."""
    info = environment("cpu")
    row: dict = {name: info[name] for name in ("date", "commit", "device_name", "cores", "versions")}
    with jax.enable_x64(True):
        for dtype in ("float32", "float64"):
            fits = {engine: fitted(rows) for engine, rows in measured(dtype, runs).items()}
            row[dtype] = {engine: cost._asdict() for engine, (cost, _) in fits.items()}
            for engine, (cost, factor) in fits.items():
                print(f"{dtype}, {engine}: {cost}, off by a factor of {factor:.2f} at most")
    table = json.loads(costs.TABLE.read_text())
    costs.TABLE.write_text(json.dumps(table | {costs.vendor(): row}, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10, help="timed repetitions of each method (default: 10)")
    main(**vars(parser.parse_args()))
