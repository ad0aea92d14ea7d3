"""Errors of every reduction in every precision against float64, and the picture of them.

    python -m benchmarks.precision --device cpu          measure, write the JSON and the picture
    python -m benchmarks.precision --plot FILE           draw the picture again from a JSON

They go to outputs/benchmarks, with `--keep` to benchmarks/results.

N = M = 4096 points N(0, I/D), moved by an offset. Values are positive (|N(0, 1)|) or signed. Errors are relative L2
for positive values and ‖s - ŝ‖₂ / ‖Σ Φ|v|‖₂ for signed ones, which cancellation does not shrink.
"""

import argparse
import functools
import itertools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import torch
from tqdm import tqdm

import torch_backend
from jaxgauss import gauss_sum

from .measure import add_destination, destination, environment, save, shown

NUM = 4096
DIMS, TAUS, OFFSETS = (3, 8, 16, 32, 64), (0.01, 1.0, 10.0, 100.0, 1000.0), (0.0, 10.0, 1000.0)
PRECISIONS = ("float16", "bfloat16", "float16x2", "bfloat16x2", "float32")
METHODS = ("reweight", "prescale", "rescale")
# What is promised: the error of a sum at τ ≤ 10 and at τ = 100, and of the gradient. At τ = 100 and D = 64 one pair may
# be all of the sums: half precision promises a handful of terms twice as much as many, which is 5e-3.
BOUNDS = {
    "float16": (5e-4, 1e-2, 2e-3, 7e-3),
    "float16x2": (4e-4, 4e-4, 2e-3, 7e-3),
    "bfloat16x2": (4e-3, 4e-3),
}


def problem(dim: int, tau: float, offset: float, sign: str):
    """Float32 points and values, the exact sums, Σ Φ|v| and gradients of the queries (of the sum of all sums)."""
    rng = np.random.default_rng(0)
    q, k = ((rng.normal(size=(NUM, dim)) / dim**0.5 + offset).astype("float32") for _ in range(2))
    v = rng.normal(size=(NUM, 1)).astype("float32")
    v = np.abs(v) if sign == "positive" else v
    center = k.astype("float64").mean(0)
    a, b = ((x - center) * tau**0.5 for x in (q, k))
    norms = np.square(a).sum(1)[:, None] / 2 + np.square(b).sum(1) / 2
    phi = np.exp(np.minimum(a @ b.T - norms, 0))
    weights = phi * v[:, 0]
    gradient = tau**0.5 * (weights @ b - weights.sum(1)[:, None] * a)
    reach = max(np.square(a).sum(1).max(), np.square(b).sum(1).max())
    return (q, k, v), phi @ v, phi @ np.abs(v), gradient, float(reach)


def measure(device: str) -> list[dict]:
    """One cell for each sum and each gradient."""
    cells = []
    problems = list(itertools.product(DIMS, TAUS, OFFSETS, ("positive", "signed")))
    for dim, tau, offset, sign in tqdm(problems, unit="problem"):
        arrays, exact, bound, gradient, reach = problem(dim, tau, offset, sign)
        size = np.linalg.norm(exact if sign == "positive" else bound)
        about = {"d": dim, "tau": tau, "offset": offset, "values": sign, "squared_reach": reach}
        if size < 1e-38:  # nothing that float32 could hold
            continue
        tensors = [torch.from_numpy(x).to(device) for x in arrays]
        for precision, method, guard in itertools.product(PRECISIONS, METHODS, (False, True)):
            if (guard and method != "rescale") or (not guard and offset):
                continue
            sums = torch_backend.gauss_sum(*tensors, tau, method=method, precision=precision, guard=guard)
            error = float(np.linalg.norm(sums.double().cpu().numpy() - exact) / size)
            kind = {"what": "sum", "method": method, "precision": precision, "guard": guard}
            cells.append(about | kind | {"error": error})
        for precision in BOUNDS:
            found = np.asarray(slope(precision, *(jnp.asarray(x) for x in arrays), tau), np.float64)
            error = float(np.linalg.norm(found - gradient) / np.linalg.norm(gradient))
            kind = {"what": "gradient", "method": "rescale", "precision": precision, "guard": True}
            cells.append(about | kind | {"error": error})
    return cells


