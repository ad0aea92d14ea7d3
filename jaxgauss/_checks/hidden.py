"""Points of weight zero, which do not count: neither they nor what belongs to them, even if that is NaN.

A mask, or a log-weight of -inf, takes a row away. The row of a point that counts replaces it, so that its coordinates
can neither spoil a sum nor move a center. A weight of zero has a derivative, for which the point must stay where it is:
only a row that is not finite is replaced.
"""

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap

from .._arrays.devices import is_visible

ROWS = {"x_weights": ("x",), "y_weights": ("y",), "log_weights": ("keys", "values")}
OF_WEIGHTS = (("samples",), ("data",), ("points", "x", "y", "scores", "values"))


def weighed_by(names: Collection[str]) -> dict[str, tuple[str, ...]]:
    """The arguments that are weights, each with those that have a row for each weight."""
    found = {weights: rows for weights, rows in ROWS.items() if weights in names}
    if "weights" in names:
        found["weights"] = next(rows for rows in OF_WEIGHTS if not {*rows}.isdisjoint(names))
    return found


def shown(weighed: Mapping[str, Sequence[str]], given: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays of which rows are replaced, by name; arguments that do not fit together are refused later."""
    found = {}
    for name, rows in weighed.items():
        weights, arrays = given.get(name), {row: given[row] for row in rows if given.get(row) is not None}
        if weights is not None and all(_fit(weights, x) for x in arrays.values()):
            found.update(_shown(weights, -np.inf if name == "log_weights" else 0, arrays))
    return found


def _fit(weights: Any, rows: Any) -> bool:
    """Whether these are floating rows, one for each weight."""
    if not all(isinstance(x, jax.Array | np.ndarray) and x.ndim for x in (weights, rows)):
        return False
    is_mask = weights.dtype == np.bool_
    are_numbers = all(jnp.issubdtype(x.dtype, jnp.floating) for x in ((rows,) if is_mask else (weights, rows)))
    return are_numbers and rows.shape[max(0, rows.ndim - 2)] == weights.shape[-1]


def _shown(weights: Any, nothing: float, arrays: dict[str, Any]) -> dict[str, Any]:
    """The arrays with rows replaced; none if no weight is `nothing`, that of a point that does not count."""
    hidden = np.asarray(weights) == nothing if is_visible(weights) else weights == nothing
    if isinstance(hidden, np.ndarray) and not hidden.any():
        return {}
    completely, finite = nothing != 0 or weights.dtype == np.bool_, {name: _are_finite(x) for name, x in arrays.items()}
    if not completely:  # the rows of all arrays belong to one point
        finite = dict.fromkeys(finite, functools.reduce(lambda x, y: x & y, finite.values()))
    return {name: _replaced(completely, hidden, finite[name], x) for name, x in arrays.items()}


def _are_finite(rows: Any) -> Any:
    found = np.isfinite(rows) if isinstance(rows, np.ndarray) else jnp.isfinite(lax.stop_gradient(rows))
    return found.all(-1) if found.ndim > 1 else found


def _replaced(completely: bool, hidden: Any, finite: Any, rows: Any) -> Any:
    """The rows, (…, N, W) or (N,), with the first that counts in place of those that are gone."""
    are_numpy = all(isinstance(x, np.ndarray) for x in (hidden, finite))
    xp: Any = np if are_numpy else jnp
    gone = (_are_gone if are_numpy else _batched)(completely)(_of_all(hidden, finite.shape), finite)
    gone = xp.reshape(gone, (1,) * (finite.ndim - gone.ndim) + gone.shape)
    columns = rows if rows.ndim > 1 else rows[:, None]
    first = xp.take_along_axis(columns, xp.argmin(gone, -1, keepdims=True)[..., None], -2)
    first = xp.where(gone.all(-1, keepdims=True)[..., None], xp.zeros_like(first), first)
    return xp.where(gone[..., None], first, columns).reshape(rows.shape)


def _of_all(hidden: Any, shape: tuple[int, ...]) -> Any:
    """Whether a row is hidden in all sums that share it: (…, N) of at most this shape."""
    hidden = hidden.all(tuple(range(hidden.ndim - len(shape))))
    shared = [i for i, n in enumerate(shape[len(shape) - hidden.ndim :]) if n == 1]
    return hidden.all(tuple(shared), keepdims=True)


def _are_gone(completely: bool) -> Callable[[Any, Any], Any]:
    return lambda hidden, finite: hidden if completely else hidden & ~finite


@functools.cache
def _batched(completely: bool) -> Callable[[Any, Any], Any]:
    """`_are_gone`, under `vmap` alike for all sums that share the rows, which so stay shared."""
    formula = _are_gone(completely)
    batched = custom_vmap(formula)

    @batched.def_vmap
    def _(axis_size: int, is_mapped: Sequence[bool], hidden: jax.Array, finite: jax.Array):
        if not is_mapped[1]:
            return batched(hidden.all(0), finite), False
        return jax.vmap(formula, (0 if is_mapped[0] else None, 0))(hidden, finite), True

    return batched
