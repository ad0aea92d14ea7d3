"""Weights of points: their defaults, and the factor that leaves out the pairs i = i."""

import jax.numpy as jnp
from jaxtyping import Array

from .._checks.samples import is_mask
from .._checks.settings import Settings, working_dtype


def weights_or_mean(weights: Array | None, num: int, settings: Settings) -> Array:
    """The weights, normalized if asked for. Without weights, or by a mask, the N points that count get 1/N each.

    1/N is in the working dtype, because it may underflow in half precision.
    """
    if weights is None:
        return jnp.full(num, 1 / num if num != 0 else 0, working_dtype(settings.dtype))
    if is_mask(weights) or settings.normalize:
        kept = jnp.asarray(weights, working_dtype(settings.dtype))
        return kept / kept.sum()
    return weights


def normalized(settings: Settings, weights: Array | None, points: Array) -> Array:
    """The weights (N,), divided by their sum."""
    w = jnp.asarray(weights_or_mean(weights, points.shape[0], settings), points.dtype)
    return w / w.sum()


def distinct_pairs_factor(a: Array) -> Array:
    """(Σa)² / Σ_{i ≠ j} a_i a_j for weights a (…, N, 1): the factor of sums over i ≠ j in unbiased estimates."""
    total = jnp.square(a.sum((-2, -1)))
    return total / (total - jnp.square(a).sum((-2, -1)))
