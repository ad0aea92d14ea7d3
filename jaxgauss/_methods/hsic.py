"""Hilbert-Schmidt independence criterion: how much two variables depend on one another, in three Gauss sums."""

import functools
import math
from dataclasses import replace
from typing import Any, Unpack

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from .._arrays.batches import over_leading_axes
from .._arrays.devices import replicated, vary_alike, visible
from .._arrays.tracing import jitted
from .._checks.arguments import public
from .._checks.operands import as_operand
from .._checks.samples import check_estimator, check_samples, check_signs
from .._checks.settings import MeshOptions, Samples, Settings, Taus, Weights, working_dtype
from .._sums.distinct import are_hidden, mean_kernel, sums_of_others, usual_or_sparse
from .._sums.mesh import product_over_mesh, replicated_over_mesh, sum_over_mesh
from .._sums.preparation import OfEach, check_plan, examined
from .weights import normalized

FEWEST = {"biased": 1, "unbiased": 4}  # points; the unbiased estimate is a mean over quadruples


@public("own")
def hsic(
    x: Samples,
    y: Samples,
    tau_x: Taus,
    tau_y: Taus,
    *,
    estimator: str = "biased",
    weights: Weights | None = None,
    **options: Unpack[MeshOptions],
) -> Float[Array, "*result"]:
    """Hilbert-Schmidt independence criterion of pairs (x_i, y_i): near zero if x and y are independent.

    It is the MMD² between the pairs and independent pairs. With K_ij = exp(-τ_x/2 ‖x_i - x_j‖²), L likewise for y and
    Σa = 1,

        HSIC = Σ_ij a_i a_j K_ij L_ij - 2 Σ_i a_i (K a)_i (L a)_i + (aᵀK a)(aᵀL a),

    or tr(K H L H) / N² for a = 1/N. Three Gauss sums, or six with all gradients: O(N² (D_x + D_y)), in linear memory.

    Args:
        x: points, (…, N, D_x). Leading axes are batches, which broadcast: one criterion for each element.
        y: points that are paired with them, (…, N, D_y).
        tau_x: τ = 1/σ² of x, positive; or several, (…, T), whose kernels are averaged, as for `mmd_squared`.
        tau_y: τ of y, likewise, (…, S).
        estimator: "biased", the formula above, at least 0; or "unbiased", over pairs, triples and quadruples of
            distinct points, weighted by the products of their weights (N ≥ 4).
        weights: a, (…, N), not negative; they are divided by their sum. None: all are equal.
        **options: `engine` and `precision`, as for `gauss_sum`, except that None is float32 on CUDA; and
            `mesh`, `query_axis` and `key_axis`, as for `mmd_squared`.

    Returns:
        A scalar, or (…) for leading axes, in the promoted dtype.

    Raises:
        ValueError: shapes do not fit, there are too few points, τ or weights are not positive, or an option has an
            unknown value.
        TypeError: points or weights are not a floating array.

    Derivatives:
        Any order, both modes, with respect to x, y, both τ and weights. Minimizing it makes features independent.

    Precision:
        Within 2e-6 of (aᵀK a)(aᵀL a) in float32. Near zero, rounding may make the biased estimate negative.

    Example:
        >>> import jax, jaxgauss
        >>> x, z = jax.random.normal(jax.random.key(0), (2, 500, 1))
        >>> dependent = jaxgauss.hsic(x, x**2 + z, 1.0, 1.0, estimator="unbiased")
        >>> independent = jaxgauss.hsic(x, z, 1.0, 1.0, estimator="unbiased")
        >>> bool(dependent > 0.01 > abs(independent))
        True

    References:
        Gretton, Bousquet, Smola & Schölkopf, "Measuring Statistical Dependence with Hilbert-Schmidt Norms", 2005.
        Song, Smola, Gretton, Bedo & Borgwardt, "Feature Selection via Dependence Maximization", JMLR 13, 2012.
    """
    function = "hsic"
    check_estimator(function, estimator)
    settings, taus = check_pairs(function, x, y, tau_x, tau_y, options, FEWEST[estimator], weights, batches=True)
    check_signs(function, weights)
    check_quadruples(function, estimator, weights)
    dim, bandwidths = x.shape[-1] + y.shape[-1], math.prod(math.prod(np.shape(tau)[-1:]) for tau in taus)
    check_plan(settings, 1.0, x.shape[-2] ** 2 * bandwidths, dim, 1, x, y)
    settings = examined(settings, OfEach(*taus), (x, y), values=weights)
    return _hsic(replace(settings, matmul_precision="highest"), estimator, x, y, *taus, weights)


def check_pairs(
    function: str,
    x: Any,
    y: Any,
    tau_x: Any,
    tau_y: Any,
    options: Any,
    min_points: int,
    weights: Any = None,
    **how: Any,
) -> tuple[Settings, list[Any]]:
    """Check the arguments; return the settings and both τ."""
    taus, given = {"tau_x": tau_x, "tau_y": tau_y}, {"weights": weights}
    settings = check_samples(
        function, {"x": x, "y": y}, taus, options, weights=given, min_points=min_points, paired=True, **how
    )
    return settings, [as_operand(tau, settings.dtype) for tau in taus.values()]


