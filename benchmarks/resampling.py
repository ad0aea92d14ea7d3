"""Tests by resampling beside kerneltests (MMDAgg, MMD-FUSE, HSICAggInc, KSDAgg) and hyppo: level, power, time, memory.

P-values of one sample by one statistic; power at level 0.05 of the same draws, with 199 resamplings, 999 for tests that
correct for their number of bandwidths; time with 999 resamplings of each (500 and 499 of those) over N, from N = 250 to
where a call takes more than a second. Bandwidths: ours by the median heuristic, or as many as a rival aggregates, with
σ from a quarter to four times the median distance; theirs by their defaults. Then HSIC of many points, and densities
debiased by scores.
"""

import functools
import importlib
import importlib.util
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxgauss import hsic, hsic_test, ksd_test, median_heuristic, mmd_test

from .applications import by_scikit_learn, debiased, debiased_error
from .plots import by_method, having, pivot, prose, table, two
from .study import Call, Cell, JaxCall, Study, Task, unchecked

LEVEL, DRAWS, NUM, RESAMPLINGS, FEW, P_VALUES = 0.05, 100, 100, 999, 199, 1999
SIZES, DIM = (250, 500, 1000, 2000, 4000, 8000), 8
MANY, HUGE, DEBIASED = 10000, 100_000, (4096, 32768)
TOLERANCE = 1e-4  # of log-densities
RIVALS = {"kt": "kerneltests", "hyppo": "hyppo"}
Test = Callable[[np.ndarray, np.ndarray, int, int], bool]  # x, y, seed, resamplings: rejected?


class Method(NamedTuple):
    """A test, the module it needs, and which of ours does the most similar.

    Power is measured with `enough` resamplings; None: another's is the same.
    """

    test: Test
    module: str = "jaxgauss"
    beside: str = ""
    enough: int | None = FEW


def spread(tau: jax.Array, number: int) -> jax.Array:
    """So many bandwidths about a τ, or that alone."""
    return tau if number == 1 else tau * jnp.geomspace(1 / 16, 16, number, dtype=tau.dtype)


@functools.partial(jax.jit, static_argnums=(3, 4, 5))
def p_value(x, y, key, problem: str, number: int, options: tuple) -> jax.Array:
    """Ours, at so many bandwidths (of each variable)."""
    how: dict[str, Any] = dict(options) | {"rng_key": key}
    if problem == "two-sample":
        return mmd_test(x, y, spread(median_heuristic(jnp.concatenate([x, y])), number), **how).p_value
    if problem == "independence":
        return hsic_test(x, y, *(spread(median_heuristic(z), number) for z in (x, y)), **how).p_value
    return ksd_test(x, y, spread(median_heuristic(x), number), **how).p_value


def ours(problem: str, number: int = 1, **options: str) -> Method:
    """A test of ours."""
    name = "num_bootstrap" if problem == "goodness of fit" else "num_permutations"

    def test(x: np.ndarray, y: np.ndarray, seed: int, resamplings: int) -> bool:
        how = (*options.items(), (name, resamplings))
        return float(p_value(x, y, jax.random.key(seed), problem, number, how)) <= LEVEL

    return Method(test)


