"""Kernel Stein discrepancy: how far points are from a density, of which only the scores are known."""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Unpack

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._arrays.batches import over_leading_axes
from .._arrays.points import dot
from .._arrays.tracing import jitted
from .._checks.arguments import public
from .._checks.names import as_engine
from .._checks.samples import check_distinct_pairs, check_estimator, check_kernel, check_samples, check_scores
from .._checks.settings import Samples, Settings, Taus, WeightOptions, Weights
from .._kernels.kernels import GAUSS, Kernel
from .._sums.distinct import are_sparse, sums_of_others, usual_or_sparse
from .._sums.moments import Reduction, as_gaussians, bandwidth_mean, prepare, with_reduction
from .._sums.preparation import check_and_examine
from .weights import distinct_pairs_factor, weights_or_mean


@public()
def ksd_squared(
    points: Samples,
    scores: Samples,
    tau: Taus,
    *,
    kernel: str | Kernel = "gauss",
    weights: Weights | None = None,
    estimator: str = "biased",
    **options: Unpack[WeightOptions],
) -> Float[Array, "*result"]:
    """Squared kernel Stein discrepancy (KSD²) of weighted points from the density that has the given scores.

    KSD² = Σ_ij a_i a_j h(x_i, x_j), with the Langevin Stein kernel of κ(u), u = τ‖x - y‖²,

        h(x_i, x_j) = κ ⟨s_i, s_j⟩ + τ ψ ⟨s_i - s_j, x_i - x_j⟩ + τ (D ψ - u χ),

    where ψ = -2κ' and χ = -2ψ'. For the Gaussian, κ = ψ = χ = exp(-u/2). One sum of some 2D channels: O(N² D)
    operations and O(N D) memory.

    Args:
        points: x, (…, N, D). Leading axes are batches, which broadcast: one KSD² for each element.
        scores: s_i = ∇ log p(x_i), (…, N, D).
        tau: τ = 1/σ², positive; or several, (…, T), whose kernels are averaged, as for `mmd_squared`.
        kernel: a name or a `Kernel` with second derivatives, as for `mmd_squared`: not "matern12" or "energy". A sample
            converges if KSD² of "imq" tends to 0; with "gauss" it need not.
        weights: a, (…, N), of either sign; None: 1/N. A mask of booleans, as for `mmd_squared`.
        estimator: "biased", over all pairs, or "unbiased", without the pairs i = i, as for `mmd_squared`.
        **options: `normalize=True` divides weights by their sum; `engine`, `precision` as for `gauss_sum`;
            `mesh`, `query_axis` and `key_axis` as for `gauss_sum_sharded`, for any number of points.

    Returns:
        A scalar, or (…) for leading axes, in the promoted dtype.

    Raises:
        ValueError: shapes do not fit, there are too few points, tau is not positive, or an option has an unknown value.
        TypeError: points, scores or weights are not a floating array.

    Derivatives:
        Any order, both modes, with respect to points, scores, weights and tau. To differentiate through the scores,
        compute them inside the loss.

    Precision:
        In float32 within 1e-5 of the sum of the absolute terms, gradients within 2e-5, wherever the points lie.

    Example:
        >>> import jax, jaxgauss
        >>> points = jax.random.normal(jax.random.key(0), (1000, 2))
        >>> good = jaxgauss.ksd_squared(points, -points, 1.0, estimator="unbiased")
        >>> bad = jaxgauss.ksd_squared(points + 1, -(points + 1), 1.0, estimator="unbiased")
        >>> bool(abs(good) < 0.01 < bad)
        True

    References:
        Liu, Lee & Jordan, "A Kernelized Stein Discrepancy for Goodness-of-fit Tests", 2016, arXiv:1602.03253.
        Gorham & Mackey, "Measuring Sample Quality with Kernels", 2017, arXiv:1703.01717 (the inverse multiquadric).
    """
    check_estimator("ksd_squared", estimator)
    smallest = 2 if estimator == "unbiased" else 1
    samples, given = {"points": points, "scores": scores}, {"weights": weights}
    kernel = check_kernel("ksd_squared", kernel, positive=True, smooth=True)
    settings = check_samples(
        "ksd_squared",
        samples,
        tau,
        options,
        weights=given,
        min_points=smallest,
        kernel=kernel,
        allowed=WeightOptions,
        batches=True,
    )
    if kernel != GAUSS and settings.automatic:
        settings = replace(
            settings, engine=as_engine(settings.function, "blocked")
        )  # second derivatives of a mixture are not accurate enough
    check_scores("ksd_squared", "points", points, scores)
    check_distinct_pairs("ksd_squared", estimator, given)
    num, dim = points.shape[-2:]
    settings, tau = check_and_examine(settings, tau, num * num, dim, 2 * dim + 1, (points,), second_order=True)
    return _ksd_squared(settings, estimator, points, scores, tau, weights)


