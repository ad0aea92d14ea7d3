"""Wide points and values, forward mode, streamed keys, many steps: `python -m benchmarks.scaling`.

Results are checked against float64 before they are timed. Functions take turns in one process; a timed call follows an
untimed one of the same function, except for streamed sums of seconds. Memory is measured in a process of its own.
Results go to outputs/benchmarks, with `--keep` to benchmarks/results.
"""

import argparse
import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm, trange

from jaxgauss import KeyChunks, gauss_sum, gauss_sum_blocked, gauss_sum_dense, gauss_sum_streamed

from .measure import (
    add_destination,
    destination,
    environment,
    error,
    exact_sum,
    peak_bytes,
    problem,
    save,
    shown,
    timed,
    value_and_pullback,
)

WIDE = [(257, 1), (1024, 1), (16, 257), (300, 257), (16, 700), (300, 700), (16, 4096), (1024, 4096)]  # D, C
WIDE_NUM, NUM, DIMS = 2048, 8192, (3, 16, 64)
KEYS, QUERIES, DIM = 5_000_000, 2000, 16  # of the streamed sum
STEPS, CHUNK = 10_000, None


def relative_error(results: object, exact: object, tolerance: float = 5e-6) -> float:
    """The largest relative L2 error of all leaves, checked."""
    pairs = zip(jax.tree.leaves(results), jax.tree.leaves(exact), strict=True)
    found = [np.linalg.norm(np.asarray(x, np.float64) - y) / np.linalg.norm(y) for x, y in pairs]
    if not max(found) < tolerance:
        raise AssertionError(f"relative errors {found}")
    return float(max(found))


def in_float64(function: Callable, operands: list[jax.Array]) -> list[np.ndarray]:
    """The function of the same numbers, all of it in float64."""
    with jax.enable_x64(True):
        return [np.asarray(x) for x in jax.tree.leaves(function(*(x.astype(jnp.float64) for x in operands)))]


def compared(suite: dict, functions: dict[str, Callable], operands: list[jax.Array], exact: object, runs: int):
    """Timed cells of functions of the same operands, under jit."""
    jitted = {name: jax.jit(function) for name, function in functions.items()}
    errors = {name: relative_error(function(*operands), exact) for name, function in jitted.items()}
    calls = {name: lambda f=f: jax.block_until_ready(f(*operands)) for name, f in jitted.items()}
    return [cell | {"error": errors[cell["method"]]} for cell in timed(suite, calls, runs)]


def wide_cells(runs: int) -> list[dict]:
    """Forward, and value with all gradients, beside the blocked JAX sum."""
    cells, methods = [], {"auto": gauss_sum, "blocked JAX": gauss_sum_blocked}
    for dim, channels in tqdm(WIDE, desc="wide", unit="size"):
        *operands, g = problem(WIDE_NUM, dim, channels)
        suite = {"suite": "wide", "n": WIDE_NUM, "d": dim, "c": channels}
        q, k, v = (np.asarray(x) for x in operands)
        exact = exact_sum(q, k, v)
        cells += compared(suite | {"what": "forward"}, methods, operands, [exact], runs)
        both = {name: functools.partial(value_and_pullback, function) for name, function in methods.items()}
        exact = in_float64(functools.partial(value_and_pullback, gauss_sum_dense), [*operands, g])
        cells += compared(suite | {"what": "gradients"}, both, [*operands, g], exact, runs)
    return cells


def forward_mode_cells(runs: int) -> list[dict]:
    """Value and tangent, and a Hessian times a vector, by forward mode beside the blocked JAX sum and reverse mode."""

    def ours(*x: jax.Array) -> jax.Array:
        return gauss_sum(*x, forward_mode=True)

    def tangent(function: Callable) -> Callable:
        return lambda *x: jax.jvp(lambda *y: function(*y, *x[2:]), x[:2], tuple(jnp.cos(y) for y in x[:2]))

    def loss(function: Callable) -> Callable:
        return lambda *x: jnp.sin(function(*x)).sum()

    def hessian_times(function: Callable) -> Callable:
        return lambda q, *x: jax.jvp(jax.grad(lambda q: loss(function)(q, *x)), (q,), (jnp.cos(q),))[1]

    def twice_reverse(q: jax.Array, *x: jax.Array) -> jax.Array:
        return jax.grad(lambda q: (jax.grad(loss(gauss_sum))(q, *x) * jnp.cos(jax.lax.stop_gradient(q))).sum())(q)

    cells = []
    for dim in tqdm(DIMS, desc="forward mode", unit="size"):
        operands = [*problem(NUM, dim, 1)[:3]]
        small = [x[:500] for x in operands]
        for what, of, more in (
            ("jvp", tangent, {}),
            ("Hessian times vector", hessian_times, {"reverse": twice_reverse}),
        ):
            functions = {"forward mode": of(ours), "blocked JAX": of(gauss_sum_blocked), **more}
            exact = in_float64(of(gauss_sum_dense), small)
            jitted = {name: jax.jit(function) for name, function in functions.items()}
            errors = {name: relative_error(f(*small), exact, 2e-5) for name, f in jitted.items()}  # tangents cancel
            calls = {name: lambda f=f, x=operands: jax.block_until_ready(f(*x)) for name, f in jitted.items()}
            measured = timed({"suite": "forward mode", "n": NUM, "d": dim, "c": 1, "what": what}, calls, runs)
            cells += [cell | {"error": errors[cell["method"]]} for cell in measured]
    return cells


