"""Clusters: tiles of sorted points, each about a center of its own; tiles where the kernel is zero are left out."""

from dataclasses import dataclass, replace

import jax

from ..._arrays.devices import vary_like
from ..._kernels.kernels import GAUSS, Kernel
from ..engine import Engine, Problem
from ..far import sums_anywhere
from ..gradients import gradients_of
from ..means import means_anywhere
from ..plan import Plan, in_precision
from ..request import NOTHING, Channels, PairSums, Request
from .sorted_tiles import mean_share, sorts


@dataclass(frozen=True, repr=False)
class Clusters(Engine):
    """Tiles of sorted points, each with its own center: accurate wherever the points lie, in XLA alone.

    Points are sorted into clusters. A pair of clusters is summed by products about a center of its own, or from
    differences of coordinates where these have not the digits; pairs between which the kernel is zero are left out.
    Other engines hand their far points to this one.

    Args:
        precision: float32 or float64; None: the dtype of the points.
    """

    alone = True

    def automatic(self, problem: Problem) -> bool:
        """For logarithms of other kernels, which have no products."""
        return problem.logs and problem.kernel != GAUSS

    def seen_far(self, plan: Plan, kernel: Kernel, reason: str, *operands: jax.Array) -> Plan:
        """The plan for points that another engine hands on."""
        reason, share = f"{reason}: tiles of sorted points use centers of their own", 1.0
        queries, keys, _, tau = operands
        if sorts(plan, queries.shape[-2], *keys.shape[-2:], pulls=False):
            share = float(mean_share(kernel, queries, keys, tau))
        reason += "" if share == 1 else f"; {share:.1%} of the tiles are summed, in the others the kernel is zero"
        return replace(plan, engine=replace(self, precision=plan.precision), near=False, reason=reason)

    def sums(self, plan: Plan, near: bool | None, *operands: jax.Array, **_: object) -> tuple[jax.Array, ...]:
        """Σ_n Φ v_n; nothing is kept for the pullback."""
        return _gauss_sums(plan, *operands)

    def pullback(self, plan: Plan, near: bool | None, *operands: jax.Array) -> tuple[jax.Array, ...]:
        """Gradients of Σ_m ⟨g_m, s_m⟩, from pulls at the queries and at the keys."""
        return _gauss_pullback(plan, *operands)

    def log_means(
        self, plan: Plan, near: bool | None, *operands: jax.Array, kernel: Kernel = GAUSS
    ) -> tuple[jax.Array, ...]:
        """Σ_n w κ v / Σ_n w κ and log Σ_n w κ, with exponents in float64."""
        return means_anywhere(kernel, plan, *operands)

    def pair_sums(self, plan: Plan, request: Request, *operands: jax.Array) -> PairSums:
        """`PairSums` of any kernels; those without columns, too, vary over a mesh."""
        found = sums_anywhere([request], plan, *operands)[0]
        return jax.tree.map(lambda x: vary_like(x, operands), found)

    def pair_pullback(
        self, plan: Plan, channels: Channels, *operands: jax.Array, with_tau: bool = True, others: bool = False
    ) -> tuple[jax.Array, ...]:
        """From pulls at the queries and at the keys; the gradient of τ is valid only `with_tau`."""
        queries, keys, values, tau, g = operands
        requests = Request(NOTHING, channels, with_tau), Request(channels, channels, repeats=True, at_keys=True)
        requests = [x._replace(others=others) for x in requests]
        at_queries, at_keys = sums_anywhere(requests, plan, queries, keys, keys[..., :0], tau, g, values)
        return gradients_of(at_queries, at_keys, queries, keys, values, tau)


@in_precision
def _gauss_sums(plan: Plan, queries: jax.Array, keys: jax.Array, values: jax.Array, tau: jax.Array):
    request = Request(Channels((GAUSS,), values.shape[-1:]), NOTHING)
    return (sums_anywhere([request], plan, queries, keys, values, tau, queries[..., :0], keys[..., :0])[0].sums,)


@in_precision
def _gauss_pullback(plan: Plan, *operands: jax.Array) -> tuple[jax.Array, ...]:
    channels = Channels((GAUSS,), operands[2].shape[-1:])
    return CLUSTERS.pair_pullback(plan, channels, *operands[:5], with_tau=False)[:3]


CLUSTERS = Engine.rest = Clusters()
