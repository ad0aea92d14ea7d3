"""Pictures and tables from the JSON files alone."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.ticker import NullFormatter

from . import applications
from .measure import shown
from .rivals import BARE, JAX_NATIVE, OTHERS, OURS, Problem, limit

LIMIT = "physical limit"
COLORS = {
    **dict(zip(OURS, ("#b2182b", "#ef8a62", "#fdb863", "#c994c7", "#8c510a"), strict=True)),
    **dict(zip(JAX_NATIVE, ("#2166ac", "#67a9cf"), strict=True)),
    **dict(zip(OTHERS, ("#762a83", "#9970ab", "#1b7837", "#666666", "#999999", "#b8a100"), strict=True)),
    BARE: "#000000",
    LIMIT: "#000000",
    **dict.fromkeys(applications.OURS, "#b2182b"),
    **{"kernel matrix": "#2166ac", "one gauss_sum": "#ef8a62", "blackjax": "#1b7837", "SciPy": "#1b7837"},
}
UNITS = {"median": "seconds", "mib": "MiB beyond the inputs", "error": "relative L2 error"}
PAGE = 2**-8  # MiB, in which the system counts memory: none is drawn as one page
Cells = list[dict[str, Any]]


def draw(path: Path) -> None:
    """The pictures and tables of one file; pictures go beside it."""
    data = json.loads(path.read_text())
    if "cells" not in data or data.get("suite") not in ("quick", "paper", "jax", "mmd"):
        print(f"{path}: not of this command")
        return
    if not data["complete"]:
        print(f"{path}: not complete; the same command goes on with it")
    if data["suite"] == "mmd":
        _pages(path, data, "", [("median", _figures(data["cells"]))])
        print(applications_table(data))
    elif data["suite"] == "jax":
        _ratios(path, data)
        print(jax_report(data))
    else:
        for dtype in dict.fromkeys(c["dtype"] for c in data["cells"]):
            figures = _figures([c for c in data["cells"] if c["dtype"] == dtype])
            _pages(path, data, f"_{dtype}_time", [("median", figures)])
            _pages(path, data, f"_{dtype}_memory", [("mib", figures), ("error", figures)])
            print(headline_table(data, dtype), end="")
        print(memory_report(data), end="")


def headline_table(data: dict, dtype: str) -> str:
    """Milliseconds at the largest sizes, and how many times `auto`'s they are: a row a method, 120 characters wide."""
    cells = [c for c in data["cells"] if c["dtype"] == dtype]
    cells = [c for c in cells if c["figure"] == "headline"] or cells
    largest = {(c["what"], c["d"], c["c"]): c["n"] for c in sorted(cells, key=lambda c: c["n"])}
    columns = sorted((*key, num) for key, num in largest.items())  # forward, then gradients
    found = {(c["what"], c["d"], c["c"], c["n"], c["method"]): c for c in cells}
    names = sorted(dict.fromkeys(c["method"] for c in cells), key=lambda name: name != "auto")  # which is the first
    text = f"\nMilliseconds, {dtype}, and how many times those of `auto` (*: timed once; –: cannot, or too slow)\n\n"
    for part in (columns[i : i + 5] for i in range(0, len(columns), 5)):
        heads = [["D, C", *(f"{d}, {c}" for _, d, c, _ in part)], ["", *(what for what, *_ in part)]]
        heads.append(["N = M", *(str(num) for *_, num in part)])
        rows = [
            [name, *(_beside(found.get((*column, name)), found.get((*column, "auto"))) for column in part)]
            for name in names
        ]
        text += table(heads + [row for row in rows if set(row[1:]) != {"–"}]) + "\n"
    return text if cells else ""


def _beside(cell: dict | None, auto: dict | None) -> str:
    if cell is None:
        return "–"
    if "median" not in cell:
        return "failed" if "failed" in cell else "wrong"
    if auto is None or cell is auto:
        return milliseconds(cell)
    ratio = cell["median"] / auto["median"]
    return f"{milliseconds(cell)} ({ratio:.{0 if ratio >= 10 else 1}f}x)"


