"""Shapes of operands of equal rank, whose batches broadcast."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

Q = Float[Array, "*#batch m d"]  # queries
K = Float[Array, "*#batch n d"]  # keys
V = Float[Array, "*#batch n c"]  # values
T = Float[Array, "*#batch"] | Float[Array, "*#batch d"]  # τ, or one τ for each coordinate: see `by_point`
S = Float[Array, "*result m c"]  # sums
G = Float[Array, "*#batch m c"]  # a cotangent of sums
W = Float[Array, "*#batch n 1"]  # weights
L = Float[Array, "*result m 1"]  # logarithms
Numbers = Array | np.ndarray


def working_dtype(dtype: Any) -> np.dtype:
    """The dtype in which sums are computed: float64 for float64, else float32."""
    return np.dtype("float64" if jnp.dtype(dtype) == np.float64 else "float32")


def are_known(*sizes: Any) -> bool:
    """Whether sizes are numbers, not symbols of `jax.export`."""
    return all(isinstance(size, int | np.integer) for size in sizes)


def padded_to_multiple(arrays: Sequence[Array | None], multiple: int, fill: float) -> list[Array | None]:
    """Points and other arrays with so many more rows that their number is a multiple."""
    points, *others = arrays
    assert points is not None
    missing = -points.shape[-2] % multiple

    def pad(x: Array | None, **filling: Any) -> Array | None:
        return None if x is None else jnp.pad(x, [(0, 0)] * (x.ndim - 2) + [(0, missing), (0, 0)], **filling)

    return [pad(points, mode="edge"), *(pad(x, constant_values=fill) for x in others)] if missing else list(arrays)
