"""The estimator `jaxgauss.sklearn.GaussianProcess`."""

import contextlib
import math
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from ._checks.optional import needed
from ._checks.samples import check_number, check_positive
from ._methods.gaussian_process import (
    LEAST_NOISE,
    SOME,
    Objective,
    Posterior,
    box_of,
    enlarged,
    learned,
    posterior,
)
from ._methods.process_by_matrix import ByMatrix, Corners
from ._methods.process_by_transforms import ByTransforms
from ._sums.display import progress_bar

with needed("jaxgauss.sklearn", "scikit-learn"):
    from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import check_is_fitted, validate_data

NAME = "jaxgauss.sklearn.GaussianProcess"


class GaussianProcess(MultiOutputMixin, RegressorMixin, BaseEstimator):
    """Gaussian process (kriging) with learned length scales and noise, of up to millions of points in D ≤ 3 dimensions.

    y is a mean, f and noise. f has covariance s² exp(-½ Σ_d ((x - x')_d / ℓ_d)²), the noise has variance α s². Each
    column of y has its own s². In D ≤ 3 the kernel matrix is a product of R waves: likelihood and gradient, mean and
    variances take O(N + R³) operations. If the box of the points is so many length scales wide that R > 5000, conjugate
    gradients replace factors (docs/gaussian_processes.md). Up to 2048 points, or 8192 if D > 3, take the matrix itself.

    Args:
        length_scale: ℓ, a number or (D,), where the search starts. None: one for all, at a distance of neighbors.
        noise: α, where the search starts.
        learn: whether ℓ and α are learned. s² always is.
        max_iter: the largest number of steps of L-BFGS from a start.
        num_samples: how many samples of f estimate the standard deviations if R > 5000.
        progress, random_state: whether a bar is shown (needs tqdm); the seed of samples and of parts of many points.

    Attributes:
        length_scale_: ℓ, (D,).
        noise_: α.
        variance_, noise_variance_: s² and α s², numbers or (C,), with a warning if they exceed float64's range.
        theta_: the logarithms of the length scales that were learned, and of α.
        log_marginal_likelihood_value_: of all points if `exact_`, else of parts of them, as if they were independent.
        std_error_: the relative error of standard deviations of f: 0 unless they are estimated from samples.
        n_features_in_: D.

    Raises:
        ValueError: by `fit`, if a parameter is wrong or the points are too many for their dimensions or length scales.

    Precision:
        float64 throughout, in any units. Left-out waves change the logarithm of the likelihood by about 1e-4. From a
        constant y, or one row, nothing is learned: ℓ and α stay at their start, and s is 1.

    Example:
        >>> import numpy as np
        >>> from jaxgauss.sklearn import GaussianProcess
        >>> X = np.random.default_rng(0).uniform(size=(3000, 1))
        >>> y = np.sin(9 * X[:, 0]) + 0.1 * np.random.default_rng(1).normal(size=3000)
        >>> model = GaussianProcess().fit(X, y)
        >>> mean, std = model.predict(X, return_std=True)  # of new values: noise included
        >>> bool(0.93 < np.mean(np.abs(y - mean) < 2 * std) < 0.97)
        True

    References:
        Rasmussen & Williams, "Gaussian Processes for Machine Learning", 2006.
        Greengard, Rachh & Barnett, "Equispaced Fourier representations for efficient Gaussian process regression from a
        billion data points", 2023, arXiv:2210.10210.
    """

    X_fit_: np.ndarray

    def __init__(
        self,
        length_scale: Any = None,
        noise: float = 0.1,
        learn: bool = True,
        max_iter: int = 50,
        num_samples: int = 64,
        progress: bool = False,
        random_state: Any = None,
    ):
        self.length_scale = length_scale
        self.noise = noise
        self.learn = learn
        self.max_iter = max_iter
        self.num_samples = num_samples
        self.progress = progress
        self.random_state = random_state

    def fit(self, X, y):
        """Learn from points X (N, D) and their values y, (N,) or (N, C)."""
        found: Any = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
        X, y = found
        theta, self.X_fit_ = self._checked(X), X
        values = y.reshape(len(X), -1).astype(np.float64)
        (self._values, self._mean, self._size), self._shape = _standardized(values), y.shape[1:]
        with self._bar("likelihood") as tick:
            objective: Any = self._objective(tick)
            if self.learn:
                found = learned(objective, theta, float(self.noise), int(self.max_iter))
            else:
                found = objective.at(theta, objective.fits(theta))
        self.length_scale_, self.noise_, self.exact_, self.n_iter_ = found.scale, found.noise, found.exact, found.steps
        self._std, self.theta_ = np.sqrt(found.variance) * self._size, found.theta
        self.log_marginal_likelihood_value_ = self._in_units(found.value, objective.num(found.exact))
        self._posterior = found.posterior or self._in_box(objective.box)
        self.std_error_ = (2 * self.num_samples) ** -0.5 if isinstance(self._posterior, ByTransforms) else 0.0
        return self

    @property
    def variance_(self):
        """s², a number or (C,)."""
        return self._variance_of(self._std)

    @property
    def noise_variance_(self):
        """α s², a number or (C,)."""
        return self._variance_of(math.sqrt(self.noise_) * self._std)

    def _variance_of(self, std: np.ndarray) -> Any:
        """Squares of standard deviations, with a warning if they are out of range."""
        with np.errstate(over="ignore"):
            found = np.square(std)
        if not ((found >= np.finfo(float).tiny) & (found < math.inf)).all():
            warnings.warn(
                f"`{NAME}`: variances must lie in the range of float64; got standard deviations from {std.min():.3g} to"
                f" {std.max():.3g}. Pass y in other units.",
                RuntimeWarning,
                stacklevel=3,
            )
        return found if self._shape else float(found[0])

    def predict(self, X, return_std=False):
        """The mean of f at each row of X, (P,) or (P, C); and the standard deviation of a new value, noise included."""
        queries, found = self._at(X)
        mean = self._mean + self._size * found.mean(queries)
        if not return_std:
            return mean.reshape(-1, *self._shape)
        std = np.sqrt(self._variance(found, queries)[:, None] + self.noise_) * self._std
        return mean.reshape(-1, *self._shape), std.reshape(-1, *self._shape)

    def sample_y(self, X, n_samples=1, random_state=0) -> np.ndarray:
        """Samples of f, without noise, at the rows of X: (P, n_samples) or (P, C, n_samples)."""
        queries, found = self._at(X, far=True)
        rng, channels = check_random_state(random_state), len(self._mean)
        drawn = found.deviations(queries, channels * n_samples, rng).reshape(n_samples, channels, -1)
        samples = (self._mean + self._size * found.mean(queries)).T + self._std[:, None] * drawn  # (n_samples, C, P)
        return np.moveaxis(samples, (0, 1, 2), (2, 1, 0)).reshape(len(queries), *self._shape, n_samples)

    def log_marginal_likelihood(self, theta=None, eval_gradient=False):
        """The logarithm of the likelihood at the best s²; its gradient, too.

        Args:
            theta: the logarithms of the length scales, as many as are learned, and of the noise. None: `theta_`.
            eval_gradient: whether the gradient is returned as well.
        """
        check_is_fitted(self)
        objective = self._objective(lambda: None)
        theta = self.theta_ if theta is None else np.asarray(theta, np.float64)
        if theta.shape != self.theta_.shape:
            raise ValueError(
                f"`{NAME}`: `theta` must have the shape of theta_, {self.theta_.shape}; got theta {theta.shape}. Pass"
                " logarithms of the length scales and of the noise."
            )
        exact = objective.fits(theta)
        value, gradient = objective(theta, exact)
        value = self._in_units(value, objective.num(exact))
        return (value, gradient) if eval_gradient else value

    def _checked(self, X: np.ndarray) -> np.ndarray | None:
        """The logarithms of length scales and noise at the start, or None; ValueError if a parameter is wrong."""
        function = NAME.removeprefix("jaxgauss.")
        check_positive(function, "noise", self.noise)
        for name in ("max_iter", "num_samples"):
            check_number(function, name, getattr(self, name))
        dim, given = X.shape[1], self.length_scale
        if given is None and not self.learn:
            raise ValueError(f"`{NAME}`: `length_scale` must be given if it is not learned; got None. Pass learn=True.")
        if dim > 3 and len(X) > SOME:
            raise ValueError(
                f"`{NAME}`: X must have at most {SOME} rows of more than three dimensions; got X {X.shape}. Use"
                " jaxgauss.sklearn.KernelRidge, which computes the mean without the matrix, or a part of the rows."
            )
        if self.noise < LEAST_NOISE * len(X):
            raise ValueError(
                f"`{NAME}`: `noise` must be at least {LEAST_NOISE * len(X):.0e} for {len(X)} points; got noise"
                f" {self.noise!r}. With less, rounding in float64 decides."
            )
        if given is None:
            return None
        scale = np.asarray(given, np.float64) if np.ndim(given) < 2 else np.zeros(0)
        if scale.shape not in ((), (dim,)) or not ((scale > 0) & (scale < math.inf)).all():
            raise ValueError(
                f"`{NAME}`: `length_scale` must be positive, a number or one for each column of X, ({dim},); got"
                f" length_scale {given!r}. Pass None to have it found."
            )
        return np.log(np.append(scale, self.noise))

    def _objective(self, tick: Any) -> Objective:
        shared, rng = np.ndim(self.length_scale) == 0, check_random_state(self.random_state)
        return Objective(self.X_fit_, self._values, shared, rng, tick)

    def _in_units(self, value: float, num: int) -> float:
        """The logarithm of the likelihood of y, from that of `num` values in units of their standard deviation."""
        return float(value - num * np.log(self._size).sum())

    def _in_box(self, box: Corners) -> Posterior:
        found = posterior(self.X_fit_, self._values, self.length_scale_, self.noise_, box)
        if found is None:
            size = " × ".join(f"{x:.3g}" for x in (box[1] - box[0]) / self.length_scale_)
            raise ValueError(
                f"`{NAME}`: points must lie in a box of at most a few hundred length scales, for which transforms have"
                f" room; got {size} length scales. Pass a longer length_scale with learn=False, or leave out rows, such"
                " as those far from all others."
            )
        return found

    def _at(self, X: Any, *, far: bool = False) -> tuple[np.ndarray, Posterior]:
        """Points to predict at, and a posterior whose box holds them.

        Points so far from all others that f has its prior there are moved nearer, unless `far`, as for samples.
        """
        check_is_fitted(self)
        queries: Any = validate_data(self, X, dtype=np.float64, reset=False)
        box = box_of(self.X_fit_)
        if isinstance(self._posterior, ByMatrix):
            return queries, self._posterior
        around = box_of(np.concatenate([queries, box])) if far else enlarged(box, queries, self.length_scale_)
        found = self._posterior if all(map(np.array_equal, around, box)) else self._in_box(around)
        return np.clip(queries, *around), found

    def _variance(self, found: Posterior, queries: np.ndarray) -> np.ndarray:
        """The variance of f relative to s²; where the matrix is not factored, from samples, with a progress bar."""
        if not isinstance(found, ByTransforms):
            return found.variance(queries)
        total = np.zeros(len(queries))
        with self._bar("samples", int(self.num_samples)) as tick:
            for some in found.samples(int(self.num_samples), check_random_state(self.random_state)):
                total += np.square(found.values(queries, some)).sum(0)
                tick(len(some))
        return total / self.num_samples

    @contextlib.contextmanager
    def _bar(self, unit: str, total: int | None = None) -> Iterator[Any]:
        """A function that advances the progress bar, or does nothing without one."""
        if not self.progress:
            yield lambda number=1: None
            return
        with progress_bar(NAME.removeprefix("jaxgauss."), total, unit) as bar:
            yield bar.update


def _standardized(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Columns about their means in units of their standard deviations; the means; and these. Of constants 0, and 1."""
    exponent = np.frexp(np.abs(values).max(0))[1]
    values = np.ldexp(values, -exponent)  # squares would overflow
    apart = values - values[0]  # exactly zero for constants
    center, size, limits = apart.mean(0), apart.std(0), np.finfo(float)
    varies = size > limits.eps  # more than by rounding
    mean = np.ldexp(values[0] + center, exponent)
    sizes = np.maximum(np.ldexp(size, exponent), limits.smallest_subnormal)
    return np.where(varies, apart - center, 0) / np.where(varies, size, 1), mean, np.where(varies, sizes, 1.0)
