"""What a step of `first_light` has found: written at once, by a process that may crash, hang or be cut short."""

import dataclasses
import faulthandler
import gc
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import torch

from .. import study
from ..study import NOTHING, Cell, Results, Task, failure

PATIENCE = 180  # seconds for a cell or a test: then the process ends, and another one goes on behind it


class Part(Results):
    """A step in the file of all of them.

    A process that ended in a cell has a successor, which leaves that cell out; or if it is known which method was being
    prepared then, that method alone.
    """

    def __init__(self, path: Path, name: str, device: str, seconds: float):
        self.path, self.device, self.patience = path, device, min(PATIENCE, max(60, seconds / 2))
        self.whole = json.loads(path.read_text())
        new = json.loads(json.dumps(NOTHING | {"begun": None, "trying": None, "deadly": [], "seconds": 0}))
        self.data = self.whole["steps"][name] = new | self.whole["steps"].get(name, {})
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
        study.save(self.whole, self.path)

    def begin(self, about: dict) -> None:
        """A cell; from now on its time runs."""
        self.data["begun"] = about
        self.save()
        faulthandler.dump_traceback_later(self.patience, exit=True, file=2)

    def end(self, rows: list[dict]) -> None:
        """Write what was found."""
        faulthandler.cancel_dump_traceback_later()
        about = self.data["begun"]
        self.data["begun"] = self.data["trying"] = None
        self.add(about, rows)
        if any("outcome" not in row for row in rows):
            print(line(about, rows), flush=True)
        if any("failed" in row for row in rows):
            self.leave_if_lost()

    def take(self, step: Cell | Task, runs: int, ours: Any = ()) -> None:
        """A cell, unless it is done, with the most memory in use so far. Ours, too, may fail or be wrong."""
        if step.about in self.data["done"]:
            return
        if isinstance(step, Cell):
            methods = {name: self._noted(name, prepare) for name, prepare in step.methods.items()}
            methods[""] = self._noted(None, lambda: "all are prepared")
            step = dataclasses.replace(step, methods=methods)
        self.begin(step.about)
        try:
            deadly = [name for what, name in self.data["deadly"] if what == step.about.get("what")]
            rows, slow = step.found(runs, ours, self.left_out(step) + deadly)
            self.data["slow"] += [[step.series, name] for name in slow]
        except Exception as reason:
            rows = [failure(reason)]
        self.end([row | {"peak": study.peak_bytes() / 2**20} for row in rows])
        gc.collect()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()  # for JAX

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


def line(about: dict, rows: list[dict]) -> str:
    """What is printed of a cell."""

    def text(row: dict) -> str:
        said = f"{1e3 * row['median']:.3g} ms" if "median" in row else "wrong" if row.get("error") else ""
        return f"{row.get('method', '')} {row.get('failed', said)}".strip()

    return ", ".join(str(x) for x in about.values()) + ": " + "; ".join(filter(None, map(text, rows)))
