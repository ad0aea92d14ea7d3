"""What public functions are given for arrays: those of other libraries, and points far from the origin.

Without JAX's 64-bit mode NumPy's float64 becomes float32, which would round points far from the origin to a coarse
grid. Sums see differences only, so a center that all points have in common is subtracted before, in float64.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import numpy as np

from .operands import refuse_other_names
from .settings import DTYPES

POINTS = ("queries", "keys", "points", "x", "y", "samples", "data", "particles")
OTHERS = (
    *("values", "weights", "x_weights", "y_weights", "log_weights", "scores", "sums", "noise"),
    *("tau", "taus", "tau_x", "tau_y"),
)
ARRAYS = frozenset((*POINTS, *OTHERS))
SAMPLE = 128  # points of each array whose median is the center
FAR = 8  # the distance of the center from the origin, in spreads of the points, from which it is subtracted
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def takes_arrays(center: str = "common") -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Decorate a public function: its arrays may be tables or in another byte order, its points far from the origin.

    Arguments are known by their names. If there is τ, a bandwidth under another name is refused. Points get one
    center that is "common", or each array its "own", or "none" because the function sees to it.
    """

    def decorate(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        names = tuple(inspect.signature(function).parameters)
        has_tau = "tau" in names

        @functools.wraps(function)
        def checked(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
            if has_tau:
                refuse_other_names(function.__name__, kwargs)
            if all(map(_is_plain, map(type, (*args, *kwargs.values())))):
                return function(*args, **kwargs)
            given = dict(zip(names, args, strict=False)) | kwargs
            found = {name: as_array(x) for name, x in given.items() if name in ARRAYS}
            points = [name for name in POINTS if name in found]
            for group in [points] if center == "common" else [[name] for name in points if center == "own"]:
                found.update(zip(group, centered(*(found[name] for name in group))[1], strict=True))
            called: Any = function
            first = (found.get(name, x) for name, x in zip(names, args, strict=False))
            return called(*first, *args[len(names) :], **{name: found.get(name, x) for name, x in kwargs.items()})

        return checked

    return decorate


@functools.cache
def _is_plain(kind: type) -> bool:
    """Whether nothing of this type is an array but JAX's own."""
    return issubclass(kind, jax.Array | np.generic) or not hasattr(kind, "__array__")


def as_array(x: Any) -> Any:
    """NumPy's array of an object that has one, such as a table, in the machine's byte order; anything else as it is."""
    if not isinstance(x, np.ndarray):
        if _is_plain(type(x)) or isinstance(x, jax.Array) or hasattr(x, "__dlpack__"):
            return x
        x = np.asarray(x)
    return x if x.dtype.isnative else x.astype(x.dtype.newbyteorder("="))


def will_be_rounded(x: Any) -> bool:
    """Whether it is an array of NumPy's float64, which JAX is about to round to float32."""
    config: Any = jax.config
    return isinstance(x, np.ndarray) and x.dtype == np.float64 and not config.jax_enable_x64


def centered(*points: Any) -> tuple[np.ndarray | None, tuple[Any, ...]]:
    """The center of all points if some will be rounded, or None if it is near; and the points about it."""
    if not any(map(will_be_rounded, points)) or not _are_points(*points):
        return None, points
    center = center_of(*filter(will_be_rounded, points))
    return center, points if center is None else tuple(about(center, x) for x in points)


def _are_points(*arrays: Any) -> bool:
    """Whether all are floating arrays of points of one dimension; other arguments are refused later, or chunks."""
    are = all(isinstance(x, jax.Array | np.ndarray) and x.ndim > 1 and x.dtype.name in DTYPES for x in arrays)
    return are and len({x.shape[-1] for x in arrays}) == 1


def center_of(*points: Any) -> np.ndarray | None:
    """The median of some points (D,), numbers of float32, zero where it is not far; None if it is zero."""
    flat = (x.reshape(-1, x.shape[-1]) for x in points)
    some = np.concatenate([np.asarray(x[:: max(1, len(x) // SAMPLE)][:SAMPLE], np.float64) for x in flat])
    some = some[np.isfinite(some).all(-1)]
    if not len(some):
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        median = np.sort(some, 0)[len(some) // 2]
        spread = np.sort(np.abs(some - median), 0)[len(some) // 2]
        center = np.where(np.abs(median) > FAR * spread, median, 0).astype(np.float32)
    center = np.where(np.isfinite(center), center, np.float32(0))
    return center if center.any() else None


def about(center: np.ndarray, points: Any) -> Any:
    """The points about the center, in float32 unless NumPy's are float64; a difference of near numbers is exact."""
    wide = isinstance(points, np.ndarray) and points.dtype == np.float64
    return (points if wide else points.astype(np.float32)) - center.reshape(*[1] * (points.ndim - 1), -1)
