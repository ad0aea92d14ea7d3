"""Maximum mean discrepancy: value and gradient from one pass over the pairs."""

import functools
from typing import NamedTuple, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._arrays.devices import has_cuda
from .._arrays.points import unbroadcast, weighted_sum
from .._arrays.shapes import are_known
from .._checks.given import public
from .._checks.samples import check_balance, check_distinct_pairs, check_estimator, check_kernel, check_samples
from .._checks.settings import MeshOptions, Points, Settings, Taus, Weights
from .._kernels.kernels import Kernel
from .._sums.checked import check_and_examine, is_differentiated
from .._sums.moments import Reduction, as_gaussians, prepare, shares_of, with_reduction
from .weights import distinct_pairs_factor, in_own_unit, weights_or_mean

BLOCKS, WORTH_BLOCKS = 2, 1024  # blocks of rows, and points from which they pay, measured on CPUs


@public()
def mmd_squared(
    x: Points,
    y: Points,
    tau: Taus,
    *,
    kernel: str | Kernel = "gauss",
    x_weights: Weights | None = None,
    y_weights: Weights | None = None,
    estimator: str = "biased",
    y_norm_squared: Float[Array, ""] | float | None = None,
    **options: Unpack[MeshOptions],
) -> Float[Array, ""]:
    """Squared maximum mean discrepancy (MMD²) of two samples, as a loss: one pass gives its value and its gradient.

    MMD² = Σ_ij a_i a_j k(x_i, x_j) - 2 Σ_ij a_i b_j k(x_i, y_j) + Σ_ij b_i b_j k(y_i, y_j), with k = exp(-τ/2 ‖x - y‖²)
    or another kernel. Two Gauss sums, with or without the gradient: O((M + N)(M + ½N) D) operations and O((M + N) D)
    memory.

    Args:
        x: points, (M, D).
        y: points, (N, D).
        tau: τ = 1/σ², positive; or several, (T,), whose kernels are averaged. To learn τ, learn log τ: a negative τ
            under `jit` gives NaN.
        kernel: a name or a `Kernel`, as for `kernel_sum`. "energy" gives √τ times the energy distance, if the weights
            of x and of y have the same sum.
        x_weights: a, (M,), of either sign, not normalized: a distance takes Σa = Σb. None: 1/M. Or a mask, of booleans.
        y_weights: b, (N,), likewise.
        estimator: "biased", the formula above, at least 0; or "unbiased", without the pairs i = i within x and within
            y, times (Σa)² / ((Σa)² - Σa²). It needs two points with weight on each side.
        y_norm_squared: the third term, if only x moves: `embedding_norm_squared(y, …)` with the same tau, kernel,
            weights and estimator. It saves a sum per step. Given as a number, it has no gradient.
        **options: `method`, `precision` and `backend`, as for `gauss_sum`; and `mesh`, `query_axis` and `key_axis`, as
            for `gauss_sum_sharded`, except that the mesh need not divide the numbers of points.

    Returns:
        A scalar in the promoted dtype of the samples and weights.

    Raises:
        ValueError: shapes do not fit, a sample is empty, tau is not positive, or an option has an unknown value.
        TypeError: a sample or its weights are not a floating array.

    Derivatives:
        Reverse mode of any order with respect to x, y, both weights and tau. A Hessian is `jax.jacrev(jax.grad(f))`.

    Precision:
        As for `gauss_sum`, relative to the three terms: within 1e-6 of their size in float32 if they have many
        summands. Rounding may make a biased estimate near zero negative.

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
    """MMD², checked in the name of a public function."""
    check_estimator(function, estimator)
    smallest = 2 if estimator == "unbiased" else 1
    kernel = check_kernel(function, kernel)
    settings = check_samples(
        function, {"x": x, "y": y}, tau, options, weights=weights, min_points=smallest, kernel=kernel
    )
    check_balance(function, kernel, **weights)
    check_distinct_pairs(function, estimator, weights)
    if y_norm_squared is not None and (np.shape(y_norm_squared) != () or isinstance(y_norm_squared, str)):
        given, fix = f"{type(y_norm_squared).__name__} {np.shape(y_norm_squared)}", "Pass embedding_norm_squared(y, …)."
        raise ValueError(f"`jaxgauss.{function}`: `y_norm_squared` must be one number; got {given}. {fix}")
    num = x.shape[0] + y.shape[0]
    settings, tau = check_and_examine(
        settings,
        tau,
        x.shape[0] * num,
        x.shape[1],
        x.shape[1] + 2,
        (x, y),
        (*weights.values(),),
        second_order=all(is_differentiated(tau, z, a) for z, a in zip((x, y), weights.values(), strict=True)),
    )
    return _mmd_squared(settings, estimator, x, y, tau, *weights.values(), y_norm_squared)


@public()
def embedding_norm_squared(
    points: Points,
    tau: Taus,
    *,
    kernel: str | Kernel = "gauss",
    weights: Weights | None = None,
    estimator: str = "biased",
    **options: Unpack[MeshOptions],
) -> Float[Array, ""]:
    """Squared norm of a kernel mean embedding, Σ_ij a_i a_j k(x_i, x_j): the first and the third term of `mmd_squared`.

    One Gauss sum, with or without the gradient.

    Args:
        points: x, (N, D).
        tau, kernel, weights, estimator, **options: as for `mmd_squared`. With "energy" the term is negative, and no
            norm.

    Returns:
        A scalar.

    Raises:
        ValueError, TypeError: as `mmd_squared` does.

    Derivatives:
        Reverse mode of any order with respect to points, weights and tau.

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
    )
    settings, tau = check_and_examine(
        settings,
        tau,
        points.shape[0] ** 2,
        points.shape[1],
        points.shape[1] + 2,
        (points,),
        (weights,),
        second_order=is_differentiated(tau),
    )
    check_distinct_pairs("embedding_norm_squared", estimator, {"weights": weights})
    nobody = np.zeros((0, points.shape[1]), points.dtype)
    return _mmd_squared(settings, estimator, points, nobody, tau, weights, None, 0.0)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _mmd_squared(settings: Settings, estimator: str, x, y, tau, x_weights, y_weights, y_norm_squared) -> Array:
    a, b = weights_or_mean(x_weights, x, settings), weights_or_mean(y_weights, y, settings)
    given = y_norm_squared is not None
    unit, (x, y) = in_own_unit(settings, x, y)
    settings, tau, shares = as_gaussians(settings, tau, x, y)
    tau, x, y, a, b = prepare(settings, tau, x, y, a[:, None], b[:, None])
    x_factor, x_diagonal = _own_pairs(estimator, a)
    y_factor, y_diagonal = (jnp.zeros_like(x_factor),) * 2 if given else _own_pairs(estimator, b)
    shares = shares_of(tau, shares)
    way = _Way(not given, estimator == "biased")
    value = jnp.asarray(_form(settings, way, tau, shares, _Side(x, a, x_factor), _Side(y, b, y_factor)))
    at_zero = settings.kernel.at_zero * (1 if shares is None else shares.sum())
    value = (value.reshape(()) - at_zero * (x_diagonal + y_diagonal).reshape(())) * unit
    if given:
        value = value + jnp.asarray(y_norm_squared, value.dtype)
    return value.astype(settings.dtype)


