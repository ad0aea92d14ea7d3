"""jaxgauss beside everything else that one could use, on this machine: `python -m benchmarks --suite NAME`.

    python -m benchmarks --device cpu --suite quick        a first look
    python -m benchmarks --suite all --keep                all suites but `quick`, each in a process of its own
    python -m benchmarks --plot benchmarks/results/*.json  tables and pictures, from such files alone

Results go to outputs/benchmarks/<date>_<device>_<commit>_<suite>.json, or with `--keep` to benchmarks/results, after
every step; a run that was interrupted goes on where it was. `benchmarks/study.py` says how things are measured.
What the suites decide:

"""

import argparse
import subprocess
import sys
from pathlib import Path

import jax

from .study import BOTH, arguments, destination, read
from .suites import SUITES


def main(given: list[str]) -> None:
    """Measure, or only show."""
    decides = (f"    {name:16}{study.steps.__doc__}" for name, study in SUITES.items())
    parser = arguments(f"{__doc__}{chr(10).join(decides)}")
    parser.add_argument("--device", choices=BOTH, default="cpu")
    parser.add_argument("--suite", choices=[*SUITES, "all"], default="quick")
    parser.add_argument("--runs", type=int, default=10, help="timed repetitions of each method (default: 10)")
    parser.add_argument("--beside", type=Path, help="another environment's Python, measured in turns with this one")
    parser.add_argument("--in-turn", action="store_true", help=argparse.SUPPRESS)  # how --beside runs the other
    parser.add_argument("--plot", type=Path, nargs="+", help="show these files, measure nothing")
    options = parser.parse_args(given)
    if options.plot:
        for path in options.plot:
            SUITES[read(path)["suite"]].show(path)
        return
    if options.suite == "all":
        if options.out:
            parser.error("all suites have a file each: leave out --out")
        measure_all(options.device, given)
        return
    study = SUITES[options.suite]
    if options.device not in study.devices:
        parser.error(f"{options.suite} is for {' or '.join(study.devices)}")
    if options.device == "cpu":
        jax.config.update("jax_platforms", "cpu")
    path = destination(options.device, options.suite, options.out, options.keep)
    study.measure(options.suite, options.device, options.runs, path, options.beside, options.in_turn)


def measure_all(device: str, given: list[str]) -> None:
    """Run every suite of the device in turn, with these arguments; those that are complete are shown."""
    names = [name for name, study in SUITES.items() if device in study.devices and name != "quick"]
    for number, name in enumerate(names, 1):
        print(f"{number} of {len(names)}: {name}", flush=True)
        subprocess.run([sys.executable, "-m", __spec__.parent, *given, "--suite", name], check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
