"""Maximum mean discrepancy: value and gradient from one pass over the pairs."""

import functools
from typing import Any, NamedTuple, Unpack

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._arrays.batches import over_leading_axes
from .._arrays.tracing import jitted
from .._checks.arguments import public
from .._checks.samples import check_balance, check_distinct_pairs, check_estimator, check_kernel, check_samples
from .._checks.settings import Samples, Settings, Taus, WeightOptions, Weights
from .._kernels.kernels import Kernel
from .._sums.distinct import are_sparse, mean_kernel, sums_of_others, usual_or_sparse
from .._sums.moments import as_gaussians, in_own_unit, prepare, shares_of
from .._sums.preparation import check_and_examine, is_differentiated
from .mmd_form import Side, Way, form
from .weights import distinct_pairs_factor, weights_or_mean


@public()
def mmd_squared(
    x: Samples,
    y: Samples,
    tau: Taus,
    *,
    kernel: str | Kernel = "gauss",
    x_weights: Weights | None = None,
    y_weights: Weights | None = None,
    estimator: str = "biased",
    y_norm_squared: Float[Array, "*#batch"] | float | None = None,
    **options: Unpack[WeightOptions],
) -> Float[Array, "*result"]:
    """Squared maximum mean discrepancy (MMD²) of two samples, as a loss: one pass gives its value and its gradient.

    MMD² = Σ_ij a_i a_j k(x_i, x_j) - 2 Σ_ij a_i b_j k(x_i, y_j) + Σ_ij b_i b_j k(y_i, y_j), with k = exp(-τ/2 ‖x - y‖²)
    or another kernel. Two Gauss sums, with or without the gradient: O((M + N)(M + ½N) D) operations and O((M + N) D)
    memory.

    Args:
        x: points, (…, M, D). Leading axes are batches, which broadcast as in `jnp.matmul`: one loss for each element.
        y: points, (…, N, D).
        tau: τ = 1/σ², positive; or several, (…, T), whose kernels are averaged over the last axis: τ of each element of
            a batch is (…, 1). To learn τ, learn log τ: a negative τ under `jit` gives NaN.
        kernel: a name or a `Kernel`, as for `kernel_sum`. "energy" gives √τ times the energy distance, if the weights
            of x and of y have the same sum.
        x_weights: a, (…, M), of either sign; MMD is a distance only if Σa = Σb. None: 1/M. Or a mask of booleans.
        y_weights: b, (…, N), likewise.
        estimator: "biased", the formula above, at least 0; or "unbiased", without the pairs i = i within x and within
            y, times (Σa)² / ((Σa)² - Σa²). It needs two points with weight on each side.
        y_norm_squared: the third term, if only x moves: `embedding_norm_squared(y, …)` with the same tau, kernel,
            weights and estimator. It saves a sum per step. Given as a number or array, it has no gradient.
        **options: `normalize=True` divides weights by their sum; `engine`, `precision` as for `gauss_sum`;
            `mesh`, `query_axis` and `key_axis` as for `gauss_sum_sharded`, for any number of points.

    Returns:
        A scalar, or (…) for leading axes, in the promoted dtype of the samples and weights.

    Raises:
        ValueError: shapes do not fit, a sample is empty, tau is not positive, or an option has an unknown value.
        TypeError: a sample or its weights are not a floating array.

    Derivatives:
        Any order, both modes, with respect to x, y, both weights and tau.

    Precision:
        As for `gauss_sum`: in float32 within 1e-6 of the size of the three terms, if these have many summands, without
        pairs i = i if unbiased (with them for over 16384 points, on CUDA and a mesh). A biased one may round below 0.

    Example:
        >>> import jax, jaxgauss
        >>> x, y = jax.random.normal(jax.random.key(0), (2, 500, 3))
        >>> value, gradient = jax.value_and_grad(jaxgauss.mmd_squared)(x, y + 1, 0.5)
        >>> bool(0.2 < value < 0.25), gradient.shape
        (True, (500, 3))

    References:
        Gretton, Borgwardt, Rasch, Schölkopf & Smola, "A Kernel Two-Sample Test", JMLR 13, 2012.
    """
    weights = {"x_weights": x_weights, "y_weights": y_weights}
    return checked_mmd("mmd_squared", kernel, x, y, tau, weights, estimator, y_norm_squared, options)


