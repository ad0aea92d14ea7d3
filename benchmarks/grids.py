"""Which Gauss sums the suites measure: the paper's figures, `auto` against JAX's own, and a quick look.

The paper's sizes are those of a GPU; on a CPU they shrink, as the plots say.
"""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from . import plots
from .plots import by_method, fastest, geometric_mean, having, milliseconds, pivot, prose, span, table, two
from .rivals import BARE, JAX_NATIVE, OTHERS, OURS, Problem, calls, limit, rates
from .study import Cell, Cells

HEADLINE = [(3, 1), (16, 1), (32, 32), (64, 64), (128, 1)]  # D, C
WHAT = ("forward", "gradients")
TOLERANCE = 2e-2  # an error beyond it is a bug, not a measurement: half precision has 7e-3 in gradients at most
Curve: TypeAlias = tuple[str, Problem, tuple[str, ...], dict[str, int]]  # figure, problem, what, and its series
EVERYTHING = [*OURS, *JAX_NATIVE, *OTHERS, BARE]
FIGURES: dict[tuple[int, int], tuple[str, ...]] = {  # of the paper, over N: what is computed, by D and C
    (3, 1): ("forward",),
    (32, 32): ("forward",),
    (32, 1): WHAT,
}


def cell(figure: str, problem: Problem, what: str, names: list[str], **series: object) -> Cell:
    """One problem for the methods, in a series of cells that have what `series` names in common."""
    about = {"figure": figure, "n": problem.num, "d": problem.dim, "c": problem.channels, "batch": problem.batch}
    return Cell(
        about=about | {"dtype": problem.dtype, "what": what},
        methods=calls(names, problem, what),
        error=lambda results: problem.error(what, results),
        tolerance=TOLERANCE,
        series=f"{figure}, {what}, {problem.dtype}, {series}",
        also=lambda results: {"error of terms": problem.error_of_terms(what, results)},
    )


def quick(device: str) -> Iterator[Cell]:
    """Whether jaxgauss is worth a try on this machine: the paper's figures in small."""
    for (dim, channels), what, num in itertools.product(((3, 1), (32, 32)), WHAT, (256, 1024, 4096)):
        problem = Problem(num, dim, channels, dtype=dtypes(device)[0], device=device)
        names = [name for name in _curves(device) if name not in ("prescale", "reweight")]
        yield cell(f"N, D = {dim}, C = {channels}", problem, what, names, d=dim, c=channels)


def figures(dtype: str, device: str, nums: Sequence[int], dims: Sequence[int], batch: int, num: int) -> Iterator[Curve]:
    """The paper's figures in a dtype: over N, of four problems at a time, and over D, of a batch of N = `num`."""
    for ((dim, channels), whats), size in itertools.product(FIGURES.items(), nums):
        problem = Problem(size, dim, channels, 4, dtype, device)
        yield f"N, D = {dim}, C = {channels}", problem, whats, {"d": dim, "c": channels}
    for dim in dims:
        yield "D", Problem(num, dim, 1, batch, dtype, device), WHAT, {}


def paper(device: str) -> Iterator[Cell]:
    """How far we are from every rival, and from what the device could do: every figure of the paper."""
    gpu, curves, all_dtypes = device == "cuda", _curves(device), dtypes(device)
    for dtype, (dim, channels), what in itertools.product(all_dtypes, HEADLINE, WHAT):
        problem = Problem(65536 if gpu else 8192, dim, channels, 1, dtype, device)
        names = EVERYTHING if what == "forward" else curves
        yield cell("headline", problem, what, names, d=dim, c=channels)
    for num in (4096, 8192, 16384, 32768):
        problem = Problem(num, 16, 1, 1, all_dtypes[0], device)
        yield cell("memory", problem, "gradients", ["auto", "rescale", "prescale", "reweight"])
    nums = [2**i for i in range(8, 18 if gpu else 13)]
    dims = (1, 3, 8, 16, 32, 64, 128, 256) if gpu else (1, 3, 8, 16, 32, 64, 128)
    for dtype in all_dtypes:
        for figure, problem, whats, series in figures(dtype, device, nums, dims, *((64, 16384) if gpu else (2, 4096))):
            for what in whats:
                yield cell(figure, problem, what, curves, **series)


