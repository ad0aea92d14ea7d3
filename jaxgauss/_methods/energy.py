"""Energy distance: the MMD² of the kernel -‖x - y‖."""

from typing import Unpack

from jaxtyping import Array, Float

from .._checks.arguments import public
from .._checks.settings import Samples, WeightOptions, Weights
from .mmd import checked_mmd


@public()
def energy_distance(
    x: Samples,
    y: Samples,
    *,
    x_weights: Weights | None = None,
    y_weights: Weights | None = None,
    estimator: str = "biased",
    y_norm_squared: Float[Array, "*#batch"] | float | None = None,
    **options: Unpack[WeightOptions],
) -> Float[Array, "*result"]:
    """Energy distance of two samples, 2 E‖X - Y‖ - E‖X - X'‖ - E‖Y - Y'‖, with its gradient from the same sums.

    It is `mmd_squared` with kernel="energy" and τ = 1, in linear memory, and needs no bandwidth.

    Args:
        x: points, (…, M, D). Leading axes are batches, which broadcast.
        y: points, (…, N, D).
        x_weights, y_weights, estimator, **options: as for `mmd_squared`. Both weights must have the same sum. If it is
            one, E is the weighted mean.
        y_norm_squared: the third term, -E‖Y - Y'‖, if only x moves: `embedding_norm_squared(y, 1.0, kernel="energy",
            …)` with the same weights and estimator. It saves a sum per step.

    Returns:
        A scalar, or (…) for leading axes, at least zero with "biased": as `dcor.energy_distance`, the square of
        `scipy.stats.energy_distance`, and twice geomloss's "energy" loss. Its square root has no gradient at zero. NaN
        if a coordinate is infinite.

    Raises:
        ValueError, TypeError: as `mmd_squared` does.

    Derivatives:
        Any order, both modes, with respect to x, y and both weights. Points that coincide exert no force on each
        other.

    Example:
        >>> import jax.numpy as jnp, jaxgauss
        >>> float(jaxgauss.energy_distance(jnp.array([[0.0]]), jnp.array([[3.0]])))
        6.0

    References:
        Székely & Rizzo, "Energy Statistics: A Class of Statistics Based on Distances", 2013.
        Sejdinovic, Sriperumbudur, Gretton & Fukumizu, "Equivalence of Distance-based and RKHS-based Statistics in
        Hypothesis Testing", 2013, arXiv:1207.6076.
    """
    weights = {"x_weights": x_weights, "y_weights": y_weights}
    return checked_mmd("energy_distance", "energy", x, y, 1.0, weights, estimator, y_norm_squared, options)
