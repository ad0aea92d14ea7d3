"""Wherever the points lie: derivatives of first and second order have the digits of the plain formula in float32."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import torch_backend
from jaxgauss import (
    gauss_sum,
    gauss_sum_blocked,
    gauss_sum_dense,
    ksd_squared,
    log_gauss_sum,
    mmd_squared,
    svgd_direction,
)
from jaxgauss._checks.settings import Settings
from jaxgauss._engines import float64
from oracle import gauss_sum64, relative_error

NUM = 150
WEIGHTS = np.random.default_rng(1).normal(size=(NUM, 1))


def differences(x, y):
    return x[:, None] - y[None]


def kernel(x, y, tau):
    return jnp.exp(-tau / 2 * jnp.square(differences(x, y)).sum(-1))


def sum_formula(x, y, tau):
    return kernel(x, y, tau) @ WEIGHTS.astype(x.dtype)


def mmd_formula(x, y, tau):
    return kernel(x, x, tau).mean() - 2 * kernel(x, y, tau).mean() + kernel(y, y, tau).mean()


def ksd_formula(x, s, tau):
    apart = differences(x, x)
    squared, along = jnp.square(apart).sum(-1), (differences(s, s) * apart).sum(-1)
    return (kernel(x, x, tau) * (s @ s.T + tau * (along + x.shape[1]) - tau**2 * squared)).mean()


def svgd_formula(x, s, tau):
    phi = kernel(x, x, tau)
    return (phi @ s + tau * (phi[..., None] * differences(x, x)).sum(1)) / len(x)


FUNCTIONS = {
    "gauss_sum": (lambda x, y, tau: gauss_sum(x, y, WEIGHTS.astype(x.dtype), tau), sum_formula),
    "mmd_squared": (mmd_squared, mmd_formula),
    "ksd_squared": (ksd_squared, ksd_formula),
    "svgd_direction": (svgd_direction, svgd_formula),
}


def weighted(x):
    """A number that depends on every entry."""
    return (x * jnp.cos(jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape)).sum()


def derivatives(function):
    """Gradients in all arguments, and those of a number made of the gradients."""

    def first(*operands):
        return jax.grad(lambda *x: weighted(function(*x)), (0, 1, 2))(*operands)

    second = jax.grad(lambda *x: sum(weighted(g) for g in first(*x)), (0, 1, 2))
    return jax.jit(lambda *operands: (*first(*operands), *second(*operands)))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_have_their_digits(rng, name):
    """On clusters at ±5, ±20, ±100 and 1e6 bandwidths, and at τ from .01 to 100 on N(0, I)."""
    ours, plain = map(derivatives, FUNCTIONS[name])
    for apart, tau in ((5, 1), (20, 1), (100, 1), (1e6, 1), (0, 0.01), (0, 1), (0, 100)):
        x, y = rng.normal(size=(2, NUM, 3))
        scores, signs = -x, np.where(np.arange(NUM) % 2, 1, -1)[:, None]
        others = scores if name in ("ksd_squared", "svgd_direction") else y + apart * signs
        case = [np.asarray(z, np.float32) for z in (x + apart * signs, others, tau)]
        exact = plain(*(z.astype(np.float64) for z in case))
        for i, (found, rough, expected) in enumerate(zip(ours(*case), plain(*case), exact, strict=True)):
            bound = max(1e-5, 20 * relative_error(rough, expected))
            assert relative_error(found, expected) <= bound, (apart, tau, i)


def test_each_bandwidth_goes_its_own_way(rng):
    """A wide, a middling and a narrow one: value and gradients, of one pair of samples and of a batch of pairs."""
    x, y = rng.normal(size=(2, 3, NUM, 2)).astype(np.float32)
    taus = np.float32([0.01, 1, 1e4])

    def exact(x, y, taus):
        x, y, taus = (z.astype(np.float64) for z in (x, y, taus))
        parts = [jax.value_and_grad(mmd_formula, (0, 1, 2))(x, y, tau) for tau in taus]
        values, gradients = zip(*parts, strict=True)
        d_x, d_y, d_tau = zip(*gradients, strict=True)
        return np.mean(values), np.mean(d_x, 0), np.mean(d_y, 0), np.stack(d_tau) / len(taus)

    function = jax.value_and_grad(mmd_squared, (0, 1, 2))
    batched = jax.jit(jax.vmap(function, (0, 0, None)))(x, y, taus)
    for i in range(len(x)):
        expected = exact(x[i], y[i], taus)
        for value, gradients in (jax.jit(function)(x[i], y[i], taus), jax.tree.map(lambda z: z[i], batched)):  # noqa: B023
            for found, one in zip((value, *gradients), expected, strict=True):
                assert relative_error(found, one) < 1e-5


@pytest.mark.parametrize("spread", [1.0, 1e6])
def test_tiles_are_the_sum(rng, spread, monkeypatch):
    """Of several rows and columns, of batches that are broadcast, near one another and far apart."""
    import torch

    from torch_backend import wide

    monkeypatch.setattr(wide, "ROWS", 7)
    monkeypatch.setattr(wide, "COLUMNS", 9)
    q, k, v = (rng.normal(size=s) for s in ((2, 3, 20, 4), (1, 3, 30, 4), (1, 1, 30, 2)))
    tau, g, log_w = rng.uniform(0.5, 2, (2, 3)), rng.normal(size=(2, 3, 20, 2)), rng.normal(size=(1, 3, 30, 1))
    q[..., 0, :] *= spread
    k[..., 0, :] = q[0, :, 0] + 0.5
    tensors = [torch.as_tensor(x) for x in (q, k, v, tau)]
    exact = gauss_sum64(q, k, v, tau)
    for digits in ("float32", "float64"):
        total = torch_backend.wide_sum(*tensors, digits=digits)
        bound = {"float32": (2e-7, 1e-5), "float64": (1e-13, 1e-10)}[digits][spread != 1]
        assert relative_error(total.numpy(), exact) < bound
    moved = [torch.as_tensor(x).requires_grad_() for x in (q, k, v)]
    apart = (moved[0][..., :, None, :] - moved[1][..., None, :, :]).square().sum(-1)
    logits = -tensors[3][..., None, None] / 2 * apart
    ((logits.exp() @ moved[2]) * torch.as_tensor(g)).sum().backward()
    gradients = torch_backend.wide_pullback(*tensors, torch.as_tensor(g), digits="float64")
    for found, x in zip(gradients, moved, strict=True):
        assert relative_error(found.numpy(), x.grad.numpy()) < (1e-12 if spread == 1 else 1e-8)
    logits = (logits + torch.as_tensor(log_w).mT).detach()
    means, logs = torch_backend.wide_means(*tensors, torch.as_tensor(log_w), digits="float64")
    assert relative_error(logs.numpy(), logits.logsumexp(-1, keepdim=True).numpy()) < 1e-13
    assert relative_error(means.numpy(), (logits.softmax(-1) @ tensors[2]).numpy()) < 1e-9


def test_points_come_closer_and_see_the_same(rng):
    import torch

    centers = rng.choice([0.0, 300.0, -1e9, 1e25], size=(60, 2))
    points, tau = torch.as_tensor(rng.normal(size=(60, 2)) + centers), torch.tensor(2.0, dtype=torch.float64)
    moved = torch_backend.closer(points, tau)
    assert moved.amax() - moved.amin() < 200
    before, after = (differences(x.numpy(), x.numpy()) for x in (points, moved))
    near = np.abs(before) * np.sqrt(2) < torch_backend.wide.GAP
    np.testing.assert_allclose(after[near], before[near], rtol=1e-6, atol=1e-6)
    assert (np.abs(after[~near]) * np.sqrt(2) > torch_backend.wide.GAP - 1e-6).all()
    near_ones = points[(points.abs() < 10).all(-1)]
    assert torch_backend.closer(near_ones, tau) is near_ones


@pytest.mark.parametrize("x64", [False, True])
def test_of_any_order_in_either_mode(rng, x64):
    """Batches of Hessians, and of third derivatives, of what is formed in float64: JAX's 64-bit mode on, and off."""
    x, y = (rng.normal(size=(n, 2)).astype(np.float32) for n in (6, 5))

    def of_batch(function):
        def along(t, x):
            return weighted(jnp.sin(function(x * (1 + t), jnp.asarray(y), 1 + t)))

        number = jnp.asarray(0.1, x.dtype)
        if x64:
            return jax.jit(jax.vmap(jax.jacrev(jax.grad(along, 1), 1), (None, 0)))(number, jnp.stack([x, -x]))
        return jax.jit(jax.vmap(jax.grad(jax.grad(jax.grad(along))), (None, 0)))(number, jnp.stack([x, -x]))

    def formula(x, y, tau):
        return kernel(x, y, tau).sum(1, keepdims=True)

    def ours(x, y, tau):
        return gauss_sum(x, y, jnp.ones((len(y), 1), x.dtype), tau)

    with jax.enable_x64(x64):
        found = of_batch(ours)
        assert found.dtype == np.float32
    x, y = x.astype(np.float64), y.astype(np.float64)
    assert relative_error(found, of_batch(formula)) < 1e-5


