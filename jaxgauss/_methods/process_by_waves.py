"""Gaussian processes of many points in few dimensions: the kernel matrix as a product of few waves.

In a box that holds all points, a Gaussian is a Fourier series: K = ΦΦᵀ, where the columns of Φ (N, R) are cosines and
sines of modes, each times the root of its weight. With B = I + ΦᵀΦ/α, b = Φᵀy and u = B⁻¹b,

    log det(K + αI) = N log α + log det B        Q = (yᵀy - bᵀu/α)/α
    mean of f = φ(x)ᵀu/α                         variance of f = s² φ(x)ᵀB⁻¹φ(x)

The entries of ΦᵀΦ are trigonometric sums of the points, at sums and differences of modes. All of these take O(N + R³)
operations. A variance is itself a trigonometric polynomial, with twice the modes. Source: Greengard, Rachh & Barnett,
"Equispaced Fourier representations for efficient Gaussian process regression from a billion data points", 2023,
arXiv:2210.10210.
"""

import math
from typing import Any

import numpy as np
import scipy.linalg
from jaxtyping import Complex, Float, Int

from .._engines.fourier.trigonometric import Modes, trigonometric_sums, trigonometric_values
from .process_by_matrix import Likelihood, factored, inverted, lapack, log_determinant_of

ERROR = 1e-4  # of the logarithm of the likelihood, by modes that are left out
MOST = 2**40  # modes of a coordinate that are counted: no way takes as many


def box_modes(lower: np.ndarray, upper: np.ndarray, scale: np.ndarray, noise: float, num: int) -> tuple[Modes, float]:
    """The modes that a box needs for `num` points, and the sum of the weights g that may be left out of them."""
    dim, error = len(scale), min(1e-9, max(ERROR * noise / num, 1e-15))
    period = (upper - lower) + negligible_from(dim, error) * scale
    most = np.ceil(math.sqrt(2 * math.log(8 * dim / error)) / (2 * math.pi * (scale / period)))
    return Modes(lower / 2 + upper / 2, period, np.minimum(most, MOST).astype(int)), error


def negligible_from(dim: int, error: float) -> float:
    """The distance, in bandwidths, from which on a Gaussian is negligible."""
    return math.sqrt(2 * math.log(4 * dim / error))


def number_of_modes(modes: Modes) -> float:
    """About how many cosines and sines are kept: the volume of the ellipsoid inside the box of modes."""
    dim = len(modes.most)
    return math.pi ** (dim / 2) / math.gamma(dim / 2 + 1) * float(np.prod(modes.most.astype(float)))


def log_weights(modes: Modes, scale: np.ndarray, j: Int[np.ndarray, "*modes d"]) -> Float[np.ndarray, "*modes"]:
    """log g of modes j."""
    unit = 2 * math.pi * (scale / modes.period)  # ω of j = 1, in bandwidths
    return np.log(unit).sum() - len(unit) / 2 * math.log(2 * math.pi) - np.square(j * unit).sum(-1) / 2


