"""Tests by resampling beside kerneltests (MMDAgg, MMD-FUSE, HSICAggInc, KSDAgg) and hyppo: level, power, time, memory.

Power at level 0.05 of the same draws, with 199 resamplings, 999 for tests that correct for their number of bandwidths;
time with 999 resamplings of each (500 and 499 of those) over N, from N = 250 to where a call takes more than a second.
Bandwidths: ours by the median heuristic, or as many as a rival aggregates, with σ from a quarter to four times the
median distance; theirs by their defaults.
"""

import functools
import importlib
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxgauss import hsic_test, ksd_test, median_tau, mmd_test

from .plots import having, milliseconds, pivot
from .study import Cell, Study, Task, unchecked

LEVEL, DRAWS, NUM, RESAMPLINGS, FEW = 0.05, 100, 100, 999, 199
SIZES, DIM = (250, 500, 1000, 2000, 4000, 8000), 8
RIVALS = {"kt": "kerneltests", "hyppo": "hyppo"}
Test = Callable[[np.ndarray, np.ndarray, int, int], bool]  # x, y, seed, resamplings: rejected?


class Method(NamedTuple):
    """A test, the module it needs, and resamplings that its power needs."""

    test: Test
    module: str = "jaxgauss"
    enough: int = FEW


@functools.partial(jax.jit, static_argnums=(3, 4, 5))
def p_value(x, y, key, problem: str, number: int, options: tuple) -> jax.Array:
    """Ours, at so many bandwidths (of each variable), about the median heuristic's."""
    how: dict[str, Any] = dict(options) | {"rng_key": key}

    def spread(z: jax.Array) -> jax.Array:
        tau = median_tau(z)
        return tau if number == 1 else tau * jnp.geomspace(1 / 16, 16, number, dtype=tau.dtype)

    if problem == "two-sample":
        return mmd_test(x, y, spread(jnp.concatenate([x, y])), **how).p_value
    if problem == "independence":
        return hsic_test(x, y, spread(x), spread(y), **how).p_value
    return ksd_test(x, y, spread(x), **how).p_value


def ours(problem: str, number: int = 1, **options: str) -> Method:
    """A test of ours."""
    name = "num_bootstrap" if problem == "goodness of fit" else "num_permutations"

    def test(x: np.ndarray, y: np.ndarray, seed: int, resamplings: int) -> bool:
        how = (*options.items(), (name, resamplings))
        return float(p_value(x, y, jax.random.key(seed), problem, number, how)) <= LEVEL

    return Method(test)


