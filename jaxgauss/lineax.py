"""Kernel matrices as operators of lineax: (K + σ²I) x = y, log det(K + σ²I) and likelihoods, without K."""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.lax import Precision
from jaxtyping import Array, Float

from ._arrays.devices import visible
from ._arrays.points import dot
from ._calls import readable
from ._checks.arguments import floating_dtype, public
from ._checks.names import as_engine
from ._checks.operands import check_weights
from ._checks.optional import needed
from ._checks.samples import check_kernel, check_number, check_rng_key, warn_if_indefinite
from ._checks.settings import Points, Settings
from ._engines.engine import Engine
from ._kernels.kernels import Kernel
from ._sums.kernel_sum import kernel_sum
from ._sums.preparation import checked

with needed("jaxgauss.lineax", "lineax"):
    import equinox as eqx

    from ._methods.process_by_solves import LogLikelihood as LogLikelihood
    from ._methods.process_by_solves import log_likelihood_of
    from ._methods.symmetric import NystromPreconditioner as NystromPreconditioner
    from ._methods.symmetric import Symmetric

HALF = ("float16", "bfloat16", "float16x2", "bfloat16x2")


class GaussOperator(Symmetric):
    """K + diag(noise) for N points, made by `gauss_operator`: symmetric, positive semidefinite, and never formed.

    Attributes:
        points: (N, D).
        tau: τ, ().
        noise: the diagonal that is added to K, () or (N,).
        kernel: κ.
    """

    points: Array
    tau: Array
    noise: Array
    kernel: Kernel = eqx.field(static=True)
    engine: Engine = eqx.field(static=True)

    def mv(self, vector: Float[Array, " n"]) -> Float[Array, " n"]:
        """The product with a vector, (N,), by one sum. A batch of vectors, by `jax.vmap`, shares one sum."""
        return self.kernel_product(vector) + self.noise * vector

    def kernel_product(self, values: Array) -> Array:
        """K times values, (N,) or (N, C), without the noise."""
        points, how = self.points, {"kernel": self.kernel, "engine": self.engine}
        return kernel_sum(points, points, values, self.tau, forward_mode=True, **how)

    def diagonal(self) -> Float[Array, " n"]:
        """The diagonal, κ(0) + noise, (N,)."""
        return jnp.broadcast_to(self.noise + self.kernel.at_zero, self.points.shape[:1]).astype(self.points.dtype)

    def in_structure(self) -> jax.ShapeDtypeStruct:
        """Shape and dtype of a vector, (N,)."""
        return jax.ShapeDtypeStruct(self.points.shape[:1], self.points.dtype)


