"""What the sum is, in NumPy float64 and by differences: independent of everything under test."""

import re
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from scipy.spatial.distance import cdist

SIZES = [(1, 1, 1, 1), (7, 5, 3, 2), (113, 203, 59, 1), (64, 33, 8, 9)]  # M, N, D, C


class Problem(NamedTuple):
    """A Gauss sum to compute, and the cotangent of its result."""

    queries: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    tau: np.ndarray
    cotangent: np.ndarray

    @property
    def operands(self) -> tuple[np.ndarray, ...]:
        return self[:4]


def problem(rng: np.random.Generator, m=13, n=17, d=3, c=2, *, tau=0.7, dtype="float64", positive=False) -> Problem:
    """Gaussian points scaled by D^-1/2."""
    queries, keys = rng.normal(size=(m, d)) / d**0.5, rng.normal(size=(n, d)) / d**0.5
    values, g = rng.normal(size=(n, c)), rng.normal(size=(m, c))
    values = np.abs(values) if positive else values
    return Problem(*(x.astype(dtype) for x in (queries, keys, values, np.asarray(tau), g)))


def gauss_sum64(queries, keys, values, tau) -> np.ndarray:
    """Σ_n exp(-τ/2 ‖q_m - k_n‖²) v_n in float64, from differences."""
    queries, keys, values, tau = (np.asarray(x, np.float64) for x in (queries, keys, values, tau))
    if queries.ndim == keys.ndim == 2:
        squared = cdist(queries, keys, "sqeuclidean")
    else:
        squared = np.square(queries[..., :, None, :] - keys[..., None, :, :]).sum(-1)
    return np.exp(-tau[..., None, None] / 2 * squared) @ values


def relative_error(result, exact) -> float:
    """‖result - exact‖₂ / ‖exact‖₂."""
    result, exact = np.asarray(result, np.float64), np.asarray(exact, np.float64)
    assert result.shape == exact.shape, (result.shape, exact.shape)
    return float(np.linalg.norm(result - exact) / max(np.linalg.norm(exact), 1e-300))


def assert_gradients_close(ours, exact, case, tolerance: float) -> None:
    """The same of the gradients of queries, keys, values and τ; of the last one relative to the terms that it sums.

    dτ = (Σ q·dq + Σ k·dk) / 2τ, about a center: signed numbers, which cancel.
    """
    assert_close(ours[:3], exact[:3], tolerance)
    center = case.keys.mean(-2, keepdims=True)
    slopes = ((x - center) * np.asarray(dx) for x, dx in zip(case[:2], exact[:2], strict=True))
    terms = sum(np.abs(x.sum(-1)).sum(-1) for x in slopes) / (2 * case.tau)
    assert np.all(np.abs(np.asarray(ours[3]) - np.asarray(exact[3])) <= tolerance * terms)


def assert_close(results, exact, tolerance: float) -> None:
    """Every result within a relative L2 error of its exact counterpart, and of its shape."""
    assert len(results) == len(exact)
    errors = [relative_error(x, y) for x, y in zip(results, exact, strict=True)]
    assert max(errors) <= tolerance, errors


def attention_calls(function: Callable, *operands) -> int:
    """How many calls of an attention kernel a program has; not of those in float64, for points out of reach."""
    lines = jax.jit(function).lower(*operands).compile().as_text().splitlines()
    calls = [x for x in lines if re.search(r'custom_call_target="xla_\w*buffer', x)]
    return sum("f64[" not in x and "/float64/" not in x for x in calls)