def aggregated(module: str, function: str, *what: str) -> Method:
    """A test of kerneltests."""
    fuse = function == "mmdfuse"

    def test(x: np.ndarray, y: np.ndarray, seed: int, resamplings: int) -> bool:
        parts = {"B1": resamplings - resamplings // 2, "B2": resamplings // 2}
        how = {"alpha": LEVEL, "seed": seed} | ({"number_permutations": resamplings} if fuse else parts)
        return bool(getattr(importlib.import_module(f"kt.{module}"), function)(*what, x, y, **how))

    return Method(test, "kt", FEW if fuse else RESAMPLINGS)


def of_hyppo(module: str, name: str) -> Method:
    """A test of hyppo, by the approximation that is its default."""

    def test(x: np.ndarray, y: np.ndarray, seed: int, resamplings: int) -> bool:
        find = getattr(importlib.import_module(f"hyppo.{module}"), name)().test
        return bool(find(x.astype(float), y.astype(float), auto=True)[1] <= LEVEL)

    return Method(test, "hyppo")


METHODS = {
    "two-sample": {
        "mmd_test": ours("two-sample"),
        "mmd_test, 20 bandwidths": ours("two-sample", 20),
        "MMD-FUSE": aggregated("mmdfuse", "mmdfuse"),
        "MMDAgg": aggregated("mmdagg", "mmdagg"),
        "hyppo MMD, χ²": of_hyppo("ksample", "MMD"),
    },
    "independence": {
        "hsic_test": ours("independence"),
        "hsic_test, wild": ours("independence", resampling="wild"),
        "hsic_test, wild, 25 bandwidths": ours("independence", 5, resampling="wild"),
        "HSICAggInc": aggregated("agginc", "agginc", "hsic"),
        "hyppo Hsic, χ²": of_hyppo("independence", "Hsic"),
    },
    "goodness of fit": {
        "ksd_test": ours("goodness of fit"),
        "ksd_test, 10 bandwidths": ours("goodness of fit", 10),
        "KSDAgg": aggregated("ksdagg", "ksdagg"),
    },
}


def known(problem: str) -> dict[str, Method]:
    """The tests that are installed."""
    return {name: x for name, x in METHODS[problem].items() if importlib.util.find_spec(x.module)}


def steps(device: str) -> Iterator[Cell | Task]:
    """Whether tests by resampling are as powerful as others, and faster."""
    for module, name in RIVALS.items():
        if not importlib.util.find_spec(module):
            print(f"{name} is not installed: left out")
    for problem, alternatives in ALTERNATIVES.items():
        for name, (make, strengths) in alternatives.items():
            for strength in strengths:
                about = {"figure": "power", "problem": problem, "alternative": name, "strength": strength}
                yield Task(about | {"n": NUM, "draws": DRAWS}, functools.partial(power, problem, make, strength))
        for num in SIZES:
            yield times(problem, num)


def wavy(rng: np.random.Generator, draw: Callable, wave: Callable, num: int) -> np.ndarray:
    """Points whose density is that of `draw` times (1 + wave), by rejection."""
    points = draw(4 * num)
    kept = points[2 * rng.uniform(size=4 * num) < 1 + wave(points)][:num]
    return kept if len(kept) == num else wavy(rng, draw, wave, num)


def shifted(rng: np.random.Generator, num: int, strength: float, dim: int = DIM) -> tuple[np.ndarray, np.ndarray]:
    """Normal points, and others with another mean."""
    return rng.normal(size=(num, dim)), rng.normal(size=(num, dim)) + strength / dim**0.5


def rippled(rng: np.random.Generator, num: int, strength: float) -> tuple[np.ndarray, np.ndarray]:
    """Uniform numbers, and others whose density has three ripples."""
    waves = wavy(rng, lambda n: rng.uniform(size=(n, 1)), lambda x: strength * np.sin(6 * np.pi * x[:, 0]), num)
    return rng.uniform(size=(num, 1)), waves


def linear(rng: np.random.Generator, num: int, strength: float, dim: int = DIM) -> tuple[np.ndarray, np.ndarray]:
    """Normal points, and others that are correlated with them."""
    x, z = rng.normal(size=(2, num, dim))
    return x, strength * x + (1 - strength**2) ** 0.5 * z


def woven(rng: np.random.Generator, num: int, strength: float) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the joint density 1 + s sin(2x) sin(2y): uniform each, and not correlated."""
    pairs = wavy(rng, lambda n: rng.uniform(-np.pi, np.pi, (n, 2)), lambda x: strength * np.sin(2 * x).prod(1), num)
    return pairs[:, :1], pairs[:, 1:]


def off_center(rng: np.random.Generator, num: int, strength: float, dim: int = DIM) -> tuple[np.ndarray, np.ndarray]:
    """Normal points, with the scores of the standard normal density: their mean is another."""
    x = rng.normal(size=(num, dim)) + strength / dim**0.5
    return x, -x


def rough(rng: np.random.Generator, num: int, strength: float) -> tuple[np.ndarray, np.ndarray]:
    """The same for a density that is the normal one with ripples."""
    x = wavy(rng, lambda n: rng.normal(size=(n, 1)), lambda x: strength * np.sin(5 * x[:, 0]), num)
    return x, -x


ALTERNATIVES: dict[str, dict[str, tuple[Callable, tuple[float, ...]]]] = {
    "two-sample": {"shift": (shifted, (0.0, 0.5, 0.8)), "ripples": (rippled, (0.6, 1.0))},
    "independence": {"linear": (linear, (0.0, 0.1, 0.2)), "woven": (woven, (0.6, 1.0))},
    "goodness of fit": {"shift": (off_center, (0.0, 0.3, 0.5)), "ripples": (rough, (0.6, 1.0))},
}
TIMED = {"two-sample": (shifted, 0.2), "independence": (linear, 0.05), "goodness of fit": (off_center, 0.2)}


def sample(make: Callable, num: int, strength: float, seed: int) -> tuple[np.ndarray, ...]:
    """In float32, for everyone."""
    return tuple(z.astype(np.float32) for z in make(np.random.default_rng([num, seed]), num, strength))


def power(problem: str, make: Callable, strength: float, runs: int) -> list[dict]:
    """How many of the draws each test rejects."""
    draws, rows = [sample(make, NUM, strength, seed) for seed in range(DRAWS)], []
    for name, method in known(problem).items():
        rejected = sum(method.test(x, y, seed, method.enough) for seed, (x, y) in enumerate(draws))
        rows.append({"method": name, "resamplings": method.enough, "rejected": rejected})
    return rows


def times(problem: str, num: int) -> Cell:
    """Seconds of a test of so many points, or pairs of them."""
    make, strength = TIMED[problem]
    draw = sample(make, num, strength, 0)
    methods = {
        name: lambda test=method.test: unchecked(functools.partial(test, *draw, 0, RESAMPLINGS))
        for name, method in known(problem).items()
    }
    about = {"figure": "time", "problem": problem, "n": num, "resamplings": RESAMPLINGS}
    return Cell(about, methods, series=problem)


def report(data: dict) -> str:
    """Power, times and memory."""
    powers, tables = [], []

    def alternative(c: dict) -> str:
        return f"{c['alternative']} {c['strength']:g}" if c["strength"] else f"null ({c['alternative']})"

    def share(c: dict) -> str:
        return f"{c['rejected'] / c['draws']:.2f}"

    def time(c: dict) -> str:
        return f"{milliseconds(c)} ({c['mib'] or 0:.0f})"

    for problem, methods in METHODS.items():
        power, times = (having(data["cells"], figure=figure, problem=problem) for figure in ("power", "time"))
        times = [c for c in times if "median" in c]
        times.sort(key=lambda c: (list(methods).index(c["method"]), c["n"]))
        powers.append(pivot(f"{problem}: rejected", power, "{method}", alternative, share))
        tables.append(pivot(f"{problem}: n", times, "{method}", "{n}", time))
    return "\n".join([*powers, *tables])


STUDY = Study(steps, report)
