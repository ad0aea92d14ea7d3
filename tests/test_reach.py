"""Whether points are near is seen outside of `jit`, so that only what they need is compiled; and what is left out."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from test_anywhere import cloud

from formulas import flow, matrix, mmd, tensors
from jaxgauss import explain, gauss_sum, hsic, log_gauss_sum, mmd_flow_velocity, mmd_squared
from jaxgauss._checks.settings import Settings
from jaxgauss._engines import positive_kernels as means_of_any
from jaxgauss._engines.near import OfEach, examined
from jaxgauss._engines.plan import NEAR, STRICTER
from jaxgauss._engines.products.pair_sums import within
from jaxgauss._kernels.kernels import GAUSS, KERNELS
from jaxgauss._sums import gauss_sum as module
from oracle import gauss_sum64

ONE, EQUAL = torch.ones(()), torch.full((300,), 1 / 300, dtype=torch.float64)


def hsic_formula(x, y):
    k, h = (matrix("gauss", z, z, ONE) for z in (x, y))
    k, h = (z - z.mean(0) - z.mean(1)[:, None] + z.mean() for z in (k, h))
    return (k * h).mean()


METHODS = {  # and their formulas
    "gauss_sum": (lambda x, y: gauss_sum(x, y, y), lambda x, y: matrix("gauss", x, y, ONE) @ y),
    "log_gauss_sum": (log_gauss_sum, lambda x, y: torch.logsumexp(-(x[:, None] - y).square().sum(-1) / 2, 1)),
    "mmd": (lambda x, y: mmd_squared(x, y, 1.0), lambda x, y: mmd("gauss", x, y, EQUAL, EQUAL, ONE, "biased")),
    "flow": (lambda x, y: mmd_flow_velocity(x, y, 1.0), lambda x, y: flow("gauss", x, y, EQUAL, EQUAL, ONE, "")),
    "hsic": (lambda x, y: hsic(x, y, 1.0, 1.0), hsic_formula),
}


def test_what_is_seen_is_what_the_program_decides(rng):
    """Of matrices, for sums and for moments of second order; of a batch, what holds about any center is certain."""
    seen, of_batches = [], []
    inside = jax.jit(within, static_argnums=0)
    for _ in range(60):
        x = cloud(rng, 600, 3)
        tau = np.float32(10 ** rng.uniform(-2, 4) / max(np.square(x - x[0]).sum(-1).mean(), 1e-6))
        x, y = x[:200], x[200:]
        for stricter, second_order in ((1, False), (STRICTER, True)):
            seen.append(examined(Settings(), tau, x, y, second_order=second_order).near)
            assert seen[-1] == bool(inside(NEAR["float32"] / stricter, x, y, tau))
        near = examined(Settings(), tau, x[None], y[None]).near
        of_batches.append(near)
        loose = {bool(inside(NEAR["float32"], q, k, tau)) for q, k in ((x, y), (y, x), (x, x), (y, y))}
        assert {True: loose == {True}, False: not inside(NEAR["float32"], x, y, tau), None: True}[near]
    assert set(seen) == {True, False} and set(of_batches) == {True, False, None}


def test_slopes_are_seen_to_have_their_digits(rng):
    """Of pairs that are spread: what the program itself would decide, by weights of keys and by each variable."""
    seen, inside = [], jax.jit(within, static_argnums=(0, 4))
    for _ in range(40):
        x = cloud(rng, 600, 3)
        x *= 10 ** rng.uniform(-1, 1) / max(np.abs(x - x[0]).max(), 1e-6)
        x, y, v = x[:200], x[200:], np.float32(10 ** rng.uniform(-3, 0, 400))
        seen.append(examined(Settings(), 1.0, x, y, v, pulls=True).near)
        assert seen[-1] == bool(inside(NEAR["float32"], x, y, jnp.float32(1), GAUSS.slope, v[:, None]))
        if examined(Settings(), OfEach(1.0, 4.0), (y[:, :1], y[:, 1:]), pulls=True).near:
            assert inside(NEAR["float32"], y, y, jnp.float32([1, 4, 4]), GAUSS.slope)
    assert set(seen) == {True, False}


@pytest.mark.parametrize("kernel", ["imq", "matern12"])
def test_logarithms_of_other_kernels_see_what_the_program_decides(rng, kernel):
    settings, seen = Settings(kernel=KERNELS[kernel], dtype="float32"), []
    ones, decided = np.ones((400, 1), np.float32), jax.jit(partial(means_of_any.sums_are_near, settings))
    for _ in range(30):
        x = cloud(rng, 600, 3)
        tau = np.float32(10 ** rng.uniform(-2, 4) / max(np.square(x - x[0]).sum(-1).mean(), 1e-6))
        seen.append(examined(settings, tau, x[:200], x[200:], ones, pulls=True, logs=True).near)
        assert seen[-1] == bool(decided(x[:200], x[200:], tau, np.log(ones)))
    assert set(seen) == {True, False}


def test_points_are_seen_where_they_are_there():
    x, seen = jnp.ones((400, 2)), []

    def look(x):
        seen.append(examined(Settings(), 1.0, x, x).near)
        return x.sum()

    look(np.asarray(x))
    jax.grad(look)(x)
    jax.jacrev(jax.grad(look))(x)
    assert seen == [True] * 3
    jax.jit(look)(x)
    jax.vmap(look)(x[None])
    jax.grad(jax.jit(look))(x)
    assert set(seen[3:]) == {None}


@pytest.mark.parametrize("name", METHODS)
def test_outside_of_jit_it_is_right(rng, name):
    """Near, far, and in between; with gradients."""
    x, y = rng.normal(size=(2, 300, 3)).astype(np.float32)
    ours, formula = METHODS[name]
    if name != "flow":  # which is a slope
        ours = jax.value_and_grad(lambda *z: METHODS[name][0](*z).sum(), (0, 1))
    for scale in (0.3, 2, 100) if name in ("gauss_sum", "mmd") else (0.3, 100):
        points = [np.float32(scale) * z for z in (x, y)]
        moving = [z.requires_grad_() for z in tensors(*points)]
        exact = [formula(*moving)]
        if name != "flow":
            exact = [exact[0].sum(), *torch.autograd.grad(exact[0].sum(), moving)]
        for z, w in zip(jax.tree.leaves(ours(*points)), exact, strict=True):
            w = w.detach().numpy()
            assert np.linalg.norm(np.asarray(z, np.float64) - w) <= 2e-5 * np.linalg.norm(w) + 1e-6


def test_weights_of_any_size_are_seen(rng):
    """Of tight clusters, whose slopes moments do not know: also where weights alone would overflow."""
    x = 1e-3 * rng.normal(size=(1200, 3)) + 4 * np.eye(3)[0] * (np.arange(1200)[:, None] % 2)
    x, y = np.split(x.astype(np.float32), 2)
    slope = jax.grad(lambda x, logs: log_gauss_sum(x, y, logs).sum())
    found, exact = slope(x, np.full(600, 200, np.float32)), slope(x, np.zeros(600, np.float32))
    apart = np.float64(y)[None] - np.float64(x)[:, None]
    p = np.exp(-np.square(apart).sum(-1) / 2)
    p /= p.sum(1, keepdims=True)
    size = np.linalg.norm((p * np.linalg.norm(apart, axis=-1)).sum(1))
    for z in (found, exact):
        assert np.linalg.norm(np.asarray(z) - (p[..., None] * apart).sum(1)) < 2e-5 * size


def test_what_is_known_is_not_looked_at_again(rng):
    x = rng.normal(size=(40, 3)).astype(np.float32)

    def conditionals(near):
        settings = Settings(dtype="float32", near=near, waves=None if near is None else False)
        program = jax.make_jaxpr(jax.grad(lambda x: module._checked_sum(settings, x, x, x, jnp.float32(1)).sum()))(x)
        return str(program).count("cond[")

    assert conditionals(True) == conditionals(False) == 0 < conditionals(None)


@pytest.mark.parametrize("dim", [2, 17])
def test_explain_tells_what_is_left_of_clusters(rng, dim):
    """Four of 2048 points, far from one another: each sees itself alone, and what is left out is zero."""
    x = (rng.normal(size=(4, 2048, dim)) + 1e4 * np.arange(4)[:, None, None]).astype(np.float32)
    points, tau = x.reshape(-1, dim), 1 / dim
    plan = explain(points, points, points[:, 0], tau)
    share = float(plan.reason.split("; ")[1].split("%")[0]) / 100
    assert plan.name == "clusters" and share == 0.25
    values = rng.normal(size=(4, 2048, 1)).astype(np.float32)
    found = np.asarray(gauss_sum(points, points, values.reshape(-1, 1), tau)).reshape(4, -1, 1)
    exact = np.stack([gauss_sum64(z, z, v, tau) for z, v in zip(x, values, strict=True)])
    assert np.abs(found - exact).max() < 1e-5 * np.abs(exact).max()


@pytest.mark.parametrize("num", [9, 300])
@pytest.mark.parametrize("size, tau", [(2e19, 2e-38), (1e-20, 1e37), (1e4, 1e-8), (1.0, 1.0)])
def test_a_program_scales_points_of_any_size(rng, num, size, tau):
    """As their squares, and tau, may not be in float32."""
    x, y = (np.float32(size * rng.normal(size=(num, 4))) for _ in range(2))
    v = np.float32(rng.normal(size=(num, 1)))
    sums = np.asarray(jax.jit(gauss_sum)(x, y, v, jnp.float32(tau)))
    assert np.abs(sums - gauss_sum64(x, y, v, np.float32(tau))).max() < 2e-6 * np.abs(v).sum()
