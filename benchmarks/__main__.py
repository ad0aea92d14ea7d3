"""gauss_sum beside JAX's own dense and blocked sums and the bare attention kernel: `python -m benchmarks --device cpu`.

Every function is checked against float64 before it is timed. Functions take turns in one process; a timed call follows
an untimed one of the same function. Medians and quartiles of at least ten runs; every repetition is in the JSON.
"""

import argparse
import datetime
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
import numpy as np
import torch
from tqdm import tqdm

import jaxgauss
from jaxgauss import gauss_sum, gauss_sum_blocked, gauss_sum_dense
from torch_backend import attention, select_kernel

RESULTS = Path(__file__).parent / "results"
DIMS = (1, 3, 8, 16, 64, 128, 300)  # of the errors
SIZES = [(3, 1), (16, 1), (32, 1), (32, 32), (64, 64), (128, 1)]  # D, C
METHODS = {
    "auto": gauss_sum,
    "rescale": lambda *x: gauss_sum(*x, method="rescale"),
    "blocked JAX": gauss_sum_blocked,
    "dense JAX": gauss_sum_dense,
}
Functions = dict[tuple[str, str], Callable[[], object]]  # by method and what it computes
TOLERANCE = 5e-3  # an error above this is a bug, not a measurement; what is measured is in the JSON


def problem(num: int, dim: int, channels: int, seed: int = 0) -> tuple[jax.Array, ...]:
    """Queries, keys, values and a cotangent: standard Gaussian points scaled by D^-1/2."""
    rng = np.random.default_rng(seed)
    shapes = [(num, dim), (num, dim), (num, channels), (num, channels)]
    scales = [dim**-0.5, dim**-0.5, 1.0, 1.0]
    return tuple(jnp.asarray(rng.normal(size=s) * c, jnp.float32) for s, c in zip(shapes, scales, strict=True))


def error(function: Callable, q: Any, k: Any, v: Any, rows: int = 512) -> float:
    """Relative L2 error over the first queries, against float64."""
    exact = exact_sum(np.asarray(q[:rows]), np.asarray(k), np.asarray(v))
    return float(np.linalg.norm(np.asarray(function(q, k, v), np.float64)[:rows] - exact) / np.linalg.norm(exact))


def in_turns(functions: dict[tuple[str, str], Callable[[], object]], runs: int) -> dict[tuple[str, str], list[float]]:
    """Seconds of every run of every function."""
    times: dict[tuple[str, str], list[float]] = {name: [] for name in functions}
    for function in functions.values():
        for _ in range(3):
            function()
    for _ in range(runs):
        for name, function in functions.items():
            function()
            start = time.perf_counter()
            function()
            times[name].append(time.perf_counter() - start)
    return times


def bare_kernel(device: str, num: int, dim: int, channels: int) -> Callable[[], object]:
    """The attention call alone, on ready-made tensors at the width that `rescale` runs at."""
    kernel = select_kernel("auto", "auto", device, torch.float32, dim)
    width = kernel.width(max(dim + (0 if kernel.takes_bias else kernel.norm_columns), channels))
    shape = (1, 1, num, width)
    q, k, v = ((torch.randn(shape, device=device) / width**0.5).to(kernel.dtype) for _ in range(3))

    def call() -> None:
        with torch.inference_mode():
            attention.attention(q, k, v, kernel)
        if device == "cuda":
            torch.cuda.synchronize()

    return call


def against_jax(device: str, num: int, runs: int) -> list[dict]:
    """Forward, and value with gradients, at every (D, C)."""
    cells = []
    for dim, channels in tqdm(SIZES, unit="size", desc=f"N = {num}"):
        q, k, v, g = problem(num, dim, channels)
        functions: Functions = {("bare attention kernel", "forward"): bare_kernel(device, num, dim, channels)}
        errors = {}
        for name, method in METHODS.items():
            forward, gradients = (
                jax.jit(method),
                jax.jit(lambda q, k, v, g, f=method: value_and_pullback(f, q, k, v, g)),
            )
            errors[name] = error(forward, q, k, v)
            if not errors[name] < TOLERANCE:
                raise AssertionError(f"{name} at D={dim}, C={channels}: relative error {errors[name]}")
            functions[name, "forward"] = lambda f=forward, x=(q, k, v): jax.block_until_ready(f(*x))
            functions[name, "gradients"] = lambda f=gradients, x=(q, k, v, g): jax.block_until_ready(f(*x))
        functions["rescale, eager", "forward"] = lambda f=METHODS["rescale"], x=(q, k, v): f(*x).block_until_ready()
        for (name, what), seconds in in_turns(functions, runs).items():
            cells.append(
                {"suite": "jax", "n": num, "d": dim, "c": channels, "method": name, "what": what}
                | {"error": errors.get(name.removesuffix(", eager")), "seconds": seconds}
                | dict(zip(("q1", "median", "q3"), np.quantile(seconds, [0.25, 0.5, 0.75]).tolist(), strict=True))
            )
    return cells


