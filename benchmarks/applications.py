"""What Gauss sums are for, beside what people use today: steps of training, of SVGD and of Sinkhorn, densities, groups.

Sinkhorn's step is the two log-sum-exps of one iteration, by OTT's own geometries and by ours. Groups are 100 of 1000
points, whose sums stand beside as many separate calls, and 64 sets of 50 to 500 points, whose MMD² between all pairs
stands beside a loop, in which sets are padded to one size by points without weight, so that it is compiled once.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy.special import logsumexp
from scipy.stats import gaussian_kde
from sklearn.neighbors import KernelDensity

import jaxgauss
from jaxgauss import gauss_sum, kde_logpdf, mmd_squared, mmd_squared_matrix, svgd_direction, tau_from_bandwidth

from . import plots, rivals
from .grids import WHAT
from .plots import geometric_mean, listing, mebibytes, milliseconds
from .study import Call, Cell, JaxCall, exact_matrix, relative

ROWS = 256  # whose results are compared with float64
TOLERANCES = {"cpu": 1e-3, "cuda": 1e-2}  # of gradients, in half precision on CUDA
LARGEST = {"cpu": 8192, "cuda": 65536}  # points in a sample of dense methods
DENSE = {  # by name: the precision of products, which by JAX's default is TF32 on CUDA
    "cpu": {"dense JAX": "default"},
    "cuda": {"dense JAX in TF32": "default", "dense JAX in float32": "highest"},
}
GROUPS, SETS = (100, 1000), (64, 50, 500)  # number and size; number, least size and largest
NAMES = {"iteration": "Sinkhorn step", "sums": "sums within 100 groups", "mmd": "MMD² of all pairs of 64 sets"}


def samples(num: int, dim: int) -> list[jax.Array]:
    """Two samples of Gaussian points scaled by D^-1/2, the second one moved."""
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(size=(num, dim)) / dim**0.5 + 0.1 * i, jnp.float32) for i in range(2)]


def mmd_dense(x: jax.Array, y: jax.Array, tau: float) -> jax.Array:
    """The formula, as one writes it."""

    def mean(x: jax.Array, y: jax.Array) -> jax.Array:
        squared = jnp.square(x).sum(-1)[:, None] + jnp.square(y).sum(-1) - 2 * x @ y.T
        return jnp.exp(-tau / 2 * squared).mean()

    return mean(x, x) - 2 * mean(x, y) + mean(y, y)


def mmd_losses(num: int, device: str, dense: Mapping[str, str]) -> dict[str, Callable]:
    """Ours, and the formula in every precision, where memory holds its matrices."""

    def in_precision(precision: str) -> Callable:
        def loss(x: jax.Array, y: jax.Array, tau: float) -> jax.Array:
            with jax.default_matmul_precision(precision):
                return mmd_dense(x, y, tau)

        return loss

    formulas = {name: in_precision(precision) for name, precision in dense.items()}
    return {"mmd_squared": mmd_squared} | (formulas if num <= LARGEST[device] else {})


def mmd_gradient(x: jax.Array, y: jax.Array) -> np.ndarray:
    """The first rows of the loss's gradient for samples of one size, τ = 1, in float64."""
    a, b = (np.asarray(z, np.float64) for z in (x, y))
    among, beside = exact_matrix(a[:ROWS], a), exact_matrix(a[:ROWS], b)
    pulled = among @ a - beside @ b - (among.sum(1) - beside.sum(1))[:, None] * a[:ROWS]
    return 2 * pulled / len(a) ** 2


def mmd_step(num: int, dim: int, device: str, dense: Mapping[str, str] | None = None) -> Cell:
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
        return relative(found[3][:ROWS], mmd_gradient(x, y))

    losses = mmd_losses(num, device, dense or DENSE[device])
    methods = {name: functools.partial(call, loss) for name, loss in losses.items()}
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
    methods = {name: functools.partial(call, loss, x, y) for name, loss in losses.items()}
    return Cell({"figure": "digits step", "n": 1024, "d": 64}, methods, error, TOLERANCES[device])


