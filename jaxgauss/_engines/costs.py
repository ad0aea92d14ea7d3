"""What a sum costs in XLA and by an attention kernel: three numbers each, from measurements.

    seconds = call + pairs · (pair + column · columns)

`columns` are those of both products: D + 2 and C in XLA, twice the larger of D + 1 and C in the attention kernel of a
CPU, which pads one to the width of the other; on CUDA twice the width that the kernel is compiled for. The numbers are
nanoseconds. Waves, by products or by finufft, take the same three, of each point: see `few_dimensions`. They come from
the first of these that there is:

- what `jaxgauss.calibrate` has measured on this machine, with these versions of jaxlib and PyTorch, in the user's
  cache directory;
- cpu_costs.json by the CPU's vendor, for PyTorch's matrix products (MKL) run at half speed on CPUs that are not
  Intel's, and cuda_costs.json by the device's name, made by `python -m benchmarks.tools.fit_costs`;
- for other CPUs the first vendor's, for other CUDA devices estimates from published rates.

The environment variable JAXGAUSS_CPU_VENDOR names the row of cpu_costs.json to go by, whatever was measured.
"""

import functools
import importlib.metadata
import json
import os
import platform
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import platformdirs

if TYPE_CHECKING:
    from torch_backend import Kernel

TABLE, CUDA_TABLE = (Path(__file__).with_name(f"{device}_costs.json") for device in ("cpu", "cuda"))
DEFAULT = "AuthenticAMD"  # for vendors that are not in the table
ESTIMATE = "estimate"  # for CUDA devices that are not
# How many times as fast PyTorch's kernel must be estimated to be on a CPU. XLA needs no PyTorch, and can be exported;
# and where a table is wrong by a factor of 1.5, what it favors of the kernel is lost by 1.2 at most.
WORTH = 1.25
# The widths that kernels are compiled for.
WIDTHS = {
    "flash": (32, 64, 96, 128, 160, 192, 224, 256),
    "cudnn": (64, 128),
    "efficient": (64, 128),  # and beyond in one form for all
}


class Cost(NamedTuple):
    """Nanoseconds of a call, and for each pair of points of its exponential and of a column of the products."""

    call: float
    pair: float
    column: float

    def nanoseconds(self, pairs: int, columns: int) -> float:
        """Of a sum."""
        return self.call + pairs * (self.pair + self.column * columns)


Costs = dict[str, Cost]  # by engine


def estimates(engines: tuple[str, ...], pairs: int, dim: int, channels: int) -> tuple[list[float], str]:
    """Milliseconds of a sum on this CPU by each engine, where it is known; and what row they are from."""
    costs, source = cpu_costs()
    known = [(x, costs[x.removesuffix("x2")]) for x in engines if x.removesuffix("x2") in costs]
    found = [cost.nanoseconds(pairs, columns(x, dim, channels)) / 1e6 for x, cost in known]
    return found, source


def columns(engine: str, dim: int, channels: int) -> int:
    """Of both products, in XLA ("xla in float32", "dense", …) or by a CPU's kernel ("kernel in float32", …).

    Points that are split into two numbers have three products.
    """
    if not engine.startswith("kernel"):
        return dim + 2 + channels
    return 2 * max((dim + 1) * (3 if engine.endswith("x2") else 1), channels)


def kernel_columns(kernel: "Kernel", dim: int, channels: int) -> int:
    """Of both products, by a kernel on CUDA; of all blocks that it takes the channels in."""
    at_once = kernel.channels(channels)
    width = kernel.width(max(kernel.columns(dim), at_once))
    compiled = next((x for x in WIDTHS[kernel.name] if x >= width), width)
    return 2 * compiled * -(-channels // at_once)


def kernel_engine(kernel: "Kernel") -> str:
    """The name that a kernel on CUDA has in the table."""
    return f"{kernel.name} in float32" if kernel.dtype == "float32" else kernel.name


def cpu_costs() -> tuple[Costs, str]:
    """The costs on this CPU by engine, "xla in float32", "kernel in bfloat16" and so on; and what row that is."""
    return _cpu_costs(vendor())


@functools.cache
def _cpu_costs(name: str) -> tuple[Costs, str]:
    table = json.loads(TABLE.read_text())
    if name in table:
        found, source = _costs(table[name]), f"row {name}"
    else:
        found = _costs(table[DEFAULT])
        source = f"row {DEFAULT}, for there is none of {name}: jaxgauss.calibrate() makes one"
    own = None if os.environ.get("JAXGAUSS_CPU_VENDOR") else calibrated_rows().get(machine())
    return (found, source) if own is None else (found | _costs(own), f"measured here on {own['date']}")


@functools.cache
def cuda_costs(device: str) -> tuple[Costs, bool]:
    """The costs on a CUDA device by engine, "dense", "blocked" or `kernel_engine`, and whether they were measured."""
    table, own = json.loads(CUDA_TABLE.read_text()), calibrated_rows().get(machine(device))
    measured = table.get(device) if own is None else own
    return _costs(table[ESTIMATE]) | _costs(measured or {}), measured is not None


def forget() -> None:
    """Read the tables afresh."""
    for function in (_cpu_costs, cuda_costs):
        function.cache_clear()


def _costs(row: dict[str, Any]) -> Costs:
    return {name: Cost(**x) for name, x in row.items() if isinstance(x, dict) and set(x) == set(Cost._fields)}


def calibrated_path() -> Path:
    """Where `jaxgauss.calibrate` keeps what it has measured."""
    return platformdirs.user_cache_path("jaxgauss") / "costs.json"


def calibrated_rows() -> dict[str, Any]:
    """What it has measured, by machine; nothing, with a warning, where that cannot be read."""
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
    """What measurements hold for: this CPU, or a device, and the versions of the libraries that compute."""
    versions = (f"{name} {importlib.metadata.version(name)}" for name in ("jaxlib", "torch"))
    return ", ".join([device or f"{cpu_name()}, {os.cpu_count()} cores", *versions])


@functools.cache
def vendor() -> str:
    """The CPU's vendor by its own name, such as GenuineIntel; or JAXGAUSS_CPU_VENDOR, if that is set."""
    if named := os.environ.get("JAXGAUSS_CPU_VENDOR"):
        return named
    return cpu_info("vendor_id") or ("GenuineIntel" if "Intel" in platform.processor() else platform.machine())


def cpu_name() -> str:
    """The model, as the CPU names itself."""
    return cpu_info("model name") or platform.processor() or platform.machine()


def cpu_info(field: str) -> str:
    """What Linux tells of the first core; nothing elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.split(":")[1].strip() for line in lines if line.startswith(field)), "")
