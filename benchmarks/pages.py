"""The measured figures of README and docs, from the JSON files alone: `python -m benchmarks.pages` writes them anew.

A page marks where a block of figures stands: `<!-- figures: everything -->` … `<!-- end -->`. What is between is made
by the function of that name below, so that no number is typed. The tests compare the pages with what it gives.
"""

import functools
import json
import re
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np

from . import clouds as hostile
from . import few_dimensions as waves
from . import load
from . import neighbours as solvers
from . import resampling as tests
from .kernels import ratios as kernel_ratios
from .kernels import report as kernel_table
from .plots import COLORS, LIMIT, applications_table, geometric_mean, mebibytes, milliseconds, ratio_table, table
from .precision import TAUS, worst
from .rivals import BARE, JAX_NATIVE, Problem, limit

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
RESULTS = ROOT / "benchmarks" / "results"
PAPER = "2026-11-24_cpu_3cd43fb_paper"
GRID = "2026-11-24_cpu_3cd43fb_jax"
APPLICATIONS = "2026-11-24_cpu_3cd43fb_mmd"
SCALING = "2026-11-21_cpu_5523495_scaling"
LOAD = "2026-11-21_cpu_5523495_load"
PRECISION = "2026-11-22_cpu_6353f0c_precision"
KERNELS = "2026-11-22_cpu_1a6a991_kernels"
RESAMPLING = "2026-11-23_cpu_89e551b_resampling"
NEIGHBOURS = "2026-11-23_cpu_060fc2f_neighbours"
CALLS = "2026-11-23_cpu_af68f1d_calls"
FEW_DIMENSIONS = "2026-11-26_cpu_6517411_few_dimensions"
CLOUDS = "2026-11-26_cpu_5e159cd_clouds"
LIMITS = "2026-11-23_cpu_af68f1d_limits"
BLOCK = re.compile(r"(<!-- figures: (\w+) -->\n)(.*?)(<!-- end -->)", re.S)
WHAT = ("forward", "gradients")


def everything() -> str:
    """All methods at the largest size, forward and with gradients."""
    found, text = _headline(), ""
    for what in WHAT:
        columns = {key[1:]: cells for key, cells in sorted(found.items()) if key[0] == what}
        rows = [[f"{what}: D, C", *(f"{d}, {c}" for d, c in columns)]]
        for name in COLORS:
            times = [milliseconds(cells.get(name)) or "–" for cells in columns.values()]
            rows += [[name, *times]] if set(times) != {"–"} else []
        text += table(rows) + "\n"
    cells = _read(PAPER)["cells"]
    ours, dense = (
        _power(max(c["error"] for c in cells if c["method"] in names))
        for names in (("auto", "rescale"), ("dense JAX",))
    )
    memory = {c["method"]: c for c in cells if _is(c, figure="memory", n=32768)}
    return text + _prose(
        "The physical limit is the time of the exponentials or of the products alone, at the rates that the same run",
        f"measured. It is {_ratios(LIMIT)['both']} of `auto`'s time. The worst relative error in float32 is {ours}",
        f"for `auto` and `rescale`, and {dense} for the dense formula. A value with all gradients at D = 16,",
        f"N = 32768 needs {mebibytes(memory['auto'])} by `auto`,",
        f"at most {max(c['mib'] for c in memory.values()):.0f} MiB by another method of ours.",
    )


def rivals() -> str:
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
    ratios = {shown: _ratios(*methods) for shown, methods in names.items()}
    rows = [[shown, *(x[what] for what in WHAT)] for shown, x in ratios.items()]
    return table([["time ÷ time of `gauss_sum`", "forward", "with gradients"], *rows])


