"""Gaussian processes of many points and many modes: conjugate gradients, each step two fast Fourier transforms.

B = I + ΦᵀΦ/α is the matrix of `process_by_waves`, here of complex modes. But for the roots of weights, ΦᵀΦ is a
convolution: its product with a vector takes O(R log R) operations, however many points there are.
"""

import math
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.fft as transforms

from .._engines.fourier.trigonometric import trigonometric_sums, trigonometric_values
from .process_by_matrix import Corners
from .process_by_waves import box_modes, log_weights

OF_MEAN, OF_SAMPLES = 1e-8, 1e-3  # residuals relative to the right-hand side
STEPS = 10_000  # of conjugate gradients, at most
TOGETHER = 2**22  # grid points of all systems that are solved together
fft: Any = transforms
ModeRows = Any  # complex arrays (C, …)


class ByTransforms:
    """The posterior given values (N, C) at points (N, D), in a box, by conjugate gradients.

    The modes have j_D ≥ 0 for the last coordinate; those of -j are their conjugates.
    """

    def __init__(self, points: np.ndarray, values: np.ndarray, scale: np.ndarray, noise: float, box: Corners):
        self.points, self.noise, num = points, noise, len(points)
        self.modes, _ = box_modes(*box, scale, noise, num)
        most = self.modes.most.tolist()
        self.grid = tuple(fft.next_fast_len(4 * x + 1, real=True) for x in most)
        sums = trigonometric_sums(self.modes.doubled, points, np.ones((1, num)))
        self.density = self._on_grid(sums[..., 2 * most[-1] :], self._positions([2 * x for x in most]))[0]
        j = np.stack(np.meshgrid(*[np.arange(-x, x + 1) for x in most], indexing="ij"), -1)[..., most[-1] :, :]
        self.roots = np.exp(log_weights(self.modes, scale, j) / 2)
        self.twice = np.where(j[..., -1] > 0, 2, 1)
        self.precondition = 1 / (1 + num / noise * np.square(self.roots))
        self.inner = self._positions(most)
        right = self.roots * trigonometric_sums(self.modes, points, values.T)[..., most[-1] :]
        self.solution = self._solved(right, OF_MEAN)

    def _positions(self, most: list[int]) -> Any:
        """Indices of the modes on the grid of the transforms."""
        ahead = [np.arange(-x, x + 1) % n for x, n in zip(most[:-1], self.grid, strict=False)]
        return np.ix_(*ahead, np.arange(most[-1] + 1))

    def _on_grid(self, modes: ModeRows, positions: Any) -> np.ndarray:
        """The functions that have these modes, at the points of the grid."""
        full = np.zeros((len(modes), *self.grid[:-1], self.grid[-1] // 2 + 1), complex)
        for x, row in zip(full, modes, strict=True):
            x[positions] = row
        return fft.irfftn(full, self.grid, axes=range(1, full.ndim), norm="forward", workers=-1)

    def product(self, modes: ModeRows) -> ModeRows:
        """B times vectors of modes."""
        function = self._on_grid(self.roots * modes, self.inner) * self.density
        found = fft.rfftn(function, axes=range(1, function.ndim), norm="forward", workers=-1, overwrite_x=True)
        return modes + self.roots / self.noise * np.stack([x[self.inner] for x in found])

    def _dot(self, x: ModeRows, y: ModeRows) -> np.ndarray:
        axes = tuple(range(1, x.ndim))
        return ((x.real * y.real + x.imag * y.imag) * self.twice).sum(axes).reshape(-1, *[1] * len(axes))

    def _solved(self, right: ModeRows, tolerance: float) -> ModeRows:
        """B⁻¹ times vectors, by preconditioned conjugate gradients."""
        found, residual = np.zeros_like(right), right.copy()
        direction = self.precondition * residual
        size, enough = self._dot(residual, direction), tolerance**2 * self._dot(right, right)
        for _ in range(STEPS):
            if (self._dot(residual, residual) <= enough).all():
                return found
            image = self.product(direction)
            step = size / np.maximum(self._dot(direction, image), np.finfo(float).tiny)
            found += step * direction
            residual -= step * image
            ahead = self.precondition * residual
            last, size = size, self._dot(residual, ahead)
            direction = ahead + size / np.maximum(last, np.finfo(float).tiny) * direction
        sizes = np.maximum(self._dot(right, right), np.finfo(float).tiny)
        left = float(np.sqrt(self._dot(residual, residual) / sizes).max())
        warnings.warn(
            f"`jaxgauss.sklearn.GaussianProcess`: conjugate gradients must come to a residual of {tolerance:.0e}; got"
            f" {left:.1e} after {STEPS} steps. Pass a larger noise.",
            RuntimeWarning,
            stacklevel=2,
        )
        return found

    def mean(self, points: np.ndarray) -> np.ndarray:
        """The mean of f at points, (P, C)."""
        return self.values(points, self.solution / self.noise).T

    def samples(self, num: int, rng: Any) -> Iterator[ModeRows]:
        """Samples of a normal distribution with covariance B⁻¹, some at a time: B⁻¹ of samples with covariance B."""
        together = max(1, TOGETHER // math.prod(self.grid))
        for start in range(0, num, together):
            some = min(together, num - start)
            white = fft.rfftn(
                rng.normal(size=(some, *self.grid)), axes=range(1, len(self.grid) + 1), norm="ortho", workers=-1
            )
            of_noise = trigonometric_sums(self.modes, self.points, rng.normal(size=(some, len(self.points))))
            ends = self.roots / math.sqrt(self.noise) * of_noise[..., self.modes.most[-1] :]
            yield self._solved(np.stack([x[self.inner] for x in white]) + ends, OF_SAMPLES)

    def deviations(self, points: np.ndarray, num: int, rng: Any) -> np.ndarray:
        """Samples of f minus its mean, relative to s, (num, P)."""
        return np.concatenate([self.values(points, x) for x in self.samples(num, rng)])

    def values(self, points: np.ndarray, modes: ModeRows) -> np.ndarray:
        """The functions whose weighted modes these are, at points, (C, P)."""
        ahead = self.roots * modes
        axes, most = tuple(range(1, ahead.ndim)), self.modes.most[-1]
        found = np.concatenate([np.flip(ahead, axes).conj()[..., :most], ahead], -1)
        return trigonometric_values(self.modes, points, found)
