"""What `first_light` is to find: the targets, from its file alone."""

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from .. import applications, plots
from ..plots import Cells, by_method, exponents, fastest, having
from ..rivals import BARE, JAX_NATIVE
from ..rivals import OURS as METHODS
from .sizes import GPU
from .steps import PRECISIONS, STEPS

OURS = (*METHODS, "auto in float32", "float32", "cudnn")
OURS_ELSEWHERE = ("waves", "mmd_squared", "mmd_squared, donated", *PRECISIONS)  # in steps that compare other things
DENSE = applications.DENSE["cuda"]
EXPONENT, SECONDS, FIRST_CALL = 1.1, 2.3, 8  # of the memory in N; of densities, and of a first call
SIZE = ("n", "d", "c", "dtype", "what")
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
    floor: float | None = None  # if given, of the worst; `least` is then of the geometric mean
    errors: float = math.inf  # of ours those with at most so many times the rival's error
    peers: float = math.inf  # of rivals the most precise one, and those with at most so many times our error

    def row(self, data: dict) -> Row:
        """As it was measured."""
        ratios = {}
        for size, methods in table(data, self.step).items():
            if fastest(methods, self.rivals) and methods.keys() & self.ours and self.sizes(*size):
                ratios[size] = max(self.ratios(methods), key=lambda found: found[0], default=(0.0, {}))
        if not ratios:
            return Row(self.target)
        size, (worst, ours) = min(ratios.items(), key=lambda item: item[1][0])
        every = [ratio for ratio, _ in ratios.values()]
        in_the_mean = self.floor is not None
        reached = plots.geometric_mean(every) if in_the_mean and worst else worst
        by = f"{ours['method']} {plots.milliseconds(ours)} ms" if ours else "none of ours"
        text = (f"{reached:.2f}x in the mean, " if in_the_mean else "") + f"{worst:.2f}x at worst, by {by}"
        text += f" at {where(size)}; {len(every)} of {self.cells} cells"
        met = reached >= self.least and worst >= (self.floor or 0.0)
        return Row(self.target, text, met, len(every) >= self.cells)

    def ratios(self, methods: dict[str, dict]) -> Iterator[tuple[float, dict]]:
        """Of each of ours that was timed, and is precise enough."""
        timed = {name: c for name, c in methods.items() if "median" in c}
        least = min(error(timed[name]) for name in self.rivals if name in timed)
        for mine in (timed[name] for name in self.ours if name in timed):
            peers = [x for x in self.rivals if x in timed and error(timed[x]) <= max(least, self.peers * error(mine))]
            rival = fastest(timed, peers)
            if rival and error(mine) <= self.errors * error(rival):
                yield rival["median"] / mine["median"], mine


@dataclass(frozen=True)
class Limit:
    """A target for the milliseconds that `auto` takes, in each of some cells."""

    target: str
    step: str
    cells: int
    sizes: Callable[..., bool]  # as above
    most: float

    def row(self, data: dict) -> Row:
        """As it was measured; if it was not timed, that misses it."""
        found = {size: x["auto"] for size, x in table(data, self.step).items() if self.sizes(*size) and "auto" in x}
        if not found:
            return Row(self.target)
        size, worst = max(found.items(), key=lambda item: item[1].get("median", math.inf))
        text = f"{plots.milliseconds(worst)} ms at {where(size)}; {len(found)} of {self.cells} cells"
        met = 1e3 * worst.get("median", math.inf) <= self.most
        return Row(self.target, text, met, len(found) >= self.cells)


def error(cell: dict) -> float:
    """Relative to float64; zero, if it was not compared."""
    return cell.get("error") or 0.0


def where(size: tuple) -> str:
    """The size, in words."""
    return ", ".join(str(x) for x in size if x is not None)


def bare(num: int, dim: int, least: float) -> Ratio:
    """How fast ours are beside the attention call alone, as wide as `rescale`."""
    target, size = f"float16, D = C = {dim}, N = {num}", (num, dim, dim, "float16", "forward")
    target += f": the best of ours ≥ {least} of bare attention"
    return Ratio(target, "headline", [BARE], OURS, 1, lambda *x: x == size, least)


