"""Compensated summation: the number of terms adds no rounding error.

Source: Knuth, "The Art of Computer Programming", volume 2, section 4.2.2, theorem B.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float


def two_sum(x: Float[Array, "..."], y: Float[Array, "..."]) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """x + y, rounded, and its rounding error."""
    total = x + y
    added = total - x
    return total, (x - (total - added)) + (y - added)


def compensated(total: Float[Array, "..."], lacking: Float[Array, "..."]) -> Float[Array, "..."]:
    """The total plus its rounding errors; the total may be infinite."""
    return jnp.where(jnp.isfinite(lacking), total + lacking, total)
