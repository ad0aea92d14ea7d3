"""MMD with its gradient, the permutation test and SVGD beside dense JAX: `python -m benchmarks.kernel_methods`.

Results are checked against float64 (or each other, where noted) before they are timed. Functions take turns in one
process; a timed call follows an untimed one of the same function. Memory is measured in a process of its own, above
what the process needs for a small problem.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from jaxgauss import gauss_sum, mmd_squared, mmd_test, svgd_direction
from jaxgauss._mmd_test import _Design, labels

from .__main__ import environment, in_turns, peak_bytes, save

SIZES, DIMS = (256, 1024, 4096, 8192), (16, 64)
PERMUTATIONS, TEST_SIZE, TEST_DIM = 999, 5000, 16


def samples(num: int, dim: int) -> tuple[jax.Array, jax.Array]:
    """Two samples of Gaussian points scaled by D^-1/2, the second one moved."""
    rng = np.random.default_rng(0)
    x, y = (jnp.asarray(rng.normal(size=(num, dim)) / dim**0.5 + 0.1 * i, jnp.float32) for i in range(2))
    return x, y


def mmd_dense(x: jax.Array, y: jax.Array, tau: jax.Array) -> jax.Array:
    """The formula, as one writes it."""

    def mean(x: jax.Array, y: jax.Array) -> jax.Array:
        squared = jnp.square(x).sum(-1)[:, None] + jnp.square(y).sum(-1) - 2 * x @ y.T
        return jnp.exp(-tau / 2 * squared).mean()

    return mean(x, x) - 2 * mean(x, y) + mean(y, y)


def timed(suite: dict, functions: dict[str, Callable], runs: int) -> list[dict]:
    """Cells with every repetition and the quartiles."""
    times = in_turns({(name, ""): function for name, function in functions.items()}, runs)
    quartiles = {name: np.quantile(seconds, [0.25, 0.5, 0.75]).tolist() for (name, _), seconds in times.items()}
    return [
        suite | {"method": name, "seconds": times[name, ""]} | dict(zip(("q1", "median", "q3"), q, strict=True))
        for name, q in quartiles.items()
    ]


def mmd_cells(runs: int) -> list[dict]:
    """Value and gradient of MMD² with respect to x, under jit."""
    cells = []
    for num, dim in tqdm([(n, d) for n in SIZES for d in DIMS], desc="mmd_squared", unit="size"):
        x, y = samples(num, dim)
        tau = jnp.float32(1)
        steps = {"mmd_squared": mmd_squared, "dense JAX": mmd_dense}
        steps = {name: jax.jit(jax.value_and_grad(function)) for name, function in steps.items()}
        with jax.enable_x64(True):
            exact = jax.jit(jax.value_and_grad(mmd_dense))(*(z.astype(jnp.float64) for z in (x, y, tau)))
            exact = [np.asarray(z) for z in exact]
        errors = {}
        for name, step in steps.items():
            value, gradient = (np.asarray(z, np.float64) for z in step(x, y, tau))
            errors[name] = [
                float(abs(value / exact[0] - 1)),
                float(np.linalg.norm(gradient - exact[1]) / np.linalg.norm(exact[1])),
            ]
            if max(errors[name]) > 1e-4:
                raise AssertionError(f"{name}, N = {num}, D = {dim}: errors {errors[name]}")
        functions = {
            name: lambda step=step, x=x, y=y, tau=tau: jax.block_until_ready(step(x, y, tau))
            for name, step in steps.items()
        }
        measured = timed({"suite": "mmd", "n": num, "d": dim}, functions, runs)
        cells += [cell | {"errors": errors[cell["method"]]} for cell in measured]
    return cells


def test_with_matrix(x: jax.Array, y: jax.Array, rng_key: jax.Array) -> jax.Array:
    """The p-value with the kernel matrix in memory and used for all labelings, which are drawn in the same way."""
    z, num = jnp.concatenate([x, y]), len(x) + len(y)
    squares = jnp.square(z).sum(-1)
    matrix = jnp.exp(jnp.minimum(z @ z.T - squares[:, None] / 2 - squares / 2, 0))
    design = _Design(len(x), len(y), "permutation", 1, PERMUTATIONS + 2)
    signs = jnp.where(labels(design, rng_key, 0), 1.0, -1.0)
    forms = (signs * (matrix @ signs - signs)).sum(0)  # MMD² but for a factor and a constant, as M = N
    return (1 + (forms[2:] >= forms[1] - 1e-6 * num).sum()) / (PERMUTATIONS + 1)


def permutation_cells(runs: int) -> list[dict]:
    """The permutation test, the same with a matrix, and a thousandth of what recomputing each sum would cost."""
    x, y = samples(TEST_SIZE, TEST_DIM)
    y = y - 0.1
    z, w, rng_key = jnp.concatenate([x, y]), jnp.ones(2 * TEST_SIZE), jax.random.key(0)
    ours = jax.jit(lambda x, y: mmd_test(x, y, 1.0, rng_key=rng_key, num_permutations=PERMUTATIONS))
    dense = jax.jit(lambda x, y: test_with_matrix(x, y, rng_key))
    half = jax.jit(
        lambda x, y: mmd_test(x, y, 1.0, rng_key=rng_key, num_permutations=PERMUTATIONS, precision="bfloat16")
    )
    one = jax.jit(lambda z: gauss_sum(z, z, w))
    p_values = {"mmd_test": float(ours(x, y).p_value), "kernel matrix": float(dense(x, y))}
    if abs(p_values["mmd_test"] - p_values["kernel matrix"]) > 2e-3:
        raise AssertionError(f"p-values differ: {p_values}")
    functions = {
        "mmd_test": lambda: jax.block_until_ready(ours(x, y)),
        "kernel matrix": lambda: jax.block_until_ready(dense(x, y)),
        "one gauss_sum": lambda: jax.block_until_ready(one(z)),
    }
    suite = {"suite": "permutation test", "n": TEST_SIZE, "d": TEST_DIM, "permutations": PERMUTATIONS}
    cells = timed(suite, functions, runs)
    cells += timed(suite, {"mmd_test, bfloat16": lambda: jax.block_until_ready(half(x, y))}, 3)
    return [cell | {"p_value": p_values.get(cell["method"])} for cell in cells]


def large(what: str) -> None:
    """One large problem in this process: prints seconds and MiB above the start."""
    x, y = samples(65536 if what == "mmd" else 50000, TEST_DIM)
    points = jnp.asarray(np.random.default_rng(0).normal(size=(10000, 30)), jnp.float32)
    calls = {
        "mmd": lambda n: jax.jit(jax.value_and_grad(mmd_squared))(x[:n], y[:n], 1.0),
        "test": lambda n: mmd_test(x[:n], y[:n], 1.0, rng_key=jax.random.key(0), progress=True),
        "svgd": lambda n: jax.jit(svgd_direction)(points[:n], -points[:n], 1 / 30),
    }
    jax.block_until_ready(calls[what](64))
    before, start = peak_bytes(), time.perf_counter()
    jax.block_until_ready(calls[what](None))
    print(json.dumps({"seconds": time.perf_counter() - start, "mib": (peak_bytes() - before) / 2**20}))


def large_cells(device: str) -> list[dict]:
    """Each in a process of its own, compilation included."""
    sizes = {"mmd": (65536, TEST_DIM), "svgd": (10000, 30), "test": (50000, TEST_DIM)}
    cells = []
    for what, (num, dim) in tqdm(sizes.items(), desc="large problems", unit="problem"):
        code = f"import benchmarks.kernel_methods as b; b.large({what!r})"
        environment = os.environ | {"JAX_PLATFORMS": device}
        run = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True, env=environment)
        cells.append({"suite": "large", "what": what, "n": num, "d": dim} | json.loads(run.stdout))
    return cells


def report(cells: list[dict]) -> None:
    """The tables of the README."""
    median = {(c["n"], c["d"], c["method"]): 1e3 * c["median"] for c in cells if c["suite"] == "mmd"}
    print("| N, D | mmd_squared | dense JAX | ratio |\n|---|---|---|---|")
    ratios = []
    for num, dim in [(n, d) for n in SIZES for d in DIMS]:
        ours, dense = (median[num, dim, name] for name in ("mmd_squared", "dense JAX"))
        ratios.append(dense / ours)
        print(f"| {num}, {dim} | {ours:.2f} | {dense:.2f} | {dense / ours:.1f}× |")
    print(f"geometric mean: {math.exp(np.log(ratios).mean()):.2f}×")
    for c in cells:
        if c["suite"] == "permutation test":
            print(f"{c['method']}: {c['median']:.3f} s")
        if c["suite"] == "large":
            print(f"{c['what']}, N = {c['n']}, D = {c['d']}: {c['seconds']:.1f} s, {c['mib']:.0f} MiB")


def main(device: str, runs: int, out: Path | None) -> None:
    """Measure, write the JSON, print the tables."""
    info = environment(device)
    cells = mmd_cells(runs) + permutation_cells(runs) + large_cells(device)
    save(info | {"cells": cells}, out, "_kernel_methods")
    report(cells)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--runs", type=int, default=10, help="timed runs of each function (default: 10)")
    parser.add_argument(
        "--out", type=Path, help="JSON file (default: benchmarks/results/<date>_<device>_<commit>_kernel_methods.json)"
    )
    main(**vars(parser.parse_args()))
