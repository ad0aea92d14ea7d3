"""How everything here is measured: checked against float64, in turns, with its memory, and saved as it goes.

A method's first call, with its compilation, is timed apart. Then come three calls to warm up, and repetitions in which
the methods take turns, in changing order: untimed calls for 20 ms and at least one, then as many as last five
milliseconds. For so long the idle threads of what ran before may keep a core busy; and the call after one that has
freed a gigabyte takes up to 1.6 times as long as the next, which is not its own time, nor that of a loop.
"""

import argparse
import contextlib
import ctypes
import datetime
import gc
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
import numpy as np
import torch
from tqdm import tqdm

from jaxgauss._engines.costs import cpu_name
from jaxgauss._engines.timing import in_turns as in_turns

OUTPUTS = Path(__file__).parents[1] / "outputs" / "benchmarks"  # which git ignores
RESULTS = Path(__file__).parent / "results"  # which it keeps
TOO_SLOW = 1.0  # seconds: a method that takes them is timed once, and not at all at larger sizes
LIBRARIES = ("jax", "jaxlib", "torch", "numpy", "pykeops", "ott-jax", "blackjax", "scikit-learn", "scipy", "optax")

Call = Callable[[], Any]  # computes, waits for the results, and returns them


@dataclass(frozen=True)
class Cell:
    """One problem for several methods.

    Attributes:
        about: suite, figure, sizes, dtype: the name of the cell when a run goes on.
        methods: functions that prepare the calls, by name.
        error: of a call's results, relative to float64.
        tolerance: the largest error; beyond it a method of ours is a bug, and another's is not timed.
        work: what it will cost, in any unit.
        series: cells in which the methods have to do ever more.
    """

    about: dict[str, Any]
    methods: dict[str, Callable[[], Call | str]]
    error: Callable[[Any], float]
    tolerance: float
    work: float
    series: str


def measure(cells: Iterable[Cell], info: dict, ours: Sequence[str], runs: int, out: Path) -> dict:
    """Measure the cells that the file `out` does not hold yet, and write it after each of them."""
    data = info | {"runs": runs, "complete": False, "done": [], "slow": [], "cells": []}
    cells = list(cells)
    if out.exists():
        before = json.loads(out.read_text())
        if any(before.get(name) != data[name] for name in ("device", "commit", "suite", "runs")):
            raise SystemExit(f"{out} is of another device, commit, suite or number of runs: name another file (--out).")
        data = before
    todo = [cell for cell in cells if cell.about not in data["done"]]
    total, work = sum(cell.work for cell in cells), sum(cell.work for cell in todo)
    with tqdm(
        total=total, initial=total - work, bar_format="{l_bar}{bar}| {elapsed}, {remaining} left{postfix}"
    ) as bar:
        for cell in todo:
            bar.set_postfix_str(", ".join(str(v) for k, v in cell.about.items() if k != "suite"))
            measured, slow = measure_cell(cell, ours, runs, [m for series, m in data["slow"] if series == cell.series])
            data["cells"] += measured
            data["slow"] += [[cell.series, method] for method in slow]
            data["done"].append(cell.about)
            save(data, out)
            bar.update(cell.work)
    data["complete"] = True
    save(data, out)
    print(f"{'raw data' if todo else 'measured before (delete it to measure again)'}: {shown(out)}")
    return data


def measure_cell(cell: Cell, ours: Sequence[str], runs: int, left_out: Sequence[str]) -> tuple[list[dict], list[str]]:
    """What was measured of every method, and the names of those that are too slow."""
    calls: dict[str, Call] = {}
    found: dict[str, dict] = {}
    slow = []
    for name, prepare in cell.methods.items():
        if name in left_out:
            continue
        start = time.perf_counter()
        try:
            call = prepare()
            if isinstance(call, str):  # why there is none
                continue
            results = call()
        except Exception as reason:  # another's library may not work with these versions, or be out of memory
            if name in ours:
                raise
            found[name] = {"failed": f"{type(reason).__name__}: {reason}"[:300]}
            continue
        found[name] = {"first_call": time.perf_counter() - start}
        found[name]["error"] = None if results is None else cell.error(results)
        del results
        if not (found[name]["error"] or 0.0) <= cell.tolerance:
            if name in ours:
                raise AssertionError(f"{name}, {cell.about}: error {found[name]['error']}")
            continue
        found[name]["mib"] = peak_mebibytes(call)
        start = time.perf_counter()
        call()
        once = time.perf_counter() - start
        if once > TOO_SLOW:
            found[name]["seconds"] = [once]
            slow.append(name)
        else:
            calls[name] = call
    for name, seconds in in_turns(calls, runs).items():
        found[name]["seconds"] = seconds
    return [cell.about | {"method": name} | result | quartiles(result) for name, result in found.items()], slow


def quartiles(result: dict) -> dict[str, float]:
    """Of the seconds, if there are any."""
    if "seconds" not in result:
        return {}
    return dict(zip(("q1", "median", "q3"), np.quantile(result["seconds"], [0.25, 0.5, 0.75]).tolist(), strict=True))


def timed(about: dict, calls: dict[str, Call], runs: int) -> list[dict]:
    """Cells with every repetition and the quartiles, of calls that were checked elsewhere."""
    times = in_turns(calls, runs)
    return [about | {"method": name, "seconds": times[name]} | quartiles({"seconds": times[name]}) for name in times]


