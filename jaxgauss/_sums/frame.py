"""The frame of a Fourier sketch: what its nodes depend on."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from .._arrays.devices import has_cuda
from .._engines.fourier.frequencies import WAVES, Nodes, nodes


class Frame(NamedTuple):
    """What the nodes of a sketch depend on, as arrays: another τ or box compiles nothing.

    Attributes:
        lower, upper: corners of the box, about the origin of the waves (D,).
        scale: √τ of each coordinate (D,).
        tolerance: of the sketch, ().
    """

    lower: Float[Array | np.ndarray, " d"]
    upper: Float[Array | np.ndarray, " d"]
    scale: Float[Array | np.ndarray, " d"]
    tolerance: Float[Array | np.ndarray, ""]

    def nodes(self, coefficients: Float[Array, "c ..."]) -> Nodes:
        """The nodes of coefficients in the layout of a sketch; rounded alike in every program, even where known."""
        lower, upper, scale, tolerance = lax.optimization_barrier(tuple(map(jnp.asarray, self)))
        most, extent = coefficients.shape[1] // (2 * WAVES[len(lower)]), upper - lower
        return nodes(most, lower + extent / 2, extent, scale, tolerance, at_once=has_cuda())[0]

    def holds(self, points: Float[Array, "n d"], margin: float | Array = 0.0) -> Bool[Array, " n"]:
        """Whether points about the origin are in the box, or at most a margin outside of it; NaN is not."""
        lower, upper = (jnp.asarray(x)[None] for x in self[:2])
        return ((points >= lower - margin) & (points <= upper + margin)).all(-1)
