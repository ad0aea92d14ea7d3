"""The time of a sum in XLA or by an attention kernel, from three measured numbers (in nanoseconds) of each.

    time = call + pairs · (pair + column · columns)

`columns` counts those of both products: D + 2 and C in XLA; twice the larger of D + 1 and C for a CPU's attention
kernel, which pads both to one width; on CUDA twice the width that the kernel is compiled for. Waves, by products or by
finufft, have three such numbers for each point (see `few_dimensions`). The first of these sources that exists is used:

- what `jaxgauss.calibrate` measured on this machine, with these versions of jaxlib and PyTorch, in the user's cache
  directory;
- cpu_costs.json by the CPU's vendor (PyTorch's matrix products, by MKL, run at half speed on CPUs that are not
  Intel's) and by the version of jaxlib, the newest that is not newer than the one installed, and cuda_costs.json by the
  device's name, made by `python -m benchmarks.tools.fit_costs`;
- for other CPUs the row of a default vendor, for other CUDA devices that of a default card.

The environment variable JAXGAUSS_CPU_VENDOR names a row of cpu_costs.json, which then replaces all measurements.
"""

import functools
import importlib.metadata
import itertools
import json
import math
import os
import platform
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import platformdirs

from . import bridge
from .fourier.frequencies import WAVES

if TYPE_CHECKING:
    from torch_backend import AttentionKernel

TABLE, CUDA_TABLE = (Path(__file__).with_name(f"{device}_costs.json") for device in ("cpu", "cuda"))
DEFAULT = "AuthenticAMD"  # for vendors that are not in the table
CARD = "NVIDIA H200"  # for CUDA devices that are not in the table
# On a CPU PyTorch's kernel must be estimated to be so many times as fast as XLA, which needs no PyTorch and can be
# exported. If the table is wrong by a factor of 1.5, a sum by the kernel takes at most 1.2 times as long as in XLA.
WORTH = 1.25
# Sums of float32 points in half precision lose digits, for which they must be so many times as fast as others.
HALVES = 4.0
FINE = 1 + 1 / 8  # times of a call that a channel of a sum takes by log-sum-exps alone: see `torch_backend.signed`
# The widths that attention kernels are compiled for; without an entry, each serves all.
WIDTHS = {
    "flash": (32, 64, 96, 128, 160, 192, 224, 256),
    "cudnn": (64, 128),
    "efficient": (64, 128),  # beyond, one form serves all widths
    "flex": (16, 32, 64, 128),
}
DROPPED = 160, 224  # of flash attention, in PyTorch 2.14.1
PULL = 10  # columns on CUDA, see `time_on_cuda`
WARM_UPS, SHORTEST = 3, 5e-3  # calls; seconds of a repetition
SETTLED = 0.02  # seconds of untimed calls before a repetition: threads of another library may spin so long


class Cost(NamedTuple):
    """Nanoseconds of a call, of a pair of points (its exponential), and of a pair and a column of the products."""

    call: float
    pair: float
    column: float

    def nanoseconds(self, pairs: int, columns: float) -> float:
        """The estimated time of a sum."""
        return self.call + pairs * (self.pair + self.column * columns)


Costs = dict[str, Cost]  # by engine


def estimates(engines: tuple[str, ...], pairs: int, dim: int, channels: int) -> tuple[list[float], str]:
    """Milliseconds of a sum on this CPU by each engine whose costs are known; and the source of these."""
    costs, source = cpu_costs()
    known = [(x, costs[x.removesuffix("x2")]) for x in engines if x.removesuffix("x2") in costs]
    found = [cost.nanoseconds(pairs, columns(x, dim, channels)) / 1e6 for x, cost in known]
    return found, source


def columns(engine: str, dim: int, channels: int) -> int:
    """Columns of both products, in XLA ("xla in float32", "dense", …) or by a CPU's kernel ("kernel in float32", …).

    Two-part points have three products.
    """
    if not engine.startswith("kernel"):
        return dim + 2 + channels
    return 2 * max((dim + 1) * (3 if engine.endswith("x2") else 1), channels)