@public()
def gauss_operator(
    points: Points,
    tau: Float[Array, ""] | float = 1.0,
    *,
    noise: Float[Array, "*#n"] | float = 0.0,
    kernel: str | Kernel = "gauss",
    engine: str | Engine = "auto",
    precision: str | Precision | None = None,
) -> GaussOperator:
    """The matrix A = K + diag(noise), K_mn = exp(-τ/2 ‖x_m - x_n‖²), as a lineax operator in linear memory.

    `lineax.linear_solve(A, y, lineax.CG(rtol=1e-5, atol=1e-12, stabilise_every=None))` solves (K + σ²I) x = y. Each
    step is one sum: O(N² D) operations and O(N D) memory. Small noise takes hundreds of steps;
    `nystrom_preconditioner` makes them few.

    Args:
        points: x, (N, D), float32 or float64.
        tau: τ, a positive number: one over the squared bandwidth.
        noise: σ² ≥ 0: a number, or one for each point, (N,).
        kernel: a name or a positive definite `Kernel`, as for `kernel_sum`: not "energy".
        engine: as for `kernel_sum`.
        precision: "float32" or "float64"; None is the dtype of the points. Half precision is refused: the rounded
            matrix is not positive definite, and conjugate gradients diverge.

    Returns:
        The operator, an Equinox module. Its vectors are (N,), in the dtype of the points.

    Raises:
        ImportError: lineax is not installed.
        ValueError: shapes do not fit, τ is not positive, the noise is negative, or half precision is asked for.
        TypeError: points or noise are not floating.

    Derivatives:
        In both modes: `lineax.linear_solve` is differentiable with respect to points, τ, noise and the right-hand side.
        Its gradient is another solution, with the same `atol`: keep that far below the gradient of the loss.
        Kernels other than the Gaussian take several times as long in many dimensions.

    Precision:
        In float32 the residual ‖Ax - y‖/‖y‖ does not fall below about 1e-7 λ/σ², where λ is the root mean square of the
        eigenvalues of K: 5e-5 for 4,000 points and 1e-4 for 20,000, with σ² = 0.01 and a wide kernel. There, leave
        `stabilise_every` at None, or lineax's CG diverges after it has converged. For more digits, compute the residual
        with an operator of float64 points, solve for it, and add the solution.

    Example:
        >>> import jax.numpy as jnp, lineax, jaxgauss
        >>> points, values = jnp.array([[0.0], [1.0], [2.0]]), jnp.array([1.0, 2.0, 3.0])
        >>> operator = jaxgauss.lineax.gauss_operator(points, 1.0, noise=0.5)
        >>> solution = lineax.linear_solve(operator, values, lineax.CG(rtol=1e-5, atol=1e-12)).value
        >>> bool(jnp.allclose(operator.as_matrix() @ solution, values, atol=1e-4))
        True

    References:
        Rasmussen & Williams, "Gaussian Processes for Machine Learning", 2006, chapter 2.
    """
    function = "lineax.gauss_operator"
    where, kernel = f"`jaxgauss.{function}`", check_kernel(function, kernel, positive=True)
    dtype = floating_dtype(where, "points", points)
    if len(points.shape) != 2:
        raise ValueError(f"{where}: `points` must be (N, D); got points {points.shape}. Batches go by jax.vmap.")
    if dtype not in ("float32", "float64"):
        raise TypeError(f"{where}: `points` must be float32 or float64; got points {dtype}. Convert with .astype.")
    if np.ndim(tau) != 0:
        raise ValueError(f"{where}: `tau` must be one number; got tau {np.shape(tau)}. Make one operator for each.")
    asked = as_engine(function, engine, precision)
    if asked.precision in HALF:
        raise ValueError(
            f"{where}: `precision` must be 'float32' or 'float64'; got {asked.precision!r}. Conjugate gradients do"
            " not survive half precision: the matrix rounded to it is not positive definite."
        )
    settings = Settings(asked, function=function, forward_mode=True, kernel=kernel)
    checked(settings, points, points, check_weights(function, "weights", None, points), tau)
    warn_if_indefinite(function, kernel, points.shape[1])
    points = jnp.asarray(points)
    try:
        noise = jnp.asarray(noise, points.dtype)
    except (TypeError, ValueError):
        raise TypeError(
            f"{where}: `noise` must be a real number or array; got {noise!r}. It is a variance, σ²."
        ) from None
    if noise.shape not in ((), points.shape[:1]):
        raise ValueError(
            f"{where}: `noise` must be a number or one for each point; got noise {noise.shape}, points {points.shape}."
            " It is a variance, σ²."
        )
    seen = visible(noise)
    if seen is not None and seen.size and not (seen.min() >= 0 and seen.max() < math.inf):
        raise ValueError(
            f"{where}: `noise` must not be negative, and finite; got noise from {seen.min()} to {seen.max()}."
            " It is a variance, σ²."
        )
    asked = asked if asked.precision in ("float32", "float64") else replace(asked, precision=str(points.dtype))
    return GaussOperator(points, jnp.asarray(tau, points.dtype), noise, kernel, asked)


def _check_kind(where: str, name: str, given: Any, kind: type, source: str) -> None:
    """Raise TypeError unless it is what a function of this module returns."""
    if not isinstance(given, kind):
        raise TypeError(
            f"{where}: `{name}` must be from jaxgauss.lineax.{source}; got {type(given).__name__}. Make one with it."
        )


