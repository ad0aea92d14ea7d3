"""Gaussian processes: which way the posterior is computed, and the most likely length scales and noise."""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy.optimize
from scipy.spatial import KDTree

from .process_by_matrix import ByMatrix, Corners, log_likelihood
from .process_by_transforms import ByTransforms
from .process_by_waves import ByWaves, box_modes, negligible_from, number_of_modes

FEW, SOME = 2048, 8192  # points up to which the kernel matrix is taken; in more than three dimensions
MODES = 5000  # cosines and sines whose matrix is factored: 200 MB
GRID = 2**24  # numbers of the grid of fast transforms, at most
# Parts of many points whose likelihood is taken first: neighbors of a random point, and points at random.
PART, NEAR, ANYWHERE = 800, 4, 2
STARTS = (0.3, 0.1, 0.03, 0.01)  # length scales, relative to the box, among which the search begins
LEAST_NOISE = 1e-11  # relative to s² N: with less, rounding decides
Posterior = ByMatrix | ByWaves | ByTransforms


def box_of(points: np.ndarray) -> Corners:
    """The corners of the box that holds all points."""
    return points.min(0), points.max(0)


def way(num: int, box: Corners, scale: np.ndarray, noise: float) -> type[Posterior] | None:
    """How the posterior of so many points in a box is computed; None if no way is."""
    dim = len(scale)
    if num <= (FEW if dim <= 3 else SOME):
        return ByMatrix
    if dim > 3:
        return None
    modes, _ = box_modes(*box, scale, noise, num)
    if number_of_modes(modes) <= MODES:
        return ByWaves
    return ByTransforms if math.prod((4 * modes.most + 1).astype(float)) <= GRID else None


def posterior(
    points: np.ndarray, values: np.ndarray, scale: np.ndarray, noise: float, box: Corners
) -> Posterior | None:
    """The posterior of f in a box, given values (N, C) at points (N, D)."""
    chosen: Any = way(len(points), box, scale, noise)
    if chosen is None or chosen is ByMatrix:
        return chosen and ByMatrix(points, values, scale, noise)
    return chosen(points, values, scale, noise, box)


def enlarged(box: Corners, points: np.ndarray, scale: np.ndarray) -> Corners:
    """The box with points that lie outside of it; beyond the reach of what is inside, f has its prior."""
    most = negligible_from(len(scale), np.finfo(float).eps) * scale
    lower, upper = (np.clip(x, box[0] - most, box[1] + most) for x in box_of(points))
    return np.minimum(lower, box[0]), np.maximum(upper, box[1])


class Learned(NamedTuple):
    """Length scales (D,) and noise, relative to s², and what their likelihood is.

    Attributes:
        theta: the logarithms of one or D length scales and of the noise.
        variance: s².
        value: the logarithm of the likelihood of all points, or of parts of them if it is not `exact`.
        steps: evaluations of the likelihood.
        posterior: of all points, if the likelihood is.
    """

    theta: np.ndarray
    scale: np.ndarray
    noise: float
    variance: float
    value: float
    exact: bool
    steps: int
    posterior: Posterior | None


