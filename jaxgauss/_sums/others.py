"""Sums, logarithms and means over the others, n ≠ m, of points that are their own keys: exactly, by every engine.

On a CPU every tile leaves out its pairs of equal index. On CUDA, where attention is faster than such tiles, many points
are divided into groups, which are divided again. At each level a group is summed with its siblings as keys: a batch of
usual sums. What remains are the pairs within the smallest groups, a dense matrix of each, without its diagonal.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._arrays.devices import has_cuda
from .._arrays.points import LOG_ZERO
from .._arrays.shapes import are_known
from .._checks.settings import Settings
from .._engines.log_rules import log_sums, relative_sum, softmax_means

SMALLEST = 1024  # points of the smallest groups, at most
SIBLINGS = 8  # groups into which one is divided, at most: their keys are repeated one time less


@dataclass(frozen=True)
class Reduction:
    """A reduction over keys.

    Attributes:
        of_pairs: settings and operands of equal rank -> a tree of (…, M, W). Operands are queries, keys, what belongs
            to the keys, and τ. If the settings say so, pairs of equal index are left out.
        added: the results for two sets of keys -> those for both.
        fills: operands, after the keys, of a key that adds nothing; None for τ.
    """

    of_pairs: Callable[..., Any]
    added: Callable[[Any, Any], Any]
    fills: tuple[float | None, ...]


def sum_of_others(summed: Callable[..., Array], settings: Settings, *operands: Array) -> Array:
    """The sum of queries, keys, values and τ, without the pairs of equal index."""
    return _over_others(Reduction(summed, jnp.add, (0.0, None)), settings, *operands)


def log_sums_of_others(settings: Settings, queries: Array, keys: Array, tau: Array, log_weights: Array) -> Array:
    """`log_sums` without the pairs of equal index."""
    return _over_others(_LOGS, settings, queries, keys, tau, jnp.maximum(log_weights, LOG_ZERO))


def softmax_means_of_others(settings: Settings, *operands: Array) -> tuple[Array, Array]:
    """`softmax_means` without the pairs of equal index."""
    return _over_others(_MEANS, settings, *operands)


def relative_sum_of_others(
    settings: Settings, queries: Array, keys: Array, values: Array, log_weights: Array, tau: Array, logs: Array
) -> Array:
    """`relative_sum` without the pairs of equal index."""
    rows = jnp.concatenate([queries, jnp.broadcast_to(logs, (*queries.shape[:-1], 1))], -1)
    return _over_others(_RELATIVE, settings, rows, keys, values, log_weights, tau)


def _relative(settings: Settings, rows: Array, keys: Array, values: Array, log_weights: Array, tau: Array) -> Array:
    return relative_sum(settings, rows[..., :-1], keys, values, log_weights, tau, rows[..., -1:])


def _over_others(reduction: Reduction, settings: Settings, *operands: Array) -> Any:
    """The reduction without the pairs of equal index."""
    num, tau, all_pairs = operands[1].shape[-2], 2 + reduction.fills.index(None), replace(settings, exclude_self=False)
    if num in (0, 1):
        return reduction.of_pairs(all_pairs, *(x if i in (0, tau) else x[..., :0, :] for i, x in enumerate(operands)))
    if not has_cuda() or not are_known(num) or num <= SMALLEST:
        return reduction.of_pairs(settings, *operands)
    fills = None, None, *reduction.fills
    divisors, size = _levels(num)
    missing = math.prod(divisors) * size - num
    every = [x[..., None] if i == tau else _padded(x, missing, fills[i]) for i, x in enumerate(operands)]
    parts, number, groups = [], 1, every
    for divisor in divisors:
        number *= divisor
        groups = [x if i == tau else _groups(x, number) for i, x in enumerate(every)]
        columns = (x if i == tau else _siblings(x, divisor) for i, x in enumerate(groups[1:], 1))
        parts.append(reduction.of_pairs(all_pairs, groups[0], *columns))
    parts.append(reduction.of_pairs(settings, *groups))
    parts = jax.tree.map(lambda x: x.reshape(*x.shape[:-3], -1, x.shape[-1])[..., :num, :], parts)
    return functools.reduce(reduction.added, parts)


def _levels(num: int) -> tuple[list[int], int]:
    """The numbers of groups into which each group is divided, level by level, and the size of the smallest."""
    parts = -(-num // SMALLEST)
    number = math.ceil(math.log(parts, SIBLINGS))
    divisor = next(x for x in range(2, SIBLINGS + 2) if x**number >= parts)
    return [divisor] * number, -(-num // divisor**number)


def _padded(x: Array, missing: int, fill: float | None) -> Array:
    """More rows, like the last one or filled."""
    padding = [(0, 0)] * (x.ndim - 2) + [(0, missing), (0, 0)]
    return jnp.pad(x, padding, mode="edge") if fill is None else jnp.pad(x, padding, constant_values=fill)


def _groups(x: Array, number: int) -> Array:
    """(…, N, W) -> (…, groups, size, W)."""
    return x.reshape(*x.shape[:-2], number, x.shape[-2] // number, x.shape[-1])


def _siblings(x: Array, divisor: int) -> Array:
    """The rows of the siblings of each group, (…, groups, siblings · size, W)."""
    *batch, number, size, width = x.shape
    families = x.reshape(*batch, number // divisor, divisor, size, width)
    twice = jnp.concatenate([families, families], -3)
    found = jnp.stack([twice[..., i + 1 : i + divisor, :, :] for i in range(divisor)], -4)
    return found.reshape(*batch, number, (divisor - 1) * size, width)


def _mixed(x: tuple[Array, Array], y: tuple[Array, Array]) -> tuple[Array, Array]:
    """Means and logarithms of sums over two sets of keys, for both."""
    largest = jax.lax.stop_gradient(jnp.maximum(x[1], y[1]))
    shares = [jnp.exp(logs - largest) for _, logs in (x, y)]
    total = shares[0] + shares[1]
    return (shares[0] * x[0] + shares[1] * y[0]) / total, largest + jnp.log(total)


_LOGS = Reduction(log_sums, jnp.logaddexp, (None, LOG_ZERO))
_MEANS = Reduction(softmax_means, _mixed, (0.0, None, LOG_ZERO))
_RELATIVE = Reduction(_relative, jnp.add, (0.0, LOG_ZERO, None))
