"""The permutation test: its labelings, and its statistics against a naive loop; its level: see test_resampling."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare

from formulas import exact, kernel_matrix, soft_maximum
from jaxgauss import mmd_test, rational_quadratic
from jaxgauss._methods import labelings, resampling
from jaxgauss._methods import mmd_test as module
from oracle import relative_error

KEY = jax.random.key(7)


def naive(x, y, tau, labels, estimator):
    """MMD² of every labeling (a column), by indexing the kernel matrix."""
    matrix = kernel_matrix(np.concatenate([x, y]), tau=tau)

    def within(k):
        return k.mean() if estimator == "biased" else (k.sum() - np.trace(k)) / (len(k) * (len(k) - 1))

    return np.array(
        [within(matrix[h][:, h]) + within(matrix[~h][:, ~h]) - 2 * matrix[h][:, ~h].mean() for h in labels.T]
    )


def labels_of(m, n, num, resampling="permutation"):
    design = labelings.Design(m, n, resampling, 1, num + 2)
    return np.asarray(labelings.labels(design, KEY, 0))[:, 1:]  # the samples' own first


@pytest.mark.parametrize(
    "m, n, resampling, estimator", [(23, 17, "permutation", "biased"), (20, 20, "wild", "unbiased")]
)
def test_statistics_are_those_of_a_naive_loop(rng, m, n, estimator, resampling):
    x, y = (jnp.asarray(rng.normal(size=(k, 3)) + 0.3 * i, jnp.float32) for i, k in enumerate((m, n)))
    result = mmd_test(x, y, 0.7, rng_key=KEY, num_permutations=99, estimator=estimator, resampling=resampling)
    exact = naive(x, y, 0.7, labels_of(m, n, 99, resampling), estimator)
    found = np.append(result.statistic, result.null_statistics)
    assert found.shape == (100,) and np.abs(found - exact).max() < 1e-6
    assert float(result.p_value) == pytest.approx((1 + (exact[1:] >= exact[0] - 1e-12).sum()) / 100, abs=1e-6)
    assert result.p_value.dtype == jnp.float32


@pytest.mark.parametrize("method, dim", [("auto", 3), ("blocked", 3), ("waves", 2)])
@pytest.mark.parametrize("m, n, size", [(23, 17, 3), (30, 20, 4)])
def test_bins_are_random_parts_of_the_samples_that_share_labels(rng, monkeypatch, request, method, dim, m, n, size):
    """The last bin of a sample keeps its label if it has fewer points."""
    if method == "waves":
        request.getfixturevalue("free_waves")
    monkeypatch.setattr(module, "BINS", 5)
    x, y = (rng.normal(size=(k, dim)) + 0.3 * i for i, k in enumerate((m, n)))
    engine = "auto" if method == "waves" else method
    test = functools.partial(mmd_test, tau=0.7, rng_key=KEY, num_permutations=30, resampling="bins", engine=engine)
    result = test(x, y)
    design = labelings.Design(m, n, "bins", 1, 32, bin_size=size)
    pool = labelings.shuffled(design, KEY, jnp.concatenate([x, y]))
    of_bins = labelings.labels(design, KEY, 0)[:, 1:]
    labels = np.asarray(labelings.of_points(design, of_bins))
    exact = naive(*np.split(np.asarray(pool), [m]), 0.7, labels, "unbiased")
    assert np.abs(np.append(result.statistic, result.null_statistics) - exact).max() < 1e-9
    assert (labels.sum(0) == m).all() and len(of_bins) == -(-m // size) - (-n // size)
    assert all(len({*z.T.tolist()}) == k for z, k in zip(np.split(np.asarray(pool).T[0], [m]), (m, n), strict=True))
    assert labels[m - m % size : m].all() and not labels[m + n - n % size :].any()
    if method == "auto":  # in several groups, with a bar, and in float32
        monkeypatch.setattr("jaxgauss._methods.pair_forms.GROUP", 8)
        monkeypatch.setattr("jaxgauss._methods.labelings.GROUP", 8)
        monkeypatch.setattr(module, "FEW", 1)
        jax.clear_caches()
        several = test(x, y, progress=True)
        assert (
            relative_error(several.null_statistics, result.null_statistics) < 1e-5 and several.p_value == result.p_value
        )


def test_many_points_share_labels_in_bins_by_default(rng, monkeypatch):
    """Where waves do not make labelings cheap. Sorted samples have the null distribution of any other order."""
    monkeypatch.setattr(module, "BINS", 50)
    monkeypatch.setattr(module, "MANY", 600)
    x, y = (np.sort(rng.normal(size=(300, 4)), 0) for _ in range(2))
    test = functools.partial(mmd_test, tau=0.2, rng_key=KEY, num_permutations=199)
    auto, bins, points = (test(x, y, resampling=how) for how in ("auto", "bins", "permutation"))
    assert np.array_equal(auto.null_statistics, bins.null_statistics)
    assert 0.7 < float(bins.null_statistics.std() / points.null_statistics.std()) < 1.4
    for fewer in ((x[:-1], y), (x[:, :3], y[:, :3])):
        auto, points = (test(*fewer, resampling=how) for how in ("auto", "permutation"))
        assert np.array_equal(auto.null_statistics, points.null_statistics)


OTHERS = [("matern12", "biased"), ("energy", "unbiased"), (rational_quadratic(2.5), "unbiased")]


@pytest.mark.parametrize("kernel, estimator", OTHERS, ids=str)
def test_other_kernels_have_the_statistic_of_the_loss(rng, kernel, estimator):
    x, y = rng.normal(size=(37, 2)), rng.normal(size=(30, 2)) + 0.3
    test = functools.partial(mmd_test, x, y, 0.7, rng_key=KEY, num_permutations=30, kernel=kernel, estimator=estimator)
    auto, weights = test(), (np.full(37, 1 / 37), np.full(30, 1 / 30))
    assert relative_error(auto.statistic, exact("mmd", (x, y, *weights, 0.7), kernel, estimator)) < 1e-10
    if kernel != "energy":
        by_sums = test(engine="blocked")
        assert by_sums.p_value == auto.p_value
        assert relative_error(by_sums.null_statistics, auto.null_statistics) < 1e-9


@pytest.mark.usefixtures("small_blocks")
def test_many_points_in_blocks_with_a_bar(rng, capsys):
    x, y = rng.normal(size=(90, 3)).astype("float32"), rng.normal(size=(91, 3)).astype("float32")
    result = mmd_test(x, y, 0.7, rng_key=KEY, num_permutations=30, progress=True)
    exact = naive(x, y, 0.7, labels_of(90, 91, 30), "unbiased")
    assert np.abs(np.append(result.statistic, result.null_statistics) - exact).max() < 1e-4 * np.abs(exact).max()
    assert "mmd_test: 100%" in capsys.readouterr().err


def aggregated(x, y, taus, labels, estimator="unbiased"):
    """The soft maximum for every labeling; each kernel over its largest entry, which nothing depends on."""
    z = np.concatenate([x, y]).astype(np.float64)
    squared, others = np.square(z[:, None] - z).sum(-1), ~np.eye(len(z), dtype=bool)
    (m, n), each = (len(x), len(y)), []
    in_x, in_y = (1 / m**2, 1 / n**2) if estimator == "biased" else (1 / (m * (m - 1)), 1 / (n * (n - 1)))
    for tau in np.asarray(taus, np.float64):
        matrix = np.where(others, np.exp(-tau / 2 * (squared - squared[others].min()) * others), 0)
        h, e = labels.astype(float), 1.0 - labels
        within = in_x * (h * (matrix @ h)).sum(0) + in_y * (e * (matrix @ e)).sum(0)
        statistic = within - 2 / (m * n) * (h * (matrix @ e)).sum(0)
        each.append(statistic / np.sqrt(np.square(matrix[others]).mean()))
    return soft_maximum(min(m, n), each)


@pytest.mark.parametrize("estimator, method", [("unbiased", "auto"), ("biased", "blocked")])
def test_bandwidths_are_aggregated(rng, estimator, method):
    """Each pair once, or by Gauss sums that hold the diagonal."""
    x, y, taus = rng.normal(size=(15, 2)), rng.normal(size=(19, 2)) + 0.4, np.array([0.3, 1.0, 4.0])
    labels = labels_of(15, 19, 50)
    test = functools.partial(mmd_test, rng_key=KEY, num_permutations=50, estimator=estimator, engine=method)
    result, exact = test(x, y, taus), aggregated(x, y, taus, labels, estimator)
    assert relative_error(np.append(result.statistic, result.null_statistics), exact) < 1e-12
    if method == "auto":  # in two clusters, where products have lost the distances, differences have not
        x, y = (z + np.where(np.arange(len(z)) % 2, 1e7, 0)[:, None] for z in (x, y))
        result, exact = test(x, y, taus), aggregated(x, y, taus, labels, estimator)
        assert relative_error(np.append(result.statistic, result.null_statistics), exact) < 1e-7


@pytest.mark.parametrize(
    "m, n, dim, estimator",
    [(200, 200, 30, "unbiased"), (3, 3, 1, "biased"), (3, 40, 100, "unbiased"), (700, 500, 3, "biased")],
)
def test_narrow_bandwidths_do_not_hide_in_the_diagonal(m, n, dim, estimator):
    """Bandwidths over six decades: the p-values are those of float64 on the same labelings."""
    labels = labels_of(m, n, 99)
    for seed in range(5 if m < 100 else 2):
        rng = np.random.default_rng(seed)
        x, y = rng.normal(size=(m, dim)).astype("float32"), (rng.normal(size=(n, dim)) + 0.1).astype("float32")
        taus = (10 ** rng.uniform(-3, 3, 4) / dim).astype("float32")
        taus[0] = 1e5 if seed % 2 == 0 else taus[0]
        result = mmd_test(x, y, taus, rng_key=KEY, num_permutations=99, estimator=estimator)
        exact = aggregated(x, y, taus, labels, estimator)
        found = np.append(result.statistic, result.null_statistics)
        assert np.abs(found - exact).max() <= 1e-6 * np.abs(exact).max() + (1e-7 if m + n > module.FEW else 0)
        ties = 1e-13 * np.abs(exact).max()
        assert float(result.p_value) == pytest.approx((1 + (exact[1:] >= exact[0] - ties).sum()) / 100, abs=1e-6)


def test_what_gauss_sums_do_not_see_is_left_out(rng):
    """Asked for by name they hold the diagonal, so of a bandwidth far too narrow they know nothing."""
    x, y = (rng.normal(size=(100, 10)).astype("float32") for _ in range(2))
    test = functools.partial(mmd_test, x, y, rng_key=KEY, num_permutations=19, engine="blocked")
    alone, with_narrow = (test(np.asarray(taus, "float32")) for taus in ([0.1, 0.1], [0.1, 1e5]))
    assert float(alone.p_value) == float(with_narrow.p_value)
    assert np.isfinite(with_narrow.null_statistics).all() and np.any(with_narrow.null_statistics)


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_signs_are_exact_in_half_precision(rng, precision):
    x, y = (jnp.asarray(rng.normal(size=(300, 4)) + 0.2 * i, jnp.float32) for i in range(2))
    half, single = (mmd_test(x, y, 0.5, rng_key=KEY, num_permutations=99, precision=p) for p in (precision, None))
    spread = single.null_statistics.std()
    assert jnp.abs(half.null_statistics - single.null_statistics).max() < 0.1 * spread
    assert float(half.p_value) == float(single.p_value) == pytest.approx(0.01)


def test_labelings_are_uniform():
    """All 35 ways to choose 3 of 7, equally often."""
    labels = labels_of(3, 4, 7000)[:, 1:]
    assert (labels.sum(0) == 3).all()
    counts = np.unique(labels.T @ 2 ** np.arange(7), return_counts=True)[1]
    assert len(counts) == 35 and chisquare(counts).pvalue > 1e-6
    swaps = labels_of(5, 5, 2000, "wild")[:, 1:]
    assert (swaps[:5] != swaps[5:]).all()  # of each pair one is in x
    assert chisquare(np.unique(swaps[:5].T @ 2 ** np.arange(5), return_counts=True)[1]).pvalue > 1e-6


def test_p_values_compare_as_python_numbers_do():
    """In float32 0.05 lies above 0.05: a p-value of exactly α is at most α, the next one is not."""
    for num in (19, 99, 999):
        table = np.asarray(resampling._shares(num, np.dtype("float32")))
        numbers = np.array([(1 + i) / (1 + num) for i in range(num + 1)])
        assert table.dtype == np.float32 and table[-1] == 1
        expected = numbers[:, None] <= numbers
        assert np.array_equal(table.astype(float)[:, None] <= numbers, expected)
        assert np.array_equal(table[:, None] <= numbers.astype(np.float32), expected)
    x = jnp.arange(12.0, dtype="float16").reshape(6, 2)
    assert mmd_test(x, x + 1, 1.0, rng_key=KEY, num_permutations=19).p_value.dtype == np.float32
