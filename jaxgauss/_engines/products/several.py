"""Sums of one kernel that is made of several Gaussians, of near points: their exponents are multiples of one u."""

import functools

import jax.numpy as jnp
from jaxtyping import Array

from ..._arrays.exponential import exp2
from ..._arrays.points import scaled_points, side_by_side, squared_distances_of, squares_factors, with_norms
from ..._arrays.shapes import K, Q, T, V
from ..costs import columns, cpu_costs
from ..engine import Problem
from ..tiles import by_parts_of_batch, tiled_sum
from .gaussian import ALONE
from .short import summed

MOST = 16  # Gaussians: more take long to compile


def sums_of_several(
    with_pulls: bool, queries: Q, keys: K, values: V, tau: T, shares: T, *, dense: bool
) -> tuple[Array, Array]:
    """Σ_n κ v_n and Σ_n ψ w_n (k_n - q_m) of points about zero, with κ = Σ_t share_t Φ_t and ψ = Σ_t share_t τ_t Φ_t.

    w is the first column of the values. Operands have an axis for the T Gaussians, of length one but in τ and shares;
    so have results. One product gives u for all, and another Σ_n ψ w [k, 1].
    """
    unit = jnp.maximum(tau.max(-1, keepdims=True), jnp.finfo(tau.dtype).tiny)
    a, b = with_norms(*scaled_points(queries, keys, unit))
    given = (x[..., None, None, None] for x in (tau / unit / -2, shares, shares * tau))
    exponents, of_kappa, of_psi = ([x[..., t, :, :, :] for t in range(tau.shape[-1])] for x in given)
    w, width = values[..., :1], values.shape[-1]
    moments = side_by_side([w * keys, w]) if with_pulls else w[..., :0]

    def tile_sum(a: Array, b: Array, v: Array) -> tuple[Array, Array]:
        u = squared_distances_of(a, b)
        terms = [exp2(factor * u) for factor in exponents]
        kappa, psi = (
            functools.reduce(jnp.add, (x * phi for x, phi in zip(factors, terms, strict=True)))
            for factors in (of_kappa, of_psi)
        )
        firsts = jnp.split(v[..., :width], width, -1) if width <= ALONE else [v[..., :width]]
        sums = jnp.concatenate([summed(kappa, x) for x in firsts], -1)
        return sums, summed(psi, v[..., width:], pull=True) if with_pulls else sums[..., :0]

    how = {"dense": dense, "width": 1 if width <= ALONE else width}
    of_batch = functools.partial(tiled_sum, tile_sum, **how)
    sums, pulled = by_parts_of_batch(of_batch, *squares_factors(a, b), side_by_side([values, moments]))
    return sums, pulled[..., :-1] - pulled[..., -1:] * queries if with_pulls else pulled


def milliseconds(problem: Problem, num: int) -> float:
    """The estimated time on a CPU of so many Gaussians, whose pairs are those of the problem: of few columns each."""
    own = columns("xla", problem.dim, problem.channels)
    return cpu_costs()[0][f"xla in {problem.working}"].nanoseconds(problem.pairs, own / num) / 1e6
