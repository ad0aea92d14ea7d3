"""What `first_light` has found, from its file alone: targets met and missed, tables, and a picture."""

import json
from pathlib import Path

from .. import applications, grids, plots, rivals
from ..plots import Cells, fastest, having
from ..rivals import BARE, Problem, limit
from ..tools import fit_costs
from .steps import STEPS
from .targets import OURS, Table, cells, complete, density_row, headline, memory_row, targets, tests_row

ABOUT = ("test", "figure", "n", "d", "c", "dtype", "what", "method")  # which cell


def write(path: Path, pictures: bool = True) -> None:
    """The tables, and the picture, beside the file."""
    data = json.loads(path.read_text())
    text = report(data)
    path.with_suffix(".md").write_text(text)
    if pictures:
        print(text.split("\n## Steps")[0])
        draw(path, data)


def report(data: dict) -> str:
    """All of it, in Markdown."""
    infos = [step["info"] for step in data["steps"].values() if "info" in step]
    versions = {f"{name} {version}": None for info in infos for name, version in info["versions"].items()}
    rows = [["target", "measured", ""], *([row.target, row.measured, row.verdict] for row in targets(data))]
    rows.append(["launches a call (no target)", few_launches(cells(data, "launches")), ""])
    found = {name: data["steps"].get(name, {"state": "did not begin"}) for name in STEPS}
    steps = [
        [name, step.get("state", "was interrupted"), f"{step.get('seconds', 0):.0f}", str(len(step.get("done", [])))]
        for name, step in found.items()
    ]
    tables = {
        "Steps": plots.table([["step", "", "seconds", "cells"], *steps]),
        "Headline": times(data),
        "Of the physical limit: by `auto`, and by the fastest of ours": limits(data),
        "Launches": launches(cells(data, "launches")),
        "Few points": few(cells(data, "few")),
        "Few dimensions": waves(cells(data, "waves")),
        "Milliseconds (and MiB) of an MMD step": mmd(cells(data, "mmd")),
        "Memory": memory(cells(data, "memory")),
        "Densities": densities(cells(data, "densities")),
        "Costs, in nanoseconds": costs(data),
        "What failed": failures(data),
    }
    texts = [
        f"# First light: {title(data)}",
        f"{several(infos, 'date')}, commit {several(infos, 'commit')}; {', '.join(versions)}",
        plots.table(rows),
        *(f"## {name}\n\n{text}" for name, text in tables.items() if text),
    ]
    return "\n\n".join(text.strip("\n") for text in texts) + "\n"


def title(data: dict) -> str:
    """The device."""
    infos = [step["info"] for step in data["steps"].values() if "info" in step]
    return "emulated: figures mean nothing" if data["device"] == "emulated" else several(infos, "device_name")


def several(infos: list[dict], name: str) -> str:
    """What the processes say."""
    return ", ".join(dict.fromkeys(info[name] for info in infos)) or "unknown"


def times(data: dict) -> str:
    """Of every method, by N and dtype."""
    named = [c for c in cells(data, "headline") if "method" in c]
    sizes = sorted({(c["n"], c["dtype"]) for c in named})
    return "\n".join(
        f"N = {n}, {dtype}, milliseconds\n\n{grids.times(having(named, n=n), dtype, beside=True)}" for n, dtype in sizes
    )


def both(now: dict, before: dict) -> Table:
    """The headline; what was not timed is of the earlier visit."""
    found = headline(before)
    for size, methods in headline(now).items():
        found[size] = found.get(size, {}) | {name: c for name, c in methods.items() if "median" in c}
    return found


