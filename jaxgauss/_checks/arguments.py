"""Preparation of public functions' arrays: converted or refused, and points far from the origin centered.

Integers, booleans and lists of numbers become floating arrays, as in `jnp.mean`.
Without its 64-bit mode JAX rounds NumPy's float64 to float32, which is coarse far from the origin. Sums depend on
differences only, so a common center of all points is subtracted first, in float64. If there is no common center, a
warning says so.
"""

import functools
import inspect
import math
import numbers
import sys
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from .._arrays.devices import is_visible
from .._arrays.hidden import shown, weighed_by
from .._arrays.tracing import with_arrays
from .._calls import add_hint, public_name, readable, warn
from .._engines.engine import Engine
from .data import are_checked, warn_of_mistakes
from .settings import DTYPES, TAU_RANGE

POINTS = ("queries", "keys", "points", "x", "y", "samples", "data", "particles", "positives", "negatives")
OTHERS = (
    *("values", "weights", "x_weights", "y_weights", "log_weights", "scores", "sums", "noise"),
    *("self_weights", "positive_weights", "negative_weights"),
    *("tau", "taus", "tau_x", "tau_y"),
)
ARRAYS = frozenset((*POINTS, *OTHERS))
FLOATING = frozenset(jnp.dtype(name) for name in DTYPES)
FLOAT32, FLOAT64 = np.dtype("float32"), np.dtype("float64")
SAMPLE = 32  # points of each array whose median is the center
LARGEST = 1e38  # the largest coordinate of a center
NEAR = 1 / 8  # the median is subtracted if half of the points lie within this part of it from it
MOVED, FEW = 1e-3, 1 / 8  # rounding may move points by so many bandwidths, and a part of them any farther
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def public(center: str | None = "common") -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Decorate a public function: tables, lists and integers are converted, points far from the origin centered.

    Arrays are recognized by the names of their arguments. Errors of wrong arguments name the function. The `center` is
    "common" to all points, or each array's "own"; "none" leaves it to the function; None leaves all arrays as they are.
    """

    def decorate(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        defaults = {name: p.default for name, p in inspect.signature(function).parameters.items()}
        weighed = weighed_by(defaults)
        first = min(map([*defaults].index, weighed), default=len(defaults))

        @functools.wraps(function)
        def called(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
            # Whatever callers guard, our under- and overflow is meant, and so are numbers and tables as arguments.
            with np.errstate(all="ignore"), jax.transfer_guard_host_to_device("allow"):
                given = () if center is None else (*args, *kwargs.values()) if kwargs else args
                for x in given:  # a loop: 0.1 µs for each
                    if not (type(x) in _READY or _is_ready(x)):
                        args, kwargs = _as_taken(public_name(function), defaults, center, weighed, args, kwargs)
                        break
                if weighed and (len(args) > first or not weighed.keys().isdisjoint(kwargs)):
                    found = shown(weighed, dict(zip(defaults, args, strict=False)) | kwargs)
                    args, kwargs = _with(found, defaults, args, kwargs) if found else (args, kwargs)
                own = None
                if isinstance(engine := kwargs.get("engine"), Engine):
                    kwargs["engine"], own = engine.without_arrays()
                try:
                    result = function(*args, **kwargs) if own is None else with_arrays(own)(function)(*args, **kwargs)
                except TypeError as error:
                    add_hint(error, function, kwargs)
                    raise
                if are_checked.get():
                    _look(function, defaults, args, kwargs)
                return result

        return readable(called)

    return decorate


def _as_taken(
    function: str, names: dict[str, Any], center: str | None, weighed: Any, args: Any, kwargs: Any
) -> tuple[Any, Any]:
    """The arguments, with arrays converted and centered; `names` are the parameters with their defaults."""
    given = dict(zip(names, args, strict=False)) | kwargs
    found = as_arrays(function, {name: x for name, x in given.items() if name in ARRAYS})
    found |= shown({name: rows for name, rows in weighed.items() if is_visible(found.get(name))}, found)
    points = [name for name in POINTS if name in found]
    for group in [points] if center == "common" else [[name] for name in points if center == "own"]:
        tau = f"tau_{group[0]}" if center == "own" else "tau"
        arrays, tau = (found[name] for name in group), given.get(tau, names.get(tau))
        found.update(zip(group, centered(*arrays, function=function, tau=tau, names=group)[1], strict=True))
    return _with(found, names, args, kwargs)


def _with(found: dict[str, Any], names: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments, with those that are found in place of what was given."""
    first = (found.get(name, x) for name, x in zip(names, args, strict=False))
    return (*first, *args[len(names) :]), {name: found.get(name, x) for name, x in kwargs.items()}


