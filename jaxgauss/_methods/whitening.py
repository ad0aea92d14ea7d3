"""Bandwidths by name: kernels with the covariance of the samples, which are round for whitened points."""

import functools
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array

from .._arrays.batches import over_leading_axes
from .._arrays.devices import replicated, visible
from .._arrays.tracing import jitted
from .._checks.settings import Settings, working_dtype
from .weights import normalized

# The factor of the standard deviation, of the effective number of samples and the dimension.
FACTORS = {
    "scott": lambda num, dim: num ** (-1 / (dim + 4)),
    "silverman": lambda num, dim: (num * (dim + 2) / 4) ** (-1 / (dim + 4)),
}
SINGULAR = 10  # times D eps: the least share of a coordinate's variance that the others before it may leave


class Whitening(NamedTuple):
    """z = ((x - center) / unit) M has for covariance of the kernel the identity."""

    center: Array  # (1, D)
    unit: Array  # (1, D)
    matrix: Array  # M, (D, D)
    log_det: Array  # log |det dz/dx|

    def points(self, x: Array) -> Array:
        """Whitened points."""
        return _whitened(self.center, self.unit, self.matrix, x)


@over_leading_axes(2, 2, 2, 2)
def _whitened(center: Array, unit: Array, matrix: Array, x: Array) -> Array:
    x = jnp.asarray(x, center.dtype)
    return jnp.matmul((x - center) / unit, matrix, precision=lax.Precision.HIGHEST)


def unwhitened(unit: Array, matrix: Array, d_z: Array) -> Array:
    """The gradient with respect to x of what has d_z with respect to z."""
    return jnp.matmul(d_z, matrix.mT, precision=lax.Precision.HIGHEST) / unit


def check_one_bandwidth(function: str, tau: Any, bandwidth: Any) -> None:
    """Raise ValueError unless there is τ, or the name of a bandwidth, and not both."""
    where = f"`jaxgauss.{function}`"
    named = isinstance(tau, str) and tau in FACTORS
    if (tau is None) == (bandwidth is None) or named:
        fix = "Leave one out." if bandwidth is not None else f"Pass bandwidth={tau if named else 'scott'!r}."
        raise ValueError(
            f"{where}: `tau` must be given, or `bandwidth`, but not both; got tau {tau!r}, bandwidth {bandwidth!r}."
            f" {fix}"
        )
    if bandwidth is not None and not (isinstance(bandwidth, str) and bandwidth in FACTORS):
        fix = f"A number is tau=jaxgauss.tau_from_bandwidth({bandwidth!r})."
        fix = "Pass 'scott', for example." if isinstance(bandwidth, str) else fix
        raise ValueError(f"{where}: `bandwidth` must be one of {', '.join(FACTORS)}; got {bandwidth!r}. {fix}")


def whitening_of(settings: Settings, bandwidth: str, samples: Any, weights: Any, name: str = "samples") -> Whitening:
    """The whitening of a bandwidth's name; ValueError if the covariance of known samples is singular, else then NaN."""
    found = _whitening(settings, bandwidth, samples, weights)
    log_det, center = visible(found.log_det), visible(found.center)
    if log_det is not None and center is not None and np.isnan(log_det).any() and np.isfinite(center).all():
        raise ValueError(
            f"`jaxgauss.{settings.function}`: `{name}` must vary in every direction for bandwidth {bandwidth!r}; got"
            f" {name} {tuple(samples.shape)} of a singular covariance. Pass tau, or fewer coordinates."
        )
    return found


@functools.partial(jitted, num_static=2)
@over_leading_axes(2, 1)
def _whitening(settings: Settings, bandwidth: str, samples: Any, weights: Any) -> Whitening:
    (samples,) = replicated(jnp.asarray(samples, working_dtype(settings.dtype)))
    w, dim = normalized(settings, weights, samples), samples.shape[-1]
    center = lax.stop_gradient((w[..., None] * samples).sum(-2, keepdims=True))  # any near the mean gives the same
    z = samples - center
    unit = jnp.minimum(lax.stop_gradient(jnp.abs(z).max(-2, keepdims=True)), 1 / jnp.finfo(z.dtype).tiny)
    unit = jnp.where(unit > 0, unit, 1)
    z = z / unit
    z = z - (w[..., None] * z).sum(-2, keepdims=True)
    squares = jnp.square(w).sum(-1)
    factor = FACTORS[bandwidth](1 / squares, dim)
    matrix, log_det = jnp.eye(dim, dtype=z.dtype) / factor, -dim * jnp.log(factor) - jnp.log(unit).sum((-2, -1))
    regular = jnp.ones((), bool)
    for _ in range(2):  # the second finds what the first, of squared condition, has left
        covariance = _product(z.mT, w[..., None] * z) / (1 - squares)
        root = jnp.linalg.cholesky(covariance)
        pivots, variances = (jnp.diagonal(x, axis1=-2, axis2=-1) for x in (root, covariance))
        regular &= (jnp.square(pivots) > SINGULAR * dim * jnp.finfo(z.dtype).eps * variances).all(-1)
        inverse = solve_triangular(root, jnp.eye(dim, dtype=z.dtype), lower=True).mT
        z, matrix = _product(z, inverse), _product(matrix, inverse)
        log_det = log_det - jnp.log(pivots).sum(-1)
    matrix, log_det = (jnp.where(regular, x, jnp.nan) for x in (matrix, log_det))
    return Whitening(center, unit, matrix, log_det)


_product = functools.partial(jnp.matmul, precision=lax.Precision.HIGHEST)
