"""Kernel density estimates: log-density, score, and the bandwidth that leave-one-out likelihood prefers."""

import functools
import math
from dataclasses import replace
from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from .._arrays.places import whole
from .._arrays.points import LOG_ZERO
from .._checks.operands import check_names, takes_tau
from .._checks.samples import check_samples, visible
from .._checks.settings import MeshOptions, Options, Points, Settings, Taus, Weights, working_dtype
from .._sums.checked import check_plan
from .._sums.display import progress_bar, refuse_progress_in_a_trace, short_repr
from .._sums.log_gauss_sum import METHODS, log_gauss_sum
from .._sums.reverse_only import reverse_only
from .._sums.sharded import log_sum_over_mesh, relative_sum_over_mesh
from .weights import weights_or_mean

GROUP = 1024  # points that see one another in a dense matrix, for the sake of leaving themselves out


@takes_tau
def kde_logpdf(
    points: Points,
    samples: Points,
    tau: Taus,
    *,
    weights: Weights | None = None,
    **options: Unpack[MeshOptions],
) -> Float[Array, " p"]:
    """Log-density of a Gaussian kernel density estimate: log Σ_n w_n (τ/2π)^{D/2} exp(-τ/2 ‖x - k_n‖²).

    One log-sum-exp, in O(P N D) operations and O((P + N) D) memory; finite at any distance from the samples.

    Args:
        points: where, x, (P, D).
        samples: k, (N, D).
        tau: τ = 1/σ², positive; or several, (T,): the density is then the mean of theirs.
        weights: w, (N,), not negative. None: all the same. They are divided by their sum.
        **options: `method`, `precision` and `backend`, as for `log_gauss_sum` (float32 on CUDA unless asked otherwise);
            and `mesh`, `query_axis` and `key_axis`, as for `mmd_squared`.

    Returns:
        (P,), in the promoted dtype.

    Raises:
        ValueError: shapes do not fit, there are no samples, tau or weights are not positive, an option is not one of
            its names.
        TypeError: points, samples or weights are not a floating array.

    Derivatives:
        Reverse mode of any order with respect to points, samples, tau and weights, also to those that are zero (at most
        1e26 there).

    Example:
        >>> import jax.numpy as jnp, jaxgauss
        >>> round(float(jaxgauss.kde_logpdf(jnp.array([[50.0]]), jnp.array([[0.0]]), 1.0)[0]), 3)
        -1250.919

    References:
        Silverman, "Density Estimation for Statistics and Data Analysis", 1986.
    """
    settings, tau = _check("kde_logpdf", points, samples, tau, weights, options)
    return _logpdf(settings, points, samples, tau, weights)


@takes_tau
def kde_score(
    points: Points,
    samples: Points,
    tau: Taus,
    *,
    weights: Weights | None = None,
    **options: Unpack[MeshOptions],
) -> Float[Array, "p d"]:
    """Score of a Gaussian kernel density estimate, ∇ log p(x) = τ (Σ_n P_n(x) k_n - x), P the softmax weights.

    One call that gives the mean and the log-sum-exp; τ (mean - x) is also the mean shift. (With several bandwidths the
    mean of the scores, weighted by the densities.)

    Args:
        points, samples, tau, weights, **options: as for `kde_logpdf`.

    Returns:
        (P, D): it points up the density. An Optax optimizer descends, so it takes the negative.

    Raises:
        ValueError, TypeError: as `kde_logpdf` does.

    Derivatives:
        Reverse mode of any order with respect to points, samples, tau and weights, as for `kde_logpdf`.

    Example:
        >>> import jax.numpy as jnp, jaxgauss
        >>> jaxgauss.kde_score(jnp.array([[50.0]]), jnp.array([[0.0]]), 2.0).tolist()
        [[-100.0]]

    References:
        Fukunaga & Hostetler, "The Estimation of the Gradient of a Density Function", 1975.
    """
    settings, tau = _check("kde_score", points, samples, tau, weights, options)
    return _score(settings, points, samples, tau, weights)


class BandwidthSearch(NamedTuple):
    """Leave-one-out likelihoods of several bandwidths.

    Attributes:
        tau: the τ of the largest.
        taus: all that were tried, (T,).
        log_likelihoods: the mean of log p_{-i}(x_i) over the points, for each, (T,).
    """

    tau: Float[Array, ""]
    taus: Float[Array, " t"]
    log_likelihoods: Float[Array, " t"]
    __repr__ = short_repr


