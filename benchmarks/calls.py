"""Sums of few points, N = M = 16 and 256, D = 8, C = 1: under `jit`, outside of it, of NumPy arrays; and all gradients.

`jax.grad` outside of `jit` traces its function at every call: the last row is what JAX takes for that where the
function is one product, jitted.
"""

from collections.abc import Callable, Iterator

import jax
import numpy as np

from jaxgauss import gauss_sum

from .plots import pivot
from .study import Cell, Study, Task, elsewhere, unchecked

NUMS, DIM = (16, 256), 8
ROUNDS = 3  # processes


def steps(device: str) -> Iterator[Task]:
    """What a call costs outside of `jit`: microseconds."""
    for i in range(ROUNDS):
        yield Task({"round": i, "d": DIM, "c": 1}, lambda runs: elsewhere(here, runs))


def here(runs: int) -> list[dict]:
    """All cells, in this process."""
    return [cell.about | row for cell in cells() for row in cell.found(runs, (), ())[0]]


def cells() -> Iterator[Cell]:
    """All calls of one size, in turns."""

    def slopes(function: Callable) -> Callable:
        return jax.grad(lambda *x: function(*x).sum(), (0, 1, 2))

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
        calls = {name: lambda f=f, x=x: jax.block_until_ready(f(*x)) for name, (f, x) in functions.items()}
        methods = {name: lambda call=call: unchecked(call) for name, call in calls.items()}
        yield Cell({"n": num}, methods, lambda results: 0.0, 0.0)


def report(data: dict) -> str:
    """Medians over all rounds, in one environment or in two."""
    seconds: dict[tuple, list[float]] = {}
    for part in (data, *([data["beside"]] if "beside" in data else [])):
        for c in part["cells"]:
            seconds.setdefault((c["method"], part["versions"]["jax"], c["n"]), []).extend(c["seconds"])
    return pivot(
        "µs",
        [{"key": key, "median": np.median(x)} for key, x in seconds.items()],
        lambda c: c["key"][0],
        lambda c: "jax {}, N = {}".format(*c["key"][1:]),
        lambda c: f"{1e6 * c['median']:.0f}",
    )


STUDY = Study(steps, report)