def aggregated(beside: str, module: str, function: str, *what: str) -> Method:
    """A test of kerneltests."""

    def test(x: np.ndarray, y: np.ndarray, seed: int, resamplings: int) -> bool:
        how = {"alpha": LEVEL, "seed": seed}
        if function == "mmdfuse":
            how["number_permutations"] = resamplings
        else:
            how |= {"B1": resamplings - resamplings // 2, "B2": resamplings // 2}
        return bool(getattr(importlib.import_module(f"kt.{module}"), function)(*what, x, y, **how))

    return Method(test, "kt", beside, FEW if function == "mmdfuse" else RESAMPLINGS)


def of_hyppo(beside: str, module: str, name: str, approximate: bool = False) -> Method:
    """A test of hyppo, by permutations or by the approximation that is its default."""

    def test(x: np.ndarray, y: np.ndarray, seed: int, resamplings: int) -> bool:
        find = getattr(importlib.import_module(f"hyppo.{module}"), name)().test
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of fewer than 1000 permutations
            found = find(x.astype(float), y.astype(float), reps=resamplings, auto=approximate)
        return bool(found[1] <= LEVEL)

    return Method(test, "hyppo", beside, FEW if approximate else None)


METHODS = {
    "two-sample": {
        "mmd_test": ours("two-sample"),
        "mmd_test, 20 bandwidths": ours("two-sample", 20),
        "MMD-FUSE": aggregated("mmd_test, 20 bandwidths", "mmdfuse", "mmdfuse"),
        "MMDAgg": aggregated("mmd_test, 20 bandwidths", "mmdagg", "mmdagg"),
        "hyppo MMD": of_hyppo("mmd_test", "ksample", "MMD"),
        "hyppo MMD, χ²": of_hyppo("mmd_test", "ksample", "MMD", approximate=True),
    },
    "independence": {
        "hsic_test": ours("independence"),
        "hsic_test, wild": ours("independence", resampling="wild"),
        "hsic_test, wild, 25 bandwidths": ours("independence", 5, resampling="wild"),
        "HSICAggInc": aggregated("hsic_test, wild, 25 bandwidths", "agginc", "agginc", "hsic"),
        "hyppo Hsic": of_hyppo("hsic_test", "independence", "Hsic"),
        "hyppo Hsic, χ²": of_hyppo("hsic_test, wild", "independence", "Hsic", approximate=True),
    },
    "goodness of fit": {
        "ksd_test": ours("goodness of fit"),
        "ksd_test, 10 bandwidths": ours("goodness of fit", 10),
        "KSDAgg": aggregated("ksd_test, 10 bandwidths", "ksdagg", "ksdagg"),
    },
}


def there(module: str) -> bool:
    """Whether it is installed."""
    return importlib.util.find_spec(module) is not None


def steps(device: str) -> Iterator[Cell | Task]:
    """Whether tests by resampling are as powerful as others, faster, and right about the same p-values."""
    for name in (name for module, name in RIVALS.items() if not there(module)):
        print(f"{name} is not installed: left out")
    for seed in range(3):
        yield Task(
            {"figure": "p-values", "n": NUM, "resamplings": P_VALUES, "seed": seed}, lambda runs, s=seed: pairs(s)
        )
    for problem, alternatives in ALTERNATIVES.items():
        for name, (make, strengths) in alternatives.items():
            for strength in strengths:
                about = {"figure": "power", "problem": problem, "alternative": name, "strength": strength}
                find = functools.partial(power, problem, make, strength)
                yield Task(about | {"n": NUM, "draws": DRAWS}, lambda runs, find=find: find())
        for num in SIZES:
            yield times(problem, num)
    yield from many_points()
    for num in DEBIASED:
        yield density(num)


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
    pairs = wavy(
        rng,
        lambda n: rng.uniform(-np.pi, np.pi, (n, 2)),
        lambda x: strength * np.sin(2 * x[:, 0]) * np.sin(2 * x[:, 1]),
        num,
    )
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


def power(problem: str, make: Callable, strength: float) -> list[dict]:
    """How many of the draws each test rejects."""
    draws = [sample(make, NUM, strength, seed) for seed in range(DRAWS)]
    rows = []
    for name, method in METHODS[problem].items():
        if method.enough and there(method.module):
            rejected = sum(method.test(x, y, seed, method.enough) for seed, (x, y) in enumerate(draws))
            rows.append({"method": name, "resamplings": method.enough, "rejected": rejected})
    return rows


def times(problem: str, num: int) -> Cell:
    """Seconds of a test of so many points, or pairs of them."""
    make, strength = TIMED[problem]
    x, y = sample(make, num, strength, 0)
    methods = {
        name: lambda test=method.test: unchecked(functools.partial(test, x, y, 0, RESAMPLINGS))
        for name, method in METHODS[problem].items()
        if there(method.module)
    }
    about = {"figure": "time", "problem": problem, "n": num, "resamplings": RESAMPLINGS}
    return Cell(about, methods, series=problem)


def pairs(seed: int) -> list[dict]:
    """P-values of ours and theirs, of one sample each, by one bandwidth and one statistic."""
    rows, key = [], jax.random.key(0)

    def add(problem: str, rival: str, found: Any, theirs: float) -> None:
        rows.append({"problem": problem, "rival": rival, "ours": float(found.p_value), "theirs": float(theirs)})

    def of_kerneltests(name: str, *arguments: Any, **options: Any) -> list[float]:
        found = getattr(importlib.import_module(f"kt.{name}"), name)(*arguments, return_details=True, **options)[1]
        return [found[x] if name == "mmdfuse" else found[x][1] for x in ("bandwidth", "p_value")]

    x, y = sample(shifted, NUM, 0.5, seed)
    u, v = sample(linear, NUM, 0.15, seed)
    points, scores = sample(off_center, NUM, 0.3, seed)
    ours = functools.partial(mmd_test, x, y, rng_key=key, num_permutations=P_VALUES)
    if there("kt"):
        how: dict[str, Any] = {"B1": P_VALUES, "B2": 1, "number_bandwidths": 3}
        width, theirs = of_kerneltests("mmdagg", x, y, kernel="gaussian", permutations_same_sample_size=True, **how)
        add("two-sample", "MMDAgg, one bandwidth", ours(2 / width**2), theirs)
        sharpness = (2 * NUM * (2 * NUM - 1)) ** 0.5 / (NUM * (NUM - 1))
        fuse = {"kernels": "gaussian", "number_permutations": P_VALUES, "lambda_multiplier": sharpness}
        width, theirs = of_kerneltests("mmdfuse", x, y, **fuse)
        add("two-sample", "MMD-FUSE, of our λ", ours(width**-2.0), theirs)
        width, theirs = of_kerneltests("ksdagg", points, scores, **how)
        found = ksd_test(points, scores, width**-2.0, rng_key=key, num_bootstrap=P_VALUES)
        add("goodness of fit", "KSDAgg, one bandwidth", found, theirs)
    if there("hyppo"):
        of_hyppos = {"reps": P_VALUES, "auto": False}
        theirs = importlib.import_module("hyppo.ksample").MMD(gamma=0.05).test(x, y, **of_hyppos)[1]
        add("two-sample", "hyppo MMD", ours(0.1), theirs)
        theirs = importlib.import_module("hyppo.independence").Hsic(gamma=0.05).test(u, v, **of_hyppos)[1]
        found = hsic_test(u, v, 0.1, 0.1, rng_key=key, num_permutations=P_VALUES)
        add("independence", "hyppo Hsic", found, theirs)
    return rows


def many_points() -> Iterator[Cell]:
    """A test by HSIC, and HSIC itself, of more points than others take."""
    x, y = sample(linear, MANY, 0.05, 0)
    how = (("resampling", "wild"), ("num_permutations", RESAMPLINGS))
    test = functools.partial(p_value, x, y, jax.random.key(0), "independence", 1, how)
    u, v = (jnp.asarray(z) for z in sample(linear, HUGE, 0.05, 0))
    value = JaxCall(lambda u, v: hsic(u, v, median_heuristic(u), median_heuristic(v)), u, v)
    calls = {"hsic_test, wild": (MANY, lambda: jax.block_until_ready(test())), "hsic": (HUGE, value)}
    for name, (num, call) in calls.items():
        yield Cell({"figure": "many points", "n": num}, {name: lambda call=call: call})


def mixture(num: int, dim: int = 16) -> tuple[np.ndarray, np.ndarray]:
    """Samples of a mixture of five normal densities, and an eighth as many points."""
    rng = np.random.default_rng(0)
    means = rng.normal(size=(5, dim))
    of = lambda n: (means[rng.integers(5, size=n)] + rng.normal(size=(n, dim))).astype(np.float32)  # noqa: E731
    return of(num), of(num // 8)


def density(num: int) -> Cell:
    """Debiased densities, and scikit-learn's, which are not: they are one sum of an eighth as many."""
    samples, points = mixture(num)
    tau = num ** (2 / (samples.shape[1] + 8))
    operands = jnp.asarray(points), jnp.asarray(samples)
    methods: dict[str, Callable[[], Call]] = {
        "debiased": lambda: JaxCall(functools.partial(debiased, tau=tau), *operands),
        "scikit-learn, not debiased": lambda: unchecked(by_scikit_learn(points, samples, tau**-0.5)),
    }
    error = functools.partial(debiased_error, points, samples, tau)
    return Cell({"figure": "density", "n": num, "m": num // 8, "d": 16, "tau": tau}, methods, error, TOLERANCE)


def entry(cell: dict) -> str:
    """Milliseconds and MiB."""
    if "median" not in cell:
        return "–"
    ms, mib = 1e3 * cell["median"], cell.get("mib")
    return (f"{ms:.3g}" if ms < 1e3 else f"{ms:.0f}") + ("" if mib is None else f" ({mib:.0f})")


def report(data: dict) -> str:
    """Power, times and memory, and where others are faster."""
    text, said = ["", ""], {True: [], False: []}

    def name(c: dict) -> str:
        return c["method"]

    def alternative(c: dict) -> str:
        return f"{c['alternative']} {c['strength']:g}" if c["strength"] else f"null ({c['alternative']})"

    def share(c: dict) -> str:
        return f"{c['rejected'] / c['draws']:.2f}"

    for problem in ALTERNATIVES:
        power, times, memory = (
            having(data["cells"], figure=figure, problem=problem) for figure in ("power", "time", "memory")
        )
        mib = {(c["method"], c["n"]): {"mib": c["mib"]} for c in memory}
        order = list(METHODS[problem])
        times = [c | mib.get((c["method"], c["n"]), {}) for c in times]
        times.sort(key=lambda c: (order.index(c["method"]), c["n"]))
        text[0] += pivot(f"{problem}: rejected", power, name, alternative, share) + "\n"
        text[1] += pivot(f"{problem}: n", times, name, lambda c: str(c["n"]), entry) + "\n"
        found = by_method([c for c in times if "median" in c], "n")
        for rival, own in ((rival, method.beside) for rival, method in METHODS[problem].items()):
            if common := [n for n, x in found.items() if x.keys() >= {rival, own}]:
                (n,) = max(common)
                ratio = found[n,][rival]["median"] / found[n,][own]["median"]
                said[ratio >= 1].append(f"{rival} takes {two(ratio)} times the time of {own} at n = {n}")
    faster, slower = ("; ".join(said[x]) or "nowhere" for x in (True, False))
    others = [c for c in data["cells"] if c["figure"] in ("many points", "density")]
    rows = [["", "points", "ms (MiB)"], *([c["method"], str(c["n"]), entry(c)] for c in others)]
    known = having(data["cells"], figure="p-values")
    apart = max((abs(c["ours"] - c["theirs"]) for c in known), default=0.0)
    sentences = prose(
        f"Where we are faster: {faster}. Where we are slower: {slower}. By one statistic, with",
        f"{P_VALUES} resamplings each, {len(known)} p-values of ours and theirs are at most {apart:.3f} apart.",
    )
    return f"{text[0]}{text[1]}{table(rows)}\n{sentences}"


STUDY = Study(steps, report, ours=("debiased",))
