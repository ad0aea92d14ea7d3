"""Fit the cost model by which `auto` chooses to this machine: `python -m benchmarks.tools.fit_costs`.

Measures as `jaxgauss.calibrate` does, on CPUs with more sizes and repetitions (three minutes), and writes the costs for
everybody: into the row of this CPU's vendor and this version of jaxlib in jaxgauss/_engines/cpu_costs.json, or of this
CUDA device in cuda_costs.json; or with `--out` into a file of that row alone. `--rows FILE` takes what `first_light`
has measured.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from torch_backend import devices

from .. import inside
from ..study import environment, save

NUMS = (64, 4096)  # on CPUs
SIZES = ((1, 1), (2, 1), (3, 1), (16, 1), (16, 16), (64, 1), (64, 64), (128, 1), (128, 128))
LEAST = 4  # rows for three numbers
ABOUT = ("date", "commit", "device_name", "cores", "versions")


def row(device: str, runs: int) -> dict[str, dict]:
    """Costs of every engine, by the CUDA device, or by vendor and jaxlib; printed, too, with how far off they are."""
    info = environment(device)
    found, factors = inside.calibrate.measured_costs(runs, *((NUMS, SIZES) if device == "cpu" else ()), progress=True)
    fits = {engine: (cost, factors[engine]) for engine, cost in found.items()}
    costs = printed(info, fits)
    if device == "cuda":
        return {devices.card().name: costs}
    return {inside.costs.vendor(): {info["versions"]["jaxlib"]: costs}}


def of_first_light(data: dict) -> dict[str, tuple[Any, float]]:
    """Costs of every engine that enough rows were measured of, and how far off they are."""
    rows: dict[str, list] = {}
    for cell in data["steps"].get("costs", {}).get("cells", []):
        if "row" in cell:
            rows.setdefault(cell["engine"], []).append(cell["row"])
    return {engine: inside.calibrate.fitted(x) for engine, x in rows.items() if len(x) >= LEAST}


def printed(info: dict, fits: dict[str, tuple[Any, float]]) -> dict:
    """A row of the table, which is printed, too."""
    costs = {name: info[name] for name in ABOUT}
    for engine, (cost, factor) in fits.items():
        print(f"{info['device_name']}, {engine}: {cost}, off by a factor of {factor:.2f} at most")
        costs[engine] = cost._asdict()
    return costs


def main(device: str, runs: int, out: Path | None = None, rows: Path | None = None) -> None:
    """Measure, or read, fit, write the table."""
    if rows:
        data, device = json.loads(rows.read_text()), "cuda"
        if not (fits := of_first_light(data)):
            raise SystemExit(f"{rows} has no engine with {LEAST} times: run benchmarks.first_light --steps costs.")
        info = data["steps"]["costs"]["info"]
        costs = {info["device_name"]: printed(info, fits)}
    else:
        costs = row(device, runs)
    table = inside.costs.CUDA_TABLE if device == "cuda" else inside.costs.TABLE
    if not out:
        before = json.loads(table.read_text())
        costs = before | {name: x if device == "cuda" else before.get(name, {}) | x for name, x in costs.items()}
    save(costs, out or table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--runs", type=int, default=10, help="timed repetitions of each method (default: 10)")
    parser.add_argument("--out", type=Path, help="write the row to this JSON file, and leave the table alone")
    parser.add_argument("--rows", type=Path, help="measure nothing: take the costs step of this file of first_light")
    main(**vars(parser.parse_args()))
