"""What `first_light` aims at: each target beside what was measured, and whether that meets it."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from .. import plots
from ..plots import by_method, exponents, fastest, having
from ..rivals import BARE, JAX_NATIVE
from ..rivals import OURS as METHODS
from .steps import GPU, OWN_WIDTH, PRECISIONS

OURS = (*METHODS, "float32", "cudnn")
BESIDE_BARE = {(16384, 32): 0.85, (16384, 64): 0.85, (65536, 32): 0.95, (65536, 64): 0.95}  # N, D = C: of its speed
BESIDE_KEOPS = {"forward": 2.0, "gradients": 3.0}
FEW = 1.0
MMD, MMD_SIZES, EXPONENT, SECONDS = 2.0, range(1024, 16385), 1.1, 2.3
Methods = dict[str, dict[str, Any]]  # cells by name
Table = dict[tuple, Methods]  # by N, D, C, dtype, and forward or gradients
Pairs = dict[tuple, tuple[dict[str, Any], dict[str, Any] | None]]  # a rival's cell and ours, by size


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


def targets(data: dict) -> list[Row]:
    """All of them."""
    table = headline(data)
    return [
        tests_row(cells(data, "tests"), complete(data, "tests")),
        *(bare_row(table, num, dim, least) for (num, dim), least in BESIDE_BARE.items()),
        *(keops_row(table, dtype, what) for what in BESIDE_KEOPS for dtype in ("float16", "float32")),
        jax_row(table),
        few_row(cells(data, "few")),
        mmd_row(cells(data, "mmd")),
        memory_row(cells(data, "memory"), complete(data, "memory")),
        density_row(cells(data, "densities")),
    ]


def cells(data: dict, step: str) -> plots.Cells:
    """What a step has found."""
    return data["steps"].get(step, {}).get("cells", [])


def complete(data: dict, step: str) -> bool:
    """Whether it is at its end."""
    return data["steps"].get(step, {}).get("complete", False)


def headline(data: dict) -> Table:
    """The step's cells, those of all groups together."""
    return by_method([c for c in cells(data, "headline") if "method" in c], "n", "d", "c", "dtype", "what")


def tests_row(found: plots.Cells, is_complete: bool) -> Row:
    """Those that were ended by a crash have failed."""
    target = "GPU tests: all pass"
    if not found:
        return Row(target)
    failed = sum("failed" in c for c in found)
    passed, skipped = (len(having(found, outcome=x)) for x in ("passed", "skipped"))
    return Row(target, f"{passed} passed, {failed} failed, {skipped} skipped", not failed, is_complete)


def bare_row(table: Table, num: int, dim: int, least: float) -> Row:
    """How fast ours are beside the attention call alone, as wide as `rescale`; and that as wide as the points."""
    target = f"float16, D = C = {dim}, N = {num}: the best of ours ≥ {least} of bare attention"
    methods = table.get((num, dim, dim, "float16", "forward"), {})
    bare, ours, own = (fastest(methods, names) for names in ([BARE], OURS, [OWN_WIDTH]))
    if bare is None or not methods.keys() & set(OURS):
        return Row(target)
    if ours is None:
        return Row(target, "none of ours ran", False)
    ratio = bare["median"] / ours["median"]
    text = f"{ratio:.2f}: {ours['method']} {milliseconds(ours)}, bare {milliseconds(bare)}"
    text += f"; {own['median'] / ours['median']:.2f} of it at its own width, {milliseconds(own)}" if own else ""
    return Row(target, text, ratio >= least)


def keops_row(table: Table, dtype: str, what: str) -> Row:
    """Beside the fastest of ours that has at most a quarter of its error."""
    least = BESIDE_KEOPS[what]
    target = f"{dtype}, D ≥ 16, {what}: ≥ {least:g} × PyKeOps, at no more than a quarter of its error"
    found = {}
    for size, methods in table.items():
        rival = fastest(methods, ["PyKeOps"])
        if rival and size[1] >= 16 and size[3:] == (dtype, what):
            exact = [x for x in OURS if methods.get(x, {}).get("error", float("inf")) <= rival["error"] / 4]
            found[size] = rival, fastest(methods, exact)
    of = sum(dim >= 16 for dim, _ in GPU.pairs) * len(GPU.nums)
    return worst_row(target, found, least, of, "none of ours has that")


