"""What jitted functions cost before they run: seconds of tracing and compiling, beside plain JAX.

The unit is the value and gradient of MMD² in dense JAX, traced and compiled in the same process for as many points.
Then come calls with near points, and calls with an outlier at 10⁴: the first of these compiles what sums far points.
Two processes for each size, of which the faster counts; N = M, τ = 1.
"""

import time
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

import jaxgauss as jg

from .plots import pivot
from .study import Study, Task, elsewhere

SIZES = [(1024, 64), (4096, 3), (256, 32)]
PROCESSES, CALLS, FAR = 2, 10, 1e4


def exponents(x: jax.Array, y: jax.Array, tau: float) -> jax.Array:
    """-τ/2 ‖x - y‖² as one writes it."""
    return -tau / 2 * (jnp.square(x).sum(-1)[..., None] + jnp.square(y).sum(-1)[..., None, :] - 2 * x @ y.mT)


def dense_mmd(x: jax.Array, y: jax.Array, tau: float = 1.0) -> jax.Array:
    """MMD² of samples, or of pairs of them, with its matrices."""

    def mean(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.exp(exponents(x, y, tau)).mean((-2, -1))

    return mean(x, x) + mean(y, y) - 2 * mean(x, y)


def gradients(function: Callable) -> Callable:
    """The gradients of the sum of squares of what it gives, with respect to all arguments."""
    return lambda *x: jax.grad(lambda *x: jnp.square(function(*x)).sum(), (*range(len(x)),))(*x)


DENSE = "dense MMD² and gradient"
FUNCTIONS: dict[str, tuple[Callable, str]] = {
    DENSE: (jax.value_and_grad(dense_mmd), "xy"),
    "gauss_sum": (jg.gauss_sum, "xyv"),
    "gradients of gauss_sum": (gradients(jg.gauss_sum), "xyv"),
    "mmd_squared and gradient": (jax.value_and_grad(lambda x, y: jg.mmd_squared(x, y, 1.0)), "xy"),
    "hsic and gradient": (jax.value_and_grad(lambda x, y: jg.hsic(x, y, 1.0, 1.0)), "xy"),
    "kde_logpdf": (lambda x, y: jg.kde_logpdf(x, y, 1.0), "xy"),
    "gradients of kernel_sum, imq": (gradients(lambda *x: jg.kernel_sum(*x, kernel="imq")), "xyv"),
}


def tasks(device: str) -> Iterator[Task]:
    """How much longer than dense JAX programs take to compile, with and without far points."""
    for num, dim in SIZES:
        for i in range(PROCESSES):
            yield Task({"n": num, "d": dim, "process": i}, lambda _, num=num, dim=dim: elsewhere(costs, num, dim))


def costs(num: int, dim: int) -> list[dict]:
    """The rows of all functions, in this process."""
    rng = np.random.default_rng(0)
    drawn = [rng.normal(size=(num, width)).astype("float32") / width**0.5 for width in (dim, dim, 1)]
    arrays = dict(zip("xyv", jax.device_put([*drawn[:2], drawn[2][:, 0]]), strict=True))
    jax.block_until_ready(jax.jit(jnp.sin)(1.0))
    return [{"n": num, "d": dim, "method": name} | costs_of(name, arrays) for name in FUNCTIONS]


def costs_of(name: str, arrays: dict[str, jax.Array]) -> dict[str, float]:
    """Seconds of tracing and compiling, of the first call with far points, and of later calls."""
    function, keys = FUNCTIONS[name]
    near = [arrays[key] for key in keys]
    far = [near[0].at[0].set(FAR), *near[1:]]
    start = time.perf_counter()
    lowered = jax.jit(function).lower(*near)
    traced = time.perf_counter()
    program = lowered.compile()
    row = {"trace": traced - start, "compile": time.perf_counter() - traced}
    for kind, operands in (("near", near), ("far", far)):
        seconds = []
        for _ in range(1 + CALLS):
            start = time.perf_counter()
            jax.block_until_ready(program(*operands))
            seconds.append(time.perf_counter() - start)
        row |= {f"first {kind}": seconds[0], kind: float(np.median(seconds[1:]))}
    return row


def seconds_of(cell: dict) -> float:
    """Of tracing and compiling."""
    return cell["trace"] + cell["compile"]


def report(data: dict) -> str:
    """Multiples of the unit, and seconds."""
    best: dict[tuple, dict] = {}
    for c in data["cells"]:
        key = c["n"], c["d"], c["method"]
        best[key] = min(best.setdefault(key, c), c, key=seconds_of)
    cells = []
    for (num, dim, name), c in best.items():
        size, multiple = f"{num} × {dim}", seconds_of(c) / seconds_of(best[num, dim, DENSE])
        shown = {"s": f"{seconds_of(c):.2f}", "× dense": f"{multiple:.1f}", "first far, s": f"{c['first far']:.1f}"}
        cells += [{"name": name, "key": f"{size}: {what}", "text": text} for what, text in shown.items()]
    return pivot("", cells, "{name}", "{key}", "{text}")


STUDY = Study(tasks, report)
