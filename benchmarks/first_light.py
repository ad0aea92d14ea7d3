"""What a GPU should tell on the day when there is one: by one command, and in order of worth.

    python -m benchmarks.first_light --minutes 25                        everything, on a machine with CUDA
    python -m benchmarks.first_light --minutes 9 --steps tests launches  some of it
    python -m benchmarks.first_light --emulate                           all of it on a CPU: figures mean nothing
    python -m benchmarks.first_light --report FILE.json                  table and pictures from such a file alone

Each step is a process of its own with a share of the minutes; what one does not need the later ones have. Every cell is
written at once: one that crashes, hangs or is cut short is lost alone, the step goes on behind it in another process,
and the same command goes on where it was. `first_light_steps.py` has the steps, `measure.py` how things are measured.
"""

import argparse
import collections
import contextlib
import datetime
import faulthandler
import gc
import itertools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from subprocess import PIPE, STDOUT, Popen, TimeoutExpired
from typing import Any

import jax
import jax.numpy as jnp
import torch

from . import measure
from .measure import Cell

ROOT = Path(__file__).parents[1]
PATIENCE = 180  # seconds for a cell or a test: then the process ends, and another one goes on behind it
STEPS = {  # and their shares of 25 minutes
    "tests": 6,
    "launches": 1.5,
    "headline": 7.5,
    "mmd": 2,
    "memory": 1.5,
    "densities": 2,
    "costs": 4,
    "limit": 0.5,
}
Steps = tuple[str, ...]  # that one process takes in turn
Command = Callable[[float], list[str]]  # what runs them, in so many seconds


class Part:
    """What a step has found, and the file that it is written to.

    A process that ended in a cell has a successor, which leaves that cell out; or if it is known which method was being
    prepared then, that method alone.
    """

    def __init__(self, path: Path, device: str, seconds: float):
        self.path, self.device, self.patience = path, device, min(PATIENCE, max(60, seconds / 2))
        self.data: dict[str, Any] = {"complete": False, "begun": None, "trying": None, "done": [], "cells": []}
        self.data |= {"slow": [], "deadly": [], "seconds": 0} | (json.loads(path.read_text()) if path.exists() else {})
        self.start = time.monotonic() - self.data["seconds"]
        begun, trying = self.data["begun"], self.data["trying"]
        if begun and trying:
            self.data["deadly"].append([begun.get("what"), trying])
            self.data["cells"].append(begun | {"method": trying, "failed": "the process ended in it"})
        elif begun:
            self.end([{"failed": "the process ended in it"}])
        self.data["begun"] = self.data["trying"] = None

    def save(self) -> None:
        """Write it, with the time it took."""
        self.data["seconds"] = time.monotonic() - self.start
        measure.save(self.data, self.path)

    def begin(self, about: dict) -> None:
        """A cell; from now on its time runs."""
        self.data["begun"] = about
        self.save()
        faulthandler.dump_traceback_later(self.patience, exit=True, file=2)

    def end(self, results: list[dict]) -> None:
        """Write what was found."""
        faulthandler.cancel_dump_traceback_later()
        about = self.data["begun"]
        self.data["cells"] += [about | result for result in results]
        self.data["done"].append(about)
        self.data["begun"] = self.data["trying"] = None
        self.save()
        if any("outcome" not in result for result in results):
            print(_line(about, results), flush=True)
        if any("failed" in result for result in results):
            self.leave_if_lost()

    def do(self, about: dict, find: Callable[[], list[dict]]) -> None:
        """A cell, unless it is done."""
        if about in self.data["done"]:
            return
        self.begin(about)
        try:
            results = find()
        except Exception as reason:
            results = [failure(reason)]
        self.end(results)
        gc.collect()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()  # for JAX

    def measure(self, cells: Iterable[Cell], runs: int, after: Callable[[], dict] = dict) -> None:
        """All methods of the cells, and what there is to tell after each cell. Ours, too, may fail or be wrong."""
        for cell in cells:
            methods = {name: self._noted(name, prepare) for name, prepare in cell.methods.items()}
            methods[""] = self._noted(None, lambda: "all are prepared")
            noted = Cell(cell.about, methods, cell.error, cell.tolerance, cell.work, cell.series)
            self.do(cell.about, lambda cell=noted: [found | after() for found in self._measured(cell, runs)])

    def _measured(self, cell: Cell, runs: int) -> list[dict]:
        left_out = [name for series, name in self.data["slow"] if series == cell.series]
        left_out += [name for what, name in self.data["deadly"] if what == cell.about.get("what")]
        found, slow = measure.measure_cell(cell, (), runs, left_out)
        self.data["slow"] += [[cell.series, name] for name in slow]
        return found

    def _noted(self, method: str | None, prepare: Callable) -> Callable:
        """What says which method it prepares, and that the one before it has not broken the device."""

        def prepared() -> Any:
            self.leave_if_lost()
            self.data["trying"] = method
            self.save()
            return prepare()

        return prepared

    def leave_if_lost(self) -> None:
        """End the process if the device answers no more, as after some errors; at once: an exit might wait for it."""
        try:
            jax.block_until_ready(jnp.zeros(1) + 1)
            if self.device == "cuda":
                torch.zeros(1, device="cuda").add_(1).cpu()
        except Exception as reason:
            print(f"the device is lost: {reason}", flush=True)
            os._exit(1)


