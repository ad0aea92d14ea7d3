"""What a GPU should tell on the day when there is one: by one command, and in order of worth.

    python -m benchmarks.first_light --minutes 25                        everything, on a machine with CUDA
    python -m benchmarks.first_light --minutes 9 --steps probes          some of it
    python -m benchmarks.first_light --emulate                           all of it on a CPU: figures mean nothing
    python -m benchmarks.first_light --report FILE.json                  tables from such a file alone

Each step is a process of its own with a share of the minutes; what one does not need the later ones have. Every cell is
written at once: one that crashes, hangs or is cut short is lost alone, the step goes on behind it in another process,
and the same command goes on where it was.
"""

import collections
import contextlib
import itertools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE, STDOUT, Popen, TimeoutExpired

from ..study import ROOT, arguments, destination, failure, save, shown
from . import report
from .steps import STEPS

Steps = tuple[str, ...]  # that one process takes in turn
Command = Callable[[float], list[str]]  # what runs them, in so many seconds


def conduct(out: Path, device: str, processes: dict[Steps, Command], minutes: float) -> None:
    """Run the steps that the file does not say are complete, by their shares; write file and table after each."""
    data = json.loads(out.read_text()) if out.exists() else {"device": device, "steps": {}}
    if data["device"] != device:
        raise SystemExit(f"{out} is of another device, {data['device']}: name another file (--out).")
    steps, end = data["steps"], time.monotonic() + 60 * minutes
    for name in itertools.chain(*processes):
        if steps.get(name, {}).get("complete"):
            print(f"{name}: measured before")
    save(data, out)
    todo = [names for names in processes if not all(steps.get(name, {}).get("complete") for name in names)]
    while todo:
        shares = [sum(STEPS[name][0] for name in names) for names in todo]
        seconds = max(0.0, end - time.monotonic()) * shares[0] / sum(shares)
        names, start = todo.pop(0), time.monotonic()
        print(f"{', '.join(names)}: {seconds:.0f} s", flush=True)
        state, crashes = followed(processes[names], out, names, seconds)
        data = json.loads(out.read_text())
        for name in names:
            step = data["steps"].setdefault(name, {})
            step["state"] = "complete" if step.get("complete") else state
            step["crashes"] = [*step.get("crashes", []), *crashes]
        save(data, out)
        try:
            report.write(out, aloud=not todo)
        except Exception as reason:  # a report can be made again, figures cannot
            print(f"no report: {failure(reason)['failed']}", flush=True)
        print(f"{', '.join(names)}: {state}, after {time.monotonic() - start:.0f} s", flush=True)
    print(f"raw data: {shown(out)}")


def followed(command: Command, out: Path, names: Steps, seconds: float) -> tuple[str, list[list[str]]]:
    """Run steps, and again behind what ended them while they get on: how they ended, and the last lines of crashes."""
    end, before, crashes = time.monotonic() + seconds, None, []
    while (left := end - time.monotonic()) > 0:
        code, last = ended(command(left), left)
        data = json.loads(out.read_text())
        steps = [data["steps"].setdefault(name, {}) for name in names]
        if all(step.get("complete") for step in steps):
            return "complete", crashes
        if code is None:
            for step in steps:
                step |= {"begun": None, "trying": None}  # to be tried again when there is more time
            save(data, out)
            break
        crashes.append([f"exit code {code}", *last])
        now = [(len(step.get("done", [])), len(step.get("deadly", [])), step.get("begun")) for step in steps]
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


def main(given: list[str]) -> None:
    """Run the steps, or only report."""
    parser = arguments(__doc__)
    parser.add_argument("--device", choices=["cuda"], default="cuda")
    parser.add_argument("--minutes", type=float, default=25.0, help="that all of it may take (default: 25)")
    parser.add_argument("--steps", choices=STEPS, nargs="+", default=list(STEPS), help="which (default: all of them)")
    parser.add_argument("--runs", type=int, help="timed repetitions of each method (default: 10; 2 under emulation)")
    parser.add_argument("--emulate", action="store_true", help="in small, on a CPU, by stand-ins for CUDA's operators")
    parser.add_argument("--report", type=Path, help="make the tables of this file, measure nothing")
    options = parser.parse_args(given)
    if options.report:
        report.write(options.report)
        return
    device, runs = "emulated" if options.emulate else "cuda", options.runs or (2 if options.emulate else 10)
    path = destination(device, "first_light", options.out, options.keep).absolute()

    def command(names: Steps) -> Command:
        code = "from benchmarks.first_light.steps import take; take"
        rest = options.emulate, runs
        return lambda seconds: [sys.executable, "-u", "-c", f"{code}{(names, str(path), seconds, *rest)}"]

    wanted = [name for name in STEPS if name in options.steps]
    light = tuple(name for name in wanted if options.emulate and name != "tests")  # whose imports take most of the time
    processes = [(name,) for name in wanted if name not in light] + [light] * bool(light)
    conduct(path, device, {names: command(names) for names in processes}, options.minutes)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that steps end with this process
    main(sys.argv[1:])