def _check_noise(where: str, noise: Array, least: float) -> None:
    """Raise ValueError if known noise is at most `least`."""
    if (seen := visible(noise)) is not None and seen.min() <= least:
        given = f"{seen.min():.2g}. Add some: noise=1e-4."
        raise ValueError(f"{where}: `operator` must have noise above {least:.2g}; got noise {given}")


@public(None)
def nystrom_preconditioner(operator: GaussOperator, rank: int, *, rng_key: jax.Array) -> NystromPreconditioner:
    """An approximate inverse of K + diag(noise), from the leading eigenvectors of K, for `lineax.CG`.

    Use it as `lineax.linear_solve(operator, y, lineax.CG(…), options={"preconditioner":
    nystrom_preconditioner(operator, 200, rng_key=key)})`. One kernel sum with `rank` channels, then O(N rank²)
    operations and O(N rank) memory.

    Args:
        operator: from `gauss_operator`, with positive noise.
        rank: R, from 1 to N: the number of eigenvalues of K above the noise. The `eigenvalues` of the result tell
            whether it suffices.
        rng_key: random key for the subspace.

    Returns:
        P⁻¹ as a lineax operator, symmetric and positive definite.

    Raises:
        ValueError: the rank is not between 1 and N, or there is no noise.
        TypeError: the operator is another one, or `rng_key` is not a key.

    Derivatives:
        None: it does not change the solution, and is a constant for `jax.grad`.

    Example:
        >>> import jax, jax.numpy as jnp, jaxgauss
        >>> operator = jaxgauss.lineax.gauss_operator(jnp.linspace(0, 1, 50)[:, None], 10.0, noise=0.1)
        >>> preconditioner = jaxgauss.lineax.nystrom_preconditioner(operator, 10, rng_key=jax.random.key(0))
        >>> product = preconditioner.as_matrix() @ operator.as_matrix()
        >>> bool(jnp.allclose(product, jnp.eye(50), atol=1e-3))
        True

    References:
        Frangella, Tropp & Udell, "Randomized Nyström Preconditioning", 2021, arXiv:2110.02820.
    """
    function = "lineax.nystrom_preconditioner"
    where = f"`jaxgauss.{function}`"
    _check_kind(where, "operator", operator, GaussOperator, "gauss_operator")
    check_rng_key(function, rng_key)
    num, dtype = operator.points.shape[0], operator.points.dtype
    check_number(function, "rank", rank)
    if rank > num:
        raise ValueError(
            f"{where}: `rank` must be at most the number of points; got rank {rank}, {num} points. Pass rank={num}."
        )
    _check_noise(where, operator.noise, 0.0)
    operator = lax.stop_gradient(operator)
    scale = lax.rsqrt(operator.noise)
    rows = jnp.broadcast_to(scale, (num,))[:, None]
    test, _ = jnp.linalg.qr(jax.random.normal(rng_key, (num, rank), dtype))  # (N, R)
    image = rows * operator.kernel_product(rows * test)
    shift = jnp.finfo(dtype).eps * jnp.linalg.norm(image)  # keeps rounded eigenvalues positive
    image += shift * test
    values, vectors = jnp.linalg.eigh(dot(test.T, image))
    factor = dot(image, vectors * lax.rsqrt(jnp.maximum(values, shift))[None])  # (N, R): factor factorᵀ ≈ S K S + shift
    vectors, roots, _ = jnp.linalg.svd(factor, full_matrices=False)
    return NystromPreconditioner(vectors, jnp.maximum(jnp.square(roots) - shift, 0), scale)


@readable
class LogDeterminant(NamedTuple):
    """The result of `log_determinant`.

    Attributes:
        value: the estimate, ().
        standard_error: its standard error, ().
    """

    value: Float[Array, ""]
    standard_error: Float[Array, ""]