def work_of_pairs(pairs: int, columns: int) -> tuple[float, float]:
    """What a sum over pairs takes time for: pairs, and pairs · columns."""
    return float(pairs), float(pairs * columns)


def kernel_columns(kernel: "AttentionKernel", dim: int, channels: int) -> int:
    """Columns of both products by a kernel on CUDA, for all blocks of channels that it takes one by one."""
    channels = 1 if kernel.fine else max(1, channels)
    at_once, own = kernel.channels(channels), kernel.columns(dim)
    width = kernel.width(own if kernel.is_flex else max(own, at_once))
    widths = width, kernel.value_width(at_once, width)
    compiled = (next((x for x in widths_of(kernel.name) if x >= y), y) for y in widths)
    return sum(compiled) * -(-channels // at_once)


@functools.cache
def widths_of(name: str) -> tuple[int, ...]:
    """The widths for which the installed PyTorch has a kernel; none if it serves all."""
    version = _numbers(importlib.metadata.version("torch"))
    return tuple(x for x in WIDTHS.get(name, ()) if name != "flash" or x not in DROPPED or version < (2, 14))


def kernel_engine(kernel: "AttentionKernel") -> str:
    """The name of a CUDA kernel in the table."""
    return f"{kernel.name} in float32" if kernel.dtype == "float32" else kernel.name


def cpu_costs() -> tuple[Costs, str]:
    """The costs on this CPU by engine, "xla in float32", "kernel in bfloat16" and so on; and their source."""
    return _cpu_costs(vendor())


@functools.cache
def _cpu_costs(name: str) -> tuple[Costs, str]:
    table, installed = json.loads(TABLE.read_text()), importlib.metadata.version("jaxlib")
    known = name if name in table else DEFAULT
    of_vendor = {_numbers(version): (version, row) for version, row in table[known].items()}
    version, row = of_vendor[max((x for x in of_vendor if x <= _numbers(installed)), default=min(of_vendor))]
    found, source = _costs(row), f"row {known} with jaxlib {version}"
    if known != name or _numbers(version)[:2] != _numbers(installed)[:2]:
        source += f", for there is none of {name} with {installed}: calibrate() measures yours in two minutes"
    own = None if os.environ.get("JAXGAUSS_CPU_VENDOR") else calibrated_rows().get(machine())
    return (found, source) if own is None else (found | _costs(own), f"measured here on {own['date']}")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(x) for x in version.split(".") if x.isdecimal())


@functools.cache
def cuda_costs(device: str) -> tuple[Costs, bool]:
    """The costs on a CUDA device by engine, "dense", "blocked" or `kernel_engine`, and whether they were measured."""
    table, own = json.loads(CUDA_TABLE.read_text()), calibrated_rows().get(machine(device))
    measured = table.get(device) if own is None else own
    return _costs(table[CARD]) | _costs(measured or {}), measured is not None


def time_on_cuda(
    engine: "AttentionKernel | str", pairs: int, dim: int, channels: int, pulls: bool = False
) -> tuple[float, str]:
    """Milliseconds of a sum, with gradients if there are `pulls`, by a kernel or in XLA; and where the costs are from.

    In XLA, from differences of coordinates, pulls are no products: on an H200 a coordinate of them takes as long as ten
    columns. By a kernel gradients are a second sum for one channel, and a backward pass for many. Infinite for a kernel
    that was never measured.
    """
    costs, are_measured = cuda_costs(bridge.card().name)
    if not isinstance(engine, str) and kernel_engine(engine) not in costs:
        return math.inf, "not measured"
    if isinstance(engine, str):
        nanoseconds = costs[engine].nanoseconds(pairs, columns(engine, dim, channels) + PULL * dim * pulls)
    else:
        by_channels = dim + 1 if pulls and channels == 1 else channels
        nanoseconds = costs[kernel_engine(engine)].nanoseconds(pairs, kernel_columns(engine, dim, by_channels))
        nanoseconds *= max(1, channels) * FINE if engine.fine else 1
        nanoseconds *= 1 if not pulls else 2 if channels == 1 else 3
    return nanoseconds / 1e6, "measured" if are_measured else f"measured on an {CARD}, not here"


