"""The goodness-of-fit test: its statistics against full matrices, its level and its power."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from formulas import stein, tensors
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


@pytest.mark.parametrize("kernel, estimator", [("imq", "biased"), ("imq", "unbiased"), ("gauss", "unbiased")])
def test_statistics_are_those_of_full_matrices(rng, kernel, estimator):
    x = rng.normal(size=(45, 3)) + 0.2
    s = -x + 0.1 * np.sin(x)
    result = ksd_test(x, s, 0.7, rng_key=KEY, num_bootstrap=60, estimator=estimator, kernel=kernel)
    exact = resampled(x, s, 0.7, 60, kernel, estimator)[0]
    assert relative_error(np.append(result.statistic, result.null_statistics), exact) < 1e-11
    assert float(result.p_value) == pytest.approx((1 + (exact[1:] >= exact[0]).sum()) / 61)


def test_bandwidths_are_aggregated(rng):
    x = rng.normal(size=(30, 2))
    taus = np.array([0.2, 2.0, 200.0])
    result = ksd_test(x, -x, taus, rng_key=KEY, num_bootstrap=20)
    each = [forms / norm for forms, norm in (resampled(x, -x, tau, 20) for tau in taus)]
    sharpness = np.sqrt(30 * 29)
    exact = np.log(np.exp(sharpness * np.array(each)).mean(0)) / sharpness
    assert relative_error(np.append(result.statistic, result.null_statistics), exact) < 1e-11


def power(num, draws, correlation=0.0, flip_probability=0.5, shift=0.0):
    """The share that is rejected at 5 %, for the normal density: of its samples, or of an autoregression."""

    def p_value(key):
        data, signs = jax.random.split(key)
        noise = jax.random.normal(data, (num, 2))

        def step(x, z):
            x = correlation * x + np.sqrt(1 - correlation**2) * z
            return x, x

        points = (jax.lax.scan(step, noise[0], noise)[1] if correlation else noise) + shift
        return ksd_test(
            points, -points, 1.0, rng_key=signs, num_bootstrap=19, flip_probability=flip_probability
        ).p_value

    p_values = jax.jit(functools.partial(jax.lax.map, p_value))(jax.random.split(KEY, draws))
    return float((p_values <= 0.05).mean())


def test_power_rises_with_points_and_with_the_shift():
    few, many, far = (power(num, 80, shift=shift) for num, shift in ((30, 0.2), (150, 0.2), (150, 0.4)))
    assert few < many - 0.1 and many < far and far > 0.9


def test_chains_need_signs_that_last():
    """States of a chain correlated over some ten steps: independent signs reject far too often."""
    independent, lasting = (power(200, 120, correlation=0.9, flip_probability=p) for p in (0.5, 0.02))
    assert independent > 0.3 > 0.15 > lasting


def test_signs_of_a_chain():
    signs = signs_of(4000, 8, flip_probability=0.1)[:, 1:]
    flips = (signs[1:] != signs[:-1]).mean()
    assert abs(flips - 0.1) < 5 * np.sqrt(0.1 * 0.9 / 32000) and (signs_of(50, 3)[:, 0] == 1).all()


def test_number_of_attention_calls():
    x = jax.ShapeDtypeStruct((32, 4), "float32")
    assert attention_calls(lambda x: ksd_test(x, x, 1.0, rng_key=KEY), x) == 0
