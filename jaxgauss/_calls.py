"""Errors of calls that do not fit a signature: an argument is missing, unknown or one too many. Warnings of calls."""

import difflib
import functools
import inspect
import numbers
import sys
import warnings
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_BANDWIDTHS = {"sigma": "", "bandwidth": "", "lengthscale": "", "length_scale": ""} | {
    name: f", {name!r}" for name in ("gamma", "h", "epsilon")
}  # other names of a bandwidth, and their conventions for `tau_from_bandwidth`
_MEANT = {  # other libraries' names that are spelled too differently to be recognized
    "rng_key": ("key", "seed", "random_state"),
    "num_permutations": ("num_samples", "num_bootstrap"),
    "num_bootstrap": ("num_samples", "num_permutations"),
    "num": ("num_samples", "n_samples"),
    "segments": ("labels", "groups"),
    "max_steps": ("max_iter",),
    "epsilon": ("eps", "reg"),
    "x_weights": ("weights",),
    "values": ("weights",),
    "auto": ("gpu", "cuda", "xla"),
    "engine": ("method", "backend", "algorithm", "solver"),
    "gauss": ("rbf", "squared_exponential"),
    "imq": ("inverse_multiquadric", "multiquadric"),
    "float16": ("half", "fp16", "f16"),
    "bfloat16": ("bf16",),
    "float32": ("single", "fp32", "f32"),
    "float64": ("double", "fp64", "f64"),
}
_FIXES = {  # of arguments that are missing
    "tau": "Pass 1 / sigma**2; jaxgauss.median_heuristic finds one.",
    "tau_x": "The points x and y have a bandwidth each.",
    "tau_y": "The points x and y have a bandwidth each.",
    "rng_key": "Make one with jax.random.key(0).",
}
_OTHERS = {"kernel": "kernel_sum", "mesh": "gauss_sum_sharded", "segments": "gauss_sum"}  # sums that take these


def nearest(given: Any, names: Iterable[str]) -> str | None:
    """The name that was probably meant, or None."""
    text = str(getattr(given, "__name__", getattr(given, "name", given))).lower()
    known = {name.lower(): name for name in names}
    close = [name for name in known if text in _MEANT.get(name, ())] or difflib.get_close_matches(text, known, 1, 0.65)
    return known[close[0]] if close else None


def did_you_mean(given: Any, names: Iterable[str]) -> str:
    """The fix for a value that is not among the names."""
    names = [*names]
    found = nearest(given, names)
    return f"Pass {names[0]!r}, for example." if found is None else f"Did you mean {found!r}?"


def check_choice(function: str, name: str, given: Any, allowed: tuple[str, ...]) -> None:
    """Raise ValueError unless the value of an option is one of those that exist."""
    if given not in allowed:
        raise ValueError(
            f"`jaxgauss.{function}`: `{name}` must be one of {', '.join(allowed)}; got {given!r}."
            f" {did_you_mean(given, allowed)}"
        )


def public_name(function: Callable[..., Any]) -> str:
    """The name of a public function, or of the class of a method, with its module if that is for another library."""
    module = function.__module__.removeprefix("jaxgauss").lstrip(".")
    name = function.__qualname__.partition(".")[0]
    return name if module[:1] in ("", "_") else f"{module}.{name}"