def svgd_step(num: int, dim: int, device: str) -> Cell:
    """A step of 10⁴ particles, say, towards the standard normal distribution, τ = 1/D."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(num, dim)), jnp.float32)
    tau, optimizer = 1 / dim, optax.sgd(1.0)

    def ours(x: jax.Array, state: Any):
        updates, state = optimizer.update(-svgd_direction(x, -x, tau), state)
        return optax.apply_updates(x, updates), state

    def blackjax() -> Call | str:
        if num**2 * dim > 2**28:
            return "an array of N² D numbers"
        from blackjax.vi import svgd  # pyright: ignore[reportMissingImports]

        kernel = svgd.build_kernel(optimizer)
        state = svgd.init(x, {"length_scale": 2 / tau}, optimizer)
        return JaxCall(lambda state: kernel(state, jnp.negative, svgd.rbf_kernel), state)

    def error(found: tuple) -> float:
        a = np.asarray(x, np.float64)
        phi = exact_matrix(a[:ROWS], a, tau)
        return relative((found[0] - x)[:ROWS], (phi @ (-a - tau * a) + tau * phi.sum(1)[:, None] * a[:ROWS]) / num)

    methods = {"svgd_direction": lambda: JaxCall(ours, x, optimizer.init(x)), "blackjax": blackjax}
    return Cell({"figure": "SVGD step", "n": num, "d": dim}, methods, error, TOLERANCES[device], "SVGD")


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

    ours = functools.partial(kde_logpdf, tau=tau)
    methods: dict[str, Callable] = {
        "kde_logpdf": lambda: JaxCall(ours, x, y),
        "dense JAX": lambda: JaxCall(dense, x, y),
    }
    if device == "cpu":  # others run on the host
        methods["SciPy"] = lambda: functools.partial(gaussian_kde(points.T, bandwidth).logpdf, queries.T)
        tree = KernelDensity(bandwidth=bandwidth)
        methods["scikit-learn"] = lambda: functools.partial(tree.fit(points).score_samples, queries)

    def error(found: Any) -> float:
        return relative(found[:ROWS], exact_logpdf(queries[:ROWS], points, float(tau)))

    return Cell({"figure": "density", "n": num, "d": dim}, methods, error, 1e-3, f"density, D = {dim}")


def exact_logpdf(queries: Any, samples: Any, tau: float) -> np.ndarray:
    """In float64."""
    return np.log(exact_matrix(queries, samples, tau).mean(1)) + samples.shape[1] / 2 * math.log(tau / (2 * math.pi))


def sinkhorn_step(num: int, dim: int, device: str) -> Cell:
    """Two log-sum-exps, over rows and over columns, in every geometry, of points N(0, I) and N(0.3, 0.64 I)."""
    rng, theirs = np.random.default_rng(0), rivals.otts_point_cloud()
    x, y = (jnp.asarray(a + b * rng.standard_normal((num, dim)), jnp.float32) for a, b in ((0, 1), (0.3, 0.8)))
    epsilon = float(jaxgauss.ott.PointCloud(x, y).epsilon)

    def both(geometry: Callable, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        g = geometry(x, y, epsilon=epsilon)
        f = g.apply_lse_kernel(jnp.zeros(len(x)), jnp.zeros(len(y)), epsilon, axis=1)[0]
        return f, g.apply_lse_kernel(-f, jnp.zeros(len(y)), epsilon, axis=0)[0]

    def error(found: Any) -> float:
        rows, columns = np.asarray(x[:ROWS], np.float64), np.asarray(y, np.float64)
        cost: Any = np.square(rows).sum(1)[:, None] + np.square(columns).sum(1) - 2 * rows @ columns.T
        exact = epsilon * np.asarray(logsumexp(-cost / epsilon, axis=1))
        return float(np.abs(np.asarray(found[0][:ROWS]) - exact).max() / np.abs(exact).max())

    geometries = {"jaxgauss": jaxgauss.ott.PointCloud, "OTT online": functools.partial(theirs, batch_size=1024)}
    geometries |= {"OTT dense": theirs} if num <= 5000 else {}
    calls = {name: functools.partial(JaxCall, functools.partial(both, g), x, y) for name, g in geometries.items()}
    return Cell({"figure": "iteration", "n": num, "d": dim, "epsilon": epsilon}, calls, error, 1e-4)


def grouped_sums(what: str, dim: int, device: str) -> Cell:
    """Sums of all groups, whose points are in random order; those of the first group are checked."""
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.repeat(np.arange(GROUPS[0]), GROUPS[1]))
    points, values = (rng.standard_normal((len(labels), n), np.float32) for n in (dim, 1))
    each = [np.flatnonzero(labels == i) for i in range(GROUPS[0])]

    def summed(function: Callable, points: Any, values: Any) -> Any:
        if what == "forward":
            return function(points, points, values)
        value, pullback = jax.vjp(lambda x, v: function(x, x, v), points, values)
        return value, *pullback(jnp.ones_like(value))

    def by_segments() -> Call:
        function = functools.partial(summed, functools.partial(gauss_sum, segments=(labels, labels)))
        call = JaxCall(function, jnp.asarray(points), jnp.asarray(values))
        return lambda: [np.asarray(x)[each[0]] for x in jax.tree.leaves(call())]

    def one_by_one() -> Call:
        step = jax.jit(functools.partial(summed, gauss_sum))
        groups = [(jnp.asarray(points[i]), jnp.asarray(values[i])) for i in each]
        return lambda: jax.tree.leaves(jax.block_until_ready([step(*x) for x in groups])[0])

    def error(results: Any) -> float:
        x, v = points[each[0]].astype(np.float64), values[each[0]].astype(np.float64)
        phi = exact_matrix(x, x)
        weights = phi * (v + v.T)
        exact = [phi @ v, weights @ x - weights.sum(1)[:, None] * x, phi.sum(0)[:, None]]
        return max(map(relative, results, exact))  # of the sums alone, if there are no gradients

    about = {"figure": "sums", "d": dim, "groups": GROUPS[0], "n": GROUPS[1], "what": what}
    return Cell(about, {"segments": by_segments, "one by one": one_by_one}, error, 1e-5)


def grouped_mmd(what: str, dim: int, device: str) -> Cell:
    """MMD² between all pairs of sets; with the gradient of the sum of their squares."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(SETS[1], SETS[2] + 1, SETS[0])
    labels = np.repeat(np.arange(SETS[0]), sizes)
    points = (rng.standard_normal((len(labels), dim)) + 0.2 * rng.standard_normal((SETS[0], dim))[labels]).astype(
        np.float32
    )
    upper = np.triu_indices(SETS[0], 1)

    def squared(function: Callable, argnums: Any) -> Callable:
        """What the function finds, behind the gradient of its squares."""

        def both(*x: Any) -> Any:
            found = function(*x)
            return jnp.square(found).sum(), found

        return (lambda *x: both(*x)[1]) if what == "forward" else jax.grad(both, argnums, has_aux=True)

    def at_once() -> Call:
        call = JaxCall(squared(lambda x: mmd_squared_matrix(x, 1.0, segments=labels), 0), jnp.asarray(points))
        return lambda: np.asarray(jax.tree.leaves(call())[-1])[upper]

    def one_by_one() -> Call:
        width = sizes.max()
        sets = [jnp.asarray(points[np.resize(np.flatnonzero(labels == i), width)]) for i in range(SETS[0])]
        weights = [jnp.asarray(np.where(np.arange(width) < n, 1 / n, 0), "float32") for n in sizes]
        step = jax.jit(squared(lambda x, y, a, b: mmd_squared(x, y, 1.0, x_weights=a, y_weights=b), (0, 1)))

        def call() -> np.ndarray:
            pairs = zip(*upper, strict=True)
            found = jax.block_until_ready([step(sets[i], sets[j], weights[i], weights[j]) for i, j in pairs])
            return np.asarray([jax.tree.leaves(x)[-1] for x in found])

        return call

    def error(results: Any) -> float:
        ones = (labels[:, None] == np.arange(SETS[0])) / sizes
        means = ones.T @ exact_matrix(points, points) @ ones
        exact = np.diag(means)[:, None] + np.diag(means) - 2 * means
        return float(np.abs(results - exact[upper]).max())

    about = {"figure": "mmd", "d": dim, "groups": SETS[0], "n": len(labels), "what": what}
    return Cell(about, {"mmd_squared_matrix": at_once, "one by one": one_by_one}, error, 1e-6)  # relative to κ(0)


