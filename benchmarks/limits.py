"""Where the time of a sum goes, beside what the device could do: `python -m benchmarks.limits --keep`.

Of each cell of the paper's table, N = 8192, float32: what the exponentials take and what the product of the points
takes, each by the same program without it; and the rest, the other products, what goes through memory, and the loop.
Beside them, all exponentials and all products at the device's own rates, the larger of which is the physical limit.
"""

import argparse
import functools
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
from tqdm import tqdm

from jaxgauss import explain, gauss_sum
from jaxgauss._engines import blocked, fused

from .grids import HEADLINE, WHAT
from .measure import Call, add_destination, destination, environment, in_turns, save, shown, value_and_pullback
from .rivals import Problem, rates

NUM = 8192


def cell(num: int, dim: int, channels: int, what: str, speed: dict[str, float], runs: int) -> dict:
    """Milliseconds of the parts."""
    problem = Problem(num, dim, channels)
    q, k, v, g = problem.jax
    function, operands = gauss_sum, (q, k, v)
    if what == "gradients":
        function, operands = functools.partial(value_and_pullback, gauss_sum), (q, k, v, g)
    calls = {"whole": traced(function, *operands)}
    error = problem.error(what, calls["whole"]())
    if not error < 1e-4:
        raise AssertionError(f"D = {dim}, C = {channels}, {what}: error {error}")
    with mock.patch.object(jnp, "exp2", lambda x: x):
        calls["without exponentials"] = traced(function, *operands)
    with mock.patch.object(fused, "logits", first_columns), mock.patch.object(blocked, "logits", first_columns):
        calls["without the product"] = traced(function, *operands)
    jax.clear_caches()
    times = in_turns(calls, runs)
    whole, no_exponentials, no_product = (1e3 * statistics.median(times[name]) for name in calls)
    exponentials, products = work(dim, channels, what)
    at_rates = {"exponentials": exponentials / speed["exp"], "products": products / speed["matmul"]}
    return {
        "n": num,
        "d": dim,
        "c": channels,
        "what": what,
        "ms": whole,
        "exponentials": whole - no_exponentials,
        "product of the points": whole - no_product,
        "rest": no_exponentials + no_product - whole,
        "at the device's rates": {name: 1e3 * num**2 * x for name, x in at_rates.items()},
        "of the limit": 1e3 * num**2 * max(at_rates.values()) / whole,
        "reason": explain(q, k, v).reason,
        "seconds": times,
    }


def traced(function: Callable, *operands: jax.Array) -> Call:
    """A call that is compiled now, by what is patched now."""
    jax.clear_caches()
    compiled = jax.jit(lambda *x: function(*x)).lower(*operands).compile()
    return lambda: jax.block_until_ready(compiled(*operands))


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


def main(runs: int, out: Path | None, keep: bool, num: int = NUM) -> None:
    """Measure, save, print a table."""
    info = environment("cpu") | {"suite": "limits", "runs": runs, "rates": {"float32": rates("cpu", "float32")}}
    cells = [
        cell(num, *size, what, info["rates"]["float32"], runs)
        for what in WHAT
        for size in tqdm(HEADLINE, desc=what, unit="cell")
    ]
    path = destination(info, "limits", out, keep)
    save(info | {"cells": cells}, path)
    parts = ("ms", "exponentials", "product of the points", "rest")
    print("ms of which:".ljust(24), *(x.ljust(22) for x in (*parts, "exp and products at rate", "of the limit")))
    for x in cells:
        rate = " ".join(f"{y:.1f}" for y in x["at the device's rates"].values())
        name = f"D {x['d']}, C {x['c']}, {x['what']}"
        print(f"{name:24}", *(f"{x[part]:<22.1f}" for part in parts), f"{rate:22} {x['of the limit']:.2f}")
    print(f"raw data: {shown(path)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10, help="timed repetitions of each program (default: 10)")
    add_destination(parser)
    main(**vars(parser.parse_args()))
