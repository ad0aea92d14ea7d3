"""The steps of `first_light`, each a function of the `Part` that it writes to: the CUDA path's tests, then figures."""

import collections
import contextlib
import dataclasses
import faulthandler
import functools
import importlib.util
import itertools
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np
import torch
from torch.profiler import ProfilerActivity

from jaxgauss import gauss_sum, kde_logpdf, tau_from_bandwidth

from .. import applications, grids, inside, rivals, study
from ..rivals import BARE, Problem
from ..study import Call, Cell, JaxCall, Task, exact_matrix, failure, relative
from .part import Part

WORKERS = min(12, max(1, (os.cpu_count() or 1) * 3 // 4))  # of the tests, which mostly compile, on a GPU
TESTS = "test_wrong_devices or test_float64_falls_back"  # that are quick to emulate
ROWS = 64  # of densities, which are compared with float64
BANDWIDTH = 0.5  # Scott's for a million points N(0, I) of 16 dimensions
VARIANTS: dict[str, dict] = {
    **{f"rescale, {p}": {"method": "rescale", "precision": p} for p in ("float16", "float16x2", "float32")},
    "auto": {},
}
PRECISIONS = ("float16", "auto", "float16x2")  # of densities, whose "auto" is float32
OWN_WIDTH = f"{BARE}, own width"
ENGINES = ("dense", "flash", "cudnn", "efficient in float32", "waves", "blocked", "efficient")  # in order of worth
SMALL = (  # where times mean nothing; of the last two only waves
    *((num, *size) for num in (8, 64) for size in ((3, 1), (16, 16))),
    *((2**15, dim, 1) for dim in (1, 2)),
)
GROUPS = {  # in cells of their own, in order of worth: what others may be broken by, or have to wait for
    "auto": ["auto", "float32", BARE, OWN_WIDTH, "dense JAX"],
    "PyKeOps": ["PyKeOps"],
    "cuDNN": ["cudnn", "jax.nn attention"],
    "ours": [*(name for name in rivals.OURS if name != "auto"), "blocked JAX", "torch eager"],
    "torch.compile": ["torch.compile"],
}


@dataclass(frozen=True)
class Sizes:
    """Of what is measured, and where PyTorch's tensors are."""

    device: str
    nums: tuple[int, ...]
    pairs: tuple[tuple[int, int], ...]  # D, C
    few: tuple[int, ...]
    mmd: tuple[int, ...]
    memory: tuple[int, ...]
    samples: int
    queries: int
    square: int  # of the matrices that tell the device's rates
    every: int = 1  # cell of the longer steps


GPU = Sizes(
    device="cuda",
    nums=(16384, 65536),
    pairs=tuple(grids.HEADLINE),
    few=(1024, 4096, 256),
    mmd=(1024, 4096, 16384, 256, 65536),
    memory=tuple(2**i for i in range(14, 19)),
    samples=2**20,
    queries=2**17,
    square=2048,
)
EMULATED = Sizes("cpu", (64, 128), ((3, 1), (16, 16)), (64,), (64,), (64, 128), 256, 128, 64, every=11)


class Recorder:
    """A plugin of pytest that writes what becomes of each test; with one worker also, as it begins, which one runs."""

    def __init__(self, part: Part, alone: bool):
        self.part, self.alone, self.found = part, alone, {}

    def pytest_collectreport(self, report: Any) -> None:
        """A file that cannot be imported."""
        if report.failed:
            self.part.take(Task({"test": report.nodeid}, lambda runs: [{"failed": _end(report)}]), 0)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A test begins."""
        if self.alone:
            self.part.begin({"test": nodeid})
        self.found[nodeid] = {"outcome": "passed"}

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Of its fixtures, of the test itself, or of a worker that has crashed."""
        if report.failed:
            self.found[report.nodeid] = {"failed": _end(report)}
        elif report.skipped:
            self.found[report.nodeid] = {"outcome": "skipped"}

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """It has ended."""
        self.part.data["begun"] = {"test": nodeid}
        self.part.end([self.found.pop(nodeid)])

    def pytest_sessionfinish(self) -> None:
        """The tests that workers crashed in have failed, and have no end of their own."""
        for nodeid in [name for name, found in self.found.items() if "failed" in found]:
            self.pytest_runtest_logfinish(nodeid)


def _end(report: Any) -> str:
    return "\n".join(report.longreprtext.strip().splitlines()[-8:])[-800:]


def tests(part: Part, sizes: Sizes) -> None:
    """The tests of the CUDA path."""
    import pytest

    done = [argument for about in part.data["done"] for argument in ("--deselect", about["test"])]
    arguments = ["tests/test_gpu.py", "-q", "--tb=short", "-p", "no:cacheprovider", "-p", "no:benchmark", *done]
    arguments += ["-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"]  # jaxtyping, a plugin
    has_workers = importlib.util.find_spec("xdist") is not None
    workers = WORKERS if sizes is GPU and has_workers else 0
    arguments += ["-n", str(workers)] if has_workers else []
    arguments += ["-m", "emulated", "-k", TESTS] if sizes is EMULATED else []
    code = pytest.main(arguments, plugins=[Recorder(part, alone=workers == 0)])
    if code not in (0, 1) and not (code == 5 and part.data["done"]):
        raise SystemExit(f"pytest ended with {code!r}")


def launches(sizes: Sizes) -> Iterator[Task]:
    """How much one call launches, and how long the host is busy with it."""
    cells = itertools.product(VARIANTS, (32, 1), grids.WHAT)
    for name, channels, what in list(cells)[:: sizes.every]:
        problem = Problem(sizes.nums[0], 32, channels, 1, "float32", sizes.device)
        prepare = functools.partial(rivals.in_jax(functools.partial(gauss_sum, **VARIANTS[name])), problem, what)
        about = {"figure": "launches", "n": problem.num, "d": 32, "c": channels, "what": what, "method": name}
        yield Task(about, lambda runs, prepare=prepare: [launched(prepare(), sizes.device, runs)])


def launched(call: Any, device: str, runs: int) -> dict:
    """Seconds until a call of JAX returns, which does not wait for its results; and what it launches."""
    seconds = []
    for _ in range(inside.costs.WARM_UPS + runs):
        start = time.perf_counter()
        results = call.function(*call.arguments)
        seconds.append(time.perf_counter() - start)
        jax.block_until_ready(results)
    found = {"host": float(np.median(seconds[inside.costs.WARM_UPS :]))}
    try:
        return found | (profiled(call) if device == "cuda" else counted(call))
    except Exception as reason:
        return found | failure(reason)


def profiled(call: Call) -> dict:
    """What runs on the device: seconds from the start of the first to the end of the last, and the sum of theirs."""

    def events() -> list:
        with torch.profiler.profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profile:
            call()
            torch.cuda.synchronize()
        return [x for x in profile.events() or () if x.device_type.name == "CUDA"]

    events()  # which loads the profiler, too
    found = events()
    starts, ends = ([getattr(x.time_range, end) for x in found] for end in ("start", "end"))  # microseconds
    return {
        "launches": len(found),
        "names": collections.Counter(x.name[:120] for x in found),
        "span": (max(ends) - min(starts)) / 1e6,
        "busy": (sum(ends) - sum(starts)) / 1e6,
    }


def counted(call: Call) -> dict:
    """What would run there, but for XLA's own."""
    import emulated_cuda  # pyright: ignore[reportMissingImports]

    with emulated_cuda.counting() as log:
        call()
    names = collections.Counter(itertools.chain(*log))
    return {"launches": sum(map(emulated_cuda.count, log)), "names": names}


def by_cudnn(problem: Problem, what: str) -> Call | str:
    """`rescale` by cuDNN's kernel, as wide as that is."""
    if max(problem.dim + 4, problem.channels) > 128:  # with columns for norms, and for those of the pullback
        return "too wide"
    return rivals.in_jax(functools.partial(gauss_sum, method="rescale", backend="cudnn"))(problem, what)


def in_float32(problem: Problem, what: str) -> Call | str:
    """`rescale` in float32, where the points are."""
    if problem.dtype != "float32":
        return "half-precision points"
    return rivals.in_jax(functools.partial(gauss_sum, method="rescale", precision="float32"))(problem, what)


def bare_at_own_width(problem: Problem, what: str) -> Call | str:
    """The attention call alone, as wide as points and values are, without columns for norms."""
    width = -(-max(problem.dim, problem.channels) // 8) * 8
    return rivals.bare_attention(dataclasses.replace(problem, dim=width - 2, channels=width), what)


MORE = {"float32": in_float32, OWN_WIDTH: bare_at_own_width, "cudnn": by_cudnn}


def headline(sizes: Sizes) -> Iterator[Cell]:
    """In order of worth."""

    def worth(cell: tuple) -> tuple:
        group, num, dtype, what, _ = cell
        rank = list(GROUPS).index(group)
        return max(rank, 1), dtype == "float16", num, what, rank  # `auto` and KeOps first, in float32

    groups = ("auto", "ours") if sizes is EMULATED else GROUPS
    cells = itertools.product(groups, sizes.nums, ("float16", "float32"), grids.WHAT, sizes.pairs)
    for group, num, dtype, what, (dim, channels) in sorted(cells, key=worth)[:: sizes.every]:
        problem = Problem(num, dim, channels, 1, dtype, sizes.device)
        known = [name for name in GROUPS[group] if name not in MORE]
        cell = grids.cell("headline", problem, what, known, d=dim, c=channels)
        more = {name: functools.partial(MORE[name], problem, what) for name in GROUPS[group] if name in MORE}
        if cell.methods:
            yield dataclasses.replace(cell, about=cell.about | {"group": group}, methods={**cell.methods, **more})


def few(sizes: Sizes) -> Iterator[Cell]:
    """Few points, which XLA sums."""
    for num, what, (dim, channels) in itertools.product(sizes.few, grids.WHAT, sizes.pairs):
        problem = Problem(num, dim, channels, 1, "float32", sizes.device)
        yield grids.cell("few", problem, what, ["auto", *rivals.JAX_NATIVE], d=dim, c=channels)


def waves(sizes: Sizes) -> Iterator[Cell]:
    """Many points of few dimensions: by as many waves as a coordinate may have, and by attention."""
    by_waves = rivals.in_jax(functools.partial(gauss_sum, method="fourier"))
    for num, what, dim in list(itertools.product(sizes.nums, grids.WHAT, (2, 3, 1)))[:: sizes.every]:
        problem = Problem(num, dim, 1, 1, "float32", sizes.device)
        cell = grids.cell("waves", problem, what, ["auto"], d=dim)
        yield dataclasses.replace(cell, methods={**cell.methods, "waves": functools.partial(by_waves, problem, what)})


def mmd(sizes: Sizes) -> Iterator[Cell]:
    """A training step, ours in half precision, and dense."""
    for num, dim in itertools.product(sizes.mmd, (16, 64)):
        yield dataclasses.replace(applications.mmd_step(num, dim, sizes.device), tolerance=grids.TOLERANCE)


def memory(sizes: Sizes) -> Iterator[Cell]:
    """The most memory in use on the device so far, in order of N, as JAX's peak cannot be set back."""
    for num, name in itertools.product(sizes.memory, ("auto", "rescale")):
        cell = grids.cell("memory", Problem(num, 16, 1, 1, "float32", sizes.device), "gradients", [name], method=name)
        yield dataclasses.replace(cell, about=cell.about | {"method": name})


def densities(sizes: Sizes) -> Iterator[Cell]:
    """A million points, as Flash-SD-KDE has them (arXiv:2602.10378): sums, and densities without and with debiasing."""
    tau, dim = float(tau_from_bandwidth(BANDWIDTH)), 16
    points, data, values, _ = Problem(sizes.samples, dim, 1).jax
    keys, weights = data[: sizes.queries], values[: sizes.queries]
    queries, samples = points[: sizes.queries] * dim**0.5, data * dim**0.5  # N(0, I)

    def sum_error(found: Any) -> float:
        return relative(found[:ROWS], exact_matrix(points[:ROWS], keys) @ np.asarray(weights))

    def logpdf_error(found: Any) -> float:
        return relative(found[:ROWS], applications.exact_logpdf(queries[:ROWS], samples, tau))

    sd_kde_error = functools.partial(applications.debiased_error, queries, samples, tau, rows=ROWS)
    figures: dict[str, tuple[Callable, tuple, Callable]] = {
        "SD-KDE": (functools.partial(applications.debiased, tau=tau), (queries, samples), sd_kde_error),
        "gauss_sum": (gauss_sum, (points, keys, weights), sum_error),
        "kde_logpdf": (functools.partial(kde_logpdf, tau=tau), (queries, samples), logpdf_error),
    }
    cells = itertools.product(PRECISIONS[:: sizes.every], figures.items())
    for precision, (figure, (function, operands, error)) in cells:
        call = functools.partial(JaxCall, functools.partial(function, precision=precision), *operands)
        about = {"figure": figure, "n": sizes.samples, "m": sizes.queries, "d": dim, "c": 1, "method": precision}
        yield Cell(about, {precision: call}, error, grids.TOLERANCE, figure)


def costs(sizes: Sizes) -> Iterator[Task]:
    """Times of every engine by itself, of which `benchmarks.tools.fit_costs --rows` makes the numbers of `auto`."""
    calibrate = inside.calibrate
    problems = calibrate.CUDA_PROBLEMS if sizes is GPU else SMALL
    engines = {size: calibrate.engines_of_cuda("float32", *size) for size in problems}

    def find(size: tuple, name: str, runs: int) -> list[dict]:
        return [{"row": calibrate.measured_rows({name: engines[size][name]}, *size, runs)[name]}]

    for name, size in itertools.product(ENGINES, problems):
        if name in engines[size]:
            about = {"figure": "costs", "n": size[0], "d": size[1], "c": size[2], "engine": name}
            yield Task(about, functools.partial(find, size, name))


def limit(sizes: Sizes) -> Iterator[Task]:
    """The device's rates."""
    for dtype in ("float16", "float32"):
        rates = functools.partial(rivals.rates, sizes.device, dtype, sizes.square)
        yield Task({"figure": "limit", "dtype": dtype}, lambda runs, rates=rates: [rates(runs)])


STEPS: dict[str, tuple[float, Callable[..., Any]]] = {  # and their shares of 25 minutes
    "tests": (4, tests),
    "launches": (1.5, launches),
    "headline": (6, headline),
    "few": (2, few),
    "waves": (1, waves),
    "mmd": (2.5, mmd),
    "memory": (1.5, memory),
    "densities": (2, densities),
    "costs": (4, costs),
    "limit": (0.5, limit),
}


def take(names: tuple[str, ...], out: str, seconds: float, emulate: bool, runs: int) -> None:
    """What the process of some steps does."""
    faulthandler.enable()
    if emulate:
        jax.config.update("jax_platforms", "cpu")
        os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")  # read when JAX is first used
    sizes = EMULATED if emulate else GPU
    info = study.environment(sizes.device) | {"runs": runs}
    for name in names:
        part = Part(Path(out), name, sizes.device, seconds)
        if not part.data["complete"]:
            part.data["info"] = info
            if name == "tests":
                tests(part, sizes)
            else:
                with device_of(sizes, name):
                    for step in STEPS[name][1](sizes):
                        part.take(step, runs)
            part.data["complete"] = True
            part.save()
    os._exit(0)  # for an exit might wait for the device


@contextlib.contextmanager
def device_of(sizes: Sizes, step: str) -> Iterator[None]:
    """CUDA, if need be emulated, where figures mean nothing and are taken quickly."""
    quickly = {"SETTLED": 1e-4, "SHORTEST": 1e-4, "WARM_UPS": 1}
    with contextlib.ExitStack() as stack:
        if sizes is EMULATED:
            stack.enter_context(study.emulated_if(True))
            stack.enter_context(mock.patch.multiple(inside.costs, **quickly))
        if step in ("headline", "few", "waves", "densities"):
            stack.enter_context(mock.patch.object(study, "peak_mebibytes", lambda call: None))  # compiles once more
        yield
