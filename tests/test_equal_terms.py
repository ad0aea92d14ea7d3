"""Errors that do not average: sums of many equal terms, whose roundings all go one way."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgauss

N = 20_000


@pytest.fixture
def points(monkeypatch):
    monkeypatch.setattr("jaxgauss._engines.nufft.is_installed", lambda: False)  # by products
    return jnp.asarray(np.random.default_rng(0).normal(size=(N, 1)), "float32")


def exact(queries, points, tau):
    squared = np.square(np.float64(queries) - np.float64(points)[:, 0])
    return np.exp(-tau / 2 * squared).mean(1)


def test_equal_weights_keep_their_digits(points):
    """As sums, as a sketch, and as the norm of an embedding; `estimate_error` looks at these very sums."""
    weights, some = jnp.full(N, np.float32(1 / N)), points[::100]
    sums = np.float64(jaxgauss.gauss_sum(points, points, weights, 1.0))
    right = exact(some, points, 1.0)
    assert np.linalg.norm(sums[::100] - right) < 5e-7 * np.linalg.norm(right)
    estimate = jaxgauss.estimate_error(points, points, weights, 1.0, rng_key=jax.random.key(0))
    given = jaxgauss.estimate_error(points, points, weights, 1.0, rng_key=jax.random.key(0), sums=jnp.float32(sums))
    np.testing.assert_allclose(estimate, given, rtol=1e-4)
    sketch = jaxgauss.fourier_sketch(points, weights, 1.0)
    assert np.abs(np.float64(sketch(some)) - right).max() < 1e-6 * right.max()
    norm = jaxgauss.embedding_norm_squared(points, 1.0)
    assert abs(float(norm) - sums.mean()) < 1e-6
