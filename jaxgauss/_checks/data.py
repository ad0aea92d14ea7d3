"""Warnings of likely mistakes in the data, for `explain`: other calls do not pass over them."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
import jax.core
import numpy as np

from .._arrays.devices import is_visible, visible
from .._arrays.hidden import without_hidden
from .._calls import warn
from .names import as_kernel

OF_PAIRS = frozenset(  # results that mean nothing if the kernel is zero between different points
    {
        *("mmd_squared", "mmd_flow_velocity", "mmd_witness", "mmd_test", "mmd_estimate", "hsic"),
        *("ksd_squared", "svgd_direction", "mean_shift", "kernel_herding"),
    }
)
SETS = (("x", "y"), ("data",), ("particles",), ("points",))  # such a function's points: the first names that it takes
NUMBERS = 2**22  # entries that are searched for NaN, at most about so many
ROWS, LEAST = 64, 16  # points whose distances from all others are computed; with fewer than LEAST, τ is not checked
PAIRS, PRODUCTS = 2**21, 2**25  # the most pairs and products that are computed

are_checked: ContextVar[bool] = ContextVar("are_checked", default=False)


@contextmanager
def checked_data() -> Iterator[None]:
    """A context in which public functions check their data."""
    token = are_checked.set(True)
    try:
        yield
    finally:
        are_checked.reset(token)


def warn_of_mistakes(function: str, points: dict[str, Any], others: dict[str, Any]) -> None:
    """Warn of NaN in points, and of a τ by which the kernel is zero between all different points."""
    arrays = {name: x for name, x in points.items() if isinstance(x, jax.Array | np.ndarray) and is_visible(x)}
    found = {name: np.asarray(x) for name, x in arrays.items()}
    values = visible(others.get("values")) if "keys" in found and "_sum" in function else None
    if values is not None and np.ndim(values):
        found["keys"] = without_hidden(found["keys"], values if values.ndim > 1 else values[:, None])
    for name, x in found.items():
        if np.isnan(x[:: max(1, x.size // NUMBERS)]).any():
            return warn(
                f"`jaxgauss.{function}`: `{name}` should hold numbers; got NaN among them, {x.shape}, and their"
                f" results will be NaN. Leave such points out: {name}[~np.isnan({name}).any(-1)]."
            )
    if function in OF_PAIRS:
        names = next(x for x in SETS if x[0] in points)
        for group, tau in zip(names, ("tau_x", "tau_y"), strict=False) if "tau_x" in others else ((names, "tau"),):
            _look_at_pairs(function, [found[name] for name in group if name in found], tau, others)
    return None


def _look_at_pairs(function: str, arrays: list[np.ndarray], name: str, others: dict[str, Any]) -> None:
    tau, kernel = visible(others[name]), as_kernel(function, others.get("kernel", "gauss"))
    arrays = [
        x.reshape(-1, *x.shape[-2:])[0] if x.size else x.reshape(-1, x.shape[-1]) for x in arrays
    ]  # of a batch one
    size = sum(x.size for x in arrays)
    num = sum(len(x) for x in arrays)
    rows = np.arange(min(ROWS, num, PAIRS // max(1, num), PRODUCTS // max(1, size)))
    if tau is None or len(rows) < LEAST:
        return
    rows, x = rows * num // len(rows), np.concatenate(arrays).astype(np.float64)
    with np.errstate(all="ignore"):
        x -= x.mean(0)
        norms = np.einsum("nd,nd->n", x, x)
        squared = norms[rows, None] + norms[None] - 2 * (x[rows] @ x.T)
        squared[np.arange(len(rows)), rows] = np.inf
        if squared.min() * tau.min() > kernel.end("float32"):
            warn(
                f"`jaxgauss.{function}`: `{name}` should be 1/σ², and so large a one makes the kernel zero between all"
                f" different points; got {name} {tau.min():.3g}, squared distances of about {np.median(squared):.3g}."
                " jaxgauss.median_tau finds one."
            )
