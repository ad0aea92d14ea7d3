"""Leading axes of kernel methods: each element of a batch is what the method is of it alone."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from formulas import exact, exact_gradients
from jaxgauss import (
    embedding_norm_squared,
    energy_distance,
    explain,
    gauss_sum,
    hsic,
    kde_logpdf,
    kde_score,
    ksd_squared,
    median_tau,
    mmd_estimate,
    mmd_flow_velocity,
    mmd_squared,
    mmd_witness,
    svgd_direction,
)
from oracle import assert_close, relative_error

# of x (…, 12, D), y (…, 8, D), a (…, 12), b (…, 8) and τ (…, T)
METHODS = {
    "mmd": lambda x, y, a, b, tau, **o: mmd_squared(x, y, tau, x_weights=a, y_weights=b, **o),
    "norm": lambda x, y, a, b, tau, **o: embedding_norm_squared(x, tau, weights=a, **o),
    "witness": lambda x, y, a, b, tau, **o: mmd_witness(y + 1, x, y, tau, x_weights=a, y_weights=b, **o),
    "flow": lambda x, y, a, b, tau, **o: mmd_flow_velocity(x, y, tau, x_weights=a, y_weights=b, **o),
    "svgd": lambda x, y, a, b, tau, **o: svgd_direction(y, x[..., :8, :], tau, **o),
    "ksd": lambda x, y, a, b, tau, **o: ksd_squared(y, x[..., :8, :], tau, weights=b, **o),
    "logpdf": lambda x, y, a, b, tau, **o: kde_logpdf(x, y, tau, weights=b, **o),
    "score": lambda x, y, a, b, tau, **o: kde_score(x, y, tau, weights=b, **o),
}
OTHERS = {
    "energy": lambda x, y, a, b, tau: energy_distance(x, y, x_weights=a, y_weights=b, normalize=True),
    "unbiased energy": lambda x, y, a, b, tau: energy_distance(x, y, estimator="unbiased"),
    "hsic": lambda x, y, a, b, tau: hsic(x[..., :8, :], y, tau, tau, weights=b),
    "unbiased hsic": lambda x, y, a, b, tau: hsic(x[..., :8, :], y, tau, 0.7, weights=b, estimator="unbiased"),
    "estimate": lambda x, y, a, b, tau: mmd_estimate(x, y, tau),
    "median": lambda x, y, a, b, tau: median_tau(x),
    "imq": lambda x, y, a, b, tau: mmd_squared(x, y, tau, x_weights=a, kernel="imq", normalize=True),
    "matern12": lambda x, y, a, b, tau: mmd_flow_velocity(x, y, tau, kernel="matern12"),
}
EVERY = (0, 1, 2, 3, 4)
LEADING = (2, 1), (3,), (), (1,), (2, 1)  # of each operand: together (2, 3)


def batch(rng, leading=LEADING, dim=3):
    shapes = (12, dim), (8, dim), (12,), (8,), (2,)
    x, y, a, b, tau = (rng.uniform(0.1, 1, size=(*axes, *shape)) for axes, shape in zip(leading, shapes, strict=True))
    return [jnp.asarray(z) for z in (3 * x, 3 * y, a / a.sum(-1, keepdims=True), b / b.sum(-1, keepdims=True), tau)]


def elements(operands, leading=LEADING):
    """Each element's operands, by its place in the batch."""
    size = np.broadcast_shapes(*leading)
    for place in np.ndindex(size):
        own = [place[len(size) - len(axes) :] for axes in leading]
        own = [tuple(min(i, n - 1) for i, n in zip(x, axes, strict=True)) for x, axes in zip(own, leading, strict=True)]
        yield place, own, [x[i] for x, i in zip(operands, own, strict=True)]


def at(found, place):
    """The place in a batch of results, which has an axis of length one where the method takes none that is longer."""
    return tuple(min(i, n - 1) for i, n in zip(place, found.shape, strict=False))


@pytest.mark.parametrize("name", METHODS)
def test_a_batch_and_its_gradients_are_those_of_the_formula(rng, name):
    """Axes broadcast; what a batch shares gets the sum of the gradients."""
    leading = [() if name == "norm" and i in (1, 3) else axes for i, axes in enumerate(LEADING)]
    operands = batch(rng, leading)

    def sines(*operands):
        found = METHODS[name](*operands)
        return jnp.sin(found).sum(), found

    (_, found), gradients = jax.jit(jax.value_and_grad(sines, EVERY, has_aux=True))(*operands)
    total = [np.zeros(x.shape) for x in operands]
    for place, own, element in elements(operands, leading):
        assert relative_error(found[place], exact(name, element)) < 1e-11
        for gradient, i, part in zip(total, own, exact_gradients(name, element), strict=True):
            gradient[i] += part
    assert_close(gradients, total, 1e-10)


@pytest.mark.parametrize("name", [*METHODS, *OTHERS])
def test_a_batch_is_a_loop_and_a_map(rng, name):
    """Eagerly, and as the batch of a batch, in which some operands are shared."""
    method, operands = (METHODS | OTHERS)[name], batch(rng)
    found = method(*operands)
    for place, _, element in elements(operands):
        there = [x[at(x, place)] for x in jax.tree.leaves(found)]
        assert_close(there, jax.tree.leaves(method(*element)), 1e-11)
    x, *others = operands
    mapped = jax.jit(jax.vmap(method, (0, None, None, None, None)))(jnp.stack([x, 2 * x]), *others)
    assert_close([z[0] for z in jax.tree.leaves(mapped)], jax.tree.leaves(found), 1e-12)


