"""Estimators for scikit-learn, with NumPy arrays in and out, without the kernel matrix."""

import contextlib
import functools
import math
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ._checks.optional import needed
from ._checks.samples import check_kernel, check_number, check_positive
from ._checks.settings import Settings
from ._estimator import GaussianProcess as GaussianProcess
from ._kernel_estimator import KernelEstimator, computed, exponent_of, scaled
from ._kernels.kernels import GAUSS, Kernel
from ._methods.kde import check_integral, kde_logpdf
from ._methods.whitening import check_one_bandwidth, whitening_of
from ._sums.display import counting, with_count
from ._sums.kernel_mean import kernel_mean
from ._sums.kernel_sum import kernel_sum

with needed("jaxgauss.sklearn", "scikit-learn"):
    from sklearn.base import MultiOutputMixin, RegressorMixin
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import check_is_fitted

NEGLIGIBLE = 1e30  # points of so much more noise, relative to one or to the least, change no digit of a prediction


class KernelDensity(KernelEstimator):
    """Kernel density estimate p(x) = Σ_n w_n (τ/2π)^{D/2} exp(-τ/2 ‖x - x_n‖²), or with another kernel: `kde_logpdf`.

    It is `sklearn.neighbors.KernelDensity` with bandwidth = τ^-½ and rtol = atol = 0. O(P N D) operations and O((P + N)
    D) memory for P points.

    Args:
        tau: τ = 1/σ², positive; or "leave_one_out", which maximizes the likelihood of each point under the others.
            None: 1, unless a bandwidth is named.
        kernel: a name or a `Kernel` with a known integral, as for `kde_logpdf`.
        bandwidth: "scott" or "silverman", instead of τ: SciPy's `gaussian_kde`, as for `kde_logpdf`.

    Attributes:
        X_fit_: the points, (N, D).
        weights_: w, (N,), or None if all are equal.
        tau_: the τ in use; 1 if a bandwidth is named.
        covariance_: of the kernel, (D, D), if a bandwidth is named; else None.
        n_features_in_: D.

    Raises:
        ValueError: by `fit`, if τ, the kernel, the points or their weights are wrong, or a named bandwidth's covariance
            is singular.

    Precision:
        Float32 points are summed in float32, all others in float64, whether or not `jax_enable_x64` is set.
        Log-densities have the dtype of the points.

    Example:
        >>> import numpy as np
        >>> from sklearn.model_selection import GridSearchCV
        >>> from jaxgauss.sklearn import KernelDensity
        >>> points = np.random.default_rng(0).normal(size=(200, 1))
        >>> search = GridSearchCV(KernelDensity(), {"tau": [0.1, 10.0, 1000.0]}).fit(points)
        >>> search.best_params_
        {'tau': 10.0}

    References:
        Silverman, "Density Estimation for Statistics and Data Analysis", 1986.
    """

    def __init__(self, tau: float | str | None = None, kernel: str | Kernel = "gauss", bandwidth: str | None = None):
        self.tau = tau
        self.kernel = kernel
        self.bandwidth = bandwidth

    @property
    def _tau(self) -> float | str:
        return 1.0 if self.tau is None else self.tau

    def fit(self, X, y=None, sample_weight=None):
        """Store the points X (N, D) and their weights (N,), not negative; y is ignored."""
        if self.tau is not None or self.bandwidth is not None:
            check_one_bandwidth(self._name, self.tau, self.bandwidth)
        kernel = self._check_kernel()
        X, _ = self._validated(X)
        check_integral(self._name, kernel, X.shape[1])
        self._keep(X, sample_weight)
        self.covariance_ = None
        if self.bandwidth is not None:
            weights = np.ones(len(X)) if self.weights_ is None else scaled(self.weights_, exponent_of(self.weights_))
            whiten = functools.partial(whitening_of, Settings(dtype="float64", function=self._name), self.bandwidth)
            found = computed(functools.partial(whiten, name="X"), X.astype(np.float64), weights)
            self._spread = np.linalg.inv(found.matrix) * found.unit
            self.covariance_ = self._spread.T @ self._spread
        return self

    def score_samples(self, X) -> np.ndarray:
        """Log-density of each row of X, (P,)."""
        check_is_fitted(self)

        def logpdf(x: Array, samples: Array, tau: float, **more: Any) -> Array:
            given = {"tau": tau} if self.covariance_ is None else {"bandwidth": self.bandwidth}
            return kde_logpdf(x, samples, **given, **more)

        found = self._summed(logpdf, X, weights=self._padded_weights())
        return found - found.dtype.type(self._unit * self.X_fit_.shape[1] * math.log(2))

    def score(self, X, y=None) -> float:
        """Log-likelihood of X: the sum of `score_samples`; y is ignored."""
        return float(self.score_samples(X).sum(dtype=np.float64))

    def sample(self, n_samples=1, random_state=None) -> np.ndarray:
        """Draw points from the density, (n_samples, D); for the Gaussian kernel only."""
        check_is_fitted(self)
        if check_kernel(self._name, self.kernel) != GAUSS:
            raise ValueError(
                f"`jaxgauss.{self._name}`: `kernel` must be 'gauss' for points to be drawn; got {self.kernel!r}."
                " Add noise of the kernel's density to X_fit_."
            )
        rng = check_random_state(random_state)
        shares = None if self.weights_ is None else (w := scaled(self.weights_, exponent_of(self.weights_))) / w.sum()
        centers = self.X_fit_[rng.choice(len(self.X_fit_), n_samples, p=shares)]
        if self.covariance_ is None:
            return rng.normal(centers, self.tau_**-0.5).astype(centers.dtype)
        return (centers + rng.normal(size=centers.shape) @ self._spread).astype(centers.dtype)


