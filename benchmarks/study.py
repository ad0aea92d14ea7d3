"""How everything here is measured: checked against float64, in turns, with its memory, and saved as it goes.

What prepares a method, and its first call, which compiles, are timed apart. Then come three calls to warm up, and
repetitions in which the methods take turns, in changing order: untimed calls for 20 ms and at least one, then as many
as last five milliseconds. For so long the idle threads of what ran before may keep a core busy; and the call after one
that has freed a gigabyte takes up to 1.6 times as long as the next, which is not its own time, nor that of a loop.
"""

import argparse
import contextlib
import copy
import ctypes
import datetime
import gc
import importlib.metadata
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import numpy as np
import torch
from tqdm import tqdm

from . import inside

ROOT = Path(__file__).parents[1]
OUTPUTS = ROOT / "outputs" / "benchmarks"  # which git ignores
RESULTS = ROOT / "benchmarks" / "results"  # which it keeps
UNKNOWN = "unknown"  # the commit of an unpacked sdist, say
BOTH = ("cpu", "cuda")
TOO_SLOW = 1.0  # seconds: a method that takes them is timed once, and not at all at larger sizes
LIBRARIES = ("jax", "jaxlib", "torch", "numpy", "pykeops", "ott-jax", "blackjax", "scikit-learn", "scipy", "optax")
LIBRARIES += ("finufft", "kerneltests", "hyppo")

NOTHING = {"complete": False, "took": 0.0, "done": [], "slow": [], "cells": []}  # of results; seconds

Call = Callable[[], Any]  # computes, waits for the results, and returns them
Cells = list[dict[str, Any]]  # rows of results


@dataclass(frozen=True)
class Task:
    """Something else to find than times: rows of results, by a function of the number of repetitions."""

    about: dict[str, Any]
    find: Callable[[int], list[dict]]
    series: str = ""

    def found(self, runs: int, ours: Sequence[str], left_out: Sequence[str]) -> tuple[Cells, list[str]]:
        """The rows."""
        return self.find(runs), []


@dataclass(frozen=True)
class Cell:
    """One problem for several methods.

    Attributes:
        about: figure, sizes, dtype: the name of the cell when a run goes on.
        methods: functions that prepare the calls, by name, or say why there is none.
        error: of a call's results, relative to float64; None: they are not compared.
        tolerance: the largest error; beyond it a method of ours is a bug, and another's is not timed.
        series: cells in which the methods have to do ever more; "": it is in none.
        times: how many times as long all that is asked for takes, of methods that do a part of it.
        also: what else is written of a call's results.
        runs: repetitions, if not as many as of other cells.
    """

    about: dict[str, Any]
    methods: Mapping[str, Callable[[], Call | str]]
    error: Callable[[Any], float | None] = lambda results: None
    tolerance: float = 0.0
    series: str = ""
    times: Mapping[str, float] = field(default_factory=dict)
    also: Callable[[Any], dict[str, float]] = lambda results: {}
    runs: int | None = None

    def found(self, runs: int, ours: Sequence[str], left_out: Sequence[str]) -> tuple[Cells, list[str]]:
        """What was measured of every method, and which are too slow. What fails of `ours` raises."""
        calls: dict[str, Call] = {}
        rows: dict[str, dict] = {}
        for name in (name for name in self.methods if name not in left_out):
            start = time.perf_counter()
            try:
                call = self.methods[name]()
                if isinstance(call, str):
                    continue
                prepared = time.perf_counter()
                results = call()
            except Exception as reason:  # another's library may not work with these versions, or be out of memory
                if name in ours:
                    raise
                rows[name] = failure(reason)
                continue
            row = rows[name] = {"preparation": prepared - start, "first_call": time.perf_counter() - prepared}
            row["error"] = error = None if results is None else self.error(results)
            row |= {} if results is None else self.also(results)
            del results
            if (error or 0.0) <= self.tolerance:
                row["mib"] = peak_mebibytes(call)
                start = time.perf_counter()
                call()
                row["seconds"] = [time.perf_counter() - start]
                if row["seconds"][0] <= TOO_SLOW:
                    calls[name] = call
            elif name in ours:
                raise AssertionError(f"{name}, {self.about}: error {error}")
        slow = [name for name, row in rows.items() if "seconds" in row and name not in calls]
        for name, seconds in inside.costs.in_turns(calls, self.runs or runs).items():
            rows[name]["seconds"] = seconds
        found = [{"method": name, "times": self.times.get(name, 1)} | row for name, row in rows.items()]
        return [row | quartiles(row) for row in found], slow


