"""What `first_light` has found, from its file alone: targets met and missed, tables, and a picture."""

import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from . import plots
from .first_light import STEPS
from .first_light_steps import OWN_WIDTH
from .first_light_targets import OURS, Cells, cells, exponents, fastest, headline, targets
from .rivals import Problem, limit

MORE = {"float32": "#f4a582", "cudnn": "#01665e"}
COLORS = {name: (plots.COLORS | MORE)[name] for name in OURS} | plots.COLORS | {OWN_WIDTH: "#bbbbbb"}
ABOUT = ("test", "figure", "n", "d", "c", "dtype", "what", "method")  # which cell


def write(path: Path, pictures: bool = True) -> None:
    """The tables, and the picture, beside the file."""
    data = json.loads(path.read_text())
    path.with_suffix(".md").write_text(report(data))
    if pictures:
        print(report(data).split("\n## Steps")[0])
        draw(path, data)


def report(data: dict) -> str:
    """All of it, in Markdown."""
    infos = _infos(data)
    versions = {f"{name} {version}": None for info in infos for name, version in info["versions"].items()}
    rows = [["target", "measured", ""], *([row.target, row.measured, row.verdict] for row in targets(data))]
    rows.append(["launches a call (no target)", _launches(cells(data, "launches")), ""])
    steps = [["step", "", "seconds", "cells"]]
    for name in STEPS:
        step = data["steps"].get(name, {"state": "did not begin"})
        steps.append([name, step["state"], f"{step.get('seconds', 0):.0f}", str(len(step.get("done", [])))])
    texts = [
        f"# First light: {_title(data)}",
        f"{_all(infos, 'date')}, commit {_all(infos, 'commit')}; {', '.join(versions)}",
        plots.table(rows),
        f"## Steps\n\n{plots.table(steps)}",
        _headline(data),
        _section("Of the physical limit: by `auto`, and by the fastest of ours", _limits(data)),
        _section("Launches", _of_launches(cells(data, "launches"))),
        _section("Milliseconds (and MiB) of an MMD step", _mmd(cells(data, "mmd"))),
        _section("Memory", _memory(cells(data, "memory"))),
        _section("Densities", _densities(cells(data, "densities"))),
        _section("Costs", "".join(f"    {line}\n" for c in cells(data, "costs") for line in c.get("printed", []))),
        _section("What failed", _failures(data)),
    ]
    return "\n\n".join(text.strip("\n") for text in texts if text) + "\n"


def _section(title: str, text: str) -> str:
    return f"## {title}\n\n{text}" if text else ""


def _infos(data: dict) -> list[dict]:
    return [step["info"] for step in data["steps"].values() if "info" in step]


def _title(data: dict) -> str:
    return "emulated: figures mean nothing" if data["device"] == "emulated" else _all(_infos(data), "device_name")


def _all(infos: list[dict], name: str) -> str:
    return ", ".join(dict.fromkeys(info[name] for info in infos)) or "unknown"


def _headline(data: dict) -> str:
    named = [c for c in cells(data, "headline") if "method" in c]
    sizes = sorted({(c["n"], c["dtype"]) for c in named})
    tables = [plots.headline_table({"cells": [c for c in named if c["n"] == n]}, dtype) for n, dtype in sizes]
    return _section("Headline", "".join(tables).strip("\n"))


def _limits(data: dict) -> str:
    rates = {c["dtype"]: c for c in cells(data, "limit") if "matmul" in c}
    table = {size: x for size, x in headline(data).items() if size[3] in rates and fastest(x, OURS)}
    pairs = list(dict.fromkeys(size[1:3] for size in table))
    rows = [["N = M", "", "", *(f"D, C = {d}, {c}" for d, c in pairs)]]
    for num, dtype, what in dict.fromkeys((size[0], *size[3:]) for size in table):
        texts = []
        for dim, channels in pairs:
            methods = table.get((num, dim, channels, dtype, what), {})
            least = limit(Problem(num, dim, channels, 1, dtype), what, rates[dtype])
            both = [x for x in (fastest(methods, ["auto"]), fastest(methods, OURS)) if x]
            texts.append(", ".join(f"{least / x['median']:.2f} {x['method']}" for x in both))
        rows.append([str(num), dtype, what, *texts])
    return plots.table(rows) if table else ""


def _launches(found: Cells) -> str:
    shown = [c for c in found if c.get("c") == 32 and c["method"] in ("auto", "rescale, float16") and "launches" in c]
    return "; ".join(f"{c['method']}, {c['what']}: {c['launches']}" for c in shown)


