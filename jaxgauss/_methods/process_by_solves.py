"""Gaussian processes of any points, under JAX: likelihood and gradient by conjugate gradients, without the matrix.

The preconditioner P⁻¹ = R Rᵀ of A = K + diag(noise) makes the eigenvalues of B = RᵀAR nearly equal. One iteration
solves B [u, v_i] = [Rᵀy, z_i] with random signs z_i. Its coefficients are those of Lanczos' matrix T_i, so that

    yᵀA⁻¹y = 2yᵀc - cᵀAc,  c = R u        log det A = log det P + E zᵀz e₁ᵀ log(T) e₁

Derivatives of the former are 2cᵀ dy - cᵀ dA c. Those of the latter are tr B⁻¹RᵀdA R, which is also

    tr P⁻¹d diag(noise) + tr UᵀRᵀdK R U + E (z - Πz)ᵀRᵀdK R (z - Πz) + E zᵀRᵀdA R (v - z),  Π = UUᵀ

where U are the eigenvectors in the preconditioner. The first two terms are exact. The others are small if the
preconditioner is good: K is then small where Π is zero, and v is near z. Source of all but this formula: Gardner,
Pleiss, Bindel, Weinberger & Wilson, "GPyTorch: Blackbox Matrix-Matrix Gaussian Process Inference", 2018,
arXiv:1809.11165.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from .._arrays.points import dot


class LogLikelihood(NamedTuple):
    """The result of `log_marginal_likelihood`.

    Attributes:
        value: the estimate of the logarithm, ().
        standard_error: of the value, by the random signs, ().
        residual: of the solution, relative to the values in the norm of P⁻¹, ().
    """

    value: Float[Array, ""]
    standard_error: Float[Array, ""]
    residual: Float[Array, ""]


class _Step(NamedTuple):
    number: Array
    solutions: Array  # (N, C), as the next two
    rest: Array
    direction: Array
    squared: Array  # (1, C), the squared norm of the rest
    goes_on: Array
    inverse_sizes: Array  # (S, C), 1 after a column has converged
    ratios: Array  # (S, C), 0 after a column has converged


def solved(
    product: Callable[[Array], Array], right: Float[Array, "n c"], rtol: float, max_steps: int
) -> tuple[Array, Array]:
    """Solutions by conjugate gradients, until each column's residual has fallen by `rtol`; and e₁ᵀ log(T) e₁, (C,)."""
    first = jnp.square(right).sum(0, keepdims=True)

    def advance(now: _Step) -> _Step:
        image = product(now.direction)
        curvature = (now.direction * image).sum(0, keepdims=True)
        good = now.goes_on & (curvature > 0)  # rounding may have made the matrix indefinite
        inverse_size = jnp.where(good, curvature, 1) / jnp.where(good, now.squared, 1)
        size = jnp.where(good, 1 / inverse_size, 0)
        rest = now.rest - size * image
        squared = jnp.where(good, jnp.square(rest).sum(0, keepdims=True), now.squared)
        goes_on = good & (squared > rtol**2 * first)
        ratio = jnp.where(goes_on, squared / jnp.where(good, now.squared, 1), 0)
        return _Step(
            now.number + 1,
            now.solutions + size * now.direction,
            rest,
            rest + ratio * now.direction,
            squared,
            goes_on,
            now.inverse_sizes.at[now.number].set(inverse_size[0]),
            now.ratios.at[now.number].set(ratio[0]),
        )

    history = jnp.ones((max_steps, right.shape[1]), right.dtype)
    start = _Step(jnp.array(0), jnp.zeros_like(right), right, right, first, first > 0, history, jnp.zeros_like(history))
    end = lax.while_loop(lambda now: (now.number < max_steps) & now.goes_on.any(), advance, start)
    return end.solutions, jax.vmap(_log_form, 1)(end.inverse_sizes, end.ratios)