def failure(reason: Exception) -> dict:
    """What is written of an exception."""
    return {"failed": f"{type(reason).__name__}: {reason}"[:300]}


def _line(about: dict, results: list[dict]) -> str:
    def text(result: dict) -> str:
        seconds = result.get("median", result.get("host"))
        said = ("wrong" if result.get("error") else "") if seconds is None else f"{1e3 * seconds:.3g} ms"
        return f"{result.get('method', '')} {result.get('failed', said)}".strip()

    return ", ".join(str(x) for x in about.values()) + ": " + "; ".join(filter(None, map(text, results)))


def take(names: Steps, out: str, seconds: float, emulate: bool, runs: int) -> None:
    """What the process of some steps does."""
    from . import first_light_steps

    faulthandler.enable()
    if emulate:
        jax.config.update("jax_platforms", "cpu")
        os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")  # read when JAX is first used
    sizes = first_light_steps.EMULATED if emulate else first_light_steps.GPU
    info = measure.environment(sizes.device) | {"runs": runs}
    for name in names:
        part = Part(part_of(Path(out), name), sizes.device, seconds)
        if not part.data["complete"]:
            part.data["info"] = info
            with first_light_steps.device_of(sizes, name):
                getattr(first_light_steps, name)(part, sizes, runs)
            part.data["complete"] = True
            part.save()
    os._exit(0)  # for an exit might wait for the device


def conduct(out: Path, device: str, processes: dict[Steps, Command], minutes: float, again: bool = False) -> None:
    """Run the steps that the file does not say are complete, by their shares; write file and table after each."""
    from . import first_light_report

    data, end = opened(out, device), time.monotonic() + 60 * minutes
    for name in itertools.chain(*processes):
        if again:
            data["steps"].pop(name, None)
        elif complete(data, name):
            print(f"{name}: measured before")
    todo = [names for names in processes if not all(complete(data, name) for name in names)]
    while todo:
        shares = [sum(STEPS[name] for name in names) for names in todo]
        seconds = max(0.0, end - time.monotonic()) * shares[0] / sum(shares)
        names = todo.pop(0)
        for name in names:
            measure.save(data["steps"].get(name, {}), part_of(out, name))
        start = time.monotonic()
        print(f"{', '.join(names)}: {seconds:.0f} s", flush=True)
        state, crashes = followed(processes[names], [part_of(out, name) for name in names], seconds)
        merge(data, out, state, crashes)
        try:
            first_light_report.write(out, pictures=not todo)
        except Exception as reason:  # a report can be made again, figures cannot
            print(f"no report: {failure(reason)['failed']}", flush=True)
        print(f"{', '.join(names)}: {state}, after {time.monotonic() - start:.0f} s", flush=True)
    print(f"raw data: {measure.shown(out)}")


def complete(data: dict, name: str) -> bool:
    """Whether the step is at its end."""
    return data["steps"].get(name, {}).get("complete", False)


def part_of(out: Path, name: str) -> Path:
    """The file of a step that runs."""
    return out.with_name(f"{out.stem}_{name}.json")


def opened(out: Path, device: str | None = None) -> dict:
    """What there is already, with what a run that was ended left in the files of steps."""
    data = json.loads(out.read_text()) if device is None or out.exists() else {"device": device, "steps": {}}
    if device not in (None, data["device"]):
        raise SystemExit(f"{out} is of another device, {data['device']}: name another file (--out).")
    merge(data, out, "was interrupted")
    return data


