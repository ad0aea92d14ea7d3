"""What sums of points far from their center cost: `python -m benchmarks.distance --keep`.

N = M = 4096 normal points, scaled so that the farthest lies R bandwidths from the center: products about it serve up to
some R, then tiles of sorted points look after their own digits. Sums and logarithms are checked against float64 before.
"""

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from jaxgauss import gauss_sum, log_gauss_sum, mmd_squared

from .measure import JaxCall, add_destination, destination, environment, in_turns, save, shown

NUM, DIMS, RADII = 4096, (3, 16, 64), (5, 20, 40, 100, 1000)
ROWS = 256  # that are checked


def functions(values: jax.Array, y: jax.Array) -> dict[str, Callable]:
    """Of points and a bandwidth."""
    return {
        "sum": lambda x, tau: gauss_sum(x, x, values, tau),
        "gradients": jax.grad(lambda x, tau: gauss_sum(x, x, values, tau).sum()),
        "logarithm": lambda x, tau: log_gauss_sum(x, x, None, tau),
        "score": jax.grad(lambda x, tau: log_gauss_sum(x, jax.lax.stop_gradient(x), None, tau).sum()),
        "MMD step": jax.grad(lambda x, tau: mmd_squared(x, y, tau)),
    }


def errors(x: np.ndarray, values: np.ndarray, tau: float, sums: np.ndarray, logs: np.ndarray) -> tuple[float, float]:
    """Of the first rows' sums, relative to Σ Φ|v|, and of their logarithms, to their size or one."""
    points, v = x.astype(np.float64), values.astype(np.float64)
    logits = -tau / 2 * np.square(points[:ROWS, None] - points).sum(-1)
    phi, largest = np.exp(logits), logits.max(1)
    exact = largest + np.log(np.exp(logits - largest[:, None]).sum(1))
    of_sums = np.linalg.norm(sums[:ROWS] - phi @ v) / np.linalg.norm(phi @ np.abs(v))
    return float(of_sums), float(np.max(np.abs(logs[:ROWS] - exact) / np.maximum(1, np.abs(exact))))


def cells(num: int, dim: int, runs: int) -> list[dict]:
    """All functions at all distances, of points of one dimension."""
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(num, dim)).astype(np.float32) for _ in range(2))
    values = rng.normal(size=num).astype(np.float32)
    radius = np.sqrt(np.square(x - x.mean(0)).sum(1).max())
    taus = {r: jnp.float32((r / radius) ** 2) for r in RADII}
    jitted = {name: jax.jit(f) for name, f in functions(jnp.asarray(values), jnp.asarray(y)).items()}
    for r, tau in taus.items():
        sums, logs = (np.asarray(jitted[name](x, tau), np.float64) for name in ("sum", "logarithm"))
        found = errors(x, values, float(tau), sums, logs)
        if not max(found) < 2e-4:  # what `gauss_sum` promises of a handful of terms
            raise AssertionError(f"D = {dim}, R = {r}: errors {found}")
    found = []
    for name, function in jitted.items():
        times = in_turns({r: JaxCall(function, jnp.asarray(x), tau) for r, tau in taus.items()}, runs)
        for r, seconds in times.items():
            ms = 1e3 * statistics.median(seconds)
            found.append({"function": name, "n": num, "d": dim, "r": r, "ms": ms, "seconds": seconds})
    return found


def main(runs: int, out: Path | None, keep: bool, num: int = NUM) -> None:
    """Measure, save, print a table."""
    info = environment("cpu") | {"suite": "distance", "runs": runs}
    measured = [cell for dim in tqdm(DIMS, unit="dimension") for cell in cells(num, dim, runs)]
    path = destination(info, "distance", out, keep)
    save(info | {"cells": measured}, path)
    print(f"{'ms at R =':20}", *(f"{r:<9}" for r in RADII))
    for dim in DIMS:
        for name in dict.fromkeys(c["function"] for c in measured):
            row = [c["ms"] for c in measured if (c["d"], c["function"]) == (dim, name)]
            print(f"{f'{name}, D = {dim}':20}", *(f"{x:<9.1f}" for x in row))
    print(f"raw data: {shown(path)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10, help="timed repetitions of each function (default: 10)")
    add_destination(parser)
    main(**vars(parser.parse_args()))
