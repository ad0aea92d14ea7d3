"""`mmd_test` and `hsic_test` by random waves: their statistics beside matrices of the same waves, level and power."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import binom

from formulas import soft_maximum
from jaxgauss import Sliced, explain, hsic_test, mmd_test
from jaxgauss._arrays.tracing import with_arrays
from jaxgauss._checks.settings import Settings
from jaxgauss._engines.sliced import covariances, forms
from jaxgauss._kernels.kernels import GAUSS, KERNELS
from jaxgauss._methods import hsic_test as of_hsic
from jaxgauss._methods import labelings, resampling
from jaxgauss._methods import mmd_test as of_mmd
from oracle import relative_error

KEY = jax.random.key(7)
ENGINE = Sliced(13, 3, rng_key=jax.random.key(1))  # some directions are padding


def steps(turns, step):
    return np.concatenate([np.round(f(2 * np.pi * turns) / step) * step for f in (np.cos, np.sin)], -1)


def matrix(points, tau, kernel):
    """Of the same waves. Its diagonal is one up to steps."""
    engine, key = ENGINE.without_arrays()
    of = engine.drawn(key, kernel, points.shape[1], "float64")
    scaled, ratios = (np.asarray(z) for z in forms.scaled(points, jnp.atleast_1d(tau), "float64"))
    turns = (scaled @ of.directions.T)[:, :, None] * of.frequencies.T[None] * ratios[0]
    phi = steps(turns.reshape(len(points), -1), forms.STEP)
    return phi @ phi.T / of.frequencies.size


def statistic(k, labels, estimator):
    """MMD² of every labeling, a column."""

    def within(k):
        return k.mean() if estimator == "biased" else (k.sum() - len(k)) / (len(k) * (len(k) - 1))

    return np.array([within(k[h][:, h]) + within(k[~h][:, ~h]) - 2 * k[h][:, ~h].mean() for h in labels.T])


CASES = [
    (23, 17, "permutation", "biased", 1, 0.7, "gauss", 2),
    (20, 20, "wild", "unbiased", 1, 0.7, "matern12", 7),
    (43, 30, "bins", "unbiased", 6, 0.7, "gauss", 7),
    (230, 150, "bins", "unbiased", 30, [0.2, 1.0], "imq", 2),
    (30, 43, "permutation", "unbiased", 1, [0.2, 1.0, 1e3], "gauss", 3),
]


@pytest.mark.parametrize("m, n, how, estimator, size, tau, kernel, dim", CASES)
def test_statistics_are_those_of_the_matrix_of_the_waves(
    rng, monkeypatch, capsys, m, n, how, estimator, size, tau, kernel, dim
):
    """In several chunks; of bins that have less points than a chunk, or more, whose features are summed or not."""
    monkeypatch.setattr(of_mmd, "BINS", 5)
    monkeypatch.setattr(forms, "ROWS", 24)
    monkeypatch.setattr(forms, "LARGE", 7)
    monkeypatch.setattr(forms, "NUMBERS", 30)
    jax.clear_caches()
    x, y = (rng.normal(size=(k, dim)) + 0.3 * i for i, k in enumerate((m, n)))
    test = functools.partial(mmd_test, x, y, np.asarray(tau), rng_key=KEY, num_permutations=30, estimator=estimator)
    result = test(resampling=how, kernel=kernel, engine=ENGINE)
    design = labelings.Design(m, n, how, 1, 32, bin_size=size)
    pool = np.asarray(labelings.shuffled(design, KEY, jnp.concatenate([x, y])))
    labels = np.asarray(labelings.of_points(design, labelings.labels(design, KEY, 0)))[:, 1:]
    found, exact = np.append(result.statistic, result.null_statistics), []
    for t in np.atleast_1d(tau):
        k = matrix(pool * np.sqrt(t / np.max(tau)), np.max(tau), KERNELS[kernel])
        norm = np.sqrt(np.square(k[~np.eye(len(k), dtype=bool)]).mean()) if np.ndim(tau) else 1
        exact.append(statistic(k, labels, estimator) / norm)
    if np.ndim(tau):
        exact = [soft_maximum(min(m, n), exact)]
    # centers of scaled points differ in the last digit, which may move a few features by a step
    assert relative_error(found, exact[0]) < (1e-5 if np.ndim(tau) else 1e-9)
    assert float(result.p_value) == pytest.approx((1 + (exact[0][1:] >= exact[0][0] - 1e-12).sum()) / 31)
    with_bar = test(resampling=how, kernel=kernel, engine=ENGINE, progress=True)
    assert np.array_equal(with_bar.null_statistics, result.null_statistics)
    assert "mmd_test: 100%" in capsys.readouterr().err


def paired(x, y, tau_x, tau_y, estimator):
    """The centered matrices of every pair of waves."""
    engine, key = ENGINE.without_arrays()
    settings = Settings(engine=engine, dtype="float64", function="hsic_test", kernel=GAUSS)
    with with_arrays(key):
        waves = covariances.paired_waves(settings, x.shape[1], y.shape[1])
    n, each = len(x), []
    for z, w, tau in zip((x, y), waves, (tau_x, tau_y), strict=True):
        scaled, _ = forms.scaled(jnp.asarray(z), jnp.atleast_1d(tau), "float64")
        phi = steps((np.asarray(scaled) @ np.asarray(w).T)[..., None], covariances.STEP)  # (n, waves, 2)
        k = np.einsum("iqs,jqs->qij", phi, phi)
        others = 1 - np.eye(n)
        if estimator == "biased":
            h = np.eye(n) - 1 / n
            each.append(h @ k @ h)
        else:
            k = k * others
            rows, all_of = k.sum(1) / (n - 2), k.sum((1, 2)) / ((n - 1) * (n - 2))
            each.append(others * (k - rows[:, None] - rows[:, :, None] + all_of[:, None, None]))
    return each


@pytest.mark.parametrize(
    "n, estimator, how", [(41, "biased", "permutation"), (30, "unbiased", "permutation"), (143, "biased", "bins")]
)
def test_hsic_is_that_of_the_matrices_of_the_waves(rng, monkeypatch, capsys, n, estimator, how):
    monkeypatch.setattr(of_hsic, "BINS", 10)
    monkeypatch.setattr(covariances, "AT_ONCE", 11 * n)
    monkeypatch.setattr(covariances, "EXACT", 8)
    monkeypatch.setattr(resampling, "BYTES", 4 * 40 * 7)
    jax.clear_caches()
    x = rng.normal(size=(n, 2))
    y = x**2 @ rng.normal(size=(2, 3)) + rng.normal(size=(n, 3))
    test = functools.partial(hsic_test, x, y, 0.7, 1.3, rng_key=KEY, num_permutations=25, estimator=estimator)
    result = test(resampling=how, engine=ENGINE)
    size = n // 10 if how == "bins" else 1
    bins = n // size
    order = np.arange(n)
    if how == "bins":
        key = jax.random.split(jax.random.fold_in(KEY, of_hsic.OTHERS), 3)[2]
        order = np.asarray(jax.random.permutation(key, n))
    design = resampling.Resamplings(bins, 25, estimator, "float64", 1, 26)
    orders = np.asarray(of_hsic._orders(design, KEY, 0)).T
    a, b = paired(x, y, 0.7, 1.3, estimator)
    a, b = (z[:, order][:, :, order] for z in (a, b))
    exact = []
    for of_bins in orders:
        p = np.append((of_bins[:, None] * size + np.arange(size)).ravel(), np.arange(bins * size, n))
        exact.append((a * b[:, p][:, :, p]).sum((1, 2)).mean() / (n**2 if estimator == "biased" else n * (n - 3)))
    found = np.append(result.statistic, result.null_statistics)
    # steps move the diagonal, which the unbiased estimate takes for one
    assert np.abs(found - exact).max() < (1e-12 if estimator == "biased" else 1e-3) * np.abs(exact).max()
    with_bar = test(resampling=how, engine=ENGINE, progress=True)
    assert np.array_equal(with_bar.null_statistics, result.null_statistics)
    assert "hsic_test: 100%" in capsys.readouterr().err


def test_bandwidths_of_hsic_are_aggregated(rng):
    x, y = rng.normal(size=(30, 2)), rng.normal(size=(30, 1))
    taus = np.array([0.3, 3.0]), np.array([0.5, 5.0, 50.0])
    result, each = hsic_test(x, y, *taus, rng_key=KEY, num_permutations=20, engine=ENGINE), []
    for s, t in itertools.product(*taus):
        one = hsic_test(x, y, s, t, rng_key=KEY, num_permutations=20, engine=ENGINE)
        a, b = (z.mean(0) for z in paired(x, y, s, t, "unbiased"))
        norm = np.sqrt(np.square(a).sum() * np.square(b).sum())
        each.append(np.append(one.statistic, one.null_statistics) * 30 * 27 / norm)
    assert relative_error(np.append(result.statistic, result.null_statistics), soft_maximum(30, each)) < 0.01


def shifted(key, num, by, dim=4):
    x, y = jax.random.normal(key, (2, num, dim))
    return x, y + by


def dependent(key, num, strength):
    x, z = jax.random.normal(key, (2, num, 2))
    return x, strength * (jnp.square(x) - 1) + z


TESTS = {
    "mmd": (mmd_test, shifted, (0.25,), {}),
    "mmd, bins": (mmd_test, shifted, (0.25,), {"resampling": "bins"}),
    "hsic": (hsic_test, dependent, (0.5, 0.5), {}),
    "hsic, bins": (hsic_test, dependent, (0.5, 0.5), {"resampling": "bins"}),
}


@pytest.mark.parametrize("name", TESTS)
def test_a_key_is_an_operand(rng, name):
    """The same one gives the same statistics, also under `jit`; another one others, by the same program."""
    function, data, taus, how = TESTS[name]
    x, y = data(KEY, 40, 0.3)

    def test(key):
        return function(x, y, *taus, rng_key=KEY, num_permutations=19, engine=Sliced(16, rng_key=key), **how)

    first, again, other = (test(jax.random.key(i)) for i in (1, 1, 2))
    assert np.array_equal(first.null_statistics, again.null_statistics) and first.statistic == again.statistic
    assert not np.isclose(float(first.statistic), float(other.statistic), rtol=1e-3)
    program = jax.jit(test)
    for i, eager in ((1, first), (2, other)):
        staged = program(jax.random.key(i))
        assert relative_error(staged.null_statistics, eager.null_statistics) < 1e-12
        assert staged.p_value == eager.p_value and float(eager.p_value) >= 0.05 - 1e-7
    assert program._cache_size() == 1


@pytest.mark.parametrize("name", ["mmd", "hsic"])
def test_equal_splits_are_ties(name):
    """Points of two values, more of them than labels keep float64: a statistic is one of few, up to no rounding."""
    x, y = (np.arange(1400) // k % 2 * 1.0 for k in (2, 3))
    function, _, taus, _ = TESTS[name]
    result = function(x[:, None], y[:, None], *taus, rng_key=KEY, num_permutations=99, engine=ENGINE)
    design = labelings.Design(1400, 1400, "permutation", 1, 101)
    orders = resampling.Resamplings(1400, 99, "unbiased", "float64", 1, 100)
    if name == "mmd":
        labels = np.asarray(labelings.labels(design, KEY, 0))[:, 2:]
        tables = np.abs((labels * np.append(x, y)[:, None]).sum(0) - (x.sum() + y.sum()) / 2)
    else:
        tables = (x[:, None] * y[np.asarray(of_hsic._orders(orders, KEY, 0))[:, 1:]]).sum(0)
    groups = [np.asarray(result.null_statistics)[tables == t] for t in np.unique(tables)]
    assert max(map(len, groups)) > 2
    assert max(np.ptp(z) for z in groups) <= 1e-13 * np.abs(result.null_statistics).max()


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3, 4))
def p_values(name, num, strength, repetitions, sliced=True):
    """Of as many samples."""
    function, data, taus, how = TESTS[name]

    def p_value(keys):
        engine = {"engine": Sliced(16, 2, rng_key=keys[2]), **how} if sliced else {}
        return function(*data(keys[0], num, strength), *taus, rng_key=keys[1], num_permutations=19, **engine).p_value

    return jax.lax.map(p_value, jax.random.split(KEY, (repetitions, 3)))


@pytest.mark.parametrize("name", TESTS)
def test_the_level_is_exact(monkeypatch, name):
    monkeypatch.setattr(of_mmd, "BINS", 10)
    monkeypatch.setattr(of_hsic, "BINS", 20)
    found = np.asarray(p_values(name, 60, 0.0, 1000))
    assert found.min() >= 0.05 - 1e-7
    for level in (1, 4, 10):
        low, high = binom.interval(0.99994, 1000, level / 20)
        assert low <= (found <= level / 20 + 1e-6).sum() <= high


@pytest.mark.parametrize("name, strength", [("mmd", 0.3), ("mmd, bins", 0.3), ("hsic", 0.4), ("hsic, bins", 0.4)])
def test_power_is_near_that_of_the_full_test(monkeypatch, name, strength):
    monkeypatch.setattr(of_mmd, "BINS", 20)
    monkeypatch.setattr(of_hsic, "BINS", 20)
    sliced = (np.asarray(p_values(name, 80, strength, 100)) <= 0.05).mean()
    full = (np.asarray(p_values(name.split(",")[0], 80, strength, 100, False)) <= 0.05).mean()
    assert full > 0.4 and full - 0.15 < sliced < full + 0.15


@pytest.mark.parametrize("name", TESTS)
def test_memory_is_linear(name):
    """The matrix of so many points has a terabyte; and `explain` takes such a call."""
    function, _, taus, how = TESTS[name]
    x = jax.ShapeDtypeStruct((2**19, 4), "float32")
    test = functools.partial(function, rng_key=KEY, num_permutations=99, engine=Sliced(32, rng_key=KEY), **how)
    program = jax.jit(lambda x, y: test(x, y, *taus)).lower(x, x).compile()
    assert program.memory_analysis().temp_size_in_bytes < 2**19 * 4096
    assert "labelings" in str(explain(test, x, x, *taus))


def test_what_is_no_number_is_no_evidence():
    ones = jnp.ones((8, 2))
    for name in TESTS:
        function, _, taus, how = TESTS[name]
        test = functools.partial(function, rng_key=KEY, num_permutations=19, engine=ENGINE, **how)
        assert np.isnan(test(ones.at[0, 0].set(jnp.nan), ones, *taus).p_value)
        assert float(test(ones, ones, *taus).p_value) == 1.0


def test_wrong_calls_say_what_is_wrong(rng):
    x = rng.normal(size=(20, 2))
    mesh = jax.make_mesh((1,), ("a",))
    with pytest.raises(ValueError, match=r"got Kernel\(energy\).*kernel='matern12', or 'imq'"):
        mmd_test(x, x, 1.0, rng_key=KEY, kernel="energy", engine=ENGINE)
    for test in (functools.partial(mmd_test, x, x, 1.0), functools.partial(hsic_test, x, x, 1.0, 1.0)):
        with pytest.raises(ValueError, match=r"got a mesh. Leave it out"):
            test(rng_key=KEY, mesh=mesh, query_axis="a", engine=ENGINE)
        with pytest.raises(TypeError, match="`rng_key` must be a random key; got None"):
            test(rng_key=KEY, engine=Sliced())
    with pytest.raises(ValueError, match="`resampling` must be one of permutation, bins; got 'wild'"):
        hsic_test(x, x, 1.0, 1.0, rng_key=KEY, resampling="wild", engine=ENGINE)
    with pytest.raises(ValueError, match="`resampling` must be one of permutation, wild; got 'bins'"):
        hsic_test(x, x, 1.0, 1.0, rng_key=KEY, resampling="bins")
    with pytest.raises(ValueError, match=r"`engine` must be 'auto'.* got Blocked"):
        hsic_test(x, x, 1.0, 1.0, rng_key=KEY, engine="blocked")
