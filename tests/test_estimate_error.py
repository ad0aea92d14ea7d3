"""estimate_error: its interval covers the error that is there."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgauss import estimate_error, gauss_sum
from oracle import gauss_sum64, problem, relative_error


def test_interval_covers_the_error_in_nine_of_ten_problems():
    """A hundred problems of two shapes, in four precisions, over bandwidths, signs and tails."""
    judge = jax.jit(lambda *x: estimate_error(*x[:4], rng_key=x[4], sums=x[5], num_queries=64))
    covered = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        dim, channels = [(2, 1), (8, 3)][seed % 2]
        case = problem(
            rng, 400, 300, dim, channels, tau=rng.choice([0.1, 1, 10, 30]), dtype="float32", positive=seed % 3 == 0
        )
        sums = gauss_sum(*case.operands, precision=["float16", "bfloat16", "float16x2", "float32"][seed // 2 % 4])
        estimate = judge(*case.operands, jax.random.key(seed), sums)
        low, high = estimate.interval
        covered += bool(low <= relative_error(sums, gauss_sum64(*case.operands)) <= high)
    assert covered >= 90


@pytest.mark.parametrize("num", [100, 1])
def test_all_queries_leave_no_doubt(rng, num):
    case = problem(rng, num, 80, 3, 2, dtype="float32")
    sums = gauss_sum(*case.operands, precision="float16")
    estimate = estimate_error(*case.operands, rng_key=jax.random.key(0), sums=sums)
    exact, bound = gauss_sum64(*case.operands), gauss_sum64(*case[:2], np.abs(case.values), case.tau)
    ratio = (np.abs(np.asarray(sums) - exact) / bound).max()
    assert np.allclose(estimate, (relative_error(sums, exact), 0, ratio), rtol=1e-5)
    assert 0 < estimate.relative_error < 1e-2


def test_it_sees_an_error_that_is_put_there(rng):
    case = problem(rng, 300, 80, 3, 2, dtype="float32")
    wrong = 1.01 * gauss_sum(*case.operands)
    estimate = estimate_error(*case.operands, rng_key=jax.random.key(0), sums=wrong)
    assert abs(estimate.relative_error - 0.01) < 1e-5 and estimate.largest_ratio > 1e-3


@pytest.mark.parametrize("channels, precision, low, high", [((), "float16", 1e-6, 3e-3), ((4,), "float64", 0, 1e-13)])
def test_weights_batches_and_options(rng, channels, precision, low, high):
    q, k, tau = rng.normal(size=(3, 40, 2)), rng.normal(size=(50, 2)), rng.uniform(0.5, 1, size=3)
    operands = [jnp.asarray(y) for y in (q, k, rng.normal(size=(50, *channels)), tau)]
    estimate = estimate_error(*operands, rng_key=jax.random.key(0), num_queries=20, precision=precision)
    assert low <= estimate.relative_error <= high


def test_errors_below_those_of_float32_are_seen(rng):
    """The reference is float64 in any mode, at any distance from the center."""
    case = problem(rng, 60, 80, 3, 2)
    queries, keys = (np.asarray(x + 100, "float32") for x in case[:2])
    values, tau = (np.asarray(x, "float32") for x in case[2:4])
    exact = gauss_sum64(queries, keys, values, tau)
    with jax.enable_x64(False):
        estimate = estimate_error(queries, keys, values, tau, rng_key=jax.random.key(0), sums=exact.astype("float32"))
    assert estimate.relative_error.dtype == jnp.float32
    rounded = relative_error(exact.astype("float32"), exact)
    assert 0 < rounded < 6e-8 and float(estimate.relative_error) == pytest.approx(rounded, rel=1e-3)


def test_zero_against_zero_is_no_error():
    far = np.full((5, 2), 1e3, "float32")
    assert estimate_error(far, far[:4] - 1e3, far[:4, 0], rng_key=jax.random.key(0)) == (0, 0, 0)