def jax_row(table: Table) -> Row:
    """`auto` beside the faster of JAX's own; if it did not run and one of those did, that counts as slower."""
    target = "`auto` never slower than dense or blocked JAX, in all headline cells"
    of = 4 * len(GPU.pairs) * len(GPU.nums)
    return worst_row(target, pairs(table, JAX_NATIVE, "auto"), 1, of, "`auto` did not run")


def few_row(found: plots.Cells) -> Row:
    """`auto` beside the faster of JAX's own, in the geometric mean."""
    target = f"few points: `auto` ≥ {FEW:g} × dense or blocked JAX in the geometric mean"
    sizes = by_method([c for c in found if "method" in c], "n", "d", "c", "what")
    return mean_row(target, pairs(sizes, JAX_NATIVE, "auto"), FEW, 2 * len(GPU.pairs) * len(GPU.few))


def pairs(table: Table, rivals: Iterable[str], own: str) -> Pairs:
    """Of each size the fastest of the rivals, and ours: None if it did not run."""
    return {
        size: (rival, fastest(methods, [own]))
        for size, methods in table.items()
        if own in methods and (rival := fastest(methods, rivals))
    }


def mean_row(target: str, found: Pairs, least: float, of: int) -> Row:
    """By the geometric mean of the ratios of a rival's time to ours."""
    if not found:
        return Row(target)
    ratios = [rival["median"] / ours["median"] for rival, ours in found.values() if ours]
    if len(ratios) < len(found):
        return Row(target, "ours did not run", False)
    mean = plots.geometric_mean(ratios)
    text = f"{mean:.2f}x, {min(ratios):.2f}x at worst; {len(ratios)} of {of} cells"
    return Row(target, text, mean >= least, len(ratios) >= of)


def worst_row(target: str, found: Pairs, least: float, of: int, none: str) -> Row:
    """By the smallest ratio of a rival's time to ours; where there is none of ours, it is nought."""
    ratios = {size: rival["median"] / ours["median"] if ours else 0.0 for size, (rival, ours) in found.items()}
    if not ratios:
        return Row(target)
    size, ratio = min(ratios.items(), key=lambda item: item[1])
    where = "N = {}, D = {}, C = {}, {}, {}".format(*size)
    text = f"{ratio:.2f}x at worst" if ratio else none
    return Row(target, f"{text}, {where}; {len(ratios)} of {of} cells", ratio >= least, len(ratios) >= of)


def mmd_row(found: plots.Cells) -> Row:
    """In the geometric mean."""
    target = f"MMD step: ≥ {MMD:g} × dense JAX in the geometric mean over N = 1024 … 16384"
    sizes = by_method([c for c in found if c["n"] in MMD_SIZES and "method" in c], "n", "d")
    of = 2 * sum(num in MMD_SIZES for num in GPU.mmd)
    return mean_row(target, pairs(sizes, ["dense JAX"], "mmd_squared"), MMD, of)


def memory_row(found: plots.Cells, is_complete: bool) -> Row:
    """Of every method."""
    target = f"memory linear in N: exponent ≤ {EXPONENT}"
    peaks = [c for c in found if "peak" in c]
    fits = exponents(peaks, "peak")
    if not fits:
        return Row(target)
    if failed := [c["method"] for c in found if "failed" in c and "method" in c]:
        return Row(target, f"{failed[0]} did not run", False)
    largest = max(peaks, key=lambda c: c["peak"])
    text = ", ".join(f"{method} {x:.2f}" for method, x in fits.items())
    text += f"; {largest['peak']:.0f} MiB at N = {largest['n']}"
    return Row(target, text, max(fits.values()) <= EXPONENT, is_complete)


def density_row(found: plots.Cells) -> Row:
    """By the fastest precision."""
    target = f"SD-KDE of 1M samples, D = 16, 131k queries: below {SECONDS} s"
    methods = {c["method"]: c for c in having(found, figure="SD-KDE")}
    best = fastest(methods, PRECISIONS)
    if best is None:
        return Row(target, "did not run", False) if len(methods) == len(PRECISIONS) else Row(target)
    timed = [c for c in methods.values() if "median" in c]
    text = "; ".join(f"{c['method']} {c['median']:.2f} s, error {c['error']:.1e}" for c in timed)
    return Row(target, text, best["median"] < SECONDS)


def milliseconds(cell: dict) -> str:
    """Of a cell."""
    return plots.milliseconds(cell) + " ms"
