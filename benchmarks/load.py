"""Sums from several Python threads at once, and the threads that JAX and PyTorch start.

Each setting has a process of its own. Its calls, N = M = 4096, D = 16, C = 1 under `jit`, are checked against float64
and shared out among 1, 2 and 8 Python threads; the time of a call is that of all of them over their number.
"""

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import jax

from jaxgauss import gauss_sum

from .plots import pivot
from .rivals import Problem
from .study import Study, Task, elsewhere, quartiles

NUM, CALLS = 4096, 16
CALLERS, METHODS = (1, 2, 8), ("rescale", "blocked")
SETTINGS = {  # what a process does before it imports anything else
    "default": "",
    "OMP_WAIT_POLICY=passive": "import os; os.environ['OMP_WAIT_POLICY'] = 'passive'",
    "OMP_NUM_THREADS=1": "import os; os.environ['OMP_NUM_THREADS'] = '1'",
    "torch.set_num_threads(1)": "import torch; torch.set_num_threads(1)",
    "one CPU": "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})",
}


def steps(device: str) -> Iterator[Task]:
    """Whether threads of JAX, PyTorch and the caller get into each other's way, and which setting helps."""
    for setting, first in SETTINGS.items():
        yield Task({"setting": setting}, lambda runs, first=first: elsewhere(here, runs, first=first))


def here(runs: int) -> list[dict]:
    """All cells of a setting, in this process."""
    problem, rows = Problem(NUM, 16, 1), []
    for method in METHODS:
        function = jax.jit(lambda q, k, v, method=method: gauss_sum(q, k, v, method=method))
        error = problem.error("forward", function(*problem.jax[:3]))
        if not error < 1e-5:
            raise AssertionError(f"{method}: relative error {error}")
        for callers in CALLERS:
            row = throughput(lambda f=function: jax.block_until_ready(f(*problem.jax[:3])), callers, runs)
            rows.append({"method": method, "callers": callers, "error": error} | row)
    return rows


def throughput(call: Callable[[], object], callers: int, runs: int) -> dict:
    """Seconds a call in every run, and the threads of this process, Python's, XLA's and PyTorch's, at its end."""
    with ThreadPoolExecutor(callers) as threads:
        seconds = []
        for _ in range(runs + 1):
            start = time.perf_counter()
            list(threads.map(lambda _: call(), range(CALLS)))
            seconds.append((time.perf_counter() - start) / CALLS)
        row = {"seconds": seconds[1:], "os_threads": len(os.listdir("/proc/self/task"))}
        return row | quartiles(row)


def report(data: dict) -> str:
    """Milliseconds per call, and in brackets the threads of the process; a row for each setting."""
    return pivot(
        "",
        data["cells"],
        lambda c: c["setting"],
        lambda c: f"`{c['method']}`, {c['callers']} thread{'s' * (c['callers'] > 1)}",
        lambda c: f"{1e3 * c['median']:.1f} ({c['os_threads']})",
    )


STUDY = Study(steps, report)
