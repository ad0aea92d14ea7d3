"""Many points in few dimensions: sums of N points at as many, by waves and by all pairs, under `jit`.

They are uniform in a box of L bandwidths or normal with four standard deviations across it. By `auto`, with finufft
and, by products alone, without; by all pairs (method "blocked"); by finufft itself, types 1 and 2 at 1e-6; by SciPy's
`gaussian_kde`; by scikit-learn's KD-tree at a relative tolerance of 1e-4. SciPy and scikit-learn are timed for 1024 of
the queries, pairs of a million keys for 16,384, and that many times as long is taken for all. Then come clouds that are
hostile to waves, small sums, where `auto` must not be slower than pairs, and what is made of sums: gradients, a step of
MMD, log-densities, scores.
"""

import functools
import importlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

import jaxgauss
from jaxgauss import gauss_sum

from . import applications, inside, plots, rivals
from .plots import by_method, having, pivot, power, prose
from .study import Call, Cell, Cells, JaxCall, Study, compiled, unchecked

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
DIMS, SMALL = (1, 2, 3), (64, 256, 1024, 4096, 16384)  # points of small sums
LENGTHS = (1, 5, 20, 100, 1000)  # bandwidths across, of the small sums
OTHERS = {"finufft": 1_000_000, "SciPy": 10_000, "scikit-learn": 10_000}  # points they are given at most
NAMES = ("auto", "products", "all pairs", *OTHERS)
PAIRWISE = functools.partial(gauss_sum, method="blocked")
PLANE, FEWER = 100_000, 8  # points that methods are given, and how many times fewer of all pairs


def steps(device: str) -> Iterator[Cell]:
    """Whether waves are faster than all pairs, and than others, wherever `auto` takes them, and as exact."""
    for name, sizes in SUMS.items():
        for dim, length, num in sizes:
            yield sums(name, dim, length, num)
    yield from methods()
    for dim in DIMS:
        for name, operands in hostile(dim).items():
            yield beside_pairs({"figure": "hostile", "cloud": name, "d": dim, "n": HOSTILE}, *operands, 1.0)
    for dim, num, length in itertools.product(DIMS, SMALL, LENGTHS):
        x, tau = cloud("uniform", num, dim, 0), length**2 / 4
        yield beside_pairs({"figure": "small", "d": dim, "n": num, "l": length}, x, np.ones(num, np.float32), tau)


