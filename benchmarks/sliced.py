"""Sums over random directions: their errors over P directions, and their times over N beside all pairs.

Errors are of κ itself, for pairs of normal points of two widths, in L2 over pairs and random keys: relative to Σ|v| no
sum errs by more; of "energy", relative to the mean distance. Beside them, the error of the mean of κ over all keys; and
for Gaussians random Fourier features, independent normal frequencies, as many as there are waves. Gradients are those
of that mean. Times are of values and of all gradients, under `jit`; from some N on, all pairs are timed for a part of
the queries, and that many times as long is taken for all.
"""

import functools
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxgauss import Sliced, gauss_sum, kernel_sum

from . import plots
from .grids import WHAT
from .kernels import FORMULAS
from .plots import by_method, having, listing, pivot, prose, span
from .study import Cell, JaxCall, Study, Task, exact_matrix

DIMS, DIRECTIONS = (4, 10, 64, 784), (16, 64, 256, 1024, 4096)
KERNELS = ("gauss", "matern32", "imq", "energy")
WITH_FOUR = ("gauss", "imq")  # kernels of which four frequencies a direction are measured, too
WIDTHS = {"near": 1.5, "wide": 5.0}  # √D standard deviations, in bandwidths
QUERIES, KEYS, OF_PAIRS, DRAWS = 128, 128, 16, 4  # points, keys whose pairs are told apart, and random keys
WAVES = 4  # frequencies of a direction, instead of one
ONE, FOUR = "P directions", "P/4 directions, 4 frequencies"  # of as many waves
OURS = (ONE, FOUR, "Sliced", "all pairs")
FEATURES = "random Fourier features"
STEEP = ("gauss", "matern52", "matern32", "imq", "matern12", "energy")  # kernels whose gradients are compared
STEEP_DIM, STEEP_DIRECTIONS, STEEP_DRAWS = 10, 256, 64
NUMS, DIM, OF_TIMES = (1000, 3000, 10_000, 30_000, 100_000, 1_000_000), 16, 256
WIDER, OF_WAVES = (16, 64, 784), 10_000  # dimensions in which waves are timed, and points
LARGEST, PART, CHECKED = 30_000, 1024, 64  # points of which all pairs are timed, else queries; and those checked
KAPPA = {"gauss": lambda u: np.exp(-u / 2)} | FORMULAS
SLOPES = {  # -κ'(r)/r of u = r²
    "gauss": lambda u: np.exp(-u / 2),
    "matern12": lambda u: np.exp(-np.sqrt(u)) / np.sqrt(u),
    "matern32": lambda u: 3 * np.exp(-np.sqrt(3 * u)),
    "matern52": lambda u: 5 / 3 * (1 + np.sqrt(5 * u)) * np.exp(-np.sqrt(5 * u)),
    "imq": lambda u: (1 + u) ** -1.5,
    "energy": lambda u: 1 / np.sqrt(u),
}


def steps(device: str) -> Iterator[Cell | Task]:
    """How sums over random directions err, and from which N on they are faster than all pairs."""
    for dim, kernel in itertools.product(DIMS, KERNELS):
        yield Task({"figure": "errors", "d": dim, "kernel": kernel}, lambda _, of=(kernel, dim): errors(*of))
    for kernel in STEEP:
        yield Task({"figure": "gradients", "d": STEEP_DIM, "kernel": kernel}, lambda _, kernel=kernel: slopes(kernel))
    for num, what in itertools.product(NUMS, WHAT):
        yield times(num, what)
    for dim in WIDER:
        yield waves(dim)


def cloud(num: int, dim: int, width: float, seed: int) -> np.ndarray:
    """Normal points, so many bandwidths wide in all."""
    x = np.random.default_rng(seed).normal(size=(num, dim))
    return (width / dim**0.5 * x).astype(np.float32)


