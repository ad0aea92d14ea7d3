"""Sums and methods by where the points lie: N = M = 2000 and 4096 points with a bandwidth of their spread, τ = 1/D.

Normal ones, which are near one another; with one of them 1000 bandwidths away; in clusters 10,000 bandwidths apart; in
100 bandwidths; or each four times, 1000 from the origin. Products about one center serve near ones; of the others tiles
of sorted points look after their own digits. Sums and logarithms are checked against float64.
"""

import functools
import itertools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import calls
from .plots import by_method, having, pivot, prose
from .study import Call, Cell, JaxCall, Study

NUMS, DIMS = (2000, 4096), (3, 16, 64)
ROWS = 256  # that are checked
FUNCTIONS = ("gauss_sum", "log_gauss_sum", "kde_score", "mmd_flow_velocity", "svgd_direction", "ksd_squared")
FUNCTIONS += tuple(f"gradients of {x}" for x in ("gauss_sum", "kernel_sum", "kernel_mean"))  # of both sets of points
FUNCTIONS += tuple(f"gradients of {x}" for x in ("mmd_squared", "energy_distance", "hsic"))


def steps(device: str) -> Iterator[Cell]:
    """Whether points far from one another cost more than near ones, by any function."""
    for num, dim in itertools.product(NUMS, DIMS):
        points, values = clouds(num, dim), np.random.default_rng(1).normal(size=num).astype(np.float32)
        for name in FUNCTIONS:
            methods = {cloud: functools.partial(call, cloud, name, x, values) for cloud, x in points.items()}
            error = functools.partial(error_of, name, points, values, 1 / dim)
            yield Cell({"function": name, "n": num, "d": dim}, methods, error, 1e-5)


def call(cloud: str, name: str, x: np.ndarray, values: np.ndarray) -> Call:
    """Of the points, and of themselves in another order."""
    numbers = dict.fromkeys(calls.numbers_of(name), 1 / x.shape[1])

    def function(x: jax.Array, y: jax.Array, v: jax.Array) -> Any:
        return calls.called(name, {"x": x, "y": y, "v": v}, numbers)

    timed = JaxCall(function, *map(jnp.asarray, (x, x[::-1], values)))
    return lambda: (cloud, timed())


def clouds(num: int, dim: int) -> dict[str, np.ndarray]:
    """Points by what they are like."""
    rng = np.random.default_rng(0)
    near = rng.normal(size=(num, dim))
    found = {
        "near": near,
        "outlier": near + 1000 * (np.arange(num) == 0)[:, None],
        "clusters": near + 1e4 * rng.integers(0, 3, (num, 1)),
        "wide": near * 100 / dim**0.5,
        "copies": np.repeat(near[: num // 4], 4, 0) + 1000,
    }
    return {name: x.astype(np.float32) for name, x in found.items()}


def error_of(name: str, points: dict, values: np.ndarray, tau: float, found: tuple[str, jax.Array]) -> float | None:
    """Of the first rows of sums, relative to Σ Φ|v|, and of logarithms, relative to their size or one."""
    if name not in FUNCTIONS[:2]:
        return None
    x, v = points[found[0]].astype(np.float64), values.astype(np.float64)
    logits = -tau / 2 * np.square(x[:ROWS, None] - x[::-1]).sum(-1)
    phi, first = np.exp(logits), np.asarray(found[1][:ROWS], np.float64)
    if name == "gauss_sum":
        return float(np.linalg.norm(first - phi @ v) / np.linalg.norm(phi @ np.abs(v)))
    exact = np.logaddexp.reduce(logits, 1)
    return float(np.max(np.abs(first - exact) / np.maximum(1, np.abs(exact))))


def report(data: dict) -> str:
    """For each function and dimension, the milliseconds of near points, and times as long of the others."""
    found = by_method(data["cells"], "n", "function", "d").values()
    rows = [c | {"ratio": c["median"] / x["near"]["median"]} for x in found for c in x.values()]
    every = [c["ratio"] for c in rows if c["method"] != "near"]
    few = f"{sum(x <= 3 for x in every)} of {len(every)} take at most 3 times as long"
    largest = pivot(
        "",
        having(rows, n=max(c["n"] for c in rows)),
        "{function}, D = {d}",
        lambda c: "near, ms" if c["method"] == "near" else c["method"],
        lambda c: f"{1e3 * c['median'] if c['method'] == 'near' else c['ratio']:.1f}",
    )
    return largest + "\n" + prose(f"Of the other clouds {few}, the largest {max(every):.1f} times.")


STUDY = Study(steps, report, ours=("near", "outlier", "clusters", "wide", "copies"))
