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
from .plots import having, power
from .study import BOTH, Study, Task, exact_matrix, relative

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
    rows, about = [], {"squared_radius": reach}
    tensors = [torch.from_numpy(x).to(device) for x in arrays]
    for precision, method, guard in itertools.product(PRECISIONS, METHODS, (False, True)):
        if (guard and method != "rescale") or (not guard and offset):
            continue
        sums = torch_backend.gauss_sum(*tensors, tau, method=method, precision=precision, guard=guard)
        error = float(np.linalg.norm(sums.double().cpu().numpy() - exact) / size)
        about |= {"what": "sum", "method": method, "precision": precision, "guard": guard}
        rows.append(about | {"error": error})
    for precision in HALF:
        error = relative(slope(precision, *(jnp.asarray(x) for x in arrays), tau), gradient)
        about |= {"what": "gradient", "method": "rescale", "precision": precision, "guard": True}
        rows.append(about | {"error": error})
    return rows


@functools.partial(jax.jit, static_argnums=0)
def slope(precision: str, q: jax.Array, k: jax.Array, v: jax.Array, tau: float) -> jax.Array:
    """The gradient of the sum of all sums with respect to the queries."""
    return jax.grad(lambda q: gauss_sum(q, k, v, tau, method="rescale", precision=precision).sum())(q)


def worst(cells: plots.Cells, taus: tuple[float, ...], **about: object) -> str:
    """The largest error, if one was measured; NaN: it is lost, too."""
    errors = [c["error"] for c in having(cells, **about) if c["tau"] in taus]
    if not errors:
        return ""
    largest = np.max(errors)
    return power(largest) if about["guard"] or largest < 0.9 else "all lost"


def report(data: dict) -> str:
    """The worst errors."""
    names = ("float16", "float16x2", "bfloat16", "bfloat16x2")
    guarded = {"method": "rescale", "guard": True}
    itself = {"what": "sum", "guard": False, "offset": 0.0}
    lines = {
        "`gauss_sum`, τ ≤ 10": (TAUS[:3], guarded | {"what": "sum"}),
        "`gauss_sum`, τ = 100": (TAUS[3:4], guarded | {"what": "sum"}),
        "`rescale` by itself, τ = 100, not shifted": (TAUS[3:4], itself | {"method": "rescale"}),
        "`reweight` (Algorithm 2), τ = 100, not shifted": (TAUS[3:4], itself | {"method": "reweight"}),
        "`prescale` (Algorithm 1), τ = 100, not shifted": (TAUS[3:4], itself | {"method": "prescale"}),
        "gradient of the queries, τ ≤ 10": (TAUS[:3], guarded | {"what": "gradient"}),
        "gradient of the queries, τ = 100": (TAUS[3:4], guarded | {"what": "gradient"}),
    }
    rows = [
        [text, *(worst(data["cells"], taus, precision=name, **about) for name in names)]
        for text, (taus, about) in lines.items()
    ]
    return plots.table([["worst error", *(f"`{name}`" for name in names)], *rows])


def draw(data: dict, path: Path) -> None:
    """Error against τ‖x‖² of the farthest point: the three reductions by themselves, and what gauss_sum returns."""
    cells = [
        c | {"error": np.nan_to_num(np.clip(c["error"], 1e-8, 10), nan=10), "n": NUM}
        for c in having(data["cells"], what="sum", offset=0.0)
    ]
    cells = [c | {"method": "gauss_sum"} if c["guard"] else c for c in cells]
    figures = {precision: having(cells, precision=precision) for precision in PRECISIONS}
    plots.panels(data, path, "", [("error", figures)], "an error of 10: infinite or NaN", ls="", lw=1)


STUDY = Study(steps, report, draw, devices=BOTH)
