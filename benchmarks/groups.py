"""Groups in two and three dimensions, float32, under `jit`, τ = 1: sums within groups, MMD² between all pairs of sets.

The sums of 100 groups of 1000 normal points each, by `segments` and by as many separate calls, forward and with the
gradients of points and values. The MMD² of 64 sets of 50 to 500 points, D = 3, by `mmd_squared_matrix` and by a loop
over all pairs, in which sets are padded to one size by points without weight, so that it is compiled once. All is
checked against float64.
"""

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.spatial.distance import cdist

from jaxgauss import gauss_sum, mmd_squared, mmd_squared_matrix

from .grids import WHAT
from .plots import by_method, having, pivot, prose
from .study import Call, Cell, Cells, JaxCall, Study, relative

DIMS, GROUPS, POINTS = (2, 3), 100, 1000
SETS, SIZES = 64, (50, 500)
SUM, MATRIX = 1e-5, 1e-6  # errors: of a sum and its gradients, relative; of an MMD², relative to κ(0)


def steps(device: str) -> Iterator[Cell]:
    """Whether one call for all groups takes less time than a call for each."""
    for dim, what in itertools.product(DIMS, WHAT):
        yield of_sums(dim, what)
    for what in WHAT:
        yield of_matrix(what)


def of_sums(dim: int, what: str) -> Cell:
    """Sums of all groups, whose points are in random order."""
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.repeat(np.arange(GROUPS), POINTS))
    points, values = (rng.standard_normal((len(labels), n), np.float32) for n in (dim, 1))
    each = [np.flatnonzero(labels == i) for i in range(GROUPS)]

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
        return lambda: [np.asarray(x) for x in jax.tree.leaves(jax.block_until_ready([step(*x) for x in groups])[0])]

    def error(results: Any) -> float:
        x, v = points[each[0]].astype(np.float64), values[each[0]].astype(np.float64)
        phi = np.exp(-(cdist(x, x) ** 2) / 2)
        exact = [phi @ v]
        if what != "forward":
            w = phi * (v + v.T)
            exact += [w @ x - w.sum(1)[:, None] * x, phi.sum(0)[:, None]]
        return max(relative(a, b) for a, b in zip(results, exact, strict=True))

    about = {"figure": "sums", "d": dim, "groups": GROUPS, "n": POINTS, "what": what}
    return Cell(about, {"segments": by_segments, "one by one": one_by_one}, error, SUM)


def of_matrix(what: str) -> Cell:
    """MMD² between all pairs of sets; with the gradient of the sum of their squares."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(SIZES[0], SIZES[1] + 1, SETS)
    labels = np.repeat(np.arange(SETS), sizes)
    points = (rng.standard_normal((len(labels), 3)) + 0.2 * rng.standard_normal((SETS, 3))[labels]).astype(np.float32)
    pairs = list(itertools.combinations(range(SETS), 2))

    def at_once() -> Call:
        def function(x: Any) -> Any:
            found = mmd_squared_matrix(x, 1.0, segments=labels)
            return jnp.square(found).sum(), found

        call = JaxCall(
            function if what == "forward" else jax.value_and_grad(function, has_aux=True), jnp.asarray(points)
        )
        return lambda: np.asarray((call() if what == "forward" else call()[0])[1])[np.triu_indices(SETS, 1)]

    def one_by_one() -> Call:
        width = sizes.max()
        rows = [np.resize(np.flatnonzero(labels == i), width) for i in range(SETS)]
        sets = [jnp.asarray(points[i]) for i in rows]
        weights = [jnp.asarray(np.where(np.arange(width) < n, 1 / n, 0), "float32") for n in sizes]

        def function(x: Any, y: Any, a: Any, b: Any) -> Any:
            found = mmd_squared(x, y, 1.0, x_weights=a, y_weights=b)
            return jnp.square(found), found

        step = jax.jit(function if what == "forward" else jax.value_and_grad(function, (0, 1), has_aux=True))

        def call() -> np.ndarray:
            found = jax.block_until_ready([step(sets[i], sets[j], weights[i], weights[j]) for i, j in pairs])
            return np.asarray([(x if what == "forward" else x[0])[1] for x in found])

        return call

    def error(results: Any) -> float:
        ones = (labels[:, None] == np.arange(SETS)) / sizes
        means = ones.T @ np.exp(-(cdist(points, points) ** 2) / 2) @ ones
        exact = np.diag(means)[:, None] + np.diag(means) - 2 * means
        return float(np.abs(results - exact[np.triu_indices(SETS, 1)]).max())

    about = {"figure": "mmd", "d": 3, "groups": SETS, "n": len(labels), "what": what}
    return Cell(about, {"mmd_squared_matrix": at_once, "one by one": one_by_one}, error, MATRIX)


def report(data: dict) -> str:
    """Milliseconds of one call for all groups, and of a call for each."""
    rows: Cells = []
    for figure, ours in (("sums", "segments"), ("mmd", "mmd_squared_matrix")):
        for x in by_method(having(data["cells"], figure=figure), "d", "what").values():
            rows += [x[name] | {"column": column} for name, column in ((ours, "at once"), ("one by one", "one by one"))]
    sums, matrix = ([c for c in rows if c["figure"] == figure] for figure in ("sums", "mmd"))
    text = prose(
        f"Sums of {sums[0]['groups']} groups of {sums[0]['n']} points by `segments` take",
        f"{ratios(sums, of_loop=False)} times as long as separate calls. `mmd_squared_matrix` of {matrix[0]['groups']}",
        f"sets is {ratios(matrix, of_loop=True)} times as fast as a loop over all pairs.",
    )
    table = pivot("", rows, lambda c: f"{c['figure']}, {c['what']}, D = {c['d']}", lambda c: c["column"], entry)
    return f"{table}\n{text}"


def ratios(rows: Cells, of_loop: bool) -> str:
    """The smallest and the largest ratio of times, of the loop over the other or the reverse."""
    found = []
    for first, loop in zip(rows[::2], rows[1::2], strict=True):
        ratio = first["median"] / loop["median"]
        found.append(1 / ratio if of_loop else ratio)
    return f"{min(found):.2g} to {max(found):.2g}"


def entry(cell: dict) -> str:
    """Milliseconds."""
    return f"{1e3 * cell['median']:.3g}"


STUDY = Study(steps, report, ours=("segments", "mmd_squared_matrix"))
