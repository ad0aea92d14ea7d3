"""Sums over pairs of equal labels: groups of like sizes are padded to one size, and are one batched sum."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from .._arrays.points import center
from .._checks.labels import check_segments
from .._checks.operands import as_operand, check_others
from .._checks.settings import Settings, working_dtype
from .._engines.plan import NEAR

MOST = 16  # batches: each is compiled by itself
CELLS = 128  # sizes that are told apart before they are merged
WORTH, SLACK = 2**18, 0.03  # pairs, and the share of all pairs, that may be added to save a batch
REMEMBERED = 32  # layouts


class Batch(NamedTuple):
    """Groups of like sizes: indices of their queries (P, R) and of their keys (P, K), and numbers of keys (P,).

    A group that is smaller repeats its first point.
    """

    queries: np.ndarray
    keys: np.ndarray
    counts: np.ndarray


class Layout(NamedTuple):
    """All batches, and the index (M,) of each query in their concatenated rows; beyond the last if it has no keys."""

    batches: tuple[Batch, ...]
    positions: np.ndarray


def layout_of(query_labels: np.ndarray, key_labels: np.ndarray) -> Layout:
    """The layout of labels in int64; the last ones are remembered."""
    return _layout(query_labels.tobytes(), key_labels.tobytes())


@functools.lru_cache(REMEMBERED)
def _layout(*labels: bytes) -> Layout:
    given = [np.frombuffer(x, "int64") for x in labels]
    groups = np.intersect1d(given[0], given[1])
    orders = [np.argsort(x, kind="stable") for x in given]
    lower, upper = (
        np.stack([np.searchsorted(x[order], groups, side) for x, order in zip(given, orders, strict=True)])
        for side in ("left", "right")
    )
    batches, rows, positions = [], 0, np.full(len(given[0]), -1)
    for chosen in _alike(upper - lower):
        (queries, are_own), (keys, _) = (
            _padded(orders[i], lower[i, chosen], (upper - lower)[i, chosen]) for i in range(2)
        )
        positions[queries[are_own]] = rows + np.flatnonzero(are_own)
        rows += queries.size
        batches.append(Batch(queries.astype("int32"), keys.astype("int32"), (upper - lower)[1, chosen].astype("int32")))
    return Layout(tuple(batches), np.where(positions < 0, rows, positions).astype("int32"))


def _padded(order: np.ndarray, starts: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Indices (P, width) of the points of each group, and which of them are no padding."""
    steps = np.arange(counts.max())
    are_own = steps < counts[:, None]
    return order[starts[:, None] + np.where(are_own, steps, 0)], are_own


def _alike(counts: np.ndarray) -> list[np.ndarray]:
    """Indices of the groups of each batch, from numbers of queries and keys (2, groups).

    Cells of like sizes are merged, always those that add the fewest pairs, until the next would add too many.
    """
    if not counts.size:
        return []
    for steps in (4, 2, 1, 0.5, 0.25):  # of sizes, from one to twice as many
        levels = np.ceil(steps * np.log2(counts)).astype("int64")
        cells, cell_of = np.unique(levels, axis=1, return_inverse=True)
        if cells.shape[1] <= CELLS:
            break
    members = [np.flatnonzero(cell_of.ravel() == i) for i in range(cells.shape[1])]
    while len(members) > 1:
        sizes = np.array([[len(x), *counts[:, x].max(1)] for x in members], "float64")
        number, rows, columns = (x[:, None] for x in sizes.T)
        pairs = sizes.prod(1)
        added = (number + number.T) * np.maximum(rows, rows.T) * np.maximum(columns, columns.T)
        added -= pairs[:, None] + pairs + np.diag(np.full(len(pairs), -np.inf))
        i, j = sorted(np.unravel_index(added.argmin(), added.shape))
        if len(members) <= MOST and added[i, j] > max(WORTH, SLACK * pairs.sum()):
            break
        members[i] = np.concatenate([members[i], members.pop(j)])
    return members


def by_segments(
    reduction: Callable[..., Array],
    settings: Settings,
    segments: Any,
    queries: Any,
    keys: Any,
    values: Any,
    tau: Any,
    empty: float = 0.0,
) -> Array:
    """The reduction of checked arguments, with settings and operands as for `unrounded_gauss_sum`, by groups.

    `empty` is the value of padding, and the result of a query without keys.
    """
    labels = check_segments(settings.function, segments, queries.shape[-2], keys.shape[-2])
    if settings.exclude_self:
        check_others(settings.function, {"queries": queries, "keys": keys}, segments=labels)
    operands = queries, keys, values, as_operand(tau, settings.dtype)
    return _by_groups(reduction, settings, empty, layout_of(*labels), *operands)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _by_groups(reduction: Callable, settings: Settings, empty: float, layout: Layout, *operands: Any) -> Array:
    dtype = working_dtype(settings.dtype)
    queries, keys, values, tau = (jnp.asarray(x, dtype) for x in operands)
    weights = values.ndim == 1
    values = values[:, None] if weights else values
    leading = jnp.broadcast_shapes(*(x.shape[:-2] for x in (queries, keys, values)), tau.shape)
    rows = []
    for batch in layout.batches:
        are_own = np.arange(batch.keys.shape[1], dtype="int32")[None] < batch.counts[:, None]
        own_values = jnp.where(are_own[..., None], _rows_of(values, batch.keys), empty)
        points = about_centers(_rows_of(queries, batch.queries), _rows_of(keys, batch.keys), tau)
        total = reduction(settings, *points, own_values, tau[..., None] if tau.ndim else tau)
        total = total.reshape(*total.shape[:-3], math.prod(total.shape[-3:-1]), total.shape[-1])
        rows.append(jnp.broadcast_to(total, (*leading, *total.shape[-2:])))
    rows.append(jnp.full((*leading, 1, values.shape[-1]), empty, dtype))
    total = _rows_of(jnp.concatenate(rows, -2), layout.positions).astype(settings.dtype)
    return total[..., 0] if weights else total


def _rows_of(x: Array, indices: Any) -> Array:
    """(…, N, W) -> (…, *shape of the indices, W)."""
    return jnp.take(x, indices, -2, mode="clip")


def about_centers(queries: Array, keys: Array, tau: Array) -> tuple[Array, Array]:
    """The points of each group (…, P, R, D) about a center of its own, if they lie near one another.

    Sums do not depend on it, but whether waves pay is decided by the box of the whole batch. A group that is wide stays
    where it is, because small distances in it would be rounded; so do queries and keys of unequal batches.
    """
    if 0 in (*queries.shape, *keys.shape, *tau.shape) or queries.shape[:-2] != keys.shape[:-2]:
        return queries, keys
    c = center(keys)
    squared = [jnp.square(lax.stop_gradient(x) - c).sum(-1).max(-1) for x in (queries, keys)]
    is_near = lax.stop_gradient(tau).max() * jnp.maximum(*squared) <= NEAR[keys.dtype.name]
    c = jnp.where(is_near[..., None, None], c, 0)
    return queries - c, keys - c
