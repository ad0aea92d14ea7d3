"""What sums and methods cost by where the points lie: `python -m benchmarks.clouds --keep`.

N = M = 2000 and 4096 points with a bandwidth of their spread: normal ones, which are near one another; with one of them
1000 bandwidths away; in clusters 10,000 bandwidths apart; in 100 bandwidths; or each four times, 1000 from the origin.
Products about one center serve near ones; of the others tiles of sorted points look after their own digits. Sums and
logarithms are checked against float64 before.
"""

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

import jaxgauss

from .measure import JaxCall, add_destination, destination, environment, in_turns, save, shown

NUMS, DIMS = (2000, 4096), (3, 16, 64)
ROWS = 256  # that are checked


def clouds(num: int, dim: int) -> dict[str, np.ndarray]:
    """Points by what they are like, of τ = 1/D."""
    rng = np.random.default_rng(0)
    near, unit = rng.normal(size=(num, dim)), dim**0.5
    outlier = near.copy()
    outlier[0] += 1000
    found = {
        "near": near,
        "outlier": outlier,
        "clusters": near + 1e4 * rng.integers(0, 3, (num, 1)),
        "wide": near * 100 / unit,
        "copies": np.repeat(near[: num // 4], 4, 0) + 1000,
    }
    return {name: x.astype(np.float32) for name, x in found.items()}


def functions(values: jax.Array, dim: int) -> dict[str, Callable]:
    """Of two sets of points."""
    tau, fixed = 1 / dim, jax.lax.stop_gradient

    def sum_of(kernel: str) -> Callable:
        return lambda x, y: jaxgauss.kernel_sum(x, y, values, tau, kernel=kernel).sum()

    def step(method: Callable, *taus: float, **options: str) -> Callable:
        return jax.grad(lambda x, y: method(x, y, *taus, **options))

    return {
        "sum": lambda x, y: jaxgauss.gauss_sum(x, y, values, tau),
        "gradients": jax.grad(sum_of("gauss"), (0, 1)),
        "logarithm": lambda x, y: jaxgauss.log_gauss_sum(x, y, None, tau),
        "score": lambda x, y: jaxgauss.kde_score(x, y, tau),
        "mean, gradient": jax.grad(lambda x, y: jaxgauss.kernel_mean(x, fixed(y), values, tau).sum()),
        "MMD step": step(jaxgauss.mmd_squared, tau),
        "MMD flow": lambda x, y: jaxgauss.mmd_flow_velocity(x, y, tau),
        "HSIC step": step(jaxgauss.hsic, tau, tau),
        "SVGD": lambda x, y: jaxgauss.svgd_direction(x, -x, tau),
        "KSD": lambda x, y: jaxgauss.ksd_squared(x, -x, tau),
        "imq, gradients": jax.grad(sum_of("imq"), (0, 1)),
        "matern32, MMD step": step(jaxgauss.mmd_squared, tau, kernel="matern32"),
        "energy step": step(jaxgauss.energy_distance),
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
    """All functions of all clouds of one dimension; the second set is the first in another order."""
    values = np.random.default_rng(1).normal(size=num).astype(np.float32)
    jitted = {name: jax.jit(f) for name, f in functions(jnp.asarray(values), dim).items()}
    points = {name: jnp.asarray(x) for name, x in clouds(num, dim).items()}
    for name, x in points.items():
        sums, logs = (np.asarray(jitted[function](x, x), np.float64) for function in ("sum", "logarithm"))
        of_this = errors(np.asarray(x), values, 1 / dim, sums, logs)
        if not max(of_this) < 1e-5:
            raise AssertionError(f"D = {dim}, {name}: errors {of_this}")
    found = []
    for name, function in tqdm(jitted.items(), unit="function", leave=False):
        times = in_turns({cloud: JaxCall(function, x, x[::-1]) for cloud, x in points.items()}, runs)
        for cloud, seconds in times.items():
            ms = 1e3 * statistics.median(seconds)
            found.append({"function": name, "n": num, "d": dim, "cloud": cloud, "ms": ms, "seconds": seconds})
    return found


def ratios(measured: list[dict], num: int) -> dict[tuple[str, int], dict[str, float]]:
    """For each function and dimension, the milliseconds of near points, and times as long of the others."""
    times = {(c["function"], c["d"], c["cloud"]): c["ms"] for c in measured if c["n"] == num}
    found: dict[tuple[str, int], dict[str, float]] = {}
    for (function, dim, cloud), ms in times.items():
        found.setdefault((function, dim), {})[cloud] = ms if cloud == "near" else ms / times[function, dim, "near"]
    return found


def rows(measured: list[dict], num: int = NUMS[-1]) -> list[list[str]]:
    """A line for each of these."""
    found = ratios(measured, num)
    _, *names = next(iter(found.values()))
    lines = [[f"{function}, D = {dim}", *(f"{x:.1f}" for x in row.values())] for (function, dim), row in found.items()]
    return [["", "near, ms", *names], *lines]


def summary(measured: list[dict], num: int) -> str:
    """How many of the others take at most three times as long, and the most."""
    others = [x for row in ratios(measured, num).values() for cloud, x in row.items() if cloud != "near"]
    few = sum(x <= 3 for x in others)
    return f"at N = {num}, {few} of {len(others)} take at most 3 times as long, the largest {max(others):.1f} times"


def main(runs: int, out: Path | None, keep: bool) -> None:
    """Measure, save, print a table."""
    info = environment("cpu") | {"suite": "clouds", "runs": runs}
    sizes = [(num, dim) for num in NUMS for dim in DIMS]
    measured = [cell for num, dim in tqdm(sizes, unit="size") for cell in cells(num, dim, runs)]
    path = destination(info, "clouds", out, keep)
    save(info | {"cells": measured}, path)
    for num in NUMS:
        for name, *figures in rows(measured, num):
            print(f"{name:28}", *(f"{x:<10}" for x in figures))
        print(summary(measured, num))
    print(f"raw data: {shown(path)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10, help="timed repetitions of each function (default: 10)")
    add_destination(parser)
    main(**vars(parser.parse_args()))