def check_quadruples(function: str, estimator: str, weights: Any) -> None:
    """Raise ValueError if the unbiased estimate of known weights would be 0/0."""
    seen = None if weights is None or estimator == "biased" else visible(weights)
    if seen is not None and (np.count_nonzero(seen, -1) < FEWEST[estimator]).any():
        raise ValueError(
            f"`jaxgauss.{function}`: `weights` must weigh four points for the unbiased estimator; got"
            f" {np.count_nonzero(seen, -1).min()} of {seen.shape[-1]} points with weight. Use estimator='biased'."
        )


# With κ = K a and λ = L a, which have the means κ̄ = aᵀκ and λ̄ = aᵀλ, the biased estimate is
#
#     Σ_ij a_i a_j K_ij L_ij - κ̄ λ̄ - 2 Σ_i a_i (κ_i - κ̄)(λ_i - λ̄)
#
# The unbiased one is U₂ - 2 U₃ + U₄ of means over distinct points: with K' and L' without their diagonals, κ = K' a and
# λ = L' a, and p_k = Σ a^k,
#
#     U₂ = Σ_ij a_i a_j K'_ij L'_ij / (p₁² - p₂)
#     U₃ = [Σ_i a_i κ_i λ_i - Σ_ij a_i a_j² K'_ij L'_ij] / (p₁³ - 3 p₁ p₂ + 2 p₃)
#     U₄ = [(aᵀκ)(aᵀλ) - 4 Σ_i a_i² κ_i λ_i + 2 Σ_ij a_i² a_j² K'_ij L'_ij] / (p₁⁴ - 6 p₁² p₂ + 3 p₂² + 8 p₁ p₃ - 6 p₄)
#
# where the denominators subtract the tuples that share a point. Unequal weights need a² as a second channel of the
# joint sum; equal weights do not. Everything consists of Gauss sums, which have their own rules.


@functools.partial(jitted, num_static=2)
@over_leading_axes(2, 2, 1, 1, 1)
def _hsic(settings: Settings, estimator: str, x, y, tau_x, tau_y, weights) -> Array:
    dtype, num = working_dtype(settings.dtype), len(x)
    x, y, tau_x, tau_y = replicated(*(jnp.asarray(z, dtype) for z in (x, y, tau_x, tau_y)))
    a = normalized(settings, weights, x)
    x, y, tau_x, tau_y, a = vary_alike(x, y, tau_x, tau_y, a)
    given = x, y, a[:, None]
    x, y, a = replicated(*given) if settings.mesh is None else replicated_over_mesh(settings, *given)
    tau_x, tau_y = tau_x.ravel(), tau_y.ravel()
    of_x, of_y = (sum_over_mesh(settings, z, z, a, tau).mean(0) for z, tau in ((x, tau_x), (y, tau_y)))

    def sums_of_both(*values: Array) -> list[Array]:
        """Sums of the channels, each (N, 1), averaged over the bandwidths."""
        total = product_over_mesh(settings, x, y, jnp.concatenate(values, -1), tau_x, tau_y)
        return jnp.split(total.mean((0, 1)), len(values), -1)

    if estimator == "biased":
        (of_both,) = sums_of_both(a)
        mean_x, mean_y = (a * of_x).sum(), (a * of_y).sum()
        found = (a * of_both).sum() - mean_x * mean_y - 2 * (a * (of_x - mean_x) * (of_y - mean_y)).sum()
        return found.astype(settings.dtype)
    squares = jnp.square(a)
    if weights is None:
        (of_both,) = sums_of_both(a)
        again = of_both / num
    else:
        of_both, again = sums_of_both(a, squares)
    own = jnp.square(a).sum()
    usual = [of_x - a, of_y - a, of_both - a, again - squares]
    amounts = lax.stop_gradient(jnp.stack([(a * x).sum() for x in usual[:3]]))
    is_sparse = are_hidden(settings, num, amounts, jnp.full(3, own))
    others = usual_or_sparse(settings, is_sparse, lambda *_: usual, _sums_of_distinct, x, y, tau_x, tau_y, a)
    of_x, of_y, of_both, again = others
    p1, p2, p3, p4 = (jnp.power(a, k).sum() for k in (1, 2, 3, 4))
    product = of_x * of_y
    twos = (a * of_both).sum()
    threes = (a * product).sum() - (a * again).sum()
    means = (a * of_x).sum() * (a * of_y).sum()
    fours = means - 4 * (squares * product).sum() + 2 * (squares * again).sum()
    twos, threes = twos / (p1**2 - p2), threes / (p1**3 - 3 * p1 * p2 + 2 * p3)
    fours = fours / (p1**4 - 6 * p1**2 * p2 + 3 * p2**2 + 8 * p1 * p3 - 6 * p4)
    enough = jnp.count_nonzero(a) >= FEWEST[estimator]  # else the estimate is 0/0, up to rounding
    return jnp.where(enough, twos - 2 * threes + fours, jnp.nan).astype(settings.dtype)


def _sums_of_distinct(settings: Settings, x: Array, y: Array, tau_x: Array, tau_y: Array, a: Array) -> list[Array]:
    """K'a, L'a, (K' ∘ L') a and (K' ∘ L') a², each (N, 1)."""
    of_x, of_y = (mean_kernel(settings.kernel, tau, z) for tau, z in ((tau_x, x), (tau_y, y)))
    both = sums_of_others(lambda *rows: of_x(*rows) * of_y(*rows), jnp.concatenate([a, jnp.square(a)], -1))
    return [sums_of_others(of_x, a), sums_of_others(of_y, a), both[:, :1], both[:, 1:]]
