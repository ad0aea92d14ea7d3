"""Pairs of different index of few points, which are their own keys: sums, gradients and means, without derivatives.

On CUDA there may be many points.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._arrays.devices import has_cuda
from .._kernels.kernels import GAUSS, Kernel
from .branches import one_of_two
from .differences.all_pairs import sums_by_differences
from .far import without_overflow
from .gradients import gradients_of
from .means import blocked_means, difference_means
from .plan import NEAR, STRICTER
from .products.pair_sums import sums_by_products, within
from .request import NOTHING, Channels, PairSums, Request


def pairs_of_others(request: Request, _: str, *operands: Array) -> PairSums:
    """`PairSums` of a request for others: by products where these are accurate, else from differences."""

    def of_pairs(*operands: Array) -> list[PairSums]:
        by_products, by_differences = (functools.partial(f, request) for f in (sums_by_products, sums_by_differences))
        if request.kinked or has_cuda():
            return [by_differences(*operands)]
        return [one_of_two(_are_near(request, *operands), by_products, by_differences, *operands)]

    return without_overflow(of_pairs, *operands)[0]


def _are_near(request: Request, queries: Array, keys: Array, values: Array, tau: Array, _: Array, weights: Array):
    reach = NEAR[queries.dtype.name]
    if not request.pulls.kernels:
        return within(reach, queries, keys, tau, weights=values)
    (kernel,) = request.pulls.kernels
    reach /= STRICTER if request.spread or kernel != GAUSS else 1
    return within(reach, queries, keys, tau, kernel.slope, jnp.abs(weights).max(-1, keepdims=True, initial=0))


def pullback_of_others(channels: Channels, with_tau: bool, platform: str, *operands: Array) -> tuple[Array, ...]:
    """Gradients of Σ_m ⟨g_m, s_m⟩ with respect to queries, keys, values and τ."""
    queries, keys, values, tau, g = operands
    of_rows = Request(NOTHING, channels, with_tau, others=True)
    of_columns = Request(channels, channels, repeats=True, at_keys=True, others=True)
    at_queries = pairs_of_others(of_rows, platform, queries, keys, keys[..., :0], tau, g, values)
    at_keys = pairs_of_others(of_columns, platform, keys, queries, g, tau, values, g)
    return gradients_of(at_queries, at_keys, queries, keys, values, tau)


def means_of_others(kernel: Kernel, near: bool, _: str, *operands: Array) -> tuple[Array, Array]:
    """Σ w κ v / Σ w κ and log Σ w κ of queries, keys, values, τ and log-weights; in float64 if points may be far."""
    if has_cuda():
        return difference_means(kernel, *operands, others=True)
    if near:
        return blocked_means(*operands, others=True)
    with jax.enable_x64(True):
        found = difference_means(kernel, *(x.astype("float64") for x in operands), others=True)
        return found[0].astype(operands[0].dtype), found[1].astype(operands[0].dtype)