def value_and_pullback(function: Callable, q: jax.Array, k: jax.Array, v: jax.Array, g: jax.Array):
    """The sum, and its gradients for the cotangent g."""
    value, pullback = jax.vjp(function, q, k, v)
    return value, pullback(g)


def fixed_cost(runs: int) -> list[dict]:
    """One call at N = 16 under jit and eager: what there is beside the arithmetic."""
    q, k, v, _ = problem(16, 8, 1)
    functions: Functions = {}
    for name in ("auto", "rescale"):
        jitted = jax.jit(METHODS[name])
        functions[name, "jit"] = lambda f=jitted: jax.block_until_ready(f(q, k, v))
        functions[name, "eager"] = lambda f=METHODS[name]: jax.block_until_ready(f(q, k, v))
    return [
        {
            "suite": "fixed cost",
            "n": 16,
            "d": 8,
            "c": 1,
            "method": name,
            "what": what,
            "median": float(np.median(seconds)),
        }
        for (name, what), seconds in in_turns(functions, 100 * runs).items()
    ]


def digits_step(runs: int) -> list[dict]:
    """Loss and gradient of a step of examples/mmd_digits.py: 1024 generated images against 1257, three bandwidths."""
    from examples.mmd_digits import TAUS, mmd_squared_dense

    x, y = (jax.random.uniform(jax.random.key(i), (n, 64)) for i, n in enumerate((1024, 1257)))
    losses = {"auto": jaxgauss.mmd_squared, "dense JAX": mmd_squared_dense}
    functions: Functions = {}
    for name, loss in losses.items():
        step = jax.jit(jax.value_and_grad(lambda x, y, loss=loss: loss(x, y, jnp.array(TAUS), y_norm_squared=0.1)))
        functions[name, "gradients"] = lambda step=step: jax.block_until_ready(step(x, y))
    size = {"suite": "digits step", "n": 1024, "d": 64, "c": 1}
    times = in_turns(functions, runs)
    return [size | {"method": m, "what": w, "seconds": s, "median": float(np.median(s))} for (m, w), s in times.items()]


def errors(device: str, num: int = 4096) -> list[dict]:
    """Relative L2 errors of the sum against float64, all rows."""
    grid = [("float32", "auto", c, tau, offset) for c in (1, 7, 64) for tau, offset in ((1.0, 0.0), (1.0, 100.0))]
    grid += [("float64", "auto", c, 1.0, 0.0) for c in (1, 64)]
    grid += [("float32", "float16", 1, tau, 0.0) for tau in (1.0, 10.0)]
    cells = []
    with jax.enable_x64(True):
        for dim in tqdm(DIMS, unit="dimension", desc="errors"):
            for dtype, precision, channels, tau, offset in grid:
                q, k, v, _ = (np.asarray(x, np.float64) for x in problem(num, dim, channels))
                q, k, signed = (q + offset).astype(dtype), (k + offset).astype(dtype), v.astype(dtype)
                for sign, values in (("signed", signed), ("positive", np.abs(signed))):
                    exact = exact_sum(q, k, values, tau)
                    methods = ["rescale"] if precision == "float16" else ["rescale", "blocked"]
                    for method in methods[1:] if (device, dtype) == ("cuda", "float64") else methods:
                        ours = np.asarray(gauss_sum(q, k, values, tau, method=method, precision=precision), np.float64)
                        cells.append(
                            {"suite": "errors", "n": num, "d": dim, "c": channels, "tau": tau, "offset": offset}
                            | {"method": method, "dtype": dtype, "precision": precision, "values": sign}
                            | {"error": float(np.linalg.norm(ours - exact) / np.linalg.norm(exact))}
                        )
    return cells


