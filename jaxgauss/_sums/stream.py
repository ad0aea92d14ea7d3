"""gauss_sum_streamed: sums over more keys than memory holds, a chunk at a time, in a run that can be interrupted."""

import contextlib
import functools
import itertools
import os
from collections.abc import Iterable, Iterator, Sized
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.lax import Precision
from jaxtyping import Array

from .._arrays.compensated import compensated, two_sum
from .._arrays.tracing import own_arrays
from .._calls import also_called
from .._checks.arguments import center_of, minus_center, public, sampled, will_be_rounded
from .._checks.names import as_engine, as_kernel
from .._checks.operands import Traced, as_operand
from .._checks.settings import Keys, Queries, Settings, Sums, Tau, Values, matmul_precision, working_dtype
from .._engines.engine import Engine
from .._engines.plan import warn_once
from .._engines.sliced.engine import Sliced
from .._kernels.kernels import GAUSS, Kernel
from .checkpoint import SavedSum
from .chunks import WHERE, State, as_pair, give_back, kind_of, read_chunk
from .display import progress_bar
from .fourier_sketch import empty_sketch
from .kernel_sum import unrounded_kernel_sum
from .preparation import checked
from .sketch import Sketch

SAVING_SHARE = 1 / 20  # the largest share of the time for saving


@public("none")
def gauss_sum_streamed(
    queries: Queries,
    chunks: Iterable[tuple[Keys, Values]],
    tau: Tau = 1.0,
    *,
    saved: str | os.PathLike[str] | None = None,
    progress: bool = False,
    kernel: str | Kernel = "gauss",
    engine: str | Engine = "auto",
    precision: str | Precision | None = None,
) -> Sums:
    """Sum Gaussian kernels over chunks of keys, for more keys than memory holds: s_m = Σ_n exp(-τ/2 ‖q_m - k_n‖²) v_n.

    While one chunk is summed, a second thread reads the next one and sends it to the device. O(MN(D + C)) operations;
    memory O(M(D + C)) and two chunks, on device and host. With "fourier" (D ≤ 3) or `Sliced` chunks go into a sketch:
    O(M + N) operations, in memory that depends on neither number. docs/scale.md has an example.

    Args:
        queries: points q, (…, M, D).
        chunks: pairs of keys (n, D) and values (n, C) or (n,): `KeyChunks`, or any iterable of pairs of NumPy arrays.
            It may write the next pair into the same memory. n may differ; a few MiB each are best.
        tau: τ = 1/σ², positive: a number, or an array that broadcasts against the leading axes of the queries.
        saved: path of a file (.npz) for the progress. It is written at the end, on any exception (Ctrl-C included), and
            now and then in between. To resume, call again with this file, the same queries, tau and options, and all
            chunks from the first. Chunks already summed are read and compared, not summed again; new chunks may follow.
            The result has the same bits as an uninterrupted run.
        progress: show a bar (needs tqdm).
        kernel, engine, precision: as for `kernel_sum`. "fourier" takes one τ.

    Returns:
        s, (…, M, C), or (…, M) for values (n,), in the promoted dtype of queries, keys and values.

    Raises:
        ValueError: as `gauss_sum` does; or there is no chunk, a chunk is not like the first, or `saved` is of another
            sum.
        TypeError: an argument is not a floating array, a chunk is not a pair of them, or the call is traced, as by
            `jit`.
        ImportError: `progress` without tqdm.

    Derivatives:
        None. For C = 1 and centered points, a streamed sum of the values [v k, v], (n, D + 1), gives [a, s], and ∂s/∂q
        = τ (a - q s).

    Precision:
        As for `gauss_sum`, for each chunk about its own center. Compensated summation adds the chunks in float32, or in
        float64 for float64 arguments: their number adds no error. For "fourier" and `Sliced`, as for `fourier_sketch`.

    Example:
        >>> import numpy as np, jaxgauss
        >>> keys = np.linspace(0, 1, 1000, dtype="float32")[:, None]
        >>> chunks = jaxgauss.KeyChunks(keys, np.ones(1000, "float32"), size=300)
        >>> jaxgauss.gauss_sum_streamed(keys[:2], chunks, 0.5).round().tolist()
        [923.0, 923.0]
    """
    function = "gauss_sum_streamed"
    kernel = as_kernel(function, kernel)
    asked = as_engine(function, engine, precision)
    _refuse_tracers(queries, tau, jnp.zeros(()))
    if not isinstance(chunks, Iterable):
        raise TypeError(f"{WHERE}: `chunks` must be an iterable of pairs; got {type(chunks).__name__}. Use KeyChunks.")
    options = repr(asked), matmul_precision(), jax.config.jax_enable_x64  # type: ignore[attr-defined]
    if (own := own_arrays()) is not None:
        options = *options, str(own)
    asked = Settings(asked, "", function, matmul_precision(), kernel=kernel)
    file = SavedSum(saved, (queries, tau, *options, *([] if kernel == GAUSS else [repr(kernel)])))
    settings, kind, empty, state, source, center = _begun(asked, queries, chunks, tau, file)
    queries = queries if center is None else minus_center(center, queries)
    queries, tau = jax.device_put(queries), as_operand(tau, settings.dtype)

    summed, total = state, None  # complete; `state` includes the chunk that is being summed, `total` is its result
    with _bar(progress, chunks, summed.num_chunks) as bar, ThreadPoolExecutor(1) as reader:

        def wait() -> None:
            nonlocal summed
            jax.block_until_ready(state.sums)
            summed = state
            if bar is not None:
                bar.update(summed.num_chunks - bar.n)

        try:
            read = functools.partial(read_chunk, source, kind, file=file, center=center)
            ahead = reader.submit(read, state)
            while (chunk := ahead.result()) is not None:
                unit = state._replace(size=chunk.size).unit
                operands = jax.device_put((chunk.keys, _times(unit, chunk.values)))
                wait()
                sums, lacking = (_times(unit / state.unit, x) for x in (state.sums, state.compensation))
                following = State(sums, lacking, state.num_chunks + 1, chunk.largest, chunk.mark, chunk.size)
                ahead = reader.submit(read, following)
                if len(chunk.keys):
                    sums, lacking, total = _added(settings, empty, sums, lacking, queries, *operands, tau)
                state = following._replace(sums=sums, compensation=lacking)  # at once: it may be saved at any time
                file.save(summed, share=SAVING_SHARE)  # while the chunk is being summed
        finally:
            try:
                wait()
            finally:
                file.save(summed)
    if total is not None and summed.unit == 1:
        return total
    return _total(settings.dtype, empty, summed.sums, summed.compensation, queries, summed.unit)


