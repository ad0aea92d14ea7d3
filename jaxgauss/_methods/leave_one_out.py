"""The bandwidth of a density estimate or a regression that predicts each point best from the others."""

import contextlib
import functools
import math
from dataclasses import replace
from typing import Any, NamedTuple, Unpack

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from .._arrays.devices import expected_platform, has_cuda, is_visible, replicated, visible
from .._arrays.points import LOG_ZERO
from .._calls import readable
from .._checks.arguments import floating_dtype, public
from .._checks.samples import check_kernel, check_samples, check_signs, warn_of_ties
from .._checks.settings import MeshOptions, Options, Points, Settings, Values, Weights, working_dtype
from .._kernels.kernels import GAUSS, Kernel
from .._sums.display import progress_bar, refuse_progress_in_a_trace, short_repr
from .._sums.log_gauss_sum import log_gauss_sum
from .candidates import candidates, chosen, merged
from .kde import check_integral, log_factor, log_or_zero
from .leave_one_out_sums import over_others
from .weights import normalized

MANY = 4096  # from so many points on, in few dimensions, each point's own term is subtracted from a sum over all
HIDDEN = 1e-5  # if the other terms are a smaller part of that sum, the difference has too few digits
NEAREST, NUMBERS = 32, 2**22  # neighbors that are then summed instead; terms that are computed at a time
DIMENSIONS = (1, 2, 3)


@readable
class BandwidthSearch(NamedTuple):
    """The result of `leave_one_out_tau`.

    Attributes:
        tau: the τ with the largest score, unless equal points make it: see `leave_one_out_tau`.
        taus: all candidates, (T,).
        scores: of each candidate, (T,), the larger the better: the mean over points of log p_{-i}(x_i), or of -‖v_i -
            m_{-i}(x_i)‖².
    """

    tau: Float[Array, ""]
    taus: Float[Array, " t"]
    scores: Float[Array, " t"]
    __repr__ = short_repr


@public()
def leave_one_out_tau(
    points: Points,
    taus: Float[Array | np.ndarray, " t"] | None = None,
    *,
    values: Values | None = None,
    kernel: str | Kernel = "gauss",
    weights: Weights | None = None,
    progress: bool = False,
    **options: Unpack[Options],
) -> BandwidthSearch:
    """Choose the bandwidth of a density estimate or a regression: leave-one-out scores of all candidates in one batch.

    The score of τ is the mean of log p_{-i}(x_i), where p_{-i} is the density estimate from all points but x_i; or,
    with values, the mean of -‖v_i - m_{-i}(x_i)‖², where m_{-i} is the `kernel_mean` of the others. Isolated
    points keep their accuracy. O(N² (D + T)) operations, on CUDA O(T N² D), and O(N (D + T)) memory; on a CPU, outside
    of transformations, O(T N) operations for densities of many points in D ≤ 3 dimensions.

    Equal points (counts, rounded numbers, copies) may give the largest score to a kernel narrower than their grid. If
    they raise the density there by more than e^½ in the geometric mean, the chosen τ is the best one if all that equal
    x_i are left out with it, and a warning says so, but not under `jit` or on CUDA; likewise for the errors of a
    regression, if equal points have equal values. If all points are equal, it is the candidate nearest to Scott's τ.

    Args:
        points: x, (N, D), N ≥ 2.
        taus: candidates, (T,). None: 25, from 1/16 to 4096 times Scott's τ, (N^{1/(D + 4)} / s)², where s² is the mean
            variance of a coordinate (1 if all points are equal). An outlier counts as 30 times as far from the median
            as half of the other coordinates are.
        values: v, (N, C) or (N,), to be predicted. None: the density is estimated.
        kernel: as for `kde_logpdf`; with values, as for `kernel_mean`.
        weights: (N,), not negative; they are divided by their sum. None: all are equal.
        progress: show a bar (needs tqdm); candidates are then scored one by one. Not under `jit`.
        **options: `engine` and `precision`, as for `log_gauss_sum`.

    Returns:
        A `BandwidthSearch`: the best τ, the candidates, and their scores, in float32 or float64.

    Raises:
        ValueError: shapes do not fit, N < 2, taus or weights are not positive, or `progress` under `jit`.
        TypeError: points, values or weights are not a floating array.
        ImportError: `progress` without tqdm.

    Derivatives:
        Any order, both modes, of the scores with respect to points, values, taus and positive weights. (The
        derivative with respect to a weight of zero counts only that point's own score.) `tau` has none.

    Example:
        >>> import jax, jaxgauss
        >>> points = jax.random.normal(jax.random.key(0), (1000, 1))
        >>> search = jaxgauss.leave_one_out_tau(points)
        >>> bool(4 < search.tau < 64)
        True

    References:
        Stone, "Cross-Validatory Choice and Assessment of Statistical Predictions", 1974.
        Scott, "Multivariate Density Estimation", 1992.
    """
    function, given = "leave_one_out_tau", {"weights": weights}
    where, asked = f"`jaxgauss.{function}`", MeshOptions(**options)
    kernel = check_kernel(function, kernel, positive=True)
    if taus is not None and np.ndim(taus) != 1:
        raise ValueError(
            f"{where}: `taus` must be one-dimensional; got taus {np.shape(taus)}. Pass candidates, such as"
            " np.geomspace(0.1, 100, 25)."
        )
    settings = check_samples(
        function,
        {"points": points},
        {} if taus is None else {"taus": taus},
        asked,
        weights=given,
        min_points=2,
        allowed=Options,
        kernel=kernel,
    )
    if values is None:
        check_integral(function, kernel, points.shape[1])
    else:
        floating_dtype(where, "values", values)
        if len(values.shape) not in (1, 2) or values.shape[0] != len(points):
            raise ValueError(
                f"{where}: `values` must hold one row for each point, (N, C) or (N,); got points {points.shape}, values"
                f" {values.shape}. Row i belongs to point i."
            )
    check_signs(function, weights)
    if progress:
        refuse_progress_in_a_trace(function, points, taus, weights, values)
    found = _scores(settings, points, taus, weights, values, progress)
    if not all(x is None or is_visible(x) for x in (points, taus, weights, values)):
        return _without_ties(settings, points, found, weights, values)
    best = BandwidthSearch(found.taus[found.scores.argmax()], *found)
    own, are_equal = _merged(settings, points, weights, values)
    if isinstance(are_equal, jax.core.Tracer) or not are_equal:  # `explain` traces this, as if none were equal
        return best
    without = _scores(settings, points, found.taus, own, values).scores
    tau, number = chosen(values is None, points.shape, *found, without, own), int((own > 0).sum())
    if tau < best.tau and number > 1:
        warn_of_ties(settings.function, len(points), number, best.tau, tau)
    return best._replace(tau=tau)


