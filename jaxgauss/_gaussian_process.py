"""The estimator `jaxgauss.sklearn.GaussianProcess`."""

import contextlib
import math
import numbers
from collections.abc import Iterator
from typing import Any

import numpy as np

from ._checks.optional import needed
from ._methods.process import LEAST_NOISE, SOME, Learned, Objective, box_of, learned, posterior, way, wider
from ._methods.process_by_matrix import log_likelihood
from ._methods.process_by_transforms import ByTransforms
from ._sums.display import progress_bar

with needed("jaxgauss.sklearn", "scikit-learn"):
    from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import check_is_fitted, validate_data

NAME = "jaxgauss.sklearn.GaussianProcess"


class GaussianProcess(MultiOutputMixin, RegressorMixin, BaseEstimator):
    """Gaussian process (kriging) with learned length scales and noise, for up to millions of points in D ≤ 3 dimensions.

    y = mean + f + noise. The covariance of f is s² exp(-½ Σ_d ((x - x')_d / ℓ_d)²), that of the noise α s². In D ≤ 3 the
    matrix K is a product of R waves: a likelihood with its gradient, the mean and all variances take O(N + R³) operations,
    without another approximation. If the box is so many length scales wide that R > 5000, conjugate gradients take their
    place (docs/other_libraries.md). Up to 2048 points, or 8192 if D > 3, the matrix is factored.

    Args:
        length_scale: ℓ, a number or (D,), at which the search starts. None: one for all coordinates, found among several.
        noise: α, the variance of the noise relative to s²; the search starts there.
        learn: whether ℓ and α are learned. s² always is.
        max_iter: the largest number of L-BFGS steps.
        num_samples: samples of f that standard deviations are computed from where R > 5000.
        progress: show a bar (needs tqdm).
        random_state: for samples, and for the parts of the points whose likelihood is taken first.

    Attributes:
        length_scale_: ℓ, (D,).
        noise_: α.
        variance_: s², a number or (C,).
        noise_variance_: α s², likewise.
        log_marginal_likelihood_value_: at ℓ, α and s²; of `exact_` points only, or of parts of them.
        exact_: whether the likelihood that was maximized is that of all points.
        std_error_: of predicted standard deviations of f, relative; 0 if they are no samples'.
        n_features_in_: D.

    Raises:
        ValueError: by `fit`, if a parameter is wrong or the points are too many for their dimensions or length scales.

    Precision:
        float64 throughout. Left-out waves change the logarithm of the likelihood by about 1e-4.

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
        X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
        scale, box = self._checked(X), box_of(X)
        self.X_fit_, self.y_fit_ = X, y
        values = y.reshape(len(X), -1).astype(np.float64)
        self._mean = values.mean(0)
        size = values.std(0)
        self._size = np.where(size > 1e-14 * np.abs(values).max(0), size, 1)
        self._values = (values - self._mean) / self._size
        start = None if self.length_scale is None else np.log(np.append(scale, self.noise))
        with self._bar("likelihood") as tick:
            objective = self._objective(tick)
            if self.learn and self._values.any():
                found = learned(objective, start, self.noise, int(self.max_iter))
            else:
                scale = np.broadcast_to(scale if start is not None else STARTS_AT * (box[1] - box[0]), X.shape[1:])
                scale = np.where(scale > 0, scale, 1.0)
                exact = way(len(X), box, scale, self.noise) is not ByTransforms
                theta = np.log(np.append(scale[:1] if objective.shared else scale, self.noise))
                found = Learned(scale, float(self.noise), objective(theta, exact)[0], exact, 1)
        self._theta = np.log(np.append(found.scale[:1] if objective.shared else found.scale, found.noise))
        variance = log_likelihood(objective.likelihoods(self._theta, found.exact))[2] * self._size**2
        self.length_scale_, self.noise_, self.exact_ = found.scale, found.noise, found.exact
        self.variance_ = variance if y.ndim > 1 else float(variance[0])
        self.noise_variance_ = self.noise_ * self.variance_
        self.log_marginal_likelihood_value_ = self._of_values(found.value, objective, found.exact)
        self.n_iter_ = found.steps
        self._posterior = self._in_box(box)
        self.std_error_ = (2 * self.num_samples) ** -0.5 if isinstance(self._posterior, ByTransforms) else 0.0
        return self