def compared(now: dict, before: dict) -> str:
    """Sums of float32, forward and with gradients: times and errors."""
    shown, errors_of = ("PyKeOps", "dense JAX", "auto", "float32", BARE), ("PyKeOps", "dense JAX", "auto", "float32")
    rows = [["N = M", "D, C", "", *shown, *(f"error of {name}" for name in errors_of)]]
    for (num, dim, channels, dtype, what), methods in sorted(both(now, before).items()):
        if dtype == "float32" and methods.keys() >= {"auto", "float32"}:
            errors = (f"{methods[x]['error']:.1e}" if "error" in methods.get(x, {}) else "–" for x in errors_of)
            rows.append(
                [str(num), f"{dim}, {channels}", what, *map(plots.milliseconds, map(methods.get, shown)), *errors]
            )
    return plots.table(rows)


def of_few_points(data: dict) -> str:
    """Tests, and sums that XLA computes."""
    counts = tests_row(cells(data, "tests"), complete(data, "tests")).measured
    return plots.prose(f"Of the GPU tests {counts}.") + "\n" + few(cells(data, "few"))


def applied(now: dict, before: dict) -> str:
    """Training steps, and memory and densities of the earlier visit."""
    used = memory_row(cells(before, "memory"), complete(before, "memory")).measured
    densities_are = density_row(cells(before, "densities")).measured
    texts = (
        f"Memory of a value with gradients grows as a power of N: {used}.",
        f"SD-KDE of a million samples of 16 dimensions at 131,072 of them: {densities_are}.",
    )
    return mmd(cells(now, "mmd")) + "".join("\n" + plots.prose(text) for text in texts)


def of_many_points(data: dict) -> str:
    """By waves: all that a coordinate may have, and as many as the points need."""
    timed = having(cells(data, "costs"), engine="waves")
    num = max(c["n"] for c in timed)
    texts = ", ".join(f"{c['row'][-1] / 1e6:.3g} ms for D = {c['d']}" for c in having(timed, n=num))
    text = f"With no more waves than normal points need, {num} at as many take {texts}."
    return waves(cells(data, "waves")) + "\n" + plots.prose(text)


def in_one_sentence(now: dict, before: dict) -> str:
    """How long wide sums take, by KeOps and dense JAX, too."""
    found, texts = both(now, before), []
    for num, what, words in ((16384, "forward", ""), (16384, "gradients", " with gradients"), (65536, "forward", "")):
        ours, keops, dense = (
            plots.milliseconds(found[num, 32, 32, "float32", what][name]) for name in ("auto", "PyKeOps", "dense JAX")
        )
        texts.append(f"{num} points{words} in {ours} ms (KeOps in {keops}, dense JAX in {dense})")
    error = max(found[num, 32, 32, "float32", "forward"]["auto"]["error"] for num in (16384, 65536))
    return plots.prose(
        f"**On an {title(now)}** `auto` sums {', '.join(texts[:-1])} and {texts[-1]}, of D = C = 32, in float16 with",
        f"errors of {error:.0e}.".replace("e-0", "e-"),
    )


def limits(data: dict) -> str:
    """How much of the limit, in a row for every size."""
    rates = {c["dtype"]: c for c in cells(data, "limit") if "matmul" in c}
    rows = [["N = M", "D, C", "", "", "auto", "fastest of ours"]]
    for (num, dim, channels, dtype, what), methods in headline(data).items():
        if dtype in rates and (best := fastest(methods, OURS)):
            least = limit(Problem(num, dim, channels, 1, dtype), what, rates[dtype])
            auto = fastest(methods, ["auto"])
            texts = [f"{least / auto['median']:.2f}" if auto else "–", f"{least / best['median']:.2f} {best['method']}"]
            rows.append([str(num), f"{dim}, {channels}", dtype, what, *texts])
    return plots.table(rows) if len(rows) > 1 else ""


def few_launches(found: Cells) -> str:
    """How many, of the most important calls."""
    shown = [c for c in having(found, c=32) if c["method"] in ("auto", "rescale, float16") and "launches" in c]
    return "; ".join(f"{c['method']}, {c['what']}: {c['launches']}" for c in shown)


