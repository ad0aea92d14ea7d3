"""What Gauss sums are for, beside what people use today: a training step, a permutation test, SVGD, densities."""

import functools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxgauss import gauss_sum, kde_logpdf, kde_score, mmd_squared, mmd_test, svgd_direction, tau_from_bandwidth

from . import inside, plots
from .study import Call, Cell, JaxCall, exact_matrix, relative

ROWS = 256  # whose results are compared with float64
PERMUTATIONS = 999
TOLERANCES = {"cpu": 1e-3, "cuda": 1e-2}  # of gradients, in half precision on CUDA
LARGEST = {"cpu": 8192, "cuda": 65536}  # points in a sample of dense methods
Calls = dict[str, Callable[[], Call | str]]


def samples(num: int, dim: int, shift: float = 0.1) -> tuple[jax.Array, jax.Array]:
    """Two samples of Gaussian points scaled by D^-1/2, the second one moved."""
    rng = np.random.default_rng(0)
    x, y = (jnp.asarray(rng.normal(size=(num, dim)) / dim**0.5 + shift * i, jnp.float32) for i in range(2))
    return x, y


def mmd_dense(x: jax.Array, y: jax.Array, tau: float) -> jax.Array:
    """The formula, as one writes it."""

    def mean(x: jax.Array, y: jax.Array) -> jax.Array:
        squared = jnp.square(x).sum(-1)[:, None] + jnp.square(y).sum(-1) - 2 * x @ y.T
        return jnp.exp(-tau / 2 * squared).mean()

    return mean(x, x) - 2 * mean(x, y) + mean(y, y)


def mmd_step(num: int, dim: int, device: str) -> Cell:
    """Loss, gradient and Adam's update of a sample that moves onto another of the same size."""
    x, y = samples(num, dim)
    optimizer = optax.adam(1e-2)

    def step(loss: Callable, x: jax.Array, state: Any, y: jax.Array):
        value, gradient = jax.value_and_grad(loss)(x, y, 1.0)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(x, updates), state, value, gradient

    def call(loss: Callable) -> Call:
        return JaxCall(functools.partial(step, loss), x, optimizer.init(x), y)

    def error(found: tuple) -> float:
        a, b = (np.asarray(z, np.float64) for z in (x, y))
        total = np.zeros((min(ROWS, num), dim))
        for points, sign in ((a, 2), (b, -2)):
            phi = exact_matrix(a[:ROWS], points)
            total += sign * (phi @ points - phi.sum(1)[:, None] * a[:ROWS]) / num**2
        return relative(found[3][:ROWS], total)

    methods: Calls = {"mmd_squared": lambda: call(mmd_squared)}
    methods["dense JAX"] = lambda: call(mmd_dense) if num <= LARGEST[device] else "matrices too large"
    about = {"figure": "MMD step", "n": num, "d": dim}
    return Cell(about, methods, error, TOLERANCES[device], f"MMD step, D = {dim}")


def digits_step(device: str) -> Cell:
    """Loss and gradient of a step of examples/mmd_digits.py: 1024 generated images, 1257 real ones, three τ."""
    from examples.mmd_digits import TAUS, mmd_squared_dense

    x, y = (jax.random.uniform(jax.random.key(i), (n, 64)) for i, n in enumerate((1024, 1257)))

    def call(loss: Callable, x: jax.Array, y: jax.Array) -> Call:
        taus = jnp.asarray(TAUS, x.dtype)
        return JaxCall(jax.value_and_grad(lambda x, y: loss(x, y, taus, y_norm_squared=0.1)), x, y)

    def error(found: tuple) -> float:
        with jax.enable_x64(True):
            exact = call(mmd_squared_dense, *(jnp.asarray(z, jnp.float64) for z in (x, y)))()[1]
        return relative(found[1], np.asarray(exact))

    losses = {"mmd_squared": mmd_squared, "dense JAX": mmd_squared_dense}
    methods: Calls = {name: functools.partial(call, loss, x, y) for name, loss in losses.items()}
    about = {"figure": "digits step", "n": 1024, "d": 64}
    return Cell(about, methods, error, TOLERANCES[device])