def jax(device: str) -> Iterator[Cell]:
    """Whether `auto` is ever slower than JAX's own sums, from 16 points to 16384."""
    names = ["auto", "rescale", *JAX_NATIVE]
    for what in WHAT:
        yield cell("fixed cost", Problem(16, 8, 1, device=device), what, names)
    for num, dim, wide, what in itertools.product((64, 256, 1024, 4096, 16384), (3, 16, 64, 128), (False, True), WHAT):
        channels = dim if wide else 1
        yield cell("grid", Problem(num, dim, channels, device=device), what, names, d=dim, c=channels)


def dtypes(device: str) -> tuple[str, ...]:
    """What is measured first is what the arguments of most are."""
    return ("float16", "float32") if device == "cuda" else ("float32",)


def all_rates(device: str) -> dict:
    """Of the device, for the physical limit."""
    return {"rates": {dtype: rates(device, dtype) for dtype in dtypes(device)}}


def _curves(device: str) -> list[str]:
    """What is drawn; split points, which are slow without tensor cores, are only in the table of a CPU."""
    return [name for name in EVERYTHING if name != "float16x2" or device == "cuda"]


def largest(cells: Cells, dtype: str = "float32") -> dict[tuple, dict[str, dict]]:
    """The cells of the headline, or those of the most points, by what is computed, D and C; and by method."""
    cells = having(cells, dtype=dtype)
    found = by_method(having(cells, figure="headline") or cells, "what", "d", "c", "n")
    return {key[:3]: methods for key, methods in sorted(found.items())}


def times(cells: Cells, dtype: str = "float32", beside: bool = False) -> str:
    """Milliseconds of all methods at the largest size, forward and with gradients; and how many times `auto`'s."""
    order, tables = list(plots.COLORS), []

    def text(c: dict) -> str:
        is_beside = beside and "median" in c and "median" in (c["auto"] or {}) and c["method"] != "auto"
        return milliseconds(c) + (f" ({two(c['median'] / c['auto']['median'])}x)" if is_beside else "")

    for what in WHAT:
        methods = [x for key, x in largest(cells, dtype).items() if key[0] == what]
        found: Cells = [c | {"auto": x.get("auto")} for x in methods for c in x.values()]
        found.sort(key=lambda c: order.index(c["method"]))
        if found:
            tables.append(pivot(f"{what}: D, C", found, "{method}", "{d}, {c}", text) + "\n")
    return "".join(tables)


def ratios(data: dict, *methods: str, dtype: str = "float32") -> dict[str, list[float]]:
    """How many times the time of `auto` the fastest of these methods takes, at the largest size."""
    found: dict[str, list[float]] = {what: [] for what in WHAT}
    for (what, d, c), cells in largest(data["cells"], dtype).items():
        timed = {name: cell["median"] for name, cell in cells.items() if "median" in cell}
        if "rates" in data:
            timed[plots.LIMIT] = limit(Problem(cells["auto"]["n"], d, c), what, data["rates"][dtype])
        if timed.keys() >= set(methods):
            found[what].append(min(timed[name] for name in methods) / timed["auto"])
    return found


def everything(data: dict) -> str:
    """All methods at the largest size of the paper."""
    cells = data["cells"]
    worst = {name: max(c["error"] for c in having(cells, method=name)) for name in ("auto", "rescale", "dense JAX")}
    ours, dense = map(plots.power, (max(worst["auto"], worst["rescale"]), worst["dense JAX"]))
    memory = {c["method"]: c for c in having(cells, figure="memory", n=32768)}
    return times(cells) + prose(
        "The physical limit is the time of the exponentials or of the products alone, at the rates that the same run",
        f"measured. It is {span(itertools.chain(*ratios(data, plots.LIMIT).values()))} of `auto`'s time. The worst",
        f"relative error in float32 is {ours} for `auto` and `rescale`, and {dense} for the dense formula.",
        f"A value with all gradients at D = 16, N = 32768 needs {plots.mebibytes(memory['auto'])} by `auto`,",
        f"at most {max(c['mib'] for c in memory.values()):.0f} MiB by another method of ours.",
    )


def rivals(data: dict, dtype: str = "float32") -> str:
    """How many times the time of `auto` the others take."""
    names = {
        "dense or blocked JAX, the faster": JAX_NATIVE,
        "`torch.compile`": ["torch.compile"],
        "PyKeOps": ["PyKeOps"],
        "PyTorch, eager": ["torch eager"],
        "OTT-JAX, online": ["OTT online"],
        "scikit-learn": ["scikit-learn"],
        "PyTorch's bare attention call": [BARE],
    }
    found = {shown: ratios(data, *methods, dtype=dtype) for shown, methods in names.items()}
    rows = [[shown, *(span(x[what]) for what in WHAT)] for shown, x in found.items()]
    return table([["time ÷ time of `gauss_sum`", "forward", "with gradients"], *rows])


