"""What the sum is, in NumPy float64 and by differences: independent of everything under test."""

import re
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
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
    return np.exp(-tau[..., None, None] / 2 * squared64(queries, keys)) @ values


def squared64(queries, keys) -> np.ndarray:
    """‖q_m - k_n‖²."""
    if queries.ndim == keys.ndim == 2:
        return cdist(queries, keys, "sqeuclidean")
    return np.square(queries[..., :, None, :] - keys[..., None, :, :]).sum(-1)


def in_plain_jax(queries, keys, values, tau=1.0) -> jax.Array:
    """The same in JAX, with JAX's own derivatives: what transformations of our functions are compared with."""
    squared = jnp.square(queries[..., :, None, :] - keys[..., None, :, :]).sum(-1)
    return jnp.matmul(jnp.exp(-jnp.asarray(tau)[..., None, None] / 2 * squared), values, precision="highest")


def gradients64(queries, keys, values, tau, g) -> list[np.ndarray]:
    """Those of Σ_m ⟨g_m, s_m⟩ in float64, in queries, keys, values and τ; leading axes broadcast."""
    queries, keys, values, tau, g = (np.asarray(x, np.float64) for x in (queries, keys, values, tau, g))
    squared, t = squared64(queries, keys), tau[..., None, None]
    phi = np.exp(-t / 2 * squared)
    w = phi * (g @ values.mT)
    slopes = (
        t * (w @ keys - w.sum(-1)[..., None] * queries),
        t * (w.mT @ queries - w.sum(-2)[..., None] * keys),
        phi.mT @ g,
        -(w * squared).sum((-2, -1)) / 2,
    )
    return [of_shared(x, y.shape) for x, y in zip(slopes, (queries, keys, values, tau), strict=True)]


def of_shared(slope: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Summed over the axes that an array of this shape has been broadcast along."""
    slope = slope.sum(tuple(range(slope.ndim - len(shape))))
    return slope.sum(tuple(i for i, size in enumerate(shape) if size == 1 != slope.shape[i]), keepdims=True)


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
    assert all(x <= tolerance for x in errors), errors  # false for NaN, unlike a comparison of their maximum


def with_gradients(function: Callable) -> Callable:
    """Of operands and a cotangent: what the function gives for them, and its pullback; compiled once for each shape."""

    def run(*operands):
        *operands, g = operands
        value, pullback = jax.vjp(function, *operands)
        return value, pullback(g)

    return jax.jit(run)


def attention_calls(function: Callable, *operands) -> int:
    """How many calls of an attention kernel a program has; not of those in float64, nor of what runs apart."""
    lines = jax.jit(function).lower(*operands).compile().as_text().splitlines()
    calls = [x for x in lines if re.search(r'custom_call_target="xla_\w*buffer', x)]
    return sum("f64[" not in x and "/float64/" not in x and "jaxgauss:apart" not in x for x in calls)