def named(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Decorate a public function or method: errors of its arguments name the function, or the method's class."""

    @functools.wraps(function)
    def called(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        try:
            return function(*args, **kwargs)
        except TypeError:
            wrong = misfit(function, args, kwargs)
            if wrong is None:
                raise
        raise wrong

    return called


def misfit(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> TypeError | None:
    """The error of a call that does not fit the function's signature; None if it fits."""
    signature = dict(inspect.signature(function).parameters)
    if signature.pop("self", None) is not None:
        args = args[1:]
    message = _message(function, signature, args, kwargs)
    return None if message is None else TypeError(f"`jaxgauss.{public_name(function)}`: {message}")


def _message(
    function: Callable[..., Any], signature: dict[str, inspect.Parameter], args: Any, kwargs: dict[str, Any]
) -> str | None:
    """The message of such an error, or None."""
    options = [p.annotation.__args__[0].__annotations__ for p in signature.values() if p.kind is p.VAR_KEYWORD]
    parameters = {name: p for name, p in signature.items() if p.kind is not p.VAR_KEYWORD}
    names = [*parameters, *(name for more in options for name in more)]
    taus = [f"`{name}`" for name in names if name.startswith("tau")]
    for name in sorted(kwargs.keys() - names):
        return _unknown(function, name, kwargs[name], names, taus)
    positions = [name for name, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    if len(args) > len(positions):
        others = ", ".join(name for name in names if name not in positions)
        fix = f"Pass others by name: {others}." if others else "Leave it out."
        if not taus and isinstance(args[-1], numbers.Real):
            fix = "There is no `tau`: leave it out."
        given = f"{len(args)}, the last {_shown(args[-1])}"
        if not positions:
            return f"{_listed(names)} must be given by name; got {given} by position. Pass it by name."
        return f"positional arguments must be {_listed(positions)} alone; got {given}. {fix}"
    for name in positions[: len(args)]:
        if name in kwargs:
            return f"`{name}` must be given once; got it by position and by name. Leave one out."
    there = {*positions[: len(args)], *kwargs}
    for name, p in parameters.items():
        if p.default is p.empty and name not in there:
            given = ", ".join(x for x in names if x in there) or "nothing"
            return f"`{name}` must be given; got {given}. {_FIXES.get(name, 'Pass it, too.')}"
    return None


def _unknown(function: Callable[..., Any], name: str, value: Any, names: list[str], taus: list[str]) -> str:
    given = f"got {name} {_shown(value)}"
    if name in _BANDWIDTHS and (taus or "bandwidth" in names):
        call = f"jaxgauss.tau_from_bandwidth({name}{_BANDWIDTHS[name]})"
        if not taus:
            return f"`bandwidth` must be given by position; {given}. Call {call}."
        what = f"the bandwidth must be given as {' and '.join(taus)}, 1/σ²"
        return f"{what}; {given}. Pass {taus[0].strip('`')}={call}."
    meant = f"`{found}`" if (found := nearest(name, names)) else None
    if name == "tau" and taus:
        meant = " and ".join(taus)
    fix = "Leave it out." if meant is None else f"Did you mean {meant}?"
    if name == "weights" and "log_weights" in names:
        fix = "Pass log_weights=jnp.log(weights)."
    elif not taus and name in ("tau", *_BANDWIDTHS):
        fix = "There is no `tau`: leave it out."
    elif name == "tolerance" and "engine" in names:
        fix = f"Pass engine=jaxgauss.Fourier(tolerance={_shown(value)})."
    elif name in _OTHERS and function.__name__.startswith(("gauss_sum", "kernel_sum", "log_")):
        fix = f"`jaxgauss.{_OTHERS[name]}` takes it."
    return f"`{name}` must be one of its arguments, {', '.join(names)}; {given}. {fix}"


def _shown(value: Any) -> str:
    return repr(value) if value is None or isinstance(value, str | int | float) else type(value).__name__


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def also_called(name: str, function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """The undecorated function under another name, which its messages use."""
    function = inspect.unwrap(function)

    @functools.wraps(function)
    def called(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        try:
            return function(*args, **kwargs)
        except (TypeError, ValueError, ImportError) as error:
            said = f"`jaxgauss.{function.__name__}`"
            error.args = tuple(x.replace(said, f"`jaxgauss.{name}`") if isinstance(x, str) else x for x in error.args)
            raise

    called.__name__ = called.__qualname__ = name
    return called


def warn(message: str) -> None:
    """Warn at the line that called jaxgauss."""
    level, frame = 1, sys._getframe()
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("jaxgauss."):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)
