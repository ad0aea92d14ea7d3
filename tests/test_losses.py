"""Losses that people write by hand: to the normal distribution, uniformity and alignment, energies of a kept target."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from formulas import form, gradients, matrix, tensors
from jaxgauss import alignment, embedding_norm_squared, energy_distance, mmd_squared, mmd_squared_to_normal, uniformity
from oracle import assert_close, relative_error

ONE, SEVERAL = np.asarray(0.7), np.asarray([0.2, 0.7, 3.0])


def to_normal(x, a, tau, *, estimator="biased"):
    """MMD² to N(0, I), with full matrices."""
    dim, taus = x.shape[1], tau.reshape(-1, 1)
    cross = (1 + taus) ** (-dim / 2) * torch.exp(-taus / (1 + taus) / 2 * x.square().sum(-1))
    return form(matrix("gauss", x, x, tau), a, estimator) - 2 * cross.mean(0) @ a + (1 + 2 * taus).pow(-dim / 2).mean()


def uniform(x, a, tau):
    """The logarithm of the mean over i ≠ j; smallest exponents are subtracted before."""
    u = tau.reshape(-1, 1, 1) * (x[:, None] - x).square().sum(-1)
    a = a / a.sum()
    logs = torch.where(torch.eye(len(x)) > 0, -torch.inf, (a[:, None] * a).log() - u / 2)
    return logs.logsumexp((0, 1, 2)) - np.log(len(u)) - (1 - a.square().sum()).log()


def aligned(x, y, a, *, power):
    squared = (x - y).square().sum(-1)
    return torch.where(squared > 0, torch.where(squared > 0, squared, 1) ** (power / 2), 0) @ a / a.sum()


def sines(function):
    def of_loss(*operands):
        found = function(*operands)
        return jnp.sin(found).sum(), found

    return jax.jit(jax.value_and_grad(of_loss, tuple(range(3)), has_aux=True))


@pytest.mark.parametrize("estimator", ["biased", "unbiased"])
@pytest.mark.parametrize("dim, tau", [(1, ONE), (3, SEVERAL), (9, ONE)])
def test_mmd_to_normal_is_the_formula(rng, estimator, dim, tau):
    x, a = rng.normal(size=(37, dim)) + 0.3, rng.uniform(size=37)
    operands = [jnp.asarray(z) for z in (x, a / a.sum(), tau)]
    (_, value), found = sines(lambda x, a, t: mmd_squared_to_normal(x, t, weights=a, estimator=estimator))(*operands)
    assert relative_error(value, to_normal(*tensors(*operands), estimator=estimator)) < 1e-11
    assert_close(found, gradients(lambda *z: to_normal(*z, estimator=estimator), operands), 1e-10)


def test_mmd_to_normal_is_that_of_a_quadrature(rng):
    """Gauss-Hermite nodes stand for the normal distribution; of N points it is the statistic of Henze and Zirkler."""
    x = rng.normal(size=(20, 1)) - 0.5
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    expected = mmd_squared(x, nodes[:, None], 0.7, y_weights=weights / weights.sum())
    assert relative_error(mmd_squared_to_normal(x, 0.7), expected) < 1e-11
    beta = (3 * 20 / 4) ** (1 / 5) / np.sqrt(2)
    assert relative_error(mmd_squared_to_normal(x), mmd_squared_to_normal(x, beta**2)) < 1e-13


def test_mmd_to_normal_of_far_points_and_coarse_numbers(rng):
    """Not centered: far points are far from the normal distribution, in NumPy's float64, too."""
    x = rng.normal(size=(30, 3))
    with jax.enable_x64(False):
        far = float(mmd_squared_to_normal(x + 1e9, 0.7))
        assert far == pytest.approx(float(embedding_norm_squared(x, 0.7)) + 2.4**-1.5, rel=1e-5)
    half = jnp.asarray(x, "float16")
    assert mmd_squared_to_normal(half, 0.7).dtype == jnp.float16
    exact = to_normal(*tensors(half, np.full(30, 1 / 30), ONE))
    assert float(mmd_squared_to_normal(half, 0.7)) == pytest.approx(float(exact), abs=1e-3 * 0.2)
    single = jnp.asarray(x + np.asarray([0, 0, 3]), "float32")
    exact = to_normal(*tensors(single, np.full(30, 1 / 30), ONE))
    assert float(mmd_squared_to_normal(single, 0.7)) == pytest.approx(float(exact), abs=1e-6 * 0.5)


