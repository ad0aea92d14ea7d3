"""Gaussian processes: the choice of an algorithm for the posterior, and the likeliest length scales and noise."""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy.optimize
from scipy.spatial import KDTree

from .process_by_matrix import ByMatrix, Corners, log_likelihood
from .process_by_transforms import ByTransforms
from .process_by_waves import ByWaves, box_modes, negligible_from, number_of_modes
from .process_starts import starts_of, units_of

FEW, SOME = 2048, 8192  # the kernel matrix is factored for up to FEW points; for SOME in more than three dimensions
MODES = 5000  # the largest number of cosines and sines whose matrix is factored: 200 MB
GRID = 2**24  # the largest number of grid points of the fast Fourier transforms
# Of many points, the likelihood of parts is maximized first: PART points near a random one, or random points.
PART, NEAR, ANYWHERE = 800, 4, 2
LEAST_NOISE = 1e-11  # relative to s² N: less noise is lost in rounding
SHORTER, LONGER = 1e-5, 100  # length scales that are tried, relative to the shortest plain start and to the box
FARTHEST = 1e100  # places among which neighbors are searched, in units of near points
EXTREMES = math.log(np.finfo(float).smallest_subnormal), math.log(np.finfo(float).max) - 5  # of log ℓ
Posterior = ByMatrix | ByWaves | ByTransforms


def box_of(points: np.ndarray) -> Corners:
    """The corners of the box that holds all points."""
    return points.min(0), points.max(0)


def way(num: int, box: Corners, scale: np.ndarray, noise: float) -> type[Posterior] | None:
    """The class that computes the posterior of `num` points in a box; None if none can."""
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
    """The box, enlarged to hold the points, but at most by the distance beyond which f has its prior distribution."""
    most = negligible_from(len(scale), np.finfo(float).eps) * scale
    lower, upper = (np.clip(x, box[0] - most, box[1] + most) for x in box_of(points))
    return np.minimum(lower, box[0]), np.maximum(upper, box[1])