def permutation_test(num: int, dim: int, device: str) -> Cell:
    """999 permutations of two samples of one distribution; with the kernel matrix kept for all of them; and one sum.

    The matrix knows the same labelings, so the p-values agree but for ties; of one sum of all points a test that sums
    anew for every permutation would take a thousand.
    """
    x, y = samples(num, dim, shift=0.0)
    rng_key, z = jax.random.key(0), jnp.concatenate([x, y])

    def with_matrix(x: jax.Array, y: jax.Array) -> jax.Array:
        z = jnp.concatenate([x, y])
        squares = jnp.square(z).sum(-1)
        matrix = jnp.exp(jnp.minimum(z @ z.T - squares[:, None] / 2 - squares / 2, 0))
        design = inside.labelings.Design(len(x), len(y), "permutation", 1, PERMUTATIONS + 2)
        signs = jnp.where(inside.labelings.labels(design, rng_key, 0), 1.0, -1.0)
        forms = (signs * (matrix @ signs - signs)).sum(0)  # MMD² but for a factor and a constant, as M = N
        return (1 + (forms[2:] >= forms[1] - 2e-6 * num).sum()) / (PERMUTATIONS + 1)

    def ours(x: jax.Array, y: jax.Array) -> jax.Array:
        return mmd_test(x, y, 1.0, rng_key=rng_key, num_permutations=PERMUTATIONS).p_value

    def error(result: Any) -> float:
        return abs(float(result) - float(jax.jit(with_matrix)(x, y))) if result.ndim == 0 else 0.0

    methods: Calls = {
        "mmd_test": lambda: JaxCall(ours, x, y),
        "kernel matrix": lambda: JaxCall(with_matrix, x, y),
        "one gauss_sum": lambda: JaxCall(gauss_sum, z, z, jnp.ones(2 * num)),
    }
    about = {"figure": "permutation test", "n": num, "d": dim}
    return Cell(about, methods, error, 2 * TOLERANCES[device], "permutation test")


def svgd_step(num: int, dim: int, device: str) -> Cell:
    """A step of 10⁴ particles, say, towards the standard normal distribution, τ = 1/D."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(num, dim)), jnp.float32)
    tau, optimizer = 1 / dim, optax.sgd(1.0)

    def log_density(x: jax.Array) -> jax.Array:
        return -jnp.square(x).sum() / 2

    def ours(x: jax.Array, state: Any):
        direction = svgd_direction(x, jax.vmap(jax.grad(log_density))(x), tau)
        updates, state = optimizer.update(-direction, state)
        return optax.apply_updates(x, updates), state

    def blackjax() -> Call | str:
        if num**2 * dim > 2**28:
            return "an array of N² D numbers"
        from blackjax.vi import svgd  # pyright: ignore[reportMissingImports]

        kernel = svgd.build_kernel(optimizer)
        state = svgd.init(x, {"length_scale": 2 / tau}, optimizer)
        return JaxCall(lambda state: kernel(state, jax.grad(log_density), svgd.rbf_kernel), state)

    def error(found: tuple) -> float:
        a = np.asarray(x, np.float64)
        phi = exact_matrix(a[:ROWS], a, tau)
        return relative((found[0] - x)[:ROWS], (phi @ (-a - tau * a) + tau * phi.sum(1)[:, None] * a[:ROWS]) / num)

    methods: Calls = {"svgd_direction": lambda: JaxCall(ours, x, optimizer.init(x)), "blackjax": blackjax}
    about = {"figure": "SVGD step", "n": num, "d": dim}
    return Cell(about, methods, error, TOLERANCES[device], "SVGD")


def density(num: int, dim: int, device: str) -> Cell:
    """Logarithms of a density of N points at 2000 others, at the bandwidth 0.5, by a white sample for SciPy's sake."""
    rng = np.random.default_rng(0)
    points = rng.normal(size=(num, dim))
    points = np.linalg.solve(np.linalg.cholesky(np.cov(points.T)), (points - points.mean(0)).T).T
    queries, bandwidth = rng.normal(size=(2000, dim)), 0.5
    constant = dim / 2 * math.log(2 * math.pi * bandwidth**2) + math.log(num)
    tau = tau_from_bandwidth(bandwidth)
    x, y = (jnp.asarray(z, jnp.float32) for z in (queries, points))

    def dense(x: jax.Array, y: jax.Array) -> jax.Array:
        squared = jnp.square(x).sum(-1)[:, None] + jnp.square(y).sum(-1) - 2 * x @ y.T
        return jax.nn.logsumexp(-squared / (2 * bandwidth**2), axis=1) - constant

    methods: Calls = {
        "kde_logpdf": lambda: JaxCall(lambda x, y: kde_logpdf(x, y, tau), x, y),
        "dense JAX": lambda: JaxCall(dense, x, y),
    }
    if device == "cpu":  # others run on the host
        methods["SciPy"] = functools.partial(by_scipy, queries, points, bandwidth)
        methods["scikit-learn"] = functools.partial(by_scikit_learn, queries, points, bandwidth)

    def error(found: Any) -> float:
        return relative(found[:ROWS], exact_logpdf(queries[:ROWS], points, float(tau)))

    return Cell({"figure": "density", "n": num, "d": dim}, methods, error, 1e-3, f"density, D = {dim}")