@public(None)
def log_determinant(
    operator: GaussOperator,
    *,
    rng_key: jax.Array,
    preconditioner: NystromPreconditioner | None = None,
    num_samples: int = 16,
    num_matvecs: int = 20,
) -> LogDeterminant:
    """Estimate log det(K + diag(noise)) by matfree's stochastic Lanczos quadrature, without the matrix.

    With a preconditioner P⁻¹ = R Rᵀ it is log det P, which is known, plus log det Rᵀ(K + diag(noise))R. The eigenvalues
    of this matrix are near one, which takes fewer samples and steps. In all, `num_matvecs` sums of `num_samples`
    channels, in O(N num_samples num_matvecs) memory.

    Args:
        operator: from `gauss_operator`.
        rng_key: random key for the random signs.
        preconditioner: from `nystrom_preconditioner`. Without it, small noise needs `num_matvecs` in the hundreds.
        num_samples: the number of random vectors, at least two.
        num_matvecs: Lanczos steps for each of them, at most N.

    Returns:
        A `LogDeterminant`: the estimate and its standard error over the samples. Too few Lanczos steps add a bias,
        which the standard error does not show.

    Raises:
        ImportError: matfree is not installed.
        ValueError: there are fewer than two samples, or the number of steps is not between 1 and N.
        TypeError: the operator is another one, or `rng_key` is not a key.

    Derivatives:
        Reverse mode, of the value with respect to points, τ and noise: tr(A⁻¹ dA) by the same samples. The
        preconditioner is a constant.

    Example:
        >>> import jax, jax.numpy as jnp, jaxgauss
        >>> operator = jaxgauss.lineax.gauss_operator(jnp.linspace(0, 1, 50)[:, None], 10.0, noise=0.1)
        >>> found = jaxgauss.lineax.log_determinant(operator, rng_key=jax.random.key(0), num_matvecs=20)
        >>> bool(abs(found.value - jnp.linalg.slogdet(operator.as_matrix())[1]) < 4 * found.standard_error)
        True

    References:
        Ubaru, Chen & Saad, "Fast Estimation of tr(f(A)) via Stochastic Lanczos Quadrature", 2017.
        Krämer, Moreno-Muñoz, Roy & Hauberg, "Gradients of Functions of Large Matrices", 2024, arXiv:2405.17277.
    """
    function = "lineax.log_determinant"
    where = f"`jaxgauss.{function}`"
    with needed(f"jaxgauss.{function}", "matfree"):
        from matfree import decomp, funm, stochtrace
    _check_kind(where, "operator", operator, GaussOperator, "gauss_operator")
    check_rng_key(function, rng_key)
    num = operator.points.shape[0]
    check_number(function, "num_samples", num_samples, 2)
    check_number(function, "num_matvecs", num_matvecs)
    if num_matvecs > num:
        raise ValueError(
            f"{where}: `num_matvecs` must be at most the number of points; got num_matvecs {num_matvecs}, {num} points."
            f" Pass num_matvecs={num}."
        )
    if preconditioner is not None:
        _check_kind(where, "preconditioner", preconditioner, NystromPreconditioner, "nystrom_preconditioner")
    preconditioner = lax.stop_gradient(preconditioner)

    def product(vector: Array, operator: GaussOperator) -> Array:
        if preconditioner is None:
            return operator.mv(vector)
        return preconditioner.root(operator.mv(preconditioner.root(vector)), transposed=True)

    known = 0.0 if preconditioner is None else preconditioner.log_determinant()
    integrand = funm.monte_carlo_funm_sym_logdet(decomp.tridiag_sym(num_matvecs))
    like = jnp.zeros(num, operator.points.dtype)
    estimate = stochtrace.estimator_monte_carlo_mean_and_sem(
        integrand, sampler=stochtrace.sampler_signs(like, num=num_samples)
    )
    value, standard_error = estimate(product, rng_key, operator)
    return LogDeterminant(value + known, standard_error)


