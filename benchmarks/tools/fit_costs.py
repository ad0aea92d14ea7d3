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

from .. import inside
from ..study import environment, read, save

NUMS = (64, 4096)  # on CPUs
SIZES = ((1, 1), (2, 1), (3, 1), (16, 1), (16, 16), (64, 1), (64, 64), (128, 1), (128, 128))
LEAST = 4  # rows for three numbers
ABOUT = ("date", "commit", "device_name", "cores", "versions")


def measured(device: str, runs: int) -> tuple[dict, dict[str, tuple[Any, float]]]:
    """Where it was measured, and of every engine the costs and how far off they are."""
    sizes = (NUMS, SIZES) if device == "cpu" else ()
    info = environment(device)
    found, factors = inside.calibrate.measured_costs(runs, *sizes, progress=True)
    return info, {engine: (cost, factors[engine]) for engine, cost in found.items()}


def of_first_light(path: Path) -> tuple[dict, dict[str, tuple[Any, float]]]:
    """The same of engines that enough rows were measured of."""
    step = read(path)["steps"].get("costs", {})
    rows: dict[str, list] = {}
    for cell in (x for x in step.get("cells", []) if "row" in x):
        rows.setdefault(cell["engine"], []).append(cell["row"])
    fits = {engine: inside.calibrate.fitted(x) for engine, x in rows.items() if len(x) >= LEAST}
    if not fits:
        raise SystemExit(f"{path} has no engine with {LEAST} times: run benchmarks.first_light --steps costs.")
    return step["info"], fits


def main(device: str, runs: int, out: Path | None = None, rows: Path | None = None) -> None:
    """Measure, or read, fit, write the table."""
    info, fits = of_first_light(rows) if rows else measured(device, runs)
    costs = {name: info[name] for name in ABOUT}
    for engine, (cost, factor) in fits.items():
        print(f"{info['device_name']}, {engine}: {cost}, off by a factor of {factor:.2f} at most")
        costs[engine] = cost._asdict()
    if rows or device == "cuda":
        table, new = inside.costs.CUDA_TABLE, {info["device_name"]: costs}
    else:
        table, new = inside.costs.TABLE, {inside.costs.vendor(): {info["versions"]["jaxlib"]: costs}}
    if not out:
        before = json.loads(table.read_text())
        new = before | {x: before.get(x, {}) | y if table == inside.costs.TABLE else y for x, y in new.items()}
    save(new, out or table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--runs", type=int, default=10, help="timed repetitions of each method (default: 10)")
    parser.add_argument("--out", type=Path, help="write the row to this JSON file, and leave the table alone")
    parser.add_argument("--rows", type=Path, help="measure nothing: take the costs step of this file of first_light")
    main(**vars(parser.parse_args()))