def _kept(modes: Modes, scale: np.ndarray, error: float) -> tuple[Int[np.ndarray, "h d"], Float[np.ndarray, " h"]]:
    """The modes of one half of the space that are not left out, and their weights 2g; first j = 0 with its weight g."""
    j = np.stack(np.meshgrid(*[np.arange(-x, x + 1) for x in modes.most], indexing="ij"), -1).reshape(-1, len(scale))
    j = j[len(j) // 2 :]  # in lexical order, the second half has j = 0 first
    g = np.exp(log_weights(modes, scale, j)) * np.where(j.any(1), 2, 1)
    order = np.argsort(-g[1:], kind="stable") + 1
    kept = np.append(0, order[: len(order) - np.searchsorted(np.cumsum(g[order][::-1]), error, side="right")])
    return j[kept], g[kept]


class ByWaves:
    """The posterior given values (N, C) at points (N, D), in a box, from a matrix of R modes: O(N + R³) operations."""

    def __init__(
        self,
        points: np.ndarray,
        values: np.ndarray,
        scale: np.ndarray,
        noise: float,
        box: tuple[np.ndarray, np.ndarray],
    ):
        self.noise, self.num = noise, len(points)
        self.modes, error = box_modes(*box, scale, noise, self.num)
        self.half, self.weights = _kept(self.modes, scale, error)
        self.unit = 2 * np.pi * (scale / self.modes.period)
        twice = self.modes.doubled
        self.strides = np.cumprod([1, *twice.shape[:0:-1]])[::-1]
        sums: Any = trigonometric_sums(twice, points, np.ones((1, len(points))))[0]
        roots = np.sqrt(self.weights)
        self.roots = np.append(roots, roots[1:])
        of_values: Any = trigonometric_sums(self.modes, points, values.T)
        positions = tuple((self.half + self.modes.most).T)
        found = np.concatenate([of_values.real[:, *positions], -of_values.imag[:, *positions][:, 1:]], 1)
        self.right = self.roots[:, None] * found.T  # b, (R, C)
        matrix = self._gram(sums)
        matrix *= self.roots / noise
        matrix *= self.roots[:, None]
        matrix[np.diag_indices(len(matrix))] += 1
        self.factor = factored(matrix)
        self.solution = scipy.linalg.cho_solve((self.factor, True), self.right, check_finite=False)  # u
        self.square = np.square(values).sum(0)

    def _pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Indices, among modes up to twice as large, of the differences and the sums of all pairs of modes."""
        flat = self.half @ self.strides
        center = (2 * self.modes.most) @ self.strides
        return center + flat[:, None] - flat, center + flat[:, None] + flat

    def _gram(self, sums: Any) -> Float[np.ndarray, "r r"]:
        """Sums over points of products of two cosines or sines, (R, R), without the roots of their weights."""
        num = len(self.half)
        differences, added = (sums.reshape(-1)[x] for x in self._pairs())
        matrix = np.empty((2 * num - 1, 2 * num - 1), order="F")
        matrix[:num, :num] = (differences.real + added.real) / 2
        matrix[num:, num:] = (differences.real - added.real)[1:, 1:] / 2
        # cos a sin b, from Σ sin = -Im
        matrix[:num, num:] = (differences.imag - added.imag)[:, 1:] / 2
        matrix[num:, :num] = matrix[:num, num:].T
        return matrix

    def likelihood(self, *, slopes: bool = True) -> Likelihood:
        """The terms of the likelihood of the values; derivatives are left zero unless `slopes` are wanted."""
        noise, product = self.noise, (self.right * self.solution).sum(0)
        quadratic = (self.square - product / noise) / noise
        quadratic = np.maximum(quadratic, self.square / (self.num + noise))  # no eigenvalue of K exceeds N
        log_det, none = self.num * math.log(noise) + log_determinant_of(self.factor), np.zeros(len(self.unit) + 1)
        found = Likelihood(self.num, quadratic, log_det, np.outer(none, quadratic), none)
        if not slopes:
            return found
        inverse, _ = lapack.dtrtri(self.factor, lower=1)
        diagonal = np.square(inverse).sum(0)
        bends = 1 - np.square(self.half * self.unit)  # ∂ log g / ∂ log ℓ, (H, D)
        bends = np.append(bends, bends[1:], 0)
        squared = np.square(self.solution)
        d_log_det = np.append(bends.T @ (1 - diagonal), self.num - (1 - diagonal).sum())
        of_noise = (product + squared.sum(0)) / noise**2 - self.square / noise
        d_quadratic = np.append(-(bends.T @ squared) / noise**2, of_noise[None], 0)
        return found._replace(d_quadratic=d_quadratic, d_log_det=d_log_det)

    def mean(self, points: np.ndarray) -> np.ndarray:
        """The mean of f at points, (P, C)."""
        return self._values(points, self.solution.T / self.noise).T

    def deviations(self, points: np.ndarray, num: int, rng: Any) -> np.ndarray:
        """Samples of f minus its mean, relative to s, (num, P)."""
        normal = rng.normal(size=(len(self.factor), num))
        return self._values(points, scipy.linalg.solve_triangular(self.factor, normal, trans=1, lower=True).T)

    def _values(self, points: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """φ(x)ᵀw at points, (C, P), of weights (C, R)."""
        weights, num = weights * self.roots, len(self.half)
        found = np.zeros((len(weights), *self.modes.shape), complex)
        positions = [tuple((sign * self.half + self.modes.most).T) for sign in (1, -1)]
        sines = np.pad(weights[:, num:], ((0, 0), (1, 0)))
        halves = np.where(self.half.any(1), 0.5, 1) * (weights[:, :num] - 1j * sines)
        found[:, *positions[0]] = halves
        found[:, *positions[1]] = halves.conj()
        return trigonometric_values(self.modes, points, found)

    def variance(self, points: np.ndarray) -> np.ndarray:
        """The variance of f relative to s² at points, (P,)."""
        return np.maximum(trigonometric_values(self.modes.doubled, points, self._variance_modes()[None])[0], 0)

    def _variance_modes(self) -> Complex[np.ndarray, "..."]:
        """The trigonometric polynomial φ(x)ᵀB⁻¹φ(x)."""
        num = len(self.half)
        inverse = inverted(self.factor) * self.roots * self.roots[:, None]
        cosines, sines = inverse[:num, :num], np.zeros((num, num))
        mixed = np.zeros((num, num))
        sines[1:, 1:], mixed[:, 1:] = inverse[num:, num:], inverse[:num, num:]
        # cos a cos b, sin a sin b and 2 cos a sin b, as cosines and sines of a - b and a + b
        shape = self.modes.doubled.shape
        size = math.prod(shape)
        of_cosines, of_sines = np.zeros(size), np.zeros(size)
        for positions, sign in zip(self._pairs(), (1, -1), strict=True):
            positions = positions.reshape(-1)
            of_cosines += np.bincount(positions, ((cosines + sign * sines) / 2).reshape(-1), size)
            of_sines += np.bincount(positions, (-sign * mixed).reshape(-1), size)
        found = (of_cosines - 1j * of_sines).reshape(shape)
        return (found + np.flip(found).conj()) / 2
