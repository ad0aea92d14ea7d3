"""What `first_light` has found, from its file alone: targets met and missed, and tables."""

import json
from collections.abc import Collection
from pathlib import Path

from .. import applications, plots
from ..plots import Cells, Text, having, listing, pivot, prose
from ..rivals import BARE, JAX_NATIVE
from .steps import STEPS
from .targets import SIZE, Table, cells, density_row, memory_row, table, targets, tests_row, where

LEGEND = "In brackets: errors relative to float64's result, and to Σ Φ|v|, the sum of its terms' sizes."
SLOW_AT_FIRST = ("FlexAttention", "first call")  # figures whose first calls are of interest
ABOUT = ("test", "figure", *SIZE, "method")  # which cell


def write(path: Path, aloud: bool = True) -> None:
    """The tables, beside the file; the targets are printed, too."""
    text = report(json.loads(path.read_text()))
    path.with_suffix(".md").write_text(text)
    if aloud:
        print(text.split("\n## Steps")[0])


def report(data: dict) -> str:
    """All of it, in Markdown."""
    steps = data["steps"]
    infos = (step["info"]["versions"] for step in steps.values() if "info" in step)
    versions = {f"{name} {version}": None for info in infos for name, version in info.items()}
    new, none = {"state": "was interrupted", "seconds": 0, "done": []}, {"state": "did not begin"}
    states = [{"step": x} | new | steps.get(x, none) for x in STEPS]
    columns = {"step": "{step}", "": "{state}", "seconds": "{seconds:.0f}", "cells": lambda x: str(len(x["done"]))}
    tables = {
        "Steps": listing(states, columns),
        **{name: of_step(cells(data, name)) for name in STEPS},
        "Memory of the paper's figures": memory(cells(data, "paper")),
        "What failed": failures(data),
    }
    rows = [["target", "measured", ""], *([row.target, row.measured, row.verdict] for row in targets(data))]
    texts = [
        f"# First light: {title(data)}",
        f"{several(data, 'date')}, commit {several(data, 'commit')}; {', '.join(versions)}",
        plots.table(rows),
        LEGEND,
        *(f"## {name}\n\n{text}" for name, text in tables.items() if text),
    ]
    return "\n\n".join(text.strip("\n") for text in texts) + "\n"


def several(data: dict, name: str) -> str:
    """What the steps' processes say."""
    infos = [step["info"] for step in data["steps"].values() if "info" in step]
    return ", ".join(dict.fromkeys(info[name] for info in infos)) or "unknown"


def title(data: dict) -> str:
    """The device."""
    return "emulated: figures mean nothing" if data["device"] == "emulated" else several(data, "device_name")


def of_step(found: Cells) -> str:
    """Milliseconds of every figure by size and method, with errors; of memory the most so far; and first calls."""

    def text(c: dict) -> str:
        more = [f"{c[key]:.0e}" for key in ("error", "error of terms") if c.get(key)]
        more += [f"{c['peak']:.0f} MiB"] if c["figure"] == "memory" and "peak" in c else []
        more += [f"first {c['first_call']:.1f} s"] if c["figure"] in SLOW_AT_FIRST and "first_call" in c else []
        return plots.milliseconds(c) + (f" ({', '.join(more)})" if more else "")

    return by_figure("milliseconds", [c for c in found if "method" in c], text)


def memory(found: Cells) -> str:
    """MiB of every figure, of what was measured."""
    return by_figure("MiB", [c for c in found if c.get("mib") is not None], "{mib:.0f}")


def by_figure(unit: str, found: Cells, text: Text) -> str:
    """A table for every figure: texts by size and method."""
    figures: dict[str, Cells] = {}
    for c in found:
        figures.setdefault(c["figure"], []).append(c)

    def size(c: dict) -> str:
        return where(tuple(c.get(key) for key in SIZE))

    heads = {name: f"{name}: {unit}" if len(figures) > 1 else unit for name in figures}
    return "\n".join(pivot(heads[name], of, size, "{method}", text) for name, of in figures.items())