def checked_mmd(function, kernel, x, y, tau, weights, estimator, y_norm_squared, options) -> Array:
    """MMD², with errors that name the public function."""
    check_estimator(function, estimator)
    smallest = 2 if estimator == "unbiased" else 1
    kernel = check_kernel(function, kernel)
    settings = check_samples(
        function,
        {"x": x, "y": y},
        tau,
        options,
        weights=weights,
        min_points=smallest,
        kernel=kernel,
        allowed=WeightOptions,
        batches=True,
    )
    check_balance(settings, **weights)
    check_distinct_pairs(function, estimator, weights)
    _check_norm(function, y_norm_squared, x, y, tau, *weights.values())
    num, dim = x.shape[-2] + y.shape[-2], x.shape[-1]
    settings, tau = check_and_examine(
        settings,
        tau,
        x.shape[-2] * num,
        dim,
        dim + 2,
        (x, y),
        (*weights.values(),),
        second_order=all(is_differentiated(tau, z, a) for z, a in zip((x, y), weights.values(), strict=True)),
    )
    return mmd_of_samples(settings, estimator, x, y, tau, *weights.values(), y_norm_squared)


def _check_norm(function: str, given: Any, x: Any, y: Any, tau: Any, *weights: Any) -> None:
    """Raise ValueError unless the norm of y is one number, or one for each element of the batch."""
    shapes = *(z.shape[:-2] for z in (x, y)), *(np.shape(z)[:-1] for z in (tau, *weights))
    batch = jnp.broadcast_shapes(*shapes)
    if given is not None and (isinstance(given, str) or np.shape(given) not in ((), batch)):
        what = f"one number, or of the shape {batch}" if batch else "one number"
        raise ValueError(
            f"`jaxgauss.{function}`: `y_norm_squared` must be {what}; got {type(given).__name__} {np.shape(given)}."
            " Pass embedding_norm_squared(y, …)."
        )


@public()
def embedding_norm_squared(
    points: Samples,
    tau: Taus,
    *,
    kernel: str | Kernel = "gauss",
    weights: Weights | None = None,
    estimator: str = "biased",
    **options: Unpack[WeightOptions],
) -> Float[Array, "*result"]:
    """Squared norm of a kernel mean embedding, Σ_ij a_i a_j k(x_i, x_j): the first and the third term of `mmd_squared`.

    One Gauss sum, with or without the gradient.

    Args:
        points: x, (…, N, D).
        tau, kernel, weights, estimator, **options: as for `mmd_squared`. With "energy" the result is negative, so it is
            not a norm.

    Returns:
        A scalar, or (…) for leading axes.

    Raises:
        ValueError, TypeError: as `mmd_squared` does.

    Derivatives:
        Any order, both modes, with respect to points, weights and tau.

    Example:
        >>> import jax.numpy as jnp, jaxgauss
        >>> float(jaxgauss.embedding_norm_squared(jnp.array([[0.0], [100.0]]), 1.0))
        0.5

    References:
        Muandet, Fukumizu, Sriperumbudur & Schölkopf, "Kernel Mean Embedding of Distributions", 2017.
    """
    check_estimator("embedding_norm_squared", estimator)
    smallest = 2 if estimator == "unbiased" else 1
    settings = check_samples(
        "embedding_norm_squared",
        {"points": points},
        tau,
        options,
        weights={"weights": weights},
        min_points=smallest,
        kernel=check_kernel("embedding_norm_squared", kernel),
        allowed=WeightOptions,
        batches=True,
    )
    num, dim = points.shape[-2:]
    settings, tau = check_and_examine(
        settings,
        tau,
        num * num,
        dim,
        dim + 2,
        (points,),
        (weights,),
        second_order=is_differentiated(tau),
    )
    check_distinct_pairs("embedding_norm_squared", estimator, {"weights": weights})
    nobody = np.zeros((0, dim), points.dtype)
    return mmd_of_samples(settings, estimator, points, nobody, tau, weights, None, 0.0)


