"""Sketches and sums of Dask arrays larger than a machine's memory: workers sum blocks, and a tree adds the results."""

import functools
import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax.lax import Precision

from ._arrays.compensated import compensated, two_sum
from ._arrays.points import padded
from ._checks.arguments import as_arrays, public
from ._checks.box import Bound
from ._checks.names import as_engine, as_kernel
from ._checks.operands import check_operands
from ._checks.optional import needed
from ._checks.settings import Queries, Tau, working_dtype
from ._engines.engine import Engine
from ._engines.sliced.engine import Sliced
from ._kernels.kernels import Kernel
from ._sums.chunks import KeyChunks
from ._sums.fourier_sketch import empty_sketch
from ._sums.fourier_sketch import fourier_sketch as sketch_in_memory
from ._sums.sketch import Sketch
from ._sums.stream import gauss_sum_streamed

with needed("jaxgauss.dask", "dask"):
    from dask.array import Array as DaskArray
    from dask.delayed import Delayed, delayed
    from dask.sizeof import sizeof

SPLIT = 8  # partial sums that a task adds


@public(None)
def fourier_sketch(
    keys: DaskArray,
    values: DaskArray,
    tau: float = 1.0,
    *,
    lower: Bound = None,
    upper: Bound = None,
    tolerance: float | None = None,
    engine: str | Engine = "fourier",
) -> Delayed:
    """Reduce the weighted points of Dask arrays to Fourier coefficients, as `jaxgauss.fourier_sketch` does in memory.

    A worker reads a block of keys and values and keeps its coefficients; sketches are added eight at a time, in a tree.
    O(N) operations; memory for the blocks in progress and their sketches. The arrays may come from files, by
    `dask.array.from_zarr` or `dask.dataframe.read_parquet(…).values`; docs/scale.md shows how.

    Args:
        keys: points k, (N, D), in blocks of rows; their number may be unknown, as in a table. Blocks of a few
            MiB, of about equal lengths, are best.
        values: v, (N, C) or (N,), in the same blocks.
        tau: τ = 1/σ², a positive number.
        lower, upper: corners of the box that holds all keys and queries: numbers, or (D,). "fourier" needs them.
        tolerance, engine: as for `jaxgauss.fourier_sketch`.

    Returns:
        A `dask.delayed.Delayed`. `compute()` returns the sketch; under a `dask.distributed.Client`, that of a
        cluster. The arrays of the sketch are NumPy's.

    Raises:
        ValueError: as `jaxgauss.fourier_sketch` does; or values do not come in the blocks of the keys, or there is no
            box. A key outside of the box is an error of its task.
        TypeError: keys or values are not Dask arrays of floating numbers.

    Precision:
        As for `jaxgauss.fourier_sketch`; workers take the 64-bit mode of the caller. The order of additions depends on
        the blocks alone: if a worker is lost, the blocks that are computed again give the same bits, as long as all
        workers' processors are of one kind.

    Example:
        >>> import dask.array, jax.numpy as jnp, jaxgauss, jaxgauss.dask
        >>> keys = dask.array.random.default_rng(0).uniform(size=(1000, 2), chunks=(300, 2)).astype("float32")
        >>> weights = dask.array.ones(1000, chunks=300, dtype="float32")
        >>> sketch = jaxgauss.dask.fourier_sketch(keys, weights, 50.0, lower=0, upper=1).compute(scheduler="threads")
        >>> points, ones = jnp.asarray(keys.compute()), jnp.ones(1000)
        >>> bool(jnp.allclose(sketch(points), jaxgauss.gauss_sum(points, points, ones, 50.0), rtol=1e-4))
        True
    """
    function = "dask.fourier_sketch"
    shapes = _shapes(function, keys, values)
    of = as_engine(function, engine)
    if not isinstance(of, Sliced) and (lower is None or upper is None):
        raise ValueError(
            f"`jaxgauss.{function}`: `lower` and `upper` must be given, because nothing holds all keys; got lower"
            f" {lower}, upper {upper}. dask.compute(keys.min(0), keys.max(0)) finds them."
        )
    empty = empty_sketch(function, of, *shapes, tau, (lower, upper), tolerance)
    task = delayed(_sketch_of, pure=False)
    return _tree([task(k, v, empty.tau, empty.kind, _has_64_bits()) for k, v in _blocks(keys, values)], _add_sketches)