def cloud(name: str, num: int, dim: int, seed: int) -> np.ndarray:
    """Points of a box of two units, or of half a unit's standard deviation."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (num, dim)) if name == "uniform" else rng.normal(size=(num, dim)) / 2
    return x.astype(np.float32)


def error_of(found: Any, x: np.ndarray, y: np.ndarray, v: np.ndarray, tau: float) -> float:
    """Of the first rows of a sum, in L2."""
    apart = x[:CHECKED, None].astype(np.float64) - y[None]
    phi = np.exp(-tau / 2 * np.square(apart).sum(-1))
    wrong = np.asarray(found[:CHECKED], np.float64) - phi @ v.astype(np.float64)
    return float(np.linalg.norm(wrong) / np.linalg.norm(phi @ np.abs(v).astype(np.float64)))


def sums(name: str, dim: int, length: int, num: int) -> Cell:
    """By everything that can."""
    x, y, v, tau = cloud(name, num, dim, 0), cloud(name, num, dim, 1), np.ones(num, np.float32), length**2 / 4
    few = x if num <= LARGEST else x[:PAIRS]
    auto = functools.partial(gauss_sum, tau=tau)

    def of(function: Callable, x: np.ndarray = x) -> Call:
        return compiled(function, *(jnp.asarray(z) for z in (x, y, v)))

    def products() -> Call:
        with mock.patch.object(inside.nufft, "is_installed", lambda: False):
            return of(auto)

    def finufft() -> Call | str:
        call = by_finufft(x, y, v, tau)
        return unchecked(call) if error_of(call(), x, y, v, tau) < 1e-5 else "1e-6 was asked of it"

    calls: dict[str, Callable[[], Call | str]] = {
        "auto": lambda: of(auto),
        "products": products,
        "all pairs": lambda: of(functools.partial(auto, method="blocked"), few),
        "finufft": finufft,
        "SciPy": lambda: unchecked(applications.by_scipy(x[:ROWS], y, float(1 / np.sqrt(tau * y.var())))),
        "scikit-learn": lambda: unchecked(applications.by_scikit_learn(x[:ROWS], y, tau**-0.5, rtol=1e-4)),
    }
    queries = dict.fromkeys(NAMES, num) | {"all pairs": len(few)} | dict.fromkeys(("SciPy", "scikit-learn"), ROWS)
    return Cell(
        {"figure": "sums", "cloud": name, "d": dim, "l": length, "n": num},
        {name: call for name, call in calls.items() if num <= OTHERS.get(name, num) and rivals.is_installed(name)},
        lambda found: error_of(found, x, y, v, tau),
        2e-6,
        times={name: max(1.0, num / queries[name]) for name in NAMES},
    )


def by_finufft(x: np.ndarray, y: np.ndarray, v: np.ndarray, tau: float) -> Call:
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
    factor = functools.reduce(np.multiply.outer, [weights] * dim)

    def summed() -> np.ndarray:
        a, b = (np.ascontiguousarray((z - (least + most) / 2).T * (scale * 2 * np.pi / period), "f") for z in (x, y))
        found = first(*b, v.astype("F"), factor.shape if dim > 1 else len(omega), eps=1e-6, isign=-1)
        return second(*a, np.ascontiguousarray(found * factor), eps=1e-6, isign=1).real

    return summed


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


def beside_pairs(about: dict, x: np.ndarray, v: np.ndarray, tau: float) -> Cell:
    """`auto` beside all pairs, of points at themselves."""
    operands = [jnp.asarray(z) for z in (x, x, v, np.float32(tau))]
    calls = {
        name: functools.partial(JaxCall, f, *operands) for name, f in (("auto", gauss_sum), ("all pairs", PAIRWISE))
    }
    return Cell(about, calls, lambda found: error_of(found, x, x, v, tau), 1e-5)


def methods() -> Iterator[Cell]:
    """What is made of sums of points in the plane, by waves and, of as many points as last long, by pairs."""
    functions: dict[str, Callable] = {
        "gradients": lambda **how: jax.grad(lambda x, y: gauss_sum(x, y, jnp.ones(len(x)), 100.0, **how).sum(), (0, 1)),
        "MMD step": lambda **how: jax.grad(lambda x, y: jaxgauss.mmd_squared(x, y, 100.0, **how)),
        "log-density": lambda **how: lambda x, y: jaxgauss.kde_logpdf(x, y, 100.0, **how),
        "score": lambda **how: lambda x, y: jaxgauss.kde_score(x, y, 100.0, **how),
    }
    for name, num in [*((name, PLANE) for name in functions), ("log-density", 10 * PLANE)]:
        x, y = (jnp.asarray(cloud("normal", num, 2, seed)) for seed in (0, 1))
        calls = {"auto": functools.partial(JaxCall, functions[name](), x, y)}
        if num == PLANE:
            few = x[: num // FEWER], y[: num // FEWER]
            calls["all pairs"] = functools.partial(JaxCall, functions[name](method="blocked"), *few)
        yield Cell({"figure": "methods", "function": name, "n": num}, calls, times={"all pairs": FEWER**2})


def beside(cells: Cells) -> dict[tuple, float]:
    """Of `auto`, how many times as long as all pairs it takes."""
    found = by_method(cells, "cloud", "d", "n", "l")
    return {key: auto["median"] / pairs["median"] for key, (auto, pairs) in ((k, x.values()) for k, x in found.items())}


def report(data: dict) -> str:
    """Sums by waves, by all pairs and by others."""
    cells = data["cells"]
    of_sums = [c for c in cells if "cloud" in c and c["figure"] in ("sums", "cells")]
    uniform = [c for c in having(of_sums, cloud="uniform") if "median" in c]
    rows = pivot("D, L, N", uniform, lambda c: f"{c['d']}, {c['l']}, {c['n']:,}", lambda c: c["method"], ms)
    made = by_method(having(cells, figure="methods"), "function", "n")
    few, many = sorted({n for _, n in made})
    lines = pivot("", having(cells, figure="methods", n=few), lambda c: c["function"], lambda c: c["method"], ms)
    worst, small = beside(having(cells, figure="hostile")), beside(having(cells, figure="small")).values()
    (cloud, dim, num, _), most = max(worst.items(), key=lambda item: item[1])
    text = prose(
        f"{data['device_name']}, {data['cores']} cores; of uniform points, sums by `auto` err by at most",
        f"{power(max(c['error'] for c in having(of_sums, method='auto')))} of Σ Φ|v| in L2. Normal points in",
        f"the plane, {few:,} at as many, in milliseconds (pairs of an eighth of the points, times 64); log-densities",
        f"of a million at a million take {made['log-density', many]['auto']['median']:.1f} s:",
    )
    others = prose(
        f"Clouds that are hostile to waves, {num:,} points in one to three dimensions, take",
        f"{min(worst.values()):.2f} to {most:.2f} times as long as all pairs ({cloud}, D = {dim}). Of {len(small)}",
        f"small sums, 64 to 16,384 points in 1 to 1000 bandwidths, the slowest takes {max(small):.2f} times as long.",
    )
    return f"{rows}\n\n{text}\n\n{lines}\n\n{others}"


def ms(cell: dict) -> str:
    """Three digits."""
    return f"{1e3 * cell['median']:.3g}"


def draw(data: dict, path: Path) -> None:
    """Over N, a panel for each dimension: uniform points."""
    cells = [c for c in data["cells"] if c.get("cloud") == "uniform" and c["n"] != 200_000 and "l" in c]
    figures = plots.titled(cells, lambda c: f"D = {c['d']}, {c['l']} bandwidths across")
    plots.panels(data, path, "", [("median", figures)])


STUDY = Study(steps, report, draw, ("auto", "products", "all pairs"))
