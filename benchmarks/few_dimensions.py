"""Many points in few dimensions: sums of N points at as many, by waves and by all pairs, under `jit`.

They are uniform in a box of L bandwidths. By `auto`, with finufft and, by products alone, without; by all pairs (method
"blocked"), of a million keys for 16,384 queries, and that many times as long is taken for all; by finufft itself, types
1 and 2 at 1e-6. Then come clouds that are hostile to waves, small sums, where `auto` must not be slower than pairs, and
what is made of sums in the plane, whose pairs are timed for an eighth of the points: gradients, densities, steps of MMD
and SVGD, tests of 199 permutations.
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

from . import inside, plots, rivals
from .plots import having, pivot, power, prose, ratios, span
from .study import Call, Cell, JaxCall, Study, exact_matrix, relative, unchecked

SUMS = [  # D, L, N
    *((1, 20, num) for num in (1000, 10_000, 100_000, 1_000_000)),
    *((2, 20, num) for num in (1000, 10_000, 100_000, 1_000_000)),
    *((3, 8, num) for num in (1000, 10_000, 100_000)),
    *((1, 30, 200_000), (2, 15, 200_000), (2, 50, 200_000), (3, 8, 200_000)),
]
PAIRS, CHECKED = 2**14, 64  # queries that pairs are timed for, and that are checked
LARGEST = 200_000  # points, of which all pairs are timed
HOSTILE = 20_000  # points
DIMS, SMALL = (1, 2, 3), (64, 256, 1024, 4096, 16384)  # points of small sums
LENGTHS = (1, 5, 20, 100, 1000)  # bandwidths across, of the small sums
PLANE, FEWER, PERMUTATIONS = 100_000, 8, 199  # points that methods are given, and how many times fewer of all pairs
TAUS = {"a bandwidth": 64.0, "three bandwidths": np.array([16.0, 64.0, 256.0], np.float32)}  # of tests
OURS = ("auto", "products", "all pairs")
METHODS: dict[str, Callable] = {  # of points x, y and τ
    "gradients": jax.grad(lambda x, y, tau, **how: gauss_sum(x, y, jnp.ones(len(y)), tau, **how).sum(), (0, 1)),
    "MMD step": jax.grad(jaxgauss.mmd_squared),
    "log-density": jaxgauss.kde_logpdf,
    "score": jaxgauss.kde_score,
    "MMD flow, a step": jaxgauss.mmd_flow_velocity,
    "SVGD, a step": lambda x, y, tau, **how: jaxgauss.svgd_direction(x, -4 * x, tau, **how),
}


def steps(device: str) -> Iterator[Cell]:
    """Whether waves are faster than all pairs, and than others, wherever `auto` takes them, and as exact."""
    for size in SUMS:
        yield sums(*size)
    for name in METHODS:
        yield made_of_sums(name, PLANE)
    yield made_of_sums("log-density", 10 * PLANE)
    for name, tau in TAUS.items():
        yield of_tests(f"test, {name}", tau)
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
    """Of the first rows of a sum, in L2, relative to Σ Φ|v|."""
    phi = exact_matrix(x[:CHECKED], y, tau)
    return float(np.linalg.norm(np.asarray(found[:CHECKED]) - phi @ v) / np.linalg.norm(phi @ np.abs(v)))


def sums(dim: int, length: int, num: int) -> Cell:
    """By everything that can."""
    (x, y), tau = (cloud("uniform", num, dim, seed) for seed in (0, 1)), length**2 / 4
    v = np.ones(num, np.float32)
    few = x if num <= LARGEST else x[:PAIRS]

    def of(x: np.ndarray, is_installed: Callable = inside.nufft.is_installed, **how: str) -> Call:
        """A call of the program as it is compiled with finufft, or as without it."""
        jax.clear_caches()
        operands = [jnp.asarray(z) for z in (x, y, v)]
        with mock.patch.object(inside.nufft, "is_installed", is_installed):
            program = jax.jit(functools.partial(gauss_sum, tau=tau, **how)).lower(*operands).compile()
        return lambda: jax.block_until_ready(program(*operands))

    def finufft() -> Call | str:
        call = by_finufft(x, y, v, tau)
        return unchecked(call) if error_of(call(), x, y, v, tau) < 1e-5 else "1e-6 was asked of it"

    calls: dict[str, Callable[[], Call | str]] = {
        "auto": lambda: of(x),
        "products": lambda: of(x, lambda: False),
        "all pairs": lambda: of(few, engine="blocked"),
        "finufft": finufft,
    }
    return Cell(
        {"figure": "sums", "cloud": "uniform", "d": dim, "l": length, "n": num},
        {name: call for name, call in calls.items() if rivals.is_installed(name)},
        lambda found: error_of(found, x, y, v, tau),
        2e-6,
        times={"all pairs": num / len(few)},
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
    functions = {"auto": gauss_sum, "all pairs": functools.partial(gauss_sum, engine="blocked")}
    calls = {name: functools.partial(JaxCall, f, *operands) for name, f in functions.items()}
    return Cell(about, calls, lambda found: error_of(found, x, x, v, tau), 1e-5)


def made_of_sums(name: str, num: int) -> Cell:
    """By waves and, of as many points as last long, by pairs."""
    x, y = (cloud("normal", num, 2, seed) for seed in (0, 1))
    tau = 64.0 if name.endswith("a step") else 100.0
    of, function = {"auto": (x, y)}, functools.partial(METHODS[name], tau=tau)
    calls = {"auto": lambda: JaxCall(function, jnp.asarray(x), jnp.asarray(y))}
    if num == PLANE:
        of["all pairs"] = few = (x[: num // FEWER], y[: num // FEWER])
        pairs = functools.partial(function, engine="blocked")
        calls["all pairs"] = lambda: JaxCall(pairs, *map(jnp.asarray, few))

    def error(results: Any) -> float:
        found = jax.tree.leaves(results)[0]
        return relative(found[:CHECKED], exact(name, *of["auto" if len(found) == num else "all pairs"], tau))

    return Cell({"figure": "methods", "function": name, "n": num}, calls, error, 1e-3, times={"all pairs": FEWER**2})


def exact(name: str, x: np.ndarray, y: np.ndarray, tau: float) -> np.ndarray:
    """The first rows in float64."""
    few, num = x[:CHECKED].astype(np.float64), len(y)
    among, beside = exact_matrix(few, x, tau), exact_matrix(few, y, tau)
    repelled, drawn = (phi.sum(1)[:, None] * few - phi @ z for phi, z in ((among, x), (beside, y)))  # Σ Φ (x - z)
    return {
        "gradients": -tau * drawn,
        "MMD step": 2 * tau / num**2 * (drawn - repelled),
        "log-density": np.log(beside.mean(1) * tau / (2 * np.pi)),
        "score": -tau * drawn / beside.sum(1)[:, None],
        "MMD flow, a step": tau / num * (repelled - drawn),
        "SVGD, a step": (tau * repelled - 4 * among @ x) / num,
    }[name]


def of_tests(name: str, tau: Any) -> Cell:
    """A test by permutations; by pairs of fewer points the same statistics are found."""
    x, y = (cloud("normal", PLANE, 2, seed) for seed in (0, 1))

    def found(x: np.ndarray, y: np.ndarray, waves: bool) -> np.ndarray:
        pays = inside.mmd_test.blocks_that_pay
        with mock.patch.object(inside.mmd_test, "blocks_that_pay", pays if waves else lambda *_: 0):
            test = jaxgauss.mmd_test(x, y, tau, rng_key=jax.random.key(0), num_permutations=PERMUTATIONS)
        return np.append(test.statistic, test.null_statistics)

    auto, pairs = functools.partial(found, x, y, True), functools.partial(found, x[::FEWER], y[::FEWER], False)
    methods = {"auto": lambda: unchecked(auto), "all pairs": lambda: unchecked(pairs)}
    about = {"figure": "methods", "function": name, "n": PLANE, "permutations": PERMUTATIONS}
    return Cell(about, methods, times={"all pairs": FEWER**2})


def report(data: dict) -> str:
    """Sums by waves, by all pairs and by others."""
    made, hostile, small = (having(data["cells"], figure=figure) for figure in ("methods", "hostile", "small"))
    of_sums = having(data["cells"], figure="sums")
    slowest = max(ratios(small, "auto", "all pairs", "d", "n", "l"))
    exact = prose(
        f"{data['device_name']}, {data['cores']} cores; sums by `auto` err by at most",
        f"{power(max(c['error'] for c in having(of_sums, method='auto')))} of Σ Φ|v| in L2. Normal points in the",
        f"plane, milliseconds (pairs of an eighth of the points, times {FEWER**2}):",
    )
    others = prose(
        f"Clouds of {hostile[0]['n']:,} points that are hostile to waves, in one to three dimensions, take",
        f"{span(ratios(hostile, 'auto', 'all pairs', 'cloud', 'd'))} times as long as all pairs. Of sums of 64 to",
        f"16,384 points in 1 to 1000 bandwidths, the slowest takes {slowest:.2f} times as long.",
    )
    plane = pivot("", made, "{function}, N = {n:,}", "{method}")
    return "\n".join([pivot("D, L, N", of_sums, "{d}, {l}, {n:,}", "{method}"), exact, plane, others])


def draw(data: dict, path: Path) -> None:
    """Over N, a panel for each dimension: uniform points."""
    cells = [c for c in having(data["cells"], figure="sums") if c["n"] != 200_000]
    plots.panels(data, path, "", [("median", plots.titled(cells, "D = {d}, {l} bandwidths across"))])


STUDY = Study(steps, report, draw, OURS)