def launches(found: Cells) -> str:
    """How many and how long, and their names."""
    rows = [["method", "C", "", "launches", "µs, first to last", "µs, their sum", "µs of the host"]]
    names = []
    for c in (c for c in found if "launches" in c):
        times = [f"{1e6 * c[key]:.0f}" if key in c else "" for key in ("span", "busy", "host")]
        rows.append([c["method"], str(c["c"]), c["what"], str(c["launches"]), *times])
        counts = ", ".join(f"{count} {name[:60]}" for name, count in c["names"].items())
        names.append(f"- {c['method']}, C = {c['c']}, {c['what']}: {counts}\n")
    return plots.table(rows) + "\n" + "".join(names) if names else ""


def waves(found: Cells) -> str:
    """Milliseconds of a call under `jit`, by N and D."""
    rows = [["N = M", "D", "", "auto", "waves", "error of auto", "error of waves"]]
    for size, methods in sorted(plots.by_method([c for c in found if "method" in c], "n", "d", "what").items()):
        both = [methods.get(name) for name in ("auto", "waves")]
        errors = ["–" if c is None or "error" not in c else f"{c['error']:.1e}" for c in both]
        rows.append([*map(str, size), *map(plots.milliseconds, both), *errors])
    return plots.table(rows) if len(rows) > 1 else ""


def few(found: Cells) -> str:
    """Milliseconds of one call, by N, D, C."""
    heads = ["auto", *rivals.JAX_NATIVE]
    rows = [["N = M", "D, C", "", *heads, "error of auto"]]
    sizes = plots.by_method([c for c in found if "method" in c], "n", "d", "c", "what")
    for (num, dim, channels, what), methods in sorted(sizes.items()):
        error = methods.get("auto", {}).get("error")
        last = "–" if error is None else f"{error:.1e}"
        timed = map(plots.milliseconds, map(methods.get, heads))
        rows.append([str(num), f"{dim}, {channels}", what, *timed, last])
    return plots.table(rows) if len(rows) > 1 else ""


def mmd(found: Cells) -> str:
    """As of the suite."""
    timed = sorted((c for c in found if "median" in c), key=lambda c: (c["d"], c["n"]))
    return applications.report({"cells": timed}) if timed else ""


def memory(found: Cells) -> str:
    """Of both kinds."""
    rows = [["method", "N", "MiB at most so far", "MiB beyond the inputs", "ms"]]
    rows += [
        [c["method"], str(c["n"]), f"{c['peak']:.0f}", plots.mebibytes(c), plots.milliseconds(c)]
        for c in found
        if "peak" in c and "median" in c
    ]
    return plots.table(rows) + "\n" + plots.memory_report(found) if len(rows) > 1 else ""


def densities(found: Cells) -> str:
    """Seconds and errors."""
    rows = [["", "precision", "s", "error"]]
    rows += [[c["figure"], c["method"], f"{c['median']:.3f}", f"{c['error']:.1e}"] for c in found if "median" in c]
    return plots.table(rows) if len(rows) > 1 else ""


def costs(data: dict) -> str:
    """Of each engine, and how far off they are."""
    rows = [["engine", "call", "pair", "column", "off by a factor of"]]
    for engine, (cost, factor) in fit_costs.of_first_light(data).items():
        rows.append([engine, *(f"{x:.3g}" for x in cost), f"{factor:.2f}"])
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


def draw(path: Path, data: dict) -> None:
    """The headline in half precision, a training step, and memory."""
    half = having([c for c in cells(data, "headline") if "method" in c], dtype="float16")
    figures = plots.titled(half, lambda c: f"{c['what']}: N = M = {c['n']}, float16")
    steps = [c for c in cells(data, "mmd") if "method" in c]
    figures |= plots.titled(steps, lambda c: f"MMD step: D = {c['d']}")
    used = plots.titled([c for c in cells(data, "memory") if "peak" in c], lambda c: "value and gradients")
    where = {"device": "cuda", "device_name": title(data)}
    plots.panels(where, path, "", [("median", figures), ("peak", used)])