class _Scores(NamedTuple):
    """Candidates and their scores."""

    taus: Array
    scores: Array


def _scores(settings: Settings, points, taus, weights, values, progress: bool = False) -> _Scores:
    """The scores of all candidates, in one program or one by one."""
    are_many = values is None and _are_many(settings, points, taus, weights)
    if not (progress or are_many):
        return _search(settings, points, taus, weights, values)
    taus = candidates(points, working_dtype(settings.dtype)) if taus is None else taus
    search = _search_of_many if are_many else _search
    bar = progress_bar(settings.function, len(taus), "bandwidth") if progress else None
    with bar or contextlib.nullcontext():
        found = []
        for i in range(len(taus)):
            found.append(jax.block_until_ready(search(settings, points, taus[i : i + 1], weights, values)))
            if bar is not None:
                bar.update()
    return _Scores(*(jnp.concatenate(field) for field in zip(*found, strict=True)))


@functools.partial(jax.jit, static_argnums=0)
def _without_ties(settings: Settings, points, found: _Scores, weights, values) -> BandwidthSearch:
    """The result, where the program has to find equal points."""
    own, are_equal = _merged(settings, points, weights, values)
    points, others, own, values = jax.tree.map(lax.stop_gradient, (points, found, own, values))
    search = functools.partial(_search, settings, points, others.taus, own, values)
    # on CUDA nothing may wait for the device
    without = search().scores if has_cuda() else lax.cond(are_equal, lambda: search().scores, lambda: others.scores)
    tau = chosen(values is None, points.shape, *others, without, own)
    return BandwidthSearch(jnp.where(are_equal, tau, others.taus[others.scores.argmax()]), *found)


@functools.partial(jax.jit, static_argnums=0)
def _merged(settings: Settings, points, weights, values) -> tuple[Array, Array]:
    x = jnp.asarray(points, working_dtype(settings.dtype))
    v = None if values is None else jnp.asarray(values, x.dtype).reshape(len(x), -1)
    return merged(x, normalized(settings, weights, x), v)


@functools.partial(jax.jit, static_argnums=0)
def _search(settings: Settings, points, taus, weights, values) -> _Scores:
    (x,) = replicated(jnp.asarray(points, working_dtype(settings.dtype)))
    taus = candidates(x, x.dtype) if taus is None else taus
    x, taus, w = replicated(x, jnp.asarray(taus, x.dtype), normalized(settings, weights, x))
    if values is None:
        logs, _ = over_others(settings, x, log_or_zero(w), taus, None)  # (T, N)
        others = jnp.log1p(-jnp.minimum(w, 1 - jnp.finfo(w.dtype).eps))
        each = logs + log_factor(settings.kernel, taus, x.shape[1])[:, None] - others[None]
    else:
        (v,) = replicated(jnp.asarray(values, x.dtype).reshape(len(x), -1))
        means: Any = over_others(settings, x, log_or_zero(w), taus, v)[1]  # (T, N, C)
        each = -jnp.square(v[None] - means).sum(-1)
    return _Scores(taus, (w[None] * jnp.maximum(each, jnp.finfo(x.dtype).min)).sum(-1))


