"""Checks of engines and kernels, which have names."""

from dataclasses import replace
from typing import Any

from .._calls import did_you_mean, nearest
from .._engines.attention.engine import KERNELS as KERNELS_OF_ATTENTION
from .._engines.engine import Engine, as_precision
from .._engines.engines import NAMES
from .._kernels.kernels import KERNELS, Kernel


def as_engine(function: str, engine: Any, precision: Any = None) -> Engine:
    """The engine of a name, or itself, in a precision; TypeError or ValueError in the name of a public function."""
    precision = as_precision(function, precision)
    where = f"`jaxgauss.{function}`: `engine` must be"
    if isinstance(engine, str):
        if engine not in NAMES:
            fix = did_you_mean(engine, NAMES)
            if engine in KERNELS_OF_ATTENTION:
                fix = f"Pass jaxgauss.Attention(kernel={engine!r})."
            raise ValueError(f"{where} one of {', '.join(NAMES)}, or a jaxgauss.Engine; got {engine!r}. {fix}")
        engine, _ = NAMES[engine].without_arrays()
    if not isinstance(engine, Engine):
        fix = (
            f"Pass {engine.__name__}()." if isinstance(engine, type) and issubclass(engine, Engine) else "Pass 'auto'."
        )
        given = f"the class {engine.__name__}" if isinstance(engine, type) else type(engine).__name__
        raise TypeError(f"{where} a name or a jaxgauss.Engine; got {given}. {fix}")
    if engine.only_for and function not in engine.only_for:
        takes = f"{type(engine).__name__} is for {', '.join(engine.only_for)}"
        raise ValueError(f"{where} one that sums this: {takes}; got {engine!r}. Use engine='auto'.")
    if precision is None or precision == engine.precision:
        return engine
    if engine.precision is not None:
        raise ValueError(
            f"`jaxgauss.{function}`: `precision` must be that of the engine; got {precision!r} and {engine!r}. Leave"
            " it out."
        )
    return replace(engine, precision=precision)


def with_engine(function: str, options: Any) -> dict[str, Any]:
    """The options of a kernel method, with the engine that they name in place of its name and the precision."""
    engine = as_engine(function, options.get("engine", "auto"), options.get("precision"))
    return {"engine": engine} | {name: x for name, x in options.items() if name not in ("engine", "precision")}


def as_kernel(function: str, kernel: Any) -> Kernel:
    """The kernel of a name; TypeError or ValueError, in the name of a public function, for anything else."""
    if isinstance(kernel, Kernel):
        return kernel
    where = f"`jaxgauss.{function}`: `kernel` must be"
    if not isinstance(kernel, str):
        fix = "Wrap a function of u = τ‖x - y‖²: jaxgauss.Kernel(function)."
        raise TypeError(f"{where} a name or a jaxgauss.Kernel; got {type(kernel).__name__}. {fix}")
    if kernel not in KERNELS:
        fix = "Others are a jaxgauss.Kernel, such as jaxgauss.rational_quadratic(2.0)."
        if nearest(kernel, KERNELS):
            fix = did_you_mean(kernel, KERNELS)
        raise ValueError(f"{where} one of {', '.join(KERNELS)}; got {kernel!r}. {fix}")
    return KERNELS[kernel]