# With S_i = Σ_j κ a_j s_j, g_i = Σ_j ψ a_j (x_j - x_i) and t = Σ_ij a_i a_j (D ψ - u χ), by the symmetry of i and j
#
#     Σ_ij a_i a_j ψ τ ⟨s_i - s_j, x_i - x_j⟩ = -2τ Σ_i a_i ⟨s_i, g_i⟩
#
# so KSD² = Σ_i a_i ⟨s_i, S_i - 2τ g_i⟩ + τ t, and h(x, x) = κ(0) ‖s‖² + τ D ψ(0). For a Gaussian u χ comes from the
# same sums: Σ_ij a_i a_j Φ ‖x_i - x_j‖² = -2 Σ_i a_i ⟨x_i - c, g_i⟩ for any c, as Σ_i a_i g_i = 0.


@functools.partial(jitted, num_static=2)
@over_leading_axes(2, 2, 1, 1)
def _ksd_squared(settings: Settings, estimator: str, points, scores, tau, weights) -> Array:
    a = weights_or_mean(weights, points.shape[0], settings)
    usual = functools.partial(_by_all_pairs, settings, estimator, weights is None)
    is_sparse = estimator == "unbiased" and are_sparse(settings, (points,), (a,), tau, weights is None)
    return usual_or_sparse(settings, is_sparse, usual, _by_distinct_pairs, points, scores, tau, a).astype(
        settings.dtype
    )


def _by_all_pairs(settings: Settings, estimator: str, one_sign: bool, points, scores, tau, a) -> Array:
    """KSD² from sums over all pairs."""
    settings, tau, shares = as_gaussians(settings, tau, points)
    # The rounding of a point's own pair may exceed the gradient of all others. Over a mesh, no pair can be left out.
    others = settings.kernel != GAUSS and settings.mesh is None
    settings = replace(settings, exclude_self=others)
    tau, x, s, a = prepare(settings, tau, points, scores, a[:, None])

    def function(reduction: Reduction, points: tuple[Array], tau: Array, s: Array, a: Array) -> Array:
        (x,) = points
        sums = reduction(x, x, a, tau, a * s, trace=a)
        stein = s * (sums.sums - 2 * tau[..., None, None] * sums.pulls)
        return (a * stein).sum((-2, -1)) + tau * sums.trace

    value = with_reduction(settings, function, (x,), tau, s, a, pulls=False, second_order=True, one_sign=one_sign)
    if others != (estimator == "unbiased"):  # the pairs of points with themselves are missing, or too many
        own = settings.kernel.at_zero * jnp.square(s).sum(-1, keepdims=True)
        own = jnp.square(a) * (own + settings.kernel.slope.at_zero * tau[..., None, None] * x.shape[-1])
        value = value + (own if others else -own).sum((-2, -1))
    if estimator == "unbiased":
        value = distinct_pairs_factor(a) * value
    return bandwidth_mean(value, tau, shares)


def _by_distinct_pairs(settings: Settings, x: Array, s: Array, tau: Array, a: Array) -> Array:
    """The unbiased KSD² from h(x_i, x_j) of different points."""
    kernel, dim, at_points = settings.kernel, x.shape[1], (s * x).sum(-1)

    def tile(rows: Array, squared: Callable[[Array], Array]) -> Array:
        distances = squared(x)
        products = dot(s[rows], s.T)
        steps = at_points[rows][:, None] - dot(s[rows], x.T) - dot(x[rows], s.T) + at_points[None]

        def of_tau(t: Array) -> Array:
            u = t * distances
            trace = (dim - u) * kernel(u) if kernel == GAUSS else kernel.trace(dim)(u)
            return kernel(u) * products + t * (kernel.slope(u) * steps + trace)

        return functools.reduce(jnp.add, map(of_tau, jnp.atleast_1d(tau))) / max(1, tau.size)

    sums = sums_of_others(tile, a[:, None])
    return distinct_pairs_factor(a[:, None]) * (a * sums[:, 0]).sum()