def _look(function: Callable[..., Any], names: dict[str, Any], args: Any, kwargs: Any) -> None:
    """Check the data of a call, unless it comes from within jaxgauss or an argument is traced."""
    caller = str(sys._getframe(2).f_globals.get("__name__"))
    if caller.startswith("jaxgauss.") and not caller.endswith(".explanation"):
        return
    given = names | dict(zip(names, args, strict=False)) | kwargs
    if not any(isinstance(x, jax.core.Tracer) for x in given.values()):
        warn_of_mistakes(public_name(function), {name: given[name] for name in POINTS if name in given}, given)


_READY: set[type] = set()  # types met so far whose objects never need a conversion


def _is_ready(x: Any) -> bool:
    """Whether an argument needs no conversion: a floating array that JAX takes as it is, or no array."""
    kind = type(x)
    if kind is np.ndarray:
        return x.dtype is FLOAT32 or (x.dtype is FLOAT64 and not will_be_rounded(x))
    if isinstance(x, jax.Array):
        return x.dtype in FLOATING
    if kind not in (list, tuple) and (issubclass(kind, np.generic) or not hasattr(kind, "__array__")):
        _READY.add(kind)
        return True
    return False


def as_arrays(function: str, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments by `as_array`, integers and booleans as floating numbers where JAX's mode promotes them.

    Masks stay, and so do τ: these are converted to the working dtype later.
    """
    found = {name: as_array(x, function, name) for name, x in given.items()}
    dtypes = {
        name: jax.dtypes.canonicalize_dtype(x.dtype)
        for name, x in found.items()
        if isinstance(x, jax.Array | np.ndarray) and not name.startswith("tau")
        if x.dtype in FLOATING or jnp.issubdtype(x.dtype, jnp.integer) or x.dtype == np.bool_
        if not (x.dtype == np.bool_ and "weights" in name)
    }
    whole = [name for name, dtype in dtypes.items() if dtype not in FLOATING]
    if not whole:
        return found
    try:
        dtype = jnp.result_type(*dtypes.values())
    except jax.dtypes.TypePromotionError:  # in the strict mode: they are refused later
        return found
    if dtype not in FLOATING:
        dtype = jax.eval_shape(jnp.mean, jax.ShapeDtypeStruct((1,), dtype)).dtype
    is_widest = dtype == jax.dtypes.canonicalize_dtype(FLOAT64)  # NumPy's keep the digits that a center needs
    for name in whole:
        x = found[name]
        found[name] = x.astype(FLOAT64 if is_widest and isinstance(x, np.ndarray) else dtype)
    return found


def as_array(x: Any, function: str, name: str) -> Any:
    """A table, a list of numbers or another object with `__array__`, as an array; anything else as it is.

    NumPy's are in native byte order. TypeError for an array of which elements are masked: JAX would compute with what
    lies under the mask.
    """
    if isinstance(x, list | tuple):
        return _of_numbers(x) if not name.startswith("tau") else x
    if isinstance(x, np.ma.MaskedArray):
        if np.ma.is_masked(x):
            raise TypeError(
                f"`jaxgauss.{function}`: `{name}` must have no masked elements; got {np.ma.count_masked(x)} of"
                f" {x.size}. Pass {name}.filled(0), with a weight of zero for rows that do not count."
            )
        x = x.data
    if not isinstance(x, np.ndarray):
        if isinstance(x, jax.Array) or not hasattr(type(x), "__array__") or hasattr(x, "__dlpack__"):
            return x
        x = np.asarray(x)
    return x if x.dtype.isnative else x.astype(x.dtype.newbyteorder("="))


def _of_numbers(x: Any) -> Any:
    """A list, or a list of lists, of numbers as an array, JAX's if one is traced; anything else as it is."""
    leaves = x
    while leaves and all(isinstance(y, list | tuple) for y in leaves):
        leaves = [z for y in leaves for z in y]
    if not (leaves and all(isinstance(y, numbers.Number | np.bool_ | jax.Array) for y in leaves)):
        return x
    if any(getattr(y, "ndim", 0) for y in leaves):
        return x
    try:
        return (jnp if any(isinstance(y, jax.Array) for y in leaves) else np).asarray(x)
    except (TypeError, ValueError):  # rows differ in length
        return x


def floating_dtype(where: str, name: str, x: Any) -> np.dtype:
    """The dtype of a floating array; TypeError for anything else."""
    if not (hasattr(x, "shape") and hasattr(x, "dtype")):
        fix = f"Convert with jnp.asarray({name}, jnp.float32)."
        if isinstance(x, int | float | complex):
            fix = f"For all alike jnp.full(number, {x})."
        raise TypeError(f"{where}: `{name}` must be a JAX or NumPy array; got {type(x).__name__}. {fix}")
    try:
        dtype = jax.dtypes.canonicalize_dtype(x.dtype)
    except (TypeError, ValueError):  # an array of another library, or not of numbers
        dtype = None
    if dtype not in FLOATING:
        fix = f"Convert with {name}.astype(jnp.float32)."
        if hasattr(x, "__dlpack__") and not isinstance(x, jax.Array | np.ndarray):
            fix = f"Convert with jnp.from_dlpack({name})."
            if type(x).__module__.split(".")[0] == "torch":
                fix += " For tensors there is torch_backend.gauss_sum, too."
        elif jnp.issubdtype(x.dtype, jnp.complexfloating):
            fix = f"Sum the parts by themselves, {name}.real and {name}.imag."
            if name not in ("values", "weights", "x_weights", "y_weights", "log_weights"):
                fix = f"Complex coordinates are two real ones each: jnp.concatenate([{name}.real, {name}.imag], -1)."
        elif jnp.issubdtype(x.dtype, jax.dtypes.extended):
            fix = "Random keys go by `rng_key`, where there is one."
        raise TypeError(f"{where}: `{name}` must be of dtype {', '.join(DTYPES)}; got {name} {x.dtype}. {fix}")
    return np.dtype(dtype)


def will_be_rounded(x: Any) -> bool:
    """Whether it is an array of NumPy's float64, which JAX is about to round to float32."""
    config: Any = jax.config
    return isinstance(x, np.ndarray) and x.dtype == FLOAT64 and not config.jax_enable_x64


def centered(
    *points: Any, function: str = "", tau: Any = None, names: Sequence[str] = ()
) -> tuple[np.ndarray | None, tuple[Any, ...]]:
    """The center of all points, or None if none of them will be rounded or it is zero; and the points about it.

    If τ is a number, and rounding moves points too far, a warning names them.
    """
    rounded = [x for x in points if will_be_rounded(x)]
    if not (rounded and _are_points(*points)):
        return None, points
    some = sampled(*rounded)
    center = center_of(some)
    if center is not None:
        points, some = tuple(minus_center(center, x) for x in points), some - center
    if isinstance(tau, float | int) and TAU_RANGE[0] < tau < TAU_RANGE[1]:
        limit = MOVED / math.sqrt(tau)
        if np.vdot(some, some) > (limit * 2**24) ** 2:  # not NaN
            _warn_if_moved(function, limit, dict(zip(names, points, strict=True)))
    return center, points


def _are_points(*arrays: Any) -> bool:
    """Whether all are floating arrays of points of one dimension. Chunks are not; wrong arguments are refused later."""
    are = all(isinstance(x, jax.Array | np.ndarray) and x.ndim > 1 and x.dtype in FLOATING for x in arrays)
    return are and len({x.shape[-1] for x in arrays}) == 1


def center_of(some: np.ndarray) -> np.ndarray | None:
    """The median of points (N, D) in float32, zero in coordinates where points are not far; None if all are zero."""
    if not len(some):
        return None
    some = some.copy()
    some.sort(0)
    first, median, third = (some[i * len(some) // 4] for i in (1, 2, 3))
    ends = median * (1 - NEAR), median * (1 + NEAR)
    is_far = (np.minimum(*ends) < first) & (third < np.maximum(*ends))
    return np.where(is_far, median.clip(-LARGEST, LARGEST), 0).astype(FLOAT32) if is_far.any() else None


def sampled(*points: Any) -> np.ndarray:
    """A few of the points of each array."""
    flat = (x if x.ndim == 2 else x.reshape(-1, x.shape[-1]) for x in points)
    return np.concatenate([np.asarray(x[:: max(1, len(x) // SAMPLE)][:SAMPLE], FLOAT64) for x in flat])


def _warn_if_moved(function: str, limit: float, points: dict[str, Any]) -> None:
    """Warn of the first array of points that rounding to float32 moves farther than the limit."""
    for name, x in points.items():
        some = sampled(x) if will_be_rounded(x) else np.zeros((1, 1))
        with np.errstate(all="ignore"):
            moved = np.sort(np.abs(some - some.astype(FLOAT32)).max(-1))
        by = float(moved[int((1 - FEW) * (len(moved) - 1))])
        if by > limit:
            return warn(
                f"`jaxgauss.{function}`: `{name}` should lie near a common center, because JAX rounds to float32; got"
                f" coordinates of {float(np.abs(some).max()):.0e}, moved by {by * MOVED / limit:.0e} bandwidths. Use"
                " jax.config.update('jax_enable_x64', True)."
            )
    return None


def minus_center(center: np.ndarray, points: Any) -> Any:
    """The points about the center, in float32 unless NumPy's are float64; a difference of near numbers is exact."""
    is_float64 = isinstance(points, np.ndarray) and points.dtype == FLOAT64
    return (points if is_float64 else points.astype(FLOAT32)) - center.reshape(*[1] * (points.ndim - 1), -1)
