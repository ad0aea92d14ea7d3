"""How results are printed, and progress bars."""

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
    """`__repr__` of a named tuple of pytrees."""
    fields = (f"{name}={jax.tree.map(_short, x)!r}" for name, x in zip(self._fields, self, strict=True))
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


def refuse_progress_in_a_trace(function: str, *arrays: Any) -> None:
    """Raise ValueError under a transformation, because tracing has no progress to show."""
    if any(isinstance(x, jax.core.Tracer) for x in arrays):
        raise ValueError(
            f"`jaxgauss.{function}`: `progress` must be False under a transformation such as jit; got True. Leave it"
            " out."
        )
