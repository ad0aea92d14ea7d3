"""Checks of options and kernels that have names."""

from typing import Any

from .._calls import did_you_mean, nearest
from .._kernels.kernels import KERNELS, Kernel
from .settings import BACKENDS, METHODS, PRECISIONS


def check_names(function: str, method: Any, precision: Any, backend: Any, methods: tuple[str, ...] = METHODS) -> None:
    """Raise ValueError unless method, precision and backend exist."""
    options = {"method": (method, methods), "precision": (precision, PRECISIONS), "backend": (backend, BACKENDS)}
    for name, (given, allowed) in options.items():
        check_choice(function, name, given, allowed)


def check_choice(function: str, name: str, given: Any, allowed: tuple[str, ...]) -> None:
    """Raise ValueError unless the value of an option is one of those that exist."""
    if given not in allowed:
        raise ValueError(
            f"`jaxgauss.{function}`: `{name}` must be one of {', '.join(allowed)}; got {given!r}."
            f" {did_you_mean(given, allowed)}"
        )


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