kernel_sum_streamed = public("none")(also_called("kernel_sum_streamed", gauss_sum_streamed))


@functools.partial(jax.jit, static_argnums=0)
def _added(
    settings: Settings,
    empty: Sketch | None,
    sums: Array,
    compensation: Array,
    queries: Array,
    keys: Array,
    values: Array,
    tau: Array,
) -> tuple[Array, Array, Array | None]:
    """Sums, or coefficients of a sketch, plus those of another chunk; their rounding errors so far; and the result.

    A sketch has no result yet: that takes longer than a chunk.
    """
    if empty is None:
        sums, lacking = two_sum(sums, unrounded_kernel_sum(settings, queries, keys, values, tau))
        compensation += lacking
        return sums, compensation, compensated(sums, compensation).astype(settings.dtype)
    sums, lacking = two_sum(sums, empty.sketched(keys, values, empty.margin))
    return sums, compensation + lacking, None


@functools.partial(jax.jit, static_argnums=0)
def _total(dtype: str, empty: Sketch | None, sums: Array, compensation: Array, queries: Array, unit: Any) -> Array:
    if empty is None:
        total = compensated(sums, compensation)
    else:
        total = replace(empty, coefficients=sums, rounding=compensation).sums_of(queries)
    return (total / jnp.asarray(unit, total.dtype)).astype(dtype)


def _times(factor: float, x: Any) -> Any:
    return x if factor == 1 else x * np.asarray(factor, x.dtype)


def _sketch_around(settings: Settings, queries: Any, keys: Any, values: Any, tau: Any) -> Sketch:
    """The empty sketch of a box that holds the queries, with a margin around them."""
    dtype = settings.precision
    keys, values = (jax.ShapeDtypeStruct(x.shape, dtype) for x in (keys, values))
    rows = np.asarray(queries, dtype).reshape(-1, queries.shape[-1])
    rows = rows[np.isfinite(rows).all(-1)]
    rows = rows if len(rows) else np.zeros((1, rows.shape[1]), dtype)
    lower, upper = rows.min(0), rows.max(0)

    def empty(box: Any) -> Sketch:
        return empty_sketch("gauss_sum_streamed", settings.engine, keys, values, tau, box, settings.tolerance)

    margin = empty((lower, upper)).margin
    return empty((lower - margin, upper + margin))


