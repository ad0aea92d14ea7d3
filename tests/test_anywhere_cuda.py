"""Wherever few points lie, sums on CUDA have their digits as well: the tests of `test_anywhere`, there."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from test_anywhere import (  # noqa: F401
    test_batches,
    test_densities_scores_modes_and_herds,
    test_independence_criterion,
    test_logarithms_and_means,
    test_mmd_witness_and_flow,
    test_stein_discrepancy_and_direction,
    test_sums_and_all_gradients,
)

from jaxgauss import kernel_mean, kernel_sum, log_gauss_sum
from jaxgauss._engines.tiles import Tile
from oracle import relative_error

pytestmark = pytest.mark.usefixtures("cuda")


FORMULAS = {  # of functions of points, keys, values and τ: by us, and of τ|x - y|² and values in PyTorch
    "sums": (kernel_sum, lambda u, v: torch.exp(u / -2) @ v),
    "sums of imq": (functools.partial(kernel_sum, kernel="imq"), lambda u, v: (1 + u) ** -0.5 @ v),
    "means": (kernel_mean, lambda u, v: torch.softmax(u / -2, -1) @ v),
    "logarithms": (
        lambda x, y, v, tau, engine: log_gauss_sum(x, y, v[:, 0], tau, engine=engine),
        lambda u, v: torch.logsumexp(u / -2 + v.T, -1),
    ),
}


@pytest.fixture
def in_tiles(request, monkeypatch):
    """All pairs at once, or a few at a time."""
    if request.param:
        for name in ("CUDA_TILE", "SUMS_TILE", "PULLS_TILE"):
            monkeypatch.setattr(f"jaxgauss._engines.differences.cuda_tiles.{name}", Tile(2**8, 16, 16, 2**8))
        jax.clear_caches()
        request.addfinalizer(jax.clear_caches)


@pytest.mark.parametrize("order, in_tiles", [(3, False), (2, True)], indirect=["in_tiles"])
@pytest.mark.parametrize("name", FORMULAS)
def test_derivatives_of_higher_order(rng, in_tiles, name, order):
    """Of all operands, in random directions, against autograd of the formula in float64."""
    shapes = (30, 3), (40, 3), (40, 1)
    operands, directions = ([*(rng.normal(size=x) for x in shapes), np.array(0.5)] for _ in range(2))
    function, formula = FORMULAS[name]

    def loss(*operands):
        return jnp.sin(function(*operands, engine="differences")).sum()

    def slope(f, *operands):
        return sum(map(jnp.vdot, jax.grad(f, (0, 1, 2, 3))(*operands), directions))

    for _ in range(order - 1):
        loss = functools.partial(slope, loss)
    ours = jax.jit(jax.grad(loss, (0, 1, 2, 3)))(*operands)
    x, y, v, tau = moving = [torch.tensor(z, requires_grad=True) for z in operands]
    exact = torch.sin(formula(tau * (x[:, None] - y).square().sum(-1), v)).sum()
    for _ in range(order - 1):
        slopes = torch.autograd.grad(exact, moving, create_graph=True)
        exact = sum((a * torch.from_numpy(b)).sum() for a, b in zip(slopes, directions, strict=True))
    assert max(map(relative_error, ours, torch.autograd.grad(exact, moving))) < 1e-10


@pytest.mark.parametrize("tau", [2e-37, 1e-20, 1e20, 9e37])
@pytest.mark.parametrize("dim", [3, 20])
def test_squares_of_differences_neither_overflow_nor_vanish(rng, tau, dim):
    """At the smallest and the largest τ, for points some bandwidths apart."""
    q, k, v = (np.float32(rng.normal(size=x) * s) for x, s in (((40, dim), 4), ((50, dim), 4), ((50, 1), 1)))
    unit = np.float32(tau**-0.5)
    found = jax.value_and_grad(lambda *x: kernel_sum(*x, tau=np.float32(tau), kernel="imq").sum(), (0, 1))
    total, slopes = found(q * unit, k * unit, v)
    apart = (q.astype(float)[:, None] - k) * (np.float64(unit) * np.sqrt(np.float64(np.float32(tau))))
    u = np.square(apart).sum(-1)
    assert np.isclose(float(total), ((1 + u) ** -0.5 @ v).sum(), rtol=2e-5)
    w = (1 + u)[..., None] ** -1.5 * apart * v[None]
    for slope, exact in zip(slopes, (-w.sum(1), w.sum(0)), strict=True):
        assert np.linalg.norm(np.asarray(slope, float) * unit - exact) < 1e-5 * np.linalg.norm(exact)