@functools.partial(jax.jit, static_argnums=0)
def slope(precision: str, q: jax.Array, k: jax.Array, v: jax.Array, tau: float) -> jax.Array:
    """The gradient of the sum of all sums with respect to the queries."""
    return jax.grad(lambda q: gauss_sum(q, k, v, tau, method="rescale", precision=precision).sum())(q)


def widths() -> list[dict]:
    """Columns that the layouts take for C = 1 and that the kernels run at: what the norms of the keys cost."""
    rows, dims = [], (3, 8, 16, 32, 64, 83, 128)
    for name, precision, dim in itertools.product(("flash", "cpu"), ("float16", "float16x2"), dims):
        device = torch_backend.KERNELS[name].device
        kernel = torch_backend.select_kernel("auto", precision, device, torch.float32, dim)
        columns = kernel.columns(dim)
        points = columns - kernel.norm_columns
        rows.append({"kernel": kernel.name, "precision": kernel.precision, "asked": precision, "d": dim})
        rows[-1] |= {"points": points, "width_of_points": kernel.width(points)}
        rows[-1] |= {"columns": columns, "width": kernel.width(columns)}
    return rows


def worst(cells: list[dict], what: str, precision: str, taus: tuple[float, ...]) -> float:
    """The largest error of the guarded sums or gradients."""
    chosen = (c for c in cells if c["guard"] and (c["what"], c["precision"]) == (what, precision) and c["tau"] in taus)
    return max(c["error"] for c in chosen)


def plot(data: dict, path: Path) -> None:
    """Error against τ‖x‖² of the farthest point: the three reductions by themselves, and what gauss_sum returns."""
    figure, axes = plt.subplots(1, len(PRECISIONS), figsize=(17, 4), sharey=True, layout="constrained")
    for axis, precision in zip(axes, PRECISIONS, strict=True):
        for method, marker in zip((*METHODS, "gauss_sum"), "v^so", strict=True):
            chosen = [
                (c["squared_reach"], max(c["error"], 1e-8)) for c in data["cells"]
                if c["what"] == "sum" and c["precision"] == precision and c["offset"] == 0
                and (c["guard"] if method == "gauss_sum" else not c["guard"] and c["method"] == method)
            ]  # fmt: skip
            x, y = np.array(sorted(chosen)).T
            y = np.where(np.isfinite(y), y, 10.0)
            axis.loglog(x, np.minimum(y, 10), marker, ms=5 if method == "gauss_sum" else 4, label=method, alpha=0.75)
        axis.set(title=precision, xlabel="τ‖x‖² of the farthest point", ylim=(5e-9, 20))
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("error (10: infinite or NaN)")
    axes[0].legend()
    title = f"N = {data['num']}, {data['device_name']}, torch {data['versions']['torch']}, commit {data['commit']}"
    figure.suptitle(title, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(device: str, out: Path | None, keep: bool = False) -> None:
    """Measure, write the JSON, print the worst cases, draw."""
    data = environment(device) | {"num": NUM, "cells": measure(device), "widths": widths()}
    path = destination(data, "precision", out, keep)
    save(data, path)
    for precision, bounds in BOUNDS.items():
        for i, (what, taus) in enumerate(itertools.product(("sum", "gradient"), (TAUS[:3], TAUS[3:4]))):
            limit = f"(promised: {bounds[i]:.0e})" if i < len(bounds) else ""
            error = worst(data["cells"], what, precision, taus)
            print(f"{what}, {precision}, τ {'=' if i % 2 else '≤'} {taus[-1]:g}: error ≤ {error:.1e} {limit}")
    text = "{kernel}, {precision}, D = {d}: points {points} -> {width_of_points}, with norms {columns} -> {width}"
    for row in data["widths"]:
        print(text.format(**row))
    plot(data, path.with_suffix(".png"))
    print(f"raw data: {shown(path)}\npicture: {shown(path.with_suffix('.png'))}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--plot", type=Path, help="draw this JSON again, measure nothing")
    add_destination(parser)
    arguments = parser.parse_args()
    if arguments.plot:
        plot(json.loads(arguments.plot.read_text()), arguments.plot.with_suffix(".png"))
    else:
        main(arguments.device, arguments.out, arguments.keep)