def leave_one_out_tau(
    points: Points,
    taus: Float[Array | np.ndarray, " t"] | None = None,
    *,
    weights: Weights | None = None,
    progress: bool = False,
    **options: Unpack[Options],
) -> BandwidthSearch:
    """Bandwidth of a kernel density estimate by leave-one-out likelihood, all candidates in one batch.

    The mean of log p_{-i}(x_i), where p_{-i} is the estimate from all points but x_i. No point is subtracted from a sum
    that holds it: groups of 1024 see one another by turns, and themselves in a matrix without its diagonal, so isolated
    points keep their digits. O(T N² D) operations and O(N (D + T)) memory.

    Args:
        points: x, (N, D), N ≥ 2.
        taus: candidates for τ, (T,). None: 25 from a sixteenth to 4096 times Scott's, (N^{1/(D + 4)} / s)², s² the
            mean variance of a coordinate, or 1 where the points are equal.
        weights: (N,), not negative, divided by their sum. None: all the same.
        progress: show a bar (needs tqdm): the candidates then go one by one. Not under `jit`.
        **options: `method`, `precision` and `backend`, as for `log_gauss_sum`.

    Returns:
        A `BandwidthSearch`: the best τ, the candidates, and their log-likelihoods, in float32 or float64.

    Raises:
        ValueError: shapes do not fit, there are less than two points, taus or weights are not positive, `progress`
            under `jit`.
        TypeError: points or weights are not a floating array.
        ImportError: `progress` without tqdm.

    Derivatives:
        Of the log-likelihoods: reverse mode of any order with respect to points, taus and weights above zero (of a
        weight of zero, only what its own point would count for). Of `tau`: none.

    Example:
        >>> import jax, jaxgauss
        >>> points = jax.random.normal(jax.random.key(0), (1000, 1))
        >>> search = jaxgauss.leave_one_out_tau(points)
        >>> bool(4 < search.tau < 64)
        True

    References:
        Habbema, Hermans & van den Broek, "A stepwise discriminant analysis program using density estimation", 1974.
        Scott, "Multivariate Density Estimation", 1992.
    """
    given = {"weights": weights}
    checked = 1.0 if taus is None else taus
    asked = MeshOptions(**options)
    settings = check_samples(
        "leave_one_out_tau", {"points": points}, checked, asked, weights=given, min_points=2, allowed=Options
    )
    _check_signs("leave_one_out_tau", weights)
    if taus is not None and np.ndim(taus) != 1:
        raise ValueError(f"`jaxgauss.leave_one_out_tau`: `taus` must be one-dimensional; got taus {np.shape(taus)}.")
    if not progress:
        return _search(settings, points, taus, weights)
    refuse_progress_in_a_trace("leave_one_out_tau", points, taus, weights)
    taus = _candidates(settings, points) if taus is None else taus
    with progress_bar("leave_one_out_tau", len(taus), "bandwidth") as bar:
        found = []
        for i in range(len(taus)):
            found.append(jax.block_until_ready(_search(settings, points, taus[i : i + 1], weights)))
            bar.update()
    _, taus, likelihoods = (jnp.concatenate([jnp.atleast_1d(x) for x in field]) for field in zip(*found, strict=True))
    return BandwidthSearch(taus[likelihoods.argmax()], taus, likelihoods)


def _check(function: str, points, samples, tau, weights, options: MeshOptions) -> tuple[Settings, Any]:
    """The settings, and τ as JAX may take it; or what is wrong."""
    given = {"weights": weights}
    both = {"samples": samples, "points": points}
    settings = check_samples(function, both, tau, options, weights=given, may_be_empty="points")
    check_names(function, settings.method, settings.precision, settings.backend, METHODS)
    _check_signs(function, weights)
    settings = replace(settings, grade="highest", guarded=False)
    pairs = points.shape[0] * samples.shape[0] * math.prod(np.shape(tau))
    return settings, check_plan(settings, tau, pairs, points.shape[1], 1, points, samples)


def _check_signs(function: str, weights: Weights | None) -> None:
    """Raise ValueError where weights that can be seen are negative or all zero."""
    seen = None if weights is None else visible(weights)
    if seen is not None and not (seen.min() >= 0 and seen.sum() > 0):
        raise ValueError(
            f"`jaxgauss.{function}`: `weights` must not be negative, nor all zero; got weights from {seen.min()}"
            f" to {seen.max()}. Take their absolute values."
        )


@functools.partial(jax.jit, static_argnums=0)
def _logpdf(settings: Settings, points, samples, tau, weights) -> Array:
    dtype = working_dtype(settings.dtype)
    points, samples, tau = (jnp.asarray(x, dtype) for x in (points, samples, tau))
    shares = _shares(settings, weights, samples)[:, None]
    logs = log_sum_over_mesh(settings, points, samples, _log(shares), tau)
    if weights is not None:
        logs = logs + jnp.log1p(_of_zero_weights(settings, points, samples, shares, tau, logs))
    logs = logs[..., 0] + _log_factor(tau, points.shape[-1])[..., None]
    if tau.ndim:
        logs = jax.nn.logsumexp(logs, 0) - math.log(len(tau))
    return logs.astype(settings.dtype)


@functools.partial(jax.jit, static_argnums=0)
def _score(settings: Settings, points, samples, tau, weights) -> Array:
    points = jnp.asarray(points, working_dtype(settings.dtype))
    # the rule of log_gauss_sum: means from the same call; what else it would give, XLA leaves out
    return jax.grad(lambda x: _logpdf(settings, x, samples, tau, weights).sum())(points).astype(settings.dtype)


