"""Points of weight zero, which do not count: neither they nor what belongs to them, even if that is NaN.

The row of a point that counts replaces theirs, so that they can neither spoil a sum nor move a center. But a traced
weight, or a value, may have a derivative at zero, for which the point must stay where it is: then only coordinates that
are not finite are replaced, by zero.
"""

import functools
import operator
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap

from .devices import is_visible

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
        weights = given.get(name)
        if not isinstance(weights, jax.Array | np.ndarray):
            continue
        are_known, is_mask = is_visible(weights), weights.dtype == np.bool_
        hidden = np.asarray(weights) if are_known else weights
        hidden = ~hidden if is_mask else hidden == (-np.inf if name == "log_weights" else 0)
        if 0 in hidden.shape or (are_known and not hidden.any()):
            continue
        arrays = {row: given[row] for row in rows if given.get(row) is not None}
        if all(_fit(weights, x) for x in arrays.values()):
            replaced = _others if are_known or is_mask or name == "log_weights" else _zeros
            found.update({row: replaced(hidden, x) for row, x in arrays.items()})
    return found


def without_hidden(points: Any, *weights: Any) -> Any:
    """The points (…, N, D) of a sum, zero where coordinates are not finite of points whose weights are all zero."""
    hidden = [(x == 0).all(-1) for x in weights if x.shape[-1]]
    return _zeros(functools.reduce(operator.and_, hidden), points) if hidden else points


def _fit(weights: Any, rows: Any) -> bool:
    """Whether these are floating rows, one for each weight."""
    if not all(isinstance(x, jax.Array | np.ndarray) and x.ndim for x in (weights, rows)):
        return False
    numbers = (rows,) if weights.dtype == np.bool_ else (weights, rows)
    are_numbers = all(jnp.issubdtype(x.dtype, jnp.floating) for x in numbers)
    return are_numbers and rows.shape[max(0, rows.ndim - 2)] == weights.shape[-1]


def _zeros(hidden: Any, rows: Any) -> Any:
    """The rows, (…, N, W) or (N,), with zeros for numbers of hidden rows that are not finite."""
    xp, hidden = _hidden_rows(hidden, rows)
    return xp.where(hidden & ~xp.isfinite(rows), xp.zeros_like(rows), rows)


def _others(hidden: Any, rows: Any) -> Any:
    """The rows, with the first that is not hidden in place of those that are; if all are, as by `_zeros`."""
    xp, hidden = _hidden_rows(hidden, rows)
    axis = max(0, rows.ndim - 2)
    index = xp.argmin(hidden, axis, keepdims=True)
    numbers = xp.expand_dims(xp.arange(rows.shape[axis]), [i for i in range(rows.ndim) if i != axis])
    first = xp.where(numbers == index, rows, xp.zeros_like(rows))
    first = first.sum(axis, keepdims=True)  # no gather, which sharded rows do not take
    first = xp.where(hidden.all(axis, keepdims=True), xp.where(xp.isfinite(rows), rows, xp.zeros_like(rows)), first)
    return xp.where(hidden, first, rows)


def _hidden_rows(hidden: Any, rows: Any) -> tuple[Any, Any]:
    """NumPy or JAX, whichever computes; and whether rows are hidden in all sums that share them, of the rows' rank."""
    num = max(1, rows.ndim - 1)  # axes that tell rows
    hidden = hidden.all(tuple(range(hidden.ndim - num)))
    hidden = hidden.reshape((1,) * (num - hidden.ndim) + hidden.shape)
    shared = tuple(i for i, (n, of_rows) in enumerate(zip(hidden.shape, rows.shape, strict=False)) if of_rows == 1 != n)
    hidden = hidden.all(shared, keepdims=True)
    are_numpy = isinstance(hidden, np.ndarray) and isinstance(rows, np.ndarray)
    hidden = hidden if are_numpy else _alike(hidden, lax.stop_gradient(rows))
    return (np if are_numpy else jnp), (hidden[..., None] if rows.ndim > 1 else hidden)


@custom_vmap
def _alike(hidden: jax.Array, rows: jax.Array) -> jax.Array:
    """Which rows are hidden; under `vmap` those that are in all sums that share the rows, which so stay shared."""
    return hidden


@_alike.def_vmap
def _(axis_size: int, is_mapped: Sequence[bool], hidden: jax.Array, rows: jax.Array):
    if not is_mapped[1]:
        return _alike(hidden.all(0), rows), False
    return hidden if is_mapped[0] else jnp.broadcast_to(hidden, (axis_size, *hidden.shape)), True