def grid() -> str:
    """`auto` beside the faster of dense and blocked JAX."""
    data = _read(GRID)
    ratios = [ratio_table(data, what, tuple(JAX_NATIVE)) for what in WHAT]
    every = [list(x.values()) for x in ratios]
    large = [[r for (_, _, num), r in x.items() if num >= 4096] for x in ratios]
    means = [f"{geometric_mean(x):.2f}" for x in (every[0] + every[1], *every, *large)]
    fixed = {c["method"]: 1e6 * c["median"] for c in data["cells"] if _is(c, figure="fixed cost", what="forward")}
    return _prose(
        f"Over the whole grid `auto` is {means[0]} times as fast in the geometric mean: {means[1]} forward, {means[2]}",
        f"with gradients. From N = 4096 on these are {means[3]} and {means[4]}, and the smallest ratio there is",
        f"{min(large[0] + large[1]):.2f}. A call at N = 16 under `jit` takes {fixed['auto']:.0f} µs, and",
        f"{fixed['rescale']:.0f} µs by way of PyTorch.",
    )


def applications() -> str:
    """What the sums are for."""
    return applications_table(_read(APPLICATIONS))


def kernels() -> str:
    """Other kernels beside the Gaussian, and PyKeOps."""
    cells = _read(KERNELS)["cells"]
    memory = {(c["kernel"], c["n"]): c["mib"] for c in cells if c["figure"] == "memory"}
    (few, many), names = sorted({n for _, n in memory}), sorted({name for name, _ in memory})
    spans = [" and ".join(f"{memory[name, n]:.0f}" for name in names) for n in (few, many)]
    ours, keops = kernel_ratios(cells, "kernel_sum", "gauss_sum"), kernel_ratios(cells, "PyKeOps", "kernel_sum")
    within = sum(x <= 1.6 for x in ours.values())
    return (
        kernel_table(cells)
        + "\n"
        + _prose(
            f"{within} of these {len(ours)} figures are at most 1.6, and PyKeOps takes {_two(min(keops.values()))} to",
            f"{_two(max(keops.values()))} times as long as `kernel_sum`. A value with all gradients at D = 16",
            f"needs {spans[0]} MiB at N = {few} and {spans[1]} MiB at N = {many} ({' and '.join(names)}).",
        )
    )


def resampling() -> str:
    """Tests by resampling beside those of other libraries."""
    cells = _read(RESAMPLING)["cells"]
    said: dict[bool, list[str]] = {True: [], False: []}
    for (rival, own), (n, ratio) in tests.ratios(cells).items():
        said[ratio >= 1].append(f"{rival} takes {_two(ratio)} times the time of {own} at n = {n}")
    faster, slower = ("; ".join(said[x]) or "nowhere" for x in (True, False))
    pairs = [c for c in cells if c["figure"] == "p-values"]
    apart = max(abs(c["ours"] - c["theirs"]) for c in pairs)
    return (
        tests.power_table(cells)
        + tests.time_table(cells)
        + tests.others_table(cells)
        + "\n"
        + _prose(
            f"Where we are faster: {faster}. Where we are slower: {slower}. By one statistic, with",
            f"{pairs[0]['resamplings']} resamplings each, {len(pairs)} p-values of ours and theirs are at most",
            f"{apart:.3f} apart.",
        )
    )


def losses() -> str:
    """Where others are faster."""
    kernels = {
        what: [x["rescale"]["median"] / x["blocked JAX"]["median"] for key, x in _headline().items() if key[0] == what]
        for what in WHAT
    }
    spans = [f"{_two(min(x))} to {_two(max(x))}" for x in kernels.values()]
    text = _prose(
        "- **The attention kernel on AMD's CPUs.** PyTorch's kernel, `rescale`, takes",
        f"{spans[0]} times as long as our blocked JAX sum forward, and {spans[1]} times with gradients. `auto`",
        "therefore avoids it there.",
    )
    ratios = {what: ratio_table(_read(GRID), what, tuple(JAX_NATIVE)) for what in WHAT}
    slower = sorted((r, n, d, what) for what, x in ratios.items() for (d, _, n), r in x.items() if r < 1)
    if slower:
        least, num, dim, what = slower[0]
        nums, dims = (sorted({x[i] for x in slower}) for i in (1, 2))
        text += _prose(
            f"- **Few wide points.** In {len(slower)} of {sum(map(len, ratios.values()))} cells of the grid, N from",
            f"{nums[0]} to {nums[-1]} and D from {dims[0]} to {dims[-1]}, dense or blocked JAX needs less time than",
            f"`auto`; the least is {least:.2f} of it, at N = {num} and D = {dim}, {what}.",
        )
    densities = {c["method"]: c for c in _read(APPLICATIONS)["cells"] if _is(c, figure="density", n=1000, d=3)}
    if densities["kde_logpdf"]["median"] > densities["dense JAX"]["median"]:
        ours, dense = (milliseconds(densities[name]) for name in ("kde_logpdf", "dense JAX"))
        text += _prose(
            f"- **Few densities.** The log-density of 1000 samples at 2000 points takes {ours} ms;",
            f"dense JAX takes {dense} ms.",
        )
    return text + _prose(
        "- **Half precision on a CPU.** It is made for tensor cores. Here `float16x2` takes",
        f"{_ratios('float16x2')['forward']} times as long as `auto`.",
    )


