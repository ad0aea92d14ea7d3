"""What a sum costs on a CPU, in XLA's blocks and by PyTorch's attention kernel: three numbers each, from measurements.

    seconds = call + pairs · (pair + column · columns)

`columns` are those of both products: D + 2 and C in XLA, twice the larger of D + 1 and C in the attention kernel, which
pads one to the width of the other. The numbers, nanoseconds, are in cpu_costs.json by the CPU's vendor, for PyTorch's
matrix products (MKL) run at half speed on CPUs that are not Intel's. `python -m benchmarks.fit_costs` measures this
machine and replaces the row of its vendor. The environment variable JAXGAUSS_CPU_VENDOR names another row to go by.
"""

import functools
import json
import os
import platform
from pathlib import Path
from typing import NamedTuple

TABLE = Path(__file__).with_name("cpu_costs.json")
DEFAULT = "AuthenticAMD"  # for vendors that are not in the table


class Cost(NamedTuple):
    """Nanoseconds of a call, and for each pair of points of its exponential and of a column of the products."""

    call: float
    pair: float
    column: float

    def nanoseconds(self, pairs: int, columns: int) -> float:
        """Of a sum."""
        return self.call + pairs * (self.pair + self.column * columns)


def estimates(dtype: str, pairs: int, dim: int, channels: int) -> tuple[float, float]:
    """Nanoseconds of a sum in XLA, and by the attention kernel."""
    costs = cpu_costs(vendor())[dtype]
    return tuple(costs[engine].nanoseconds(pairs, columns(engine, dim, channels)) for engine in ("xla", "kernel"))  # type: ignore[return-value]


def columns(engine: str, dim: int, channels: int) -> int:
    """Of both products."""
    return dim + 2 + channels if engine == "xla" else 2 * max(dim + 1, channels)


@functools.cache
def cpu_costs(vendor: str) -> dict[str, dict[str, Cost]]:
    """The costs on a vendor's CPUs by dtype and engine, "xla" or "kernel"."""
    table = json.loads(TABLE.read_text())
    row = table.get(vendor, table[DEFAULT])
    return {dtype: {engine: Cost(**row[dtype][engine]) for engine in row[dtype]} for dtype in ("float32", "float64")}


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
