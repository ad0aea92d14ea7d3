"""What `explain` foretells beside what is measured: time, memory and compiling of calls, and of their dense forms.

Calls are jitted, of normal points in float32. `explain` gets the arrays. Time is also given relative to that of a sum
whose time is foretold, too (`SAME`), and which takes turns with the call: so a machine that is busy, or faster than
that of the table of costs, changes nothing. A first call, with tracing, counts as compiling.
"""

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxgauss as jg

from . import inside
from .compiling import dense_mmd, exponents, gradients
from .plots import pivot
from .study import Study, Task, peak_mebibytes

SHARE = 1.0  # of the points of each call
NUM_SAME, DIM_SAME = 4096, 16


def points(*shape: int) -> jax.Array:
    """Normal numbers; the first axis of two, and the second of three, is the number of points."""
    shape = (*shape[:-2], max(2, int(SHARE * shape[-2])), shape[-1])
    return jnp.asarray(np.random.default_rng(shape).normal(size=shape), "float32")


def places(num: int) -> jax.Array:
    """A grid of the plane from -4 to 4."""
    line = np.linspace(-4, 4, max(2, int(SHARE * num)), dtype="float32")
    return jnp.asarray(np.stack([x.ravel() for x in np.meshgrid(line, line)], 1))


def dense_sum(tau: float) -> Callable:
    """The Gauss sum with its matrix."""
    return lambda x, y, v: jnp.exp(exponents(x, y, tau)) @ v


def dense_logpdf(tau: float) -> Callable:
    """The logarithm of a density with its matrix, up to a constant."""
    return lambda x, y: jax.nn.logsumexp(exponents(x, y, tau), -1)


def in_sum(num: int, dim: int, channels: int, *batch: int) -> tuple[jax.Array, ...]:
    """Queries, keys and values."""
    return points(*batch, num, dim), points(*batch, num + 1, dim), points(*batch, num + 1, channels)


def two(num: int, dim: int, *batch: int) -> tuple[jax.Array, ...]:
    """Two samples."""
    return points(*batch, num, dim), points(*batch, num + 1, dim) + 0.1


def test(resampling: str) -> Callable:
    """The two-sample test, of samples of one size."""
    drawn = {"rng_key": jax.random.PRNGKey(0), "num_permutations": 499}
    return lambda x, y: jg.mmd_test(x, y[: len(x)], 0.1, resampling=resampling, **drawn)


# By name: the function, its dense form or None, and what makes the arrays
CALLS: dict[str, tuple[Callable, Callable | None, Callable[[], tuple[jax.Array, ...]]]] = {
    "gauss_sum, 64 × 3": (lambda *x: jg.gauss_sum(*x, tau=1.0), dense_sum(1.0), lambda: in_sum(64, 3, 1)),
    "gauss_sum, 1024 × 64": (lambda *x: jg.gauss_sum(*x, tau=0.01), dense_sum(0.01), lambda: in_sum(1024, 64, 1)),
    "gauss_sum, 8192 × 16": (lambda *x: jg.gauss_sum(*x, tau=0.06), dense_sum(0.06), lambda: in_sum(8192, 16, 1)),
    "gauss_sum, 8192 × 64, 64 channels": (
        lambda *x: jg.gauss_sum(*x, tau=0.02),
        dense_sum(0.02),
        lambda: in_sum(8192, 64, 64),
    ),
    "gauss_sum, 50,000 × 2": (lambda *x: jg.gauss_sum(*x, tau=4.0), None, lambda: in_sum(50_000, 2, 1)),
    "gauss_sum, a map": (
        lambda *x: jg.gauss_sum(*x, tau=25.0),
        dense_sum(25.0),
        lambda: (places(90), points(20_000, 2), jnp.ones((max(2, int(SHARE * 20_000)), 1), "float32")),
    ),
    "128 sums, 64 × 32, 33 channels": (
        lambda *x: jg.gauss_sum(*x, tau=0.03),
        dense_sum(0.03),
        lambda: in_sum(64, 32, 33, 128),
    ),
    "gradients of gauss_sum, 64 × 3": (
        gradients(lambda *x: jg.gauss_sum(*x, tau=1.0)),
        gradients(dense_sum(1.0)),
        lambda: in_sum(64, 3, 1),
    ),
    "gradients of gauss_sum, 4096 × 16": (
        gradients(lambda *x: jg.gauss_sum(*x, tau=0.06)),
        gradients(dense_sum(0.06)),
        lambda: in_sum(4096, 16, 1),
    ),
    "gradients of gauss_sum, 20,000 × 3": (
        gradients(lambda *x: jg.gauss_sum(*x, tau=1.0)),
        None,
        lambda: in_sum(20_000, 3, 1),
    ),
    "gauss_sum without own, 4096 × 8": (
        lambda x, v: jg.gauss_sum(x, x, v, 0.1, exclude_self=True),
        lambda x, v: dense_sum(0.1)(x, x, v) - v,
        lambda: (points(4096, 8), points(4096, 1)),
    ),
    "mmd_squared, 4096 × 10": (
        lambda *x: jg.mmd_squared(*x, tau=0.1),
        functools.partial(dense_mmd, tau=0.1),
        lambda: two(4096, 10),
    ),
    "gradients of mmd_squared, 2048 × 32": (
        gradients(lambda *x: jg.mmd_squared(*x, tau=0.03)),
        gradients(functools.partial(dense_mmd, tau=0.03)),
        lambda: two(2048, 32),
    ),
    "gradients of 128 mmd_squared, 64 × 8": (
        gradients(lambda *x: jg.mmd_squared(*x, tau=0.1)),
        gradients(functools.partial(dense_mmd, tau=0.1)),
        lambda: two(64, 8, 128),
    ),
    "kde_logpdf, 5000 × 8": (lambda *x: jg.kde_logpdf(*x, tau=1.0), dense_logpdf(1.0), lambda: two(5000, 8)),
    "kde_logpdf, a map": (
        lambda *x: jg.kde_logpdf(*x, tau=25.0),
        dense_logpdf(25.0),
        lambda: (places(90), points(20_000, 2)),
    ),
    "kde_logpdf without own, 20,000 × 2": (
        lambda x: jg.kde_logpdf(x, x, 25.0, exclude_self=True),
        None,
        lambda: (points(20_000, 2),),
    ),
    "log_gauss_sum, 4096 × 16": (
        lambda *x: jg.log_gauss_sum(*x, tau=0.06),
        dense_logpdf(0.06),
        lambda: two(4096, 16),
    ),
    "energy_distance, 4096 × 10": (jg.energy_distance, None, lambda: two(4096, 10)),
    "energy_distance, 10,000 × 2": (jg.energy_distance, None, lambda: two(10_000, 2)),
    "kernel_sum, matern32, 8192 × 16": (
        lambda *x: jg.kernel_sum(*x, tau=0.06, kernel="matern32"),
        None,
        lambda: in_sum(8192, 16, 1),
    ),
    "gradients of kernel_sum, matern52, 4096 × 3": (
        gradients(lambda *x: jg.kernel_sum(*x, tau=1.0, kernel="matern52")),
        None,
        lambda: in_sum(4096, 3, 1),
    ),
    "mmd_test, permutations, 2000 × 10": (test("permutation"), None, lambda: two(2000, 10)),
    "mmd_test, wild, 2000 × 10": (test("wild"), None, lambda: two(2000, 10)),
    "mmd_test, bins, 5000 × 10": (test("bins"), None, lambda: two(5000, 10)),
    "mmd_test, permutations, 5000 × 1": (test("permutation"), None, lambda: two(5000, 1)),
    "drift, 256 × 32": (lambda *x: jg.drift(*x, tau=0.03), None, lambda: two(256, 32)),
    "drift, 4096 × 8": (lambda *x: jg.drift(*x, tau=0.1), None, lambda: two(4096, 8)),
}


