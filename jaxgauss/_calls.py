"""Signatures as `help` shows them, hints in errors of calls that do not fit them, choices among names, and warnings."""

import difflib
import functools
import inspect
import re
import sys
import types
import typing
import warnings
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

from jaxtyping import AbstractArray

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_Made = TypeVar("_Made")
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
_OTHERS = {"kernel": "kernel_sum", "mesh": "gauss_sum_sharded", "segments": "gauss_sum"}  # sums that take these


class _Name(str):
    """The name of a type, which `help` shows without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def readable(made: _Made) -> _Made:
    """The function or class of results, with short names of types in its signature; annotations are as they were."""
    function: Any = made
    if isinstance(made, type):
        function = made.__init__ if "__init__" in vars(made) else made.__new__
    signature = inspect.signature(function)
    parameters = [
        p if p.annotation is p.empty else p.replace(annotation=_Name(_short(p.annotation)))
        for p in signature.parameters.values()
    ]
    result = signature.return_annotation
    result = result if result in (None, signature.empty) else _Name(_short(result))
    function.__signature__ = signature.replace(parameters=parameters, return_annotation=result)
    return made


def _short(kind: Any) -> str:
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Unpack:
        return _short(parts[0])
    if origin in (typing.Union, types.UnionType):
        return " | ".join(dict.fromkeys(_short(x) for x in parts if not (x is int and float in parts)))
    if isinstance(kind, list) or origin:
        inside = ", ".join(map(_short, parts if origin else kind))
        return f"{origin.__name__ if origin else ''}[{inside}]"
    if isinstance(kind, type) and issubclass(kind, AbstractArray):
        return "Array"
    return {types.NoneType: "None", ...: "..."}.get(kind) or getattr(kind, "__name__", str(kind)).rpartition(".")[2]


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


def add_hint(error: TypeError, function: Callable[..., Any], kwargs: dict[str, Any]) -> None:
    """Note what an unknown argument is called here, or how a missing bandwidth is found, in Python's own error."""
    parameters = inspect.signature(function).parameters.values()
    options = [p.annotation.__args__[0].__annotations__ for p in parameters if p.kind is p.VAR_KEYWORD]
    names = [*(p.name for p in parameters if p.kind is not p.VAR_KEYWORD), *(name for more in options for name in more)]
    taus = [name for name in names if name.startswith("tau")]
    for name in kwargs.keys() - names:
        if name in _BANDWIDTHS and taus:
            error.add_note(f"Pass {taus[0]}=jaxgauss.tau_from_bandwidth({name}{_BANDWIDTHS[name]}): τ is 1/σ².")
        elif name == "tolerance" and "engine" in names:
            error.add_note(f"Pass engine=jaxgauss.Fourier(tolerance={kwargs[name]!r}).")
        elif name == "weights" and "log_weights" in names:
            error.add_note("Pass log_weights=jnp.log(weights).")
        elif name in _OTHERS and function.__name__.startswith(("gauss_sum", "kernel_sum", "log_")):
            error.add_note(f"jaxgauss.{_OTHERS[name]} takes it.")
        elif (found := nearest(name, names)) is not None:
            error.add_note(f"Did you mean {found}?")
    if "missing" in str(error) and "'tau" in str(error):
        error.add_note("A tau is 1/σ²; jaxgauss.median_tau finds one.")


def also_called(name: str, function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """The undecorated function under another name, which its messages use."""
    function = inspect.unwrap(function)

    @functools.wraps(function)
    def called(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        try:
            return function(*args, **kwargs)
        except (TypeError, ValueError, ImportError) as error:
            said = re.compile(rf"(?<=`jaxgauss\.){function.__name__}(?=`)|^{function.__name__}(?=\(\))")
            error.args = tuple(said.sub(name, x) if isinstance(x, str) else x for x in error.args)
            raise

    called.__name__ = called.__qualname__ = name
    return called


def warn(message: str) -> None:
    """Warn at the line that called jaxgauss."""
    level, frame = 1, sys._getframe()
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("jaxgauss."):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)