def squared(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    """Squared distances in float64."""
    return np.square(q[:, None].astype(np.float64) - k).sum(-1)


def by_features(key: jax.Array, q: jax.Array, k: jax.Array, v: jax.Array, num: int) -> jax.Array:
    """Gauss sums by random Fourier features."""
    omega = jax.random.normal(key, (num, q.shape[-1]))
    of_queries, of_keys = (jnp.concatenate([jnp.cos(x @ omega.T), jnp.sin(x @ omega.T)], -1) for x in (q, k))
    return of_queries @ (of_keys.mT @ v) / num


def by_directions(key: jax.Array, *operands: jax.Array, kernel: str, directions: int, frequencies: int) -> jax.Array:
    """Sums by the engine."""
    return kernel_sum(*operands, kernel=kernel, engine=Sliced(directions, frequencies, rng_key=key))


def errors(kernel: str, dim: int) -> list[dict]:
    """Of pairs and of the mean over all keys, for every number of directions."""
    rows, values, sizes = [], np.eye(KEYS, OF_PAIRS + 1, dtype=np.float32), ((QUERIES, dim), (KEYS, dim))
    values[:, -1] = 1 / KEYS
    q, k = (np.stack([cloud(*of, w, seed=i) for w in WIDTHS.values()]) for i, of in enumerate(sizes))
    distances = np.stack([squared(*x) for x in zip(q, k, strict=True)])
    exact = KAPPA[kernel](distances) @ values
    scales = np.sqrt(distances).mean((1, 2)) if kernel == "energy" else np.ones(len(WIDTHS))
    for num in DIRECTIONS:
        of = functools.partial(functools.partial, by_directions, kernel=kernel)
        methods = {ONE: of(directions=num, frequencies=1)}
        if kernel in WITH_FOUR:
            methods[FOUR] = of(directions=num // WAVES, frequencies=WAVES)
        if kernel == "gauss":
            methods[FEATURES] = functools.partial(by_features, num=num)
        keys = jax.random.split(jax.random.key(num), DRAWS)
        for method, function in methods.items():
            program = jax.jit(function)
            wrong = np.stack([program(key, q, k, values) for key in keys]) - exact
            for i, (name, scale) in enumerate(zip(WIDTHS, scales, strict=True)):
                of_pairs, of_mean = (rms(wrong[:, i, :, part]) / scale for part in (slice(OF_PAIRS), slice(-1, None)))
                about = {"directions": num, "cloud": name, "method": method}
                rows.append(about | {"error": of_pairs, "of the mean": of_mean})
    return rows


def rms(x: np.ndarray) -> float:
    """The root of the mean square."""
    return float(np.sqrt(np.square(x).mean()))


def slopes(kernel: str) -> list[dict]:
    """The error of sums and of their gradients, relative to their size, over random keys."""
    q, k = (cloud(num, STEEP_DIM, WIDTHS["near"], seed) for seed, num in enumerate((QUERIES, KEYS)))
    weights = np.full(KEYS, 1 / KEYS, np.float32)
    of = SLOPES[kernel](squared(q, k)) @ np.diag(weights.astype(np.float64))
    exact = KAPPA[kernel](squared(q, k)) @ weights, of @ k - of.sum(1, keepdims=True) * q

    queries, keys, values = map(jnp.asarray, (q, k, weights))

    def found(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        function = functools.partial(by_directions, kernel=kernel, directions=STEEP_DIRECTIONS, frequencies=1)
        sums, pull = jax.vjp(lambda x: function(key, x, keys, values), queries)
        return sums, pull(jnp.ones_like(sums))[0]

    drawn = jax.jit(lambda keys: jax.lax.map(found, keys))(jax.random.split(jax.random.key(0), STEEP_DRAWS))
    row: dict[str, Any] = {"method": "Sliced", "directions": STEEP_DIRECTIONS}
    for name, x, true in zip(("error", "of gradients"), drawn, exact, strict=True):
        of_draws = [rms(wrong) / rms(true) for wrong in np.asarray(x, np.float64) - true]
        row |= {name: rms(np.asarray(of_draws)), f"{name}, median": float(np.median(of_draws))}
        row[f"{name}, largest"] = max(of_draws)
    return [row]


def times(num: int, what: str) -> Cell:
    """Beside all pairs, of N queries at N keys or, of many, of some queries."""
    q, k = (cloud(num, DIM, WIDTHS["near"], seed) for seed in (0, 1))
    v = np.ones(num, np.float32)
    few = q if num <= LARGEST else q[:PART]

    def function(engine: Callable, *operands: jax.Array) -> Any:
        *points, key = operands
        sums, pull = jax.vjp(lambda *x: gauss_sum(*x, engine=engine(key)), *points)
        return sums if what == "forward" else (sums, *pull(jnp.ones_like(sums)))

    def call(engine: Callable, queries: np.ndarray) -> JaxCall:
        return JaxCall(functools.partial(function, engine), *map(jnp.asarray, (queries, k, v)), jax.random.key(0))

    @functools.cache
    def exact(size: int) -> list[np.ndarray]:
        """The first sums, and the first gradients for cotangents of one."""
        some, among = q[:CHECKED], k[:CHECKED]
        phi, of_keys = exact_matrix(some, k), exact_matrix(q[:size], among).T
        return [
            phi @ v,
            phi @ k - phi.sum(1)[:, None] * some,
            of_keys @ q[:size] - of_keys.sum(1)[:, None] * among,
            of_keys.sum(1),
        ]

    def error(results: Any) -> float:
        """The largest of all results, relative to the sums of |v| or of the cotangents."""
        found = results if isinstance(results, tuple) else (results,)
        size = len(found[0])
        return max(
            rms(np.asarray(x[:CHECKED], np.float64) - y) / total
            for x, y, total in zip(found, exact(size), (num, num, size, size), strict=False)
        )

    methods = {
        "Sliced": lambda: call(lambda key: Sliced(OF_TIMES, rng_key=key), q),
        "all pairs": lambda: call(lambda _: "auto", few),
    }
    about = {"figure": "times", "what": what, "n": num, "d": DIM, "c": 1, "directions": OF_TIMES}
    return Cell(about, methods, error, OF_TIMES**-0.5, times={"all pairs": num / len(few)})


def waves(dim: int) -> Cell:
    """As many waves of many directions or of few."""
    q, k = (cloud(OF_WAVES, dim, WIDTHS["near"], seed) for seed in (0, 1))
    operands = [jax.random.key(0), *map(jnp.asarray, (q, k, np.ones(OF_WAVES, np.float32)))]
    numbers = {ONE: (WAVES * OF_TIMES, 1), FOUR: (OF_TIMES, WAVES)}
    methods: dict[str, Callable] = {
        name: functools.partial(
            JaxCall, functools.partial(by_directions, kernel="gauss", directions=p, frequencies=j), *operands
        )
        for name, (p, j) in numbers.items()
    }
    exact = exact_matrix(q[:CHECKED], k).sum(1)
    about = {"figure": "waves", "n": OF_WAVES, "d": dim, "c": 1, "directions": WAVES * OF_TIMES}
    return Cell(about, methods, lambda x: rms(np.asarray(x[:CHECKED], np.float64) - exact) / OF_WAVES, OF_TIMES**-0.5)


def breaks_even(cells: list[dict]) -> float:
    """From which N on it takes less time, on a line in logarithms."""
    found = sorted((n, x["Sliced"]["median"] / x["all pairs"]["median"]) for (n,), x in by_method(cells, "n").items())
    nums, ratios = np.log(found).T
    return float(np.exp(np.interp(0, -ratios, nums)))


def beside_features(of_errors: list[dict]) -> str:
    """The errors of Gaussians over those of random Fourier features, from the least to the largest over P."""
    found: dict[tuple, list[float]] = {}
    for (dim, name, _), x in by_method(having(of_errors, kernel="gauss"), "d", "cloud", "directions").items():
        for method in (ONE, FOUR):
            if method in x:
                found.setdefault((dim, name, method), []).append(x[method]["error"] / x[FEATURES]["error"])
    cells = [{"d": d, "cloud": name, "method": x, "ratios": of} for (d, name, x), of in found.items()]
    head = "error ÷ that of as many random Fourier features"
    return pivot(head, cells, "{cloud}: {method}", "D = {d}", lambda c: span(c["ratios"]))


def report(data: dict) -> str:
    """Errors, those of gradients, and times."""
    of_errors, steep, of_times, of_waves = (
        having(data["cells"], figure=x) for x in ("errors", "gradients", "times", "waves")
    )
    num = OF_TIMES if OF_TIMES in {c["directions"] for c in of_errors} else of_errors[0]["directions"]
    forward, back = (breaks_even(having(of_times, what=what)) for what in WHAT)
    of_kernels = pivot(
        f"P = {num}",
        having(of_errors, directions=num),
        "{kernel}: {method}",
        "D = {d}, {cloud}",
        lambda c: f"{c['error']:.3f}",
    )
    of_slopes = listing(
        steep,
        {
            f"relative errors, D = {steep[0]['d']}, P = {steep[0]['directions']}": "{kernel}",
            "sums": "{error:.4f}",
            "gradients": "{of gradients:.3f}",
            "gradients, the worst key": "{of gradients, largest:.3f}",
        },
    )
    device = prose(
        f"{data['device_name']}, {data['cores']} cores; milliseconds, D = {DIM}, P = {of_times[0]['directions']};",
        f"of more than {LARGEST:,} points all pairs are estimated from {PART:,} queries; `*`: timed once.",
        f"Sums over directions take less time from N = {forward:,.0f} on, with gradients from {back:,.0f}:",
    )
    of_nums = pivot("N", of_times, "{n:,}", "{method}, {what}")
    as_many = pivot(f"N = {of_waves[0]['n']:,}, milliseconds", of_waves, "{method}", "D = {d}")
    return "\n".join([of_kernels, beside_features(of_errors), of_slopes, device, of_nums, as_many])


def draw(data: dict, path: Path) -> None:
    """Errors over P, a panel for each dimension; and times over N."""
    of_errors, of_times = (having(data["cells"], figure=x) for x in ("errors", "times"))
    near: dict[str, list[dict]] = {}
    for c in having(of_errors, cloud="near"):
        ours = {ONE: c["kernel"], FOUR: f"{c['kernel']}, P/4 × 4", FEATURES: "Fourier features"}[c["method"]]
        near.setdefault(f"D = {c['d']}", []).append(c | {"method": ours})
    plots.panels(data, path, "", [("error", near)], "error of κ, near points")
    both = {x: [c | {"of": x} for c in having(of_times, what=x)] for x in WHAT}
    plots.panels(data, path, "_time", [("median", both)], f"D = {DIM}, P = {OF_TIMES}")


STUDY = Study(steps, report, draw, OURS)
