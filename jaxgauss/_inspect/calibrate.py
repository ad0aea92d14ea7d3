"""calibrate: the costs by which `auto` chooses, measured on this machine."""

import datetime
import functools
import itertools
import json
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._arrays.devices import has_cuda
from .._checks.arguments import public
from .._engines import bridge, costs
from .._engines.costs import in_turns
from .._engines.engine import Problem, Trial
from .._engines.engines import ENGINES
from .._kernels.kernels import GAUSS
from .._sums.display import progress_bar
from .._sums.gauss_sum import gauss_sum
from .._sums.preparation import forget_plans

NUMS = 64, 4096
SIZES = ((1, 1), (2, 1), (3, 1), (16, 16), (64, 1), (64, 64), (128, 128))  # dimension, channels
CUDA_PROBLEMS = (  # points, dimension, channels: every engine takes seconds to compile
    *((1024, 3, 1), (1024, 64, 64), (4096, 16, 16), (4096, 128, 1)),
    *((16384, 3, 1), (16384, 64, 64), (16384, 128, 128)),
    *((2**17, 1, 1), (2**17, 2, 1), (2**17, 3, 1)),
)
MANY = 2**14  # points beyond which only waves are measured
RUNS = 5
ROWS = 64  # queries at which a sum is compared with float64
CPU_DTYPES, CUDA_DTYPES = ("float32", "float64"), ("float32",)
TOLERANCES = {"float16": 2e-2, "bfloat16": 5e-2}  # others: 1e-5
Row = tuple[float, float, float, float]  # 1, the work and nanoseconds


class Calibration(NamedTuple):
    """The costs that `calibrate` measured.

    Attributes:
        machine: the CPU or CUDA device that was measured, and the versions of jaxlib and PyTorch.
        costs: for each way to compute a sum, nanoseconds per call, per pair of points, and per pair and column of the
            products.
        off_by: the largest factor between a measured time and the time that the costs predict.
        path: the file that holds the costs. Delete it to return to the table that comes with jaxgauss.
    """

    machine: str
    costs: costs.Costs
    off_by: float
    path: Path


@public(None)
def calibrate(*, progress: bool = False) -> Calibration:
    """Measure this machine, so that `auto` chooses by what sums cost here. Takes about two minutes.

    It times `gauss_sum` in XLA, by PyTorch's kernels, by a Fourier series and, if installed, by finufft, for up to 4096
    points (16384 on CUDA). Each result is checked against float64 first. The costs are saved in the user's cache
    directory for this machine and these versions; every process uses them from then on, and `explain` says so. Let
    nothing else compute meanwhile. All programs that JAX has compiled in this process are dropped, because `auto` may
    now decide otherwise.

    Args:
        progress: show a bar (needs tqdm).

    Returns:
        A `Calibration`.

    Raises:
        RuntimeError: a result is wrong.
        OSError: the cache directory cannot be written.
        ImportError: `progress` without tqdm.

    Example:
        >>> import jaxgauss
        >>> found = jaxgauss.calibrate()  # doctest: +SKIP
        >>> jaxgauss.explain(points, points, weights).reason  # doctest: +SKIP
        'an estimated 11.7 ms by blocked in float32, 51.4 ms by attention in float32 (measured here on 2026-11-23)'
    """
    path = costs.calibrated_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    name = costs.machine(bridge.card().name if has_cuda() else None)
    found, off_by = measured_costs(RUNS, progress=progress)
    row = {"date": datetime.date.today().isoformat()} | {engine: cost._asdict() for engine, cost in found.items()}
    part = path.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps(costs.calibrated_rows() | {name: row}, indent=1) + "\n")
    part.replace(path)
    costs.forget_costs()
    forget_plans()
    return Calibration(name, found, max(off_by.values()), path)


