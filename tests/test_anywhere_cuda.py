"""Wherever few points lie, sums on CUDA have their digits as well: the tests of `test_anywhere`, there."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
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


def squares(x, y, tau):
    return tau * jnp.square(x[:, None] - y[None]).sum(-1)


def summed(kernel):
    return lambda *operands: kernel_sum(*operands, kernel=kernel, method="differences")


FORMULAS = {  # of functions of points, keys, values and τ
    "sums": (summed("gauss"), lambda x, y, v, tau: jnp.exp(squares(x, y, tau) / -2) @ v),
    "sums of imq": (summed("imq"), lambda x, y, v, tau: (1 + squares(x, y, tau)) ** -0.5 @ v),
    "means": (
        functools.partial(kernel_mean, method="differences"),
        lambda x, y, v, tau: jax.nn.softmax(squares(x, y, tau) / -2, -1) @ v,
    ),
    "logarithms": (
        lambda x, y, v, tau: log_gauss_sum(x, y, v[:, 0], tau, method="differences"),
        lambda x, y, v, tau: jax.nn.logsumexp(squares(x, y, tau) / -2 + v.T, -1),
    ),
}


@pytest.fixture
def in_tiles(request, monkeypatch):
    """All pairs at once, or a few at a time."""
    if request.param:
        for module in ("all_pairs", "fused"):
            monkeypatch.setattr(f"jaxgauss._engines.{module}.CUDA_TILE", Tile(2**8, 16, 16, 2**8))
        jax.clear_caches()
        request.addfinalizer(jax.clear_caches)


@pytest.mark.parametrize("order, in_tiles", [(2, False), (3, False), (2, True)], indirect=["in_tiles"])
@pytest.mark.parametrize("name", FORMULAS)
def test_derivatives_of_higher_order(rng, in_tiles, name, order):
    """Of all operands, in random directions, against those that JAX forms of the formula in float64."""
    shapes = (30, 3), (40, 3), (40, 1)
    operands, directions = ([*(rng.normal(size=x) for x in shapes), np.array(0.5)] for _ in range(2))

    def derivatives(f, *operands):
        for _ in range(order - 1):
            f = functools.partial(lambda f, *x: sum(map(jnp.vdot, jax.grad(f, (0, 1, 2, 3))(*x), directions)), f)
        return jax.grad(f, (0, 1, 2, 3))(*operands)

    ours, exact = (derivatives(lambda *x, f=f: jnp.sin(f(*x)).sum(), *operands) for f in FORMULAS[name])
    assert max(map(relative_error, ours, exact)) < 1e-10
