"""Waves by "auto" on CUDA, where no points are seen: the device finds out whether waves hold them.

Of the `CHOICES` of blocks it takes the least that is enough, or none. Then few queries in doubt are summed again from
differences of coordinates, or all queries. Both are branches of conditionals. XLA records these in CUDA graphs, too,
unless there is a loop in a branch: then the host waits, for sums that take milliseconds.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from ..._arrays.devices import vary_like
from ..._arrays.points import tau_of
from ..differences.all_pairs import sums_by_differences
from ..plan import Plan
from ..request import PairSums, Request
from ..scopes import scope
from .boxes import Box
from .cost import AT_A_TIME, CHOICES, IN_DOUBT, Doubt, Sizes, waves_pay_here
from .frequencies import blocks_of, tolerance_of
from .sums import SUMS, sides, sums_of_sides

Found = tuple[list[PairSums], list[Doubt]]


def sums_that_fit(requests: Sequence[Request], plan: Plan, most: int, sizes: Sizes, *operands: Array) -> list[PairSums]:
    """`sums_of_sides` by at most so many blocks of waves, or from differences; every sum as exact as is promised."""
    found, doubt = _by_waves(requests, plan, most, sizes, operands)
    num = jnp.stack([x.sum(dtype="int32") for x in doubt])
    room = [min(len(x), max(AT_A_TIME, len(x) // IN_DOUBT)) for x in doubt]
    tau = tau_of(operands[3])

    def from_differences(request: Request, side: Sequence[Array], some: Array | slice = slice(None)) -> PairSums:
        queries, keys, values, _, row_weights, weights = side
        return sums_by_differences(request, queries[some], keys, values, tau, row_weights[some], weights)

    def keep(found: list[PairSums], *_: Array) -> list[PairSums]:
        return found

    def correct_few(found: list[PairSums], *operands: Array) -> list[PairSums]:
        rows = (jnp.nonzero(x, size=size, fill_value=0)[0] for x, size in zip(doubt, room, strict=True))
        each = zip(found, rows, requests, sides(operands), strict=False)
        return [
            jax.tree.map(lambda x, y, some=some: x.at[some].set(y), x, from_differences(request, side, some))
            for x, some, request, side in each
        ]

    @scope("engine", "differences")
    def sum_all(_: list[PairSums], *operands: Array) -> list[PairSums]:
        return [from_differences(*x) for x in zip(requests, sides(operands), strict=False)]

    level = sum((num > most).any().astype("int32") for most in (0, np.array(room, "int32")))
    return lax.switch(level, [keep, correct_few, sum_all], found, *operands)


def _by_waves(requests: Sequence[Request], plan: Plan, most: int, sizes: Sizes, operands: Sequence[Array]) -> Found:
    """The sums and the queries in doubt: all of them if too many blocks are needed."""
    queries, keys, _, scale, *_ = operands
    does, around = waves_pay_here(plan, most, plan.precision, sizes, scale, queries, keys)
    length = around.extent * scale.max(0)
    needed = blocks_of(jnp, length, tolerance_of(jnp, plan.precision, length)).max()
    choices = [x for x in CHOICES[sizes.dim] if x <= most]

    def by(blocks: int, around: Box, *operands: Array) -> Found:
        each = sums_of_sides(requests, blocks, plan, SUMS[plan.precision], operands, sizes, around)
        return [x for x, _ in each], [x for _, x in each]

    def by_none(_: Box, *operands: Array) -> Found:
        found, doubt = jax.eval_shape(lambda *x: by(choices[0], *x), around, *operands)
        every = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), found), [jnp.ones(x.shape, bool) for x in doubt]
        return jax.tree.map(lambda x: vary_like(x, operands), every)

    ways = [lambda *x, blocks=blocks: by(blocks, *x) for blocks in choices]
    index = jnp.where(does, (needed > np.array(choices, needed.dtype)).sum(dtype="int32"), len(choices))
    return lax.switch(index, [*ways, by_none], around, *operands)
