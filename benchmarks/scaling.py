"""Wide points and values, forward mode, streamed keys, many steps."""

import dataclasses
import itertools
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxgauss import KeyChunks, gauss_sum, gauss_sum_blocked, gauss_sum_dense, gauss_sum_streamed

from . import grids
from .plots import by_method, having, prose, table
from .rivals import Problem
from .study import BOTH, Cell, JaxCall, Study, Task, elsewhere, exact_matrix, peak_bytes, relative

WIDE = [(257, 1), (1024, 1), (16, 257), (300, 257), (16, 700), (300, 700), (16, 4096), (1024, 4096)]  # D, C
WIDE_NUM, NUM, DIMS = 2048, 8192, (3, 16, 64)
KEYS, QUERIES, DIM, CHUNK = 5_000_000, 2000, 16, None  # of the streamed sum
STEPS = 10_000
OURS = ("auto", "blocked JAX", "forward mode", "reverse", "streamed", "in memory")


def steps(device: str) -> Iterator[Cell | Task]:
    """Whether wide arrays, forward mode, streamed keys and thousands of steps keep their speed and memory."""
    for method in ("rescale", "auto"):
        yield Task({"figure": "training", "method": method, "steps": STEPS}, lambda runs, m=method: [training(m)])
    for dim, channels in WIDE:
        for what in grids.WHAT:
            problem = Problem(WIDE_NUM, dim, channels, device=device)
            cell = grids.cell("wide", problem, what, ["auto", "blocked JAX"], d=dim, c=channels)
            yield dataclasses.replace(cell, tolerance=5e-6)
    for dim in DIMS:
        yield from forward_mode(dim)
    yield Task({"figure": "streamed", "m": QUERIES, "n": KEYS, "d": DIM}, streamed)


def forward_mode(dim: int) -> Iterator[Cell]:
    """Value and tangent, and a Hessian times a vector, by forward mode beside the blocked JAX sum and reverse mode."""

    def ours(*x: jax.Array) -> jax.Array:
        return gauss_sum(*x, forward_mode=True)

    def tangent(function: Callable) -> Callable:
        return lambda *x: jax.jvp(lambda *y: function(*y, *x[2:]), x[:2], tuple(jnp.cos(y) for y in x[:2]))

    def loss(function: Callable) -> Callable:
        return lambda *x: jnp.sin(function(*x)).sum()

    def hessian_times(function: Callable) -> Callable:
        return lambda q, *x: jax.jvp(jax.grad(lambda q: loss(function)(q, *x)), (q,), (jnp.cos(q),))[1]

    def twice_reverse(q: jax.Array, *x: jax.Array) -> jax.Array:
        return jax.grad(lambda q: (jax.grad(loss(gauss_sum))(q, *x) * jnp.cos(jax.lax.stop_gradient(q))).sum())(q)

    operands = Problem(NUM, dim, 1).jax[:3]
    for what, of, more in (("jvp", tangent, {}), ("Hessian times vector", hessian_times, {"reverse": twice_reverse})):
        functions = {"forward mode": of(ours), "blocked JAX": of(gauss_sum_blocked), **more}
        methods = {name: lambda f=f: JaxCall(f, *operands) for name, f in functions.items()}

        def error(results: object, of: Callable = of) -> float:
            with jax.enable_x64(True):
                rows = (operands[0][:500], *operands[1:])  # every row is of a query of its own
                exact = jax.tree.leaves(of(gauss_sum_dense)(*(x.astype(jnp.float64) for x in rows)))
            return max(relative(x[:500], np.asarray(y)) for x, y in zip(jax.tree.leaves(results), exact, strict=True))

        about = {"figure": "forward mode", "n": NUM, "d": dim, "c": 1, "what": what}
        yield Cell(about, methods, error, 2e-5)  # tangents cancel


def write_keys(folder: Path) -> None:
    """Keys and weights in files."""
    rng = np.random.default_rng(0)
    np.save(folder / "keys.npy", rng.standard_normal((KEYS, DIM), np.float32) / np.float32(DIM**0.5))
    np.save(folder / "weights.npy", rng.standard_normal(KEYS, np.float32))


