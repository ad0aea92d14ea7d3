"""Of each cell of the paper's table, N = 8192, float32: what its parts take, each by the same program without it.

They are the exponentials and the product of the points; and the rest, the other products, what goes through memory, and
the loop. Beside them, all exponentials and all products at the device's own rates, the larger of which is the limit.
"""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any
from unittest import mock

import jax

from jaxgauss import gauss_sum

from . import inside
from .grids import HEADLINE, WHAT, all_rates
from .plots import by_method, table
from .rivals import Problem, value_and_pullback
from .study import Call, Cell, Study, compiled, unchecked

NUM = 8192


def steps(device: str) -> Iterator[Cell]:
    """Where the time of a sum goes, and what the device would allow: what to make faster next."""
    patches = {
        "whole": [],
        "without exponentials": [(inside.blocked, "exp2", lambda x: x)],
        "without the product": [(inside.blocked, "logits", first_columns)],
    }
    for what in WHAT:
        for dim, channels in HEADLINE:
            problem = Problem(NUM, dim, channels)
            methods = {name: functools.partial(call, problem, what, x) for name, x in patches.items()}
            about = {"n": NUM, "d": dim, "c": channels, "what": what}
            yield Cell(about, methods, functools.partial(problem.error, what), 1e-4)


def call(problem: Problem, what: str, patches: list) -> Call:
    """The program of a sum, or of its gradients, with other functions in the place of some."""
    function = gauss_sum if what == "forward" else functools.partial(value_and_pullback, gauss_sum)
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(mock.patch.object(*patch))
        found = compiled(function, *problem.jax[: 3 if what == "forward" else 4])
    return unchecked(found) if patches else found


def first_columns(a: Any, b: Any) -> jax.Array:
    """In the place of the product of the points."""
    first, second = (jax.tree.leaves(x)[0] for x in (a, b))
    return first[..., :1] * second[..., :1].mT


def work(dim: int, channels: int, what: str) -> tuple[int, int]:
    """Exponentials and multiply-adds of a pair, as they are formed: see the rules in `gauss_sum`."""
    if what == "forward":
        return 1, dim + 2 + channels
    if channels == 1:  # two sums of D + 1 channels
        return 2, 2 * (2 * dim + 3)
    return 2, (dim + 2 + channels) + (dim + 2 + 2 * channels + 2 * dim)


def report(data: dict) -> str:
    """Milliseconds of the parts."""
    rates = "exponentials, products at the device's rates"
    rows = [["D, C", "ms", "exponentials", "product of the points", "rest", rates, "limit ÷ ms"]]
    speed = [data["rates"]["float32"][x] for x in ("exp", "matmul")]
    for (what, n, d, c), methods in by_method(data["cells"], "what", "n", "d", "c").items():
        whole, no_exponentials, no_product = (1e3 * cell["median"] for cell in methods.values())
        rest = no_exponentials + no_product - whole
        limits = [1e3 * n**2 * x / rate for x, rate in zip(work(d, c, what), speed, strict=True)]
        times = [f"{x:.1f}" for x in (whole, whole - no_exponentials, whole - no_product, rest)]
        both = ", ".join(f"{x:.1f}" for x in limits)
        rows.append([f"{what}: {d}, {c}", *times, both, f"{max(limits) / whole:.2f}"])
    return table(rows)


STUDY = Study(steps, report, ours=("whole",), info=all_rates)
