"""Shapes of operands of equal rank, whose batches broadcast."""

from typing import Any

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


def are_known(*sizes: Any) -> bool:
    """Whether sizes are numbers, not symbols of `jax.export`."""
    return all(isinstance(size, int | np.integer) for size in sizes)