def write_keys(folder: Path) -> None:
    """Keys and weights in files, a block at a time."""
    rng = np.random.default_rng(0)
    keys = np.lib.format.open_memmap(folder / "keys.npy", "w+", np.float32, (KEYS, DIM))
    weights = np.lib.format.open_memmap(folder / "weights.npy", "w+", np.float32, (KEYS,))
    for start in range(0, KEYS, 500_000):
        rows = slice(start, min(start + 500_000, KEYS))
        keys[rows] = rng.normal(size=keys[rows].shape) / DIM**0.5
        weights[rows] = rng.normal(size=weights[rows].shape)


def opened(folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Queries, and memory-mapped keys and weights."""
    queries = (np.random.default_rng(1).normal(size=(QUERIES, DIM)) / DIM**0.5).astype(np.float32)
    keys, weights = (np.load(folder / name, mmap_mode="r") for name in ("keys.npy", "weights.npy"))
    return queries, keys, weights


def streamed_memory(folder: str) -> None:
    """Prints the MiB that a streamed sum needs above a small one, in this process."""
    queries, keys, weights = opened(Path(folder))
    gauss_sum_streamed(queries, KeyChunks(keys[:1000], weights[:1000])).block_until_ready()
    before = peak_bytes()
    gauss_sum_streamed(queries, KeyChunks(keys, weights)).block_until_ready()
    print((peak_bytes() - before) / 2**20)


def streamed_mebibytes(device: str, folder: str) -> float:
    """The same, measured in a process of its own."""
    code = f"import benchmarks.scaling as b; b.streamed_memory({folder!r})"
    command, variables = [sys.executable, "-c", code], os.environ | {"JAX_PLATFORMS": device}
    return float(subprocess.run(command, stdout=subprocess.PIPE, check=True, env=variables).stdout)


def streamed_cells(device: str, runs: int) -> list[dict]:
    """From memory-mapped files, beside one sum in memory; and interrupted, then resumed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_keys(folder)
        queries, keys, weights = opened(folder)
        chunks, in_memory = (
            KeyChunks(keys, weights, CHUNK),
            [jnp.asarray(np.array(x)) for x in (queries, keys, weights)],
        )
        calls = {
            "streamed": lambda: gauss_sum_streamed(queries, chunks).block_until_ready(),
            "in memory": lambda: gauss_sum(*in_memory).block_until_ready(),
        }
        cells = timed({"suite": "streamed", "m": QUERIES, "n": KEYS, "d": DIM}, calls, runs)
        cells[0]["mib"] = streamed_mebibytes(device, name)
        cells[0]["error"] = error(lambda q, k, v: gauss_sum_streamed(q, chunks), queries, keys, weights, rows=4)

        def interrupted():
            for i, chunk in enumerate(chunks):
                if i == len(chunks) // 2:
                    raise KeyboardInterrupt
                yield chunk

        try:
            gauss_sum_streamed(queries, interrupted(), saved=folder / "sum.npz")
        except KeyboardInterrupt:
            resumed = gauss_sum_streamed(queries, chunks, saved=folder / "sum.npz")
            cells[0]["same_bits_when_resumed"] = bool((resumed == gauss_sum_streamed(queries, chunks)).all())
    return cells


def training_cells() -> list[dict]:
    """MiB that resident memory grows by over thousands of jitted training steps, after the first 500."""
    x, y, weights, _ = problem(64, 16, 1)

    def resident() -> float:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

    cells = []
    for method in ("rescale", "auto"):

        @jax.jit
        def step(x: jax.Array, method: str = method) -> jax.Array:
            return x - 0.1 * jax.grad(lambda x: gauss_sum(x, y, weights, method=method).mean())(x)

        points, sizes = x, []
        for _ in trange(STEPS, desc=f"training, {method}", unit="step"):
            points = step(points).block_until_ready()
            sizes.append(resident())
        cells.append(
            {"suite": "training", "method": method, "steps": STEPS, "grown_mib": max(sizes[500:]) - sizes[500]}
        )
    return cells


def report(cells: list[dict]) -> None:
    """What was found, a line for each; `benchmarks.pages` makes the tables of the docs."""
    for suite, ours in (("wide", "auto"), ("forward mode", "forward mode")):
        found = [c for c in cells if c["suite"] == suite]
        for c in (c for c in found if c["method"] == ours):
            key = {name: c[name] for name in ("d", "c", "what")}
            others = {o["method"]: o["median"] for o in found if o["method"] != ours and o | key == o}
            times = ", ".join(f"{name} {1e3 * t:.1f} ms ({t / c['median']:.2f}x)" for name, t in others.items())
            print(f"{suite}, D = {c['d']}, C = {c['c']}, {c['what']}: {1e3 * c['median']:.1f} ms; {times}")
    for c in cells:
        if c["suite"] in ("streamed", "training"):
            print({name: value for name, value in c.items() if name != "seconds"})


def main(device: str, runs: int, out: Path | None, keep: bool = False) -> None:
    """Measure, write the JSON, print the tables."""
    info = environment(device)
    cells = training_cells() + wide_cells(runs) + forward_mode_cells(runs) + streamed_cells(device, runs)
    path = destination(info, "scaling", out, keep)
    save(info | {"cells": cells}, path)
    report(cells)
    print(f"raw data: {shown(path)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--runs", type=int, default=10, help="timed runs of each function (default: 10)")
    add_destination(parser)
    main(**vars(parser.parse_args()))
