"""Gaussian processes of few points: likelihood and posterior from the kernel matrix, in NumPy's float64.

Values y = f + noise have covariance s² (K + αI), with K_mn = exp(-½ Σ_d ((x_m - x_n)_d / ℓ_d)²). The most likely s² of
a channel is Q/N, Q = yᵀ(K + αI)⁻¹y, so the likelihood is a function of log ℓ and log α. Source: Rasmussen & Williams
2006, chapters 2 and 5.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
from jaxtyping import Float

NUMBERS = 2**22  # of a matrix of points and queries at a time
FAR = 1e300  # squared distances are at most that, so that none is infinite
lapack: Any = scipy.linalg.lapack
Matrix = Float[np.ndarray, "n n"]
Corners = tuple[Float[np.ndarray, " d"], Float[np.ndarray, " d"]]  # lower and upper corner


class Likelihood(NamedTuple):
    """The terms of the likelihood of values (N, C), and their derivatives with respect to log ℓ (D) and log α.

    Attributes:
        num: N.
        quadratic: Q of each channel, (C,); 0 of a channel of zeros.
        log_det: log det(K + αI).
        d_quadratic: (D + 1, C).
        d_log_det: (D + 1,).
    """

    num: int
    quadratic: Float[np.ndarray, " c"]
    log_det: float
    d_quadratic: Float[np.ndarray, "d1 c"]
    d_log_det: Float[np.ndarray, " d1"]


def log_likelihood(parts: list[Likelihood]) -> tuple[float, Float[np.ndarray, " d1"], Float[np.ndarray, " c"]]:
    """The logarithm of the likelihood of independent parts, at the best s² of each channel; its gradient; and these s².

    Zeros tell nothing: their s² is 1, and they are left out.
    """
    num, log_det = sum(x.num for x in parts), sum(x.log_det for x in parts)
    d_log_det = np.sum([x.d_log_det for x in parts], 0)
    quadratic, d_quadratic = np.sum([x.quadratic for x in parts], 0), np.sum([x.d_quadratic for x in parts], 0)
    tells = quadratic > 0
    variance, channels = np.where(tells, quadratic / num, 1.0), int(tells.sum())
    value = -(channels * (num * (math.log(2 * math.pi) + 1) + log_det) + num * np.log(variance).sum()) / 2
    return float(value), -((d_quadratic / variance).sum(1) + channels * d_log_det) / 2, variance


class ByMatrix:
    """The posterior given values (N, C) at few points (N, D), from the kernel matrix: O(N³) operations."""

    def __init__(self, points: np.ndarray, values: np.ndarray, scale: np.ndarray, noise: float):
        self.points, self.values, self.scale, self.noise = points, values, scale, noise
        self.factor = factored(gauss_matrix(points, points, scale) + noise * np.eye(len(points)))
        self.solution = scipy.linalg.cho_solve((self.factor, True), values, check_finite=False)

    def likelihood(self, *, slopes: bool = True) -> Likelihood:
        """The terms of the likelihood of the values; derivatives are left zero unless `slopes` are wanted."""
        none = np.zeros(len(self.scale) + 1)
        quadratic, log_det = (self.values * self.solution).sum(0), log_determinant_of(self.factor)
        found = Likelihood(len(self.values), quadratic, log_det, np.outer(none, quadratic), none)
        if not slopes:
            return found
        inverse = inverted(self.factor)
        matrix = gauss_matrix(self.points, self.points, self.scale)
        apart = [squares(x, x, y) * matrix for x, y in zip(self.points.T, self.scale, strict=True)]
        d_quadratic = [-(self.solution * (x @ self.solution)).sum(0) for x in apart]
        d_log_det = [(inverse * x).sum() for x in apart]
        of_noise = -self.noise * np.square(self.solution).sum(0), self.noise * np.trace(inverse)
        return found._replace(
            d_quadratic=np.array([*d_quadratic, of_noise[0]]), d_log_det=np.array([*d_log_det, of_noise[1]])
        )

    def mean(self, points: np.ndarray) -> np.ndarray:
        """The mean of f at points, (P, C)."""
        return np.concatenate([gauss_matrix(x, self.points, self.scale) @ self.solution for x in self._parts(points)])

    def variance(self, points: np.ndarray) -> np.ndarray:
        """The variance of f relative to s² at points, (P,)."""
        halves = (self._half(x) for x in self._parts(points))
        return np.concatenate([np.maximum(1 - np.square(half).sum(0), 0) for half in halves])

    def _parts(self, points: np.ndarray) -> list[np.ndarray]:
        """Points, some at a time."""
        return np.array_split(points, 1 + len(points) * len(self.points) // NUMBERS)

    def _half(self, queries: np.ndarray) -> np.ndarray:
        """L⁻¹ times the kernel matrix of the points and of queries, for the factor L."""
        matrix = gauss_matrix(self.points, queries, self.scale)
        return scipy.linalg.solve_triangular(self.factor, matrix, lower=True, overwrite_b=True)

    def deviations(self, points: np.ndarray, num: int, rng: Any) -> np.ndarray:
        """Samples of f minus its mean, relative to s, (num, P)."""
        half = self._half(points)
        values, vectors = np.linalg.eigh(gauss_matrix(points, points, self.scale) - half.T @ half)
        return rng.normal(size=(num, len(points))) @ (vectors * np.sqrt(np.maximum(values, 0))).T


def gauss_matrix(queries: np.ndarray, keys: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """exp(-½ Σ_d ((q_m - k_n)_d / ℓ_d)²), (M, N), from differences of coordinates."""
    squared = np.zeros((len(queries), len(keys)))
    for q, k, length in zip(queries.T, keys.T, scale, strict=True):
        squared += squares(q, k, length)
    return np.exp(-squared / 2)


def squares(queries: np.ndarray, keys: np.ndarray, length: float) -> np.ndarray:
    """((q_m - k_n) / ℓ)² of one coordinate, (M, N); distances may overflow, as those of outliers."""
    with np.errstate(over="ignore"):
        apart = queries[:, None] - keys
        apart /= length
        return np.minimum(np.square(apart, out=apart), FAR, out=apart)


def factored(matrix: Matrix) -> Matrix:
    """The lower Cholesky factor of a matrix, which is overwritten if it is in Fortran order."""
    factor, info = lapack.dpotrf(matrix, lower=1, clean=1, overwrite_a=1)
    if info:
        raise np.linalg.LinAlgError("the matrix is not positive definite")
    return factor


def inverted(factor: Matrix) -> Matrix:
    """The inverse of a matrix with this lower Cholesky factor."""
    inverse, _ = lapack.dpotri(factor, lower=1)
    return np.tril(inverse) + np.tril(inverse, -1).T


def log_determinant_of(factor: Matrix) -> float:
    """The logarithm of the determinant of a matrix with this Cholesky factor."""
    return 2 * float(np.log(np.diag(factor)).sum())
