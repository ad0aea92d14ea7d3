"""Sums at some queries at a time, with a progress bar."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._checks.settings import Settings
from .display import progress_bar

PAIRS = 2**30  # of a part: seconds on a CPU
LEAST, MOST = 2**20, 100  # queries of a part of a Fourier series, and parts


def in_parts(settings: Settings, compute: Callable[[Any], Array], queries: Any, num_keys: int, axis: int = -1) -> Array:
    """`compute(queries)`, joined along an axis from parts of the queries.

    All parts have one size, so that one program is compiled; queries (…, M, D) that the last one lacks are repeated.
    A Fourier series sums all keys for each part, which therefore has as many queries.
    """
    num, by_waves = queries.shape[-2], settings.waves or settings.engine.name == "fourier"
    size = min(num, max(1, -(-num // MOST), max(LEAST, num_keys) if by_waves else PAIRS // max(1, num_keys)))
    found = []
    with progress_bar(settings.function, num, "query") as bar:
        for start in range(0, max(1, num), max(1, size)):
            rows = queries[..., start : start + size, :]
            padding = [(0, 0)] * (rows.ndim - 2) + [(0, size - rows.shape[-2]), (0, 0)]
            part = jax.block_until_ready(compute(jnp.pad(rows, padding, mode="edge") if num else rows))
            found.append(jax.lax.slice_in_dim(part, 0, rows.shape[-2], axis=axis % part.ndim))
            bar.update(rows.shape[-2])
    return jnp.concatenate(found, axis) if len(found) > 1 else found[0]
