"""MMD² to the standard normal distribution, whose terms are known in closed form."""

import functools
from dataclasses import replace
from typing import Any, Unpack

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._arrays.batches import over_leading_axes
from .._arrays.tracing import jitted
from .._checks.arguments import centered, public
from .._checks.samples import check_distinct_pairs, check_estimator, check_samples
from .._checks.settings import Samples, Settings, Taus, WeightOptions, Weights, working_dtype
from .._sums.preparation import check_and_examine, is_differentiated
from .mmd import mmd_of_samples
from .weights import weights_or_mean


@public("none")
def mmd_squared_to_normal(
    x: Samples,
    tau: Taus | None = None,
    *,
    weights: Weights | None = None,
    estimator: str = "biased",
    **options: Unpack[WeightOptions],
) -> Float[Array, "*result"]:
    """MMD² of a sample to the normal distribution N(0, I), in closed form: no sample of the normal is drawn.

    With the Gaussian kernel, Σ_ij a_i a_j k(x_i, x_j) - 2 Σ_i a_i f(x_i) + (1 + 2τ)^{-D/2}, where f(x) = E k(x, Z) =
    (1 + τ)^{-D/2} exp(-½ τ/(1 + τ) ‖x‖²). One Gauss sum, with or without the gradient. As a loss it makes codes of an
    autoencoder normal; N times the biased one of standardized data is the BHEP statistic, the test of Henze and
    Zirkler.

    Args:
        x: points, (…, N, D). Leading axes are batches.
        tau: τ = 1/σ², positive; or several, (…, T), whose kernels are averaged, as for `mmd_squared`. None: Henze and
            Zirkler's, ½ ((2D + 1) N / 4)^{2/(D + 4)}.
        weights: a, (…, N), of sum one. None: 1/N. Or a mask of booleans.
        estimator: "biased", at least 0; or "unbiased", without the pairs i = i, as for `mmd_squared`.
        **options: as for `mmd_squared`.

    Returns:
        A scalar, or (…) for leading axes, in the promoted dtype.

    Raises:
        ValueError: shapes do not fit, there are too few points, tau is not positive, or an option has an unknown value.
        TypeError: points or weights are not a floating array.

    Derivatives:
        Any order, both modes, with respect to x, weights and tau.

    Precision:
        As for `mmd_squared`: in float32 within 1e-6 of the size of the three terms.

    Example:
        >>> import jax, jaxgauss
        >>> x = jax.random.normal(jax.random.key(0), (500, 3))
        >>> near, far = (jaxgauss.mmd_squared_to_normal(z, estimator="unbiased") for z in (x, x + 1))
        >>> bool(abs(near) < 0.01 < far)
        True

    References:
        Henze & Zirkler, "A Class of Invariant Consistent Tests for Multivariate Normality", 1990.
        Baringhaus & Henze, "A Consistent Test for Multivariate Normality Based on the Empirical Characteristic
        Function", 1988.
    """
    function, given = "mmd_squared_to_normal", {"weights": weights}
    check_estimator(function, estimator)
    origin, (x,) = centered(x, function=function, tau=tau, names=("x",))
    settings = check_samples(
        function,
        {"x": x},
        {} if tau is None else {"tau": tau},
        options,
        weights=given,
        min_points=2 if estimator == "unbiased" else 1,
        allowed=WeightOptions,
        batches=True,
    )
    check_distinct_pairs(function, estimator, given)
    num, dim = x.shape[-2:]
    tau = ((2 * dim + 1) * num / 4) ** (2 / (dim + 4)) / 2 if tau is None else tau
    second_order = is_differentiated(tau)
    settings, tau = check_and_examine(
        settings, tau, num * num, dim, dim + 2, (x,), (weights,), second_order=second_order
    )
    return _to_normal(settings, estimator, x, tau, weights, origin)


@functools.partial(jitted, num_static=2)
@over_leading_axes(2, 1, 1, 1)
def _to_normal(settings: Settings, estimator: str, x: Any, tau: Any, weights: Any, origin: Any) -> Array:
    """MMD² of points about an origin, or None, which was subtracted from points far away."""
    dtype, dim = working_dtype(settings.dtype), x.shape[-1]
    nobody = np.zeros((0, dim), x.dtype)
    unrounded = replace(settings, dtype=dtype.name)
    own = mmd_of_samples(unrounded, estimator, x, nobody, tau, weights, None, 0.0)
    a = jnp.asarray(weights_or_mean(weights, x.shape[0], settings), dtype)
    points, tau = jnp.asarray(x, dtype), jnp.ravel(jnp.asarray(tau, dtype))
    points = points if origin is None else points + jnp.asarray(origin, dtype)[None]
    squared = jnp.square(points).sum(-1)
    logs = -dim / 2 * jnp.log1p(tau)[:, None] - (tau / (1 + tau))[:, None] / 2 * squared[None]  # (T, N)
    cross = (a * jnp.exp(logs).mean(0)).sum()
    return (own - 2 * cross + jnp.exp(-dim / 2 * jnp.log1p(2 * tau)).mean()).astype(settings.dtype)