def steps(device: str) -> Iterator[Task]:
    """Whether the estimates of `explain` are within a factor of two."""
    for name in CALLS:
        yield Task({"method": name}, lambda runs, name=name: [found(name, runs)])


def found(name: str, runs: int) -> dict[str, Any]:
    """What is foretold of a call and of its dense form, and what is measured of both."""
    function, dense, make = CALLS[name]
    arrays = make()
    same = points(NUM_SAME, DIM_SAME), points(NUM_SAME, DIM_SAME), points(NUM_SAME, 1)
    foretold, of_same = jg.explain(function, *arrays), jg.explain(_blocked, *same)
    row = {"foretold": _all(foretold), "worth it": foretold.worth_it, "same": of_same.milliseconds}
    calls: dict[str, Callable] = {"same": _waiting(_blocked, same), "call": _waiting(function, arrays)}
    row["compile"] = _seconds(calls["call"])
    row["mib"] = peak_mebibytes(calls["call"])
    if dense is not None and foretold.dense is not None:
        calls["dense"] = _waiting(dense, arrays)
        row |= {"dense foretold": _all(foretold.dense), "dense compile": _seconds(calls["dense"])}
        row["dense mib"] = peak_mebibytes(calls["dense"])
    times = inside.costs.in_turns(calls, runs)
    row["ratios"] = {key: 1e3 * float(np.median(np.divide(x, times["same"]))) for key, x in times.items()}
    return row | {f"ms {key}": 1e3 * float(np.median(x)) for key, x in times.items()}


def _blocked(*operands: jax.Array) -> jax.Array:
    return jg.gauss_sum(*operands, tau=0.06, engine="blocked")


def _waiting(function: Callable, arrays: tuple[jax.Array, ...]) -> Callable:
    jitted = jax.jit(function)
    return lambda: (jax.block_until_ready(jitted(*arrays)), None)[1]


def _seconds(call: Callable) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _all(x: Any) -> list[float]:
    return [x.milliseconds, x.mebibytes, x.seconds]


def report(data: dict) -> str:
    """Foretold over measured: of a call, and of its dense form."""
    cells = []
    for c in data["cells"]:
        shown = {"ms": f"{c['ms call']:.3g}", "time": f"{_times(c, 'call'):.2f}", "worth it": "–"}
        shown |= {"MiB": f"{c['foretold'][1]:.2g} / {c['mib'] or 0:.2g}"}
        shown |= {"compiling, s": f"{c['foretold'][2]:.2g} / {c['compile']:.2g}"}
        if "dense foretold" in c:
            faster = c["ms dense"] / c["ms call"]
            shown |= {"dense: time": f"{_times(c, 'dense'):.2f}"}
            shown |= {"worth it": f"{'yes' if c['worth it'] else 'no'} ({faster:.2g})"}
        cells += [{"name": c["method"], "key": key, "text": text} for key, text in shown.items()]
    return pivot("", cells, "{name}", "{key}", "{text}")


def _times(c: dict, what: str) -> float:
    """The time that is foretold over the time that is measured, both relative to that of the same sum."""
    foretold = c["foretold" if what == "call" else "dense foretold"][0]
    return foretold / c["same"] / (c["ratios"][what] / c["ratios"]["same"])


STUDY = Study(steps, report)
