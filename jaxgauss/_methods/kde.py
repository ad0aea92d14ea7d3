"""Kernel density estimates: log-density and score."""

import functools
import math
from dataclasses import replace
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from .._arrays.batches import over_leading_axes
from .._arrays.custom_rule import with_pullback
from .._arrays.devices import has_cuda, visible
from .._arrays.points import LOG_ZERO
from .._arrays.tracing import jitted
from .._checks.arguments import public
from .._checks.operands import check_others
from .._checks.samples import check_kernel, check_options, check_samples, check_signs
from .._checks.settings import MeshOptions, Samples, Settings, Taus, Weights, working_dtype
from .._kernels.kernels import Kernel
from .._sums.display import refuse_progress, refuse_progress_in_a_trace
from .._sums.kernel_mean import as_logs
from .._sums.mesh import log_sum_over_mesh, relative_sum_over_mesh
from .._sums.preparation import check_plan, examined
from .._sums.progress import in_parts
from .weights import normalized
from .whitening import Whitening, check_one_bandwidth, unwhitened, whitening_of


@public()
def kde_logpdf(
    points: Samples,
    samples: Samples,
    tau: Taus | None = None,
    *,
    bandwidth: str | None = None,
    kernel: str | Kernel = "gauss",
    weights: Weights | None = None,
    exclude_self: bool = False,
    progress: bool = False,
    **options: Unpack[MeshOptions],
) -> Float[Array, "*result p"]:
    """Log-density of a kernel density estimate: log Σ_n w_n (τ/2π)^{D/2} exp(-τ/2 ‖x - k_n‖²), or with another kernel.

    Another kernel κ(τ‖x - k_n‖²) is divided by its integral. One log-sum-exp: O(P N D) operations and O((P + N) D)
    memory. The result is finite at any distance from the samples; distances count up to 1e18 bandwidths.

    Args:
        points: x where to evaluate, (…, P, D). Leading axes are batches, which broadcast as in `jnp.matmul`.
        samples: k, (…, N, D).
        tau: τ = 1/σ², positive; or several, (…, T), whose densities are averaged over the last axis: τ of each element
            of a batch is (…, 1).
        bandwidth: "scott" or "silverman" instead of τ. τ ‖x - k‖² is then (x - k)ᵀ H⁻¹ (x - k), and the factor
            (2π)^{-D/2} |H|^{-½}, as in SciPy's `gaussian_kde`: H is the covariance of the samples times the rule's
            factor squared. Derivatives pass through H.
        kernel: "gauss", "matern12" ("laplace"), "matern32", "matern52"; or, in D < 2α dimensions,
            `rational_quadratic(alpha)`, which is Student's density with 2α - D degrees of freedom ("cauchy": α = 1).
        weights: w, (…, N), not negative; they are divided by their sum. None: all are equal.
        exclude_self: whether the points are the samples (N ≥ 2), and the density at each is that of the others, whose
            weights are divided by their own sum. Not over a mesh.
        progress: take some points at a time and show a bar (needs tqdm); not under transformations.
        **options: `engine` and `precision`, as for `log_gauss_sum`; and `mesh`, `query_axis` and `key_axis`,
            as for `mmd_squared`.

    Returns:
        (…, P), in the promoted dtype.

    Raises:
        ValueError: shapes do not fit, there are no samples, tau or weights are not positive, both or neither of tau and
            bandwidth are given, H is singular (under `jit` the result is NaN), or an option has an unknown value.
        TypeError: points, samples or weights are not a floating array.

    Derivatives:
        Any order, both modes, with respect to points, samples, tau and weights. Derivatives with respect to
        weights of zero do not exceed 1e26.

    Precision:
        As for `log_gauss_sum`. A named bandwidth loses digits as √H is ill conditioned.

    Example:
        >>> import jax.numpy as jnp, jaxgauss
        >>> round(float(jaxgauss.kde_logpdf(jnp.array([[50.0]]), jnp.array([[0.0]]), 1.0)[0]), 3)
        -1250.919

    References:
        Silverman, "Density Estimation for Statistics and Data Analysis", 1986.
    """
    if progress:
        refuse_progress("kde_logpdf", exclude_self, "with exclude_self")
        refuse_progress_in_a_trace("kde_logpdf", points, samples, tau, weights)
    given = tau, bandwidth, kernel, weights, bool(exclude_self), options
    settings, points, *others, whitening = _check("kde_logpdf", points, samples, *given)
    others.append(None if whitening is None else whitening.log_det)
    if not progress:
        return _logpdf(settings, points, *others)
    return in_parts(settings, lambda x: _logpdf(settings, x, *others), points, samples.shape[-2])


