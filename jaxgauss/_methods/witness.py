"""The witness function of the MMD, and the flow along its gradient."""

import functools
from typing import Unpack

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._arrays.batches import over_leading_axes
from .._arrays.tracing import jitted
from .._checks.arguments import public
from .._checks.samples import check_balance, check_kernel, check_samples
from .._checks.settings import Samples, Settings, Taus, WeightOptions, Weights
from .._kernels.kernels import Kernel
from .._sums.moments import Reduction, as_gaussians, prepare, shares_of, with_reduction
from .._sums.preparation import check_and_examine
from .weights import weights_or_mean


@public()
def mmd_witness(
    points: Samples,
    x: Samples,
    y: Samples,
    tau: Taus,
    *,
    kernel: str | Kernel = "gauss",
    x_weights: Weights | None = None,
    y_weights: Weights | None = None,
    **options: Unpack[WeightOptions],
) -> Float[Array, "*result p"]:
    """Witness function of the MMD, f(t) = Σ_i a_i k(x_i, t) - Σ_j b_j k(y_j, t): positive where x is denser than y.

    One Gauss sum of one channel.

    Args:
        points: t, (…, P, D).
        x, y, tau, kernel, x_weights, y_weights, **options: as for `mmd_squared`, leading axes, too.

    Returns:
        (…, P), not normalized: divide by the MMD for the witness of unit norm.

    Raises:
        ValueError, TypeError: as `mmd_squared` does.

    Derivatives:
        Any order, both modes, with respect to points, x, y, weights and tau; -∇f at x is `mmd_flow_velocity`.

    Example:
        >>> import jax.numpy as jnp, jaxgauss
        >>> x, y = jnp.array([[0.0]]), jnp.array([[100.0]])
        >>> jaxgauss.mmd_witness(jnp.array([[0.0], [50.0], [100.0]]), x, y, 1.0).tolist()
        [1.0, 0.0, -1.0]

    References:
        Gretton, Borgwardt, Rasch, Schölkopf & Smola, "A Kernel Two-Sample Test", JMLR 13, 2012, section 2.3.
    """
    samples = {"x": x, "y": y, "points": points}
    weights = {"x_weights": x_weights, "y_weights": y_weights}
    kernel = check_kernel("mmd_witness", kernel)
    settings = check_samples(
        "mmd_witness",
        samples,
        tau,
        options,
        weights=weights,
        may_be_empty="points",
        kernel=kernel,
        allowed=WeightOptions,
        batches=True,
    )
    check_balance(settings, **weights)
    pairs, dim = points.shape[-2] * (x.shape[-2] + y.shape[-2]), x.shape[-1]
    every, of_every = (points, x, y), (0, x_weights, y_weights)
    settings, tau = check_and_examine(settings, tau, pairs, dim, dim + 1, every, of_every)
    return _witness(settings, False, points, x, y, tau, x_weights, y_weights)[0]


@public()
def mmd_flow_velocity(
    x: Samples,
    y: Samples,
    tau: Taus,
    *,
    kernel: str | Kernel = "gauss",
    x_weights: Weights | None = None,
    y_weights: Weights | None = None,
    **options: Unpack[WeightOptions],
) -> Float[Array, "*result m d"]:
    """Velocity of the MMD flow that carries x to y: -∇f(x_i), where f is the witness function.

    v_i = τ Σ_j a_j k(x_i, x_j) (x_i - x_j) - τ Σ_j b_j k(x_i, y_j) (x_i - y_j): particles repel one another, and y
    attracts them. For another kernel κ(u), -2κ' replaces k. One Gauss sum of D + 1 channels. A Gaussian exerts no force
    over many bandwidths; "imq" and "energy" do.

    Args:
        x: the particles, (…, M, D).
        y: the target, (…, N, D).
        tau, kernel, x_weights, y_weights, **options: as for `mmd_squared`, leading axes, too.

    Returns:
        (…, M, D): particles move to x + step_size · velocity. It is -1/(2 a_i) times the gradient of the biased
        `mmd_squared`. An Optax optimizer descends, so give it the negative: `optimizer.update(-velocity, state)`.

    Raises:
        ValueError, TypeError: as `mmd_squared` does.

    Derivatives:
        Any order, both modes, with respect to x, y, weights and tau.

    Example:
        >>> import jax.numpy as jnp, jaxgauss
        >>> velocity = jaxgauss.mmd_flow_velocity(jnp.array([[1.0]]), jnp.array([[0.0]]), 1.0)
        >>> round(float(velocity[0, 0]), 4)
        -0.6065

    References:
        Arbel, Korba, Salim & Gretton, "Maximum Mean Discrepancy Gradient Flow", 2019, arXiv:1906.04370.
    """
    weights = {"x_weights": x_weights, "y_weights": y_weights}
    kernel = check_kernel("mmd_flow_velocity", kernel)
    samples = {"x": x, "y": y}
    how = {"weights": weights, "kernel": kernel, "allowed": WeightOptions, "batches": True}
    settings = check_samples("mmd_flow_velocity", samples, tau, options, **how)
    check_balance(settings, **weights)
    pairs, dim = x.shape[-2] * (x.shape[-2] + y.shape[-2]), x.shape[-1]
    every, of_every = (x, x, y), (0, x_weights, y_weights)
    settings, tau = check_and_examine(settings, tau, pairs, dim, dim + 1, every, of_every, pulls=True)
    return _witness(settings, True, x, x, y, tau, x_weights, y_weights)[1]


@functools.partial(jitted, num_static=2)
@over_leading_axes(2, 2, 2, 1, 1, 1)
def _witness(settings: Settings, pulls: bool, points, x, y, tau, x_weights, y_weights) -> tuple[Array, Array]:
    """The witness function (P,) and, with `pulls`, minus its gradient (P, D)."""
    a, b = weights_or_mean(x_weights, x.shape[0], settings), weights_or_mean(y_weights, y.shape[0], settings)
    settings, tau, shares = as_gaussians(settings, tau, x, y)
    tau, points, x, y, a, b = prepare(settings, tau, points, x, y, a[:, None], b[:, None])

    weights = jnp.zeros_like(points[..., :1]), a, b

    def function(reduction: Reduction, every: tuple[Array, ...], tau: Array, a: Array, b: Array):
        points, x, y = every
        keys, weights = jnp.concatenate([x, y], -2), jnp.concatenate([a, -b], -2)
        at = reduction(points, keys, weights, tau, pulls=pulls)
        return at.mass[..., 0], -tau[..., None, None] * at.pulls

    shares, every = shares_of(tau, shares), (points, x, y)
    found = with_reduction(settings, function, every, tau, a, b, shares=shares, weights=weights, pulls=pulls)
    return tuple(z.reshape(z.shape[tau.ndim :]).astype(settings.dtype) for z in found)  # type: ignore[return-value]
