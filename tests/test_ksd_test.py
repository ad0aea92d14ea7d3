"""The goodness-of-fit test: its statistics against full matrices, its level and its power."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import binom, kstest

from jaxgauss import ksd_squared, ksd_test
from jaxgauss._methods import pair_forms, resampling
from oracle import attention_calls, relative_error

KEY = jax.random.key(7)


def stein(x, s, tau, kernel):
    """h(x_i, x_j) of all pairs."""
    apart = x[:, None] - x
    u, dim = tau * np.square(apart).sum(-1), x.shape[1]
    if kernel == "gauss":
        kappa = psi = chi = np.exp(-u / 2)
    else:
        kappa, psi, chi = (1 + u) ** -0.5, (1 + u) ** -1.5, 3 * (1 + u) ** -2.5
    scores = ((s[:, None] - s) * apart).sum(-1)
    return kappa * (s @ s.T) + tau * psi * scores + tau * (dim * psi - u * chi)


def signs_of(num, number, **options):
    return np.asarray(resampling.random_signs(KEY, jnp.arange(number + 1), num, **options))


@pytest.mark.parametrize("kernel, estimator", [("imq", "biased"), ("imq", "unbiased"), ("gauss", "unbiased")])
def test_statistics_are_those_of_full_matrices(rng, kernel, estimator):
    x = rng.normal(size=(45, 3)) + 0.2
    s = -x + 0.1 * np.sin(x)
    result = ksd_test(x, s, 0.7, rng_key=KEY, num_bootstrap=60, estimator=estimator, kernel=kernel)
    h, signs = stein(x, s, 0.7, kernel), signs_of(45, 60)
    h, pairs = (h, 45**2) if estimator == "biased" else (h - np.diag(np.diag(h)), 45 * 44)
    exact = np.einsum("ip,ij,jp->p", signs, h, signs) / pairs
    assert relative_error(np.append(result.statistic, result.null_statistics), exact) < 1e-11
    assert float(result.p_value) == pytest.approx((1 + (exact[1:] >= exact[0]).sum()) / 61)
    same = ksd_squared(x, s, 0.7, kernel=kernel, estimator=estimator)
    assert float(result.statistic) == pytest.approx(float(same), rel=1e-10)


def test_bandwidths_are_aggregated(rng):
    x = rng.normal(size=(30, 2))
    taus, signs = np.array([0.2, 2.0, 200.0]), signs_of(30, 20)
    result = ksd_test(x, -x, taus, rng_key=KEY, num_bootstrap=20)
    each = []
    for tau in taus:
        h = stein(x, -x, tau, "imq") * ~np.eye(30, dtype=bool)
        each.append(np.einsum("ip,ij,jp->p", signs, h, signs) / (30 * 29) / np.sqrt((h**2).sum() / (30 * 29)))
    sharpness = np.sqrt(30 * 29)
    exact = np.log(np.exp(sharpness * np.array(each)).mean(0)) / sharpness
    assert relative_error(np.append(result.statistic, result.null_statistics), exact) < 1e-11


def test_many_points_and_blocks(rng, monkeypatch, capsys):
    """Groups of points, blocks of columns, float32 and the bar: the statistics stay."""
    x = rng.normal(size=(90, 3))
    test = functools.partial(ksd_test, tau=0.7, rng_key=KEY, num_bootstrap=30)
    whole = test(x, -x)
    monkeypatch.setattr(resampling, "BYTES", 8 * 90 * 12)
    monkeypatch.setattr(pair_forms, "GROUP", 32)
    monkeypatch.setattr(resampling, "FEW", 50)
    scale = float(jnp.abs(whole.null_statistics).max())
    for points, options, tolerance in ((x, {}, 1e-12), (x, {"progress": True}, 1e-12), (np.float32(x), {}, 1e-4)):
        found = test(points, -points, **options)
        apart = np.asarray(found.null_statistics, np.float64) - np.asarray(whole.null_statistics)
        assert np.abs(apart).max() <= tolerance * scale
    assert "100%" in capsys.readouterr().err


def p_values(num, draws, taus, correlation=0.0, flip_probability=0.5, shift=0.0):
    """Of normal samples, or of the states of an autoregression, against the standard normal density."""

    def p_value(key):
        data, signs = jax.random.split(key)
        noise = jax.random.normal(data, (num, 2))

        def step(x, z):
            x = correlation * x + np.sqrt(1 - correlation**2) * z
            return x, x

        points = (jax.lax.scan(step, noise[0], noise)[1] if correlation else noise) + shift
        tau = taus[0] if len(taus) == 1 else np.array(taus)
        options = {"num_bootstrap": 19, "flip_probability": flip_probability}
        return ksd_test(points, -points, tau, rng_key=signs, **options).p_value

    return np.asarray(jax.jit(functools.partial(jax.lax.map, p_value))(jax.random.split(KEY, draws)), np.float64)


@pytest.mark.parametrize("num, taus", [(50, (1.0,)), (200, (1.0,)), (50, (0.1, 1.0, 10.0))])
def test_p_values_are_uniform_for_samples_of_the_density(num, taus):
    """300 nulls; the shares of rejections at six levels lie in binomial intervals that hold 99.99 % each."""
    found = p_values(num, 300, taus)
    for level in (1, 2, 4, 8, 12, 16):
        low, high = binom.interval(0.9999, 300, level / 20)
        assert low <= (found <= level / 20 + 1e-9).sum() <= high
    jittered = found - np.random.default_rng(0).uniform(size=300) / 20
    assert kstest(jittered, "uniform").pvalue > 1e-4


def test_power_rises_with_points_and_with_the_shift():
    cases = (30, 0.2), (150, 0.2), (150, 0.4)
    few, many, far = ((p_values(num, 80, (1.0,), shift=shift) <= 0.05).mean() for num, shift in cases)
    assert few < many - 0.1 and many < far and far > 0.9


def test_chains_need_signs_that_last():
    """States of a chain correlated over some ten steps: independent signs reject far too often."""
    independent, lasting = (
        (p_values(200, 120, (1.0,), correlation=0.9, flip_probability=p) <= 0.05).mean() for p in (0.5, 0.02)
    )
    assert independent > 0.3 > 0.15 > lasting


def test_signs_of_a_chain():
    signs = signs_of(4000, 8, flip_probability=0.1)[:, 1:]
    flips = (signs[1:] != signs[:-1]).mean()
    assert abs(flips - 0.1) < 5 * np.sqrt(0.1 * 0.9 / 32000) and (signs_of(50, 3)[:, 0] == 1).all()


def test_number_of_attention_calls():
    x = jax.ShapeDtypeStruct((32, 4), "float32")
    assert attention_calls(lambda x: ksd_test(x, x, 1.0, rng_key=KEY), x) == 0


def test_what_is_no_number_is_no_evidence():
    x = jnp.ones((6, 2)).at[0, 0].set(jnp.nan)
    assert np.isnan(ksd_test(x, -x, 1.0, rng_key=KEY, num_bootstrap=19).p_value)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"scores": jnp.ones((5, 3))}, r"`scores` must be of the shape of `points`; .*scores \(5, 3\)"),
        ({"points": jnp.ones((1, 3)), "scores": jnp.ones((1, 3))}, "`points` must hold at least 2 points"),
        ({"kernel": "matern12"}, r"`kernel` must have second derivatives; got Kernel\(matern12\)"),
        ({"kernel": "energy"}, r"`kernel` must be positive definite; got Kernel\(energy\)"),
        ({"num_bootstrap": 1.5}, "`num_bootstrap` must be a positive integer; got 1.5"),
        ({"flip_probability": 1.0}, "`flip_probability` must lie between 0 and 1; got 1.0"),
        ({"estimator": "biased", "tau": np.ones(2)}, r"several bandwidths must go with .* got 'biased', tau \(2,\)"),
        ({"tau": 0.0}, "`tau` must be positive and finite"),
    ],
)
def test_wrong_arguments_are_named(change, message):
    good = {"points": jnp.ones((6, 3)), "scores": jnp.ones((6, 3)), "tau": 1.0, "rng_key": KEY}
    with pytest.raises(ValueError, match="`jaxgauss.ksd_test`: .*" + message):
        ksd_test(**{**good, **change})