def _own_pairs(estimator: str, a: Array) -> tuple[Array, Array]:
    """The factor of aᵀK a, and the multiple of κ(0) to subtract for the pairs i = i."""
    if estimator == "biased":
        return jnp.ones_like(a[..., :1, 0]), jnp.zeros_like(a[..., :1, 0])
    factor = distinct_pairs_factor(a)[..., None]
    return factor, factor * jnp.square(a).sum((-2, -1))[..., None]


# Derivatives. With factors f, h (one for the biased estimate), the form and its sums, each over all of z = (x, y), are
#
#     F = f aᵀK_xx a - 2 aᵀK_xy b + h bᵀK_yy b = aᵀW + bᵀV,    W = f K_xx a - K_xy b,    V = h K_yy b - K_yx a
#     dx_i = 2 a_i τ Σ_z Φ(x_i, z) w_z (z - x_i),  w = (f a, -b);      dy_j likewise from (-a, h b)
#     da = 2W,  db = 2V,  df = aᵀK_xx a,  dh = bᵀK_yy b
#     dτ = -½ (Σ a_i w_z Φ ‖z - x_i‖² + likewise of y) = (Σ x·dx + Σ y·dy) / 2τ, at any origin
#
# A cotangent only scales these, so the pass that gives W also gives dx (channels [w z, w]), and one more channel,
# r = K_xy b, separates the terms. If only x moves, V is not needed: F = aᵀW - aᵀr + h bᵀK_yy b. If f = h = 1 and both
# samples move, one pass over all pairs of z gives W and -V, with the weights (a, -b).
# Everything consists of Gauss sums with rules of their own, so it can be differentiated again.
# For several bandwidths F = Σ_t share_t F_t is the form of one kernel, whose own τ is one. If τ is learned, each
# bandwidth has its own dτ, and F_t is the gradient of its share.