def test_logarithms_beyond_any_reach(rng):
    """Values, and the score, ten thousand bandwidths from all keys, at a vertical distance that two keys share."""
    keys = np.array([[1e4, 0.0], [1e4, 3.0]], np.float32)
    queries = np.array([[0.0, 1.0], [1e4, 1.0]], np.float32)
    exact = [float(jax.nn.logsumexp(-np.square(q.astype(float) - keys).sum(-1) / 2)) for q in queries]
    np.testing.assert_allclose(log_gauss_sum(queries, keys), exact, rtol=1e-6)
    scores = jax.grad(lambda q: log_gauss_sum(q, keys).sum())(queries)
    share = 1 / (1 + np.exp(-1.5))  # of the key at 0, for the vertical distances 1 and 2
    np.testing.assert_allclose(scores[:, 1], 3 * (1 - share) - 1, rtol=1e-5)


def squares(x, y):
    return np.square(x.astype(np.float64)[:, None] - y.astype(np.float64)[None]).sum(-1)


@pytest.mark.parametrize("dtype, unit, far", [("float32", 2**-24, 45.0), ("float64", 2**-53, 4096.0)])
def test_the_dense_formulas_say_where_they_stop(rng, dtype, unit, far):
    """Two clusters R bandwidths from their center: the error is the unit times R²; `differences` has none of it."""
    for apart in (3.0, far / 4, far):
        signs = np.where(np.arange(300) % 2, 1, -1)[:, None]
        points = (rng.normal(size=(300, 2)) + apart / 2**0.5 * signs).astype(dtype)
        exact = np.exp(-squares(points, points) / 2).sum(1)
        for function in (gauss_sum_dense, gauss_sum_blocked):
            assert relative_error(function(points, points, np.ones(300, dtype)), exact) < 4 * unit * (apart + 3) ** 2
        differences = gauss_sum(points, points, np.ones(300, dtype), method="differences")
        assert relative_error(differences, exact) < 20 * unit


