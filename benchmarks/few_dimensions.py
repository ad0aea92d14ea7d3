"""Many points in few dimensions, by waves and by all pairs: `python -m benchmarks.few_dimensions --keep`.

Sums of N points at as many, uniform in a box of L bandwidths or normal with four standard deviations across it, under
`jit`: by `auto`, by all pairs (method "blocked"), by finufft's transforms of types 1 and 2 at 1e-6 where it is
installed, by SciPy's `gaussian_kde`, by scikit-learn's KD-tree at a relative tolerance of 1e-4. SciPy and
scikit-learn are timed for 1024 of the queries, pairs for 16,384, and that many times as long is taken for all. And
what is made of sums: gradients, a step of MMD, log-densities, scores. Sums are checked against float64 before.
"""

import argparse
import functools
import importlib
import importlib.util
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

import jaxgauss

from .measure import JaxCall, add_destination, destination, environment, in_turns, save, shown

UNIFORM = [
    *((1, 20, num) for num in (1000, 10_000, 100_000, 1_000_000)),
    *((2, 20, num) for num in (1000, 10_000, 100_000, 1_000_000)),
    *((3, 8, num) for num in (1000, 10_000, 100_000)),
    *((1, 30, 200_000), (2, 15, 200_000), (2, 50, 200_000), (3, 8, 200_000)),
]
SUMS = {"uniform": UNIFORM, "normal": [(1, 20, 100_000), (2, 20, 100_000), (2, 20, 1_000_000), (3, 8, 100_000)]}
ROWS, PAIRS, CHECKED = 1024, 2**14, 64  # queries that others and pairs are timed for, and that are checked
OTHERS = {"finufft": 1_000_000, "SciPy": 10_000, "scikit-learn": 10_000}  # points they are given at most
NAMES = ("auto", "all pairs", *OTHERS)


def cloud(name: str, num: int, dim: int, seed: int) -> np.ndarray:
    """Points of a box of two units, or of half a unit's standard deviation."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (num, dim)) if name == "uniform" else rng.normal(size=(num, dim)) / 2
    return x.astype(np.float32)


def by_finufft(x: np.ndarray, y: np.ndarray, v: np.ndarray, tau: float) -> Callable[[], np.ndarray]:
    """The sum by transforms of both types, with as many waves as an error of 1e-7 needs."""
    finufft: Any = importlib.import_module("finufft")
    dim, scale = x.shape[1], np.sqrt(tau)
    least, most = np.minimum(x.min(0), y.min(0)), np.maximum(x.max(0), y.max(0))
    beyond = np.sqrt(2 * np.log(4 * dim / 1e-7))
    period = ((most - least) * scale).max() + beyond
    num = int(np.ceil(period * beyond / (2 * np.pi)))
    omega = 2 * np.pi / period * np.arange(-num, num + 1)
    weights = (np.sqrt(2 * np.pi) / period * np.exp(-np.square(omega) / 2)).astype(np.float32)
    first, second = (getattr(finufft, f"nufft{dim}d{kind}") for kind in (1, 2))

    def summed() -> np.ndarray:
        a, b = (
            [
                np.ascontiguousarray((z[:, d] - (least + most)[d] / 2) * (scale * 2 * np.pi / period), "f")
                for d in range(dim)
            ]
            for z in (x, y)
        )
        found = first(*b, v.astype("F"), (len(omega),) * dim if dim > 1 else len(omega), eps=1e-6, isign=-1)
        for d in range(dim):
            found = found * weights.reshape([-1 if e == d else 1 for e in range(dim)])
        return second(*a, np.ascontiguousarray(found), eps=1e-6, isign=1).real

    return summed


def others(x: np.ndarray, y: np.ndarray, v: np.ndarray, tau: float) -> dict[str, tuple[Callable[[], Any], float]]:
    """Other libraries' calls, and how many times as long all queries take."""
    num, found = len(x), {}
    some, more = x[:ROWS], max(1.0, num / ROWS)
    if num <= OTHERS["finufft"] and importlib.util.find_spec("finufft"):
        found["finufft"] = by_finufft(x, y, v, tau), 1.0
    if num <= OTHERS["SciPy"]:
        stats: Any = importlib.import_module("scipy.stats")
        density = stats.gaussian_kde(y.T)
        density.set_bandwidth(float(1 / np.sqrt(tau * y.var())))
        found["SciPy"] = functools.partial(density, some.T), more
    if num <= OTHERS["scikit-learn"]:
        neighbors: Any = importlib.import_module("sklearn.neighbors")
        tree = neighbors.KernelDensity(bandwidth=1 / np.sqrt(tau), rtol=1e-4).fit(y)
        found["scikit-learn"] = functools.partial(tree.score_samples, some), more
    return found


def error_of(found: Any, x: np.ndarray, y: np.ndarray, v: np.ndarray, tau: float) -> float:
    """Of the first rows of a sum, in L2."""
    apart = x[:CHECKED, None].astype(np.float64) - y[None]
    exact = np.exp(-tau / 2 * np.square(apart).sum(-1)) @ v.astype(np.float64)
    return float(np.linalg.norm(np.asarray(found[:CHECKED], np.float64) - exact) / np.linalg.norm(exact))


