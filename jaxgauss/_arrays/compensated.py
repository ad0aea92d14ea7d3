"""Compensated summation: the number of terms adds no rounding error.

Source: Knuth, "The Art of Computer Programming", volume 2, section 4.2.2, theorem B.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float


def two_sum(x: Float[Array, "..."], y: Float[Array, "..."]) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """x + y, rounded, and its rounding error."""
    total = x + y
    added = total - x
    return total, (x - (total - added)) + (y - added)


def compensated(total: Float[Array, "..."], lacking: Float[Array, "..."]) -> Float[Array, "..."]:
    """The total plus its rounding errors; the total may be infinite."""
    return jnp.where(jnp.isfinite(lacking), total + lacking, total)


class RunningSum(NamedTuple):
    """Sums so far, arrays of any tree; and the sums of their rounding errors, or None if these are not kept."""

    total: Any
    lacking: Any = None

    def plus(self, terms: Any) -> "RunningSum":
        """The sums with further terms."""
        total = jax.tree.map(jnp.add, self.total, terms)
        if self.lacking is None:
            return RunningSum(total)
        errors = jax.tree.map(lambda x, y: lax.stop_gradient(two_sum(x, y)[1]), self.total, terms)
        return RunningSum(total, jax.tree.map(jnp.add, self.lacking, errors))

    def value(self) -> Any:
        """The sums, with what they lack."""
        return self.total if self.lacking is None else jax.tree.map(compensated, self.total, self.lacking)
