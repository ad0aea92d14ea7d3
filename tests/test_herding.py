"""Kernel herding: against a naive loop, the MMD that it reports, and random choice."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from formulas import kernel_matrix
from jaxgauss import kernel_herding
from oracle import attention_calls


def naive(x, w, num, unique, tau, kernel):
    """The points that are chosen, and the best weights of theirs."""
    matrix = kernel_matrix(x, tau=tau, kernel=kernel)
    embedding, chosen = matrix @ w, []
    for t in range(num):
        scores = embedding - matrix[:, chosen].sum(1) / (t + 1)
        if unique:
            scores[chosen] = -np.inf
        chosen.append(int(scores.argmax()))
    return chosen, np.linalg.solve(matrix[np.ix_(chosen, chosen)], embedding[chosen]) if unique else None


def mmd(matrix, chosen, weights, w):
    """That of these points, weighted so, from all."""
    signed = -np.asarray(w, np.float64)
    np.add.at(signed, np.asarray(chosen), np.asarray(weights, np.float64))
    return (signed @ matrix @ signed) ** 0.5


@pytest.mark.parametrize("kernel, tau, unique", [("gauss", 2.0, False), ("matern32", np.array([0.5, 8.0]), True)])
def test_points_are_those_of_a_naive_loop(rng, kernel, tau, unique):
    x, w = rng.normal(size=(60, 2)), rng.uniform(size=60)
    found = jax.jit(lambda x, w: kernel_herding(x, tau, 20, kernel=kernel, weights=w, unique=unique))(x, w)
    w, matrix = w / w.sum(), kernel_matrix(x, tau=tau, kernel=kernel)
    indices, weights = naive(x, w, 20, unique, tau, kernel)
    assert found.indices.tolist() == indices
    each = [mmd(matrix, indices[:num], 1 / num, w) for num in range(1, 21)]
    np.testing.assert_allclose(found.mmd, each, rtol=1e-9)
    assert weights is None or np.abs(found.weights - weights).max() < 1e-6
    best = mmd(matrix, indices, found.weights, w)
    assert float(found.weighted_mmd) == pytest.approx(best, rel=1e-6) and found.weighted_mmd < found.mmd[-1]


def test_it_follows_faster_than_chance(rng):
    """Like 1/t, where random points follow like 1/√t."""
    x = rng.normal(size=(3000, 2)).astype("float32")
    found, matrix, w = kernel_herding(x, 1.0, 200), kernel_matrix(x), np.full(3000, 1 / 3000)
    by_chance = np.median([mmd(matrix, rng.choice(3000, 200, replace=False), 1 / 200, w) for _ in range(9)])
    assert float(found.mmd[199]) < by_chance / 5
    slope = np.polyfit(np.log(np.arange(10, 201)), np.log(np.asarray(found.mmd[9:])), 1)[0]
    assert slope < -0.75
    assert found.mmd.dtype == jnp.float32 and found.weighted_mmd < found.mmd[-1] / 2


@pytest.mark.parametrize("dim", [1, 2])
def test_weights_of_float32_are_what_they_say(rng, dim):
    """The matrix is singular to float32: weights of a million would fit what its embedding is rounded by."""
    x = rng.normal(size=(500, 2)).astype("float32") * np.arange(2, dtype="float32") ** (2 - dim)
    found = kernel_herding(x, 1.0, 50)
    exact = mmd(kernel_matrix(x), found.indices, found.weights, np.full(500, 1 / 500))
    assert float(found.weighted_mmd) == pytest.approx(exact, rel=0.1)
    assert found.weighted_mmd < found.mmd[-1] / 2 and np.abs(found.weights).max() < 100


def test_equal_points_and_vmap(rng):
    """The matrix of equal points is singular: the weights are finite, and as good as can be."""
    x = np.concatenate([rng.normal(size=(2, 32, 2)), np.ones((1, 32, 2))])
    found = jax.vmap(lambda x: kernel_herding(x, 1.0, 4))(x)
    expected = [naive(z, np.full(32, 1 / 32), 4, True, 1.0, "gauss")[0] for z in x[:2]]
    assert found.indices[:2].tolist() == expected
    assert np.isfinite(found.weights).all() and float(found.weighted_mmd[2]) < 1e-6 and not found.mmd[2].any()


def test_in_jit_of_float32(rng, as_it_comes):
    """Where JAX has no float64 but what herding asks for."""
    x = rng.normal(size=(60, 2))
    found = jax.jit(lambda x: kernel_herding(x, 2.0, 20))(x.astype("float32"))
    assert found.indices.tolist() == naive(x, np.full(60, 1 / 60), 20, True, 2.0, "gauss")[0]


def test_number_of_attention_calls():
    x = jax.ShapeDtypeStruct((32, 4), "float32")
    assert attention_calls(lambda x: kernel_herding(x, 1.0, 5, engine="rescale"), x) == 1
