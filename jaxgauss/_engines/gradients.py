"""Gradients of sums over pairs of points, from sums at the queries and at the keys."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._arrays.points import by_point, of_coordinates, unbroadcast
from .._arrays.shapes import K, Q, T, V
from .request import PairSums


def gradients_of(
    about_queries: PairSums, about_keys: PairSums, queries: Q, keys: K, values: V, tau: T
) -> tuple[Q, K, V, T]:
    """The gradients of the operands, from `PairSums` at the queries and at the keys; the latter hold Σ_m κ g_m."""
    scale = by_point(tau, queries)
    found = scale * about_queries.pulls, scale * about_keys.pulls, about_keys.sums, of_tau(about_queries.spread, tau)
    return in_shapes(found, (queries, keys, values, tau))


def of_tau(spread: Float[Array, "*batch m s"], tau: T) -> T:
    """The gradient of τ, one or one for each coordinate; zero without a spread."""
    if not spread.shape[-1]:
        return jnp.zeros_like(tau)
    return (spread.sum(-2) if of_coordinates(tau, spread) else spread.sum((-2, -1))) / -2


def in_shapes(gradients: tuple[Array, ...], operands: tuple[Array, ...]) -> Any:
    return tuple(unbroadcast(d, x.shape) for d, x in zip(gradients, operands, strict=False))