class _Side(NamedTuple):
    """Points, weights and the factor of own pairs of one sample; or their gradients, empty if unwanted."""

    points: Array
    weights: Array
    factor: Array


class _Way(NamedTuple):
    """Whether the form has its third term, and whether its factors are one."""

    with_y: bool
    biased: bool


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _form(settings: Settings, way: _Way, tau: Array, shares: Array | None, x: _Side, y: _Side) -> Array:
    """The form F, (1,) for several bandwidths."""

    def value(reduction: Reduction, points: tuple[Array, Array], tau: Array, *others: Array) -> Array:
        return _by_x(reduction, tau, *_sides(points, *others), way.with_y, pulls=False)[0]

    return with_reduction(settings, value, (x.points, y.points), tau, *x[1:], *y[1:], shares=shares, pulls=False)


def _form_forward(settings: Settings, way: _Way, tau, shares, x, y):
    tau_moves, x_moves, y_moves = (any(z.perturbed for z in jax.tree.leaves(side)) for side in ((tau, shares), x, y))
    tau, shares, x, y = jax.tree.map(lambda z: z.value, (tau, shares, x, y))

    def value_and_gradients(reduction: Reduction, points: tuple[Array, Array], tau: Array, *others: Array):
        x, y = _sides(points, *others)
        nothing = jnp.zeros(0, tau.dtype)  # stands for a gradient that is not wanted
        if not (tau_moves or y_moves):
            value, d_x = _by_x(reduction, tau, x, y, way.with_y)
            return value, (nothing, d_x, _Side(*[nothing] * 3))
        if not (tau_moves or x_moves):
            value, d_y = _by_x(reduction, tau, y, x, True)
            return value, (nothing, _Side(*[nothing] * 3), d_y)
        if all(way):
            value, spread, d_x, d_y = _of_all(reduction, tau, x, y, spread=tau_moves)
            return value, (spread / -2 if tau_moves else nothing, d_x, d_y)
        x_value, _, d_x, x_spread = _row(reduction, tau, x, y, spread=tau_moves)
        y_value, _, d_y, y_spread = _row(reduction, tau, y, x, spread=tau_moves)
        return x_value + y_value, ((x_spread + y_spread) / -2 if tau_moves else nothing, d_x, d_y)

    operands = (x.points, y.points), tau, *x[1:], *y[1:]
    value, (d_tau, d_x, d_y) = with_reduction(
        settings,
        value_and_gradients,
        *operands,
        shares=None if tau_moves else shares,
        weights=(x.weights, y.weights),
        second_order=(tau_moves or x_moves) and (tau_moves or y_moves),
    )
    d_shares = jnp.zeros(0, tau.dtype)
    if tau_moves and shares is not None:
        d_tau, d_shares = shares * d_tau, value
        value, d_x, d_y = jax.tree.map(lambda z: weighted_sum(shares, z)[None], (value, d_x, d_y))
    return value, (x, y, d_tau, d_shares, d_x, d_y)


def _form_backward(settings: Settings, way: _Way, residuals, g):
    x, y, *of_bandwidths, d_x, d_y = residuals
    if isinstance(g, jax.custom_derivatives.SymbolicZero):
        return None, None, None, None
    return *(g * d if d.size else None for d in of_bandwidths), _times(d_x, g, x), _times(d_y, g, y)


