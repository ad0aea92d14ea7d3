"""Tests by random waves, `engine=Sliced(…)`, beside the full test and tests that sum some of the pairs.

Power at level 0.05 of x ~ N(0, I) and y ~ N(μ, I) in ten dimensions, for μ of two sizes: few points, for which the full
test is cheap, and 4⁹ points, whose shift of 0.012 is that of Domingo-Enrich, Dwivedi & Mackey, "Compress Then Test",
2023, arXiv:2301.05974. All use one Gaussian kernel. The block test takes the mean over blocks of √n points, the
incomplete one that over n random pairs; both compare it with its standard error.

Each row of times has a process of its own, whose peak memory counts everything; the first call compiles.
"""

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.stats import norm

from jaxgauss import Sliced, hsic_test, mmd_test

from .plots import having, listing, pivot
from .study import Study, Task, elsewhere, peak_bytes

DIM, TAU, NUM = 10, 0.1, 199
WAVES = 4  # frequencies of a direction
SHIFTS = [(1000, 0.0, 200), (1000, 0.25, 200), (4**9, 0.012, 50)]  # n, ‖μ‖ and draws
FEW = 10_000  # points up to which the full test is run
TIMES = [("mmd_test", 10**5), ("mmd_test", 10**6), ("hsic_test", 10**5), ("hsic_test", 10**6)]


def steps(device: str) -> Iterator[Task]:
    """Whether random waves are as powerful as all pairs, and how long millions of points take."""
    for num, shift, draws in SHIFTS:
        about = {"figure": "power", "n": num, "shift": shift, "draws": draws}
        yield Task(about, functools.partial(power, num, shift, draws))
    for function, num in TIMES:
        about = {"figure": "time", "function": function, "n": num, "resamplings": NUM}
        yield Task(about, lambda runs, f=function, n=num: [elsewhere(times, f, n)])


def by_waves(directions: int, x: jax.Array, y: jax.Array, key: jax.Array) -> jax.Array:
    """Ours."""
    of_labels, of_waves = jax.random.split(key)
    engine = Sliced(directions, WAVES, rng_key=of_waves)
    return mmd_test(x, y, TAU, rng_key=of_labels, num_permutations=NUM, engine=engine).p_value


def full(x: jax.Array, y: jax.Array, key: jax.Array) -> jax.Array:
    """Of all pairs."""
    return mmd_test(x, y, TAU, rng_key=key, num_permutations=NUM).p_value


def kernel(x: jax.Array, y: jax.Array) -> jax.Array:
    """Of points in pairs."""
    return jnp.exp(-TAU / 2 * jnp.square(x - y).sum(-1))


def above_error(values: jax.Array) -> jax.Array:
    """The p-value of the mean, by its standard error."""
    return 1 - norm.cdf(values.mean() / (values.std(ddof=1) / len(values) ** 0.5))


def incomplete(x: jax.Array, y: jax.Array, key: jax.Array) -> jax.Array:
    """Of n random pairs."""
    i, ahead = jax.random.randint(key, (2, len(x)), 0, len(x) - 1)
    j = (i + 1 + ahead) % len(x)
    return above_error(kernel(x[i], x[j]) + kernel(y[i], y[j]) - kernel(x[i], y[j]) - kernel(x[j], y[i]))


def blocks(x: jax.Array, y: jax.Array, key: jax.Array) -> jax.Array:
    """Of the pairs in blocks of √n points."""
    size = int(len(x) ** 0.5)
    num = len(x) // size

    def of_block(points: tuple[jax.Array, jax.Array]) -> jax.Array:
        x, y = points
        of_x, of_y, cross = (kernel(a[:, None], b[None]) for a, b in ((x, x), (y, y), (x, y)))
        total = of_x.sum() + of_y.sum() - 2 * size - 2 * (cross.sum() - jnp.trace(cross))
        return total / (size * (size - 1))

    return above_error(jax.lax.map(of_block, tuple(z[: num * size].reshape(num, size, -1) for z in (x, y))))


METHODS: dict[str, Callable] = {f"{num} directions": functools.partial(by_waves, num) for num in (16, 64, 256)}
METHODS |= {"all pairs": full, "blocks": blocks, "incomplete": incomplete}


def power(num: int, shift: float, draws: int, runs: int) -> list[dict]:
    """How many of the draws each test rejects, and seconds of one."""
    rows = []
    for name, method in METHODS.items():
        if method is full and num > FEW:
            continue

        @jax.jit
        def rejects(key: jax.Array, method: Callable = method) -> jax.Array:
            of_points, of_test = jax.random.split(key)
            x, y = jax.random.normal(of_points, (2, num, DIM))
            return method(x, y.at[:, 0].add(shift), of_test) <= 0.05

        keys = jax.random.split(jax.random.key(num), draws)
        rejects(keys[0]).block_until_ready()
        start = time.perf_counter()
        rejected = sum(bool(rejects(key)) for key in keys)
        rows.append({"method": name, "rejected": rejected, "seconds": (time.perf_counter() - start) / draws})
    return rows


def times(function: str, num: int) -> dict:
    """Seconds of two calls with other waves, the first of which compiles; peak memory, and what was used before."""
    x, noise = jax.block_until_ready(jax.random.normal(jax.random.key(0), (2, num, DIM)))
    before, seconds = peak_bytes() / 2**30, []
    for i in range(2):
        how: dict[str, Any] = {
            "rng_key": jax.random.key(1),
            "engine": Sliced(256, WAVES, rng_key=jax.random.key(2 + i)),
        }
        how |= {"num_permutations": NUM}
        start = time.perf_counter()
        if function == "mmd_test":
            test = mmd_test(x, noise, TAU, **how)
        else:
            test = hsic_test(x, noise, TAU, TAU, resampling="bins", **how)
        test.p_value.block_until_ready()
        seconds.append(time.perf_counter() - start)
    return {"first": seconds[0], "again": seconds[1], "before": before, "gib": peak_bytes() / 2**30}


def report(data: dict) -> str:
    """Shares of rejections, with seconds; times and memory."""

    def problem(c: dict) -> str:
        return f"{c['n']:,}, {c['shift']:g}"

    def share(c: dict) -> str:
        return f"{c['rejected'] / c['draws']:.2f} ({c['seconds']:.2g} s)"

    columns = {"": "`{function}`", "N": "{n:,}", "first call, s": "{first:.1f}", "again, s": "{again:.1f}"}
    columns |= {"GiB": "{gib:.2f}", "of which data and libraries": "{before:.2f}"}
    powers, rows = (having(data["cells"], figure=figure) for figure in ("power", "time"))
    return pivot("n, shift: rejected", powers, "{method}", problem, share) + "\n" + listing(rows, columns)


STUDY = Study(steps, report)