SIZES: dict[Callable[..., Cell], list[tuple]] = {  # N or what, and D
    mmd_step: [(num, dim) for dim in (16, 64) for num in (256, 1024, 4096, 8192, 65536)],
    svgd_step: [(500, 30), (2000, 30), (10000, 30)],
    density: [(num, dim) for dim in (3, 16) for num in (1000, 20000)],
    sinkhorn_step: [*itertools.product((2000, 5000, 20_000), (3, 64))],
    grouped_sums: [(what, dim) for dim in (2, 3) for what in WHAT],
    grouped_mmd: [(what, 3) for what in WHAT],
}
OURS = ("mmd_squared", "svgd_direction", "kde_logpdf", "jaxgauss", "segments", "mmd_squared_matrix")


def steps(device: str) -> Iterator[Cell]:
    """Whether what the sums are for is faster than what people use: training, SVGD, densities, Sinkhorn, groups."""
    yield digits_step(device)
    for cell, sizes in SIZES.items():
        for size in sizes:
            yield cell(*size, device)


def report(data: dict) -> str:
    """Milliseconds and MiB of every method."""
    rows = []
    timed = [c for c in data["cells"] if "median" in c]
    for methods in plots.by_method(timed, "figure", "n", "d", "what").values():
        ours, *others = (f"{name} {milliseconds(c)} ({mebibytes(c)})" for name, c in methods.items())
        first = next(iter(methods.values()))
        figure = NAMES.get(first["figure"], first["figure"]) + " with gradients" * (first.get("what") == WHAT[1])
        rows.append(first | {"figure": figure, "ours": ours, "others": ", ".join(others)})
    text = listing(rows, {"": "{figure}", "N": "{n}", "D": "{d}", "ours": "{ours}", "others": "{others}"})
    steps = [plots.having(x["cells"], figure="MMD step") for x in (data, data.get("beside", {"cells": []}))]
    dense = next((name for name in plots.names(steps[0]) if name not in OURS), "")
    here, there = (plots.ratios(cells, dense, "mmd_squared", "n", "d") for cells in steps)
    if here:
        text += f"\nMMD step, dense / ours: {geometric_mean(here):.2f}x in the geometric mean"
    if there:
        version = data["beside"]["versions"]["jax"]
        text += f"; with jax {version}, measured in turns, {geometric_mean(there):.2f}x"
    return text + "\n"


def draw(data: dict, path: Path) -> None:
    """Times over N."""
    cells = [c for c in data["cells"] if c["figure"] in ("MMD step", "SVGD step", "density")]
    plots.panels(data, path, "", [("median", plots.titled(cells, "{figure}, D = {d}"))])