class Objective:
    """The likelihood as a function of the logarithms of one or D length scales and of the noise."""

    def __init__(self, points: np.ndarray, values: np.ndarray, shared: bool, rng: Any, tick: Callable[[], Any]):
        self.points, self.values, self.shared, self.tick, self.steps = points, values, shared, tick, 0
        self.box, self.few = box_of(points), len(points) <= FEW
        self.parts = [np.arange(len(points))] if self.few else self._parts(rng)

    def _parts(self, rng: Any) -> list[np.ndarray]:
        """Indices of parts: the neighbors of some points tell of short length scales, points anywhere of long ones."""
        extent = np.where(self.box[1] > self.box[0], self.box[1] - self.box[0], 1)
        tree = KDTree(self.points / extent)
        centers = rng.choice(len(self.points), NEAR, replace=False)
        near: Any = tree.query(self.points[centers] / extent, PART)[1]
        return [*near, *(rng.choice(len(self.points), PART, replace=False) for _ in range(ANYWHERE))]

    def scale_and_noise(self, theta: np.ndarray) -> tuple[np.ndarray, float]:
        """Length scales (D,) and the noise."""
        scale, noise = np.exp(theta[:-1]), float(np.exp(theta[-1]))
        return np.broadcast_to(scale, self.points.shape[1:]).copy(), noise

    def num(self, exact: bool) -> int:
        """The number of points that the likelihood is of."""
        return len(self.points) if exact else sum(map(len, self.parts))

    def posteriors(self, theta: np.ndarray, exact: bool) -> Iterator[ByMatrix | ByWaves]:
        """That of all points, by waves, or those of the parts, by their matrices."""
        scale, noise = self.scale_and_noise(theta)
        if exact and not self.few:
            yield ByWaves(self.points, self.values, scale, noise, self.box)
            return
        for part in self.parts:
            yield ByMatrix(self.points[part], self.values[part], scale, noise)

    def fits(self, theta: np.ndarray) -> bool:
        """Whether the likelihood of all points is computed."""
        return self.few or way(len(self.points), self.box, *self.scale_and_noise(theta)) is ByWaves

    def __call__(self, theta: np.ndarray, exact: bool) -> tuple[float, np.ndarray]:
        """The logarithm of the likelihood and its gradient."""
        self.steps += 1
        self.tick()
        value, gradient, _ = log_likelihood([x.likelihood() for x in self.posteriors(theta, exact)])
        return value, np.append(gradient[:-1].sum(), gradient[-1]) if self.shared else gradient

    def at(self, theta: np.ndarray, exact: bool) -> Learned:
        """All that is known of one point."""
        found = list(self.posteriors(theta, exact))
        value, _, variance = log_likelihood([x.likelihood() for x in found])
        posterior = found[0] if exact else None
        return Learned(theta, *self.scale_and_noise(theta), variance, value, exact, self.steps, posterior)

    def best(self, theta: np.ndarray, bounds: Any, exact: bool, max_iter: int) -> np.ndarray:
        """The most likely point from a start, by L-BFGS."""
        size = self.values.shape[1] * self.num(exact)

        def minus(theta: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = self(theta, exact)
            return -value / size, -gradient / size

        options = {"maxiter": max_iter, "ftol": 1e-9, "gtol": 1e-5}
        found = scipy.optimize.minimize(minus, theta, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
        return np.clip(found.x, *np.array(bounds).T)


def learned(objective: Objective, theta: np.ndarray | None, noise: float, max_iter: int) -> Learned:
    """The most likely length scales and noise, from a start or from several.

    Parts of many points are taken first. All points follow, if the matrix of their waves can be factored.
    """
    extent = objective.box[1] - objective.box[0]
    extent = np.where(extent > 1e-12 * extent.max(), extent, extent.max() or 1)
    sides = [(extent.min(), extent.max())] if objective.shared else [(x, x) for x in extent]
    least = max(1e-8, LEAST_NOISE * len(objective.points))
    bounds = [*((math.log(1e-5 * x), math.log(100 * y)) for x, y in sides), (math.log(least), math.log(1e4))]
    starts: Any = [theta]
    if theta is None:
        starts = [np.log([*(share * y for _, y in sides), noise]) for share in STARTS]
    starts = [np.clip(x, *np.array(bounds).T) for x in starts]
    start = starts[0] if len(starts) == 1 else max(starts, key=lambda x: objective(x, False)[0])
    best, exact = objective.best(start, bounds, False, max_iter), objective.few
    if not exact and objective.fits(best):
        shorter = (np.append(np.full(len(sides), x), 0) for x in np.linspace(-3, 0, 61))
        shift = next(x for x in shorter if objective.fits(best + x))
        inside = [(max(low, x), high) for x, (low, high) in zip(best + shift, bounds, strict=True)]
        inside[-1] = bounds[-1]
        found = objective.best(best, inside, True, max_iter)
        exact = all(x > low for x, (low, _) in zip(found[:-1], inside, strict=False))
        best = found if exact else best
    return objective.at(best, exact)
