"""The measured figures of README and docs, from the JSON files alone: `python -m benchmarks.tools.pages` writes them.

A page marks where a block of figures stands: `<!-- figures: everything -->` … `<!-- end -->`. What is between is made
by the function of that name in BLOCKS, so that no number is typed, and links lead to the newest file of their suite and
vendor. The tests compare the pages with what it gives.
"""

import functools
import json
import math
import re
from collections.abc import Callable

from .. import grids, scaling
from ..first_light import report as first_light
from ..plots import Text, listing, prose, span, table
from ..study import RESULTS, ROOT, read
from ..suites import SUITES

PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
BLOCK = re.compile(r"(<!-- figures: (\w+) -->\n)(.*?)(<!-- end -->)", re.S)


def stems(suite: str, device: str = "cpu", vendor: str = "") -> list[str]:
    """The files of a suite, the newest first, on a device, or on the CPUs of a vendor."""
    found = (x for x in RESULTS.glob(f"*_{device}_*.json") if x.stem.split("_", 3)[3] == suite)
    return sorted((x.stem for x in found if not vendor or vendor in read(x)["device_name"]), reverse=True)


VENDORS = {"paper": ("AMD",), "jax": ("AMD", "Intel")}  # whose CPUs the pages show; of other suites, the newest file
FOUND = {x: [stems(x, vendor=vendor) for vendor in VENDORS.get(x, ("",))] for x in SUITES if x != "quick"}
MEASURED = {x: tuple(files[0] for files in found) for x, found in FOUND.items()}
OLDER = {old: files[0] for found in FOUND.values() for files in found for old in files[1:]}
PAPER, SCALING, (GRID, GRID_ON_INTEL) = MEASURED["paper"][0], MEASURED["scaling"][0], MEASURED["jax"]
H200, H200_BEFORE = stems("first_light", "cuda")


def made(*files: dict) -> str:
    """Where figures are from: files, machines, versions, minutes, and the command."""
    texts = []
    for data in files:
        cpu = " with ".join(filter(None, (data["device_name"].replace("(R)", ""), data.get("vectors"))))
        about = [f"{cpu}, {data['cores']} cores", f"jax {data['versions']['jax']}"]
        about += [f"beside it {data['beside']['versions']['jax']}"] if "beside" in data else []
        about += [f"{minutes(data)} minutes"] if "took" in data else []
        path = f"benchmarks/results/{name(data)}.json"
        texts.append(f"[`{name(data)}.json`](../{path}) ({'; '.join(about)})")
    command = f".venv/bin/python -m benchmarks --suite {files[0]['suite']} --keep"
    command += " --beside .venv-other/bin/python" if "beside" in files[0] else ""
    return prose(f"Data: {' and '.join(texts)}, made by") + f"\n```bash\n{command}\n```\n"


def suites(*files: dict) -> str:
    """What each decides, how long it takes, and all of them."""
    rows = [[f"`{x['suite']}`", str(SUITES[x["suite"]].steps.__doc__), minutes(x)] for x in files]
    took = {"took": sum(x["took"] for x in files)} if all("took" in x for x in files) else {}
    return table([["`--suite`", "decides", "minutes"], *rows, ["`all`", "All of that.", minutes(took)]])


def name(data: dict) -> str:
    """Of a file of results, without its ending."""
    return "_".join(data[x] for x in ("date", "device", "commit", "suite"))


def minutes(data: dict) -> str:
    """That it took."""
    return f"{math.ceil(data['took'] / 60)}" if "took" in data else "–"


def losses(paper: dict, grid: dict) -> str:
    """Where others are faster."""
    kernel, half = (grids.ratios(paper, name) for name in ("rescale", "float16x2"))
    tables = {what: grids.ratio_table(grid, what).items() for what in grids.WHAT}
    found = [(x, n, d, what) for what, table in tables.items() for (d, _, n), x in table]
    slower = sorted(x for x in found if x[0] < 1)
    least, num, dim, what = slower[0]
    nums, dims = (sorted({x[i] for x in slower}) for i in (1, 2))
    return prose(
        "- **The attention kernel on AMD's CPUs.** PyTorch's kernel, `rescale`, takes",
        f"{span(kernel['forward'])} times as long as `auto` forward, and {span(kernel['gradients'])} times with",
        f"gradients; `float16x2`, which is made for tensor cores, {span(half['forward'])} times.",
        "`auto` takes XLA there.",
    ) + prose(
        f"- **Few points.** In {len(slower)} of {len(found)} cells of the grid, N from {nums[0]} to {nums[-1]}",
        f"and D from {dims[0]} to {dims[-1]}, dense or blocked JAX needs less time than `auto`;",
        f"the least is {least:.2f} of it, at N = {num} and D = {dim}, {what}.",
        "So it is with the densities of 1000 samples of 16 dimensions:",
        "see [What the sums are for](measured.md#what-the-sums-are-for).",
    )


def compiled() -> str:
    """What CUDA's programs launch and hold, as XLA compiles them."""
    facts = json.loads((ROOT / "tests" / "cuda_programs.json").read_text())
    columns: dict[str, Text] = {
        "program": lambda x: f"`{x['program']}`" if x["program"].isidentifier() else x["program"]
    }
    columns |= {"N": "{sizes[0]}", "D": "{sizes[1]}", "kernels": "{kernels}", "calls of PyTorch": "{callbacks}"}
    columns |= {"MiB": "{mebibytes}", "waits, before": "{before[waits]}", "kernels, before": "{before[kernels]}"}
    columns |= {"MiB, before": "{before[mebibytes]}"}
    of = f"Compiled for an {facts['device']} by jax {facts['jax']}; “before” is the commit {facts['before']}."
    return listing(facts["rows"], columns) + "\n" + prose(of)


BLOCKS: dict[str, tuple[Callable[..., str], tuple[str, ...]]] = {
    "everything": (grids.everything, (PAPER,)),
    "rivals": (grids.rivals, (PAPER,)),
    "grid": (grids.grid, (GRID,)),
    "grid_on_intel": (grids.grid, (GRID_ON_INTEL,)),
    "losses": (losses, (PAPER, GRID)),
    "gpu": (first_light.compared, (H200, H200_BEFORE)),
    "gpu_few": (first_light.of_few_points, (H200,)),
    "gpu_applied": (first_light.applied, (H200, H200_BEFORE)),
    "gpu_many": (first_light.of_many_points, (H200_BEFORE,)),
    "gpu_sentence": (first_light.in_one_sentence, (H200, H200_BEFORE)),
    "compiled": (compiled, ()),
    "streamed": (scaling.files, (SCALING,)),
    "forward_mode": (scaling.tangents, (SCALING,)),
}
for suite, files in MEASURED.items():
    BLOCKS[f"{suite}_data"] = made, files
    if suite not in ("paper", "jax", "scaling"):
        BLOCKS[suite] = SUITES[suite].report, files  # a page shows all of it
BLOCKS["suites"] = suites, tuple(files[0] for files in MEASURED.values())


@functools.cache
def block(name: str) -> str:
    """What stands between a block's marks."""
    make, files = BLOCKS[name]
    return make(*(read(RESULTS / f"{file}.json") for file in files))


def filled(text: str) -> str:
    """A page with its blocks made anew, and the newest files instead of older ones."""
    for old in sorted(OLDER, key=len, reverse=True):  # one name may begin with another
        text = text.replace(old, OLDER[old])
    return BLOCK.sub(lambda match: f"{match[1]}\n{block(match[2])}\n{match[4]}", text)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(filled(page.read_text()))