class Results:
    """What was found, and the file that it is written to after each step. One that exists goes on."""

    def __init__(self, path: Path, info: dict):
        self.path = path
        self.data = read(path) if path.exists() else info | copy.deepcopy(NOTHING)
        if any(self.data.get(name) != info[name] for name in ("device", "commit", "suite", "runs")):
            wrong = "is of another device, commit, suite or number of runs: name another file (--out)."
            raise SystemExit(f"{path} {wrong}")

    def take(self, step: Cell | Task, runs: int, ours: Sequence[str] = ()) -> None:
        """Find what the file does not hold yet, and write it."""
        if step.about not in self.data["done"]:
            start = time.perf_counter()
            rows, slow = step.found(runs, ours, self.left_out(step))
            self.data["took"] += time.perf_counter() - start
            self.data["slow"] += [[step.series, name] for name in slow]
            self.add(step.about, rows)

    def left_out(self, step: Cell | Task) -> list[str]:
        """Methods that were too slow in the series already."""
        return [name for series, name in self.data["slow"] if series == step.series != ""]

    def add(self, about: dict, rows: list[dict]) -> None:
        """Write what was found."""
        self.data["cells"] += [about | row for row in rows]
        self.data["done"].append(about)
        self.save()

    def save(self) -> None:
        """Write the file."""
        save(self.data, self.path)


@contextlib.contextmanager
def beside(python: Path, path: Path, name: str, device: str, runs: int) -> Iterator[Callable[[], None]]:
    """The same suite in another environment, whose results are in the file: what lets it take a step, and waits."""
    command = [str(python), "-m", "benchmarks", "--suite", name, "--device", device, "--runs", str(runs)]
    command += ["--out", str(path.resolve()), "--in-turn"]

    def wait() -> None:
        if not (process.stdout and process.stdout.readline()):
            raise SystemExit(f"It ended: {shlex.join(command)}")

    def take() -> None:
        print(file=process.stdin, flush=True)
        wait()

    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            wait()
            yield take
        finally:
            process.kill()


def next_turn() -> None:
    """Tell `beside` that it is its turn, and wait for one."""
    print("ready", flush=True)
    sys.stdin.readline()


@dataclass(frozen=True)
class Study:
    """A suite: what is measured on a device, and what is made of the results alone.

    Attributes:
        steps: of a device; it is documented by what it decides.
        report: tables and sentences, as the page shows them.
        draw: writes the pictures, beside the file.
        ours: methods that must neither fail nor be wrong.
        info: what is measured once.
        devices: where it runs.
    """

    steps: Callable[[str], Iterable[Cell | Task]]
    report: Callable[[dict], str]
    draw: Callable[[dict, Path], None] | None = None
    ours: Sequence[str] = ()
    info: Callable[[str], dict] = lambda device: {}
    devices: Sequence[str] = ("cpu",)

    def measure(
        self, name: str, device: str, runs: int, path: Path, other: Path | None = None, in_turn: bool = False
    ) -> None:
        """Measure what the file does not hold yet, and show it.

        `other` is the Python of another environment, which measures each step after this one; what it finds stands in
        the same file, under “beside”. There `in_turn` waits before each step, and shows nothing.
        """
        info = environment(device) | {"suite": name, "runs": runs}
        results = Results(path, info if path.exists() else info | self.info(device))
        before, there = results.data["complete"], path.with_suffix(".beside.json")
        with beside(other, there, name, device, runs) if other and not before else contextlib.nullcontext() as take:
            for step in tqdm(list(self.steps(device)), unit="step", disable=in_turn):
                if in_turn:
                    next_turn()
                results.take(step, runs, self.ours)
                if take:
                    take()
        if take:
            results.data["beside"] = read(there)
        results.data["complete"] = True
        results.save()
        there.unlink(missing_ok=True)
        if in_turn:
            next_turn()
            return
        self.show(path)
        print(f"{'measured before (delete it to measure again)' if before else 'raw data'}: {shown(path)}")

    def show(self, path: Path) -> None:
        """Print the report of a file, and draw its pictures."""
        data = read(path)
        if not data.get("complete", True):
            print(f"{path}: not complete; the same command goes on with it")
        print(self.report(data))
        if "beside" in data:
            versions = (x["versions"] for x in (data, data["beside"]))
            print("That was jax {}; beside it, jax {}:\n".format(*(x["jax"] for x in versions)))
            print(self.report(data["beside"]))
        if self.draw:
            self.draw(data, path)


