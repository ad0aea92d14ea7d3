"""Sums from several Python threads at once, and the threads that JAX and PyTorch start: `python -m benchmarks.load`.

Each setting has a process of its own. Its calls, N = M = 4096, D = 16, C = 1 under `jit`, are checked against float64
and shared out among 1, 2 and 8 Python threads; the time of a call is that of all of them over their number.
Results go to outputs/benchmarks, with `--keep` to benchmarks/results.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
from tqdm import tqdm

from jaxgauss import gauss_sum

from .measure import add_destination, destination, environment, error, problem, save, shown

NUM, DIM, CALLS = 4096, 16, 16
CALLERS, METHODS = (1, 2, 8), ("rescale", "blocked")
SETTINGS = {  # what a process does before it imports anything else
    "default": "",
    "OMP_WAIT_POLICY=passive": "import os; os.environ['OMP_WAIT_POLICY'] = 'passive'",
    "OMP_NUM_THREADS=1": "import os; os.environ['OMP_NUM_THREADS'] = '1'",
    "torch.set_num_threads(1)": "import torch; torch.set_num_threads(1)",
    "one CPU": "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})",
}


def os_threads() -> int:
    """Threads of this process, Python's, XLA's and PyTorch's."""
    return len(os.listdir("/proc/self/task"))


def throughput(call: Callable[[], object], callers: int, runs: int) -> dict:
    """Seconds a call in every run, and the threads there are at its end."""
    with ThreadPoolExecutor(callers) as threads:
        seconds = []
        for _ in range(runs + 1):
            start = time.perf_counter()
            list(threads.map(lambda _: call(), range(CALLS)))
            seconds.append((time.perf_counter() - start) / CALLS)
        quartiles = np.quantile(seconds[1:], [0.25, 0.5, 0.75]).tolist()
        return {"seconds": seconds[1:], "os_threads": os_threads()} | dict(
            zip(("q1", "median", "q3"), quartiles, strict=True)
        )


def measure(setting: str, runs: int) -> None:
    """All cells of a setting, in this process, as JSON."""
    q, k, v, _ = problem(NUM, DIM, 1)
    cells = []
    for method in METHODS:
        function = jax.jit(lambda q, k, v, method=method: gauss_sum(q, k, v, method=method))
        deviation = error(function, q, k, v)
        if not deviation < 1e-5:
            raise AssertionError(f"{method}, {setting}: relative error {deviation}")
        for callers in CALLERS:
            cell = {"suite": "load", "setting": setting, "method": method, "callers": callers, "error": deviation}
            cells.append(cell | throughput(lambda f=function: jax.block_until_ready(f(q, k, v)), callers, runs))
    print(json.dumps(cells))


def report(cells: list[dict]) -> str:
    """Milliseconds per call, and in brackets the threads of the process; a row for each setting."""
    from .plots import table  # not where it is measured: Matplotlib is no part of that

    found = {(c["setting"], c["method"], c["callers"]): c for c in cells}
    columns = [(method, callers) for method in METHODS for callers in CALLERS]
    rows = [["", *(f"`{method}`, {callers} thread{'s' * (callers > 1)}" for method, callers in columns)]]
    for setting in dict.fromkeys(c["setting"] for c in cells):
        row = (found[setting, *column] for column in columns)
        rows.append([setting, *(f"{1e3 * c['median']:.1f} ({c['os_threads']})" for c in row)])
    return table(rows)


def main(runs: int, out: Path | None, keep: bool = False) -> None:
    """Measure, write the JSON, print the table."""
    info = environment("cpu") | {"n": NUM, "d": DIM, "c": 1, "calls": CALLS}
    cells = []
    for setting, prepare in tqdm(SETTINGS.items(), unit="setting"):
        code = f"{prepare}\nimport benchmarks.load as b; b.measure({setting!r}, {runs})"
        run = subprocess.run(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, check=True, env=os.environ | {"JAX_PLATFORMS": "cpu"}
        )
        cells += json.loads(run.stdout)
    path = destination(info, "load", out, keep)
    save(info | {"cells": cells}, path)
    print(report(cells))
    print(f"raw data: {shown(path)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10, help="timed runs of each cell (default: 10)")
    add_destination(parser)
    main(**vars(parser.parse_args()))