@public(None)
def gauss_sum(
    queries: Queries,
    keys: DaskArray,
    values: DaskArray,
    tau: Tau = 1.0,
    *,
    kernel: str | Kernel = "gauss",
    engine: str | Engine = "auto",
    precision: str | Precision | None = None,
) -> Delayed:
    """Sum Gaussian kernels over keys in Dask arrays, in any dimension: s_m = Σ_n exp(-τ/2 ‖q_m - k_n‖²) v_n.

    A worker streams the block of keys that it has read, by `gauss_sum_streamed`; partial sums are added eight at a
    time, in a tree. O(MN(D + C)) operations; memory for the blocks in progress, and O(M(D + C)) for each.

    Args:
        queries: points q, (…, M, D), an array in memory: every worker gets all of them.
        keys: points k, (N, D), in blocks of rows, as for `fourier_sketch`, in any dimension.
        values: v, (N, C) or (N,), in the same blocks.
        tau: τ = 1/σ², as for `gauss_sum_streamed`.
        kernel, engine, precision: as for `gauss_sum_streamed`, on every worker.

    Returns:
        A `dask.delayed.Delayed`, whose `compute()` returns s, (…, M, C), or (…, M) for values (N,): a NumPy array in
        the promoted dtype of queries, keys and values.

    Raises:
        ValueError: as `gauss_sum` does; or values do not come in the blocks of the keys.
        TypeError: queries are not an array of floating numbers, keys or values are not Dask arrays of such.

    Precision:
        As for `gauss_sum_streamed`, for each block; compensated summation adds the blocks. If a worker is lost, the
        result has the same bits, as for `fourier_sketch`.

    Example:
        >>> import dask.array, numpy as np, jaxgauss.dask
        >>> keys = dask.array.linspace(0, 1, 1000, chunks=300, dtype="float32")[:, None]
        >>> queries, weights = np.zeros((1, 1), "float32"), dask.array.ones(1000, chunks=300, dtype="float32")
        >>> jaxgauss.dask.gauss_sum(queries, keys, weights, 0.5).compute(scheduler="threads").round().tolist()
        [923.0]
    """
    function = "dask.gauss_sum"
    queries = as_arrays(function, {"queries": queries})["queries"]
    shapes = _shapes(function, keys, values)
    as_kernel(function, kernel)
    options = {"kernel": kernel, "engine": as_engine(function, engine, precision)}
    dtype = check_operands(function, queries, *shapes, tau)
    is_float64 = np.dtype("float64") in (
        queries.dtype,
        shapes[0].dtype,
    )  # a worker centers points before it rounds them
    kept = np.dtype("float64") if is_float64 else working_dtype(dtype)
    rows = delayed(np.asarray(queries).astype(kept), pure=False)  # partial sums are not rounded
    task = delayed(_sum_of, pure=False)
    found = [task(rows, k, v, np.asarray(tau), options, _has_64_bits()) for k, v in _blocks(keys, values)]
    return delayed(_rounded, pure=False)(_tree(found, _add_sums), dtype, _has_64_bits())


