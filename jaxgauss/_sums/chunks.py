"""Keys and values in chunks, from arrays or from any iterable of pairs; chunks are read one by one and padded."""

import math
import mmap
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from .._checks.arguments import as_array, as_arrays, minus_center
from .checkpoint import WHERE, SavedSum, State

CHUNK_BYTES = 2**22  # of keys and values in a chunk: measured best on CPUs, for ten queries and for thousands


class KeyChunks(Sequence):
    """Keys and values in chunks of (size, D) and (size, C) or (size,), for `gauss_sum_streamed`.

    A chunk is a slice, read only when it is used; the last one may be shorter. The arrays may be NumPy arrays,
    memory-mapped ones (`np.memmap`, `np.load(…, mmap_mode="r")`), tables, or anything else with a shape, a dtype and
    slices.

    Args:
        keys: points, (N, D).
        values: (N, C), or (N,).
        size: keys in a chunk; None for 4 MiB of keys and values.

    Raises:
        ValueError: keys and values differ in number, or size is not a positive integer.
        TypeError: keys or values are not an array.

    Example:
        >>> import numpy as np, jaxgauss
        >>> chunks = jaxgauss.KeyChunks(np.ones((10, 3)), np.ones(10), size=4)
        >>> [keys.shape for keys, values in chunks]
        [(4, 3), (4, 3), (2, 3)]
    """

    def __init__(self, keys: Any, values: Any, size: int | None = None):
        keys, values = (x if hasattr(x, "dtype") else as_array(x, "KeyChunks", "keys") for x in (keys, values))
        if not all(hasattr(x, "shape") and hasattr(x, "dtype") and len(x.shape) > 0 for x in (keys, values)):
            given = ", ".join(type(x).__name__ for x in (keys, values))
            raise TypeError(f"`jaxgauss.KeyChunks`: `keys` and `values` must be arrays; got {given}. Use np.asarray.")
        if keys.shape[0] != values.shape[0]:
            shapes = f"keys {tuple(keys.shape)}, values {tuple(values.shape)}"
            fix = "The first axes must be equal."
            raise ValueError(f"`jaxgauss.KeyChunks`: `values` must hold one row for each key; got {shapes}. {fix}")
        if size is None:
            rows = (int(np.prod(x.shape[1:])) * x.dtype.itemsize for x in (keys, values))
            size = max(1, CHUNK_BYTES // max(1, sum(rows)))
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
            raise ValueError(
                f"`jaxgauss.KeyChunks`: `size` must be a positive integer; got size {size!r}. Pass None for 4 MiB."
            )
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


class Chunk(NamedTuple):
    """A copy of a chunk, padded."""

    keys: np.ndarray
    values: np.ndarray
    largest: int  # number of keys in the largest chunk so far
    mark: str
    size: float  # of the state with this chunk


def read_chunk(source: Iterator, kind: str, state: State, file: SavedSum, center: np.ndarray | None) -> Chunk | None:
    """A copy of the next chunk, padded to `largest` rows if it fills more than half of them, else to a power of two.

    Keys are about the center, if there is one.
    """
    number, largest = state.num_chunks, state.largest
    for chunk in source:
        keys, values = as_pair(chunk, number)
        num = keys.shape[0]
        if kind_of(keys, values) != kind or values.shape[0] != num:
            raise ValueError(
                f"{WHERE}: `chunks` must be like the first, with {kind}; got keys {keys.shape} {keys.dtype},"
                f" values {values.shape} {values.dtype} as chunk {number}. Sum others by themselves."
            )
        largest = max(largest, num)
        size = largest if 2 * num > largest else num and 2 ** (num - 1).bit_length()
        points = keys if center is None else minus_center(center, keys)
        copies = _padded(points, size, points[:1]), _padded(values, size, 0)
        bound = state.size + num * math.ldexp(_largest(copies[1]), -64)
        read = Chunk(*copies, largest, file.mark(state.mark, keys, values), bound)
        for x in (keys, values):
            give_back(x)
        return read
    return None


def _largest(values: np.ndarray) -> float:
    """The largest finite |v|."""
    largest = max(float(values.max(initial=0)), -float(values.min(initial=0)))
    return largest if math.isfinite(largest) else float(np.abs(values[np.isfinite(values)]).max(initial=0))


def _padded(rows: Any, size: int, filling: Any) -> np.ndarray:
    copy = np.empty((size, *rows.shape[1:]), rows.dtype)
    copy[: len(rows)] = rows
    copy[len(rows) :] = filling
    return copy


def give_back(array: Any) -> None:
    """Release the memory of a memory-mapped array, whose content is in the file; but not if it is copied on write."""
    owner = array
    while isinstance(owner, np.ndarray) and not isinstance(owner.base, mmap.mmap):
        owner = owner.base
    if isinstance(owner, np.memmap) and owner.mode != "c" and array.size and hasattr(mmap, "MADV_DONTNEED"):
        pages: Any = owner.base
        origin = np.frombuffer(pages, np.uint8).ctypes.data
        start, stop = (x - origin for x in np.lib.array_utils.byte_bounds(array))
        start -= start % mmap.PAGESIZE
        pages.madvise(mmap.MADV_DONTNEED, start, stop - start)


def as_pair(chunk: Any, number: int) -> tuple[Any, Any]:
    """The keys and values of a chunk; TypeError if it is not a pair of arrays."""
    parts = chunk if isinstance(chunk, tuple | list) else (chunk,)
    pair = tuple(as_arrays("gauss_sum_streamed", {f"chunks[{i}]": x for i, x in enumerate(parts)}).values())
    if len(pair) != 2 or not all(hasattr(x, "dtype") and len(getattr(x, "shape", ())) > 0 for x in pair):
        given = ", ".join(type(x).__name__ for x in pair)
        raise TypeError(
            f"{WHERE}: `chunks` must hold pairs of arrays (keys, values); got ({given}) as chunk {number}. Use"
            " jaxgauss.KeyChunks(keys, values)."
        )
    return pair[0], pair[1]


def kind_of(keys: Any, values: Any) -> str:
    """The shapes and dtypes that all chunks must have in common, as text."""
    keys_shape, values_shape = (", ".join(("n", *map(str, x.shape[1:]))) for x in (keys, values))
    return f"keys ({keys_shape}) {keys.dtype}, values ({values_shape}) {values.dtype}"
