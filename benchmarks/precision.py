"""Errors of every reduction in every precision against float64.

N = M = 4096 points N(0, I/D), moved by an offset. Values are positive (|N(0, 1)|) or signed. Errors are relative L2
for positive values and ‖s - ŝ‖₂ / ‖Σ Φ|v|‖₂ for signed ones, which cancellation does not shrink.
"""

import functools
import itertools
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import torch

import torch_backend
from jaxgauss import gauss_sum

from . import plots
from .plots import having, pivot, power
from .study import BOTH, Cells, Study, Task, exact_matrix, relative

NUM = 4096
DIMS, TAUS, OFFSETS = (3, 8, 16, 32, 64), (0.01, 1.0, 10.0, 100.0, 1000.0), (0.0, 10.0, 1000.0)
PRECISIONS = ("float16", "bfloat16", "float16x2", "bfloat16x2", "float32")
METHODS = ("reweight", "prescale", "rescale")
HALF = ("float16", "float16x2", "bfloat16x2")  # whose gradients are measured


def steps(device: str) -> Iterator[Task]:
    """Whether every precision keeps the digits that its page promises, wherever the points lie."""
    for dim, tau, offset, sign in itertools.product(DIMS, TAUS, OFFSETS, ("positive", "signed")):
        about = {"d": dim, "tau": tau, "offset": offset, "values": sign}
        yield Task(about, lambda runs, x=(dim, tau, offset, sign): errors(device, *x))


def problem(dim: int, tau: float, offset: float, sign: str):
    """Float32 points and values, the exact sums, Σ Φ|v| and gradients of the queries (of the sum of all sums)."""
    rng = np.random.default_rng(0)
    q, k = ((rng.normal(size=(NUM, dim)) / dim**0.5 + offset).astype("float32") for _ in range(2))
    v = rng.normal(size=(NUM, 1)).astype("float32")
    v = np.abs(v) if sign == "positive" else v
    a, b = (x - k.astype("float64").mean(0) for x in (q, k))
    phi = exact_matrix(q, k, tau)
    weights = phi * v[:, 0]
    gradient = tau * (weights @ b - weights.sum(1)[:, None] * a)
    reach = tau * max(np.square(a).sum(1).max(), np.square(b).sum(1).max())
    return (q, k, v), phi @ v, phi @ np.abs(v), gradient, float(reach)


def errors(device: str, dim: int, tau: float, offset: float, sign: str) -> list[dict]:
    """One row for each sum and each gradient."""
    arrays, exact, bound, gradient, reach = problem(dim, tau, offset, sign)
    size = np.linalg.norm(exact if sign == "positive" else bound)
    if size < 1e-38:  # nothing that float32 could hold
        return []
    rows = []

    def add(what: str, method: str, precision: str, guard: bool, error: float) -> None:
        about = {"squared_radius": reach, "what": what, "method": method, "precision": precision}
        rows.append(about | {"guard": guard, "error": error})

    tensors = [torch.from_numpy(x).to(device) for x in arrays]
    for precision, method, guard in itertools.product(PRECISIONS, METHODS, (False, True)):
        if method == "rescale" if guard else not offset:
            sums = torch_backend.gauss_sum(*tensors, tau, method=method, precision=precision, guard=guard)
            add("sum", method, precision, guard, float(np.linalg.norm(sums.double().cpu().numpy() - exact) / size))
    for precision in HALF:
        found = slope(precision, *(jnp.asarray(x) for x in arrays), tau)
        add("gradient", "rescale", precision, True, relative(found, gradient))
    return rows


@functools.partial(jax.jit, static_argnums=0)
def slope(precision: str, q: jax.Array, k: jax.Array, v: jax.Array, tau: float) -> jax.Array:
    """The gradient of the sum of all sums with respect to the queries."""
    return jax.grad(lambda q: gauss_sum(q, k, v, tau, engine="rescale", precision=precision).sum())(q)


def report(data: dict) -> str:
    """The worst errors; NaN: a sum is lost, too."""
    near, far = TAUS[:3], TAUS[3:4]
    alone = "by itself, τ = 100, not shifted"
    lines = {
        "`gauss_sum`, τ ≤ 10": (near, {"what": "sum", "guard": True}),
        "`gauss_sum`, τ = 100": (far, {"what": "sum", "guard": True}),
        f"`rescale` {alone}": (far, {"guard": False, "method": "rescale"}),
        f"`reweight` (Algorithm 2) {alone}": (far, {"guard": False, "method": "reweight"}),
        f"`prescale` (Algorithm 1) {alone}": (far, {"guard": False, "method": "prescale"}),
        "gradient of the queries, τ ≤ 10": (near, {"what": "gradient"}),
        "gradient of the queries, τ = 100": (far, {"what": "gradient"}),
    }
    cells: Cells = []
    for (line, (taus, about)), name in itertools.product(
        lines.items(), ("float16", "float16x2", "bfloat16", "bfloat16x2")
    ):
        if found := [c["error"] for c in having(data["cells"], precision=name, **about) if c["tau"] in taus]:
            largest = np.max(found)
            lost = not about.get("guard", True) and not largest < 0.9
            cells.append({"line": line, "precision": name, "worst": "all lost" if lost else power(largest)})
    return pivot("worst error", cells, "{line}", "`{precision}`", "{worst}")


def draw(data: dict, path: Path) -> None:
    """Error against τ‖x‖² of the farthest point: the three reductions by themselves, and what gauss_sum returns."""
    cells: Cells = []
    for c in having(data["cells"], what="sum", offset=0.0):
        error = np.nan_to_num(np.clip(c["error"], 1e-8, 10), nan=10)
        cells.append(c | {"error": error, "n": NUM} | ({"method": "gauss_sum"} if c["guard"] else {}))
    figures = {precision: having(cells, precision=precision) for precision in PRECISIONS}
    plots.panels(data, path, "", [("error", figures)], "an error of 10: infinite or NaN", ls="", lw=1)


STUDY = Study(steps, report, draw, devices=BOTH)