def _of_launches(found: Cells) -> str:
    rows = [["method", "C", "", "launches", "µs, first to last", "µs, their sum", "µs of the host"]]
    names = []
    for c in (c for c in found if "launches" in c):
        times = [f"{1e6 * c[key]:.0f}" if key in c else "" for key in ("span", "busy", "host")]
        rows.append([c["method"], str(c["c"]), c["what"], str(c["launches"]), *times])
        counts = ", ".join(f"{count} {name[:60]}" for name, count in c["names"].items())
        names.append(f"- {c['method']}, C = {c['c']}, {c['what']}: {counts}\n")
    return plots.table(rows) + "\n" + "".join(names) if names else ""


def _mmd(found: Cells) -> str:
    timed = sorted((c for c in found if "median" in c), key=lambda c: (c["d"], c["n"]))
    return plots.applications_table({"cells": timed}) if timed else ""


def _memory(found: Cells) -> str:
    rows = [["method", "N", "MiB at most so far", "MiB beyond the inputs", "ms"]]
    for c in (c for c in found if "peak" in c and "median" in c):
        mib = "" if c["mib"] is None else f"{c['mib']:.0f}"
        rows.append([c["method"], str(c["n"]), f"{c['peak']:.0f}", mib, plots.milliseconds(c)])
    return plots.table(rows) + "\n" + plots.memory_report({"cells": found}) if len(rows) > 1 else ""


def _densities(found: Cells) -> str:
    rows = [["", "precision", "s", "error"]]
    rows += [[c["figure"], c["method"], f"{c['median']:.3f}", f"{c['error']:.1e}"] for c in found if "median" in c]
    return plots.table(rows) if len(rows) > 1 else ""


def _failures(data: dict) -> str:
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
    sizes = headline(data)
    figure = plt.figure(figsize=(14, 9), layout="constrained")
    upper, lower = (figure.add_subfigure(part) for part in figure.add_gridspec(2, 1, height_ratios=(1.15, 1)))
    above, below = upper.subplots(1, 2, sharey=True), lower.subplots(1, 3)
    for axis, what in zip(above, ("forward", "gradients"), strict=True):
        nums = [size[0] for size in sizes if size[3:] == ("float16", what)]
        num = max(set(nums), key=lambda n: (nums.count(n), -n), default=0)
        _bars(axis, {size[1:3]: x for size, x in sizes.items() if (size[0], *size[3:]) == (num, "float16", what)})
        axis.set_title(f"{what}: N = M = {num}, float16", fontsize=10)
    above[0].set_ylabel("milliseconds")
    handles = {name: handle for axis in above for handle, name in zip(*axis.get_legend_handles_labels(), strict=True)}
    upper.legend(handles.values(), handles, loc="outside lower center", ncols=7, fontsize=9, frameon=False)
    for axis, dim in zip(below, (16, 64), strict=False):
        steps = [c for c in cells(data, "mmd") if c["d"] == dim and "method" in c]
        lines = plots._curves(axis, steps, "median", {})
        axis.legend(lines.values(), lines, fontsize=9, frameon=False)
        axis.set_title(f"MMD step: D = {dim}", fontsize=10)
    used = [c | {"mib": c["peak"]} for c in cells(data, "memory") if "peak" in c]
    lines, fits = plots._curves(below[2], used, "mib", {}), exponents(used)
    texts = [f"{name}: N^{fits[name]:.2f}" if name in fits else name for name in lines]
    below[2].legend(lines.values(), texts, fontsize=9, frameon=False)
    below[2].set_title("value and gradients: D = 16, C = 1", fontsize=10)
    below[2].set_ylabel("MiB in use on the device, at most")
    figure.suptitle(_title(data), fontsize=11)
    plots._write(figure, path, "")


def _bars(axis: Axes, methods_by_pair: dict[tuple[int, int], dict[str, dict]]) -> None:
    """Milliseconds of every method, side by side, at each D and C."""
    pairs = sorted(methods_by_pair)
    names = [name for name in COLORS if any("median" in x.get(name, {}) for x in methods_by_pair.values())]
    for i, name in enumerate(names):
        heights = [1e3 * methods_by_pair[pair].get(name, {}).get("median", np.nan) for pair in pairs]
        places = np.arange(len(pairs)) + 0.84 * ((i + 0.5) / len(names) - 0.5)
        axis.bar(places, heights, 0.8 / len(names), color=COLORS[name], label=name)
    axis.set_xticks(range(len(pairs)), [f"D = {d}\nC = {c}" for d, c in pairs])
    axis.set_yscale("log")
    axis.grid(alpha=0.25, axis="y")