@public()
def kde_score(
    points: Samples,
    samples: Samples,
    tau: Taus | None = None,
    *,
    bandwidth: str | None = None,
    kernel: str | Kernel = "gauss",
    weights: Weights | None = None,
    exclude_self: bool = False,
    **options: Unpack[MeshOptions],
) -> Float[Array, "*result p d"]:
    """Score of a kernel density estimate, ∇ log p(x) = τ (Σ_n P_n(x) k_n - x), with the softmax weights P_n.

    One attention call. The mean shift is the score over τ. With several bandwidths it is the mean of their scores,
    weighted by the densities.

    Args:
        points, samples, tau, bandwidth, kernel, weights, exclude_self, **options: as for `kde_logpdf`.

    Returns:
        (…, P, D): it points up the density. An Optax optimizer descends, so give it the negative.

    Raises:
        ValueError, TypeError: as `kde_logpdf` does.

    Derivatives:
        Any order, both modes, with respect to points, samples, tau and weights, as for `kde_logpdf`.

    Example:
        >>> import jax.numpy as jnp, jaxgauss
        >>> jaxgauss.kde_score(jnp.array([[50.0]]), jnp.array([[0.0]]), 2.0).tolist()
        [[-100.0]]

    References:
        Fukunaga & Hostetler, "The Estimation of the Gradient of a Density Function", 1975.
    """
    given = tau, bandwidth, kernel, weights, bool(exclude_self), options
    *checked, whitening = _check("kde_score", points, samples, *given, pulls=True)
    return _score(*checked, *((None, None) if whitening is None else (whitening.unit, whitening.matrix)))


def _check(
    function: str,
    points,
    samples,
    tau,
    bandwidth,
    kernel,
    weights,
    exclude_self: bool,
    options: MeshOptions,
    *,
    pulls: bool = False,
) -> tuple[Settings, Any, Any, Any, Any, Whitening | None]:
    """Check the arguments; return the settings, points, samples, τ, weights, and how points were whitened if so."""
    check_options(function, options)
    check_one_bandwidth(function, tau, bandwidth)
    tau = 1.0 if tau is None else tau
    given = {"weights": weights}
    both = {"samples": samples, "points": points}
    kernel = check_kernel(function, kernel, positive=True)
    how = {"kernel": kernel, "logs": True, "batches": True}
    settings = check_samples(function, both, tau, options, weights=given, may_be_empty="points", **how)
    check_integral(function, kernel, points.shape[-1])
    check_signs(function, weights)
    if exclude_self:
        check_others(function, {"points": points, "samples": samples}, mesh=settings.mesh)
        _check_two(function, samples, weights)
    settings, found = replace(as_logs(settings), exclude_self=exclude_self), None
    if bandwidth is not None:
        found = whitening_of(settings, bandwidth, samples, weights)
        points, samples = found.points(points), found.points(samples)
    pairs = points.shape[-2] * samples.shape[-2] * math.prod(np.shape(tau)[-1:])
    tau = check_plan(settings, tau, pairs, points.shape[-1], 1, samples, points)
    settings = examined(settings, tau, points, samples, weights, pulls=pulls, logs=True)
    return settings, points, samples, tau, weights, found


def _check_two(function: str, samples, weights) -> None:
    """Raise ValueError unless at least two samples are known to have weight."""
    num, seen = samples.shape[-2], None if weights is None else visible(weights)
    some = num if seen is None else np.count_nonzero(seen, -1).min()
    if some < 2:
        raise ValueError(
            f"`jaxgauss.{function}`: `samples` must hold at least two points that have weight with exclude_self; got"
            f" {some} of {num}. Leave it out."
        )


