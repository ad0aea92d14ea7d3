"""The file that an interrupted stream goes on from."""

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
    """What has been summed, and all that is needed to go on. Arrays are never donated: an older state stays whole."""

    sums: Any
    compensation: Any
    num_chunks: int
    largest: int  # number of keys in a chunk
    mark: str  # a digest of all chunks, where they are saved


class SavedSum:
    """Where what has been summed is saved, if anywhere, and for which sum: of the same arguments `of`."""

    def __init__(self, path: str | os.PathLike[str] | None, of: tuple[Any, ...]):
        self.path = None if path is None else Path(path)
        if self.path is not None and (self.path.is_dir() or not self.path.parent.is_dir()):
            raise ValueError(f"{WHERE}: `saved` must be a file in a folder that exists; got {str(path)!r}. Create it.")
        self.of = "" if path is None else digest(*of)
        self.saved_at, self.seconds = time.monotonic(), 0.0  # when last, and how long it took

    def mark(self, before: str, keys: Any, values: Any) -> str:
        """A digest of a chunk and of all before it; of nothing, where nothing is saved."""
        return "" if self.path is None else digest(before, keys, values)

    def load(self) -> State | None:
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
        sums, compensation, num_chunks, largest, mark = (fields[name] for name in State._fields)
        return State(sums, compensation, int(num_chunks), int(largest), str(mark))

    def save(self, state: State, share: float = math.inf) -> None:
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


def digest(*parts: Any) -> str:
    """Of numbers, dtypes and shapes."""
    found = hashlib.sha256()
    for x in map(np.asarray, parts):
        found.update(f"{x.dtype} {x.shape} ".encode() + x.tobytes())
    return found.hexdigest()