def report(data: dict) -> str:
    """Of every dtype, times, ratios and memory."""
    cells = data["cells"]
    parts = [f"{x}\n\n{times(cells, x, True)}{rivals(data, x)}" for x in dict.fromkeys(c["dtype"] for c in cells)]
    if memory := having(cells, figure="memory"):
        parts.append(pivot("gradients", memory, "{method}", "N = {n}", plots.mebibytes))
    return "\n".join(parts)


def ratio_table(data: dict, what: str) -> dict[tuple, float]:
    """How many times `auto` the faster of dense and blocked JAX takes, by D, C and N."""
    found = by_method([c for c in having(data["cells"], figure="grid", what=what) if "median" in c], "d", "c", "n")
    best = {key: fastest(methods, JAX_NATIVE) for key, methods in found.items()}
    return {key: cell["median"] / found[key]["auto"]["median"] for key, cell in best.items() if cell}


def grid(data: dict) -> str:
    """`auto` beside the faster of dense and blocked JAX, in one environment or in two."""
    means, least = _of_grid(data)
    µs = {
        c["method"]: f"{1e6 * c['median']:.0f} µs" for c in having(data["cells"], figure="fixed cost", what="forward")
    }
    texts = [
        f"Over the whole grid `auto` is {means[0]} times as fast in the geometric mean: {means[1]} forward, {means[2]}",
        f"with gradients. From N = 4096 on these are {means[3]} and {means[4]}, and the smallest ratio there is",
        f"{least}. A call at N = 16 under `jit` takes {µs['auto']}, and {µs['rescale']} by way of PyTorch.",
    ]
    if "beside" in data:
        (means, _), versions = _of_grid(data["beside"]), data["beside"]["versions"]
        texts += [
            f"With jax {versions['jax']} (Python {versions['python']}), measured in turns with it, `auto` is",
            f"{means[0]} times as fast: {means[1]} forward, {means[2]} with gradients,",
            f"{means[3]} and {means[4]} from N = 4096 on.",
        ]
    return prose(*texts)


def _of_grid(data: dict) -> tuple[list[str], str]:
    """Geometric means of ratios: of all, forward, with gradients, these from N = 4096 on; and the least there."""
    tables = [ratio_table(data, what) for what in WHAT]
    every = [list(x.values()) for x in tables]
    large = [[r for (_, _, num), r in x.items() if num >= 4096] for x in tables]
    means = [f"{geometric_mean(x):.2f}" for x in (every[0] + every[1], *every, *large)]
    return means, f"{min(large[0] + large[1]):.2f}"


def draw(data: dict, path: Path) -> None:
    """Times, and memory and error, over N and over D."""

    def title(c: dict) -> str:
        where = f"N = {c['n']}, C = {c['c']}" if c["figure"] == "D" else f"D = {c['d']}, C = {c['c']}"
        return f"{c['what']}: {where}" + (f", batch {c['batch']}" if c["batch"] > 1 else "")

    drawn = [c for c in data["cells"] if c["figure"] not in ("headline", "memory")]
    smaller = data["device"] == "cpu" and data["suite"] == "paper"
    for dtype in dict.fromkeys(c["dtype"] for c in drawn):
        figures = plots.titled(having(drawn, dtype=dtype), title)
        note = dtype + "; sizes below the paper's, which are a GPU's" * smaller
        plots.panels(data, path, f"_{dtype}_time", [("median", figures)], note)
        plots.panels(data, path, f"_{dtype}_memory", [("mib", figures), ("error", figures)], note)


def draw_ratios(data: dict, path: Path) -> None:
    """The ratios of times over N: a line for every D and C."""
    figures = {}
    for what in WHAT:
        found = sorted(ratio_table(data, what).items())
        title = f"{what}: {geometric_mean([x for _, x in found]):.2f}× in the geometric mean"
        figures[title] = [{"method": f"D = {d}, C = {c}", "n": n, "ratio": x} for (d, c, n), x in found]
    plots.panels(data | {"rates": {}}, path, "", [("ratio", figures)], "float32: the faster of dense and blocked JAX")