def merge(data: dict, out: Path, state: str, crashes: Sequence[list[str]] = ()) -> None:
    """Write what is in the files of steps, which go, into the one; and how these ended, unless they are complete."""
    parts = {name: part_of(out, name) for name in STEPS if part_of(out, name).exists()}
    for name, part in parts.items():
        found = data["steps"][name] = json.loads(part.read_text())
        found["state"] = "complete" if complete(data, name) else state
        found["crashes"] = [*found.get("crashes", []), *crashes]
    measure.save(data, out)
    for part in parts.values():
        part.unlink()


def followed(command: Command, parts: list[Path], seconds: float) -> tuple[str, list[list[str]]]:
    """Run steps, and again behind what ended them while they get on: how they ended, and the last lines of crashes."""
    end, before, crashes = time.monotonic() + seconds, None, []
    while (left := end - time.monotonic()) > 0:
        code, last = ended(command(left), left)
        found = [json.loads(part.read_text()) for part in parts]
        if all(data.get("complete") for data in found):
            return "complete", crashes
        if code is None:
            for data, part in zip(found, parts, strict=True):
                measure.save(data | {"begun": None, "trying": None}, part)  # to be tried again when there is more time
            break
        crashes.append([f"exit code {code}", *last])
        now = [(len(data.get("done", [])), len(data.get("deadly", [])), data.get("begun")) for data in found]
        if now == before or not any(map(any, now)):
            return "crashed", crashes
        before = now
    return f"was ended after {seconds:.0f} s", crashes


def ended(command: list[str], seconds: float) -> tuple[int | None, list[str]]:
    """The exit code, None if time was up, and the last lines of a process; it and its children are gone then."""
    last: collections.deque[str] = collections.deque(maxlen=12)
    with Popen(command, cwd=ROOT, process_group=0, text=True, errors="replace", stdout=PIPE, stderr=STDOUT) as process:

        def show() -> None:
            for line in process.stdout or ():
                last.append(line.rstrip())
                print(f"  {line}", end="", flush=True)

        reader = threading.Thread(target=show, daemon=True)
        reader.start()
        try:
            code = process.wait(seconds)
        except TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            reader.join(5)
    return code, list(last)


def main(
    minutes: float,
    steps: list[str],
    runs: int | None,
    emulate: bool,
    again: bool,
    report: Path | None,
    out: Path | None,
    keep: bool,
) -> None:
    """Run the steps, or only report."""
    from . import first_light_report

    if report:
        opened(report)
        first_light_report.write(report)
        return
    device, runs = "emulated" if emulate else "cuda", runs or (2 if emulate else 10)
    info = {"date": datetime.date.today().isoformat(), "commit": measure._commit(), "device": device}
    if out and out.suffix != ".json":
        out /= "first_light.json"
    path = measure.destination(info, "first_light", out, keep).absolute()

    def command(names: Steps) -> Command:
        def code(*arguments: Any) -> str:
            return f"from benchmarks.first_light import take; take{arguments}"

        return lambda seconds: [sys.executable, "-u", "-c", code(names, str(path), seconds, emulate, runs)]

    wanted = [name for name in STEPS if name in steps]
    light = tuple(name for name in wanted if emulate and name != "tests")  # whose imports would take most of their time
    processes = [(name,) for name in wanted if name not in light] + [light] * bool(light)
    conduct(path, device, {names: command(names) for names in processes}, minutes, again)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda"], default="cuda", help=argparse.SUPPRESS)
    parser.add_argument("--minutes", type=float, default=25.0, help="that all of it may take (default: 25)")
    parser.add_argument("--steps", choices=STEPS, nargs="+", default=list(STEPS), help="which (default: all of them)")
    parser.add_argument("--runs", type=int, help="timed repetitions of each method (default: 10; 2 under emulation)")
    parser.add_argument("--emulate", action="store_true", help="in small, on a CPU, by stand-ins for CUDA's operators")
    parser.add_argument("--again", action="store_true", help="run steps anew that are complete")
    parser.add_argument("--report", type=Path, help="make table and pictures of this file, measure nothing")
    measure.add_destination(parser)
    arguments = vars(parser.parse_args())
    del arguments["device"]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that steps end with this process
    main(**arguments)
