"""Weights of points: what stands for none, and what leaves out the pairs of points with themselves."""

import jax.numpy as jnp
from jaxtyping import Array

from .._checks.settings import Settings, working_dtype


def weights_or_mean(weights: Array | None, points: Array, settings: Settings) -> Array:
    """The weights of the points, 1/N each if there are none given; not in half precision, where that may be zero."""
    if weights is None:
        num, dtype = points.shape[0], working_dtype(settings.dtype)
        return jnp.full(num, 1 / num if num != 0 else 0, dtype)
    return weights


def normalized(settings: Settings, weights: Array | None, points: Array) -> Array:
    """The weights (N,), divided by their sum."""
    w = jnp.asarray(weights_or_mean(weights, points, settings), points.dtype)
    return w / w.sum()


def distinct_pairs_factor(a: Array) -> Array:
    """(Σa)² / Σ_{i ≠ j} a_i a_j, which makes a sum over i ≠ j one over all pairs; of weights (…, N, 1)."""
    total = jnp.square(a.sum((-2, -1)))
    return total / (total - jnp.square(a).sum((-2, -1)))