@pytest.mark.parametrize("dim", [2, 24, 256, 1000])
def test_logarithms_hold_their_statement(rng, dim):
    """Near zero, where terms are 22 bandwidths away, and where each query sees one key, far from the center."""
    for case in (dim**-0.5, 1.0, 15 * dim**-0.5, "sphere"):
        x, y = (rng.normal(size=(n, dim)) for n in (60, 50))
        if case == "sphere":
            y *= 0.98 * max(22, 2 * dim**0.5) / np.linalg.norm(y, axis=1, keepdims=True)
            x = y[rng.integers(0, 50, 60)] + 0.02 * x
        scale = 1 if case == "sphere" else case
        x, y = (scale * z.astype(np.float32) for z in (x, y))
        logits = -squares(x, y) / 2
        exact = np.asarray(jax.nn.logsumexp(logits, axis=1))
        reach = max(np.square(z - y.mean(0)).sum(1).max() for z in (x, y))
        for method, slope in (("auto", 3e-7), ("rescale", 6e-7)):
            error = np.abs(np.asarray(log_gauss_sum(x, y, method=method), np.float64) - exact)
            assert np.all(error <= (1e-6 + slope * reach) * np.maximum(1, np.abs(exact)))


def test_that_it_is_slow_is_said_once(rng):
    """Of sums that take long, and where points are the reason."""
    x = rng.normal(size=(2048, 1)).astype(np.float32)
    near = x.copy()
    x[0] = 1e4
    slope = jax.grad(lambda x: ksd_squared(x, x, 1.0))  # in float64 wherever points lie
    float64._say_far.cache_clear()
    for function in (lambda x: gauss_sum(x, x, x), lambda x: mmd_squared(x, x[:3], 1.0)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            jax.block_until_ready([function(x[:100]), slope(near)])
            assert not caught
            jax.block_until_ready([function(x), function(x)])
        assert [str(w.message) for w in caught if "float64" in str(w.message)] == [str(caught[0].message)]
        float64._say_far.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isfinite(mmd_squared(x, x[:3], 1.0))


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
def test_differences_are_taken_wherever_they_are_asked_for(rng, platform):
    """In float64, too, and where PyTorch does not run."""
    near = [rng.normal(size=shape) for shape in ((20, 3), (30, 3), (30, 2))]
    far = [jnp.asarray(x) for x in (near[0] + 2e7, near[1] + 2e7, near[2], 1.0)]
    far[1] = far[1].at[0].set(0.0)  # not to be centered about the others
    (sums,) = float64.in_tiles(float64.SUM, platform, Settings("differences", dtype="float64"), *far)
    assert relative_error(sums, gauss_sum64(*far)) < 1e-12
    (in_blocks,) = float64.in_tiles(float64.SUM, "tpu", Settings(dtype="float64"), *far)
    assert relative_error(in_blocks, gauss_sum64(*far)) > 1e-3  # products have lost their digits there