@functools.partial(jitted, num_static=2)
@over_leading_axes(2, 2, 1, 1, 1, 0)
def mmd_of_samples(settings: Settings, estimator: str, x, y, tau, x_weights, y_weights, y_norm_squared) -> Array:
    """MMD² of checked arguments; without its third term, which is added, if y_norm_squared is given."""
    a, b = weights_or_mean(x_weights, x.shape[0], settings), weights_or_mean(y_weights, y.shape[0], settings)
    given = y_norm_squared is not None
    unit, (x, y) = in_own_unit(settings, tau, (x, y), (a, b))

    def usual(x: Array, y: Array, tau: Array, a: Array, b: Array) -> Array:
        return form_of_all_pairs(settings, estimator, given, x, y, tau, a, b)

    alike = x_weights is None and y_weights is None
    is_sparse = estimator == "unbiased" and are_sparse(settings, (x, y), (a, b), tau, alike)
    value = usual_or_sparse(settings, is_sparse, usual, _ByDistinctPairs(given), x, y, tau, a, b) * unit
    if given:
        value = value + jnp.asarray(y_norm_squared, value.dtype)
    return value.astype(settings.dtype)


def form_of_all_pairs(settings: Settings, estimator: str, given: bool, x, y, tau, a, b) -> Array:
    """MMD² from sums over all pairs."""
    settings, tau, shares = as_gaussians(settings, tau, x, y)
    tau, x, y, a, b = prepare(settings, tau, x, y, a[:, None], b[:, None])
    x_factor, x_diagonal = _own_pairs(estimator, a)
    y_factor, y_diagonal = (jnp.zeros_like(x_factor),) * 2 if given else _own_pairs(estimator, b)
    shares = shares_of(tau, shares)
    way = Way(not given, estimator == "biased")
    value = jnp.asarray(form(settings, way, tau, shares, Side(x, a, x_factor), Side(y, b, y_factor)))
    at_zero = settings.kernel.at_zero * (1 if shares is None else shares.sum())
    return value.reshape(()) - at_zero * (x_diagonal + y_diagonal).reshape(())


class _ByDistinctPairs(NamedTuple):
    """The unbiased MMD² from sums over pairs of different points; `given`: without its third term."""

    given: bool

    def __call__(self, settings: Settings, x, y, tau, a, b) -> Array:
        f, h = distinct_pairs_factor(a[:, None]), 0 if self.given else distinct_pairs_factor(b[:, None])
        num, points = len(x), jnp.concatenate([x, y])
        columns = jnp.stack([jnp.pad(a, (0, len(b))), jnp.pad(b, (num, 0))], -1)
        sums = sums_of_others(mean_kernel(settings.kernel, tau, points), columns)
        of_x = (a * (f * sums[:num, 0] - sums[:num, 1])).sum()
        return of_x + (b * (h * sums[num:, 1] - sums[num:, 0])).sum()


def _own_pairs(estimator: str, a: Array) -> tuple[Array, Array]:
    """The factor of aᵀK a, and the multiple of κ(0) to subtract for the pairs i = i."""
    if estimator == "biased":
        return jnp.ones_like(a[..., :1, 0]), jnp.zeros_like(a[..., :1, 0])
    factor = distinct_pairs_factor(a)[..., None]
    return factor, factor * jnp.square(a).sum((-2, -1))[..., None]
