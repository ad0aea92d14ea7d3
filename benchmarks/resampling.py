"""Tests by resampling beside kerneltests (MMDAgg, MMD-FUSE, HSICAggInc, KSDAgg) and hyppo: level, power, time, memory.

`python -m benchmarks.resampling`: p-values of one sample by one statistic; power at level 0.05 of the same draws, with
199 resamplings, 999 for tests that correct for their number of bandwidths; time with 999 resamplings of each (500 and
499 of those) over N, from N = 250 to where a call would take more than two seconds (`--longest`); and memory beyond
what there was, in a process of its own. Bandwidths: ours by the median heuristic, or as many as a
rival aggregates, with σ from a quarter to four times the median distance; theirs by their defaults. Then HSIC of many
points, and densities debiased by scores. Results go to outputs/benchmarks, with `--keep` to benchmarks/results.
"""

import argparse
import functools
import importlib.metadata
import importlib.util
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from jaxgauss import hsic, hsic_test, kde_logpdf, kde_score, ksd_test, median_heuristic, mmd_test

from .measure import (
    TOO_SLOW,
    Call,
    JaxCall,
    add_destination,
    destination,
    environment,
    exact_matrix,
    in_turns,
    peak_mebibytes,
    quartiles,
    relative,
    save,
    shown,
)

LEVEL, DRAWS, NUM, RESAMPLINGS, FEW = 0.05, 100, 100, 999, 199
SIZES, DIM, LONGEST, FEW_RUNS = (250, 500, 1000, 2000, 4000, 8000), 8, 2.0, 5
MANY, HUGE, DEBIASED = 10000, 100_000, (4096, 32768)
SEVERAL = 2.0  # seconds: of calls that take longer there are FEW_RUNS
SETTLED = 0.1  # seconds: calls that take longer need no others before them
PATIENCE = 60.0  # seconds of scikit-learn
TOLERANCE = 1e-4  # of log-densities
RIVALS = {"kt": "kerneltests", "hyppo": "hyppo", "sklearn": "scikit-learn"}
Test = Callable[[np.ndarray, np.ndarray, int, int], bool]  # x, y, seed, resamplings: rejected?


class Method(NamedTuple):
    """A test, the module it needs, and with how many resamplings power is measured; None: another's is the same."""

    test: Test
    module: str = "jaxgauss"
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


