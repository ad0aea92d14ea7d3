"""How results are printed, and progress bars."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.core
import numpy as np


class _Text(str):
    """Text that is printed without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def short_repr(self: Any) -> str:
    """`__repr__` of a named tuple or a dataclass of pytrees."""
    fields = (f"{name}={jax.tree.map(_short, getattr(self, name))!r}" for name in type(self).__annotations__)
    return f"{type(self).__name__}({', '.join(fields)})"


def _short(x: Any) -> _Text:
    if not hasattr(x, "shape") or not hasattr(x, "dtype"):
        return _Text(repr(x))
    if x.shape == () and not isinstance(x, jax.core.Tracer) and getattr(x, "is_fully_addressable", True):
        return _Text(f"{float(np.asarray(x, np.float64)):.4g}")
    return _Text(f"{x.dtype}[{','.join(map(str, x.shape))}]")


def progress_bar(function: str, total: int | None, unit: str, **options: Any) -> Any:
    """A progress bar of tqdm; ImportError with the install command if that is missing."""
    try:
        from tqdm import tqdm
    except ImportError as error:
        raise ImportError(
            f"`jaxgauss.{function}`: `progress` must be False without tqdm; got True. Run: pip install tqdm"
        ) from error
    return tqdm(total=total, desc=function, unit=unit, **options)


_bars: list[Any] = []


@contextlib.contextmanager
def counting(function: str, unit: str) -> Iterator[None]:
    """A progress bar of the calls of functions `with_count`."""
    with progress_bar(function, None, unit) as bar:
        _bars.append(bar)
        try:
            yield
            jax.effects_barrier()
        finally:
            _bars.remove(bar)


def with_count(function: Callable) -> Callable:
    """The function, whose calls advance the newest bar of `counting`, also in a compiled program."""

    def update() -> None:
        if _bars:
            _bars[-1].update()

    def called(*args: Any) -> Any:
        jax.debug.callback(update)
        return function(*args)

    return called


def refuse_progress_in_a_trace(function: str, *arrays: Any) -> None:
    """Raise ValueError under a transformation, because tracing has no progress to show."""
    refuse_progress(function, any(isinstance(x, jax.core.Tracer) for x in arrays), "under a transformation such as jit")


def refuse_progress(function: str, is_asked: bool, where: str) -> None:
    """Raise ValueError if progress is asked for where there is none to show."""
    if is_asked:
        raise ValueError(f"`jaxgauss.{function}`: `progress` must be False {where}; got True. Leave it out.")