class KernelMean(MultiOutputMixin, RegressorMixin, KernelEstimator):
    """Kernel regression (Nadaraya-Watson), f(x) = Σ_n w_n Φ(x, x_n) y_n / Σ_n w_n Φ(x, x_n): `kernel_mean`.

    `fit` only stores the points. Predictions stay within the range of y; far from all points, the prediction is the
    value of the nearest.

    Args:
        tau: τ = 1/σ², positive; or "leave_one_out", which minimizes the error of predicting each point from the others.
        kernel: a name or a `Kernel`, as for `kernel_mean`.

    Attributes:
        X_fit_: the points, (N, D).
        y_fit_: their values, (N,) or (N, C).
        weights_: w, (N,), or None if all are equal.
        tau_: the τ in use.
        n_features_in_: D.

    Raises:
        ValueError: by `fit`, if τ, the kernel, the points, their values or weights are wrong.

    Precision:
        As for `KernelDensity`.

    Example:
        >>> import numpy as np
        >>> from jaxgauss.sklearn import KernelMean
        >>> X = np.linspace(0, 6, 300)[:, None]
        >>> model = KernelMean(tau="leave_one_out").fit(X, np.sin(X))
        >>> bool(model.score(X, np.sin(X)) > 0.999)
        True

    References:
        Nadaraya, "On Estimating Regression", 1964; Watson, "Smooth Regression Analysis", 1964.
    """

    def __init__(self, tau: float | str = 1.0, kernel: str | Kernel = "gauss"):
        self.tau = tau
        self.kernel = kernel

    def fit(self, X, y, sample_weight=None):
        """Store the points X (N, D), their values y, (N,) or (N, C), and their weights (N,), not negative."""
        self._check_kernel()
        X, y = self._validated(X, y)
        self.y_fit_ = y
        self._keep(X, sample_weight, y)
        return self

    def predict(self, X) -> np.ndarray:
        """The mean at each row of X, (P,) or (P, C)."""
        check_is_fitted(self)
        with np.errstate(divide="ignore"):
            log_weights = np.log(self._padded_weights())
        exponents = exponent_of(self.y_fit_, 0)
        values = scaled(self.y_fit_, exponents, self.X_fit_.dtype)
        return np.ldexp(self._summed(kernel_mean, X, values, log_weights=log_weights), exponents)