class JaxCall:
    """A call of the function under jit."""

    def __init__(self, function: Callable, *arguments: Any):
        self.function, self.arguments = jax.jit(function), arguments

    def __call__(self) -> Any:
        """Compute and wait."""
        return jax.block_until_ready(self.function(*self.arguments))

    def bytes_in_jax(self) -> int:
        """What XLA gives the program, its results included."""
        needed: Any = self.function.lower(*self.arguments).compile().memory_analysis()
        return needed.temp_size_in_bytes + needed.output_size_in_bytes


def value_and_pullback(function: Callable, q: jax.Array, k: jax.Array, v: jax.Array, g: jax.Array):
    """The sum, and its gradients for the cotangent g."""
    value, pullback = jax.vjp(function, q, k, v)
    return value, *pullback(g)


def problem(num: int, dim: int, channels: int, seed: int = 0) -> tuple[jax.Array, ...]:
    """Queries, keys, values and a cotangent: standard Gaussian points scaled by D^-1/2."""
    rng = np.random.default_rng(seed)
    shapes = [(num, dim), (num, dim), (num, channels), (num, channels)]
    scales = [dim**-0.5, dim**-0.5, 1.0, 1.0]
    return tuple(jnp.asarray(rng.normal(size=s) * c, jnp.float32) for s, c in zip(shapes, scales, strict=True))


def error(function: Callable, q: Any, k: Any, v: Any, rows: int = 512) -> float:
    """Relative L2 error over the first queries, against float64."""
    exact = exact_sum(np.asarray(q[:rows]), np.asarray(k), np.asarray(v))
    return relative(np.asarray(function(q, k, v), np.float64)[:rows], exact)


def relative(found: Any, exact: np.ndarray) -> float:
    """The relative L2 error."""
    return float(np.linalg.norm(np.asarray(found, np.float64) - exact) / np.linalg.norm(exact))


def exact_sum(q: np.ndarray, k: np.ndarray, v: np.ndarray, tau: float = 1.0) -> np.ndarray:
    """The sum in float64, about the mean of the points."""
    return exact_matrix(q, k, tau) @ np.asarray(v, np.float64)


def exact_matrix(q: np.ndarray, k: np.ndarray, tau: float = 1.0) -> np.ndarray:
    """Φ in float64, about the mean of the points."""
    q, k = (np.asarray(x, np.float64) for x in (q, k))
    q, k = q - k.mean(0), k - k.mean(0)
    return np.exp(tau * (q @ k.T - np.square(q).sum(1)[:, None] / 2 - np.square(k).sum(1) / 2))


def peak_mebibytes(call: Call) -> float | None:
    """Memory that the call needs beyond what there is before it, its results included."""
    if torch.cuda.is_available() and jax.default_backend() == "gpu":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        by_jax = call.bytes_in_jax() if isinstance(call, JaxCall) else 0  # its peak cannot be set back
        return (torch.cuda.max_memory_allocated() - before + by_jax) / 2**20
    gc.collect()
    with contextlib.suppress(OSError, AttributeError, TypeError):  # as there may be none
        ctypes.CDLL(None).malloc_trim(0)  # what is free goes back to the system, or it would be used unseen
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak is now what there is
    except OSError:
        return None
    before = peak_bytes()
    call()
    return (peak_bytes() - before) / 2**20


def peak_bytes() -> int:
    """The most memory that has been in use: on the device by both libraries, or on a CPU by the process."""
    stats = jax.devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in stats:
        return stats["peak_bytes_in_use"] + torch.cuda.max_memory_allocated()
    status = Path("/proc/self/status")  # on Linux getrusage would count the parent process's peak
    if status.exists():
        return 1024 * int(status.read_text().split("VmHWM:")[1].split()[0])
    import resource  # which Windows has not

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def environment(device: str) -> dict:
    """Where and with what this is measured; the end if that is not where JAX runs."""
    if jax.default_backend() != {"cpu": "cpu", "cuda": "gpu"}[device]:
        raise SystemExit(f"JAX runs on {jax.default_backend()}, not on {device}: set JAX_PLATFORMS={device}.")
    versions = {"python": platform.python_version()}
    for name in ("jaxgauss", *LIBRARIES):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {
        "date": datetime.date.today().isoformat(),
        "commit": _commit(),
        "device": device,
        "device_name": torch.cuda.get_device_name() if device == "cuda" else cpu_name(),
        "cores": os.cpu_count(),
        "versions": versions,
    }


@contextlib.contextmanager
def emulated_if(wanted: bool) -> Iterator[None]:
    """If so, CUDA is JAX's platform within it, on a CPU: every line of its way runs, and no time means anything."""
    if not wanted:
        yield
        return
    tests = str(Path(__file__).parents[1] / "tests")
    if tests not in sys.path:
        sys.path.append(tests)
    import emulated_cuda  # pyright: ignore[reportMissingImports]

    with emulated_cuda.emulated():
        yield


def add_destination(parser: argparse.ArgumentParser) -> None:
    """The arguments that say where results go."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--keep", action="store_true", help="write to benchmarks/results, not to outputs/benchmarks")
    group.add_argument("--out", type=Path, help="write to this JSON file, and pictures beside it")


def destination(info: dict, suffix: str, out: Path | None, keep: bool) -> Path:
    """The file asked for; else one named by date, device and commit, in a folder that git ignores, or to be kept."""
    return out or (RESULTS if keep else OUTPUTS) / f"{info['date']}_{info['device']}_{info['commit']}_{suffix}.json"


def save(data: dict, out: Path) -> None:
    """Write the JSON: all of it or nothing."""
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_suffix(".part")
    part.write_text(json.dumps(data, indent=1) + "\n")
    part.replace(out)


def shown(path: Path) -> Path:
    """The path, from here if it lies below."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):  # no git, or no repository: an unpacked sdist, say
        return "unknown"