def failure(reason: Exception) -> dict:
    """What is written of an exception."""
    return {"failed": f"{type(reason).__name__}: {reason}"[:300]}


def quartiles(row: dict) -> dict[str, float]:
    """Of the seconds, if there are any: of all queries, if some of them were timed."""
    if "seconds" not in row:
        return {}
    found = np.quantile(row["seconds"], [0.25, 0.5, 0.75]) * row.get("times", 1)
    return dict(zip(("q1", "median", "q3"), found.tolist(), strict=True))


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


def unchecked(call: Call) -> Call:
    """A call whose results are not compared with anything."""
    return lambda: (call(), None)[1]


def relative(found: Any, exact: np.ndarray) -> float:
    """The relative L2 error."""
    return float(np.linalg.norm(np.asarray(found, np.float64) - exact) / np.linalg.norm(exact))


def exact_matrix(q: Any, k: Any, tau: float = 1.0) -> np.ndarray:
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
    status = Path("/proc/self/status")  # of Linux, where getrusage would count the parent process's peak
    return 1024 * int(status.read_text().split("VmHWM:")[1].split()[0]) if status.exists() else 0


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
        "commit": commit(),
        "device": device,
        "device_name": torch.cuda.get_device_name() if device == "cuda" else inside.costs.cpu_name(),
        "cores": os.cpu_count(),
        "vectors": vectors(),
        "versions": versions,
    }


def vectors() -> str:
    """The widest vectors, or tiles, that this CPU computes with; "" where Linux does not say."""
    cpus = Path("/proc/cpuinfo")
    flags = cpus.read_text().split() if cpus.exists() else []
    known = {"amx_tile": "AMX", "avx512f": "AVX-512", "avx2": "AVX2"}
    return next((name for flag, name in known.items() if flag in flags), "")


def commit() -> str:
    """Of this repository."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):  # no git, or no repository: an unpacked sdist, say
        return UNKNOWN


def elsewhere(function: Callable, *arguments: Any, flags: str = "") -> Any:
    """What the function returns in a process of its own, on the same platform, with more flags of XLA's."""
    code = f"import json; from {function.__module__} import {function.__name__} as f; "
    code += f"print(json.dumps(f{arguments!r}))"
    variables = os.environ | {"JAX_PLATFORMS": {"gpu": "cuda"}.get(jax.default_backend(), jax.default_backend())}
    variables["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def arguments(description: str | None) -> argparse.ArgumentParser:
    """The arguments that all programs have: where results go."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--keep", action="store_true", help="write to benchmarks/results, not to outputs/benchmarks")
    group.add_argument("--out", type=Path, help="write to this JSON file, and pictures beside it")
    return parser


def destination(device: str, suffix: str, out: Path | None, keep: bool) -> Path:
    """The file asked for; else one named by date, device and commit, in a folder that git ignores, or to be kept.

    A file of an earlier day goes on, if its commit is known.
    """
    folder, name = RESULTS if keep else OUTPUTS, f"{device}_{commit()}_{suffix}.json"
    earlier = sorted(folder.glob(f"????-??-??_{name}")) if commit() != UNKNOWN else []
    return out or (earlier[-1] if earlier else folder / f"{datetime.date.today().isoformat()}_{name}")


def save(data: dict, out: Path) -> None:
    """Write the JSON: all of it or nothing."""
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_suffix(".part")
    part.write_text(json.dumps(data, indent=1) + "\n")
    part.replace(out)


def read(path: Path) -> dict:
    """A file of results, with a row for each method in `cells`, whose median is in seconds."""
    return json.loads(path.read_text())


def shown(path: Path) -> Path:
    """The path, from here if it lies below."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