def table(rows: list[list[str]]) -> str:
    """In Markdown, with the columns aligned; the first row is the head."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["| " + " | ".join(x.ljust(w) for x, w in zip(row, widths, strict=True)) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *lines[1:]]) + "\n"


def applications_table(data: dict) -> str:
    """Milliseconds and MiB of every method."""
    cells = [c for c in data["cells"] if "median" in c]
    groups = dict.fromkeys((c["figure"], c["n"], c["d"]) for c in cells)
    lines = ["| | N | D | ours | others |", "|---|---|---|---|---|"]
    ratios = []
    for figure, n, d in groups:
        same = [c for c in cells if (c["figure"], c["n"], c["d"]) == (figure, n, d)]
        texts = [f"{c['method']} {milliseconds(c)} ({mebibytes(c)})" for c in same]
        lines.append(f"| {figure} | {n} | {d} | {texts[0]} | {', '.join(texts[1:])} |")
        if figure == "MMD step" and len(same) == 2:
            ratios.append(same[1]["median"] / same[0]["median"])
    if ratios:
        lines.append(f"\nMMD step, dense / ours: {geometric_mean(ratios):.2f}x in the geometric mean")
    return "\n".join(lines) + "\n"


def jax_report(data: dict) -> str:
    """How `auto` compares with the best of JAX's own, and of ours, over the grid."""
    lines = []
    for what in ("forward", "gradients"):
        against = {
            "dense or blocked JAX": list(ratio_table(data, what, tuple(JAX_NATIVE)).values()),
            "the best of ours": list(ratio_table(data, what, ("auto", "rescale")).values()),
        }
        for name, ratios in against.items():
            least, mean = min(ratios), geometric_mean(ratios)
            lines.append(f"{what}, {name} / auto: {least:.2f} at least, {mean:.2f} in the geometric mean")
    both = [x for what in ("forward", "gradients") for x in ratio_table(data, what, tuple(JAX_NATIVE)).values()]
    lines.append(f"all of it, dense or blocked JAX / auto: {geometric_mean(both):.2f} in the geometric mean")
    lines += [
        f"N = 16, {c['what']}, {c['method']}: {1e6 * c['median']:.0f} µs"
        for c in data["cells"]
        if c["figure"] == "fixed cost" and c["method"] in OURS
    ]
    return "\n".join(lines) + "\n"


def memory_report(data: dict) -> str:
    """The exponents of N in the memory beyond the inputs: of sizes that need any, where the system tells it at all."""
    lines = []
    cells = [c for c in data["cells"] if c["figure"] == "memory"]
    for name in dict.fromkeys(c["method"] for c in cells):
        of_method = [c for c in cells if c["method"] == name]
        needed = [c for c in of_method if c.get("mib")]
        sizes, mib = (np.log([c[key] for c in needed]) for key in ("n", "mib"))
        slope = f", N^{np.polyfit(sizes, mib, 1)[0]:.2f}" if len(needed) > 1 else ""
        lines.append(f"memory, {name}: {', '.join(mebibytes(c) for c in of_method)}{slope}\n")
    return "".join(lines)


def ratio_table(data: dict, what: str, rivals: Sequence[str]) -> dict[tuple[int, int, int], float]:
    """How many times `auto` the fastest of the rivals takes, by D, C and N."""
    found: dict[tuple[int, int, int], dict[str, float]] = {}
    for c in data["cells"]:
        if c["figure"] == "grid" and c["what"] == what and "median" in c:
            found.setdefault((c["d"], c["c"], c["n"]), {})[c["method"]] = c["median"]
    return {key: min(x[name] for name in rivals if name in x) / x["auto"] for key, x in found.items()}


def _ratios(path: Path, data: dict) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained")
    image: Any = None
    for axis, what in zip(axes, ("forward", "gradients"), strict=True):
        ratios = ratio_table(data, what, tuple(JAX_NATIVE))
        sizes = sorted({key[:2] for key in ratios})
        nums = sorted({key[2] for key in ratios})
        values = np.array([[ratios.get((*size, num), np.nan) for num in nums] for size in sizes])
        image = axis.imshow(values, norm=LogNorm(0.4, 1 / 0.4), cmap="RdYlGn", aspect="auto")
        for (i, j), x in np.ndenumerate(values):
            color = "black" if 0.5 < x < 2 else "white"
            axis.text(j, i, f"{x:.2f}", ha="center", va="center", fontsize=9, color=color)
        axis.set_xticks(range(len(nums)), [str(n) for n in nums])
        axis.set_yticks(range(len(sizes)), [f"D = {d}, C = {c}" for d, c in sizes])
        axis.set_xlabel("N = M")
        mean = geometric_mean(values[np.isfinite(values)])
        axis.set_title(f"{what}: {mean:.2f}× in the geometric mean", fontsize=10)
    bar = figure.colorbar(image, ax=axes, label="time of the best / time of auto")
    bar.set_ticks([0.5, 1, 2], labels=["0.5", "1", "2"])
    bar.minorticks_off()
    figure.suptitle(f"The faster of dense and blocked JAX, over method=“auto”: {_where(data)}, float32", fontsize=10)
    _write(figure, path, "")


def _figures(cells: Cells) -> dict[str, Cells]:
    """The cells of every curve plot, by its title."""
    found: dict[str, Cells] = {}
    for c in cells:
        if c["figure"] in ("headline", "memory"):
            continue
        if "what" not in c:
            title = (
                c["figure"] if c["figure"] in ("permutation test", "digits step") else f"{c['figure']}, D = {c['d']}"
            )
        elif c["figure"] == "D":
            title = f"{c['what']}: N = {c['n']}, C = {c['c']}, batch {c['batch']}"
        else:
            batch = f", batch {c['batch']}" if c["batch"] > 1 else ""
            title = f"{c['what']}: D = {c['d']}, C = {c['c']}{batch}"
        found.setdefault(title, []).append(c)
    return {
        title: cells for title, cells in found.items() if len({c["n"] for c in cells} | {c["d"] for c in cells}) > 2
    }


