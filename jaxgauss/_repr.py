"""What results look like in print: numbers as numbers, arrays as their dtype and shape."""

from typing import Any

import jax
import jax.core
import numpy as np


class _Text(str):
    """Printed without quotes."""

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