@functools.partial(jax.jit, static_argnums=0)
def _search(settings: Settings, points, taus, weights) -> BandwidthSearch:
    (x,) = whole(jnp.asarray(points, working_dtype(settings.dtype)))
    taus = _candidates(settings, x) if taus is None else taus
    operands = whole(x, jnp.asarray(taus, x.dtype), _shares(settings, weights, x))
    x, taus, w = reverse_only(settings.function, *operands)
    logs = _sums_over_others(settings, x, _log(w), taus)  # (T, N)
    logs = logs + _log_factor(taus, x.shape[1])[:, None] - jnp.log1p(-jnp.minimum(w, 1 - jnp.finfo(w.dtype).eps))[None]
    likelihoods = (w[None] * logs).sum(-1)
    return BandwidthSearch(taus[likelihoods.argmax()], taus, likelihoods)


@functools.partial(jax.jit, static_argnums=0)
def _candidates(settings: Settings, points) -> Array:
    (x,) = whole(lax.stop_gradient(jnp.asarray(points, working_dtype(settings.dtype))))
    variance = x.var(0).mean()
    variance = jnp.where(variance > 1e-30, variance, 1)  # of equal points: any bandwidth will do, if it is finite
    return len(x) ** (2 / (x.shape[1] + 4)) / variance * 2 ** jnp.linspace(-4, 12, 25, dtype=x.dtype)


def _sums_over_others(settings: Settings, points: Array, log_weights: Array, taus: Array) -> Array:
    """log Σ_{j ≠ i} w_j exp(-τ/2 ‖x_i - x_j‖²), (T, N)."""
    num, dim = points.shape
    num_groups = -(-num // GROUP)
    size = -(-num // num_groups)
    padding = (0, num_groups * size - num)
    x = jnp.pad(points, (padding, (0, 0)), mode="edge").reshape(num_groups, size, dim)  # no farther than the others
    w = jnp.pad(log_weights, padding, constant_values=LOG_ZERO).reshape(num_groups, size)

    def within(group: tuple[Array, Array]) -> Array:  # (T, size)
        x, w = group
        squared = jnp.square(x[:, None] - x[None]).sum(-1)
        themselves = jnp.where(jnp.eye(size, dtype=bool), LOG_ZERO, 0)
        return lax.map(
            jax.checkpoint(lambda tau: jax.nn.logsumexp(-tau / 2 * squared + w[None] + themselves, -1)), taus
        )

    def add(logs: Array, turn: Array):
        others = jnp.roll(x, turn, 0), jnp.roll(w, turn, 0)
        more = log_gauss_sum(x, *others, taus[:, None], **settings.options)
        return jnp.logaddexp(logs, jnp.maximum(more, LOG_ZERO)), None

    logs = jnp.moveaxis(lax.map(within, (x, w)), 0, 1)  # (T, groups, size)
    if num_groups > 1:
        logs = lax.scan(jax.checkpoint(add), logs, jnp.arange(1, num_groups))[0]
    return logs.reshape(len(taus), -1)[:, :num]


def _shares(settings: Settings, weights: Array | None, points: Array) -> Array:
    """The weights (N,), divided by their sum."""
    w = jnp.asarray(weights_or_mean(weights, points, settings), points.dtype)
    return w / w.sum()


def _log(weights: Array) -> Array:
    """The logarithm, of zero a number below every other; its gradient there is zero."""
    return jnp.where(weights > 0, jnp.log(jnp.where(weights > 0, weights, 1)), LOG_ZERO)


# With S the sum over the weights above zero, and Z the set of the others,
#
#     log Σ_n w_n Φ = log S + log(1 + Σ_{n in Z} w_n Φ / S)
#
# The last sum is zero. Its derivatives are not: they are those with respect to the weights, which a mask has, too.


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _of_zero_weights(settings: Settings, points: Array, samples: Array, weights: Array, tau: Array, logs: Array):
    """Σ_{n in Z} w_n Φ exp(-logs_m) (…, M, 1), of weights (N, 1)."""
    return jnp.zeros_like(logs)


def _of_zero_weights_backward(settings: Settings, operands: tuple[Array, ...], cotangent: Array):
    are_zero = operands[2] == 0

    def relative(points: Array, samples: Array, weights: Array, tau: Array, logs: Array) -> Array:
        values = jnp.where(are_zero, weights, 0)
        return relative_sum_over_mesh(settings, points, samples, values, are_zero.astype(values.dtype), tau, logs)

    def pullback(*operands: Array) -> tuple[Array, ...]:
        return jax.vjp(relative, *operands)[1](cotangent)

    return lax.cond(are_zero.any(), pullback, lambda *operands: jax.tree.map(jnp.zeros_like, operands), *operands)


_of_zero_weights.defvjp(lambda settings, *operands: (_of_zero_weights(settings, *operands), operands),
                        _of_zero_weights_backward)  # fmt: skip


def _log_factor(tau: Array, dim: int) -> Array:
    """log (τ/2π)^{D/2}, of a normalized kernel."""
    return dim / 2 * (jnp.log(tau) - math.log(2 * math.pi))