def _shapes(function: str, keys: Any, values: Any) -> tuple[Any, Any]:
    """Shapes and dtypes of both, without rows if their number is unknown; an error unless both come in equal blocks."""
    where = f"`jaxgauss.{function}`"
    for name, x in (("keys", keys), ("values", values)):
        if not isinstance(x, DaskArray):
            raise TypeError(
                f"{where}: `{name}` must be a Dask array; got {type(x).__name__}. Use dask.array.from_array, or"
                f" `jaxgauss.{function.removeprefix('dask.')}` for arrays in memory."
            )
    if keys.ndim != 2 or values.ndim not in (1, 2):
        raise ValueError(
            f"{where}: `keys` must be (N, D), `values` (N, C) or (N,); got keys {keys.shape}, values {values.shape}."
            " Leading axes are for queries and tau."
        )
    rows = [np.asarray(x.chunks[0], float) for x in (keys, values)]
    whole = all(len(x.chunks[1]) == 1 for x in (keys, values)[: values.ndim])
    if not whole or not np.array_equal(*rows, equal_nan=True):
        raise ValueError(
            f"{where}: `values` must come in the blocks of the keys, which are whole rows; got keys {keys.chunks},"
            f" values {values.chunks}. Use keys.rechunk({{1: -1}}) and values.rechunk({{0: keys.chunks[0]}})."
        )
    known = np.isfinite(rows[0]).all()
    found = (
        jax.ShapeDtypeStruct((x.shape[0] if known else 0, *x.shape[1:]), x.dtype.newbyteorder("="))
        for x in (keys, values)
    )
    return next(found), next(found)


def _blocks(*arrays: Any) -> list[tuple[Delayed, Delayed]]:
    """Pairs of blocks; a source that both arrays share is read once."""
    both = (x.to_delayed(optimize_graph=False).ravel() for x in arrays)  # optimized graphs would each read the source
    return list(zip(*both, strict=True))


def _tree(parts: list[Delayed], add: Callable) -> Delayed:
    """The sum of all parts, in an order that depends on their number alone."""
    task = delayed(add, pure=False)
    while len(parts) > 1:
        parts = [task(parts[i : i + SPLIT]) for i in range(0, len(parts), SPLIT)]
    return parts[0]


def _has_64_bits() -> bool:
    """Whether JAX is in its 64-bit mode here."""
    return jax.config.jax_enable_x64  # type: ignore[attr-defined]


def _sketch_of(keys: Any, values: Any, tau: float, kind: dict[str, Any], x64: bool) -> Sketch:
    """The sketch of a block, held by NumPy; it is padded, or a program would be compiled for every length."""
    keys, values = (np.asarray(x) for x in (keys, values))
    with jax.enable_x64(x64):
        return _in_numpy(sketch_in_memory(padded(keys), padded(values, "constant"), tau, **kind))


def _in_numpy(sketch: Sketch) -> Sketch:
    return replace(sketch, coefficients=np.asarray(sketch.coefficients), rounding=np.asarray(sketch.rounding))


def _add_sketches(sketches: list[Sketch]) -> Sketch:
    return functools.reduce(operator.add, sketches)


def _sum_of(queries: Any, keys: Any, values: Any, tau: Any, options: dict[str, Any], x64: bool) -> tuple:
    """The sums over a block, and their rounding errors."""
    keys, values = (np.asarray(x).astype(queries.dtype, copy=False) for x in (keys, values))
    with jax.enable_x64(x64):
        sums = np.asarray(gauss_sum_streamed(queries, KeyChunks(keys, values), tau, **options))
    return sums, np.zeros_like(sums)


def _add_sums(parts: list[tuple]) -> tuple:
    """Partial sums, and their rounding errors so far."""
    total, lacking = parts[0]
    for sums, more in parts[1:]:
        total, error = two_sum(total, sums)
        lacking = lacking + more + error
    return total, lacking


def _rounded(pair: tuple, dtype: str, x64: bool) -> np.ndarray:
    with jax.enable_x64(x64):
        return np.asarray(compensated(*pair).astype(dtype))


@sizeof.register(Sketch)
def _bytes(sketch: Sketch) -> int:
    """The memory of a sketch, as Dask should count it."""
    return sketch.coefficients.nbytes + sketch.rounding.nbytes
