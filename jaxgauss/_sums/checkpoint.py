"""The file from which an interrupted stream resumes."""

import contextlib
import hashlib
import math
import os
import time
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

WHERE = "`jaxgauss.gauss_sum_streamed`"


class State(NamedTuple):
    """A partial sum, and all that is needed to resume it. Arrays are never donated, so an older state stays valid."""

    sums: Any
    compensation: Any
    num_chunks: int
    largest: int  # number of keys in the largest chunk
    mark: str  # a digest of all chunks, if the sum is saved
    size: float  # at least 2⁻⁶⁴ Σ|v|, which is finite

    @property
    def unit(self) -> float:
        """The power of two that the sums so far are multiplied by, so that none overflows: one, for most."""
        most = math.ldexp(float(np.finfo(self.sums.dtype).max), -66)
        return 1.0 if self.size <= most else 2.0 ** -math.ceil(math.log2(self.size / most))


class SavedSum:
    """The file of a partial sum, if there is one, and a digest of the arguments `of` that it belongs to."""

    def __init__(self, path: str | os.PathLike[str] | None, of: tuple[Any, ...]):
        if not isinstance(path, str | os.PathLike | None):
            raise TypeError(f"{WHERE}: `saved` must be a path; got {path!r}. Pass the name of a file.")
        self.path = None if path is None else Path(path)
        if self.path is not None and (self.path.is_dir() or not self.path.parent.is_dir()):
            raise ValueError(f"{WHERE}: `saved` must be a file in a folder that exists; got {str(path)!r}. Create it.")
        self.of = "" if path is None else digest(*of)
        self.saved_at, self.seconds = time.monotonic(), 0.0  # time of the last save, and its duration

    def mark(self, before: str, keys: Any, values: Any) -> str:
        """A digest of a chunk and of all before it; empty if nothing is saved."""
        return "" if self.path is None else digest(before, keys, values)

    def load(self) -> State | None:
        """The saved state, if any; ValueError if it belongs to another sum."""
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
        sums, compensation, num_chunks, largest, mark, size = (fields[name] for name in State._fields)
        return State(sums, compensation, int(num_chunks), int(largest), str(mark), float(size))

    def save(self, state: State, share: float = math.inf) -> None:
        """Save the state, unless that takes more than a share of the time since the last save."""
        start = time.monotonic()
        if self.path is None or state.num_chunks == 0 or self.seconds > share * (start - self.saved_at):
            return
        part = Path(f"{self.path}.part")
        with part.open("wb") as file:
            np.savez(file, of=self.of, **state._asdict())
        part.replace(self.path)
        self.saved_at = time.monotonic()
        self.seconds = self.saved_at - start


def digest(*parts: Any) -> str:
    """A digest of numbers, dtypes and shapes."""
    found = hashlib.sha256()
    for x in map(np.asarray, parts):
        found.update(f"{x.dtype} {x.shape} ".encode() + x.tobytes())
    return found.hexdigest()