@pytest.mark.parametrize("scale", [0, 0.1, 1, 30, 1e4])
@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-11), ("float32", 2e-5)])
def test_uniformity_of_near_and_sparse_points(rng, scale, dtype, tolerance):
    """On a sphere, equal, and so far apart that every term underflows; with gradients."""
    x = rng.normal(size=(23, 3))
    x = scale * x / np.linalg.norm(x, axis=1, keepdims=True)
    operands = [jnp.asarray(z, dtype) for z in (x, rng.uniform(0.5, 1, size=23), SEVERAL)]
    of_all = jax.jit(jax.value_and_grad(lambda x, a, t: uniformity(x, t, weights=a), (0, 1, 2)))
    value, slopes = of_all(*operands)
    assert value.dtype == dtype
    exact = float(uniform(*tensors(*operands)))
    assert abs(float(value) - exact) <= (1e-12 if dtype == "float64" else 2e-6) * (1 + abs(exact))
    given = [z.requires_grad_() for z in tensors(*operands)]
    expected = torch.autograd.grad(uniform(*given), given)
    for one, other in zip(slopes, expected, strict=True):
        other = other.numpy()
        assert np.abs(np.asarray(one, float) - other).max() <= tolerance * max(np.abs(other).max(), 1e-3)


def test_uniformity_on_every_way(rng, monkeypatch):
    """Of too many points to look at, as logarithms; and of pairs, one of which is all that is seen."""
    for num, most in ((19, 2**14), (18, 4)):  # each of a shape that no other test compiles for
        monkeypatch.setattr("jaxgauss._sums.distinct.MOST", most)
        x = rng.normal(size=(num, 2))
        expected = float(uniform(*tensors(x, np.ones(num), ONE)))
        assert float(uniformity(x, ONE)) == pytest.approx(expected, rel=1e-12)
    monkeypatch.undo()
    far = jnp.asarray([[0.0], [3e3], [3e3 + 0.5], [9e3]], "float32")
    assert float(uniformity(far, 1.0)) == pytest.approx(np.log(2 / 12) - 0.125, rel=1e-6)


@pytest.mark.parametrize("power", [1.0, 2.0, 3.5])
def test_alignment_is_the_formula(rng, power):
    x, y, a = rng.normal(size=(2, 3, 15, 4)), rng.normal(size=(15, 4)), rng.uniform(size=15)
    x[0, 0, 3] = y[3]  # a pair that coincides
    x = x[0]
    operands = [jnp.asarray(z) for z in (x, y, a)]
    (_, value), found = sines(lambda x, y, a: alignment(x, y, power=power, weights=a))(*operands)
    total = [np.zeros(z.shape) for z in (x, y, a)]
    for i in range(3):
        of_one = gradients(lambda *z: aligned(*z, power=power), (x[i], y, a))
        total = [total[0], total[1] + of_one[1], total[2] + of_one[2]]
        total[0][i] = of_one[0]
        assert relative_error(value[i], aligned(*tensors(x[i], y, a), power=power)) < 1e-13
    assert_close(found, total, 1e-12)


def test_alignment_of_huge_and_tiny_distances():
    x = jnp.asarray([[1e30, 0.0], [0.0, 3e-30]], "float32")
    assert np.allclose(alignment(x[:, None], jnp.zeros((1, 2), "float32"), power=1.0), [1e30, 3e-30], rtol=1e-6)


@pytest.mark.parametrize("estimator", ["biased", "unbiased"])
def test_energy_distance_of_a_kept_target(rng, estimator):
    x, y = rng.normal(size=(12, 2)), rng.normal(size=(3, 9, 2)) + 1
    kept = embedding_norm_squared(y, 1.0, kernel="energy", estimator=estimator)
    options = {"estimator": estimator}
    ours, whole = (lambda x, y, **o: energy_distance(x, y, **o, **options).sum() for _ in range(2))
    found = jax.value_and_grad(lambda x: ours(x, y, y_norm_squared=kept))(x)
    assert_close(found, jax.value_and_grad(lambda x: whole(x, y))(x), 1e-12)


def test_losses_under_vmap_and_twice_differentiated(rng):
    x = jnp.asarray(rng.normal(size=(3, 11, 2)))
    for loss in (uniformity, mmd_squared_to_normal):
        assert_close(jax.jit(jax.vmap(loss))(x), loss(x), 1e-13)
        hessian = jax.jacrev(jax.grad(lambda z: loss(z.reshape(11, 2), 0.7)))(x[0].ravel())  # noqa: B023
        assert relative_error(hessian, hessian.T) < 1e-10 and np.any(hessian)