def precision() -> str:
    """The worst errors."""
    cells, names = _read(PRECISION)["cells"], ("float16", "float16x2", "bfloat16", "bfloat16x2")
    rows = [["worst error", *(f"`{name}`" for name in names)]]
    measured = {(c["what"], c["precision"]) for c in cells}

    def guarded(text: str, what: str, taus: tuple[float, ...]) -> None:
        errors = [_power(worst(cells, what, name, taus)) if (what, name) in measured else "" for name in names]
        rows.append([text, *errors])

    def by_itself(text: str, method: str) -> None:
        chosen = [c for c in cells if _is(c, what="sum", method=method, guard=False, offset=0.0, tau=TAUS[3])]
        errors = [np.max([c["error"] for c in chosen if c["precision"] == name]) for name in names]
        rows.append([text, *(_power(error) if error < 0.9 else "all lost" for error in errors)])  # NaN: lost, too

    guarded("`gauss_sum`, τ ≤ 10", "sum", TAUS[:3])
    guarded("`gauss_sum`, τ = 100", "sum", TAUS[3:4])
    by_itself("`rescale` by itself, τ = 100, not shifted", "rescale")
    by_itself("`reweight` (Algorithm 2), τ = 100, not shifted", "reweight")
    by_itself("`prescale` (Algorithm 1), τ = 100, not shifted", "prescale")
    guarded("gradient of the queries, τ ≤ 10", "gradient", TAUS[:3])
    guarded("gradient of the queries, τ = 100", "gradient", TAUS[3:4])
    return table(rows)


def wide() -> str:
    """Wide points and many channels beside the blocked JAX sum."""
    cells = [c for c in _read(SCALING)["cells"] if c["suite"] == "wide"]
    times = {(c["d"], c["c"], c["what"], c["method"]): c["median"] for c in cells}
    ratios = {what: [times[d, c, w, "blocked JAX"] / t for (d, c, w, m), t in times.items() if (w, m) == (what, "auto")]
              for what in WHAT}  # fmt: skip
    ends = [f"{min(x):.2f} to {max(x):.2f}" for x in ratios.values()]
    return _prose(
        f"At N = M = {cells[0]['n']}, over {len(times) // 4} pairs of D up to {max(c['d'] for c in cells)} and C up to",
        f"{max(c['c'] for c in cells)}, `auto` runs at {ends[0]} times the speed of the blocked JAX sum",
        f"forward, and at {ends[1]} times with gradients. It runs the same sum, after checking that the points",
        "are within [reach](precision.md#the-promise).",
    )


def streamed() -> str:
    """Keys from a file."""
    found = {c["method"]: c for c in _read(SCALING)["cells"] if c["suite"] == "streamed"}
    file = found["streamed"]
    return _prose(
        f"{file['n'] // 10**6} million keys of {file['d']} dimensions from a file, for {file['m']} queries, take",
        f"{file['median']:.1f} s and {file['mib']:.0f} MiB of extra memory. As one sum in memory they take",
        f"{found['in memory']['median']:.1f} s.",
    )


def forward_mode() -> str:
    """Tangents."""
    cells = [c for c in _read(SCALING)["cells"] if c["suite"] == "forward mode"]
    methods = ("forward mode", "blocked JAX", "reverse")
    times = {(c["d"], c["what"], c["method"]): f"{1e3 * c['median']:.1f}" for c in cells}
    keys = dict.fromkeys((c["d"], c["what"]) for c in cells)
    rows = [[str(d), what, *(times.get((d, what, method), "") for method in methods)] for d, what in keys]
    return table([["D", "", "`forward_mode=True`", "blocked JAX", "reverse over reverse"], *rows])