class Learned(NamedTuple):
    """Length scales (D,), the noise relative to s², and their likelihood.

    Attributes:
        theta: the logarithms of one or D length scales and of the noise.
        variance: s² of each channel, (C,).
        value: the logarithm of the likelihood of all points, or of parts of them if it is not `exact`.
        steps: evaluations of the likelihood.
        posterior: of all points if `exact`, else None.
    """

    theta: np.ndarray
    scale: np.ndarray
    noise: float
    variance: np.ndarray
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
        """Indices of the parts: near points determine short length scales, random points long ones."""
        anywhere = [rng.choice(len(self.points), PART, replace=False) for _ in range(ANYWHERE)]
        units = units_of(self.points[anywhere[-1]], self.shared)
        with np.errstate(over="ignore"):
            places = np.clip(self.points / units, -FARTHEST, FARTHEST)
        centers = rng.choice(len(places), NEAR, replace=False)
        near: Any = KDTree(places).query(places[centers], PART)[1]
        return [*near, *anywhere]

    def plain(self, noise: float) -> list[np.ndarray]:
        """θ from which a search may begin: the distances of neighbors, and a given noise."""
        some = self.points[self.parts[-1]]  # all, or random ones
        found = starts_of(some, units_of(some, self.shared))
        return [np.log(np.append(x[: 1 if self.shared else None], noise)) for x in found]

    def bounds(self, plain: list[np.ndarray], start: np.ndarray) -> np.ndarray:
        """The least and the largest θ that are tried, (2, D + 1) or (2, 2); `start` is among them."""
        with np.errstate(over="ignore", divide="ignore"):
            lengths = np.log(self.box[1] - self.box[0])
        least = max(1e-8, LEAST_NOISE * len(self.points))
        low = np.append(np.min(plain, 0)[:-1] + math.log(SHORTER), math.log(least))
        high = np.append(lengths.max() if self.shared else lengths, math.log(1e4 / LONGER)) + math.log(LONGER)
        low, high = np.min([low, start], 0), np.max([high, start, *plain], 0)
        return np.clip([low, high], *EXTREMES)

    def scale_and_noise(self, theta: np.ndarray) -> tuple[np.ndarray, float]:
        """Length scales (D,) and the noise."""
        scale, noise = np.exp(np.clip(theta[:-1], *EXTREMES)), float(np.exp(theta[-1]))
        return np.broadcast_to(scale, self.points.shape[1:]).copy(), noise

    def num(self, exact: bool) -> int:
        """The number of points in the likelihood."""
        return len(self.points) if exact else sum(map(len, self.parts))

    def posteriors(self, theta: np.ndarray, exact: bool) -> Iterator[ByMatrix | ByWaves]:
        """The posterior of all points, by waves, or one of each part, by its kernel matrix."""
        scale, noise = self.scale_and_noise(theta)
        if exact and not self.few:
            yield ByWaves(self.points, self.values, scale, noise, self.box)
            return
        for part in self.parts:
            yield ByMatrix(self.points[part], self.values[part], scale, noise)

    def fits(self, theta: np.ndarray) -> bool:
        """Whether the likelihood of all points can be computed."""
        return self.few or way(len(self.points), self.box, *self.scale_and_noise(theta)) is ByWaves

    def __call__(self, theta: np.ndarray, exact: bool) -> tuple[float, np.ndarray]:
        """The logarithm of the likelihood and its gradient."""
        self.steps += 1
        self.tick()
        value, gradient, _ = log_likelihood([x.likelihood() for x in self.posteriors(theta, exact)])
        return value, np.append(gradient[:-1].sum(), gradient[-1]) if self.shared else gradient

    def value(self, theta: np.ndarray) -> float:
        """The logarithm of the likelihood of the parts."""
        self.steps += 1
        self.tick()
        return log_likelihood([x.likelihood(slopes=False) for x in self.posteriors(theta, False)])[0]

    def at(self, theta: np.ndarray, exact: bool) -> Learned:
        """θ with its likelihood and posterior."""
        found = list(self.posteriors(theta, exact))
        value, _, variance = log_likelihood([x.likelihood(slopes=False) for x in found])
        posterior = found[0] if exact else None
        return Learned(theta, *self.scale_and_noise(theta), variance, value, exact, self.steps, posterior)

    def best(self, start: np.ndarray, bounds: np.ndarray, exact: bool, max_iter: int) -> tuple[float, np.ndarray]:
        """The likeliest θ that L-BFGS visits from a start, after the logarithm of its likelihood."""
        size, visited = max(1, np.count_nonzero(self.values.any(0))) * self.num(exact), []

        def minus(theta: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = self(theta, exact)
            visited.append((value, theta.copy()))
            return -value / size, -gradient / size

        options = {"maxiter": max_iter, "ftol": 1e-9, "gtol": 1e-5}
        scipy.optimize.minimize(minus, start, jac=True, method="L-BFGS-B", bounds=bounds.T, options=options)
        return max(visited, key=lambda x: x[0])


def learned(objective: Objective, theta: np.ndarray | None, noise: float, max_iter: int) -> Learned:
    """The likeliest length scales and noise, from a given start or the likeliest plain one, or from both.

    A plain start that is likelier than all that was found from the given one is a start, too. Of many points, the
    likelihood of parts is maximized first; then that of all, if their matrix can be factored.
    """
    plain = objective.plain(noise)
    likeliest = max(plain, key=objective.value)
    start = likeliest if theta is None else theta
    bounds = objective.bounds(plain, start)
    value, best = objective.best(start, bounds, False, max_iter)
    if theta is not None and objective.value(likeliest) > value:
        value, best = max((value, best), objective.best(likeliest, bounds, False, max_iter), key=lambda x: x[0])
    exact = objective.few
    if not exact and objective.fits(best):
        shorter = (np.append(np.full(len(best) - 1, x), 0) for x in np.linspace(-3, 0, 61))
        shift = next(x for x in shorter if objective.fits(best + x))
        inside = bounds.copy()
        inside[0, :-1] = np.maximum(bounds[0], best + shift)[:-1]
        _, found = objective.best(best, inside, True, max_iter)
        exact = bool((found > inside[0])[:-1].all())
        best = found if exact else best
    return objective.at(best, exact)
