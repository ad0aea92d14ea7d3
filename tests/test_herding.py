"""Kernel herding: against a naive loop, the MMD that it reports, and random choice."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from formulas import kernel_matrix
from jaxgauss import kernel_herding, mmd_squared
from oracle import attention_calls


def naive(x, w, num, unique, tau, kernel):
    matrix = kernel_matrix(x, tau=tau, kernel=kernel)
    embedding, chosen = matrix @ w, []
    for t in range(num):
        scores = embedding - matrix[:, chosen].sum(1) / (t + 1)
        if unique:
            scores[chosen] = -np.inf
        chosen.append(int(scores.argmax()))
    return chosen, np.linalg.solve(matrix[np.ix_(chosen, chosen)], embedding[chosen]) if unique else None


@pytest.mark.parametrize(
    "kernel, tau, unique",
    [("gauss", 2.0, False), ("gauss", np.array([0.5, 8.0]), True), ("matern32", 1.0, True), ("matern32", 2.0, False)],
)
def test_points_are_those_of_a_naive_loop(rng, kernel, tau, unique):
    x, w = rng.normal(size=(60, 2)), rng.uniform(size=60)
    found = jax.jit(lambda x, w: kernel_herding(x, tau, 20, kernel=kernel, weights=w, unique=unique))(x, w)
    indices, weights = naive(x, w / w.sum(), 20, unique, tau, kernel)
    assert found.indices.tolist() == indices
    for num in (1, 7, 20):
        exact = mmd_squared(x[indices[:num]], x, tau, kernel=kernel, y_weights=w / w.sum())
        assert float(found.mmd[num - 1]) == pytest.approx(float(exact) ** 0.5, rel=1e-9)
    if weights is not None:
        assert np.abs(found.weights - weights).max() < 1e-6
    options = {"x_weights": found.weights, "y_weights": w / w.sum(), "kernel": kernel}
    best = float(mmd_squared(x[indices], x, tau, **options))
    assert float(found.weighted_mmd) == pytest.approx(best**0.5, rel=1e-6)
    assert found.weighted_mmd < found.mmd[-1]


def test_it_follows_faster_than_chance(rng):
    """Like 1/t, where random points follow like 1/√t."""
    x = jnp.asarray(rng.normal(size=(3000, 2)), jnp.float32)
    found = kernel_herding(x, 1.0, 200)
    by_chance = np.median(
        [float(mmd_squared(x[rng.choice(3000, 200, replace=False)], x, 1.0)) ** 0.5 for _ in range(9)]
    )
    assert float(found.mmd[199]) < by_chance / 5
    slope = np.polyfit(np.log(np.arange(10, 201)), np.log(np.asarray(found.mmd[9:])), 1)[0]
    assert slope < -0.75
    assert found.mmd.dtype == jnp.float32 and found.weighted_mmd < found.mmd[-1] / 2


@pytest.mark.parametrize("dim, num", [(1, 30), (2, 50)])
def test_weights_of_float32_are_what_they_say(rng, dim, num):
    """The matrix is singular to float32: weights of a million would fit what its embedding is rounded by."""
    x = rng.normal(size=(500, dim)).astype(np.float32)
    found = kernel_herding(x, 1.0, num)
    signed = np.full(len(x), -1 / len(x))
    np.add.at(signed, np.asarray(found.indices), np.float64(found.weights))
    exact = (signed @ kernel_matrix(x) @ signed) ** 0.5
    assert float(found.weighted_mmd) == pytest.approx(exact, rel=0.1)
    assert found.weighted_mmd < found.mmd[-1] / 2 and np.abs(found.weights).max() < 100


def test_equal_points_and_vmap(rng):
    """Their matrix is singular: the weights are finite, and as good as can be."""
    found = kernel_herding(jnp.ones((5, 2)), 1.0, 4)
    assert np.isfinite(found.weights).all() and float(found.weighted_mmd) < 1e-6 and not found.mmd.any()
    x = jnp.asarray(rng.normal(size=(3, 30, 2)))
    together = jax.vmap(lambda x: kernel_herding(x, 1.0, 5).indices)(x)
    assert together.tolist() == [kernel_herding(z, 1.0, 5).indices.tolist() for z in x]


def test_in_jit_of_float32(rng, as_it_comes):
    """Where JAX has no float64 but what herding asks for."""
    x = rng.normal(size=(60, 2))
    found = jax.jit(lambda x: kernel_herding(x, 2.0, 20))(x.astype("float32"))
    assert found.indices.tolist() == naive(x, np.full(60, 1 / 60), 20, True, 2.0, "gauss")[0]


def test_number_of_attention_calls():
    x = jax.ShapeDtypeStruct((32, 4), "float32")
    assert attention_calls(lambda x: kernel_herding(x, 1.0, 5, method="rescale"), x) == 1