def threads() -> str:
    """Sums from several Python threads."""
    grown = {c["method"]: c for c in _read(SCALING)["cells"] if c["suite"] == "training"}
    text = _prose(
        f"In {grown['rescale']['steps']} jitted training steps by way of PyTorch, resident memory grows by",
        f"{grown['rescale']['grown_mib']:.1f} MiB after the first 500; in XLA by {grown['auto']['grown_mib']:.1f} MiB.",
    )
    return f"{load.report(_read(LOAD)['cells'])}\n{text}"


def calls() -> str:
    """What a call costs outside of jit."""
    data = _read(CALLS)
    times = {(c["checkout"], c["n"], c["call"]): f"{1e6 * c['median']:.0f}" for c in data["cells"]}
    columns = list(dict.fromkeys((checkout, n) for checkout, n, _ in times))
    shown = {"before": data["before"], "now": data["commit"]}
    rows = [["µs", *(f"{shown[checkout]}, N = {n}" for checkout, n in columns)]]
    names = dict.fromkeys(name for _, _, name in times)
    return table([*rows, *([name, *(times[x, n, name] for x, n in columns)] for name in names)])


def limits() -> str:
    """Where the time of a sum goes."""
    parts = ("ms", "exponentials", "product of the points", "rest")
    rates = "exponentials, products at the device's rates"
    rows = [["D, C", *parts, rates, "limit ÷ ms"]]
    for c in _read(LIMITS)["cells"]:
        at_rates = ", ".join(f"{x:.1f}" for x in c["at the device's rates"].values())
        name = f"{c['what']}: {c['d']}, {c['c']}"
        rows.append([name, *(f"{c[part]:.1f}" for part in parts), at_rates, f"{c['of the limit']:.2f}"])
    return table(rows)


def clouds() -> str:
    """What sums cost by where the points lie."""
    cells = _read(CLOUDS)["cells"]
    found = "; ".join(hostile.summary(cells, num) for num in hostile.NUMS)
    return f"{table(hostile.rows(cells))}\n{_prose(f'Of the other clouds {found}.')}"


def neighbours() -> str:
    """OTT's and lineax's solvers on these sums."""
    data = _read(NEIGHBOURS)
    cells = data["cells"]
    (large,) = (c for c in cells if c["figure"] == "large")
    errors = {c["what"]: c["error"] for c in cells if c["figure"] == "agreement"}
    small, many = (c for c in cells if c["figure"] == "log-determinant")
    potentials, agreeing = max(errors["f"], errors["g"]), next(c["n"] for c in cells if c["figure"] == "agreement")
    text = _prose(
        f"{data['device_name']}, {data['cores']} cores. {large['n']:,} points in {large['d']} dimensions: ten",
        f"iterations in {large['seconds'][0]:.0f} s with compiling, {large['mib']:.0f} MiB above the start. At",
        f"{agreeing:,} points in 3-D, potentials, cost and the divergence's gradient differ from OTT's dense",
        f"geometry in float64 by {_power(potentials)}, {_power(errors['cost'])} and {_power(errors['gradient'])}.",
        f"log det(K + σ²I) with rank {small['rank']}: {small['value']:.2f} ± {small['standard_error']:.2f} at",
        f"N = {small['n']:,}, where it is {small['exact']:.2f}; {many['value']:.2f} ± {many['standard_error']:.2f} at",
        f"{many['n']:,}, in {many['seconds'][0]:.0f} s.",
    )
    return f"{solvers.report(cells)}\n{text}"