def opened(folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Queries, and memory-mapped keys and weights."""
    queries = (np.random.default_rng(1).normal(size=(QUERIES, DIM)) / DIM**0.5).astype(np.float32)
    keys, weights = (np.load(folder / name, mmap_mode="r") for name in ("keys.npy", "weights.npy"))
    return queries, keys, weights


def streamed_mebibytes(folder: str) -> float:
    """What a streamed sum needs above a small one, in this process."""
    queries, keys, weights = opened(Path(folder))
    gauss_sum_streamed(queries, KeyChunks(keys[:1000], weights[:1000])).block_until_ready()
    before = peak_bytes()
    gauss_sum_streamed(queries, KeyChunks(keys, weights)).block_until_ready()
    return (peak_bytes() - before) / 2**20


def streamed(runs: int) -> list[dict]:
    """From memory-mapped files, beside one sum in memory; and interrupted, then resumed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_keys(folder)
        queries, keys, weights = opened(folder)
        chunks = KeyChunks(keys, weights, CHUNK)

        def from_files(found: Any = chunks, **options: Any) -> jax.Array:
            return gauss_sum_streamed(queries, found, **options).block_until_ready()

        def in_memory() -> JaxCall:
            return JaxCall(gauss_sum, *(jnp.asarray(np.array(x)) for x in (queries, keys, weights)))

        def error(results: jax.Array) -> float:
            return relative(results[:4], exact_matrix(queries[:4], keys) @ np.asarray(weights, np.float64))

        def interrupted() -> Iterator:
            yield from itertools.islice(chunks, len(chunks) // 2)
            raise KeyboardInterrupt

        rows, _ = Cell({}, {"streamed": lambda: from_files, "in memory": in_memory}, error, 5e-6).found(runs, OURS, ())
        rows[0]["mib"] = elsewhere(streamed_mebibytes, name)
        try:
            from_files(interrupted(), saved=folder / "sum.npz")
        except KeyboardInterrupt:
            resumed = from_files(saved=folder / "sum.npz")
            rows[0]["same_bits_when_resumed"] = bool((resumed == from_files()).all())
        return rows


def training(method: str) -> dict:
    """MiB that resident memory grows by over thousands of jitted training steps, after the first 500."""
    x, y, weights, _ = Problem(64, 16, 1).jax

    @jax.jit
    def step(x: jax.Array) -> jax.Array:
        return x - 0.1 * jax.grad(lambda x: gauss_sum(x, y, weights, method=method).mean())(x)

    sizes = []
    for _ in range(STEPS):
        x = step(x).block_until_ready()
        sizes.append(int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20)
    return {"grown_mib": max(sizes[500:]) - sizes[500]}


def wide(data: dict) -> str:
    """Wide points and many channels beside the blocked JAX sum."""
    times = by_method(having(data["cells"], figure="wide"), "what", "n", "d", "c")
    ratios = {
        what: [x["blocked JAX"]["median"] / x["auto"]["median"] for key, x in times.items() if key[0] == what]
        for what in grids.WHAT
    }
    _, nums, dims, channels = map(set, zip(*times, strict=True))
    ends = [f"{min(x):.2f} to {max(x):.2f}" for x in ratios.values()]
    return prose(
        f"At N = M = {max(nums)}, over {len(times) // 2} pairs of D up to {max(dims)} and C up to {max(channels)},",
        f"`auto` runs at {ends[0]} times the speed of the blocked JAX sum forward, and at {ends[1]} times with",
        "gradients. It runs the same sum, after checking that the points are within [reach](precision.md#the-promise).",
    )


def files(data: dict) -> str:
    """Keys from a file."""
    file, memory = (having(data["cells"], figure="streamed", method=x)[0] for x in ("streamed", "in memory"))
    return prose(
        f"{file['n'] // 10**6} million keys of {file['d']} dimensions from a file, for {file['m']} queries, take",
        f"{file['median']:.1f} s and {file['mib']:.0f} MiB of extra memory. As one sum in memory they take",
        f"{memory['median']:.1f} s.",
    )


def tangents(data: dict) -> str:
    """Of forward mode, in milliseconds."""
    methods = ("forward mode", "blocked JAX", "reverse")
    rows = [["D", "", "`forward_mode=True`", "blocked JAX", "reverse over reverse"]]
    for (d, what), found in by_method(having(data["cells"], figure="forward mode"), "d", "what").items():
        rows.append([str(d), what, *(f"{1e3 * found[x]['median']:.1f}" if x in found else "" for x in methods)])
    return table(rows)


def memory(data: dict) -> str:
    """Of many steps."""
    grown = {c["method"]: c for c in having(data["cells"], figure="training")}
    return prose(
        f"In {grown['rescale']['steps']} jitted training steps by way of PyTorch, resident memory grows by",
        f"{grown['rescale']['grown_mib']:.1f} MiB after the first 500; in XLA by {grown['auto']['grown_mib']:.1f} MiB.",
    )


def report(data: dict) -> str:
    """All of it."""
    return "\n".join(part(data) for part in (wide, tangents, files, memory))


STUDY = Study(steps, report, ours=OURS, devices=BOTH)
