"""Sums at some queries at a time, with a progress bar."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .display import progress_bar
from .explanation import Explanation


def in_parts(expected: Explanation, compute: Callable[[Any], Array], queries: Any, axis: int = -1) -> Array:
    """`compute(queries)`, joined along an axis from parts of queries that are expected to take a second each.

    All parts have one size, so that one program is compiled; queries (…, M, D) that the last one lacks are repeated.
    """
    num = queries.shape[-2]
    size = max(1, math.ceil(num / max(1.0, expected.milliseconds / 1e3)))
    found = []
    with progress_bar(expected.function, num, "query") as bar:
        for start in range(0, max(1, num), size):
            rows = queries[..., start : start + size, :]
            padding = [(0, 0)] * (rows.ndim - 2) + [(0, size - rows.shape[-2] if num else 0), (0, 0)]
            part = jax.block_until_ready(compute(jnp.pad(rows, padding, mode="edge") if num else rows))
            found.append(jax.lax.slice_in_dim(part, 0, rows.shape[-2], axis=axis % part.ndim))
            bar.update(rows.shape[-2])
    return jnp.concatenate(found, axis) if len(found) > 1 else found[0]