def exact_sum(q: np.ndarray, k: np.ndarray, v: np.ndarray, tau: float = 1.0) -> np.ndarray:
    """The sum in float64, about the mean of the points."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    q, k = q - k.mean(0), k - k.mean(0)
    return np.exp(tau * (q @ k.T - np.square(q).sum(1)[:, None] / 2 - np.square(k).sum(1) / 2)) @ v


def memory(method: str, num: int) -> float:
    """MiB above the start of this process (a fresh one) for value and gradients at D = 16, C = 1."""
    step = jax.jit(lambda q, k, v, g: value_and_pullback(METHODS[method], q, k, v, g))
    jax.block_until_ready(step(*problem(64, 16, 1)))
    arguments = jax.block_until_ready(problem(num, 16, 1))

    before = peak_bytes()
    jax.block_until_ready(step(*arguments))
    return (peak_bytes() - before) / 2**20


def peak_bytes() -> int:
    """The most memory that has been in use: on the device by both libraries, or on a CPU by the process."""
    stats = jax.devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in stats:
        return stats["peak_bytes_in_use"] + torch.cuda.max_memory_allocated()
    status = Path("/proc/self/status")  # on Linux getrusage would count the parent process's peak
    if status.exists():
        return 1024 * int(status.read_text().split("VmHWM:")[1].split()[0])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def memories(device: str) -> list[dict]:
    """Peak memory over N, a process a cell."""
    cells = [(m, n) for n in (4096, 16384, 65536) for m in METHODS if m != "dense JAX" or n < 65536]
    results = []
    for method, n in tqdm(cells, unit="cell", desc="memory"):
        code = f"import benchmarks.__main__ as b; print(b.memory({method!r}, {n}))"
        environment = os.environ | {"JAX_PLATFORMS": device}
        run = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True, env=environment)
        cell = {"suite": "memory", "n": n, "d": 16, "c": 1, "method": method, "what": "gradients"}
        results.append(cell | {"mib": float(run.stdout)})
    return results


def environment(device: str) -> dict:
    """Where and with what this was measured; the end if that is not where JAX runs."""
    if jax.default_backend() != {"cpu": "cpu", "cuda": "gpu"}[device]:
        raise SystemExit(f"JAX runs on {jax.default_backend()}, not on {device}: set JAX_PLATFORMS={device}.")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    name = torch.cuda.get_device_name() if device == "cuda" else _cpu_name()
    return {
        "date": datetime.date.today().isoformat(),
        "commit": commit.stdout.strip(),
        "device": device,
        "device_name": name,
        "cores": os.cpu_count(),
        "versions": {
            "jax": jax.__version__,
            "torch": torch.__version__,
            "jaxgauss": "0.1.0",
            "python": platform.python_version(),
        },
        "plan": {f"D={d} C={c}": str(jaxgauss.explain(*problem(8192, d, c)[:3])) for d, c in SIZES},
    }


def save(data: dict, out: Path | None, suffix: str = "") -> Path:
    """Write the JSON, by date, device and commit if no file is named."""
    path = out or RESULTS / f"{data['date']}_{data['device']}_{data['commit']}{suffix}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=1) + "\n")
    print(f"raw data: {path}")
    return path


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def table(cells: list[dict]) -> str:
    """What the README shows: milliseconds, and ours against dense JAX."""
    median = {(c["d"], c["c"], c["method"], c["what"]): 1e3 * c["median"] for c in cells if c["suite"] == "jax"}
    lines = [
        "| D, C | | auto | rescale | bare kernel | blocked JAX | dense JAX | dense / auto |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for d, c in SIZES:
        for what in ("forward", "gradients"):
            row = [
                median.get((d, c, m, what))
                for m in ("auto", "rescale", "bare attention kernel", "blocked JAX", "dense JAX")
            ]
            numbers = " | ".join("" if x is None else f"{x:.1f}" for x in row)
            ratio = (row[4] or 0) / (row[0] or 1)
            lines.append(f"| {d}, {c} | {what} | {numbers} | {ratio:.1f}× |")
    return "\n".join(lines)


def main(device: str, num: int, runs: int, out: Path | None) -> None:
    """Measure, write the JSON, print the tables."""
    info = environment(device)
    cells = fixed_cost(runs) + digits_step(runs) + against_jax(device, num, runs) + memories(device) + errors(device)
    save(info | {"cells": cells}, out)
    print(table(cells))
    for c in cells:
        if c["suite"] == "fixed cost":
            print(f"N = 16, {c['method']}, {c['what']}: {1e6 * c['median']:.0f} µs")
        if c["suite"] == "digits step":
            print(f"a step of mmd_digits.py, {c['method']}: {1e3 * c['median']:.1f} ms")
        if c["suite"] == "memory":
            print(f"N = {c['n']}, {c['method']}, value and gradients: {c['mib']:.0f} MiB")
    for dtype, precision in (("float32", "auto"), ("float64", "auto"), ("float32", "float16")):
        of_kind = [c for c in cells if c["suite"] == "errors" and (c["dtype"], c["precision"]) == (dtype, precision)]
        for offset, sign in sorted({(c["offset"], c["values"]) for c in of_kind}):
            worst = max(c["error"] for c in of_kind if (c["offset"], c["values"]) == (offset, sign))
            print(f"{dtype}, precision {precision}, points moved by {offset:.0f}, {sign} values: error ≤ {worst:.1e}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--num", type=int, default=8192, help="queries and keys (default: 8192)")
    parser.add_argument("--runs", type=int, default=10, help="timed runs of each function (default: 10)")
    parser.add_argument(
        "--out", type=Path, help="JSON file (default: benchmarks/results/<date>_<device>_<commit>.json)"
    )
    main(**vars(parser.parse_args()))
