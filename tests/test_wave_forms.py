"""The two-sample test of many points in few dimensions: forms by waves against the dense formula, and the choice."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_mmd_test import KEY, aggregated, labels_of, naive

from formulas import kernel_matrix
from jaxgauss import mmd_test
from jaxgauss._engines.fourier import forms as wave_forms
from jaxgauss._engines.fourier import nufft
from jaxgauss._methods import mmd_test as module

TAUS = {1: 9.0, 2: 4.0, 3: 0.1}
AS_EQUAL = 16 * 4 * float(np.finfo("float32").eps)  # statistics are equal if they differ by this times mean(K) / N


@pytest.fixture(scope="module")
def traced():
    """Waves wherever they hold the points; the number of blocks of every test that is traced to take them."""
    traced, forms = [], module.wave_forms

    def recorded(points, tau, most, labelings):
        traced.append(most)
        return forms(points, tau, most, labelings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "wave_forms", recorded)
        patch.setattr(module, "blocks_that_pay", lambda num, dim, *_: 4 if dim <= 3 else 0)
        jax.clear_caches()  # which programs compute the forms is not part of their keys
        yield traced
    jax.clear_caches()


@pytest.fixture
def taken(traced):
    """Those of this test, whose samples have sizes of their own."""
    traced.clear()
    return traced


def samples(rng, m, n, dim):
    return rng.normal(size=(m, dim)), 1.1 * rng.normal(size=(n, dim)) + 0.1


def statistics(test):
    return np.append(test.statistic, test.null_statistics)


def largest_error(found, exact, x, y, tau):
    """In units of what tests take as equal."""
    mean = kernel_matrix(np.concatenate([x, y]), tau=tau).mean()
    return np.abs(found - exact).max() / (AS_EQUAL * mean / (len(x) + len(y)))


@pytest.mark.parametrize("way, dim, m, n, estimator, resampling", [
    ("products", 1, 300, 300, "biased", "wild"),
    ("finufft", 2, 500, 200, "unbiased", "permutation"),
    ("products", 3, 150, 400, "biased", "permutation"),
])  # fmt: skip
def test_statistics_are_those_of_all_pairs(rng, monkeypatch, taken, way, dim, m, n, estimator, resampling):
    if way == "products":
        monkeypatch.setattr(nufft, "is_installed", lambda: False)
    else:
        pytest.importorskip("finufft")
        monkeypatch.setattr(wave_forms, "transforms_pay", lambda *_: True)
    x, y = samples(rng, m, n, dim)
    how = {"rng_key": KEY, "num_permutations": 19, "estimator": estimator, "resampling": resampling}
    test = mmd_test(x, y, TAUS[dim], **how)
    exact = naive(x, y, TAUS[dim], labels_of(m, n, 19, resampling), estimator)
    assert len(taken) == 1 and largest_error(statistics(test), exact, x, y, TAUS[dim]) < 0.5
    assert float(test.p_value) == pytest.approx((1 + (exact[1:] >= exact[0]).sum()) / 20, abs=1e-12)


@pytest.mark.parametrize("dim, estimator", [(1, "unbiased"), (2, "biased")])
def test_bandwidths_share_the_coefficients(rng, taken, dim, estimator):
    x, y = samples(rng, 400, 300, dim)
    taus = TAUS[dim] * np.array([1.0, 0.1, 0.5])
    test = mmd_test(x, y, taus, rng_key=KEY, num_permutations=19, estimator=estimator)
    exact = aggregated(x, y, taus, labels_of(400, 300, 19), estimator)
    assert len(taken) == 1 and np.abs(statistics(test) - exact).max() < 1e-9 * np.abs(exact).max()


def test_the_digits_are_those_of_the_differences(rng, taken):
    """A millionth of the kernel: samples that differ in one point of thousands, in float32."""
    x = rng.normal(size=(3000, 1)).astype("float32")
    y = np.concatenate([x[1:], x[:1] + 1e-3])
    test = mmd_test(x, y, 4.0, rng_key=KEY, num_permutations=19, estimator="biased")
    phi = np.exp(-2 * np.square(np.float64(y[-1]) - np.float64(x[0])))
    exact = 2 * (1 - phi.item()) / 3000**2  # all other points are in both
    rounding = AS_EQUAL * kernel_matrix(x, tau=4.0).mean() / 6000
    assert taken == [1] and abs(float(test.statistic) - exact) < 1e-3 * rounding
    assert exact < 1e-12 < float(test.null_statistics.min()) and float(test.p_value) == 1


@pytest.mark.parametrize("distance, blocks", [(30.0, 2), (1e6, None)])
def test_clouds_far_apart_and_an_outlier(rng, taken, distance, blocks):
    """Waves hold a large box; of a larger one, all pairs are summed as before."""
    x, y = samples(rng, 500, 400, 2)
    clouds = [x + distance * (np.arange(500) % 2)[:, None], y + distance * (np.arange(400) % 2)[:, None]]
    outlier = [np.concatenate([x, np.full((1, 2), distance)]), y]
    for x, y in (clouds, outlier):
        taken.clear()
        test = mmd_test(x, y, 1.0, rng_key=KEY, num_permutations=19)
        exact = naive(x, y, 1.0, labels_of(len(x), len(y), 19), "unbiased")
        if blocks:
            assert largest_error(statistics(test), exact, x, y, 1.0) < 0.5
        assert np.abs(statistics(test) - exact).max() < 1e-8
        assert taken == ([blocks] if blocks else [])


def test_under_jit_both_ways_are_there(rng, taken):
    """The points decide when the program runs; what it returns is the same."""
    test = functools.partial(mmd_test, tau=2.0, rng_key=KEY, num_permutations=19)
    (x, y), compiled = samples(rng, 200, 200, 2), jax.jit(test)
    points = [x + far * (np.arange(200) == 0)[:, None] for far in (0.0, 1e5)]
    exact = [naive(z, y, 2.0, labels_of(200, 200, 19), "unbiased") for z in points]
    for z, expected in zip(points, exact, strict=True):
        np.testing.assert_allclose(statistics(compiled(z, y)), expected, rtol=0, atol=1e-9)
    assert taken == [4]  # a compiled program has as many as pay
    many = jax.vmap(test)(jnp.stack(points), jnp.stack([y, y]))
    np.testing.assert_allclose(many.null_statistics[1], exact[1][1:], rtol=0, atol=1e-9)


def test_progress_and_blocks(rng, taken, monkeypatch, capsys):
    x, y = samples(rng, 200, 100, 2)
    test = functools.partial(mmd_test, x, y, 2.0, rng_key=KEY, num_permutations=30)
    at_once = test()
    monkeypatch.setattr(module, "BYTES_OF_WAVES", 8 * 6400 * 10)
    in_blocks = test(progress=True)
    assert "4/4" in capsys.readouterr().err and taken == [1, 1]
    np.testing.assert_allclose(statistics(in_blocks), statistics(at_once), rtol=0, atol=1e-13)
    assert float(in_blocks.p_value) == float(at_once.p_value)


@pytest.mark.filterwarnings("ignore:.*got NaN among them")
def test_nan_gives_no_p_value(rng, taken):
    x, y = samples(rng, 100, 100, 1)
    x[3] = np.nan
    assert np.isnan(mmd_test(x, y, 2.0, rng_key=KEY, num_permutations=19).p_value) and taken == [1]


def test_other_tests_take_pairs(rng, taken):
    x, y = samples(rng, 60, 60, 2)
    test = functools.partial(mmd_test, rng_key=KEY, num_permutations=19)
    test(x, y, 1.0, kernel="imq")
    test(x, y, 1.0, engine="blocked")
    test(*samples(rng, 60, 60, 4), 1.0)
    test(x, y, 100.0)  # so sparse that the diagonal is nearly all
    assert taken == []
    test(x, y, 1.0)
    assert taken == [1]


@pytest.mark.parametrize("installed", [True, False])
def test_waves_are_taken_where_they_are_estimated_to_be_faster(monkeypatch, installed):
    monkeypatch.setattr(nufft, "is_installed", lambda: installed)
    pays = wave_forms.blocks_that_pay
    assert pays(200_000, 1, 201, 1, 3) > 1 and pays(200_000, 2, 201, 1, 3) >= 1  # boxes of twenty bandwidths and more
    assert pays(2_000_000, 2, 201, 1, 30) >= pays(200_000, 2, 201, 1, 3)
    assert pays(400, 2, 1001, 1, 1) == 0 and pays(200_000, 4, 201, 1, 3) == 0
    monkeypatch.setattr(wave_forms, "are_known", lambda *_: False)
    assert pays(200_000, 2, 201, 1, 3) == 0
