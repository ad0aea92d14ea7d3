"""Fit the cost model by which `auto` chooses to this machine: `python -m benchmarks.fit_costs`, with `--device cuda`.

Measures as `jaxgauss.calibrate` does, on CPUs with more sizes and repetitions (two minutes), and writes the costs into
the row of this CPU's vendor, or of this CUDA device, in jaxgauss/_engines/cpu_costs.json or cuda_costs.json, for
everybody; or with `--out` into a file of that row alone.
"""

import argparse
import json
from pathlib import Path

from jaxgauss._engines import costs
from jaxgauss._sums.calibrate import measured_costs
from torch_backend import devices

from .measure import emulated_if, environment, save

NUMS = (16, 256, 1024, 4096)  # on CPUs
SIZES = ((1, 1), (2, 1), (3, 1), (16, 1), (16, 16), (64, 1), (64, 64), (128, 1), (128, 128))


def main(device: str, runs: int, out: Path | None = None, emulate: bool = False) -> None:
    """Measure, fit, write the table."""
    with emulated_if(emulate):
        info = environment("cpu" if emulate else device)
        nums, sizes = (NUMS, SIZES) if device == "cpu" else (None, None)
        if emulate:
            nums, sizes = (8, 64), ((3, 1), (16, 16), (140, 2))
        found, factors = measured_costs(runs, nums, sizes, progress=True)
        row: dict = {name: info[name] for name in ("date", "commit", "device_name", "cores", "versions")}
        for engine, cost in found.items():
            print(f"{device}, {engine}: {cost}, off by a factor of {factors[engine]:.2f} at most")
            row[engine] = cost._asdict()
        name = devices.card().name if device == "cuda" else costs.vendor()
    table = costs.CUDA_TABLE if device == "cuda" else costs.TABLE
    save({name: row} if out else json.loads(table.read_text()) | {name: row}, out or table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--runs", type=int, default=10, help="timed repetitions of each method (default: 10)")
    parser.add_argument("--out", type=Path, help="write the row to this JSON file, and leave the table alone")
    parser.add_argument("--emulate", action="store_true", help="CUDA on a CPU, whose times mean nothing")
    arguments = parser.parse_args()
    if arguments.emulate and (arguments.device != "cuda" or arguments.out is None):
        parser.error("--emulate is for --device cuda, and needs --out: its times must not get into the table")
    main(**vars(arguments))
