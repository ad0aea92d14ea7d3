"""How far points lie from their center, in bandwidths, and what becomes of sums of them: one way, or one of three."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from .._arrays.places import platforms, vary_like
from .._arrays.points import BASE_2, are_within, scaled_points, with_norms
from .._arrays.split import SPLIT_REACH
from .._checks.settings import Settings, are_known
from .by_platform import by_platform, plan_there
from .plan import NEAR_SLOPES, REACH, Plan, sizes

# Pairs from which a program for points in two parts is compiled; fewer are summed in float64 in some milliseconds.
SPLIT_PAIRS = 2**22
NEAR, SPLIT, FAR = range(3)  # ways of a sum: as it was planned, of points in two parts, in float64


def within_reach(settings: Settings, *operands: jax.Array, each_tau: bool = False) -> jax.Array:
    """Whether all of a batch lies close enough to its center for the exponents to have their digits: one boolean.

    Or one for `each_tau` of τ (T,). On CUDA it is simply true, for there nothing may wait for the device: what half
    precision does not hold, PyTorch computes again behind a gate.
    """
    operands = tuple(lax.stop_gradient(x) for x in operands)
    return _within_reach(settings, each_tau)(*operands)


@custom_vmap
def are_near(queries: jax.Array, keys: jax.Array, tau: jax.Array) -> jax.Array:
    """Whether the points of a batch lie so near one another that slopes keep their digits as moments: one boolean."""
    queries, keys, tau = (lax.stop_gradient(x) for x in (queries, keys, tau))
    a, b = with_norms(*scaled_points(queries, keys, tau, base_2=False))
    return are_within(NEAR_SLOPES[queries.dtype.name] / BASE_2, a, b)


@are_near.def_vmap
def _(axis_size: int, is_mapped: Sequence[bool], *operands: jax.Array):
    # unbatched, so that what depends on it stays one conditional
    return are_near(*(x if has_axis else x[None] for x, has_axis in zip(operands, is_mapped, strict=True))), False


def splits(settings: Settings, *operands: Any) -> bool:
    """Whether float32 takes points in two parts, beyond the reach of whole ones, before float64 has to."""
    pairs, *_ = sizes(*operands[:4])
    if settings.wide or platforms() != ["cpu"] or not are_known(pairs) or pairs < SPLIT_PAIRS:
        return False
    chosen = plan_there(settings, "cpu", operands)
    return (chosen.method, chosen.precision) == ("blocked", "float32")


def way_there(settings: Settings, *operands: jax.Array, split: bool, each_tau: bool = False) -> jax.Array:
    """`within_reach`, a boolean; or, where it may `split` points, NEAR, SPLIT or FAR."""
    within = within_reach(settings, *operands, each_tau=each_tau)
    if not split:
        return within
    return jnp.where(within, NEAR, jnp.where(within_split(settings, *operands, each_tau=each_tau), SPLIT, FAR))


def in_two_parts(settings: Settings) -> Settings:
    """The settings of what is known to lie within the reach of points in two parts."""
    return replace(settings, split=True, guarded=False)


def within_split(settings: Settings, *operands: jax.Array, each_tau: bool = False) -> jax.Array:
    """`within_reach` of points in two parts, which reach farther."""
    *others, tau = operands
    return within_reach(settings, *others, tau * (REACH["float32"] / SPLIT_REACH), each_tau=each_tau)


@functools.cache
def _within_reach(settings: Settings, each_tau: bool) -> Callable:
    def compute(platform: str, *operands: jax.Array) -> jax.Array:
        return _is_within(plan_there(settings, platform, operands), operands, each_tau)

    @custom_vmap
    def within(*operands: jax.Array) -> jax.Array:
        return by_platform(compute, *operands)

    @within.def_vmap
    def _(axis_size: int, is_mapped: Sequence[bool], *operands: jax.Array):
        # unbatched, so that what depends on it stays one conditional
        return within(*(x if has_axis else x[None] for x, has_axis in zip(operands, is_mapped, strict=True))), False

    return within


def _is_within(chosen: Plan, operands: tuple[jax.Array, ...], each_tau: bool = False) -> jax.Array:
    queries, keys, _, tau, *_ = operands
    if chosen.reach == math.inf:
        return vary_like(jnp.ones(tau.shape[-1:] if each_tau else (), bool), operands)
    a, b = with_norms(*scaled_points(queries, keys, tau))
    return are_within(chosen.reach, a, b, each_tau)