def _sketch_of_directions(settings: Settings, keys: Any, values: Any, tau: Any) -> Sketch:
    """The empty sketch of random directions."""
    if settings.kernel != GAUSS:
        fix = "Sum by `kernel_sum`, or without it."
        raise ValueError(f"{WHERE}: `kernel` must be 'gauss' with {settings.engine!r}; got {settings.kernel!r}. {fix}")
    keys, values = (jax.ShapeDtypeStruct(x.shape, settings.precision) for x in (keys, values))
    return empty_sketch("gauss_sum_streamed", settings.engine, keys, values, tau, (None, None))


def _begun(
    asked: Settings, queries: Any, chunks: Iterable, tau: Any, file: SavedSum
) -> tuple[Settings, str, Sketch | None, State, Iterator, np.ndarray | None]:
    """Check everything; return settings, kind of chunks, sketch if any, partial sum, chunks to sum, and center."""
    state, source = file.load(), iter(chunks)
    if state is None:
        first = list(itertools.islice(source, 1))
        if not first:
            raise ValueError(f"{WHERE}: `chunks` must hold at least one chunk; got none. Pass an empty one for zeros.")
        keys, values = as_pair(first[0], 0)
    else:
        keys, values = _passed_over(source, state, file)
        first = []
    _refuse_tracers(keys, values)
    settings, plan = checked(asked, queries, keys, values, tau)
    if len(keys.shape) != 2 or len(values.shape) > 2:
        raise ValueError(
            f"{WHERE}: `chunks` must hold keys (n, D) and values (n, C) or (n,); got keys {keys.shape}, values"
            f" {values.shape}. Leading axes are for queries and tau."
        )
    if plan.stands_in:
        warn_once(plan.reason)
    empty, center = None, center_of(sampled(queries)) if any(map(will_be_rounded, (queries, keys))) else None
    if settings.engine.name == "fourier":
        around = queries if center is None else minus_center(center, queries)
        empty = _sketch_around(settings, around, keys, values, tau)
    elif isinstance(settings.engine, Sliced):
        empty = _sketch_of_directions(settings, keys, values, tau)
    if state is None:
        batch = np.broadcast_shapes(queries.shape[:-2], np.shape(tau))
        zeros = np.zeros((*batch, queries.shape[-2], *values.shape[1:]), working_dtype(settings.dtype))
        zeros = jax.device_put(zeros) if empty is None else empty.coefficients
        state, source = State(zeros, zeros, 0, 0, "", 0.0), itertools.chain(first, source)
    return settings, kind_of(keys, values), empty, state, source, center


def _passed_over(source: Iterator, state: State, file: SavedSum) -> tuple[Any, Any]:
    """Read the chunks already summed and return the last; ValueError if they are not those of the file."""
    mark, keys, values = "", None, None
    for number, chunk in enumerate(itertools.islice(source, state.num_chunks)):
        keys, values = as_pair(chunk, number)
        mark = file.mark(mark, keys, values)
        for x in (keys, values):
            give_back(x)
    if mark != state.mark:
        raise ValueError(
            f"{WHERE}: the first {state.num_chunks} chunks must be those summed in {file.path}; got others, or fewer."
            " Pass all chunks as they were, or delete the file."
        )
    return keys, values


def _bar(progress: bool, chunks: Any, num_chunks: int) -> contextlib.AbstractContextManager[Any]:
    if not progress:
        return contextlib.nullcontext()
    total = len(chunks) if isinstance(chunks, Sized) else None
    return progress_bar("gauss_sum_streamed", total, "chunk", initial=num_chunks)


def _refuse_tracers(*arrays: Any) -> None:
    if any(isinstance(x, jax.core.Tracer) for x in arrays):
        raise Traced(
            f"{WHERE}: `queries`, `chunks` and `tau` must be known outside of transformations such as jit or grad; got"
            " a tracer. Use `gauss_sum`, or `gauss_sum_sharded` over several devices."
        )