def of_sums(runs: int) -> list[dict]:
    """Times of sums, and errors."""
    found = []
    sizes = [(name, *size) for name, some in SUMS.items() for size in some]
    for name, dim, length, num in tqdm(sizes, unit="size"):
        x, y, v, tau = cloud(name, num, dim, 0), cloud(name, num, dim, 1), np.ones(num, np.float32), length**2 / 4
        rows = [jnp.asarray(z) for z in (x, x[:PAIRS], y, v)]
        auto = jax.jit(lambda q, k, v, tau=tau: jaxgauss.gauss_sum(q, k, v, tau))
        pairs = jax.jit(lambda q, k, v, tau=tau: jaxgauss.gauss_sum(q, k, v, tau, method="blocked"))
        calls: dict[str, tuple[Any, float]] = {
            "auto": (JaxCall(auto, rows[0], *rows[2:]), 1.0),
            "all pairs": (JaxCall(pairs, *rows[1:]), max(1.0, num / PAIRS)),
        }
        calls |= others(x, y, v, tau)
        errors = {n: error_of(calls[n][0](), x, y, v, tau) for n in ("auto", "all pairs", "finufft") if n in calls}
        if not errors["auto"] < 2e-6:
            raise AssertionError(f"{name}, D = {dim}, L = {length}, N = {num}: errors {errors}")
        times = in_turns({n: call for n, (call, _) in calls.items()}, runs)
        for n, seconds in times.items():
            ms = 1e3 * statistics.median(seconds) * calls[n][1]
            cell = {"cloud": name, "d": dim, "l": length, "n": num, "method": n, "ms": ms, "error": errors.get(n)}
            found.append(cell | {"of_queries": round(num / calls[n][1]), "seconds": seconds})
    return found


def of_methods(runs: int) -> list[dict]:
    """Times of what is made of sums of points in the plane, by waves and, of as many points as last long, by pairs."""
    found = []
    x, y = (jnp.asarray(cloud("normal", 100_000, 2, seed)) for seed in (0, 1))
    v, tau = jnp.ones(len(x)), 100.0
    functions: dict[str, Callable] = {
        "gradients": lambda **how: jax.grad(
            lambda x, y: jaxgauss.gauss_sum(x, y, v[: len(x)], tau, **how).sum(), (0, 1)
        ),
        "MMD step": lambda **how: jax.grad(lambda x, y: jaxgauss.mmd_squared(x, y, tau, **how)),
        "log-density": lambda **how: lambda x, y: jaxgauss.kde_logpdf(x, y, tau, **how),
        "score": lambda **how: lambda x, y: jaxgauss.kde_score(x, y, tau, **how),
    }
    for name, function in tqdm(functions.items(), unit="function"):
        few = len(x) // 8
        calls = {
            "auto": JaxCall(jax.jit(function()), x, y),
            "all pairs": JaxCall(jax.jit(function(method="blocked")), x[:few], y[:few]),
        }
        for n, seconds in in_turns(calls, runs).items():
            ms = 1e3 * statistics.median(seconds) * (64 if n == "all pairs" else 1)
            found.append({"function": name, "n": len(x), "method": n, "ms": ms, "seconds": seconds})
    x, y = (jnp.asarray(cloud("normal", 1_000_000, 2, seed)) for seed in (0, 1))
    seconds = in_turns({"auto": JaxCall(jax.jit(lambda x, y: jaxgauss.kde_logpdf(x, y, tau)), x, y)}, runs)["auto"]
    found.append(
        {
            "function": "log-density",
            "n": len(x),
            "method": "auto",
            "ms": 1e3 * statistics.median(seconds),
            "seconds": seconds,
        }
    )
    return found


def table(cells: list[dict], cloud: str = "uniform") -> list[list[str]]:
    """Milliseconds of every method, a row for each size."""
    sizes = dict.fromkeys((c["d"], c["l"], c["n"]) for c in cells if c["cloud"] == cloud)
    times = {(c["d"], c["l"], c["n"], c["method"]): c["ms"] for c in cells if c["cloud"] == cloud}
    names = [name for name in NAMES if any(c["method"] == name for c in cells)]
    lines = [
        [
            f"{d}, {length}, {n:,}",
            *(f"{times[d, length, n, m]:.3g}" if (d, length, n, m) in times else "–" for m in names),
        ]
        for d, length, n in sizes
    ]
    return [["D, L, N", *names], *lines]


def draw(data: dict, path: Path) -> None:
    """Milliseconds over N, a panel for each dimension: uniform points."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 3, figsize=(11, 3.6), sharey=True, layout="constrained")
    for axes, (dim, length) in zip(panels, ((1, 20), (2, 20), (3, 8)), strict=True):
        for name in NAMES:
            cells = [c for c in data["cells"] if (c["cloud"], c["method"]) == ("uniform", name)]
            line = [(c["n"], c["ms"]) for c in cells if (c["d"], c["l"]) == (dim, length) and c["n"] != 200_000]
            if line:
                axes.loglog(*zip(*sorted(line), strict=True), "o-", label="jaxgauss" if name == "auto" else name)
        axes.set(title=f"D = {dim}, {length} bandwidths across", xlabel="points N, queries and keys")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("milliseconds")
    panels[0].legend()
    figure.savefig(path, dpi=100)


def main(runs: int, out: Path | None, keep: bool) -> None:
    """Measure, save, print tables."""
    info = environment("cpu") | {"suite": "few_dimensions", "runs": runs}
    info |= {"cells": of_sums(runs), "methods": of_methods(runs)}
    path = destination(info, "few_dimensions", out, keep)
    save(info, path)
    draw(info, path.with_suffix(".png"))
    for name in SUMS:
        print(name)
        for row in table(info["cells"], name):
            print(*(f"{x:16}" for x in row))
    for cell in info["methods"]:
        print(f"{cell['function']:12} {cell['n']:10,} {cell['method']:10} {cell['ms']:.3g} ms")
    print(f"raw data: {shown(path)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10, help="timed repetitions of each call (default: 10)")
    add_destination(parser)
    main(**vars(parser.parse_args()))
