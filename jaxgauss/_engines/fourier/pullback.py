"""The pullback of sums by a Fourier series: derivatives of its own, of every order."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from ..._arrays.points import by_point
from ..far import blocks_that_may_pay
from ..plan import Plan
from ..request import PairSums, Request
from ..tiles import one_by_one
from .cost import waves_pay_here
from .sums import SUMS, Promise, in_64_bit_mode, sums_of_sides


def waves_pullback(
    request: Request, plan: Plan, otherwise: Callable, operands: Sequence[Array], cotangents: PairSums
) -> tuple[Array, ...]:
    """The gradients of `pair_sums` by waves, if these pay and no query is in doubt, else otherwise(*operands).

    On CUDA they are by waves where these are asked for by name.
    """
    most, sizes = blocks_that_may_pay([request], plan, *(operands[i] for i in (0, 1, 2, -1)))
    if not most or (plan.platform == "cuda" and not plan.by_waves):
        return otherwise(*operands)

    def with_doubt(promise: Promise | None, *operands: Array) -> tuple[PairSums, Array]:
        queries, keys, values, tau, *weights = operands

        def of_matrix(*operands: Array) -> tuple[PairSums, Array]:
            does, around = waves_pay_here(plan, most, plan.precision, sizes, operands[3], *operands[:2])
            ((sums, doubt),) = sums_of_sides([request], most, plan, promise, operands, sizes, around)
            return sums, doubt.any() | jnp.logical_not(does)

        return one_by_one(of_matrix, queries, keys, values, by_point(jnp.sqrt(tau), queries), *weights)

    def of_waves(cotangents: PairSums, *operands: Array) -> tuple[Array, ...]:
        return jax.vjp(lambda *x: with_doubt(None, *x)[0], *operands)[1](cotangents)

    if plan.platform == "cuda":
        return of_waves(cotangents, *operands)
    promise = None if plan.by_waves else SUMS[plan.precision]
    with jax.enable_x64(True):
        doubt = with_doubt(promise, *map(lax.stop_gradient, operands))[1]
        return lax.cond(doubt.any(), lambda _, *x: otherwise(*x), in_64_bit_mode(of_waves), cotangents, *operands)
