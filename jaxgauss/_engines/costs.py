"""What a sum costs in XLA and by an attention kernel: three numbers each, from measurements.

    seconds = call + pairs · (pair + column · columns)

`columns` are those of both products: D + 2 and C in XLA, twice the larger of D + 1 and C in the attention kernel of a
CPU, which pads one to the width of the other; on CUDA twice the width that the kernel is compiled for. The numbers are
nanoseconds. On CPUs they are in cpu_costs.json by vendor, for PyTorch's matrix products (MKL) run at half speed on CPUs
that are not Intel's; on CUDA in cuda_costs.json by the device's name, or estimates from published rates.
`python -m benchmarks.fit_costs` measures this machine and replaces its row, with `--device cuda` that of its device.
The environment variable JAXGAUSS_CPU_VENDOR names another row of CPUs to go by.
"""

import functools
import json
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch_backend import Kernel

TABLE, CUDA_TABLE = (Path(__file__).with_name(f"{device}_costs.json") for device in ("cpu", "cuda"))
DEFAULT = "AuthenticAMD"  # for vendors that are not in the table
ESTIMATE = "estimate"  # for CUDA devices that are not
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


def estimates(dtype: str, pairs: int, dim: int, channels: int) -> tuple[float, float]:
    """Nanoseconds of a sum on a CPU, in XLA and by the attention kernel."""
    costs = cpu_costs(vendor())[dtype]
    return tuple(costs[engine].nanoseconds(pairs, columns(engine, dim, channels)) for engine in ("xla", "kernel"))  # type: ignore[return-value]


def columns(engine: str, dim: int, channels: int) -> int:
    """Of both products, in XLA ("xla", "dense", "blocked") or by a CPU's kernel."""
    return 2 * max(dim + 1, channels) if engine == "kernel" else dim + 2 + channels


def kernel_columns(kernel: "Kernel", dim: int, channels: int) -> int:
    """Of both products, by a kernel on CUDA; of all blocks that it takes the channels in."""
    at_once = kernel.channels(channels)
    width = kernel.width(max(kernel.columns(dim), at_once))
    compiled = next((x for x in WIDTHS[kernel.name] if x >= width), width)
    return 2 * compiled * -(-channels // at_once)


def kernel_engine(kernel: "Kernel") -> str:
    """The name that a kernel on CUDA has in the table."""
    return f"{kernel.name} in float32" if kernel.dtype == "float32" else kernel.name


@functools.cache
def cpu_costs(vendor: str) -> dict[str, dict[str, Cost]]:
    """The costs on a vendor's CPUs by dtype and engine, "xla" or "kernel"."""
    table = json.loads(TABLE.read_text())
    row = table.get(vendor, table[DEFAULT])
    return {dtype: {engine: Cost(**row[dtype][engine]) for engine in row[dtype]} for dtype in ("float32", "float64")}


@functools.cache
def cuda_costs(device: str) -> tuple[dict[str, Cost], bool]:
    """The costs on a CUDA device by engine, "dense", "blocked" or `kernel_engine`, and whether they were measured."""
    table = json.loads(CUDA_TABLE.read_text())
    engines = table[ESTIMATE].keys() - {"source"}
    rows = {name: {key: Cost(**x) for key, x in row.items() if key in engines} for name, row in table.items()}
    return rows[ESTIMATE] | rows.get(device, {}), device in rows


@functools.cache
def vendor() -> str:
    """The CPU's vendor by its own name, such as GenuineIntel; or JAXGAUSS_CPU_VENDOR, if that is set."""
    if named := os.environ.get("JAXGAUSS_CPU_VENDOR"):
        return named
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("vendor_id")]
    return names[0] if names else ("GenuineIntel" if "Intel" in platform.processor() else platform.machine())
