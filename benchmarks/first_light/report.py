"""What `first_light` has found, from its file alone: targets met and missed, and tables."""

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from .. import applications, plots
from ..plots import Cells, by_method, exponents, fastest, having, listing, pivot, prose
from ..rivals import BARE, JAX_NATIVE
from ..rivals import OURS as METHODS
from .steps import GPU, PRECISIONS, STEPS

OURS = (*METHODS, "float32", "cudnn")
EXPONENT, SECONDS = 1.1, 2.3  # of the memory in N; of densities
SIZE = ("n", "d", "c", "dtype", "what")
ABOUT = ("test", "figure", *SIZE, "method")  # which cell
Table = dict[tuple, dict[str, dict[str, Any]]]  # cells by N, D, C, dtype and forward or gradients; and by name


class Row(NamedTuple):
    """A target, what was measured, whether that meets it (None: it was not), and whether that is all of it."""

    target: str
    measured: str = ""
    met: bool | None = None
    whole: bool = True

    @property
    def verdict(self) -> str:
        """In a word."""
        return {None: "not measured", False: "missed", True: "met" if self.whole else "met so far"}[self.met]


@dataclass(frozen=True)
class Ratio:
    """A target for how many times our time a rival takes: the fastest of ours beside the fastest of them.

    Of sizes that one of ours began, where a rival was timed. If none of ours was, that misses it.
    """

    target: str
    step: str
    rivals: Collection[str]
    ours: Collection[str]
    cells: int  # of all sizes
    sizes: Callable[..., bool] = lambda *size: True  # of N, D, C, dtype, and what
    least: float = 1.0
    mean: bool = False  # the geometric one, not the worst
    exact: bool = False  # of ours those with at most a quarter of the rival's error

    def row(self, data: dict) -> Row:
        """As it was measured."""
        ratios = {}
        for size, methods in table(data, self.step).items():
            rival = fastest(methods, self.rivals)
            if rival and methods.keys() & self.ours and self.sizes(*size):
                most = rival["error"] / 4 if self.exact else float("inf")
                ours = fastest(methods, [x for x in self.ours if methods.get(x, {}).get("error", 0.0) <= most])
                ratios[size] = rival["median"] / ours["median"] if ours else 0.0, ours or {}
        if not ratios:
            return Row(self.target)
        size, (worst, ours) = min(ratios.items(), key=lambda item: item[1][0])
        every = [ratio for ratio, _ in ratios.values()]
        reached = plots.geometric_mean(every) if self.mean and worst else worst
        by = f"{ours['method']} {plots.milliseconds(ours)} ms" if ours else "none of ours"
        where = ", ".join(str(x) for x in size if x is not None)
        text = (f"{reached:.2f}x in the mean, " if self.mean else "") + f"{worst:.2f}x at worst, by {by} at {where}"
        text += f"; {len(every)} of {self.cells} cells"
        return Row(self.target, text, reached >= self.least, len(every) >= self.cells)


def bare(num: int, dim: int, least: float) -> Ratio:
    """How fast ours are beside the attention call alone, as wide as `rescale`."""
    target, size = f"float16, D = C = {dim}, N = {num}", (num, dim, dim, "float16", "forward")
    target += f": the best of ours ≥ {least} of bare attention"
    return Ratio(target, "headline", [BARE], OURS, 1, lambda *x: x == size, least)


def keops(dtype: str, what: str, least: float) -> Ratio:
    """Beside the fastest of ours that has at most a quarter of its error."""
    target = f"{dtype}, D ≥ 16, {what}: ≥ {least:g} × PyKeOps, at no more than a quarter of its error"
    cells = sum(dim >= 16 for dim, _ in GPU.pairs) * len(GPU.nums)
    sizes = lambda *x: x[1] >= 16 and x[3:] == (dtype, what)  # noqa: E731
    return Ratio(target, "headline", ["PyKeOps"], OURS, cells, sizes, least, exact=True)