def _pages(path: Path, data: dict, suffix: str, rows: list[tuple[str, dict[str, Cells]]]) -> None:
    """One picture: the panels of every quantity, which begins a row, and one legend for all."""
    number = max(len(figures) for _, figures in rows)
    if not number:
        return
    width = 2 if number in (2, 4) else min(3, number)
    height = -(-number // width) * len(rows)
    figure, axes = plt.subplots(height, width, figsize=(4.2 * width, 3.3 * height), layout="constrained", squeeze=False)
    names: dict[str, Any] = {}
    for (quantity, figures), part in zip(rows, np.split(axes, len(rows)), strict=True):
        for axis in part.flat[len(figures) :]:
            axis.set_visible(False)
        for axis, (title, cells) in zip(part.flat, figures.items(), strict=False):
            names |= _curves(axis, cells, quantity, data.get("rates", {}))
            axis.set_title(title, fontsize=10)
        if quantity == "error":  # the same half decades everywhere: labels between whole ones would crowd
            ends = 2 * np.log10([axis.get_ylim() for axis in part.flat[: len(figures)]])
            for axis in part.flat:
                axis.set_ylim(10 ** (np.floor(ends.min()) / 2), 10 ** (np.ceil(ends.max()) / 2))
                axis.yaxis.set_minor_formatter(NullFormatter())
    figure.legend(names.values(), names, loc="outside lower center", ncols=2 * width, fontsize=9, frameon=False)
    kinds = {c["dtype"] for _, figures in rows for cells in figures.values() for c in cells if "dtype" in c}
    smaller = (
        "; sizes below the paper's, which are a GPU's" if data["device"] == "cpu" and data["suite"] == "paper" else ""
    )
    figure.suptitle(", ".join([_where(data), *kinds]) + smaller, fontsize=10)
    _write(figure, path, suffix)


def _curves(axis: Axes, cells: Cells, quantity: str, rates: dict) -> dict[str, Any]:
    """One line a method; the quartiles of times as a band."""
    along = "d" if len({c["d"] for c in cells}) > 1 else "n"
    lines = {}
    for name in dict.fromkeys(c["method"] for c in cells):
        points = [c for c in cells if c["method"] == name and c.get(quantity) is not None]
        if not points:
            continue
        points.sort(key=lambda c: c[along])
        x, y = ([c[key] for c in points] for key in (along, quantity))
        y = np.maximum(y, PAGE) if quantity == "mib" else y
        style: dict[str, Any] = {"color": COLORS[name], "marker": ".", "lw": 1.4, "alpha": 0.9}
        if name in ("auto", *applications.OURS):
            style |= {"lw": 2.8, "zorder": 3}
        elif name == BARE:
            style |= {"ls": ":", "marker": ""}
        (lines[name],) = axis.plot(x, y, **style)
        if quantity == "median":
            axis.fill_between(
                x, [c["q1"] for c in points], [c["q3"] for c in points], color=COLORS[name], alpha=0.15, lw=0
            )
    if quantity == "median" and rates:
        sizes = sorted({(c[along], c["n"], c["d"], c["c"], c["batch"], c["what"], c["dtype"]) for c in cells})
        y = [limit(Problem(n, d, c, b, dtype), what, rates[dtype]) for _, n, d, c, b, what, dtype in sizes]
        (lines[LIMIT],) = axis.plot([s[0] for s in sizes], y, color=COLORS[LIMIT], ls="--", lw=1)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xlabel({"n": "number of points, N = M", "d": "dimension D"}[along])
    axis.set_ylabel(UNITS[quantity])
    axis.grid(alpha=0.25)
    return lines


def _where(data: dict) -> str:
    return f"{data['device_name']}, {data['cores']} cores" if data["device"] == "cpu" else data["device_name"]


def _write(figure: Any, path: Path, suffix: str) -> None:
    picture = path.with_name(path.stem + suffix + ".png")
    figure.savefig(picture, dpi=100)
    plt.close(figure)
    print(f"picture: {shown(picture)}")


def milliseconds(cell: dict | None) -> str:
    """Three digits; `*`: timed once."""
    if cell is None:
        return ""
    value = 1e3 * cell["median"]
    return (f"{value:.0f}" if value >= 100 else f"{value:.3g}") + ("*" if len(cell["seconds"]) == 1 else "")


def mebibytes(cell: dict) -> str:
    """The memory beyond the arguments."""
    return "memory unknown" if cell.get("mib") is None else f"{cell['mib']:.0f} MiB"


def geometric_mean(ratios: Sequence[float] | np.ndarray) -> float:
    """Of what is positive."""
    return float(np.exp(np.log(ratios).mean()))