def aggregated(module: str, function: str, *what: str) -> Method:
    """A test of kerneltests."""

    def test(x: np.ndarray, y: np.ndarray, seed: int, resamplings: int) -> bool:
        how = {"alpha": LEVEL, "seed": seed}
        if function == "mmdfuse":
            how["number_permutations"] = resamplings
        else:
            how |= {"B1": resamplings - resamplings // 2, "B2": resamplings // 2}
        return bool(getattr(importlib.import_module(f"kt.{module}"), function)(*what, x, y, **how))

    return Method(test, "kt", FEW if function == "mmdfuse" else RESAMPLINGS)


def of_hyppo(module: str, name: str, approximate: bool = False) -> Method:
    """A test of hyppo, by permutations or by the approximation that is its default."""

    def test(x: np.ndarray, y: np.ndarray, seed: int, resamplings: int) -> bool:
        find = getattr(importlib.import_module(f"hyppo.{module}"), name)().test
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of fewer than 1000 permutations
            found = find(x.astype(float), y.astype(float), reps=resamplings, auto=approximate)
        return bool(found[1] <= LEVEL)

    return Method(test, "hyppo", FEW if approximate else None)


METHODS = {
    "two-sample": {
        "mmd_test": ours("two-sample"),
        "mmd_test, 20 bandwidths": ours("two-sample", 20),
        "MMD-FUSE": aggregated("mmdfuse", "mmdfuse"),
        "MMDAgg": aggregated("mmdagg", "mmdagg"),
        "hyppo MMD": of_hyppo("ksample", "MMD"),
        "hyppo MMD, χ²": of_hyppo("ksample", "MMD", approximate=True),
    },
    "independence": {
        "hsic_test": ours("independence"),
        "hsic_test, wild": ours("independence", resampling="wild"),
        "hsic_test, wild, 25 bandwidths": ours("independence", 5, resampling="wild"),
        "HSICAggInc": aggregated("agginc", "agginc", "hsic"),
        "hyppo Hsic": of_hyppo("independence", "Hsic"),
        "hyppo Hsic, χ²": of_hyppo("independence", "Hsic", approximate=True),
    },
    "goodness of fit": {
        "ksd_test": ours("goodness of fit"),
        "ksd_test, 10 bandwidths": ours("goodness of fit", 10),
        "KSDAgg": aggregated("ksdagg", "ksdagg"),
    },
}

PAIRS = (  # problem, rival, and which of ours does the most similar
    ("two-sample", "MMD-FUSE", "mmd_test, 20 bandwidths"),
    ("two-sample", "MMDAgg", "mmd_test, 20 bandwidths"),
    ("two-sample", "hyppo MMD", "mmd_test"),
    ("two-sample", "hyppo MMD, χ²", "mmd_test"),
    ("independence", "HSICAggInc", "hsic_test, wild, 25 bandwidths"),
    ("independence", "hyppo Hsic", "hsic_test"),
    ("independence", "hyppo Hsic, χ²", "hsic_test, wild"),
    ("goodness of fit", "KSDAgg", "ksd_test, 10 bandwidths"),
)


def there(method: Method) -> bool:
    """Whether it can run."""
    return importlib.util.find_spec(method.module) is not None


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


def power(problem: str, alternative: str, strength: float) -> list[dict]:
    """How many of the draws each test rejects."""
    make = ALTERNATIVES[problem][alternative][0]
    draws = [sample(make, NUM, strength, seed) for seed in range(DRAWS)]
    about = {"figure": "power", "problem": problem, "alternative": alternative, "strength": strength}
    about |= {"n": NUM, "draws": DRAWS}
    cells = []
    for name, method in METHODS[problem].items():
        if method.enough and there(method):
            rejected = sum(method.test(x, y, seed, method.enough) for seed, (x, y) in enumerate(draws))
            cells.append(about | {"method": name, "resamplings": method.enough, "rejected": rejected})
    return cells


def call_of(problem: str, name: str, num: int) -> Call:
    """One test of a sample of so many points, or pairs of them."""
    make, strength = TIMED[problem]
    x, y = sample(make, num, strength, 0)
    return functools.partial(METHODS[problem][name].test, x, y, 0, RESAMPLINGS)


def slowly(calls: dict[str, Call], runs: int) -> dict[str, list[float]]:
    """Seconds of calls that have been made before, in turns, without more of them."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(runs):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return times


def times(problem: str, runs: int, longest: float) -> list[dict]:
    """Seconds of a test, of more and more points, while they are likely to be few enough."""
    cells, last = [], {name: 0.0 for name, method in METHODS[problem].items() if there(method)}
    previous = SIZES[0]
    for num in SIZES:
        calls = {name: call_of(problem, name, num) for name, s in last.items() if s * (num / previous) ** 2 <= longest}
        for call in calls.values():
            call()
        once = {name: x[0] for name, x in slowly(calls, 1).items()}
        quick, slow, slowest = (
            {name: call for name, call in calls.items() if low <= once[name] < high}
            for low, high in ((0.0, SETTLED), (SETTLED, SEVERAL), (SEVERAL, float("inf")))
        )
        found = in_turns(quick, runs) | slowly(slow, runs) | slowly(slowest, min(runs, FEW_RUNS))
        for name, seconds in found.items():
            cell = {"figure": "time", "problem": problem, "method": name, "n": num, "resamplings": RESAMPLINGS}
            cells.append(cell | {"seconds": seconds} | quartiles({"seconds": seconds}))
        last = {c["method"]: c["median"] for c in cells if c["n"] == num}
        previous = num
    return cells


def peaks(problem: str, name: str, sizes: list[int]) -> list[float | None]:
    """MiB of a test beyond what there is before it, at each size."""
    found = []
    for num in sizes:
        call = call_of(problem, name, num)
        call()
        found.append(peak_mebibytes(call))
    return found


def memory(problem: str, name: str, sizes: list[int]) -> list[float | None]:
    """The same in a process of its own."""
    command = [sys.executable, "-m", f"{__package__}.resampling", "--memory", problem, name, *map(str, sizes)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1])
    return json.loads(done.stdout.splitlines()[-1])


def same_p_values() -> list[dict]:
    """Of one sample each, by one bandwidth and one statistic, with 1999 resamplings."""
    cells, number = [], 1999
    key = jax.random.key(0)

    def add(problem: str, rival: str, found: jax.Array, theirs: float) -> None:
        about = {"figure": "p-values", "problem": problem, "rival": rival, "n": NUM, "resamplings": number}
        cells.append(about | {"ours": float(found), "theirs": float(theirs)})

    for seed in range(3):
        x, y = sample(shifted, NUM, 0.5, seed)
        u, v = sample(linear, NUM, 0.15, seed)
        points, scores = sample(off_center, NUM, 0.3, seed)
        if importlib.util.find_spec("kt"):
            from kt.ksdagg import ksdagg  # pyright: ignore[reportMissingImports]
            from kt.mmdagg import mmdagg  # pyright: ignore[reportMissingImports]
            from kt.mmdfuse import mmdfuse  # pyright: ignore[reportMissingImports]

            how: dict[str, Any] = {"B1": number, "B2": 1, "number_bandwidths": 3, "return_details": True}
            _, of = mmdagg(x, y, kernel="gaussian", permutations_same_sample_size=True, **how)
            found = mmd_test(x, y, 2 / of["bandwidth"][1] ** 2, rng_key=key, num_permutations=number)
            add("two-sample", "MMDAgg, one bandwidth", found.p_value, of["p_value"][1])
            sharpness = (2 * NUM * (2 * NUM - 1)) ** 0.5 / (NUM * (NUM - 1))
            _, of = mmdfuse(
                x, y, kernels="gaussian", number_permutations=number, lambda_multiplier=sharpness, return_details=True
            )
            found = mmd_test(x, y, of["bandwidth"] ** -2.0, rng_key=key, num_permutations=number)
            add("two-sample", "MMD-FUSE, of our λ", found.p_value, of["p_value"])
            _, of = ksdagg(points, scores, **how)
            found = ksd_test(points, scores, of["bandwidth"][1] ** -2.0, rng_key=key, num_bootstrap=number)
            add("goodness of fit", "KSDAgg, one bandwidth", found.p_value, of["p_value"][1])
        if importlib.util.find_spec("hyppo"):
            from hyppo.independence import Hsic  # pyright: ignore[reportMissingImports]
            from hyppo.ksample import MMD  # pyright: ignore[reportMissingImports]

            theirs = MMD(gamma=0.05).test(x, y, reps=number, auto=False)[1]
            found = mmd_test(x, y, 0.1, rng_key=key, num_permutations=number)
            add("two-sample", "hyppo MMD", found.p_value, theirs)
            theirs = Hsic(gamma=0.05).test(u, v, reps=number, auto=False)[1]
            found = hsic_test(u, v, 0.1, 0.1, rng_key=key, num_permutations=number)
            add("independence", "hyppo Hsic", found.p_value, theirs)
    return cells


def many_points() -> list[dict]:
    """A test by HSIC, and HSIC itself once, of more points than others take."""
    x, y = sample(linear, MANY, 0.05, 0)
    how = (("resampling", "wild"), ("num_permutations", RESAMPLINGS))
    test = functools.partial(p_value, x, y, jax.random.key(0), "independence", 1, how)
    u, v = (jnp.asarray(z) for z in sample(linear, HUGE, 0.05, 0))
    value = JaxCall(lambda u, v: hsic(u, v, median_heuristic(u), median_heuristic(v)), u, v)
    found = []
    for name, num, call, runs in (
        ("hsic_test, wild", MANY, lambda: jax.block_until_ready(test()), FEW_RUNS),
        ("hsic", HUGE, value, 1),
    ):
        call()
        mib, seconds = peak_mebibytes(call), slowly({name: call}, runs)[name]
        cell = {"figure": "many points", "method": name, "n": num, "mib": mib, "seconds": seconds}
        found.append(cell | quartiles(cell))
    return found


def mixture(num: int, dim: int = 16) -> tuple[np.ndarray, np.ndarray]:
    """Samples of a mixture of five normal densities, and an eighth as many points."""
    rng = np.random.default_rng(0)
    means = rng.normal(size=(5, dim))
    of = lambda n: (means[rng.integers(5, size=n)] + rng.normal(size=(n, dim))).astype(np.float32)  # noqa: E731
    return of(num), of(num // 8)


def debiased(samples: jax.Array, points: jax.Array, tau: float) -> jax.Array:
    """The log-density of samples that have moved by half of σ² times the score at them (SD-KDE)."""
    moved = samples + kde_score(samples, samples, tau) / (2 * tau)
    return kde_logpdf(points, moved, tau)


def exact_debiased(samples: np.ndarray, points: np.ndarray, tau: float) -> np.ndarray:
    """The same in float64, by matrices."""
    samples, points = samples.astype(float), points.astype(float)
    phi = exact_matrix(samples, samples, tau)
    moved = samples + (phi @ samples / phi.sum(1, keepdims=True) - samples) / 2
    constant = samples.shape[1] / 2 * np.log(tau / (2 * np.pi))
    return constant + np.log(exact_matrix(points, moved, tau).mean(1))


def densities(runs: int) -> list[dict]:
    """Debiased densities, and scikit-learn's, which are not: they are one sum of an eighth as many."""
    cells, per_pair = [], 0.0
    for num in DEBIASED:
        samples, points = mixture(num)
        tau = num ** (2 / (samples.shape[1] + 8))
        call = JaxCall(functools.partial(debiased, tau=tau), jnp.asarray(samples), jnp.asarray(points))
        error = relative(call(), exact_debiased(samples, points, tau)) if num == min(DEBIASED) else None
        if error is not None and not error <= TOLERANCE:
            raise AssertionError(f"debiased, N = {num}: relative error {error}")
        calls: dict[str, Call] = {"debiased": call}
        if importlib.util.find_spec("sklearn") and per_pair * num**2 <= PATIENCE:
            from sklearn.neighbors import KernelDensity

            fitted = KernelDensity(bandwidth=tau**-0.5).fit(samples)
            calls["scikit-learn, not debiased"] = functools.partial(fitted.score_samples, points)
        mib = {name: peak_mebibytes(each) for name, each in calls.items()}
        once = {name: x[0] for name, x in slowly(calls, 1).items()}
        quick = {name: each for name, each in calls.items() if once[name] <= TOO_SLOW}
        seconds = {name: [x] for name, x in once.items()} | in_turns(quick, runs)
        for name, x in seconds.items():
            cell = {"figure": "density", "method": name, "n": num, "m": num // 8, "d": 16, "tau": tau}
            cell |= {"error": error if name == "debiased" else None, "mib": mib[name], "seconds": x}
            cells.append(cell | quartiles(cell))
        per_pair = once.get("scikit-learn, not debiased", 0.0) / num**2
    return cells


def power_table(cells: list[dict]) -> str:
    """Shares of draws that are rejected: of the null, and of alternatives."""
    from .plots import table

    text = ""
    for problem, alternatives in ALTERNATIVES.items():
        found = {(c["method"], c["alternative"], c["strength"]): c for c in cells if _is(c, "power", problem)}
        columns = [(a, s) for a, (_, strengths) in alternatives.items() for s in strengths]
        rows = [[f"{problem}: rejected", *(f"{a} {s:g}" if s else f"null ({a})" for a, s in columns)]]
        for name in dict.fromkeys(key[0] for key in found):
            shares = [found[name, *key]["rejected"] / found[name, *key]["draws"] for key in columns]
            rows.append([name, *(f"{share:.2f}" for share in shares)])
        text += table(rows) + "\n"
    return text


def time_table(cells: list[dict]) -> str:
    """Milliseconds, and in brackets MiB, over the number of points."""
    from .plots import table

    text = ""
    for problem in ALTERNATIVES:
        times = {(c["method"], c["n"]): c["median"] for c in cells if _is(c, "time", problem)}
        mib = {(c["method"], c["n"]): c["mib"] for c in cells if _is(c, "memory", problem)}
        sizes = sorted({n for _, n in times})
        rows = [[f"{problem}: n", *map(str, sizes)]]
        for name in (name for name in METHODS[problem] if any(key[0] == name for key in times)):
            keys = [(name, n) for n in sizes]
            rows.append([name, *(_entry(times.get(key), mib.get(key)) for key in keys)])
        text += table(rows) + "\n"
    return text


def ratios(cells: list[dict]) -> dict[tuple[str, str], tuple[int, float]]:
    """How many times the time of a test of ours a rival takes, at the most points that both were timed with."""
    found = {}
    for problem, rival, own in PAIRS:
        times = {name: {c["n"]: c["median"] for c in cells if _is(c, "time", problem, name)} for name in (rival, own)}
        if common := times[rival].keys() & times[own].keys():
            n = max(common)
            found[rival, own] = n, times[rival][n] / times[own][n]
    return found


def others_table(cells: list[dict]) -> str:
    """Of many points, and densities."""
    from .plots import table

    chosen = [c for c in cells if c["figure"] in ("many points", "density")]
    rows = [[c["method"], str(c["n"]), _entry(c["median"], c["mib"])] for c in chosen]
    return table([["", "points", "ms (MiB)"], *rows])


def report(cells: list[dict]) -> str:
    """All tables."""
    pairs = [f"{c['problem']}, {c['rival']}: {c['ours']:.4f}, {c['theirs']:.4f}" for c in cells if "theirs" in c]
    parts = [power_table(cells), time_table(cells), others_table(cells), "p-values, ours and theirs:", *pairs]
    return "\n".join(parts) + "\n"


def _is(cell: dict, figure: str, problem: str, method: str | None = None) -> bool:
    return cell["figure"] == figure and cell["problem"] == problem and method in (None, cell["method"])


def _entry(seconds: float | None, mib: float | None) -> str:
    if seconds is None:
        return "–"
    beyond = "" if mib is None else f" ({mib:.0f})"
    return (f"{1e3 * seconds:.3g}" if seconds < 1 else f"{1e3 * seconds:.0f}") + beyond


def main(runs: int, longest: float, out: Path | None, keep: bool = False) -> None:
    """Measure, write the JSON, print the tables."""
    info, cells = environment("cpu"), []
    for module, name in RIVALS.items():
        if importlib.util.find_spec(module) is None:
            print(f"{name} is not installed: left out")
        else:
            info["versions"][name] = importlib.metadata.version(name)
    path = destination(info, "resampling", out, keep)
    steps: list[Callable[[], list[dict]]] = [same_p_values]
    for problem, alternatives in ALTERNATIVES.items():
        steps += [
            functools.partial(power, problem, name, strength)
            for name, (_, strengths) in alternatives.items()
            for strength in strengths
        ]
        steps.append(functools.partial(times, problem, runs, longest))
    steps += [many_points, functools.partial(densities, runs)]
    with tqdm(total=len(steps) + 1, unit="step") as bar:
        for step in steps:
            cells += step()
            save(info | {"cells": cells}, path)
            bar.update()
        names = list(dict.fromkeys((c["problem"], c["method"]) for c in cells if c["figure"] == "time"))
        sizes = [[c["n"] for c in cells if _is(c, "time", problem, name)] for problem, name in names]
        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(memory, *zip(*names, strict=True), sizes))
        for (problem, name), nums, mib in zip(names, sizes, found, strict=True):
            about = {"figure": "memory", "problem": problem, "method": name}
            cells += [about | {"n": n, "mib": x} for n, x in zip(nums, mib, strict=True)]
        save(info | {"cells": cells}, path)
        bar.update()
    print(report(cells))
    print(f"raw data: {shown(path)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10, help="timed runs of each cell (default: 10)")
    parser.add_argument("--longest", type=float, default=LONGEST, help="seconds of a call (default: 2)")
    parser.add_argument("--memory", nargs="+", help=argparse.SUPPRESS)  # what a process of its own has to measure
    add_destination(parser)
    jax.config.update("jax_platforms", "cpu")
    given = vars(parser.parse_args())
    if asked := given.pop("memory"):
        print(json.dumps(peaks(asked[0], asked[1], [int(n) for n in asked[2:]])))
    else:
        main(**given)
