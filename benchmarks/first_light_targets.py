"""What `first_light` aims at: each target beside what was measured, and whether that meets it."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from . import plots
from .first_light_steps import GPU, OWN_WIDTH, PRECISIONS
from .rivals import BARE, JAX_NATIVE
from .rivals import OURS as METHODS

OURS = (*METHODS, "float32", "cudnn")
BESIDE_BARE = {(16384, 32): 0.85, (16384, 64): 0.85, (65536, 32): 0.95, (65536, 64): 0.95}  # N, D = C: of its speed
BESIDE_KEOPS = {"forward": 2.0, "gradients": 3.0}
MMD, MMD_SIZES, EXPONENT, SECONDS = 2.0, range(1024, 16385), 1.1, 2.3
Cells = list[dict[str, Any]]
Size = tuple[int, int, int, str, str]  # N, D, C, dtype, forward or gradients
Table = dict[Size, dict[str, dict[str, Any]]]  # cells by size and method


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
        mmd_row(cells(data, "mmd")),
        memory_row(cells(data, "memory"), complete(data, "memory")),
        density_row(cells(data, "densities")),
    ]


def cells(data: dict, step: str) -> Cells:
    """What a step has found."""
    return data["steps"].get(step, {}).get("cells", [])


def complete(data: dict, step: str) -> bool:
    """Whether it is at its end."""
    return data["steps"].get(step, {}).get("complete", False)


def headline(data: dict) -> Table:
    """The step's cells, those of all groups together."""
    table: Table = {}
    for c in cells(data, "headline"):
        if "method" in c:
            table.setdefault((c["n"], c["d"], c["c"], c["dtype"], c["what"]), {})[c["method"]] = c
    return table


def fastest(methods: dict[str, dict], names: Iterable[str]) -> dict | None:
    """The cell of the one of them that takes the least time, if any was timed."""
    return min((methods[x] for x in names if "median" in methods.get(x, {})), key=lambda c: c["median"], default=None)


def tests_row(found: Cells, is_complete: bool) -> Row:
    """Those that were ended by a crash have failed."""
    target = "GPU tests: all pass"
    if not found:
        return Row(target)
    failed = sum("failed" in c for c in found)
    passed, skipped = (sum(c.get("outcome") == x for c in found) for x in ("passed", "skipped"))
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
    ratios = []
    for size, methods in table.items():
        keops = fastest(methods, ["PyKeOps"])
        if keops and size[1] >= 16 and size[3:] == (dtype, what):
            exact = [name for name in OURS if methods.get(name, {}).get("error", np.inf) <= keops["error"] / 4]
            ours = fastest(methods, exact)
            ratios.append((keops["median"] / ours["median"] if ours else 0.0, size))
    if not ratios:
        return Row(target)
    ratio, size = min(ratios)
    text = f"{ratio:.2f}x at worst, {where(size)}" if ratio else f"none of ours has that, {where(size)}"
    of = sum(dim >= 16 for dim, _ in GPU.pairs) * len(GPU.nums)
    return Row(target, f"{text}; {len(ratios)} of {of} cells", ratio >= least, len(ratios) >= of)


def jax_row(table: Table) -> Row:
    """`auto` beside the faster of JAX's own; if it did not run and one of those did, that counts as slower."""
    target = "`auto` never slower than dense or blocked JAX, in all headline cells"
    ratios = []
    for size, methods in table.items():
        rival = fastest(methods, JAX_NATIVE)
        if rival and "auto" in methods:
            ratios.append((rival["median"] / methods["auto"].get("median", np.inf), size))
    if not ratios:
        return Row(target)
    (ratio, size), of = min(ratios), 4 * len(GPU.pairs) * len(GPU.nums)
    text = f"{ratio:.2f}x at worst, {where(size)}" if ratio else f"`auto` did not run, {where(size)}"
    return Row(target, f"{text}; {len(ratios)} of {of} cells", ratio >= 1, len(ratios) >= of)


def mmd_row(found: Cells) -> Row:
    """In the geometric mean."""
    target = f"MMD step: ≥ {MMD:g} × dense JAX in the geometric mean over N = 1024 … 16384"
    by_size: dict[tuple, dict] = {}
    for c in found:
        if c["n"] in MMD_SIZES and "method" in c:
            by_size.setdefault((c["n"], c["d"]), {})[c["method"]] = c
    both = [x for x in by_size.values() if "median" in x.get("dense JAX", {}) and "mmd_squared" in x]
    if not both:
        return Row(target)
    if any("median" not in x["mmd_squared"] for x in both):
        return Row(target, "ours did not run", False)
    mean = plots.geometric_mean([x["dense JAX"]["median"] / x["mmd_squared"]["median"] for x in both])
    of = 2 * sum(num in MMD_SIZES for num in GPU.mmd)
    return Row(target, f"{mean:.2f}x; {len(both)} of {of} cells", mean >= MMD, len(by_size) >= of)


def exponents(found: Cells) -> dict[str, float]:
    """Of N in the peak of memory, by method, where there are two sizes."""
    peaks: dict[str, dict[int, float]] = {}
    for c in found:
        if "peak" in c:
            peaks.setdefault(c["method"], {})[c["n"]] = c["peak"]
    many = {method: of for method, of in peaks.items() if len(of) > 1}
    return {m: float(np.polyfit(np.log(list(of)), np.log(list(of.values())), 1)[0]) for m, of in many.items()}


def memory_row(found: Cells, is_complete: bool) -> Row:
    """Of every method."""
    target = f"memory linear in N: exponent ≤ {EXPONENT}"
    fits = exponents(found)
    if not fits:
        return Row(target)
    if failed := [c["method"] for c in found if "failed" in c and "method" in c]:
        return Row(target, f"{failed[0]} did not run", False)
    text = ", ".join(f"{method} {x:.2f}" for method, x in fits.items())
    largest = max((c for c in found if "peak" in c), key=lambda c: c["peak"])
    text += f"; {largest['peak']:.0f} MiB at N = {largest['n']}"
    return Row(target, text, max(fits.values()) <= EXPONENT, is_complete)


def density_row(found: Cells) -> Row:
    """By the fastest precision."""
    target = f"SD-KDE of 1M samples, D = 16, 131k queries: below {SECONDS} s"
    methods = {c["method"]: c for c in found if c["figure"] == "SD-KDE"}
    best = fastest(methods, PRECISIONS)
    if best is None:
        return Row(target, "did not run", False) if len(methods) == len(PRECISIONS) else Row(target)
    timed = [c for c in methods.values() if "median" in c]
    text = "; ".join(f"{c['method']} {c['median']:.2f} s, error {c['error']:.1e}" for c in timed)
    return Row(target, text, best["median"] < SECONDS)


def where(size: Size) -> str:
    """Which cell."""
    num, dim, channels, dtype, what = size
    return f"N = {num}, D = {dim}, C = {channels}, {dtype}, {what}"


def milliseconds(cell: dict) -> str:
    """Of a cell."""
    return plots.milliseconds(cell) + " ms"
