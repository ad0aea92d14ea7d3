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
from .._engines.attention.engine import Attention, kernel_of
from .._engines.costs import in_turns
from .._engines.fourier import nufft
from .._engines.fourier.boxes import box
from .._engines.fourier.cost import Sizes, transform_work
from .._engines.fourier.engine import Fourier
from .._engines.fourier.frequencies import DIMENSIONS, WAVES
from .._engines.fourier.sums import sums_by_waves, wave_grid
from .._engines.plan import Plan
from .._engines.products.engine import Blocked
from .._engines.request import NOTHING, Channels, Request
from .._engines.tiles import CUDA_TILE
from .._kernels.kernels import GAUSS
from .display import progress_bar
from .gauss_sum import gauss_sum
from .preparation import forget_all

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
CPU_DTYPES = ("float32", "float64")
KERNELS = (("flash", "float16"), ("cudnn", "float16"), ("efficient", "float16"), ("efficient", "float32"))  # on CUDA
TOLERANCES = {"float16": 2e-2, "bfloat16": 5e-2}  # others: 1e-5
Work = tuple[float, float]  # pairs, and pairs · columns; for waves see `wave_work`
Measured = tuple[Callable[..., jax.Array], Work, str]  # a function that sums, its work, its precision
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
    forget_all()
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
    passes = [("float32", engines_of_cuda)] if cuda else [(dtype, engines_of_cpu) for dtype in CPU_DTYPES]
    some = [(num, *size) for num, size in itertools.product(nums or NUMS, sizes or SIZES)]
    problems = list(itertools.product(passes, CUDA_PROBLEMS if cuda and nums is sizes is None else some))
    rows: dict[str, list[Row]] = {}
    with progress_bar("calibrate", len(problems), "size") if progress else nullcontext() as bar:
        for (dtype, engines), size in problems:
            with jax.enable_x64(True) if dtype == "float64" else nullcontext():
                for name, row in measured_rows(engines(dtype, *size), *size, runs, dtype).items():
                    rows.setdefault(name, []).append(row)
            if bar is not None:
                bar.update()
    fits = {name: fitted(x) for name, x in rows.items()}
    return {name: cost for name, (cost, _) in fits.items()}, {name: factor for name, (_, factor) in fits.items()}


def engines_of_cpu(dtype: str, num: int, dim: int, channels: int) -> dict[str, Measured]:
    """The blocked sum; PyTorch's kernel, for float32 also in bfloat16, which is fast on CPUs with AMX; and waves."""
    asked = {f"xla in {dtype}": Blocked(precision=dtype), f"kernel in {dtype}": Attention(precision=dtype)}
    if dtype == "float32":
        asked["kernel in bfloat16"] = Attention(precision="bfloat16")
    found: dict[str, Measured] = {
        name: (
            functools.partial(gauss_sum, engine=engine),
            _of_pairs(num, costs.columns(name, dim, channels)),
            str(engine.precision),
        )
        for name, engine in asked.items()
    }
    if dim in DIMENSIONS and channels == 1:
        found[f"waves in {dtype}"] = functools.partial(_by_waves, False), wave_work(num, dim), dtype
        if nufft.is_installed():
            work = transform_work(dtype, Sizes(num, num, dim, channels))
            found[f"nufft in {dtype}"] = functools.partial(_by_waves, True), work, dtype
    return found


def _by_waves(fast: bool, queries: jax.Array, keys: jax.Array, values: jax.Array) -> jax.Array:
    """The sum by one block of waves, by fast transforms or by products."""
    dtype, tau = queries.dtype.name, jnp.ones((1, 1), queries.dtype)
    plan = Plan("cuda" if has_cuda() else "cpu", Fourier(tolerance=1e-9, precision=dtype), "")
    sizes = Sizes(len(queries), len(keys), keys.shape[1], 1)
    of = wave_grid(1, plan, None, tau, sizes, box(queries, keys))
    eps = jnp.full((), nufft.LEAST[dtype], dtype) if fast else None
    of = of._replace(nodes=of.nodes._replace(eps=eps))
    request = Request(Channels((GAUSS,), values.shape[1:]), NOTHING)
    return sums_by_waves(request, of, None, queries, keys, values, tau, queries[:, :0], keys[:, :0])[0].sums


def wave_work(num: int, dim: int) -> Work:
    """The work of one block of waves for `num` queries and as many keys: waves, and coefficients."""
    return 2.0 * num * dim * 2 * WAVES[dim], 2.0 * num * (2 * WAVES[dim]) ** dim


def _of_pairs(num: int, columns: int) -> Work:
    return float(num**2), float(num**2 * columns)


def engines_of_cuda(dtype: str, num: int, dim: int, channels: int) -> dict[str, Measured]:
    """XLA, dense where "auto" may take that, and blocked; every attention kernel that takes such points; and waves."""
    waves: dict[str, Measured] = {}
    if dim in DIMENSIONS and channels == 1:
        waves["waves"] = functools.partial(_by_waves, False), wave_work(num, dim), dtype
    if num > MANY:
        return waves
    names = ["dense"] if num**2 <= CUDA_TILE.entries else []
    found: dict[str, Measured] = {
        name: (functools.partial(gauss_sum, engine=name), _of_pairs(num, costs.columns(name, dim, channels)), "float32")
        for name in (*names, "blocked")
    }
    for name, precision in KERNELS:
        engine = Attention(kernel=name, precision=precision)
        if isinstance(kernel := kernel_of(engine, "cuda", dtype, dim), str):  # too wide, or not on this card
            continue
        function = functools.partial(gauss_sum, engine=engine)
        found[costs.kernel_engine(kernel)] = (
            function,
            _of_pairs(num, costs.kernel_columns(kernel, dim, channels)),
            precision,
        )
    return found | waves


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
    found: dict[str, Measured], num: int, dim: int, channels: int, runs: int, dtype: str = "float32"
) -> dict[str, Row]:
    """A row of the least-squares problem for each engine; RuntimeError if its sum is wrong."""
    rng, calls = np.random.default_rng(0), {}
    scaled = ((dim, dim**-0.5), (dim, dim**-0.5), (channels, 1.0))
    q, k, v = operands = [jnp.asarray(rng.normal(size=(num, width)) * scale, dtype) for width, scale in scaled]
    exact = _exact(*(np.asarray(x, np.float64) for x in (q[:ROWS], k, v)))
    for name, (function, _, precision) in found.items():
        calls[name] = functools.partial(_waiting, jax.jit(function), *operands)
        error = np.linalg.norm(np.asarray(calls[name](), np.float64)[:ROWS] - exact) / np.linalg.norm(exact)
        if not error < TOLERANCES.get(precision, 1e-5):
            sizes = f"N={num}, D={dim}, C={channels}"
            raise RuntimeError(f"`jaxgauss.calibrate`: {name} is wrong on this machine: error {error:.1e} at {sizes}.")
    times = in_turns(calls, runs)
    return {name: (1, *found[name][1], 1e9 * float(np.median(seconds))) for name, seconds in times.items()}


def _exact(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    squared = np.square(q).sum(1)[:, None] + np.square(k).sum(1) - 2 * q @ k.T
    return np.exp(-squared / 2) @ v


def _waiting(function: Callable[..., Any], *operands: Any) -> Any:
    return jax.block_until_ready(function(*operands))
