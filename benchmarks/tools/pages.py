"""The measured figures of README and docs, from the JSON files alone: `python -m benchmarks.tools.pages` writes them.

A page marks where a block of figures stands: `<!-- figures: everything -->` … `<!-- end -->`. What is between is made
by the function of that name in BLOCKS, so that no number is typed. The tests compare the pages with what it gives.
"""

import functools
import json
import re
from collections.abc import Callable

from .. import applications, grids, load, scaling
from ..first_light import report as first_light
from ..plots import by_method, having, milliseconds, prose, span, table
from ..study import RESULTS, ROOT, read
from ..suites import SUITES

PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
BLOCK = re.compile(r"(<!-- figures: (\w+) -->\n)(.*?)(<!-- end -->)", re.S)
PAPER = "2026-11-27_cpu_5813c63_paper"
GRID = "2026-11-27_cpu_5813c63_jax"
MMD = "2026-11-27_cpu_c8c87c9_mmd"
SCALING = "2026-11-28_cpu_e591790_scaling"
H200, H200_BEFORE = (f"2026-11-{x}_first_light" for x in ("28_cuda_bc9542d", "27_cuda_bc68252"))


def losses(paper: dict, grid: dict, mmd: dict) -> str:
    """Where others are faster."""
    kernel: dict[str, list[float]] = {what: [] for what in grids.WHAT}
    for (what, *_), methods in grids.largest(paper["cells"]).items():
        kernel[what].append(methods["rescale"]["median"] / methods["auto"]["median"])
    text = prose(
        "- **The attention kernel on AMD's CPUs.** PyTorch's kernel, `rescale`, takes",
        f"{span(kernel['forward'])} times as long as `auto` forward, and {span(kernel['gradients'])} times with",
        "gradients. `auto` takes XLA there.",
    )
    ratios = {what: grids.ratio_table(grid, what) for what in grids.WHAT}
    slower = sorted((r, n, d, what) for what, x in ratios.items() for (d, _, n), r in x.items() if r < 1)
    if slower:
        least, num, dim, what = slower[0]
        nums, dims = (sorted({x[i] for x in slower}) for i in (1, 2))
        text += prose(
            f"- **Few points.** In {len(slower)} of {sum(map(len, ratios.values()))} cells of the grid, N from",
            f"{nums[0]} to {nums[-1]} and D from {dims[0]} to {dims[-1]}, dense or blocked JAX needs less time than",
            f"`auto`; the least is {least:.2f} of it, at N = {num} and D = {dim}, {what}.",
        )
    for (num, dim), methods in by_method(having(mmd["cells"], figure="density"), "n", "d").items():
        ours, dense = (methods[name] for name in ("kde_logpdf", "dense JAX"))
        if ours["median"] > dense["median"]:
            text += prose(
                f"- **Few densities.** The log-density of {num} samples of {dim} dimensions at 2000 points takes",
                f"{milliseconds(ours)} ms; dense JAX takes {milliseconds(dense)} ms.",
            )
    return text + prose(
        "- **Half precision on a CPU.** It is made for tensor cores. Here `float16x2` takes",
        f"{span(grids.ratios(paper, 'float16x2')['forward'])} times as long as `auto`.",
    )


def threads(loaded: dict, scaled: dict) -> str:
    """Sums from several Python threads, and thousands of them."""
    return f"{load.report(loaded)}\n{scaling.memory(scaled)}"


def compiled() -> str:
    """What CUDA's programs launch and hold, as XLA compiles them."""
    facts = json.loads((ROOT / "tests" / "cuda_programs.json").read_text())
    earlier = "waits, before", "kernels, before", "MiB, before"
    rows = [["program", "N", "D", "kernels", "calls of PyTorch", "MiB", *earlier]]
    for x in facts["rows"]:
        name = f"`{x['program']}`" if x["program"].isidentifier() else x["program"]
        before = (x["before"][y] for y in ("waits", "kernels", "mebibytes"))
        rows.append([name, *map(str, (*x["sizes"], x["kernels"], x["callbacks"], x["mebibytes"], *before))])
    of = f"Compiled for an {facts['device']} by jax {facts['jax']}; “before” is the commit {facts['before']}."
    return table(rows) + "\n" + prose(of)


BLOCKS: dict[str, tuple[Callable[..., str], tuple[str, ...]]] = {
    "everything": (grids.everything, (PAPER,)),
    "rivals": (grids.rivals, (PAPER,)),
    "limits": (grids.limits, (PAPER,)),
    "grid": (grids.grid, (GRID,)),
    "applications": (applications.report, (MMD,)),
    "losses": (losses, (PAPER, GRID, MMD)),
    "gpu": (first_light.compared, (H200, H200_BEFORE)),
    "gpu_few": (first_light.of_few_points, (H200,)),
    "gpu_applied": (first_light.applied, (H200, H200_BEFORE)),
    "gpu_many": (first_light.of_many_points, (H200_BEFORE,)),
    "gpu_sentence": (first_light.in_one_sentence, (H200, H200_BEFORE)),
    "compiled": (compiled, ()),
    "wide": (scaling.wide, (SCALING,)),
    "streamed": (scaling.files, (SCALING,)),
    "forward_mode": (scaling.tangents, (SCALING,)),
    "threads": (threads, ("2026-11-28_cpu_e591790_load", SCALING)),
}
for file in (  # of which a page shows all
    "2026-11-27_cpu_92917f7_kernels",
    "2026-11-28_cpu_c27f2bd_precision",
    "2026-11-28_cpu_71f184f_neighbours",
    "2026-11-28_cpu_c27f2bd_resampling",
    "2026-11-28_cpu_e591790_calls",
    "2026-11-28_cpu_9847992_first_calls",
    "2026-11-27_cpu_92917f7_clouds",
    "2026-11-27_cpu_92917f7_few_dimensions",
    "2026-11-28_cpu_92c040e_million",
    "2026-11-28_cpu_e03b89f_groups",
    "2026-11-28_cpu_e03b89f_plane",
):
    suite = file.split("_", 3)[3]
    BLOCKS[suite] = SUITES[suite].report, (file,)


@functools.cache
def block(name: str) -> str:
    """What stands between a block's marks."""
    make, files = BLOCKS[name]
    return make(*(read(RESULTS / f"{file}.json") for file in files))


def filled(text: str) -> str:
    """A page with its blocks made anew."""
    return BLOCK.sub(lambda match: f"{match[1]}\n{block(match[2])}\n{match[4]}", text)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(filled(page.read_text()))
