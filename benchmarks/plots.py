"""Tables, sentences and pictures of results."""

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter

from .rivals import BARE, JAX_NATIVE, OTHERS, OURS, Problem, limit
from .study import Cells, shown

LIMIT = "physical limit"
METHODS = ("mmd_squared", "svgd_direction", "kde_logpdf")  # ours that are made of sums
COLORS = {
    **dict(zip(OURS, ("#b2182b", "#ef8a62", "#fdb863", "#c994c7", "#8c510a"), strict=True)),
    **dict(zip(JAX_NATIVE, ("#2166ac", "#67a9cf"), strict=True)),
    **dict(zip(OTHERS, ("#9970ab", "#1b7837", "#666666", "#999999", "#b8a100"), strict=True)),
    BARE: "#000000",
    LIMIT: "#000000",
    **dict.fromkeys(("gauss_sum", *METHODS), "#b2182b"),
    **{"blackjax": "#1b7837", "SciPy": "#1b7837"},
}
MORE = [f"C{i}" for i in range(10) if i != 3]  # for other names: the fourth is red, which is ours
BOLD = ("auto", "gauss_sum", *METHODS)
UNITS = {
    "median": "seconds",
    "mib": "MiB beyond the inputs",
    "error": "relative L2 error",
    "ratio": "times the time of auto",
}
ALONG = {"squared_radius": "τ‖x‖² of the farthest point", "d": "dimension D", "n": "number of points, N = M"}
ALONG |= {"directions": "directions P"}
Text = str | Callable[[dict], str]  # of a cell: a format of its entries and of its time, `ms`, or a function
PAGE = 2**-8  # MiB, in which the system counts memory: none is drawn as one page


def table(rows: list[list[str]]) -> str:
    """In Markdown, with the columns aligned; the first row is the head."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["| " + " | ".join(x.ljust(w) for x, w in zip(row, widths, strict=True)) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *lines[1:]]) + "\n"


def said(text: Text, cell: dict) -> str:
    """Of the cell."""
    return text(cell) if callable(text) else text.format(**({"ms": milliseconds(cell)} | cell))


def listing(cells: Cells, columns: Mapping[str, Text]) -> str:
    """A table with a row for every cell."""
    return table([[*columns], *([said(text, cell) for text in columns.values()] for cell in cells)])


def pivot(corner: str, cells: Cells, row: Text, column: Text, text: Text = "{ms}") -> str:
    """A table of the cells' texts, whose heads are said of them, too; “–” where there is none."""
    rows: dict[str, dict[str, str]] = {}
    for cell in cells:
        rows.setdefault(said(row, cell), {})[said(column, cell)] = said(text, cell)
    columns = list(dict.fromkeys(said(column, cell) for cell in cells))
    return table([[corner, *columns], *([name, *(of.get(x, "–") for x in columns)] for name, of in rows.items())])


def prose(*parts: str) -> str:
    """One paragraph, or item of a list, of the pages' width."""
    text = " ".join(parts)
    return textwrap.fill(text, 120, subsequent_indent="  " * text.startswith("- "), break_on_hyphens=False) + "\n"


def milliseconds(cell: dict | None) -> str:
    """Three digits; `*`: timed once."""
    if not cell:
        return "–"
    if "median" not in cell:
        return "failed" if "failed" in cell else "wrong"
    value = 1e3 * cell["median"]
    return (f"{value:.0f}" if value >= 100 else f"{value:.3g}") + ("*" if len(cell.get("seconds", ())) == 1 else "")


def mebibytes(cell: dict) -> str:
    """The memory beyond the arguments."""
    return "memory unknown" if cell.get("mib") is None else f"{cell['mib']:.0f} MiB"


def two(x: float) -> str:
    """Two digits."""
    return f"{x:.0f}" if x >= 9.95 else f"{x:.1f}" if x >= 0.995 else f"{x:.2f}"


def power(x: float) -> str:
    """Two digits, as in 1.2e-3."""
    return f"{x:.1e}".replace("e-0", "e-")


def span(ratios: Iterable[float]) -> str:
    """From the least to the largest."""
    ratios = list(ratios)
    return f"{two(min(ratios))} to {two(max(ratios))}" if ratios else "–"


def geometric_mean(ratios: Sequence[float] | np.ndarray) -> float:
    """Of what is positive."""
    return float(np.exp(np.log(ratios).mean()))


def having(cells: Cells, **about: object) -> Cells:
    """Those cells."""
    return [cell for cell in cells if all(cell.get(key) == value for key, value in about.items())]


def by_method(cells: Cells, *keys: str) -> dict[tuple, dict[str, dict]]:
    """The timed cells, or those that failed: of each problem, by method."""
    found: dict[tuple, dict[str, dict]] = {}
    for cell in cells:
        found.setdefault(tuple(cell.get(key) for key in keys), {})[cell["method"]] = cell
    return found


def fastest(methods: dict[str, dict], names: Iterable[str]) -> dict | None:
    """The cell of the one of them that takes the least time, if any was timed."""
    return min((methods[x] for x in names if "median" in methods.get(x, {})), key=lambda c: c["median"], default=None)


def ratios(cells: Cells, of: str, to: str, *keys: str) -> list[float]:
    """How many times the time of one method another takes, of each problem that both were timed of."""
    found = by_method([c for c in cells if "median" in c], *keys).values()
    return [x[of]["median"] / x[to]["median"] for x in found if x.keys() >= {of, to}]


