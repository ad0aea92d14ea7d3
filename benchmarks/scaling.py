"""Forward mode, and keys from files."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxgauss import KeyChunks, gauss_sum, gauss_sum_streamed

from .plots import having, pivot, prose
from .rivals import Problem, blocked_jax, dense_jax
from .study import Cell, JaxCall, Study, Task, exact_matrix, relative

NUM, DIMS = 8192, (3, 16, 64)
KEYS, QUERIES, DIM, CHUNK = 5_000_000, 2000, 16, None  # of the streamed sum
OURS = ("forward mode", "reverse", "streamed", "in memory")


def steps(device: str) -> Iterator[Cell | Task]:
    """Whether forward mode and keys from files keep speed and memory."""
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
        functions = {"forward mode": of(ours), "blocked JAX": of(blocked_jax), **more}
        methods = {name: lambda f=f: JaxCall(f, *operands) for name, f in functions.items()}

        def error(results: object, of: Callable = of) -> float:
            with jax.enable_x64(True):
                rows = (operands[0][:500], *operands[1:])  # every row is of a query of its own
                exact = jax.tree.leaves(of(dense_jax)(*(x.astype(jnp.float64) for x in rows)))
            return max(relative(x[:500], np.asarray(y)) for x, y in zip(jax.tree.leaves(results), exact, strict=True))

        about = {"figure": "forward mode", "n": NUM, "d": dim, "c": 1, "what": what}
        yield Cell(about, methods, error, 2e-5)  # tangents cancel


def streamed(runs: int) -> list[dict]:
    """From memory-mapped files, beside one sum in memory."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{name}.npy" for name in ("keys", "weights")]
        np.save(paths[0], rng.standard_normal((KEYS, DIM), np.float32) / np.float32(DIM**0.5))
        np.save(paths[1], rng.standard_normal(KEYS, np.float32))
        queries = (rng.normal(size=(QUERIES, DIM)) / DIM**0.5).astype(np.float32)
        keys, weights = (np.load(path, mmap_mode="r") for path in paths)

        def from_files() -> Any:
            return gauss_sum_streamed(queries, KeyChunks(keys, weights, CHUNK)).block_until_ready()

        def in_memory() -> JaxCall:
            return JaxCall(gauss_sum, *(jnp.asarray(np.array(x)) for x in (queries, keys, weights)))

        def error(results: jax.Array) -> float:
            return relative(results[:4], exact_matrix(queries[:4], keys) @ np.asarray(weights, np.float64))

        cell = Cell({}, {"streamed": lambda: from_files, "in memory": in_memory}, error, 5e-6)
        return cell.found(runs, OURS, ())[0]


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
    heads = {"forward mode": "`forward_mode=True`", "reverse": "reverse over reverse"}
    cells = having(data["cells"], figure="forward mode")
    return pivot("ms", cells, "{what}, D = {d}", lambda c: heads.get(c["method"], "blocked JAX"))


def report(data: dict) -> str:
    """All of it."""
    return "\n".join(part(data) for part in (tangents, files))


STUDY = Study(steps, report, ours=OURS)