def keops(dtype: str, what: str, least: float, errors: float) -> Ratio:
    """Beside the fastest of ours that is precise enough."""
    words = {1 / 4: "a quarter of", 2: "twice"}[errors]
    target = f"{dtype}, D ≥ 16, {what}: ≥ {least:g} × PyKeOps, at no more than {words} its error"
    cells = sum(dim >= 16 for dim, _ in GPU.pairs) * len(GPU.nums)
    sizes = lambda *x: x[1] >= 16 and x[3:] == (dtype, what)  # noqa: E731
    return Ratio(target, "headline", ["PyKeOps"], OURS, cells, sizes, least, errors=errors)


def digits(dim: int, channels: int, least: float) -> Ratio:
    """What `auto` takes for float32's digits, beside KeOps."""
    target, size = f"float32 by `auto`, N = 65536, D = {dim}, C = {channels}", (65536, dim, channels)
    target += f": ≥ {least:g} × PyKeOps, at no more than twice its error"
    is_size = lambda *x: x == (*size, "float32", "forward")  # noqa: E731
    return Ratio(target, "headline", ["PyKeOps"], ["auto in float32"], 1, is_size, least, errors=2.0)


STEP = range(256, 16385)  # points of a training step
ALL, FEW = 4 * len(GPU.pairs) * len(GPU.nums), 2 * len(GPU.pairs) * len(GPU.few)  # cells
STEPS_OF_MMD = 2 * sum(num in STEP for num in GPU.mmd)
SLOWER = "`auto` never slower than dense or blocked JAX, in all headline cells"
FEW_POINTS = "few points: `auto` ≥ 1 × dense or blocked JAX in the geometric mean"
MMD = "MMD step: ≥ 1.6 × dense JAX of the same precision in the geometric mean over N = 256 … 16384, none below 0.9"
NARROW = "float16, N = 16384, D ≤ 16, C = 1: `auto` ≤ 0.35 ms"
PLANE = "a million points in the plane: `auto` ≤ 10 ms"
TARGETS = [
    *(bare(num, dim, least) for num, least in ((16384, 0.85), (65536, 0.95)) for dim in (32, 64)),
    Limit(NARROW, "headline", 4, lambda *x: x[0] == 16384 and x[1] <= 16 and x[4] == "forward", 0.35),
    keops("float16", "forward", 2.0, 1 / 4),
    keops("float16", "gradients", 3.0, 1 / 4),
    keops("float32", "gradients", 3.0, 2),
    *(digits(*of) for of in ((3, 1, 1.0), (16, 1, 1.6), (32, 32, 4.0), (64, 64, 6.0), (128, 1, 6.0))),
    Ratio(SLOWER, "headline", JAX_NATIVE, ["auto"], ALL),
    Ratio(FEW_POINTS, "few", JAX_NATIVE, ["auto"], FEW, floor=0.0),
    Ratio(MMD, "mmd", DENSE, ["mmd_squared"], STEPS_OF_MMD, lambda *x: x[0] in STEP, 1.6, floor=0.9, peers=2.0),
    Limit(PLANE, "waves", 1, lambda *x: x[:2] == (GPU.samples, 2), 10.0),
]


def targets(data: dict) -> list[Row]:
    """All of them."""
    rows = (target.row(data) for target in TARGETS)
    return [tests_row(data), *rows, first_calls_row(data), memory_row(data), density_row(data)]


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


def first_calls_row(data: dict) -> Row:
    """Of ours, in all steps."""
    target, ours = f"no first call above {FIRST_CALL} s", (*OURS, *OURS_ELSEWHERE)
    steps = {name: [c for c in cells(data, name) if c.get("method") in ours and "first_call" in c] for name in STEPS}
    found = [(c["first_call"], name, c) for name, of in steps.items() for c in of]
    if not found:
        return Row(target)
    seconds, name, c = max(found, key=lambda x: x[0])
    text = f"{seconds:.1f} s at worst, by {c['method']} at {where(tuple(c.get(key) for key in SIZE))}, of {name}"
    whole = all(data["steps"].get(name, {}).get("complete") for name in STEPS)
    return Row(target, text, seconds <= FIRST_CALL, whole)


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