@public()
def log_marginal_likelihood(
    operator: GaussOperator,
    values: Float[Array, "n *c"],
    *,
    rng_key: jax.Array,
    preconditioner: NystromPreconditioner | None = None,
    num_samples: int = 16,
    rtol: float = 1e-4,
    max_steps: int = 100,
) -> LogLikelihood:
    """Log-likelihood of a Gaussian process, -½ (yᵀA⁻¹y + log det A + N log 2π), A = K + diag(noise), with its gradient.

    Conjugate gradients solve for the values and for random signs at once; the gradient uses the same solutions. (That
    of `lineax.linear_solve` is another solution, which its absolute tolerance may stop at zero.) Each step is one sum
    of C + `num_samples` channels; a few more have `rank` channels.

    Args:
        operator: from `gauss_operator`, with positive noise. For one length scale per dimension, divide the points by
            them. For s²A, pass values / s and subtract C N log s.
        values: y minus its mean, (N,); or (N, C), of independent processes, whose logarithms are added.
        rng_key: random key: a new one for each step of an optimizer.
        preconditioner: from `nystrom_preconditioner`. None: one of rank min(N, 200).
        num_samples: random vectors, at least two.
        rtol: of the solutions, between 0 and 1.
        max_steps: of conjugate gradients, at most.

    Returns:
        A `LogLikelihood`: the estimate, its standard error, and the residual of the solution for the values. If that is
        well above `rtol`, use more rank, noise or steps, or float64.

    Raises:
        ValueError: shapes do not fit, there is no noise, or a number is out of range.
        TypeError: the operator or the preconditioner is another one, or `rng_key` is not a key.

    Derivatives:
        First ones, in both modes, with respect to points, τ, noise and values: an unbiased estimate of the gradient,
        not the gradient of the estimate. Use Adam, not a line search.

    Precision:
        Random errors are small if the preconditioner is good. For 1,000 points in a square of side 2, τ = 5, σ² = 0.01
        and rank 100 they are 0.005 of 800, and 2e-4 of the gradient; 0.04 and 2e-3 in float32.

    Example:
        >>> import jax, jax.numpy as jnp, jaxgauss
        >>> points, values = jnp.linspace(0, 1, 50)[:, None], jnp.sin(jnp.linspace(0, 6, 50))
        >>> def loss(log_tau, log_noise, rng_key):
        ...     operator = jaxgauss.lineax.gauss_operator(points, jnp.exp(log_tau), noise=jnp.exp(log_noise))
        ...     return -jaxgauss.lineax.log_marginal_likelihood(operator, values, rng_key=rng_key).value / len(values)
        >>> gradient = jax.jit(jax.grad(loss, (0, 1)))(3.0, -2.0, jax.random.key(0))
        >>> bool(gradient[1] > 0)  # less noise is likelier
        True

    References:
        Gardner et al., "GPyTorch: Blackbox Matrix-Matrix Gaussian Process Inference", 2018, arXiv:1809.11165.
    """
    function = "lineax.log_marginal_likelihood"
    where = f"`jaxgauss.{function}`"
    _check_kind(where, "operator", operator, GaussOperator, "gauss_operator")
    check_rng_key(function, rng_key)
    floating_dtype(where, "values", values)
    num, dtype = operator.points.shape[0], operator.points.dtype
    if values.ndim not in (1, 2) or values.shape[0] != num:
        raise ValueError(
            f"{where}: `values` must be (N,) or (N, C), one for each point; got values {values.shape}, points"
            f" {operator.points.shape}. Batches go by jax.vmap."
        )
    check_number(function, "num_samples", num_samples, 2)
    check_number(function, "max_steps", max_steps)
    if not 0 < rtol < 1:
        raise ValueError(f"{where}: `rtol` must be between 0 and 1; got rtol {rtol}. Pass rtol=1e-4.")
    _check_noise(where, operator.noise, float(jnp.finfo(dtype).eps))
    rank_key, signs_key = jax.random.split(rng_key)
    if preconditioner is None:
        preconditioner = nystrom_preconditioner(operator, min(num, 200), rng_key=rank_key)
    signs = jax.random.rademacher(signs_key, (num, num_samples), dtype)
    _check_kind(where, "preconditioner", preconditioner, NystromPreconditioner, "nystrom_preconditioner")
    of_columns = jnp.asarray(values, dtype).reshape(num, -1)
    return log_likelihood_of(
        operator, of_columns, lax.stop_gradient(preconditioner), signs, rtol=rtol, max_steps=max_steps
    )
