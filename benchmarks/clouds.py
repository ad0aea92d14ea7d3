"""Sums and methods by where the points lie: N = M = 2000 and 4096 points with a bandwidth of their spread, τ = 1/D.

Normal ones, which are near one another; with one of them 1000 bandwidths away; in clusters 10,000 bandwidths apart; in
100 bandwidths; or each four times, 1000 from the origin. Products about one center serve near ones; of the others tiles
of sorted points look after their own digits. Sums and logarithms are checked against float64.
"""

import functools
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

import jaxgauss

from .plots import having, prose, table
from .study import Call, Cell, JaxCall, Study

NUMS, DIMS = (2000, 4096), (3, 16, 64)
ROWS = 256  # that are checked
FUNCTIONS = ()  # all of them


def steps(device: str) -> Iterator[Cell]:
    """Whether points far from one another cost more than near ones, by any function."""
    for num in NUMS:
        for dim in DIMS:
            points, values = clouds(num, dim), np.random.default_rng(1).normal(size=num).astype(np.float32)
            functions = functions_of(jnp.asarray(values), dim)
            for name in FUNCTIONS or functions:
                methods = {cloud: functools.partial(call, cloud, functions[name], x) for cloud, x in points.items()}
                error = functools.partial(error_of, name, points, values, 1 / dim)
                yield Cell({"function": name, "n": num, "d": dim}, methods, error, 1e-5)


def call(cloud: str, function: Callable, x: np.ndarray) -> Call:
    """Of the points, and of themselves in another order."""
    timed = JaxCall(function, jnp.asarray(x), jnp.asarray(x[::-1]))
    return lambda: (cloud, timed())


def clouds(num: int, dim: int) -> dict[str, np.ndarray]:
    """Points by what they are like."""
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


def functions_of(values: jax.Array, dim: int) -> dict[str, Callable]:
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


def error_of(name: str, points: dict, values: np.ndarray, tau: float, found: tuple[str, jax.Array]) -> float | None:
    """Of the first rows of sums, relative to Σ Φ|v|, and of logarithms, relative to their size or one."""
    if name not in ("sum", "logarithm"):
        return None
    x, v = points[found[0]].astype(np.float64), values.astype(np.float64)
    logits = -tau / 2 * np.square(x[:ROWS, None] - x[::-1]).sum(-1)
    phi, largest = np.exp(logits), logits.max(1)
    if name == "sum":
        return float(np.linalg.norm(np.asarray(found[1][:ROWS]) - phi @ v) / np.linalg.norm(phi @ np.abs(v)))
    exact = largest + np.log(np.exp(logits - largest[:, None]).sum(1))
    return float(np.max(np.abs(np.asarray(found[1][:ROWS]) - exact) / np.maximum(1, np.abs(exact))))


def report(data: dict) -> str:
    """For each function and dimension, the milliseconds of near points, and times as long of the others."""
    rows, said = [], []
    for num in NUMS:
        found: dict[str, dict[str, float]] = {}
        for c in having(data["cells"], n=num):
            name = f"{c['function']}, D = {c['d']}"
            found.setdefault(name, {})[c.get("cloud") or c["method"]] = c["median"]
        ratios = {name: {cloud: x / row["near"] for cloud, x in row.items()} for name, row in found.items()}
        every = [x for row in ratios.values() for cloud, x in row.items() if cloud != "near"]
        few = f"{sum(x <= 3 for x in every)} of {len(every)} take at most 3 times as long"
        said.append(f"at N = {num}, {few}, the largest {max(every):.1f} times")
        rows = [["", "near, ms", *(cloud for cloud in next(iter(found.values())) if cloud != "near")]]
        for name, row in ratios.items():
            rows.append([name, *(f"{x:.1f}" for x in (row | {"near": 1e3 * found[name]["near"]}).values())])
    return table(rows) + "\n" + prose(f"Of the other clouds {'; '.join(said)}.")


STUDY = Study(steps, report, ours=("near", "outlier", "clusters", "wide", "copies"))
