"""Points that no machine holds, sketched by two workers of Dask: time, memory, error, and what a killed worker costs.

python -m benchmarks.many_machines --points 10000000    fewer of them than the suite's hundred million
"""

import contextlib
import functools
import hashlib
import operator
import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

import jaxgauss

from .plots import having, prose
from .study import Study, Task, arguments, elsewhere, peak_bytes

POINTS, BLOCK, QUERIES = 100_000_000, 2**20, 8
WORKERS, LIMIT = 2, 1024  # MiB that a worker may take, beyond which Dask ends it
OURS = ("two workers", "one killed", "one process")
BOX, TAU = {"lower": -1.0, "upper": 1.0}, 100.0  # 20 bandwidths a side


def steps(device: str) -> Iterator[Task]:
    """Whether sketches of points on a cluster take the time of one process and the memory of a block."""
    about = {"figure": "sketch", "n": POINTS, "d": 2, "block": BLOCK, "workers": WORKERS, "limit": LIMIT}
    yield Task(about, lambda runs: elsewhere(measured, POINTS, BLOCK))


def made(num: int, number: int) -> np.ndarray:
    """The points of a block, in the plane: normal, but within the box."""
    return np.random.default_rng(number).normal(0, 0.3, (num, 2)).clip(-1, 1).astype(np.float32)


def block(block_info: Any = None) -> np.ndarray:
    """The same, for Dask, which tells its number and shape."""
    of = block_info[None]
    return made(of["chunk-shape"][0], of["chunk-location"][0])


def exact(points: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """The sums over a block in float64, (1, QUERIES)."""
    points = points.astype(np.float64)
    return np.array([[np.exp(-TAU / 2 * np.square(points - q).sum(1)).sum() for q in queries.astype(np.float64)]])


def measured(num: int, size: int) -> list[dict]:
    """A sketch of all points, by workers and in this process, and sums by it beside exact ones."""
    import dask.array as da
    from distributed import Client, LocalCluster

    sizes = [size] * (num // size) + [num % size] * (num % size > 0)
    queries = made(QUERIES, -1 % 2**32)
    points = da.map_blocks(block, chunks=((*sizes,), (2,)), dtype=np.float32, meta=np.empty((0, 0), np.float32))
    lazy = jaxgauss.dask.fourier_sketch(points, da.ones_like(points[:, 0]), TAU, **BOX)
    with contextlib.ExitStack() as stack:
        given = {"n_workers": WORKERS, "threads_per_worker": 1, "dashboard_address": ":0"}
        cluster = stack.enter_context(LocalCluster(memory_limit=f"{LIMIT}MiB", **given))
        client: Any = stack.enter_context(Client(cluster))
        found = [by_workers(client, lazy, kills) for kills in (False, True)]
        sums = client.compute(points.map_blocks(exact, queries, chunks=((1,) * len(sizes), (QUERIES,)), dtype=float))
        expected = sums.result().sum(0)
    rows = []
    for method, (row, sketch) in zip(OURS, [*found, alone(sizes)], strict=True):
        error = float(np.abs(np.asarray(sketch(queries)) - expected).max() / num)
        if error > 1e-6:
            raise AssertionError(f"{method}: error {error}")
        row |= {"sketch_kb": sketch.coefficients.nbytes * 2 / 1e3, "waves": sketch.coefficients.shape[1] // 2}
        rows.append({"method": method, "error": error, "median": row["seconds"][0]} | row)
    return rows


def by_workers(client: Any, lazy: Any, kills: bool) -> tuple[dict, jaxgauss.FourierSketch]:
    """The sketch, with the most memory that a worker had; one of them is killed when half of the tasks are done."""
    pids = client.run(os.getpid)
    before = max(client.run(peak_bytes).values()) / 2**20
    start = time.perf_counter()
    future = client.compute(lazy)
    if kills:
        most = 0
        while not future.done():
            left = client.run_on_scheduler(unfinished)
            most = max(most, left)
            if left < most / 2:
                break
            time.sleep(0.2)
        os.kill(next(iter(pids.values())), signal.SIGKILL)
    sketch = future.result()
    seconds = time.perf_counter() - start
    peak = max(client.run(peak_bytes, on_error="ignore").values()) / 2**20
    digest = hashlib.sha256(sketch.coefficients.tobytes()).hexdigest()
    return {"seconds": [seconds], "mib": peak, "mib_before": before, "digest": digest}, sketch


def unfinished(dask_scheduler: Any = None) -> int:
    """How many tasks a scheduler has still to do."""
    return sum(task.state not in ("memory", "released") for task in dask_scheduler.tasks.values())


def alone(sizes: list[int]) -> tuple[dict, jaxgauss.FourierSketch]:
    """The sketch by a loop in this process."""
    start = time.perf_counter()
    every = (jaxgauss.fourier_sketch(made(n, i), np.ones(n, np.float32), TAU, **BOX) for i, n in enumerate(sizes))
    sketch = jax.block_until_ready(functools.reduce(operator.add, every))
    return {"seconds": [time.perf_counter() - start], "mib": peak_bytes() / 2**20}, sketch


def report(data: dict) -> str:
    """All of it."""
    rows = {x["method"]: x for x in having(data["cells"], figure="sketch")}
    two, killed, one = (rows[x] for x in OURS)
    same = "the same bits" if killed["digest"] == two["digest"] else "other bits"
    return prose(
        f"{two['n'] / 1e6:,.0f} million points in the plane become a sketch of {two['sketch_kb']:.0f} kB in",
        f"{two['median']:.0f} s on {two['workers']} local workers, with at most {two['mib']:.0f} MiB in each",
        f"({two['limit']} are allowed, and {two['mib_before']:.0f} are taken before). Sums at queries err by at most",
        f"{max(x['error'] for x in rows.values()):.1e} of the number of points. With a worker killed halfway it takes",
        f"{killed['median']:.0f} s, and gives {same}. One process takes {one['median']:.0f} s.",
    )


STUDY = Study(steps, report, ours=OURS)


def main(given: list[str]) -> None:
    """The suite with another number of points."""
    from . import many_machines

    parser = arguments(__doc__)
    parser.add_argument("--points", type=int, default=POINTS, help=f"how many (default: {POINTS:,})")
    options = parser.parse_args(given)
    many_machines.POINTS = options.points
    many_machines.STUDY.measure("many_machines", "cpu", 1, options.out, options.keep)


if __name__ == "__main__":
    main(sys.argv[1:])
