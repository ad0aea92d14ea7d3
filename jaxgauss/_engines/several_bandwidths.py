"""Sums of kernels that are made of several Gaussians: tiles and waves sum all at once, other engines each by itself."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .apart import apart
from .differences.all_pairs import sums_by_differences
from .engine import Problem, as_sums
from .far import blocks_that_may_pay, in_turn, sums_by_points, waves_of_matrix, without_overflow
from .fourier.cost import doubt_resolved, waves_pay_here
from .plan import Plan, in_precision
from .products.engine import Blocked
from .products.several import MOST, milliseconds, sums_of_several
from .request import PairSums, Request, shapes_of
from .scopes import scope


def mixed_sums(request: Request, plan: Plan, *operands: Array) -> PairSums:
    """`PairSums` (…, 1, M, ·) of the one kernel Σ_t share_t κ_t, whose own τ is one, from τ and shares (…, T)."""
    queries, keys, values, tau, _, *weights = operands
    most, _ = blocks_that_may_pay([request], plan, queries, keys, values, *weights, bandwidths=tau.shape[-1])
    if plan.apart and most:
        batch = np.broadcast_shapes(tau.shape[:-1], *(x.shape[:-3] for x in (queries, keys, values, *weights)))
        shape = *batch, 1, queries.shape[-2]
        shapes = shapes_of(request, *shape, scale=tau[..., :1], points=queries)
        by_each = functools.partial(_by_each, request, plan)
        return apart(_sums_apart, (request, plan.bare()), shapes, *operands, ways=lambda: [by_each])
    return _by_each(request, plan, *operands)


def _by_each(request: Request, plan: Plan, *operands: Array) -> PairSums:
    queries, keys, values, tau, shares, *weights = operands
    found = plan.engine.pair_sums(plan, request, queries, keys, values, tau, *weights).mixed(tau, shares)
    return jax.tree.map(lambda x: x[..., None, :, :], found)


def takes_several(plan: Plan, problem: Problem, num: int, automatic: bool) -> bool:
    """Whether tiles of one product stand for sums of so many near Gaussians, in the plan's precision.

    If the engine is `automatic`, also for kernels of attention that are estimated to take more time.
    """
    if plan.platform == "cuda" or num > MOST:
        return False
    if isinstance(plan.engine, Blocked):
        return True
    may_choose = automatic and problem.known and plan.precision == problem.working
    return may_choose and milliseconds(problem, num) < plan.engine.cost(problem)


def several_near(plan: Plan, with_pulls: bool, *operands: Array) -> tuple[Array, ...]:
    """`sums_of_several` in the plan's precision."""
    dense = plan.name == "dense"
    with scope("engine", f"{'dense' if dense else 'blocked'} in {plan.precision}"):
        return in_precision(lambda _, *x: sums_of_several(with_pulls, *x, dense=dense))(plan, *operands)


def several_in_turn(
    plan: Plan, columns: Array, queries: Array, keys: Array, values: Array, tau: Array, shares: Array
) -> tuple[Array, ...]:
    """The same, by a sum of the columns for each Gaussian: moments w k, if pulls are wanted, and the values."""
    moments = columns.shape[-1] - values.shape[-1]
    found = plan.engine.sums(plan, True, queries, keys, columns, tau, moments=moments)
    first, sums = jnp.split(as_sums(plan.engine, found, queries, keys, columns)[0], [moments], -1)
    pulls = first - sums[..., :1] * queries if moments else first
    sums, pulls, _ = PairSums(sums, pulls, pulls[..., :0]).mixed(tau, shares)
    return sums[..., None, :, :], pulls[..., None, :, :]


def _sums_apart(request: Request, plan: Plan, *operands: np.ndarray) -> PairSums:
    """The sums of NumPy's arrays, for each element of a batch by the way that its points need."""
    queries, keys, values, tau, shares, *weights = operands

    def summed(queries: np.ndarray, keys: np.ndarray, values: np.ndarray, _: None, *weights: np.ndarray):
        points = (x[..., 0, :, :] for x in (queries, keys, values, *weights))
        found = in_turn(functools.partial(_of_matrix, request, plan), tau[..., None], shares[..., None], *points)
        return [jax.tree.map(lambda x: x[..., None, :, :], found)]

    (found,) = without_overflow(summed, queries, keys, values, None, *weights)
    return found


def _of_matrix(request: Request, plan: Plan, tau: np.ndarray, shares: np.ndarray, *operands: np.ndarray) -> PairSums:
    queries, keys, values, row_weights, weights = operands
    scale, sizes_of = np.sqrt(tau), (queries, keys, values, weights)
    most, sizes = blocks_that_may_pay([request], plan, *sizes_of, bandwidths=len(tau))
    given = queries, keys, values, scale, row_weights, weights

    def by_each(some: Any = slice(None)) -> list[PairSums]:
        q, k, v, g, w = (x[None] for x in (queries[some], keys, values, row_weights[some], weights))
        return [sums_by_points([request], plan, q, k, v, tau[:, 0], g, w)[0].mixed(tau[:, 0], shares[:, 0])]

    def of_rows(some: np.ndarray, are_many: bool) -> PairSums:
        if are_many:
            return by_each(some)[0]
        return _rows_of_mixture(
            request, tau[:, 0], shares[:, 0], queries[some], keys, values, row_weights[some], weights
        )

    does, around = waves_pay_here(plan, most, plan.precision, sizes, scale, queries, keys)
    if not does:
        return by_each()[0]
    found, doubt = waves_of_matrix([request], plan, most, sizes, around, shares, *given)
    return doubt_resolved(found, doubt, [of_rows], by_each)[0]


@functools.partial(jax.jit, static_argnums=0)
def _rows_of_mixture(request: Request, tau: Array, shares: Array, *operands: Array) -> PairSums:
    queries, keys, values, row_weights, weights = (x[None] for x in operands)
    return sums_by_differences(request, queries, keys, values, tau, row_weights, weights).mixed(tau, shares)