def exponents(cells: Cells, quantity: str) -> dict[str, float]:
    """Of N in the memory, by method, where there are two sizes that need any."""
    found = {method: [c for c in having(cells, method=method) if c.get(quantity)] for method in names(cells)}
    many = {method: np.log([(c["n"], c[quantity]) for c in of]) for method, of in found.items() if len(of) > 1}
    return {method: float(np.polyfit(points[:, 0], points[:, 1], 1)[0]) for method, points in many.items()}


def names(cells: Cells) -> list[str]:
    """Of the methods."""
    return list(dict.fromkeys(c["method"] for c in cells))


def panels(
    data: dict, path: Path, suffix: str, rows: list[tuple[str, dict[str, Cells]]], note: str = "", **style: Any
) -> None:
    """One picture: the panels of every quantity, which begins a row, and one legend for all."""
    number = max(len(figures) for _, figures in rows)
    if not number:
        return
    width = 2 if number in (2, 4) else min(3, number)
    heights = [-(-len(figures) // width) for _, figures in rows]
    size = (4.2 * width, 3.3 * sum(heights))
    figure, axes = plt.subplots(sum(heights), width, figsize=size, layout="constrained", squeeze=False)
    lines: dict[str, Any] = {}
    for (quantity, figures), part in zip(rows, np.split(axes, np.cumsum(heights)[:-1]), strict=True):
        for axis in part.flat[len(figures) :]:
            axis.set_visible(False)
        for axis, (title, cells) in zip(part.flat, figures.items(), strict=False):
            lines |= curves(axis, cells, quantity, data.get("rates", {}), **style)
            axis.set_title(title, fontsize=10)
        if quantity == "error":  # the same half decades everywhere: labels between whole ones would crowd
            ends = 2 * np.log10([axis.get_ylim() for axis in part.flat[: len(figures)]])
            for axis in part.flat:
                axis.set_ylim(10 ** (np.floor(ends.min()) / 2), 10 ** (np.ceil(ends.max()) / 2))
                axis.yaxis.set_minor_formatter(NullFormatter())
    figure.legend(lines.values(), lines, loc="outside lower center", ncols=2 * width, fontsize=9, frameon=False)
    finish(figure, data, path, suffix, note)


def curves(axis: Axes, cells: Cells, quantity: str, rates: dict, **style: Any) -> dict[str, Any]:
    """One line a method; the quartiles of times as a band."""
    along = next((key for key in ALONG if len({c.get(key) for c in cells}) > 1), "n")
    lines = {}
    for i, name in enumerate(names(cells)):
        points = [c for c in having(cells, method=name) if c.get(quantity) is not None]
        if not points:
            continue
        points.sort(key=lambda c: c[along])
        x, y = ([c[key] for c in points] for key in (along, quantity))
        y = np.maximum(y, PAGE) if quantity == "mib" else y
        color = COLORS.get(name, MORE[i % len(MORE)])
        look: dict[str, Any] = {"color": color, "marker": ".", "lw": 1.4, "alpha": 0.9} | style
        if name in BOLD:
            look |= {"lw": 2.8, "zorder": 3} | style
        elif name == BARE:
            look |= {"ls": ":", "marker": ""}
        (lines[name],) = axis.plot(x, y, **look)
        if quantity == "median" and all("q1" in c for c in points):
            ends = ([c[q] for c in points] for q in ("q1", "q3"))
            axis.fill_between(x, next(ends), next(ends), color=color, alpha=0.15, lw=0)
    if quantity == "median" and rates:
        sizes = sorted({(c[along], c["n"], c["d"], c["c"], c["batch"], c["what"], c["dtype"]) for c in cells})
        y = [limit(Problem(n, d, c, b, dtype), what, rates[dtype]) for _, n, d, c, b, what, dtype in sizes]
        (lines[LIMIT],) = axis.plot([s[0] for s in sizes], y, color=COLORS[LIMIT], ls="--", lw=1)
    axis.set_xscale("log", base=10 if along == "squared_radius" else 2)
    axis.set_yscale("log")
    if quantity == "ratio":  # of less than two decades, in plain numbers
        axis.axhline(1, color="#000000", lw=1, ls=":")
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter(NullFormatter())
    axis.set_xlabel(ALONG[along])
    axis.set_ylabel(UNITS[quantity])
    axis.grid(alpha=0.25)
    return lines


def finish(figure: Any, data: dict, path: Path, suffix: str, note: str = "") -> None:
    """Say where it was measured, and write it beside the file."""
    device = f"{data['device_name']}, {data['cores']} cores" if data["device"] == "cpu" else data["device_name"]
    figure.suptitle(", ".join(filter(None, (device, note))), fontsize=10)
    picture = path.with_name(path.stem + suffix + ".png")
    figure.savefig(picture, dpi=100)
    plt.close(figure)
    print(f"picture: {shown(picture)}")


def titled(cells: Cells, title: Text) -> dict[str, Cells]:
    """The cells of every panel by its title: of those that have more than one size."""
    found: dict[str, Cells] = {}
    for c in cells:
        found.setdefault(said(title, c), []).append(c)
    return {x: of for x, of in found.items() if len({c["n"] for c in of} | {c["d"] for c in of}) > 2}
