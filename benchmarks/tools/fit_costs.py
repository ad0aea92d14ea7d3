"""Fit the cost model by which `auto` chooses to this machine: `python -m benchmarks.tools.fit_costs`.

Measures as `jaxgauss.calibrate` does, on CPUs with more sizes and repetitions (two minutes), and writes the costs into
the row of this CPU's vendor, or of this CUDA device, in jaxgauss/_engines/cpu_costs.json or cuda_costs.json, for
everybody; or with `--out` into a file of that row alone.
"""

import argparse
import json
from pathlib import Path

from torch_backend import devices

from .. import inside
from ..study import environment, save

NUMS = (16, 256, 1024, 4096)  # on CPUs
SIZES = ((1, 1), (2, 1), (3, 1), (16, 1), (16, 16), (64, 1), (64, 64), (128, 1), (128, 128))
SMALL = ((8, 64), ((3, 1), (16, 16), (140, 2)))  # where times mean nothing


def row(device: str, runs: int, emulated: bool = False) -> dict[str, dict]:
    """Costs of every engine, by the machine's name; printed, too, with how far off they are."""
    info = environment("cpu" if emulated else device)
    sizes = SMALL if emulated else (NUMS, SIZES) if device == "cpu" else (None, None)
    found, factors = inside.calibrate.measured_costs(runs, *sizes, progress=True)
    costs = {name: info[name] for name in ("date", "commit", "device_name", "cores", "versions")}
    for engine, cost in found.items():
        print(f"{device}, {engine}: {cost}, off by a factor of {factors[engine]:.2f} at most")
        costs[engine] = cost._asdict()
    return {devices.card().name if device == "cuda" else inside.costs.vendor(): costs}


def main(device: str, runs: int, out: Path | None = None) -> None:
    """Measure, fit, write the table."""
    table = inside.costs.CUDA_TABLE if device == "cuda" else inside.costs.TABLE
    costs = row(device, runs)
    save(costs if out else json.loads(table.read_text()) | costs, out or table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--runs", type=int, default=10, help="timed repetitions of each method (default: 10)")
    parser.add_argument("--out", type=Path, help="write the row to this JSON file, and leave the table alone")
    main(**vars(parser.parse_args()))
