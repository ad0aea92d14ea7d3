"""The steps of `first_light`, each in order of worth: what a card does, the paper's figures, tests, other figures."""

import contextlib
import dataclasses
import faulthandler
import functools
import importlib.util
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import jax
import numpy as np

from jaxgauss import kde_logpdf, kde_score, tau_from_bandwidth

from .. import applications, grids, inside, rivals, study
from ..grids import TOLERANCE, WHAT
from ..rivals import BARE, Problem
from ..study import Cell, JaxCall, Task, exact_matrix, relative
from .loops import loops
from .part import Part
from .probes import probes
from .sizes import EMULATED, GPU

product: Any = itertools.product  # whose types nobody knows here
WORKERS = min(12, max(1, (os.cpu_count() or 1) * 3 // 4))  # of the tests, which mostly compile, on a GPU
TESTS = "test_wrong_devices or test_float64_falls_back"  # that are quick to emulate
ROWS = 64  # of densities, which are compared with float64
PRECISIONS = ("float16", "auto", "float16x2")  # of densities, whose "auto" is float32
FLEX = "flex in float32"
ENGINES = (
    "dense",
    "flash",
    "cudnn",
    "efficient in float32",
    FLEX,
    "waves",
    "blocked",
    "efficient",
)  # in order of worth
GROUPS = {  # in cells of their own, in order of worth: what others may be broken by, or have to wait for
    "auto": ["auto", "auto in float32", "float32", BARE, "dense JAX"],
    "PyKeOps": ["PyKeOps"],
    "cuDNN": ["cudnn"],
    "ours": [*(name for name in rivals.OURS if name != "auto"), "blocked JAX", "torch eager"],
    "torch.compile": ["torch.compile"],
}
PAPER: dict[str, tuple[list[str], int | None]] = {  # the same for the paper's figures, with repetitions
    "auto": (["auto", "rescale", "prescale", "reweight"], None),
    "PyKeOps": (["PyKeOps"], 3),
    "torch.compile": (["torch.compile"], None),
}


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


def tests(part: Part, sizes: SimpleNamespace) -> None:
    """The tests of the CUDA path."""
    import pytest

    done = [argument for about in part.data["done"] for argument in ("--deselect", about["test"])]
    arguments = ["tests/test_gpu.py", "-q", "--tb=short", "-p", "no:cacheprovider", "-p", "no:benchmark", *done]
    arguments += ["-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"]  # jaxtyping, a plugin
    workers = WORKERS if sizes is GPU and importlib.util.find_spec("xdist") else 0
    arguments += ["-n", str(workers)] if importlib.util.find_spec("xdist") else []
    arguments += ["-m", "emulated", "-k", TESTS] if sizes is EMULATED else []
    code = pytest.main(arguments, plugins=[Recorder(part, alone=workers == 0)])
    if code not in (0, 1) and not (code == 5 and part.data["done"]):
        raise SystemExit(f"pytest ended with {code!r}")


def paper(sizes: SimpleNamespace) -> Iterator[Cell]:
    """All figures of the paper."""
    return itertools.islice(curves(sizes), None, None, sizes.every)


def curves(sizes: SimpleNamespace) -> Iterator[Cell]:
    """Sums first, in both dtypes, then gradients; last by what compiles for long."""
    order = [("auto",)] if sizes is EMULATED else [("auto", "PyKeOps"), ("torch.compile",)]
    for groups, what, dtype in product(order, WHAT, ("float16", "float32")):
        for figure, problem, whats, series in grids.figures(dtype, sizes.device, *sizes.paper):
            for group in groups if what in whats else ():
                names, runs = PAPER[group]
                cell = grids.cell(figure, problem, what, names, **series)
                if cell.methods:
                    yield dataclasses.replace(cell, about=cell.about | {"group": group}, runs=runs)


def headline(sizes: SimpleNamespace) -> Iterator[Cell]:
    """In order of worth."""

    def worth(cell: tuple) -> tuple:
        group, num, dtype, what, _ = cell
        rank = list(GROUPS).index(group)
        return max(rank, 1), dtype == "float16", num, what, rank  # `auto` and KeOps first, in float32

    groups = ("auto", "ours") if sizes is EMULATED else GROUPS
    cells = product(groups, sizes.nums, ("float16", "float32"), WHAT, sizes.pairs)
    for group, num, dtype, what, (dim, channels) in sorted(cells, key=worth)[:: sizes.every]:
        problem = Problem(num, dim, channels, 1, dtype, sizes.device)
        cell = grids.cell("headline", problem, what, GROUPS[group], d=dim, c=channels)
        if cell.methods:
            yield dataclasses.replace(cell, about=cell.about | {"group": group})


def few(sizes: SimpleNamespace) -> Iterator[Cell]:
    """Few points, which XLA sums."""
    for num, what, (dim, channels) in list(product(sizes.few, WHAT, sizes.pairs))[:: sizes.every]:
        problem = Problem(num, dim, channels, device=sizes.device)
        yield grids.cell("few", problem, what, ["auto", *rivals.JAX_NATIVE], d=dim, c=channels)


def waves(sizes: SimpleNamespace) -> Iterator[Cell]:
    """Many points of few dimensions, by as many waves as a coordinate may have, and by "auto"; a million first."""
    yield grids.cell("plane", Problem(sizes.samples, 2, 1, device=sizes.device), "forward", ["auto"])
    for num, what, dim in list(product(sizes.nums, WHAT, (2, 3, 1)))[:: sizes.every]:
        yield grids.cell("waves", Problem(num, dim, 1, device=sizes.device), what, ["auto", "waves"], d=dim)


def mmd(sizes: SimpleNamespace) -> Iterator[Cell]:
    """A training step, ours in half precision, and dense in both."""
    for num, dim in product(sizes.mmd, (16, 64)):
        cell = applications.mmd_step(num, dim, sizes.device, applications.DENSE["cuda"])
        yield dataclasses.replace(cell, tolerance=TOLERANCE)


def memory(sizes: SimpleNamespace) -> Iterator[Cell]:
    """The most memory in use on the device so far, in order of N, as JAX's peak cannot be set back."""
    for num, name in product(sizes.memory, ("auto", "rescale")):
        cell = grids.cell("memory", Problem(num, 16, 1, device=sizes.device), "gradients", [name], method=name)
        yield dataclasses.replace(cell, about=cell.about | {"method": name})


def debiased(queries: jax.Array, samples: jax.Array, tau: float, **options: Any) -> tuple[jax.Array, jax.Array]:
    """Log-densities of samples moved by half of σ² times the score at them (SD-KDE, arXiv:2602.10378), and these."""
    moved = samples + kde_score(samples, samples, tau, **options) / (2 * tau)
    return kde_logpdf(queries, moved, tau, **options), moved


def densities(sizes: SimpleNamespace) -> Iterator[Cell]:
    """A million points, as Flash-SD-KDE has them: densities with debiasing."""
    tau, dim = float(tau_from_bandwidth(0.5)), 16  # Scott's bandwidth for a million points N(0, I)
    queries, samples = (x * dim**0.5 for x in Problem(sizes.samples, dim, 1).jax[:2])  # N(0, I)
    queries = queries[: sizes.queries]

    def error(found: tuple) -> float:
        x = np.asarray(samples, np.float64)
        phi = exact_matrix(x[:ROWS], x, tau)
        moved = (x[:ROWS] + phi @ x / phi.sum(1)[:, None]) / 2
        logs = applications.exact_logpdf(queries[:ROWS], found[1], tau)
        return max(relative(found[1][:ROWS], moved), relative(found[0][:ROWS], logs))

    for precision in PRECISIONS[:: sizes.every]:
        function = functools.partial(debiased, tau=tau, precision=precision)
        about = {"figure": "SD-KDE", "n": sizes.samples, "m": sizes.queries, "d": dim, "c": 1, "method": precision}
        yield Cell(
            about, {precision: functools.partial(JaxCall, function, queries, samples)}, error, TOLERANCE, "SD-KDE"
        )


def costs(sizes: SimpleNamespace) -> Iterator[Task]:
    """Times of every engine by itself, of which `benchmarks.tools.fit_costs --rows` makes the numbers of `auto`."""
    calibrate = inside.calibrate
    engines = {size: calibrate.trials("float32", *size) for size in sizes.costs}

    def find(size: tuple, name: str, runs: int) -> list[dict]:
        return [{"row": calibrate.measured_rows({name: engines[size][name]}, *size, runs)[name]}]

    for name, size in product(ENGINES, sizes.costs):
        if name in engines[size]:
            about = {"figure": "costs", "n": size[0], "d": size[1], "c": size[2], "engine": name}
            yield Task(about, functools.partial(find, size, name))


STEPS: dict[str, tuple[float, Callable[..., Any]]] = {  # and their shares of 25 minutes
    "probes": (8, probes),
    "paper": (5, paper),
    "costs": (2, costs),
    "tests": (2, tests),
    "loops": (1, loops),
    "headline": (3, headline),
    "few": (1, few),
    "waves": (0.5, waves),
    "mmd": (1.5, mmd),
    "memory": (0.5, memory),
    "densities": (0.5, densities),
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
                with device_of(sizes):
                    for step in STEPS[name][1](sizes):
                        part.take(step, runs)
            part.data["complete"] = True
            part.save()
    os._exit(0)  # for an exit might wait for the device


@contextlib.contextmanager
def device_of(sizes: SimpleNamespace) -> Iterator[None]:
    """CUDA, if need be emulated, where figures mean nothing and are taken quickly."""
    with contextlib.ExitStack() as stack:
        if sizes is EMULATED:
            sys.path.append(str(study.ROOT / "tests"))
            import emulated_cuda  # pyright: ignore[reportMissingImports]

            stack.enter_context(emulated_cuda.emulated())
            stack.enter_context(mock.patch.multiple(inside.costs, SETTLED=1e-4, SHORTEST=1e-4, WARM_UPS=1))
            stack.enter_context(mock.patch.object(study, "peak_mebibytes", lambda call: None))
        yield