def few_dimensions() -> str:
    """Sums by waves, by all pairs and by others."""
    data = _read(FEW_DIMENSIONS)
    times = {(c["function"], c["n"], c["method"]): c["ms"] for c in data["methods"]}
    functions = dict.fromkeys(name for name, _, _ in times)
    rows = [[name, *(f"{times[name, 100_000, method]:.3g}" for method in ("auto", "all pairs"))] for name in functions]
    hostile = {(c["cloud"], c["d"]): c["ms"]["auto"] / c["ms"]["all pairs"] for c in data["hostile"]}
    small = [c["ms"]["auto"] / c["ms"]["blocked"] for c in data["small"]]
    (cloud, dim), most = max(hostile.items(), key=lambda item: item[1])
    text = _prose(
        f"{data['device_name']}, {data['cores']} cores; of uniform points, sums by `auto` err by at most",
        f"{_power(max(c['error'] for c in data['cells'] if c['method'] == 'auto'))} of Σ Φ|v| in L2. Normal points in",
        "the plane, 100,000 at as many, in milliseconds (pairs of an eighth of the points, times 64); log-densities of",
        f"a million at a million take {times['log-density', 1_000_000, 'auto'] / 1e3:.1f} s:",
    )
    others = _prose(
        f"Clouds that are hostile to waves, {data['hostile'][0]['n']:,} points in one to three dimensions, take",
        f"{min(hostile.values()):.2f} to {most:.2f} times as long as all pairs ({cloud}, D = {dim}). Of {len(small)}",
        f"small sums, 64 to 16,384 points in 1 to 1000 bandwidths, the slowest takes {max(small):.2f} times as long.",
    )
    return f"{table(waves.table(data['cells']))}\n\n{text}\n\n{table([['', 'auto', 'all pairs'], *rows])}\n\n{others}"


FIGURES = (
    few_dimensions,
    calls,
    limits,
    clouds,
    neighbours,
    everything,
    rivals,
    grid,
    applications,
    losses,
    kernels,
    resampling,
    precision,
    wide,
    streamed,
    forward_mode,
    threads,
)
BLOCKS: dict[str, Callable[[], str]] = {make.__name__: make for make in FIGURES}


def filled(text: str) -> str:
    """A page with its blocks made anew."""
    return BLOCK.sub(lambda match: f"{match[1]}\n{BLOCKS[match[2]]()}\n{match[4]}", text)


def main() -> None:
    """Write the pages."""
    for page in PAGES:
        page.write_text(filled(page.read_text()))


@functools.cache
def _read(name: str) -> dict:
    return json.loads((RESULTS / f"{name}.json").read_text())


def _is(cell: dict, **about: object) -> bool:
    return all(cell.get(key) == value for key, value in about.items())


def _headline() -> dict[tuple[str, int, int], dict[str, dict]]:
    """The cells of the largest size by what is computed, D and C; and by method."""
    found: dict[tuple[str, int, int], dict[str, dict]] = {}
    for c in _read(PAPER)["cells"]:
        if c["figure"] == "headline" and "median" in c:
            found.setdefault((c["what"], c["d"], c["c"]), {})[c["method"]] = c
    return found


def _ratios(*methods: str) -> dict[str, str]:
    """From the least to the largest of how many times the time of `auto` the fastest of these takes."""
    rates = _read(PAPER)["rates"]["float32"]
    ratios: dict[str, list[float]] = {what: [] for what in WHAT}
    for (what, d, c), found in _headline().items():
        times = {name: cell["median"] for name, cell in found.items()}
        times[LIMIT] = limit(Problem(found["auto"]["n"], d, c), what, rates)
        ratios[what] += [min(times[name] for name in methods) / times["auto"]] if times.keys() >= set(methods) else []
    ratios["both"] = ratios["forward"] + ratios["gradients"]
    return {what: f"{_two(min(x))} to {_two(max(x))}" if x else "–" for what, x in ratios.items()}


def _two(x: float) -> str:
    """Two digits."""
    return f"{x:.0f}" if x >= 9.95 else f"{x:.1f}" if x >= 0.995 else f"{x:.2f}"


def _power(x: float) -> str:
    """Two digits, as in 1.2e-3."""
    return f"{x:.1e}".replace("e-0", "e-")


def _prose(*parts: str) -> str:
    """One paragraph, or item of a list, of the pages' width."""
    text = " ".join(parts)
    return textwrap.fill(text, 120, subsequent_indent="  " * text.startswith("- "), break_on_hyphens=False) + "\n"


if __name__ == "__main__":
    main()