def _log_form(inverse_sizes: Float[Array, " s"], ratios: Float[Array, " s"]) -> Float[Array, ""]:
    """e₁ᵀ log(T) e₁ of the tridiagonal matrix T of one column's iteration."""
    beside = jnp.sqrt(ratios[:-1]) * inverse_sizes[:-1]
    diagonal = inverse_sizes + jnp.pad(ratios[:-1] * inverse_sizes[:-1], (1, 0))
    values, vectors = jnp.linalg.eigh(jnp.diag(diagonal) + jnp.diag(beside, 1) + jnp.diag(beside, -1))
    least = jnp.finfo(values.dtype).eps * values[-1]
    return (jnp.square(vectors[0]) * jnp.log(jnp.maximum(values, least))).sum()


class _Constants(NamedTuple):
    """Vectors whose products with K and with the noise have the derivatives of the likelihood.

    The derivatives are those of Σ left K right + Σ_n of_noise_n noise_n - Σ c y.
    """

    c: Float[Array, "n c"]
    left: Float[Array, "n k"]
    right: Float[Array, "n k"]
    of_noise: Float[Array, " n"]


def by_columns(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """A function of vectors (N,) as one of columns (N, C)."""
    return jax.vmap(function, 1, 1)


def _likelihood(operator, values, preconditioner, signs, rtol, max_steps) -> tuple[LogLikelihood, _Constants]:
    channels, num_samples = values.shape[1], signs.shape[1]
    root, product = by_columns(preconditioner.root), by_columns(operator.mv)
    back = by_columns(lambda x: preconditioner.root(x, transposed=True))
    right = jnp.concatenate([back(values), signs], 1)
    solutions, log_forms = solved(lambda x: back(product(root(x))), right, rtol, max_steps)
    c = root(solutions[:, :channels])
    rest = values - product(c)
    log_dets = preconditioner.log_determinant() + len(signs) * log_forms[channels:]
    quadratic = (c * (values + rest)).sum()
    value = -(quadratic + channels * log_dets.mean() + values.size * math.log(2 * math.pi)) / 2
    error = channels / 2 * log_dets.std(ddof=1) / math.sqrt(num_samples)
    size = jnp.linalg.norm(right[:, :channels])
    residual = jnp.linalg.norm(back(rest)) / jnp.where(size > 0, size, 1)

    basis, share = preconditioner.vectors, -channels / 2
    others = root(signs - dot(basis, dot(basis.T, signs)))
    ours, share_of_one = root(basis), share / num_samples
    left = jnp.concatenate([c / 2, share_of_one * root(signs)], 1)
    moved = jnp.concatenate([c, root(solutions[:, channels:] - signs)], 1)
    constants = _Constants(
        c,
        jnp.concatenate([left, share_of_one * others, share * ours], 1),
        jnp.concatenate([moved, others, ours], 1),
        (left * moved).sum(1) + share * preconditioner.diagonal(),
    )
    return LogLikelihood(value, error, residual), constants


@eqx.filter_custom_jvp
def log_likelihood_of(operator, values, preconditioner, signs, *, rtol, max_steps) -> LogLikelihood:
    """The likelihood of values (N, C), of which the preconditioner and random signs (N, S) are constants."""
    return _likelihood(operator, values, preconditioner, signs, rtol, max_steps)[0]


@log_likelihood_of.def_jvp
def _tangent(primals: Any, tangents: Any, *, rtol: float, max_steps: int) -> tuple[LogLikelihood, Any]:
    found, known = _likelihood(*primals, rtol=rtol, max_steps=max_steps)

    def moving(operator: Any, values: Array) -> Array:
        of_kernel = (known.left * operator.kernel_product(known.right)).sum()
        return of_kernel + (known.of_noise * operator.noise).sum() - (known.c * values).sum()

    _, d_value = eqx.filter_jvp(moving, primals[:2], tangents[:2])
    return found, LogLikelihood(d_value, None, None)  # pyright: ignore[reportArgumentType]
