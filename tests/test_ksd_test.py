"""The goodness-of-fit test: its statistics against full matrices, its level and its power."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from formulas import soft_maximum, stein, tensors
from jaxgauss import ksd_test
from jaxgauss._methods import resampling
from oracle import attention_calls, relative_error

KEY = jax.random.key(7)


def signs_of(num, number, **options):
    return np.asarray(resampling.random_signs(KEY, jnp.arange(number + 1), num, **options))


def resampled(x, s, tau, number, kernel="imq", estimator="unbiased"):
    """The form of every resampling, and the root of the mean square of the Stein kernel."""
    x, s, tau = tensors(x, s, tau)
    h = stein(kernel, x, s, tau).mean(0).numpy()
    if estimator == "unbiased":
        h = h - np.diag(np.diag(h))
    signs, pairs = signs_of(len(x), number), len(x) * (len(x) - (estimator == "unbiased"))
    return np.einsum("ip,ij,jp->p", signs, h, signs) / pairs, np.sqrt((h**2).sum() / pairs)


@pytest.mark.parametrize("kernel, estimator, num", [("imq", "biased", 90), ("gauss", "unbiased", 45)])
def test_statistics_are_those_of_full_matrices(request, rng, kernel, estimator, num):
    """Of many points in blocks, too."""
    x = rng.normal(size=(num, 3)) + 0.2
    s = -x + 0.1 * np.sin(x)
    exact = resampled(x, s, 0.7, 60, kernel, estimator)[0]
    if num == 90:
        request.getfixturevalue("small_blocks")
    result = ksd_test(x, s, 0.7, rng_key=KEY, num_bootstrap=60, estimator=estimator, kernel=kernel)
    assert relative_error(np.append(result.statistic, result.null_statistics), exact) < 1e-11
    assert float(result.p_value) == pytest.approx((1 + (exact[1:] >= exact[0]).sum()) / 61)


@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-11), ("float32", 1e-4)])
def test_bandwidths_are_aggregated(rng, capsys, dtype, tolerance):
    x = rng.normal(size=(30, 2)).astype(dtype)
    taus = np.array([0.2, 2.0, 200.0])
    result = ksd_test(x, -x, taus, rng_key=KEY, num_bootstrap=20, progress=dtype == "float32")
    exact = soft_maximum(30, [forms / norm for forms, norm in (resampled(x, -x, tau, 20) for tau in taus)])
    assert relative_error(np.append(result.statistic, result.null_statistics), exact) < tolerance
    assert ("ksd_test: 100%" in capsys.readouterr().err) == (dtype == "float32")


def power(num, draws, correlation=0.0, flip_probability=0.5, shift=0.0):
    """The share that is rejected at 5 %, for the normal density: of its samples, or of an autoregression."""

    def p_value(key, shift):
        data, signs = jax.random.split(key)
        noise = jax.random.normal(data, (num, 2))

        def step(x, z):
            x = correlation * x + np.sqrt(1 - correlation**2) * z
            return x, x

        points = (jax.lax.scan(step, noise[0], noise)[1] if correlation else noise) + shift
        options = {"num_bootstrap": 19, "flip_probability": flip_probability}
        return ksd_test(points, -points, 1.0, rng_key=signs, **options).p_value

    test = jax.jit(jax.vmap(lambda shift: jax.lax.map(lambda key: p_value(key, shift), jax.random.split(KEY, draws))))
    return (np.asarray(test(jnp.atleast_1d(shift))) <= 0.05).mean(1)


def test_power_rises_with_points_and_with_the_shift():
    (few,), (many, far) = power(30, 80, shift=0.2), power(150, 80, shift=jnp.array([0.2, 0.4]))
    assert few < many - 0.1 and many < far and far > 0.9


def test_chains_need_signs_that_last():
    """States of a chain correlated over some ten steps: independent signs reject far too often."""
    independent, lasting = (power(200, 120, correlation=0.9, flip_probability=p)[0] for p in (0.5, 0.02))
    assert independent > 0.3 > 0.15 > lasting


def test_signs_of_a_chain():
    signs = signs_of(4000, 8, flip_probability=0.1)[:, 1:]
    flips = (signs[1:] != signs[:-1]).mean()
    assert abs(flips - 0.1) < 5 * np.sqrt(0.1 * 0.9 / 32000) and (signs_of(50, 3)[:, 0] == 1).all()


def test_number_of_attention_calls():
    x = jax.ShapeDtypeStruct((32, 4), "float32")
    assert attention_calls(lambda x: ksd_test(x, x, 1.0, rng_key=KEY), x) == 0
