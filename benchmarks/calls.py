"""What a call costs outside of jit: `python -m benchmarks.calls --keep`, with `--before CHECKOUT` beside an older one.

Sums of few points, N = M = 16 and 256, D = 8, C = 1: under `jit`, outside of it, of NumPy arrays; and all gradients.
`jax.grad` outside of jit traces its function at every call: the last row is what JAX takes for that where the function
is one product, jitted. Two checkouts are measured in turns, each in a process of its own.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

NUMS, DIM = (16, 256), 8
HERE = Path(__file__).parents[1]
ROUNDS = 3  # processes of each checkout


def microseconds(runs: int) -> list[dict]:
    """Medians of all calls, by the jaxgauss that is imported here."""
    import jax
    import numpy as np

    from jaxgauss import gauss_sum

    def slopes(function: Callable) -> Callable:
        return jax.grad(lambda *x: function(*x).sum(), (0, 1, 2))

    timing = _timing()
    found = []
    for num in NUMS:
        rng = np.random.default_rng(0)
        arrays = [rng.normal(size=(num, width)).astype("float32") / width**0.5 for width in (DIM, DIM, 1)]
        operands, jitted = [jax.numpy.asarray(x) for x in arrays], jax.jit(gauss_sum)

        functions: dict[str, tuple[Callable, list]] = {
            "sum, under jit": (jitted, operands),
            "sum": (gauss_sum, operands),
            "sum of NumPy arrays": (gauss_sum, arrays),
            "gradients, under jit": (jax.jit(slopes(gauss_sum)), operands),
            "gradients": (slopes(gauss_sum), operands),
            "gradients of the jitted sum": (slopes(jitted), operands),
            "gradients of a jitted product": (slopes(jax.jit(lambda q, k, v: (q.sum() + k.sum()) * v)), operands),
        }
        calls = {name: _waiting(*x) for name, x in functions.items()}
        for name, seconds in timing.in_turns(calls, runs).items():
            found.append({"n": num, "call": name, "median": statistics.median(seconds), "seconds": seconds})
    return found


def _waiting(function: Callable, operands: list[Any]) -> Callable[[], Any]:
    import jax

    return lambda: jax.block_until_ready(function(*operands))


def _timing() -> Any:
    """This checkout's, whatever jaxgauss is measured."""
    import importlib.util

    spec: Any = importlib.util.spec_from_file_location("timing", HERE / "jaxgauss" / "_engines" / "timing.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def measured_there(checkout: Path, runs: int) -> list[dict]:
    """The same in a process that imports the checkout's jaxgauss."""
    command = [sys.executable, str(Path(__file__)), "--measure", "--runs", str(runs)]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{checkout}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main(runs: int, before: Path | None, out: Path | None, keep: bool) -> None:
    """Measure, save, print a table."""
    from tqdm import tqdm

    from .measure import destination, environment, save, shown

    checkouts = {"now": HERE} if before is None else {"before": before, "now": HERE}
    info = environment("cpu") | {"suite": "calls", "runs": runs, "d": DIM, "c": 1}
    if before is not None:
        command = ["git", "-C", str(before), "rev-parse", "--short", "HEAD"]
        info["before"] = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    cells: dict[tuple, dict] = {}
    for _ in tqdm(range(ROUNDS), unit="round"):
        for name, checkout in checkouts.items():
            for cell in measured_there(checkout, runs):
                kept = cells.setdefault((name, cell["n"], cell["call"]), {"checkout": name} | cell | {"seconds": []})
                kept["seconds"] += cell["seconds"]
    for cell in cells.values():
        cell["median"] = statistics.median(cell["seconds"])
    path = destination(info, "calls", out, keep)
    save(info | {"cells": list(cells.values())}, path)
    names = dict.fromkeys(call for _, _, call in cells)
    print(f"{'µs a call':32}", *(f"{x}, N = {n:<8}" for n in NUMS for x in checkouts))
    for call in names:
        print(f"{call:32}", *(f"{1e6 * cells[x, n, call]['median']:<16.1f}" for n in NUMS for x in checkouts))
    print(f"raw data: {shown(path)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10, help="timed repetitions in each of three processes")
    parser.add_argument("--before", type=Path, help="another checkout of this repository, to measure beside this one")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    if "--measure" in sys.argv:
        print(json.dumps(microseconds(parser.parse_args().runs)))
    else:
        from .measure import add_destination

        add_destination(parser)
        arguments = vars(parser.parse_args())
        arguments.pop("measure")
        main(**arguments)
