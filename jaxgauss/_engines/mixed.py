"""Sums of kernels that are made of several Gaussians: waves sum all at once, other engines sum each by itself."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .plan import Plan
from .radial import blocks_that_may_pay, of_matrices, pair_sums_in_xla
from .tiles import one_by_one
from .wanted import PairSums, Wanted


def mixed_sums_in_xla(wanted: Wanted, plan: Plan, *operands: Array) -> PairSums:
    """`PairSums` (…, 1, M, ·) of the one kernel Σ_t share_t κ_t, whose own τ is one, from τ and shares (…, T)."""
    queries, keys, values, tau, shares, *weights = operands

    def of_each(tau: Array, shares: Array, *operands: Array) -> PairSums:
        queries, keys, values, *weights = operands
        return pair_sums_in_xla(wanted, plan, queries, keys, values, tau, *weights).mixed(tau, shares)

    def of_all(scale: Array, shares: Array, *operands: Array) -> PairSums:
        queries, keys, values, *weights = operands

        def otherwise(*_: Any) -> list[PairSums]:
            return [of_each(jnp.square(scale[:, 0]), shares[:, 0], *(x[None] for x in operands))]

        given = queries, keys, values, scale, *weights
        return of_matrices([wanted], plan, *given, shares=shares, by_tiles=otherwise)[0]

    given = queries, keys, values, *weights
    one_sum = plan.platform != "cuda"  # there nothing waits to learn whether all need too many waves
    if one_sum and blocks_that_may_pay([wanted], plan, *given, bandwidths=tau.shape[-1])[0]:
        matrices = jnp.sqrt(tau)[..., None], shares[..., None], *(x[..., 0, :, :] for x in given)
        found = one_by_one(of_all, *matrices)
    else:
        found = of_each(tau, shares, *given)
    return jax.tree.map(lambda x: x[..., None, :, :], found)
