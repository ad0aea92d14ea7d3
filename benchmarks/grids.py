"""Which Gauss sums the suites measure: the paper's figures, `auto` against JAX's own, and a quick look.

The paper's sizes are those of a GPU; on a CPU they shrink, as the plots say.
"""

from collections.abc import Iterator

from .measure import Cell
from .rivals import BARE, JAX_NATIVE, OTHERS, OURS, Problem, calls

HEADLINE = [(3, 1), (16, 1), (32, 32), (64, 64), (128, 1)]  # D, C
WHAT = ("forward", "gradients")
TOLERANCE = 2e-2  # an error beyond it is a bug, not a measurement: half precision has 7e-3 in gradients at most
EVERYTHING = [*OURS, *JAX_NATIVE, *OTHERS, BARE]
ALMOST = [name for name in EVERYTHING if name not in ("prescale", "reweight")]


def cell(suite: str, figure: str, problem: Problem, what: str, names: list[str], **series: object) -> Cell:
    """One problem for the methods, in a series of cells that have what `series` names in common."""
    about = {"suite": suite, "figure": figure, "n": problem.num, "d": problem.dim, "c": problem.channels}
    about |= {"batch": problem.batch, "dtype": problem.dtype, "what": what}
    columns = (problem.dim + problem.channels + 16) * (1 if what == "forward" else 4)
    return Cell(
        about=about,
        methods=calls(names, problem, what),
        error=lambda results: problem.error(what, results),
        tolerance=TOLERANCE,
        work=3 + problem.batch * problem.num**2 * columns / 1e9,
        series=f"{figure}, {what}, {problem.dtype}, {series}",
    )


def quick(device: str) -> Iterator[Cell]:
    """The paper's figures in small."""
    for dim, channels in ((3, 1), (32, 32)):
        for what in WHAT:
            for num in (256, 1024, 4096):
                problem = Problem(num, dim, channels, dtype=dtypes(device)[0], device=device)
                yield cell("quick", f"N, D = {dim}, C = {channels}", problem, what, _curves(device), d=dim, c=channels)


def paper(device: str) -> Iterator[Cell]:
    """Every figure of the paper, and float32 beside half precision where that is the default."""
    gpu = device == "cuda"
    curves = _curves(device)
    nums = [2**i for i in range(8, 18 if gpu else 13)]
    dims = (1, 3, 8, 16, 32, 64, 128, 256) if gpu else (1, 3, 8, 16, 32, 64, 128)
    for dtype in dtypes(device):
        for dim, channels in HEADLINE:
            for what in WHAT:
                problem = Problem(65536 if gpu else 8192, dim, channels, 1, dtype, device)
                names = EVERYTHING if what == "forward" else [*curves, "prescale", "reweight"]
                yield cell("paper", "headline", problem, what, names, d=dim, c=channels)
    for num in (4096, 8192, 16384, 32768):
        problem = Problem(num, 16, 1, 1, dtypes(device)[0], device)
        yield cell("paper", "memory", problem, "gradients", ["auto", "rescale", "prescale", "reweight"], about="memory")
    for dtype in dtypes(device):
        for dim, channels, whats in ((3, 1, WHAT[:1]), (32, 32, WHAT[:1]), (32, 1, WHAT)):
            if dtype != dtypes(device)[0] and len(whats) == 1:
                continue
            for what in whats:
                for num in nums:
                    problem = Problem(num, dim, channels, 4, dtype, device)
                    yield cell("paper", f"N, D = {dim}, C = {channels}", problem, what, curves, d=dim, c=channels)
        batch, num = (64, 16384) if gpu else (2, 4096)
        for what in WHAT:
            for dim in dims:
                yield cell("paper", "D", Problem(num, dim, 1, batch, dtype, device), what, curves)


def jax(device: str) -> Iterator[Cell]:
    """`auto` and its parts beside JAX's own sums, small and large."""
    names = ["auto", "rescale", *JAX_NATIVE]
    for num in (16, 64, 256, 1024, 4096, 16384):
        for dim in (3, 16, 64, 128) if num > 16 else (8,):
            for channels in (1, dim) if num > 16 else (1,):
                for what in WHAT:
                    problem = Problem(num, dim, channels, 1, "float32", device)
                    yield cell("jax", "grid" if num > 16 else "fixed cost", problem, what, names, d=dim, c=channels)


def dtypes(device: str) -> tuple[str, ...]:
    """What is measured first is what the arguments of most are."""
    return ("float16", "float32") if device == "cuda" else ("float32",)


def _curves(device: str) -> list[str]:
    """What is drawn; split points, which are slow without tensor cores, are only in the table of a CPU."""
    return [name for name in ALMOST if device == "cuda" or name != "float16x2"]
