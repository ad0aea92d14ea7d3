"""gauss_sum_streamed: over more keys than memory holds, a chunk at a time, in a run that can be interrupted."""

import contextlib
import functools
import hashlib
import itertools
import math
import mmap
import os
import time
import zipfile
from collections.abc import Iterable, Iterator, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ._checks import (
    Bandwidth,
    Keys,
    Queries,
    Settings,
    Sums,
    Values,
    as_operand,
    check_names,
    check_operands,
    matmul_grade,
    takes_tau,
    working_dtype,
)
from ._gauss_sum import wide_sum
from ._plan import expected_platform, plan, sizes, warn_once
from ._progress import progress_bar

WHERE = "`jaxgauss.gauss_sum_streamed`"
CHUNK_BYTES = 2**22  # of keys and values in a chunk: measured best on CPUs, for ten queries and for thousands
SAVING_SHARE = 1 / 20  # of the time, at most


class KeyChunks(Sequence):
    """Keys and values in chunks (keys (size, D), values (size, C) or (size,)), the last of them shorter.

    Chunks are slices: nothing is read before a chunk is. For arrays, memory-mapped ones (`np.memmap`,
    `np.load(…, mmap_mode="r")`) and whatever else has shape, dtype and slices.

    Args:
        keys: points, (N, D).
        values: (N, C), or (N,).
        size: of a chunk, in keys; None for 4 MiB of keys and values.

    Raises:
        ValueError: keys and values are not of one number, or size is not a positive integer.
        TypeError: keys or values are not an array.

    Example:
        >>> import numpy as np, jaxgauss
        >>> chunks = jaxgauss.KeyChunks(np.ones((10, 3)), np.ones(10), size=4)
        >>> [keys.shape for keys, values in chunks]
        [(4, 3), (4, 3), (2, 3)]
    """

    def __init__(self, keys: Any, values: Any, size: int | None = None):
        if not all(hasattr(x, "shape") and hasattr(x, "dtype") and len(x.shape) > 0 for x in (keys, values)):
            given = ", ".join(type(x).__name__ for x in (keys, values))
            raise TypeError(f"`jaxgauss.KeyChunks`: `keys` and `values` must be arrays; got {given}. Use np.asarray.")
        if keys.shape[0] != values.shape[0]:
            shapes = f"keys {tuple(keys.shape)}, values {tuple(values.shape)}"
            raise ValueError(f"`jaxgauss.KeyChunks`: `values` must hold one row for each key; got {shapes}.")
        if size is None:
            rows = (int(np.prod(x.shape[1:])) * x.dtype.itemsize for x in (keys, values))
            size = max(1, CHUNK_BYTES // max(1, sum(rows)))
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
            raise ValueError(f"`jaxgauss.KeyChunks`: `size` must be a positive integer; got {size!r}.")
        self.keys, self.values, self.size = keys, values, size

    def __repr__(self) -> str:
        given = (f"{name} {x.dtype}[{','.join(map(str, x.shape))}]" for name, x in vars(self).items() if name != "size")
        return f"KeyChunks({', '.join(given)}, size={self.size})"

    def __len__(self) -> int:
        return max(1, -(-self.keys.shape[0] // self.size))

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        start = self.size * range(len(self))[index]
        return self.keys[start : start + self.size], self.values[start : start + self.size]


@takes_tau
def gauss_sum_streamed(
    queries: Queries,
    chunks: Iterable[tuple[Keys, Values]],
    tau: Bandwidth = 1.0,
    *,
    saved: str | os.PathLike[str] | None = None,
    progress: bool = False,
    method: str = "auto",
    precision: str = "auto",
    backend: str = "auto",
) -> Sums:
    """Sum Gaussian kernels over chunks of keys: s_m = Σ_n exp(-τ/2 ‖q_m - k_n‖²) v_n, for more keys than memory holds.

    One `gauss_sum` for each chunk, added up with compensation. The next chunk is read, by a second thread, and sent to
    the device while this one is summed: O(MN(D + C)) operations in all, O(M(D + C)) memory and that of two chunks, on
    the device and on the host. (Pages of memory-mapped arrays are given back once copied.) Chunks are padded to few
    lengths, for each of which the sum is compiled.

    Args:
        queries: points q, (…, M, D).
        chunks: pairs of keys (n, D) and values (n, C) or (n,): `KeyChunks` of arrays, another sequence, or any iterable
            of NumPy arrays, whose memory may be used again for the next. n may differ; chunks of a few MiB are best.
        tau: τ = 1/σ², positive: a number, or an array that broadcasts against the leading axes of the queries.
        saved: path of a file (.npz) for what has been summed. It is written at the end, on any exception, Ctrl-C
            included (the chunk under way may be left out), and in between for less than a twentieth of the time. Called
            again with that file, the same queries, tau and options and all chunks from the first, the sum goes on:
            chunks in the file are read again, compared by a digest of all their numbers, and not summed; those at the
            end may be new. The result has the bits of an uninterrupted run.
        progress: show a bar (needs tqdm).
        method, precision, backend: as for `gauss_sum`.

    Returns:
        s, (…, M, C), or (…, M) for values (n,), in the promoted dtype of queries, keys and values.

    Raises:
        ValueError: there is no chunk, shapes do not fit, a chunk is not like the first, tau is not positive, what was
            asked for by name cannot run there, or `saved` is the file of another sum.
        TypeError: an argument is not a floating array, a chunk is not a pair of them, or the call is under a
            transformation such as jit.
        ImportError: `progress` without tqdm.

    Derivatives:
        None. Those of one channel with respect to the queries are a streamed sum of D + 1: values [v k, v] (n, D + 1)
        give [a, s], and ∂s/∂q = τ (a - q s). Subtract one center from queries and keys, to keep the digits.

    Precision:
        That of `gauss_sum` for one chunk, each about its own center. Chunks are added up in float32, or in float64 for
        float64 arguments, by Knuth's TwoSum: their number adds no error.

    Example:
        >>> import numpy as np, jaxgauss
        >>> keys = np.linspace(0, 1, 1000, dtype="float32")[:, None]
        >>> chunks = jaxgauss.KeyChunks(keys, np.ones(1000, "float32"), size=300)
        >>> jaxgauss.gauss_sum_streamed(keys[:2], chunks, 0.5).round().tolist()
        [923.0, 923.0]

    References:
        Knuth, "The Art of Computer Programming", volume 2, section 4.2.2, theorem B.
    """
    check_names("gauss_sum_streamed", method, precision, backend)
    _refuse_tracers(queries, tau, jnp.zeros(()))
    if not isinstance(chunks, Iterable):
        raise TypeError(f"{WHERE}: `chunks` must be an iterable of pairs; got {type(chunks).__name__}. Use KeyChunks.")
    options = method, precision, backend, matmul_grade()
    file = _File(saved, (queries, tau, *options, jax.config.jax_enable_x64))  # type: ignore[attr-defined]
    settings, kind, state, source = _begun(queries, chunks, tau, options, file)
    queries, tau = jnp.asarray(queries), as_operand(tau, settings.dtype)

    summed = state  # complete; `state` has the chunk that is being summed
    with _bar(progress, chunks, summed.num_chunks) as bar, ThreadPoolExecutor(1) as reader:

        def wait() -> None:
            nonlocal summed
            jax.block_until_ready(state.sums)
            summed = state
            if bar is not None:
                bar.update(summed.num_chunks - bar.n)

        try:
            ahead = reader.submit(_read, source, kind, state, file)
            while (chunk := ahead.result()) is not None:
                operands = jax.device_put((chunk.keys, chunk.values))
                wait()
                state = state._replace(num_chunks=state.num_chunks + 1, largest=chunk.largest, mark=chunk.mark)
                ahead = reader.submit(_read, source, kind, state, file)
                if len(chunk.keys):
                    sums = _added(settings, state.sums, state.compensation, queries, *operands, tau)
                    state = state._replace(sums=sums[0], compensation=sums[1])
                file.save(summed, share=SAVING_SHARE)  # while the chunk is being summed
        finally:
            try:
                wait()
            finally:
                file.save(summed)
    return _total(settings.dtype, summed.sums, summed.compensation)


class _State(NamedTuple):
    """What has been summed, and all that is needed to go on. Arrays are never donated: an older state stays whole."""

    sums: Any
    compensation: Any
    num_chunks: int
    largest: int  # number of keys in a chunk
    mark: str  # a digest of all chunks, where they are saved


class _Chunk(NamedTuple):
    """A copy of a chunk, padded."""

    keys: np.ndarray
    values: np.ndarray
    largest: int  # number of keys in a chunk, up to this one
    mark: str


@functools.partial(jax.jit, static_argnums=0)
def _added(settings: Settings, sums: Array, compensation: Array, *operands: Array) -> tuple[Array, Array]:
    """The sums with another chunk's, and what rounding has taken from them: Knuth's TwoSum."""
    part = wide_sum(settings, *operands)
    total = sums + part
    added = total - sums
    return total, compensation + ((sums - (total - added)) + (part - added))


@functools.partial(jax.jit, static_argnums=0)
def _total(dtype: str, sums: Array, compensation: Array) -> Array:
    return jnp.where(jnp.isfinite(compensation), sums + compensation, sums).astype(dtype)  # a sum may be infinite


def _begun(
    queries: Any, chunks: Iterable, tau: Any, options: tuple[str, ...], file: "_File"
) -> tuple[Settings, str, _State, Iterator]:
    """Everything is checked: settings, what chunks are like, what has been summed, and the chunks still to sum."""
    state, source = file.load(), iter(chunks)
    if state is None:
        first = list(itertools.islice(source, 1))
        if not first:
            raise ValueError(f"{WHERE}: `chunks` must hold at least one chunk; got none. Pass an empty one for zeros.")
        keys, values = _pair(first[0], 0)
    else:
        keys, values = _passed_over(source, state, file)
        first = []
    _refuse_tracers(keys, values)
    method, precision, backend, grade = options
    dtype = check_operands("gauss_sum_streamed", queries, keys, values, tau)
    if len(keys.shape) != 2 or len(values.shape) > 2:
        raise ValueError(
            f"{WHERE}: a chunk must be keys (n, D) and values (n, C) or (n,); got keys {keys.shape}, values"
            f" {values.shape}. Leading axes are for queries and tau."
        )
    settings = Settings(method, precision, backend, dtype, "gauss_sum_streamed", grade)
    chosen = plan(settings, expected_platform(queries), *sizes(queries, keys, values, tau))
    if chosen.native and chosen.platform != "cpu" and settings.automatic:
        warn_once(chosen.reason)
    if state is None:
        batch = np.broadcast_shapes(queries.shape[:-2], np.shape(tau))
        zeros = jnp.zeros((*batch, queries.shape[-2], *values.shape[1:]), working_dtype(dtype))
        state, source = _State(zeros, zeros, 0, 0, ""), itertools.chain(first, source)
    return settings, _kind(keys, values), state, source


def _passed_over(source: Iterator, state: _State, file: "_File") -> tuple[Any, Any]:
    """The last of the chunks that were summed; ValueError if they are not those in the file."""
    mark, keys, values = "", None, None
    for number, chunk in enumerate(itertools.islice(source, state.num_chunks)):
        keys, values = _pair(chunk, number)
        mark = file.mark(mark, keys, values)
        for x in (keys, values):
            _give_back(x)
    if mark != state.mark:
        raise ValueError(
            f"{WHERE}: the first {state.num_chunks} chunks must be those summed in {file.path}; got others, or fewer."
            " Pass all chunks as they were, or delete the file."
        )
    return keys, values


def _read(source: Iterator, kind: str, state: _State, file: "_File") -> _Chunk | None:
    """A padded copy of the next chunk: of `largest` rows if more than half of them are filled, else a power of two."""
    number, largest = state.num_chunks, state.largest
    for chunk in source:
        keys, values = _pair(chunk, number)
        num = keys.shape[0]
        if _kind(keys, values) != kind or values.shape[0] != num:
            raise ValueError(
                f"{WHERE}: chunk {number} must be like the first, with {kind}; got keys {keys.shape} {keys.dtype},"
                f" values {values.shape} {values.dtype}."
            )
        largest = max(largest, num)
        size = largest if 2 * num > largest else num and 2 ** (num - 1).bit_length()
        read = _Chunk(
            _padded(keys, size, keys[:1]), _padded(values, size, 0), largest, file.mark(state.mark, keys, values)
        )
        for x in (keys, values):
            _give_back(x)
        return read
    return None


def _padded(rows: Any, size: int, filling: Any) -> np.ndarray:
    copy = np.empty((size, *rows.shape[1:]), rows.dtype)
    copy[: len(rows)] = rows
    copy[len(rows) :] = filling
    return copy


def _give_back(array: Any) -> None:
    """Let go of the memory of a memory-mapped array, which is a copy of the file's, unless it is one on write."""
    owner = array
    while isinstance(owner, np.ndarray) and not isinstance(owner.base, mmap.mmap):
        owner = owner.base
    if isinstance(owner, np.memmap) and owner.mode != "c" and array.size and hasattr(mmap, "MADV_DONTNEED"):
        pages: Any = owner.base
        origin = np.frombuffer(pages, np.uint8).ctypes.data
        start, stop = (x - origin for x in np.lib.array_utils.byte_bounds(array))
        start -= start % mmap.PAGESIZE
        pages.madvise(mmap.MADV_DONTNEED, start, stop - start)


class _File:
    """Where what has been summed is saved, if anywhere, and for which sum: of the same arguments `of`."""

    def __init__(self, path: str | os.PathLike[str] | None, of: tuple[Any, ...]):
        self.path = None if path is None else Path(path)
        if self.path is not None and (self.path.is_dir() or not self.path.parent.is_dir()):
            raise ValueError(f"{WHERE}: `saved` must be a file in a folder that exists; got {str(path)!r}. Create it.")
        self.of = "" if path is None else _digest(*of)
        self.saved_at, self.seconds = time.monotonic(), 0.0  # when last, and how long it took

    def mark(self, before: str, keys: Any, values: Any) -> str:
        """A digest of a chunk and of all before it; of nothing, where nothing is saved."""
        return "" if self.path is None else _digest(before, keys, values)

    def load(self) -> _State | None:
        """What was saved; ValueError if that is of another sum."""
        if self.path is None or not self.path.exists():
            return None
        fields = {}
        unreadable = contextlib.suppress(ValueError, TypeError, EOFError, zipfile.BadZipFile)
        with unreadable, self.path.open("rb") as file, np.load(file) as arrays:
            fields = dict(arrays)
        if fields.pop("of", None) != self.of:
            raise ValueError(
                f"{WHERE}: `saved` must be a new file, or that of the same queries, tau and options; got {self.path}."
                " Delete it, or name another."
            )
        sums, compensation, num_chunks, largest, mark = (fields[name] for name in _State._fields)
        return _State(sums, compensation, int(num_chunks), int(largest), str(mark))

    def save(self, state: _State, share: float = math.inf) -> None:
        """Replace what was saved, unless that takes more than a share of the time since it was."""
        start = time.monotonic()
        if self.path is None or state.num_chunks == 0 or self.seconds > share * (start - self.saved_at):
            return
        part = Path(f"{self.path}.part")
        with part.open("wb") as file:
            np.savez(file, of=self.of, **state._asdict())
        part.replace(self.path)
        self.saved_at = time.monotonic()
        self.seconds = self.saved_at - start


def _bar(progress: bool, chunks: Any, num_chunks: int) -> contextlib.AbstractContextManager[Any]:
    if not progress:
        return contextlib.nullcontext()
    total = len(chunks) if isinstance(chunks, Sized) else None
    return progress_bar("gauss_sum_streamed", total, "chunk", initial=num_chunks)


def _pair(chunk: Any, number: int) -> tuple[Any, Any]:
    """Keys and values; TypeError for anything else."""
    pair = chunk if isinstance(chunk, tuple | list) else (chunk,)
    if len(pair) != 2 or not all(hasattr(x, "dtype") and len(getattr(x, "shape", ())) > 0 for x in pair):
        given = ", ".join(type(x).__name__ for x in pair)
        raise TypeError(
            f"{WHERE}: chunk {number} must be a pair of arrays (keys, values); got ({given}). Use KeyChunks."
        )
    return pair[0], pair[1]


def _kind(keys: Any, values: Any) -> str:
    """What all chunks have in common."""
    keys_shape, values_shape = (", ".join(("n", *map(str, x.shape[1:]))) for x in (keys, values))
    return f"keys ({keys_shape}) {keys.dtype}, values ({values_shape}) {values.dtype}"


def _digest(*parts: Any) -> str:
    digest = hashlib.sha256()
    for x in map(np.asarray, parts):
        digest.update(f"{x.dtype} {x.shape} ".encode() + x.tobytes())
    return digest.hexdigest()


def _refuse_tracers(*arrays: Any) -> None:
    if any(isinstance(x, jax.core.Tracer) for x in arrays):
        raise TypeError(
            f"{WHERE}: chunks are summed from Python, not under a transformation such as jit or grad; got a tracer."
            " Use `gauss_sum`, or `gauss_sum_sharded` over several devices."
        )