def time_of_waves_on_cuda(points: float, dim: int, channels: int, blocks: int) -> float:
    """Milliseconds of a sum by waves, with so many blocks of each coordinate, at queries and keys together."""
    costs, _ = cuda_costs(bridge.card().name)
    cost, waves = costs["waves"], 2 * WAVES[dim] * blocks
    return (cost.call + channels * points * (cost.pair * dim * waves + cost.column * waves**dim)) / 1e6


def source_of(platform: str) -> str:
    """Where the costs on a platform are from."""
    if platform != "cuda":
        return cpu_costs()[1]
    card = bridge.card()
    return f"{'measured' if cuda_costs(card.name)[1] else f'measured on an {CARD}, not here'}: {card}"


def forget_costs() -> None:
    """Make the next call read the tables again."""
    for function in (_cpu_costs, cuda_costs):
        function.cache_clear()


def _costs(row: dict[str, Any]) -> Costs:
    return {name: Cost(**x) for name, x in row.items() if isinstance(x, dict) and set(x) == set(Cost._fields)}


def calibrated_path() -> Path:
    """The file in which `jaxgauss.calibrate` keeps its measurements."""
    return platformdirs.user_cache_path("jaxgauss") / "costs.json"


def calibrated_rows() -> dict[str, Any]:
    """The measurements of `jaxgauss.calibrate` by machine; none, with a warning, if the file cannot be read."""
    path = calibrated_path()
    try:
        rows = json.loads(path.read_text()) if path.exists() else {}
        for row in rows.values():
            if not (_costs(row) and row["date"]):
                raise ValueError("no costs")
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        message = f"jaxgauss: {path} cannot be read, and is left out: jaxgauss.calibrate() writes it anew."
        warnings.warn(message, stacklevel=2)
        return {}
    return rows


def machine(device: str | None = None) -> str:
    """The machine that measurements hold for: this CPU or a device, with the versions of jaxlib and PyTorch."""
    versions = (f"{name} {importlib.metadata.version(name)}" for name in ("jaxlib", "torch"))
    return ", ".join([device or f"{cpu_name()}, {os.cpu_count()} cores", *versions])


@functools.cache
def vendor() -> str:
    """The CPU's vendor by its own name, such as GenuineIntel; or JAXGAUSS_CPU_VENDOR, if that is set."""
    if named := os.environ.get("JAXGAUSS_CPU_VENDOR"):
        return named
    return cpu_info("vendor_id") or ("GenuineIntel" if "Intel" in platform.processor() else platform.machine())


def cpu_name() -> str:
    """The model name of the CPU."""
    return cpu_info("model name") or platform.processor() or platform.machine()


def cpu_info(field: str) -> str:
    """A field of the first core in Linux's /proc/cpuinfo; empty elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.split(":")[1].strip() for line in lines if line.startswith(field)), "")


def in_turns(calls: dict[Any, Callable[[], Any]], runs: int) -> dict[Any, list[float]]:
    """Seconds per call in every repetition; the calls must wait for their results.

    A timed call follows untimed ones of its own, as in a loop, so that another call's data does not fill the cache.
    """
    for call in calls.values():
        for _ in range(WARM_UPS):
            call()
    times: dict[Any, list[float]] = {name: [] for name in calls}
    orders = itertools.cycle([list(calls), list(calls)[::-1]])
    for _, order in zip(range(runs), orders, strict=False):
        for name in order:
            repeats = 1 + int(untimed(calls[name]) * SHORTEST / SETTLED)
            start = time.perf_counter()
            for _ in range(repeats):
                calls[name]()
            times[name].append((time.perf_counter() - start) / repeats)
    return times


def untimed(call: Callable[[], Any]) -> int:
    """Call for SETTLED seconds; return how often."""
    number, start = 0, time.perf_counter()
    while time.perf_counter() - start < SETTLED:
        call()
        number += 1
    return number