_form.defvjp(_form_forward, _form_backward, symbolic_zeros=True)


def _by_x(reduction: Reduction, tau: Array, x: _Side, y: _Side, with_y: bool, pulls: bool = True):
    """F and its gradient with respect to x."""
    total, cross, gradient, _ = _row(reduction, tau, x, y, pulls=pulls)
    value = total - cross
    if with_y:
        value = value + y.factor[..., 0] * _of_itself(reduction, tau, y)
    return value, gradient


def _of_itself(reduction: Reduction, tau: Array, y: _Side) -> Array:
    """bᵀK_yy b. Blocks of rows, each with itself and twice with all later rows, take three quarters of the pairs.

    Blocks are used for near Gaussians only, because other passes take longer to compile.
    """
    b, num, settings = y.weights, y.points.shape[-2], reduction.settings
    in_blocks = reduction.center is not None and settings.mesh is None and not has_cuda()
    if not are_known(num) or num < WORTH_BLOCKS or not in_blocks:
        return _paired(b, reduction(y.points, y.points, b, tau, pulls=False).mass)
    forms, size = [], -(-num // BLOCKS)
    for i in range(0, num, size):
        rows, b_rows = y.points[..., i : i + size, :], b[..., i : i + size, :]
        twice = jnp.concatenate([b_rows, 2 * b[..., i + size :, :]], -2)
        forms.append(_paired(b_rows, reduction(rows, y.points[..., i:, :], twice, tau, pulls=False).mass))
    return functools.reduce(jnp.add, forms)


def _row(reduction: Reduction, tau: Array, x: _Side, y: _Side, pulls: bool = True, spread: bool = False):
    """aᵀW, aᵀr, the gradient of F with respect to x, and Σ a_i w_z Φ ‖z - x_i‖²; called with (y, x), those of y."""
    a, b = x.weights, y.weights
    weights = jnp.concatenate([x.factor[..., None] * a, -b], -2)
    only_y = jnp.concatenate([jnp.zeros_like(a), b], -2)
    sums = reduction(x.points, _points(x, y), weights, tau, only_y, pulls=pulls, spread=a if spread else None)
    total, cross = _paired(a, sums.mass), _paired(a, sums.sums)
    own_pairs = (total + cross) / jnp.where(x.factor == 0, 1, x.factor)[..., 0]
    return total, cross, _Side(2 * tau[..., None, None] * a * sums.pulls, 2 * sums.mass, own_pairs), sums.spread


def _of_all(reduction: Reduction, tau: Array, x: _Side, y: _Side, spread: bool):
    """F, Σ c_i c_j Φ ‖z_j - z_i‖², and both gradients, of a biased estimate: F = cᵀK c, c = (a, -b), from one pass."""
    z, c, num = _points(x, y), jnp.concatenate([x.weights, -y.weights], -2), x.points.shape[-2]
    sums = reduction(z, z, c, tau, spread=c if spread else None)
    value, pulls = _paired(c, sums.mass), 2 * tau[..., None, None] * c * sums.pulls
    d_x = _Side(pulls[..., :num, :], 2 * sums.mass[..., :num, :], jnp.zeros_like(value))
    return value, sums.spread, d_x, _Side(pulls[..., num:, :], -2 * sums.mass[..., num:, :], jnp.zeros_like(value))


def _sides(points: tuple[Array, Array], a: Array, f: Array, b: Array, h: Array) -> tuple[_Side, _Side]:
    return _Side(points[0], a, f), _Side(points[1], b, h)


def _points(x: _Side, y: _Side) -> Array:
    return jnp.concatenate([x.points, y.points], -2)


def _paired(a: Array, sums: Array) -> Array:
    return (a * sums).sum((-2, -1))


def _times(gradient: _Side, g: Array, side: _Side) -> _Side | None:
    """The gradient times the cotangent of F, in the shapes of the sample."""
    if gradient.points.size == 0:
        return None
    columns = g[..., None, None]
    scaled = columns * gradient.points, columns * gradient.weights, (g * gradient.factor)[..., None]
    return _Side(*(unbroadcast(d, z.shape) for d, z in zip(scaled, side, strict=True)))
