"""The bandwidth of a kernel density estimate that leave-one-out likelihood prefers."""

import functools
from typing import NamedTuple, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from .._arrays.places import whole
from .._arrays.points import LOG_ZERO
from .._checks.samples import check_kernel, check_samples, check_signs
from .._checks.settings import MeshOptions, Options, Points, Settings, Weights, working_dtype
from .._kernels.kernels import Kernel
from .._sums.display import progress_bar, refuse_progress_in_a_trace, short_repr
from .._sums.log_gauss_sum import log_gauss_sum
from .._sums.reverse_only import reverse_only
from .kde import check_integral, log_factor, log_or_zero
from .weights import normalized

GROUP = 1024  # points that see one another in a dense matrix, for the sake of leaving themselves out


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
    kernel: str | Kernel = "gauss",
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
        kernel: as for `kde_logpdf`.
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
    kernel = check_kernel("leave_one_out_tau", kernel, positive=True)
    settings = check_samples(
        "leave_one_out_tau",
        {"points": points},
        checked,
        asked,
        weights=given,
        min_points=2,
        allowed=Options,
        kernel=kernel,
    )
    check_integral("leave_one_out_tau", kernel, points.shape[1])
    check_signs("leave_one_out_tau", weights)
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


@functools.partial(jax.jit, static_argnums=0)
def _search(settings: Settings, points, taus, weights) -> BandwidthSearch:
    (x,) = whole(jnp.asarray(points, working_dtype(settings.dtype)))
    taus = _candidates(settings, x) if taus is None else taus
    operands = whole(x, jnp.asarray(taus, x.dtype), normalized(settings, weights, x))
    x, taus, w = reverse_only(settings.function, *operands)
    logs = _sums_over_others(settings, x, log_or_zero(w), taus)  # (T, N)
    others = jnp.log1p(-jnp.minimum(w, 1 - jnp.finfo(w.dtype).eps))
    logs = logs + log_factor(settings.kernel, taus, x.shape[1])[:, None] - others[None]
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
            jax.checkpoint(lambda tau: jax.nn.logsumexp(settings.kernel.log(tau * squared) + w[None] + themselves, -1)),
            taus,
        )

    def add(logs: Array, turn: Array):
        others = jnp.roll(x, turn, 0), jnp.roll(w, turn, 0)
        more = log_gauss_sum(x, *others, taus[:, None], kernel=settings.kernel, **settings.options)
        return jnp.logaddexp(logs, jnp.maximum(more, LOG_ZERO)), None

    logs = jnp.moveaxis(lax.map(within, (x, w)), 0, 1)  # (T, groups, size)
    if num_groups > 1:
        logs = lax.scan(jax.checkpoint(add), logs, jnp.arange(1, num_groups))[0]
    return logs.reshape(len(taus), -1)[:, :num]
