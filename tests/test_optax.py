"""SVGD in a chain of Optax transformations: updates are those of `svgd_direction`, and lead to a Gaussian."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxgauss import median_tau, svgd_direction
from jaxgauss.optax import scale_by_svgd


@pytest.fixture
def particles(rng):
    return jnp.asarray(rng.normal(size=(37, 5)))


def as_tree(flat):
    """Of the same order as `ravel_pytree`'s: a number and a matrix for each particle."""
    return {"bias": flat[:, 0], "layer": (flat[:, 1:].reshape(-1, 2, 2),)}


@pytest.mark.parametrize(
    "tau, form",
    [(0.7, as_tree), (np.array([0.2, 3.0]), jnp.asarray), ("median", as_tree)],
    ids=["one", "two", "median"],
)
def test_updates_are_minus_the_direction(particles, form, tau):
    gradients = jnp.sin(particles)
    update = jax.jit(scale_by_svgd(tau, kernel="imq").update)
    updates, state = update(form(gradients), optax.EmptyState(), form(particles))
    as_number = 2 * np.log(37) * median_tau(particles) if isinstance(tau, str) else tau
    expected = form(-svgd_direction(particles, -gradients, as_number, kernel="imq"))
    assert state == optax.EmptyState() == scale_by_svgd(tau).init(particles)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-14), updates, expected)


def test_a_chain_moves_particles_to_a_gaussian(as_it_comes, rng):
    mean, precision = jnp.array([3.0, -1.0]), jnp.array([[2.0, 0.6], [0.6, 0.5]])
    optimizer = optax.chain(scale_by_svgd(), optax.adam(optax.cosine_decay_schedule(0.3, 200)))
    x = jnp.asarray(rng.normal(size=(200, 2)))

    @jax.jit
    def train(x):
        def step(carry, _):
            x, state = carry
            gradients = jax.grad(lambda x: ((x - mean[None]) @ precision * (x - mean[None])).sum() / 2)(x)
            updates, state = optimizer.update(gradients, state, x)
            return (optax.apply_updates(x, updates), state), None

        return jax.lax.scan(step, (x, optimizer.init(x)), length=200)[0][0]

    x = train(x)
    np.testing.assert_allclose(x.mean(0), mean, atol=0.02)
    np.testing.assert_allclose(jnp.cov(x.T), jnp.linalg.inv(precision), atol=0.15)


def test_leaves_of_several_dtypes_keep_theirs(as_it_comes, particles):
    half, single = particles[:, :2].astype("float16"), particles[:, 2:].astype("float32")
    (of_half, of_single), _ = scale_by_svgd(1.0).update((half, single), optax.EmptyState(), (half, single))
    assert (of_half.dtype, of_single.dtype) == ("float16", "float32")
    both = jnp.concatenate([half.astype("float32"), single], 1)
    expected = -svgd_direction(both, -both, 1.0)
    np.testing.assert_allclose(of_single, expected[:, 2:], rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(of_half, expected[:, :2], rtol=1e-3, atol=1e-6)


def test_one_particle_descends():
    updates, _ = scale_by_svgd().update(jnp.ones((1, 3)), optax.EmptyState(), jnp.zeros((1, 3)))
    np.testing.assert_allclose(updates, np.ones((1, 3)))