@pytest.mark.parametrize("estimator", ["biased", "unbiased"])
@pytest.mark.parametrize("name", ["mmd", "ksd", "norm"])
def test_a_batch_of_hostile_points(rng, monkeypatch, name, estimator):
    """Near, sparse, equal and far from one another; in float32, of which the sparse take a program of their own.

    It computes some elements of the batch at a time.
    """
    monkeypatch.setattr("jaxgauss._engines.programs.PAIRS", 300)
    leading, far = ((4,), (4,), (), (), (4,)), 3.0 if name == "ksd" else 1e3  # scores of KSD are points
    x, y, a, b, tau = batch(rng, leading)
    scale, offset = (jnp.asarray(z)[:, None, None] for z in ([1, 5, 0, 1.0], [0, 0, 1, far]))
    operands = [jnp.asarray(z, jnp.float32) for z in (x * scale + offset, y * scale, a, b, tau)]

    def sines(*operands):
        found = METHODS[name](*operands, estimator=estimator)
        return jnp.sin(found).sum(), found

    (_, found), gradients = jax.jit(jax.value_and_grad(sines, EVERY, has_aux=True))(*operands)
    shared = [np.zeros(12), np.zeros(8)]
    for (i,), _, element in elements(operands, leading):
        assert relative_error(found[i], exact(name, element, estimator=estimator)) < 1e-5
        d_x, d_y, d_a, d_b, _ = exact_gradients(name, element, estimator=estimator)
        shared = [shared[0] + d_a, shared[1] + d_b]
        size = max(np.abs(d_x).max(), np.abs(d_y).max())
        errors = [np.abs(np.asarray(g[i], float) - d).max() for g, d in zip(gradients, (d_x, d_y), strict=False)]
        assert max(errors) <= 2e-5 * size
    assert_close(gradients[2:4], shared, 2e-5)


def test_elements_take_their_own_bandwidths(rng):
    """A median for each; several for all of a batch that is as long, or for each."""
    x, y = jnp.asarray(rng.normal(size=(3, 9, 2))), jnp.asarray(rng.normal(size=(7, 2)))
    taus = median_tau(x)
    expected = [mmd_squared(z, y, tau) for z, tau in zip(x, taus, strict=True)]
    assert_close(mmd_squared(x, y, taus[:, None]), expected, 1e-13)
    assert_close(mmd_squared(x, y, taus[None, :]), [mmd_squared(z, y, taus) for z in x], 1e-13)
    assert_close(mmd_squared(x[0], y, taus[:, None]), [mmd_squared(x[0], y, tau) for tau in taus], 1e-13)


def test_edges_of_batches(rng):
    x, y, a = rng.normal(size=(3, 9, 2)), rng.normal(size=(7, 2)), np.ones((3, 9))
    assert mmd_squared(x[:0], y, 1.0, x_weights=a[:0]).shape == (0,)
    assert kde_score(x[:, :0], y, 1.0).shape == (3, 0, 2) and median_tau(x[:0]).shape == (0,)
    mask = np.arange(27).reshape(3, 9) % 4 > 0
    hidden = np.where(mask[..., None], x, np.nan)
    expected = [mmd_squared(z[keep], y, 1.0) for z, keep in zip(x, mask, strict=True)]
    assert_close(mmd_squared(hidden, y, 1.0, x_weights=mask), expected, 1e-13)
    norms = embedding_norm_squared(x, 1.0)
    assert_close(mmd_squared(y, x, 1.0, y_norm_squared=norms), mmd_squared(y, x, 1.0), 1e-13)
    assert explain(mmd_squared, x, y, 1.0).parts


def test_a_batch_needs_no_matrix_of_each():
    """Matrices of 32 × 1024 points, or of 512 × 64 and 1024 that all elements share, have 128 MiB."""
    shapes = (32, 1024, 4), (512, 64, 4), (1024, 4)
    x, points, samples = (jax.ShapeDtypeStruct(shape, "float32") for shape in shapes)

    def mebibytes(function, *operands):
        used: Any = jax.jit(function).lower(*operands).compile().memory_analysis()
        return used.temp_size_in_bytes / 2**20

    assert mebibytes(jax.grad(lambda x, y: mmd_squared(x, y, 1.0).sum()), x, x) < 32
    assert mebibytes(jax.grad(lambda x, y: kde_logpdf(x, y, 1.0).sum()), points, samples) < 48


def test_a_batch_of_small_sums_holds_no_tiles():
    """Nor a copy of the values: it takes at most a mebibyte more than what XLA makes of the formula."""
    shapes = (128, 64, 32), (128, 160, 32), (128, 160, 33)
    operands = [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes]

    def formula(q, k, v):
        return jnp.exp(q @ k.mT - jnp.square(q).sum(-1)[..., None] / 2 - jnp.square(k).sum(-1)[..., None, :] / 2) @ v

    used: list[Any] = [jax.jit(f).lower(*operands).compile().memory_analysis() for f in (gauss_sum, formula)]
    assert used[0].temp_size_in_bytes <= used[1].temp_size_in_bytes + 2**20
