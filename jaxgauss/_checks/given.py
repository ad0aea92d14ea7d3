"""What public functions are given for arrays: those of other libraries, and points far from the origin.

Without JAX's 64-bit mode NumPy's float64 becomes float32, which would round points far from the origin to a coarse
grid. Sums see differences only, so a center that all points have in common is subtracted before, in float64. Where they
have none, a warning says so.
"""

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import numpy as np

from .._calls import misfit, public_name
from .operands import FLOATING, TAU_RANGE
from .samples import warn

POINTS = ("queries", "keys", "points", "x", "y", "samples", "data", "particles")
OTHERS = (
    *("values", "weights", "x_weights", "y_weights", "log_weights", "scores", "sums", "noise"),
    *("tau", "taus", "tau_x", "tau_y"),
)
ARRAYS = frozenset((*POINTS, *OTHERS))
FLOAT32, FLOAT64 = np.dtype("float32"), np.dtype("float64")
SAMPLE = 32  # points of each array whose median is the center
LARGEST = 1e38  # the largest coordinate of a center
NEAR = 1 / 8  # how near to the median, relative to it, half of the points must be for it to be subtracted
MOVED, FEW = 1e-3, 1 / 8  # by how many bandwidths rounding may move points; and which part of them any farther
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def public(center: str | None = "common") -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Decorate a public function: its arrays may be tables or in another byte order, its points far from the origin.

    Arguments are known by their names, and refused in the function's name if it does not take them. Points get one
    center that is "common", or each array its "own", or "none" because the function sees to it; with None all stay as
    they are.
    """

    def decorate(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        defaults = {name: p.default for name, p in inspect.signature(function).parameters.items()}

        @functools.wraps(function)
        def called(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
            for x in () if center is None else (*args, *kwargs.values()) if kwargs else args:  # a loop: 0.1 µs for each
                if not (type(x) in _READY or _is_ready(x)):
                    args, kwargs = _as_taken(public_name(function), defaults, center, args, kwargs)
                    break
            try:
                return function(*args, **kwargs)
            except TypeError:
                wrong = misfit(function, args, kwargs)
                if wrong is None:
                    raise
            raise wrong

        return called

    return decorate


def _as_taken(function: str, names: dict[str, Any], center: str | None, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments with their arrays as functions take them; names of parameters come with their defaults."""
    given = dict(zip(names, args, strict=False)) | kwargs
    found = {name: as_array(x) for name, x in given.items() if name in ARRAYS}
    points = [name for name in POINTS if name in found]
    for group in [points] if center == "common" else [[name] for name in points if center == "own"]:
        moved = dict(zip(group, centered(*(found[name] for name in group))[1], strict=True))
        tau = f"tau_{group[0]}" if center == "own" else "tau"
        warn_if_moved(function, given.get(tau, names.get(tau)), moved)
        found |= moved
    first = (found.get(name, x) for name, x in zip(names, args, strict=False))
    return (*first, *args[len(names) :]), {name: found.get(name, x) for name, x in kwargs.items()}


_READY: set[type] = set()  # types of which every object is ready, as far as they have been met


def _is_ready(x: Any) -> bool:
    """Whether an argument can stay: JAX's arrays, those of NumPy that JAX takes as they are, and what is no array."""
    kind = type(x)
    if kind is np.ndarray:
        return x.dtype is FLOAT32 or (x.dtype is FLOAT64 and not will_be_rounded(x))
    if issubclass(kind, jax.Array | np.generic) or not hasattr(kind, "__array__"):
        _READY.add(kind)
        return True
    return isinstance(x, jax.Array)  # a tracer


def as_array(x: Any) -> Any:
    """NumPy's array of an object that has one, such as a table, in the machine's byte order; anything else as it is."""
    if not isinstance(x, np.ndarray):
        if _is_ready(x) or hasattr(x, "__dlpack__"):
            return x
        x = np.asarray(x)
    return x if x.dtype.isnative else x.astype(x.dtype.newbyteorder("="))


def will_be_rounded(x: Any) -> bool:
    """Whether it is an array of NumPy's float64, which JAX is about to round to float32."""
    config: Any = jax.config
    return isinstance(x, np.ndarray) and x.dtype == FLOAT64 and not config.jax_enable_x64


def centered(*points: Any) -> tuple[np.ndarray | None, tuple[Any, ...]]:
    """The center of all points if some will be rounded, or None if it is near; and the points about it."""
    rounded = [x for x in points if will_be_rounded(x)]
    center = center_of(*rounded) if rounded and _are_points(*points) else None
    return center, points if center is None else tuple(about(center, x) for x in points)


def _are_points(*arrays: Any) -> bool:
    """Whether all are floating arrays of points of one dimension; other arguments are refused later, or chunks."""
    are = all(isinstance(x, jax.Array | np.ndarray) and x.ndim > 1 and x.dtype in FLOATING for x in arrays)
    return are and len({x.shape[-1] for x in arrays}) == 1


def center_of(*points: Any) -> np.ndarray | None:
    """The median of some points (D,) in float32, zero in coordinates where points are not far; None if all are zero."""
    some = np.concatenate([np.asarray(_some(x), FLOAT64) for x in points])
    if not len(some):
        return None
    some.sort(0)
    first, median, third = (some[i * len(some) // 4] for i in (1, 2, 3))
    ends = median * (1 - NEAR), median * (1 + NEAR)
    is_far = (np.minimum(*ends) < first) & (third < np.maximum(*ends))
    return np.where(is_far, median.clip(-LARGEST, LARGEST), 0).astype(FLOAT32) if is_far.any() else None


def _some(points: Any) -> Any:
    """A few of the points, (…, D)."""
    flat = points if points.ndim == 2 else points.reshape(-1, points.shape[-1])
    return flat[:: max(1, len(flat) // SAMPLE)][:SAMPLE]


def warn_if_moved(function: str, tau: Any, points: dict[str, Any]) -> None:
    """Warn of points about their center which rounding to float32 moves, in bandwidths; if τ is a number."""
    if not (isinstance(tau, float | int) and TAU_RANGE[0] < tau < TAU_RANGE[1]):
        return
    limit = MOVED / math.sqrt(tau)
    for name, x in points.items():
        if will_be_rounded(x) and x.ndim > 1 and np.vdot(some := _some(x), some) > (limit * 2**24) ** 2:  # not NaN
            with np.errstate(all="ignore"):
                moved = np.sort(np.abs(some - some.astype(FLOAT32)).max(-1))
            by = float(moved[int((1 - FEW) * (len(moved) - 1))])
            if by > limit:
                size, by = float(np.abs(some).max()), by * MOVED / limit
                return warn(
                    f"`jaxgauss.{function}`: `{name}` should lie near a common center, because JAX rounds to float32;"
                    f" got coordinates of {size:.0e}, moved by {by:.0e} bandwidths. Use"
                    " jax.config.update('jax_enable_x64', True)."
                )
    return None


def about(center: np.ndarray, points: Any) -> Any:
    """The points about the center, in float32 unless NumPy's are float64; a difference of near numbers is exact."""
    wide = isinstance(points, np.ndarray) and points.dtype == FLOAT64
    return (points if wide else points.astype(FLOAT32)) - center.reshape(*[1] * (points.ndim - 1), -1)