def measured_costs(
    runs: int,
    nums: Sequence[int] | None = None,
    sizes: Sequence[tuple[int, int]] | None = None,
    *,
    progress: bool = False,
) -> tuple[costs.Costs, dict[str, float]]:
    """The costs of every engine on JAX's platform, and the largest factor by which each is off."""
    cuda = has_cuda()
    some = [(num, *size) for num, size in itertools.product(nums or NUMS, sizes or SIZES)]
    every = CUDA_PROBLEMS if cuda and nums is sizes is None else some
    problems = list(itertools.product(CUDA_DTYPES if cuda else CPU_DTYPES, every))
    known = costs.cuda_costs(costs.CARD)[0] if cuda else {}  # rows of the table: other kernels may not run everywhere
    rows: dict[str, list[Row]] = {}
    with progress_bar("calibrate", len(problems), "size") if progress else nullcontext() as bar:
        for dtype, (num, dim, channels) in problems:
            with jax.enable_x64(True) if dtype == "float64" else nullcontext():
                found = {name: x for name, x in trials(dtype, num, dim, channels).items() if not cuda or name in known}
                for name, row in measured_rows(found, num, dim, channels, runs, dtype).items():
                    rows.setdefault(name, []).append(row)
            if bar is not None:
                bar.update()
    fits = {name: fitted(x) for name, x in rows.items()}
    return {name: cost for name, (cost, _) in fits.items()}, {name: factor for name, (_, factor) in fits.items()}


def trials(dtype: str, num: int, dim: int, channels: int) -> dict[str, Trial]:
    """What every engine measures of `num` queries and as many keys, by rows of the table of costs."""
    problem = Problem("cuda" if has_cuda() else "cpu", dtype, GAUSS, num**2, dim, channels)
    found = [trial for engine in ENGINES for trial in engine.trials(problem)]
    return {x.row: x for x in found if not has_cuda() or num <= MANY or x.row == "waves"}


def fitted(rows: list[Row]) -> tuple[costs.Cost, float]:
    """Positive costs by least squares of logarithms, where factors above and below count alike; the largest factor."""
    from scipy.optimize import least_squares  # JAX needs it as well

    table = np.array(rows)
    design, nanoseconds = table[:, :3], np.log(table[:, 3])

    def off(logs: np.ndarray) -> np.ndarray:
        return np.log(design @ np.exp(logs)) - nanoseconds

    start = [nanoseconds.min(), *np.log(np.exp(nanoseconds.max()) / design[:, 1:].max(0))]
    cost = costs.Cost(*(float(f"{x:.3g}") for x in np.exp(least_squares(off, start).x)))
    return cost, float(np.exp(np.abs(off(np.log(cost))).max()))


def measured_rows(
    found: dict[str, Trial], num: int, dim: int, channels: int, runs: int, dtype: str = "float32"
) -> dict[str, Row]:
    """A row of the least-squares problem for each engine; RuntimeError if its sum is wrong."""
    rng, calls = np.random.default_rng(0), {}
    scaled = ((dim, dim**-0.5), (dim, dim**-0.5), (channels, 1.0))
    q, k, v = operands = [jnp.asarray(rng.normal(size=(num, width)) * scale, dtype) for width, scale in scaled]
    exact = _exact(*(np.asarray(x, np.float64) for x in (q[:ROWS], k, v)))
    for name, trial in found.items():
        function = trial.function or functools.partial(gauss_sum, engine=trial.engine)
        calls[name] = functools.partial(_waiting, jax.jit(function), *operands)
        error = np.linalg.norm(np.asarray(calls[name](), np.float64)[:ROWS] - exact) / np.linalg.norm(exact)
        if not error < TOLERANCES.get(trial.engine.precision or "", 1e-5):
            sizes = f"N={num}, D={dim}, C={channels}"
            raise RuntimeError(f"`jaxgauss.calibrate`: {name} is wrong on this machine: error {error:.1e} at {sizes}.")
    times = in_turns(calls, runs)
    return {name: (1, *found[name].work, 1e9 * float(np.median(seconds))) for name, seconds in times.items()}


def _exact(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    squared = np.square(q).sum(1)[:, None] + np.square(k).sum(1) - 2 * q @ k.T
    return np.exp(-squared / 2) @ v


def _waiting(function: Callable[..., Any], *operands: Any) -> Any:
    return jax.block_until_ready(function(*operands))
