"""What the estimators of scikit-learn that sum a kernel over training points have in common."""

import functools
import math
import numbers
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ._arrays.points import padded
from ._checks.operands import check_tau
from ._checks.optional import needed
from ._checks.samples import check_kernel
from ._kernels.kernels import Kernel
from ._methods.leave_one_out import leave_one_out_tau

with needed("jaxgauss.sklearn", "scikit-learn"):
    from sklearn.base import BaseEstimator
    from sklearn.utils import check_array
    from sklearn.utils.validation import check_consistent_length, validate_data

DTYPES = (np.float64, np.float32)  # of stored data and of sums; other dtypes become the first
LEAVE_ONE_OUT = "leave_one_out"
STEP = 32  # units are powers of 2³²: ordinary numbers stay as they are


class KernelEstimator(BaseEstimator):
    """Base class: τ and a kernel, training points with weights, and sums over them.

    Sums see points in units in which τ is ordinary, and values and weights in units in which their largest are.
    """

    tau: Any
    kernel: Any
    X_fit_: np.ndarray
    weights_: np.ndarray | None
    tau_: float
    _searches = True  # whether τ may be "leave_one_out"

    @property
    def _name(self) -> str:
        return f"sklearn.{type(self).__name__}"

    @property
    def _tau(self) -> Any:
        """τ as it was given, or what stands for it."""
        return self.tau

    def _check_kernel(self) -> Kernel:
        """The kernel; ValueError or TypeError if it or τ cannot be used."""
        where, tau = f"`jaxgauss.{self._name}`", self._tau
        if not (self._searches and isinstance(tau, str) and tau == LEAVE_ONE_OUT):
            if isinstance(tau, bool) or not isinstance(tau, numbers.Real):
                names = f" or {LEAVE_ONE_OUT!r}" if self._searches else ""
                raise ValueError(
                    f"{where}: `tau` must be a positive number{names}; got tau {tau!r}. Pass 1 / sigma**2."
                )
            check_tau(where, float(tau), np.dtype(np.float64))
        return check_kernel(self._name, self.kernel, positive=True)

    def _validated(self, X: Any, *y: Any) -> tuple[np.ndarray, np.ndarray]:
        """Points, and floating values if given; ValueError if there are none, or if their numbers differ."""
        found: Any = validate_data(
            self, X, *y, dtype=DTYPES, **({"multi_output": True, "y_numeric": True} if y else {})
        )
        return (found[0], found[1].astype(np.result_type(*found, np.float32))) if y else (found, found)

    def _keep(self, X: np.ndarray, sample_weight: Any, values: np.ndarray | None = None) -> None:
        """Store training points, their weights and τ."""
        self.X_fit_ = X
        self.weights_ = None if sample_weight is None else self._checked_weights(sample_weight)
        if self._tau == LEAVE_ONE_OUT:
            if len(X) < 2:
                raise ValueError(
                    f"`jaxgauss.{self._name}`: `X` must have 2 rows at least; got X {X.shape}. Pass tau=1.0."
                )
            search = functools.partial(leave_one_out_tau, kernel=self.kernel)
            given = {"values": values, "weights": self.weights_}
            given = {name: x if x is None else scaled(x, exponent_of(x), X.dtype) for name, x in given.items()}
            exponent = exponent_of(X / 2 - X[0] / 2)
            found = computed(lambda *x, **more: search(*x, **more).tau, scaled(X, exponent), **given)
            with np.errstate(over="ignore", under="ignore"):
                self.tau_ = float(np.ldexp(np.float64(found), -2 * exponent))
            if not 0 < self.tau_ < math.inf:
                raise ValueError(
                    f"`jaxgauss.{self._name}`: the best `tau` must lie in the range of float64; got tau {self.tau_}."
                    " Pass X in other units."
                )
        else:
            self.tau_ = float(self._tau)

    def _checked_weights(self, sample_weight: Any) -> np.ndarray:
        X = self.X_fit_
        if isinstance(sample_weight, numbers.Real):
            sample_weight = np.full(len(X), sample_weight)
        weights = check_array(sample_weight, ensure_2d=False, input_name="sample_weight").astype(np.float64)
        check_consistent_length(X, weights)
        if weights.ndim != 1:
            raise ValueError(
                f"`jaxgauss.{self._name}`: `sample_weight` must be one-dimensional; got sample_weight {weights.shape}."
                " Pass one weight for each row of X."
            )
        if not (weights.min() >= 0 and weights.max() > 0):
            raise ValueError(
                f"`jaxgauss.{self._name}`: `sample_weight` must not be negative, nor all zero; got weights from"
                f" {weights.min()} to {weights.max()}. Leave out points of no weight."
            )
        return weights

    def _summed(self, function: Callable[..., Array], X: Any, *operands: np.ndarray, **more: np.ndarray) -> np.ndarray:
        """Apply a function to points and training points, padded to few lengths; operands are padded with zeros."""
        X = validate_data(self, X, dtype=self.X_fit_.dtype, reset=False)
        others = (padded(x, "constant") for x in operands)
        function = functools.partial(function, tau=math.ldexp(self.tau_, 2 * self._unit), kernel=self.kernel)
        points = (padded(scaled(x, self._unit)) for x in (X, self.X_fit_))
        return computed(function, *points, *others, **more)[: len(X)]

    @property
    def _unit(self) -> int:
        """The exponent of the unit of points."""
        return -STEP * round(math.frexp(self.tau_)[1] / (2 * STEP))

    def _padded_weights(self) -> np.ndarray:
        weights = np.ones(len(self.X_fit_)) if self.weights_ is None else self.weights_
        return padded(scaled(weights, exponent_of(weights), self.X_fit_.dtype), "constant")


def exponent_of(numbers: np.ndarray, axis: int | None = None) -> Any:
    """The exponent of a power of 2³² near the largest of numbers, of all or of each column."""
    return (STEP * np.round(np.frexp(np.abs(numbers).max(axis))[1] / STEP)).astype(np.int32)


def scaled(numbers: np.ndarray, exponent: Any, dtype: Any = None) -> np.ndarray:
    """Numbers divided by a power of two, then in a dtype; those that become too large stay at the end of the range."""
    most = np.finfo(numbers.dtype).max
    with np.errstate(over="ignore", under="ignore"):
        return np.clip(np.ldexp(numbers, -exponent), -most, most).astype(dtype or numbers.dtype)


def computed(function: Callable[..., Any], *arrays: np.ndarray, **more: np.ndarray | None) -> Any:
    """Call a function in the dtype of its NumPy arrays, with JAX's default promotion; return new arrays."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        given = {name: None if x is None else jnp.asarray(x) for name, x in more.items()}
        return jax.tree.map(np.array, function(*map(jnp.asarray, arrays), **given))