STEP = range(1024, 16385)  # points of a training step
ALL, FEW = 4 * len(GPU.pairs) * len(GPU.nums), 2 * len(GPU.pairs) * len(GPU.few)  # cells
STEPS_OF_MMD = 2 * sum(num in STEP for num in GPU.mmd)
SLOWER = "`auto` never slower than dense or blocked JAX, in all headline cells"
FEW_POINTS = "few points: `auto` ≥ 1 × dense or blocked JAX in the geometric mean"
MMD = "MMD step: ≥ 2 × dense JAX in the geometric mean over N = 1024 … 16384"
RATIOS = [
    *(bare(num, dim, least) for num, least in ((16384, 0.85), (65536, 0.95)) for dim in (32, 64)),
    *(keops(dtype, *of) for of in (("forward", 2.0), ("gradients", 3.0)) for dtype in ("float16", "float32")),
    Ratio(SLOWER, "headline", JAX_NATIVE, ["auto"], ALL),
    Ratio(FEW_POINTS, "few", JAX_NATIVE, ["auto"], FEW, mean=True),
    Ratio(MMD, "mmd", ["dense JAX"], ["mmd_squared"], STEPS_OF_MMD, lambda *x: x[0] in STEP, 2.0, mean=True),
]


def targets(data: dict) -> list[Row]:
    """All of them."""
    return [tests_row(data), *(ratio.row(data) for ratio in RATIOS), memory_row(data), density_row(data)]


def cells(data: dict, step: str) -> Cells:
    """What a step has found."""
    return data["steps"].get(step, {}).get("cells", [])


def table(data: dict, step: str) -> Table:
    """The step's cells, those of all groups together."""
    return by_method([c for c in cells(data, step) if "method" in c], *SIZE)


def tests_row(data: dict) -> Row:
    """Those that were ended by a crash have failed."""
    target, found = "GPU tests: all pass", cells(data, "tests")
    if not found:
        return Row(target)
    failed = sum("failed" in c for c in found)
    passed, skipped = (len(having(found, outcome=x)) for x in ("passed", "skipped"))
    text = f"{passed} passed, {failed} failed, {skipped} skipped"
    return Row(target, text, not failed, data["steps"]["tests"].get("complete", False))


def memory_row(data: dict) -> Row:
    """Of every method."""
    target, found = f"memory linear in N: exponent ≤ {EXPONENT}", cells(data, "memory")
    peaks = [c for c in found if "peak" in c]
    fits = exponents(peaks, "peak")
    if not fits:
        return Row(target)
    if failed := [c["method"] for c in found if "failed" in c and "method" in c]:
        return Row(target, f"{failed[0]} did not run", False)
    largest = max(peaks, key=lambda c: c["peak"])
    text = ", ".join(f"{method} {x:.2f}" for method, x in fits.items())
    text += f"; {largest['peak']:.0f} MiB at N = {largest['n']}"
    return Row(target, text, max(fits.values()) <= EXPONENT, data["steps"]["memory"].get("complete", False))


def density_row(data: dict) -> Row:
    """By the fastest precision."""
    target = f"SD-KDE of 1M samples, D = 16, 131k queries: below {SECONDS} s"
    methods = {c["method"]: c for c in having(cells(data, "densities"), figure="SD-KDE")}
    best = fastest(methods, PRECISIONS)
    if best is None:
        return Row(target, "did not run", False) if len(methods) == len(PRECISIONS) else Row(target)
    timed = [c for c in methods.values() if "median" in c]
    text = "; ".join(f"{c['method']} {c['median']:.2f} s, error {c['error']:.1e}" for c in timed)
    return Row(target, text, best["median"] < SECONDS)


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
        "What failed": failures(data),
    }
    rows = [["target", "measured", ""], *([row.target, row.measured, row.verdict] for row in targets(data))]
    texts = [
        f"# First light: {title(data)}",
        f"{several(data, 'date')}, commit {several(data, 'commit')}; {', '.join(versions)}",
        plots.table(rows),
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
    """Milliseconds by size and method, with errors; of memory the most so far."""
    named = [c for c in found if "method" in c]

    def text(c: dict) -> str:
        more = [f"{c['error']:.0e}"] if c.get("error") else []
        more += [f"{c['peak']:.0f} MiB"] if c["figure"] == "memory" and "peak" in c else []
        return plots.milliseconds(c) + (f" ({', '.join(more)})" if more else "")

    def size(c: dict) -> str:
        return ", ".join(str(c[key]) for key in SIZE if key in c)

    return pivot("milliseconds", named, size, "{method}", text) if named else ""


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
