"""jaxgauss beside everything else that one could use, on this machine.

    python -m benchmarks --device cpu --suite quick        a first look
    python -m benchmarks --device cpu --suite paper        the paper's figures, with every rival
    python -m benchmarks --device cpu --suite jax          `auto` beside JAX's own sums, from N = 16 to 16384
    python -m benchmarks --device cpu --suite mmd          a training step, a permutation test, SVGD, densities
    python -m benchmarks --plot benchmarks/results/*.json  pictures and tables, from such files alone

Results go to outputs/benchmarks/<date>_<device>_<commit>_<suite>.json, or with `--keep` to benchmarks/results, after
every cell; a run that was interrupted goes on where it was. `benchmarks/measure.py` says how things are measured.
"""

import argparse
from pathlib import Path

from . import applications, grids, plots, rivals
from .measure import add_destination, destination, environment, measure

SUITES = {"quick": grids.quick, "paper": grids.paper, "jax": grids.jax, "mmd": applications.mmd}


def main(device: str, suite: str, runs: int, plot: list[Path] | None, out: Path | None, keep: bool) -> None:
    """Measure, or only draw."""
    if plot:
        for path in plot:
            plots.draw(path)
        return
    info = environment(device) | {"suite": suite}
    path = destination(info, suite, out, keep)
    if suite != "mmd":
        info["rates"] = {dtype: rivals.rates(device, dtype) for dtype in grids.dtypes(device)}
    measure(SUITES[suite](device), info, [*rivals.OURS, *applications.OURS], runs, path)
    plots.draw(path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--suite", choices=SUITES, default="quick")
    parser.add_argument("--runs", type=int, default=10, help="timed repetitions of each method (default: 10)")
    parser.add_argument("--plot", type=Path, nargs="+", help="draw these files, measure nothing")
    add_destination(parser)
    main(**vars(parser.parse_args()))
