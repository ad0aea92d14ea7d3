"""Many points in few dimensions, by waves and by all pairs: `python -m benchmarks.few_dimensions --keep`.

Sums of N points at as many, uniform in a box of L bandwidths or normal with four standard deviations across it, under
`jit`: by `auto`, with finufft and, by products alone, without; by all pairs (method "blocked"); by finufft itself,
types 1 and 2 at 1e-6; by SciPy's `gaussian_kde`; by scikit-learn's KD-tree at a relative tolerance of 1e-4. SciPy and
scikit-learn are timed for 1024 of the queries, pairs of a million keys for 16,384, and that many times as long is taken
for all. What takes longer than a second is timed once. Then come clouds that are hostile to waves, small sums, where
`auto` must not be slower than pairs, and what is made of sums: gradients, a step of MMD, log-densities, scores. Sums
are checked against float64 before.
"""

import argparse
import contextlib
import functools
import importlib
import importlib.util
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

import jaxgauss
from jaxgauss._engines import nufft

from .measure import TOO_SLOW, Call, JaxCall, add_destination, destination, environment, in_turns, save, shown

UNIFORM = [
    *((1, 20, num) for num in (1000, 10_000, 100_000, 1_000_000)),
    *((2, 20, num) for num in (1000, 10_000, 100_000, 1_000_000)),
    *((3, 8, num) for num in (1000, 10_000, 100_000)),
    *((1, 30, 200_000), (2, 15, 200_000), (2, 50, 200_000), (3, 8, 200_000)),
]
SUMS = {"uniform": UNIFORM, "normal": [(1, 20, 100_000), (2, 20, 100_000), (2, 20, 1_000_000), (3, 8, 100_000)]}
ROWS, PAIRS, CHECKED = 1024, 2**14, 64  # queries that others and pairs are timed for, and that are checked
LARGEST = 200_000  # points, of which all pairs are timed
HOSTILE = 20_000  # points
SMALL = [(dim, num) for dim in (1, 2, 3) for num in (64, 256, 1024, 4096, 16384)]
LENGTHS = (1, 5, 20, 100, 1000)  # bandwidths across, of the small sums
OTHERS = {"finufft": 1_000_000, "SciPy": 10_000, "scikit-learn": 10_000}  # points they are given at most
LABELS = {"auto": "jaxgauss, finufft", "products": "jaxgauss, products"}
NAMES = ("auto", "products", "all pairs", *OTHERS)


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
    phi = np.exp(-tau / 2 * np.square(apart).sum(-1))
    wrong = np.asarray(found[:CHECKED], np.float64) - phi @ v.astype(np.float64)
    return float(np.linalg.norm(wrong) / np.linalg.norm(phi @ np.abs(v).astype(np.float64)))


@contextlib.contextmanager
def without_finufft() -> Iterator[None]:
    """As if it were not installed."""
    jax.clear_caches()
    with mock.patch.object(nufft, "is_installed", lambda: False):
        yield
    jax.clear_caches()


def compiled(function: Callable, *operands: jax.Array) -> Call:
    """A call of the program, which takes what is installed now."""
    program = jax.jit(function).lower(*operands).compile()
    return lambda: jax.block_until_ready(program(*operands))


def timed(calls: dict[str, Call], runs: int) -> dict[str, list[float]]:
    """Seconds of each call, in turns; of slow ones once."""
    first = {}
    for name, call in calls.items():
        call()
        start = time.perf_counter()
        call()
        first[name] = time.perf_counter() - start
    slow = {name: [seconds] for name, seconds in first.items() if seconds > TOO_SLOW}
    return in_turns({name: call for name, call in calls.items() if name not in slow}, runs) | slow


def of_sums(runs: int) -> list[dict]:
    """Times of sums, and errors."""
    found = []
    sizes = [(name, *size) for name, some in SUMS.items() for size in some]
    for name, dim, length, num in tqdm(sizes, unit="size"):
        x, y, v, tau = cloud(name, num, dim, 0), cloud(name, num, dim, 1), np.ones(num, np.float32), length**2 / 4
        rows = [jnp.asarray(z) for z in (x, x if num <= LARGEST else x[:PAIRS], y, v)]
        auto = functools.partial(jaxgauss.gauss_sum, tau=tau)
        with without_finufft():
            products = compiled(auto, rows[0], *rows[2:])
        calls: dict[str, tuple[Any, float]] = {
            "auto": (compiled(auto, rows[0], *rows[2:]), 1.0),
            "products": (products, 1.0),
            "all pairs": (compiled(functools.partial(auto, method="blocked"), *rows[1:]), num / len(rows[1])),
        }
        calls |= others(x, y, v, tau)
        errors = {n: error_of(calls[n][0](), x, y, v, tau) for n in NAMES[:4] if n in calls}
        if not errors["auto"] < 2e-6:
            raise AssertionError(f"{name}, D = {dim}, L = {length}, N = {num}: errors {errors}")
        times = timed({n: call for n, (call, _) in calls.items()}, runs)
        for n, seconds in times.items():
            ms = 1e3 * statistics.median(seconds) * calls[n][1]
            cell = {"cloud": name, "d": dim, "l": length, "n": num, "method": n, "ms": ms, "error": errors.get(n)}
            found.append(cell | {"of_queries": round(num / calls[n][1]), "seconds": seconds})
    return found