def check_integral(function: str, kernel: Kernel, dim: int) -> None:
    """Raise ValueError unless the integral of the kernel in this dimension is known and finite."""
    if not math.isfinite(kernel.log_integral(dim)):
        raise ValueError(
            f"`jaxgauss.{function}`: `kernel` must have an integral that is known; got {kernel!r} in {dim} dimensions."
            " Use a Matérn kernel, or jaxgauss.rational_quadratic(alpha) of a larger alpha."
        )


@functools.partial(jitted, num_static=1)
@over_leading_axes(2, 2, 1, 1, 0)
def _logpdf(settings: Settings, points, samples, tau, weights, log_det) -> Array:
    dtype = working_dtype(settings.dtype)
    points, samples, tau = (jnp.asarray(x, dtype) for x in (points, samples, tau))
    w = normalized(settings, weights, samples)[:, None]
    logs = log_sum_over_mesh(settings, points, samples, log_or_zero(w), tau)
    if weights is not None:
        logs = logs + jnp.log1p(_of_zero_weights(settings, points, samples, w, tau, logs))
    logs = logs[..., 0] + log_factor(settings.kernel, tau, points.shape[-1])[..., None]
    if settings.exclude_self:
        before, after = (jnp.pad(jnp.cumsum(x), (1, 0))[:-1] for x in (w[:, 0], w[::-1, 0]))  # no difference
        logs = logs - jnp.expand_dims(log_or_zero(before + after[::-1]), range(logs.ndim - 1))
    if tau.ndim:
        logs = jax.nn.logsumexp(logs, 0) - math.log(len(tau))
    logs = logs if log_det is None else logs + log_det
    return logs.astype(settings.dtype)


@functools.partial(jitted, num_static=1)
@over_leading_axes(2, 2, 1, 1, 2, 2)
def _score(settings: Settings, points, samples, tau, weights, unit, matrix) -> Array:
    points = jnp.asarray(points, working_dtype(settings.dtype))
    # the rule of log_gauss_sum takes the means from the same call; XLA drops what is unused
    scores = jax.grad(lambda x: _logpdf(settings, x, samples, tau, weights, None).sum())(points)
    scores = scores if unit is None else unwhitened(unit, matrix, scores)
    return scores.astype(settings.dtype)


def log_or_zero(weights: Array) -> Array:
    """The logarithm; for zero a number below every other, with gradient zero."""
    return jnp.where(weights > 0, jnp.log(jnp.where(weights > 0, weights, 1)), LOG_ZERO)


# With S the sum over the weights above zero, and Z the set of the others,
#
#     log Σ_n w_n Φ = log S + log(1 + Σ_{n in Z} w_n Φ / S)
#
# The last sum is zero, but its derivatives with respect to the weights are not. A mask needs them.


def _zeros_of_zero_weights(settings: Settings, points: Array, samples: Array, weights: Array, tau: Array, logs: Array):
    """Σ_{n in Z} w_n Φ exp(-logs_m) (…, M, 1), for weights (N, 1), where Z are the points of weight zero."""
    return jnp.zeros_like(logs)


def _of_zero_weights_backward(settings: Settings, operands: tuple[Array, ...], cotangent: Array):
    are_zero = operands[2] == 0

    def relative(points: Array, samples: Array, weights: Array, tau: Array, logs: Array) -> Array:
        values = jnp.where(are_zero, weights, 0)
        return relative_sum_over_mesh(settings, points, samples, values, are_zero.astype(values.dtype), tau, logs)

    def pullback(*operands: Array) -> tuple[Array, ...]:
        return jax.vjp(relative, *operands)[1](cotangent)

    if has_cuda():  # a branch would wait for the device
        return pullback(*operands)
    return lax.cond(are_zero.any(), pullback, lambda *operands: jax.tree.map(jnp.zeros_like, operands), *operands)


_of_zero_weights = with_pullback(_zeros_of_zero_weights, 1, _of_zero_weights_backward)


def log_factor(kernel: Kernel, tau: Array, dim: int) -> Array:
    """The logarithm of the factor that normalizes the kernel: log (τ/2π)^{D/2} for the Gaussian."""
    return dim / 2 * jnp.log(tau) - kernel.log_integral(dim)
