"""Kernel Stein discrepancy: how far points are from a density known by its scores."""

import functools
from typing import Unpack

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._checks.operands import takes_tau
from .._checks.samples import check_distinct_pairs, check_estimator, check_samples, check_scores
from .._checks.settings import MeshOptions, Points, Settings, Taus, Weights
from .._sums.checked import check_plan
from .._sums.moments import Reduction, by_reach, prepare
from .mmd import bandwidth_mean, distinct_pairs_factor, weights_or_mean


@takes_tau
def ksd_squared(
    points: Points,
    scores: Points,
    tau: Taus,
    *,
    weights: Weights | None = None,
    estimator: str = "biased",
    **options: Unpack[MeshOptions],
) -> Float[Array, ""]:
    """Squared kernel Stein discrepancy of weighted points from the density whose scores are given.

    KSD² = Σ_ij a_i a_j u(x_i, x_j) with the Langevin Stein kernel of k = exp(-τ/2 ‖x - y‖²),

        u(x_i, x_j) = k · [⟨s_i, s_j⟩ + τ ⟨s_i - s_j, x_i - x_j⟩ + τ D - τ² ‖x_i - x_j‖²].

    One Gauss sum of 2D + 1 channels, in O(N² D) operations and O(N D) memory.

    Args:
        points: x, (N, D).
        scores: s_i = ∇ log p(x_i), (N, D).
        tau: τ = 1/σ², positive; or several, (T,): k is then the mean of their kernels.
        weights: a, (N,), of either sign. None: 1/N. They are taken as they are, not normalized.
        estimator: "biased", all pairs (V-statistic, at least 0); "unbiased", without the pairs i = i (U-statistic; for
            weights, with the factor (Σa)² / ((Σa)² - Σa²)), at least 2 points, and as many with weight.
        **options: `method`, `precision` and `backend`, as for `gauss_sum`; and `mesh`, `query_axis` and `key_axis`, as
            for `gauss_sum_sharded`, but the mesh need not divide the numbers of points.

    Returns:
        A scalar in the promoted dtype.

    Raises:
        ValueError: shapes do not fit, there are too few points, tau is not positive, an option is not one of its names.
        TypeError: points, scores or weights are not a floating array.

    Derivatives:
        Reverse mode of any order with respect to points, scores, weights and tau (the scores are taken as given: for a
        derivative through them, compute them inside the function that is differentiated). They are formed in float64,
        which takes twice as long as float32 would, for their terms cancel: 1e-6, on a CPU at any distance.

    Precision:
        Of the value, relative to the sum of the sizes of its terms: 1e-6, growing as 2⁻²⁴ R² to 1e-5 where the farthest
        point lies R = 11 bandwidths from the center; beyond that in float64.

    Example:
        >>> import jax, jaxgauss
        >>> points = jax.random.normal(jax.random.key(0), (1000, 2))
        >>> good = jaxgauss.ksd_squared(points, -points, 1.0, estimator="unbiased")
        >>> bad = jaxgauss.ksd_squared(points + 1, -(points + 1), 1.0, estimator="unbiased")
        >>> bool(abs(good) < 0.01 < bad)
        True

    References:
        Liu, Lee & Jordan, "A Kernelized Stein Discrepancy for Goodness-of-fit Tests", 2016, arXiv:1602.03253.
        Chwialkowski, Strathmann & Gretton, "A Kernel Test of Goodness of Fit", 2016, arXiv:1602.02964.
    """
    check_estimator("ksd_squared", estimator)
    smallest = 2 if estimator == "unbiased" else 1
    samples, given = {"points": points, "scores": scores}, {"weights": weights}
    settings = check_samples("ksd_squared", samples, tau, options, weights=given, min_points=smallest)
    check_scores("ksd_squared", "points", points, scores)
    check_distinct_pairs("ksd_squared", estimator, given)
    num, dim = points.shape
    tau = check_plan(settings, tau, num * num, dim, 2 * dim + 1, points)
    return _ksd_squared(settings, estimator, points, scores, tau, weights)


# With S_i = Σ_j Φ a_j s_j, m_i = Σ_j Φ a_j and g_i = Σ_j Φ a_j (x_j - x_i), by the symmetry of i and j
#
#     Σ_ij a_i a_j Φ τ ⟨s_i - s_j, x_i - x_j⟩ = -2τ Σ_i a_i ⟨s_i, g_i⟩
#     r = Σ_ij a_i a_j Φ ‖x_i - x_j‖² = -2 Σ_i a_i ⟨x_i - c, g_i⟩ for any c, as Σ_i a_i g_i = 0
#
# so KSD² = Σ_i a_i [⟨s_i, S_i⟩ + τ D m_i - 2τ ⟨s_i, g_i⟩] - τ² r, and u(x, x) = ‖s‖² + τ D.


@functools.partial(jax.jit, static_argnums=(0, 1))
def _ksd_squared(settings: Settings, estimator: str, points, scores, tau, weights) -> Array:
    a = weights_or_mean(weights, points, settings)
    tau, x, s, a = prepare(settings, tau, points, scores, a[:, None])

    def function(reduction: Reduction, points: tuple[Array], tau: Array, s: Array, a: Array) -> Array:
        (x,) = points
        scale, dim = tau[..., None, None], x.shape[-1]
        sums = reduction(x, x, a, tau, a * s, spread=a)
        stein = (s * (sums.sums - 2 * scale * sums.slopes)).sum(-1, keepdims=True) + scale * dim * sums.mass
        return (a * stein).sum((-2, -1)) - jnp.square(tau) * sums.spread

    value = by_reach(settings, function, (x,), tau, s, a)
    if estimator == "unbiased":
        own = jnp.square(a) * (jnp.square(s).sum(-1, keepdims=True) + tau[..., None, None] * x.shape[-1])
        value = distinct_pairs_factor(a) * (value - own.sum((-2, -1)))
    return bandwidth_mean(value, tau).astype(settings.dtype)