def hostile(dim: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Points of τ = 1 that waves do not suit, and values."""
    rng = np.random.default_rng(0)
    normal, uniform = rng.normal(size=(HOSTILE, dim)), rng.uniform(0, 15, (HOSTILE, dim))
    outlier, values = 3 * normal, rng.normal(size=HOSTILE)
    outlier[0] = 1e4
    clouds = {
        "on a line": (np.repeat(20 * rng.uniform(size=(HOSTILE, 1)), dim, 1), values),
        "one outlier": (outlier, values),
        "all alike": (np.full((HOSTILE, dim), 0.7), values),
        "within 1e-3 bandwidths": (uniform / 15e3, values),
        "values that cancel": (uniform, values - values.mean()),
        "clusters": (normal + 1e4 * rng.integers(0, 3, (HOSTILE, 1)), values),
    }
    return {name: (x.astype(np.float32), v.astype(np.float32)) for name, (x, v) in clouds.items()}


def of_hostile(runs: int) -> list[dict]:
    """Times of `auto` beside all pairs, and errors."""
    found = []
    clouds = [(dim, name, x, v) for dim in (1, 2, 3) for name, (x, v) in hostile(dim).items()]
    for dim, name, x, v in tqdm(clouds, unit="hostile"):
        operands = [jnp.asarray(z) for z in (x, x, v)]
        calls = {
            "auto": JaxCall(jaxgauss.gauss_sum, *operands),
            "all pairs": JaxCall(functools.partial(jaxgauss.gauss_sum, method="blocked"), *operands),
        }
        error = error_of(calls["auto"](), x, x, v, 1.0)
        times = {n: 1e3 * statistics.median(seconds) for n, seconds in in_turns(calls, runs).items()}
        found.append({"cloud": name, "d": dim, "n": len(x), "ms": times, "error": error})
    return found


def of_small(runs: int) -> list[dict]:
    """Times of `auto` beside all pairs, of uniform points."""
    found = []
    for dim, num in tqdm(SMALL, unit="small"):
        x, v = jnp.asarray(cloud("uniform", num, dim, 0)), jnp.ones(num)
        programs = {how: jax.jit(functools.partial(jaxgauss.gauss_sum, method=how)) for how in ("auto", "blocked")}
        for length in LENGTHS:
            calls = {how: JaxCall(f, x, x, v, jnp.asarray(length**2 / 4)) for how, f in programs.items()}
            times = {n: 1e3 * statistics.median(seconds) for n, seconds in in_turns(calls, runs).items()}
            found.append({"d": dim, "n": num, "l": length, "ms": times})
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
        for n, seconds in timed(calls, runs).items():
            ms = 1e3 * statistics.median(seconds) * (64 if n == "all pairs" else 1)
            found.append({"function": name, "n": len(x), "method": n, "ms": ms, "seconds": seconds})
    x, y = (jnp.asarray(cloud("normal", 1_000_000, 2, seed)) for seed in (0, 1))
    seconds = timed({"auto": JaxCall(jax.jit(lambda x, y: jaxgauss.kde_logpdf(x, y, tau)), x, y)}, runs)["auto"]
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

    figure, panels = plt.subplots(1, 3, figsize=(12.5, 3.6), sharey=True, layout="constrained")
    for axes, (dim, length) in zip(panels, ((1, 20), (2, 20), (3, 8)), strict=True):
        for name in NAMES:
            cells = [c for c in data["cells"] if (c["cloud"], c["method"]) == ("uniform", name)]
            line = [(c["n"], c["ms"]) for c in cells if (c["d"], c["l"]) == (dim, length) and c["n"] != 200_000]
            if line:
                axes.loglog(*zip(*sorted(line), strict=True), "o-", label=LABELS.get(name, name))
        axes.set(title=f"D = {dim}, {length} bandwidths across", xlabel="points N, queries and keys")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("milliseconds")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center")
    figure.savefig(path, dpi=100)


def main(runs: int, out: Path | None, keep: bool) -> None:
    """Measure, save, print tables."""
    info = environment("cpu") | {"suite": "few_dimensions", "runs": runs}
    info |= {"cells": of_sums(runs), "methods": of_methods(runs), "hostile": of_hostile(runs), "small": of_small(runs)}
    path = destination(info, "few_dimensions", out, keep)
    save(info, path)
    draw(info, path.with_suffix(".png"))
    for name in SUMS:
        print(name)
        for row in table(info["cells"], name):
            print(*(f"{x:16}" for x in row))
    for cell in info["methods"]:
        print(f"{cell['function']:12} {cell['n']:10,} {cell['method']:10} {cell['ms']:.3g} ms")
    for cell in info["hostile"]:
        print(cell)
    worst = max(info["small"], key=lambda cell: cell["ms"]["auto"] / cell["ms"]["blocked"])
    print(f"small sums: {worst}")
    print(f"raw data: {shown(path)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10, help="timed repetitions of each call (default: 10)")
    add_destination(parser)
    main(**vars(parser.parse_args()))