def _are_many(settings: Settings, points: Any, *others: Any) -> bool:
    """Whether to subtract each point's own term from a sum over all: on a CPU, outside of transformations."""
    few_dimensions = settings.kernel == GAUSS and points.shape[1] in DIMENSIONS
    if not (settings.automatic and few_dimensions and points.shape[0] >= MANY):
        return False
    are_known = all(x is None or visible(x) is not None for x in (points, *others))
    return are_known and expected_platform(points) == "cpu"


def _search_of_many(settings: Settings, points, taus, weights, _: Any) -> _Scores:
    """`_search` of one τ without values: each point's own term is subtracted from the sum over all points.

    The sums are computed in float64, in O(N) operations by waves. If a point's own term exceeds all others by far, the
    others are summed without it: a few neighbors, or all points if more of them count.
    """
    with jax.enable_x64(True):
        x = jnp.asarray(np.asarray(points), "float64")
        w = normalized(replace(settings, dtype="float64"), weights, x)
        tau = jnp.asarray(taus, "float64")[0]
        logs, hidden = _without_themselves(x, w, tau)
        if not isinstance(hidden, jax.core.Tracer):  # `explain` traces this, as if none were hidden
            logs = _with_hidden(x, w, tau, logs, np.asarray(hidden))
        each = logs + log_factor(settings.kernel, tau, x.shape[1]) - jnp.log1p(-w)
        score = (w * each).sum().astype(working_dtype(settings.dtype))
    return _Scores(jnp.asarray(taus, working_dtype(settings.dtype)), score[None])


def _with_hidden(x: Array, w: Array, tau: Array, logs: Array, hidden: np.ndarray) -> Array:
    """The logarithms; the `hidden` ones are summed again, without the point's own term."""
    (indices,) = hidden.nonzero()
    found, are_enough = _of_neighbors(np.asarray(x), np.asarray(w), float(tau), indices)
    logs = logs.at[indices].set(found)
    indices, some = indices[~are_enough], max(1, NUMBERS // len(x))
    for start in range(0, len(indices), some):
        rows = np.resize(indices[start : start + some], some)
        logs = logs.at[rows].set(_of_rows(x, log_or_zero(w), tau, rows))
    return logs


@jax.jit
def _without_themselves(x: Array, w: Array, tau: Array) -> tuple[Array, Array]:
    """log Σ_{j ≠ i} w_j Φ(x_i, x_j) (N,), from sums over all j; and for which i too few digits are left."""
    logs = log_gauss_sum(x, x, log_or_zero(w), tau)
    own = jnp.exp(log_or_zero(w) - logs)
    return logs + jnp.log1p(-own), 1 - own < HIDDEN


def _of_neighbors(x: np.ndarray, w: np.ndarray, tau: float, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log Σ w_j Φ(x_i, x_j) over the nearest j ≠ i, for some i; and whether all other terms are negligible."""
    from scipy.spatial import KDTree  # here, because it takes a sixth of the time to import all of jaxgauss

    (there,) = w.nonzero()
    if not len(indices) or len(there) < NEAREST:
        return np.zeros(len(indices)), np.zeros(len(indices), bool)
    distances, nearest = KDTree(x[there]).query(x[indices], NEAREST, workers=-1)
    others = there[nearest] != indices[:, None]
    logits = np.where(others, np.log(w[there[nearest]]) - tau / 2 * np.square(distances), LOG_ZERO)
    largest = logits.max(1)
    left_out = np.log(w.sum()) - tau / 2 * np.square(distances[:, -1])
    return np.logaddexp.reduce(logits, 1), left_out < largest + math.log(HIDDEN**2)


@jax.jit
def _of_rows(x: Array, log_weights: Array, tau: Array, rows: Array) -> Array:
    """log Σ_{j ≠ i} w_j Φ(x_i, x_j) for some i."""
    squared = functools.reduce(jnp.add, [jnp.square(y[rows][:, None] - y[None]) for y in x.T])
    logits = log_weights[None] - tau / 2 * squared
    return jax.nn.logsumexp(jnp.where(rows[:, None] == jnp.arange(len(x))[None], LOG_ZERO, logits), -1)
