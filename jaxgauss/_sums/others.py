"""Sums over the others, Σ_{n ≠ m}, of points that are their own keys: exactly, by every engine, to every order.

A difference of the whole sum and the own term would have no digits where that is large. Instead the points are divided
into groups, which are divided again. At each level a group is summed with its siblings as keys: a batch of usual sums.
What remains are the pairs within the smallest groups, a dense matrix of each, without its diagonal.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._arrays.shapes import are_known
from .._checks.settings import Settings

SMALLEST = 1024  # points of the smallest groups, at most
SIBLINGS = 8  # groups into which one is divided, at most: their keys are repeated one time less

Summed = Callable[..., Any]  # of settings, queries, keys, what belongs to the keys, and τ


def over_others(
    summed: Summed,
    within: Summed,
    added: Callable[[Any, Any], Any],
    settings: Settings,
    queries: Array,
    keys: Array,
    *others: Array,
    fills: tuple[float, ...] = (0.0,),
) -> Any:
    """`summed` without the pairs of equal index.

    Args:
        summed: (settings, queries, keys, *of keys, tau) -> a tree of (…, M, W), over all pairs.
        within: the same without the pairs of equal index, for few points.
        added: two such trees -> that of both sets of keys.
        queries, keys, others: operands of equal rank; the others are what belongs to the keys, (…, N, W), and τ.
        fills: the values of a key that adds nothing.
    """
    *of_keys, tau = others
    num, settings = keys.shape[-2], replace(settings, exclude_self=False, near=None, waves=None)
    if not are_known(num) or num <= SMALLEST:
        if num in (0, 1):
            return summed(settings, queries, keys[..., :0, :], *(x[..., :0, :] for x in of_keys), tau)
        return within(settings, queries, keys, *of_keys, tau)
    divisors, size = _levels(num)
    padded = [
        _padded(x, math.prod(divisors) * size - num, fill)
        for x, fill in zip((queries, keys, *of_keys), (None, None, *fills), strict=True)
    ]
    parts, number = [], 1
    for divisor in divisors:
        number *= divisor
        rows, *columns = (_groups(x, number) for x in padded)
        parts.append(summed(settings, rows, *(_siblings(x, divisor) for x in columns), tau[..., None]))
    parts.append(within(settings, *(_groups(x, number) for x in padded), tau[..., None]))
    in_order = jax.tree.map(lambda x: x.reshape(*x.shape[:-3], -1, x.shape[-1])[..., :num, :], parts)
    return functools.reduce(added, in_order)


def _levels(num: int) -> tuple[list[int], int]:
    """The numbers of groups into which each group is divided, level by level, and the size of the smallest."""
    parts = -(-num // SMALLEST)
    number = math.ceil(math.log(parts, SIBLINGS))
    divisor = next(x for x in range(2, SIBLINGS + 1) if x**number >= parts)
    return [divisor] * number, -(-num // divisor**number)


def _padded(x: Array, missing: int, fill: float | None) -> Array:
    """More rows, like the last one or filled."""
    padding = [(0, 0)] * (x.ndim - 2) + [(0, missing), (0, 0)]
    return jnp.pad(x, padding, mode="edge") if fill is None else jnp.pad(x, padding, constant_values=fill)


def _groups(x: Array, number: int) -> Array:
    """(…, N, W) -> (…, groups, size, W)."""
    return x.reshape(*x.shape[:-2], number, -1, x.shape[-1])


def _siblings(x: Array, divisor: int) -> Array:
    """The rows of the siblings of each group, (…, groups, siblings · size, W)."""
    *batch, number, size, width = x.shape
    families = x.reshape(*batch, number // divisor, divisor, size, width)
    turns = (np.arange(divisor)[:, None] + np.arange(1, divisor)) % divisor
    found = jnp.take(families, turns, axis=-3, mode="clip")  # (…, families, divisor, siblings, size, W)
    return found.reshape(*batch, number, (divisor - 1) * size, width)