def sums(found: Table, names: Collection[str], errors: Collection[str]) -> str:
    """Milliseconds of methods, a row for every size, and errors of some of them."""
    rows = [["N = M", "D, C", "", *names, *(f"error of {name}" for name in errors)]]
    for (num, dim, channels, _, what), methods in sorted(found.items()):
        last = (f"{methods[x]['error']:.1e}" if "error" in methods.get(x, {}) else "–" for x in errors)
        timed = (plots.milliseconds(methods.get(name)) for name in names)
        rows.append([str(num), f"{dim}, {channels}", what, *timed, *last])
    return plots.table(rows) if len(rows) > 1 else ""


def failures(data: dict) -> str:
    """What failed, was wrong, or crashed, and how."""
    lines = []
    for name, step in data["steps"].items():
        for c in step.get("cells", []):
            wrong = f"wrong: error {c.get('error')}" if "method" in c and "median" not in c and c.get("error") else None
            if reason := c.get("failed", wrong):
                where = ", ".join(str(c[key]) for key in ABOUT if key in c)
                lines += [f"- {name}, {where}:", *(f"      {line}" for line in reason.splitlines())]
        for last in step.get("crashes", []):
            lines += [f"- {name} crashed:", *(f"      {line}" for line in last)]
    return "\n".join(lines)


def both(now: dict, before: dict) -> Table:
    """The headline in float32; what was not timed is of the earlier visit."""
    found = table(before, "headline")
    for size, methods in table(now, "headline").items():
        found[size] = found.get(size, {}) | {name: c for name, c in methods.items() if "median" in c}
    return {size: x for size, x in found.items() if size[3] == "float32" and x.keys() >= {"auto", "float32"}}


def compared(now: dict, before: dict) -> str:
    """For the page: sums of float32, forward and with gradients, times and errors."""
    names = ("PyKeOps", "dense JAX", "auto", "float32")
    return sums(both(now, before), (*names, BARE), names)


def of_few_points(data: dict) -> str:
    """For the page: tests, and sums that XLA computes."""
    times = sums(table(data, "few"), ["auto", *JAX_NATIVE], ["auto"])
    return prose(f"Of the GPU tests {tests_row(data).measured}.") + "\n" + times


def applied(now: dict, before: dict) -> str:
    """For the page: training steps, and memory and densities of the earlier visit."""
    texts = (
        f"Memory of a value with gradients grows as a power of N: {memory_row(before).measured}.",
        f"SD-KDE of a million samples of 16 dimensions at 131,072 of them: {density_row(before).measured}.",
    )
    timed = sorted((c for c in cells(now, "mmd") if "median" in c), key=lambda c: (c["d"], c["n"]))
    return applications.report({"cells": timed}) + "".join("\n" + prose(text) for text in texts)


def of_many_points(data: dict) -> str:
    """For the page: by waves, all that a coordinate may have, and as many as the points need."""
    timed = having(cells(data, "costs"), engine="waves")
    num = max(c["n"] for c in timed)
    texts = ", ".join(f"{c['row'][-1] / 1e6:.3g} ms for D = {c['d']}" for c in having(timed, n=num))
    waves = sums(table(data, "waves"), ["auto", "waves"], ["auto", "waves"])
    return f"{waves}\n" + prose(f"With no more waves than normal points need, {num} at as many take {texts}.")


def in_one_sentence(now: dict, before: dict) -> str:
    """For README: how long wide sums take, by KeOps and dense JAX, too."""
    found, texts, errors = both(now, before), [], []
    for num, what, words in ((16384, "forward", ""), (16384, "gradients", " with gradients"), (65536, "forward", "")):
        methods = found[num, 32, 32, "float32", what]
        ours, keops, dense = (plots.milliseconds(methods[name]) for name in ("auto", "PyKeOps", "dense JAX"))
        texts.append(f"{num} points{words} in {ours} ms (KeOps in {keops}, dense JAX in {dense})")
        errors += [methods["auto"]["error"]] * (what == "forward")
    return prose(
        f"**On an {title(now)}** `auto` sums {', '.join(texts[:-1])} and {texts[-1]}, of D = C = 32, in float16 with",
        f"errors of {max(errors):.0e}.".replace("e-0", "e-"),
    )