class KernelRidge(MultiOutputMixin, RegressorMixin, KernelEstimator):
    """Kernel ridge regression, f(x) = Σ_n Φ(x, x_n) c_n with (K + αI) c = y, by conjugate gradients without K.

    It is `sklearn.kernel_ridge.KernelRidge(kernel="rbf")` with gamma = τ/2, and the mean of a Gaussian process with
    noise variance α. Each step is one sum: O(N² D) operations and O(N D) memory. With a Nyström preconditioner, in O(N
    rank) memory, about twenty steps suffice if the eigenvalues of K beyond `rank` are below α.

    Args:
        alpha: α, positive.
        tau: τ = 1/σ², positive.
        kernel: a name or a positive definite `Kernel`, as for `kernel_sum`.
        rank: of the preconditioner. If it is at least N, the system is solved directly and then refined.
        tol: the largest entry of the residual relative to the root mean square of y. None: 1e-8, or 1e-4 for float32.
        max_iter: the largest number of steps.
        progress: whether a bar of the steps is shown (needs tqdm); their number is not known beforehand.

    Attributes:
        X_fit_: the points, (N, D).
        dual_coef_: c, (N,) or (N, C).
        weights_: of the squared errors, (N,), or None if all are equal. α is divided by them.
        residual_: the largest ‖y - (K + αI) c‖ / ‖y‖ of a column of y, computed from the solution.
        n_iter_: the number of steps taken.
        tau_: τ.
        n_features_in_: D.

    Raises:
        ImportError: by `fit`, if lineax is not installed.
        ValueError: by `fit`, if a parameter, the points, their values or weights are wrong.

    Warns:
        ConvergenceWarning: by `fit`, if the residual exceeds ten times `tol`: α is too small for the steps, the rank or
            the dtype.

    Precision:
        As for `KernelDensity`. For the smallest residual in float32 see `jaxgauss.lineax.gauss_operator`.

    Example:
        >>> import numpy as np
        >>> from jaxgauss.sklearn import KernelRidge
        >>> X = np.linspace(0, 6, 300)[:, None]
        >>> model = KernelRidge(alpha=1e-3).fit(X, np.sin(X[:, 0]))
        >>> bool(model.score(X, np.sin(X[:, 0])) > 0.99999)
        True

    References:
        Frangella, Tropp & Udell, "Randomized Nyström Preconditioning", 2021, arXiv:2110.02820.
    """

    _searches = False

    def __init__(
        self,
        alpha: float = 1.0,
        tau: float = 1.0,
        kernel: str | Kernel = "gauss",
        rank: int = 400,
        tol: float | None = None,
        max_iter: int = 1000,
        progress: bool = False,
    ):
        self.alpha = alpha
        self.tau = tau
        self.kernel = kernel
        self.rank = rank
        self.tol = tol
        self.max_iter = max_iter
        self.progress = progress

    def fit(self, X, y, sample_weight=None):
        """Solve for points X (N, D), their values y, (N,) or (N, C), and weights of the squared errors, (N,)."""
        self._check_kernel()
        check_positive(self._name, "alpha", self.alpha)
        for name in ("rank", "max_iter"):
            check_number(self._name, name, getattr(self, name))
        if self.tol is not None:
            check_positive(self._name, "tol", self.tol)
        X, y = self._validated(X, y)
        self._keep(X, sample_weight)
        kept, noise = np.arange(len(X)), np.asarray(self.alpha, X.dtype)
        if self.weights_ is not None:
            with np.errstate(divide="ignore", over="ignore"):
                noise = self.alpha / self.weights_
            (kept,) = (noise <= NEGLIGIBLE * max(1, noise.min())).nonzero()
            noise = np.minimum(noise[kept], np.finfo(X.dtype).max).astype(X.dtype)
        values = y.reshape(len(X), -1)[kept]
        self._exponents = exponent_of(values, 0)
        values = scaled(values, self._exponents, X.dtype)
        size = np.sqrt(np.square(values).mean(0))
        scale = np.where(size > 0, size, np.ones_like(size))
        tol = (1e-4 if X.dtype == np.float32 else 1e-8) if self.tol is None else float(self.tol)
        options = {"kernel": self.kernel, "rank": int(self.rank), "tol": tol, "steps": int(self.max_iter)}
        solve = functools.partial(_solution, counted=bool(self.progress), **options)
        with counting(self._name, "step") if self.progress else contextlib.nullcontext():
            tau = np.asarray(math.ldexp(self.tau_, 2 * self._unit), X.dtype)
            found = computed(solve, scaled(X[kept], self._unit), values / scale, tau, noise)
        coefficients, self.n_iter_, self.residual_ = found[0], int(found[1]), float(found[2])
        self._solution, self._shape = np.zeros((len(X), values.shape[1]), X.dtype), y.shape[1:]
        self._solution[kept] = coefficients * scale
        if not self.residual_ <= 10 * tol:
            warnings.warn(
                f"`jaxgauss.{self._name}`: conjugate gradients must come to a residual of tol {tol:.1e}; got"
                f" {self.residual_:.1e} after {self.n_iter_} steps. Pass a larger alpha, rank or tol, or float64 in X.",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    @property
    def dual_coef_(self) -> np.ndarray:
        """c, (N,) or (N, C)."""
        return np.ldexp(self._solution, self._exponents).reshape(-1, *self._shape)

    def predict(self, X) -> np.ndarray:
        """f at each row of X, (P,) or (P, C)."""
        check_is_fitted(self)
        return np.ldexp(self._summed(kernel_sum, X, self._solution), self._exponents).reshape(-1, *self._shape)


@functools.partial(jax.jit, static_argnames=("kernel", "rank", "tol", "steps", "counted"))
def _solution(
    points: Array, values: Array, tau: Array, noise: Array, *, kernel, rank: int, tol: float, steps: int, counted: bool
):
    """Solve (K + diag(noise)) c = v for v (N, C): c, the steps, and the largest relative residual."""
    with needed("jaxgauss.sklearn.KernelRidge", "lineax"):
        import lineax
    from .lineax import gauss_operator, nystrom_preconditioner

    operator = gauss_operator(points, tau, noise=noise, kernel=kernel)
    near = nystrom_preconditioner(operator, min(rank, len(points)), rng_key=jax.random.key(0))
    shape, tags = operator.in_structure(), lineax.positive_semidefinite_tag
    product: Any = lineax.FunctionLinearOperator(with_count(operator.mv), shape, tags) if counted else operator
    solver = lineax.CG(tol, tol, max_steps=steps, stabilise_every=None)

    def of_column(v: Array) -> tuple[Array, Array]:
        found = lineax.linear_solve(product, v, solver, options={"preconditioner": near}, throw=False)
        return found.value, found.stats["num_steps"]

    c, taken = jax.vmap(of_column, -1, (-1, 0))(values)
    residuals = values - jax.vmap(operator.mv, -1, -1)(c)
    norms = jnp.linalg.norm(residuals, axis=0) / jnp.maximum(jnp.linalg.norm(values, axis=0), 1)
    return c, taken.max(), norms.max()