def by_scipy(queries: np.ndarray, points: np.ndarray, bandwidth: float) -> Call:
    """Of the points' covariance, here σ²: see `density`."""
    from scipy.stats import gaussian_kde

    return functools.partial(gaussian_kde(points.T, bandwidth).logpdf, queries.T)


def by_scikit_learn(queries: np.ndarray, points: np.ndarray, bandwidth: float, **options: Any) -> Call:
    """By a tree."""
    from sklearn.neighbors import KernelDensity

    return functools.partial(KernelDensity(bandwidth=bandwidth, **options).fit(points).score_samples, queries)


def exact_logpdf(queries: Any, samples: Any, tau: float) -> np.ndarray:
    """In float64."""
    return np.log(exact_matrix(queries, samples, tau).mean(1)) + samples.shape[1] / 2 * math.log(tau / (2 * math.pi))


def debiased(queries: jax.Array, samples: jax.Array, tau: float, **options: Any) -> tuple[jax.Array, jax.Array]:
    """Log-densities of samples moved by half of σ² times the score at them (SD-KDE, arXiv:2602.10378), and these."""
    moved = samples + kde_score(samples, samples, tau, **options) / (2 * tau)
    return kde_logpdf(queries, moved, tau, **options), moved


def debiased_error(queries: Any, samples: Any, tau: float, found: tuple, rows: int = ROWS) -> float:
    """Of the first rows of both."""
    x = np.asarray(samples, np.float64)
    phi = exact_matrix(x[:rows], x, tau)
    moved = (x[:rows] + phi @ x / phi.sum(1)[:, None]) / 2
    return max(relative(found[1][:rows], moved), relative(found[0][:rows], exact_logpdf(queries[:rows], found[1], tau)))


SIZES: dict[Callable[..., Cell], list[tuple[int, int]]] = {  # N, D
    mmd_step: [(num, dim) for dim in (16, 64) for num in (256, 1024, 4096, 8192, 65536)],
    permutation_test: [(1000, 16), (5000, 16)],
    svgd_step: [(500, 30), (2000, 30), (10000, 30)],
    density: [(num, dim) for dim in (3, 16) for num in (1000, 20000)],
}


def steps(device: str) -> Iterator[Cell]:
    """Whether what the sums are for is faster than what people use today: training, tests, SVGD, densities."""
    yield digits_step(device)
    for cell, sizes in SIZES.items():
        for num, dim in sizes:
            yield cell(num, dim, device)


def report(data: dict) -> str:
    """Milliseconds and MiB of every method."""
    lines = ["| | N | D | ours | others |", "|---|---|---|---|---|"]
    timed = [c for c in data["cells"] if "median" in c]
    for (figure, n, d), methods in plots.by_method(timed, "figure", "n", "d").items():
        ours, *others = (f"{m} {plots.milliseconds(c)} ({plots.mebibytes(c)})" for m, c in methods.items())
        lines.append(f"| {figure} | {n} | {d} | {ours} | {', '.join(others)} |")
    if ratios := _of_steps(data):
        lines.append(f"\nMMD step, dense / ours: {plots.geometric_mean(ratios):.2f}x in the geometric mean")
        if "beside" in data:
            mean = plots.geometric_mean(_of_steps(data["beside"]))
            lines[-1] += f"; with jax {data['beside']['versions']['jax']}, measured in turns, {mean:.2f}x"
    return "\n".join(lines) + "\n"


def _of_steps(data: dict) -> list[float]:
    """How many times the time of ours a step of training takes by dense JAX."""
    found = plots.by_method(plots.having(data["cells"], figure="MMD step"), "n", "d").values()
    timed = ({name: c["median"] for name, c in methods.items() if "median" in c} for methods in found)
    return [x["dense JAX"] / x["mmd_squared"] for x in timed if x.keys() >= {"mmd_squared", "dense JAX"}]


def draw(data: dict, path: Path) -> None:
    """Times over N."""

    def title(c: dict) -> str:
        return c["figure"] + ("" if c["figure"] in ("permutation test", "digits step") else f", D = {c['d']}")

    plots.panels(data, path, "", [("median", plots.titled(data["cells"], title))])
