"""Estimators pass scikit-learn's own checks, agree with its densities and regressions, and work in its tools."""

import pickle
import re

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
import sklearn.kernel_ridge
import sklearn.neighbors
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator
from threadpoolctl import threadpool_limits

import jaxgauss
from jaxgauss._arrays.points import padded
from jaxgauss.sklearn import GaussianProcess, KernelDensity, KernelMean, KernelRidge

pytestmark = pytest.mark.slow

SKIPPED = {"check_sample_weights_pandas_series", "check_array_api_input", "check_regressor_data_not_an_array"}


@pytest.fixture(autouse=True)
def one_thread():
    """For matrices as small as these, threads of LAPACK that share cores with other processes only wait."""
    with threadpool_limits(1):
        yield


@pytest.fixture
def data(rng):
    """Points, two values each, weights of which some are zero, and points elsewhere."""
    points = rng.normal(size=(307, 3))
    values = np.stack([np.sin(points[:, 0]), points[:, 1] ** 2], 1) + 0.1 * rng.normal(size=(307, 2))
    return points, values, rng.integers(0, 4, 307).astype(float), 2 * rng.normal(size=(71, 3))


@pytest.mark.parametrize("model", [KernelDensity(), KernelMean(), GaussianProcess(), KernelRidge()])
def test_scikit_learn_finds_nothing_wrong(model):
    found = check_estimator(model, on_fail="raise", on_skip=None)
    statuses = {one["check_name"]: one["status"] for one in found}
    assert {name for name, status in statuses.items() if status != "passed"} <= SKIPPED and len(statuses) > 40


@pytest.mark.parametrize("dtype, error, weighted", [(np.float64, 1e-12, True), (np.float32, 3e-5, False)])
def test_densities_are_scikit_learns(as_it_comes, data, dtype, error, weighted):
    points, _, weights, queries = data
    weights = weights + 0.5 if weighted else None  # scikit-learn refuses zero
    ours = KernelDensity(tau=4.0).fit(points.astype(dtype), sample_weight=weights)
    # of one leaf: a tree's bounds lose digits far from the points, 1e-4 of a log-density here
    theirs = sklearn.neighbors.KernelDensity(bandwidth=0.5, rtol=0, atol=0, leaf_size=len(points))
    theirs.fit(points, sample_weight=weights)
    expected = theirs.score_samples(queries)
    found = ours.score_samples(queries)
    assert found.dtype == dtype and found.flags.writeable
    np.testing.assert_allclose(found, expected, rtol=error, atol=error)
    assert ours.score(queries) == pytest.approx(expected.sum(), rel=error)


@pytest.mark.parametrize("dtype, error, weighted", [(np.float64, 1e-8, True), (np.float32, 2e-4, False)])
def test_ridge_regression_is_scikit_learns(as_it_comes, data, dtype, error, weighted):
    points, values, weights, queries = data
    weights = weights if weighted else None
    ours = KernelRidge(alpha=0.1, tau=1.4, rank=50).fit(points.astype(dtype), values, sample_weight=weights)
    theirs = sklearn.kernel_ridge.KernelRidge(alpha=0.1, kernel="rbf", gamma=0.7)
    theirs.fit(points, values, sample_weight=weights)
    coefficients = 0.1 * ours.dual_coef_, 0.1 * theirs.dual_coef_
    for found, expected in ((ours.predict(queries), theirs.predict(queries)), coefficients):
        assert found.dtype == dtype and found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=0, atol=error)
    assert 1 < ours.n_iter_ < 100 and ours.score(points, values) > 0.9


def test_means_are_those_of_the_formula(as_it_comes, data):
    points, values, weights, queries = data
    products = weights[None] * np.exp(-np.square(queries[:, None] - points[None]).sum(-1))
    model = KernelMean(tau=2.0).fit(points, values, sample_weight=weights)
    np.testing.assert_allclose(model.predict(queries), products @ values / products.sum(1, keepdims=True), rtol=1e-11)
    of_one = clone(model).fit(points, values[:, 0], sample_weight=weights)
    np.testing.assert_allclose(of_one.predict(queries), model.predict(queries)[:, 0], rtol=1e-13)


def test_other_kernels(data):
    points, values, weights, queries = (x[:67] for x in data)
    kernel = jaxgauss.rational_quadratic(3.0)
    values, options = values[:, 0], {"kernel": kernel}
    density = KernelDensity(0.5, **options).fit(points, sample_weight=weights).score_samples(queries)
    expected = jaxgauss.kde_logpdf(queries, points, 0.5, weights=weights, **options)
    np.testing.assert_allclose(density, expected, rtol=1e-12)
    mean, ridge = (
        x.fit(points, values).predict(queries) for x in (KernelMean(0.5, kernel), KernelRidge(1, 0.5, kernel))
    )
    np.testing.assert_allclose(mean, jaxgauss.kernel_mean(queries, points, values, 0.5, **options), rtol=1e-10)
    cross, gram = (jaxgauss.kernel_sum(x, points, np.eye(67), 0.5, **options) for x in (queries, points))
    np.testing.assert_allclose(ridge, cross @ np.linalg.solve(gram + np.eye(67), values), atol=1e-8)


@pytest.mark.parametrize("dtype, error", [(np.float64, 1e-11), (np.float32, 3e-5)])
def test_a_named_bandwidth_is_that_of_scipy(as_it_comes, data, dtype, error):
    """In units of 1e100, with weights, with samples drawn from it, in a search."""
    points, _, weights, queries = data
    unit = 1e100 if dtype == np.float64 else 1e10
    points, queries = ((unit * x @ np.triu(np.ones((3, 3)))).astype(dtype) for x in (points, queries))
    kept = weights > 0
    model = KernelDensity(bandwidth="silverman").fit(points, sample_weight=weights)
    theirs = scipy.stats.gaussian_kde(points[kept].T.astype(float) / unit, "silverman", weights[kept])
    expected = theirs.logpdf(queries.T.astype(float) / unit) - 3 * np.log(unit)
    np.testing.assert_allclose(model.score_samples(queries), expected, rtol=0, atol=error * np.abs(expected).max())
    np.testing.assert_allclose(model.covariance_ / unit**2, theirs.covariance, rtol=1e-12)
    drawn = pickle.loads(pickle.dumps(model)).sample(20_000, random_state=0)
    spread = np.cov(drawn.T.astype(float) / unit)
    assert drawn.dtype == dtype and np.abs(spread / (theirs.covariance * (1 + theirs.factor**-2)) - 1).max() < 0.1
    search = GridSearchCV(KernelDensity(), {"bandwidth": ["scott", None]}).fit(points / unit)
    assert search.best_params_ == {"bandwidth": "scott"} and KernelDensity().fit(points / unit).covariance_ is None


def test_bandwidths_are_chosen_by_leaving_one_out(data):
    points, values, weights, _ = data
    density = KernelDensity("leave_one_out").fit(points, sample_weight=weights)
    assert density.tau_ == float(jaxgauss.leave_one_out_tau(points, weights=weights).tau)
    mean = KernelMean("leave_one_out").fit(points, values)
    assert mean.tau_ == float(jaxgauss.leave_one_out_tau(points, values=values).tau) != density.tau_


@pytest.mark.parametrize("dtype, unit, error", [(np.float64, 140, 1e-7), (np.float32, 17, 5e-3)])
@pytest.mark.parametrize("tau", [4.0, "leave_one_out"])
def test_units_of_points_values_and_weights_do_not_matter(as_it_comes, data, dtype, unit, error, tau):
    points, values, weights, queries = (x[:60] for x in data)

    def results(length, sizes, weight):
        """Predictions in units of the values, log-densities in those of points, and τ."""
        given = {"X": (length * points).astype(dtype), "sample_weight": weight * weights}
        places, there = (length * queries).astype(dtype), np.array(tau if tau == "leave_one_out" else tau / length**2)
        density, mean = (x(there.item()).fit(y=sizes * values, **given) for x in (KernelDensity, KernelMean))
        ridge = KernelRidge(0.1 * weight, 4.0 / length**2).fit(y=sizes * values, **given)
        logs = density.score_samples(places) + 3 * np.log(length)
        means = [x.predict(places) / sizes for x in (mean, ridge)]
        assert all(x.dtype == dtype for x in (density.score_samples(places), mean.predict(places)))
        return logs, *means, density.tau_ * length**2, mean.tau_ * length**2

    expected = results(1.0, np.ones(2), 1.0)
    for length in (10.0**unit, 10.0**-unit):
        for sizes, weight in (
            ([10.0 ** (2 * unit), 1.0], 10.0**-unit),
            ([10.0 ** (-2 * unit), 1.0], 10.0 ** (2 * unit)),
        ):
            sizes = np.array(sizes)
            if tau == "leave_one_out":  # errors of both columns are added
                sizes[1] = sizes[0]
            for found, exact in zip(results(length, sizes, weight), expected, strict=True):
                np.testing.assert_allclose(found, exact, rtol=error, atol=error)


def test_a_best_bandwidth_out_of_range_is_an_error(data):
    points, values, *_ = data
    for unit in (1e200, 1e-200):
        for model in (KernelDensity("leave_one_out"), KernelMean("leave_one_out")):
            with pytest.raises(ValueError, match=r"the best `tau` must lie in the range of float64; got tau (0.0|inf)"):
                model.fit(unit * points[:30], values[:30])


def test_points_of_negligible_weight_count_no_more_than_others_without(data):
    points, values, _, queries = (x[:60] for x in data)
    weights = np.where(np.arange(60) < 5, 1e-200, 1.0)
    found, expected = (
        KernelRidge(0.1).fit(points, values, sample_weight=x).predict(queries) for x in (weights, np.round(weights))
    )
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_a_bar_counts_the_steps_of_ridge_regression(data, capsys):
    points, values, *_ = data
    shown, silent = (KernelRidge(0.1, rank=5, progress=x).fit(points, values) for x in (True, False))
    np.testing.assert_allclose(shown.dual_coef_, silent.dual_coef_, rtol=0, atol=1e-9)
    counts = [int(x) for x in re.findall(r"KernelRidge: (\d+)step", capsys.readouterr().err)]
    assert shown.n_iter_ <= counts[-1] <= shown.n_iter_ + 2


@pytest.mark.parametrize("model", [KernelDensity(), KernelMean(), KernelRidge()], ids=str)
def test_grid_search_in_a_pipeline_and_pickles(data, model):
    points, values, _, queries = data
    step = type(model).__name__.lower()
    grid = {"alpha": [1e-2, 1e3], "tau": [0.5, 1e3]} if step == "kernelridge" else {"tau": [0.1, 4.0, 1e3]}
    grid = {f"{step}__{name}": x for name, x in grid.items()}
    search = GridSearchCV(make_pipeline(StandardScaler(), model), grid, cv=2)
    search.fit(10 * points[1:], values[1:, 0])  # in halves of one size
    assert search.best_params_[f"{step}__tau"] == (0.5 if step == "kernelridge" else 4.0)
    assert search.best_params_.get(f"{step}__alpha", 0.01) == 0.01
    ask = "score_samples" if step == "kerneldensity" else "predict"
    found, again = (getattr(x, ask)(10 * queries) for x in (search, pickle.loads(pickle.dumps(search))))
    np.testing.assert_array_equal(found, again)


def test_clones_keep_a_kernel_of_ones_own(data):
    points, _, _, queries = data
    model = KernelMean(kernel=jaxgauss.Kernel(lambda u: 1 / jnp.square(1 + u))).fit(points, points[:, 0])
    again = clone(model).fit(points, points[:, 0])
    np.testing.assert_array_equal(model.predict(queries), again.predict(queries))


def test_an_unfinished_solution_is_warned_of(data):
    points, values, _, _ = data
    for given in ({"alpha": 1e-6, "rank": 1, "max_iter": 5}, {"alpha": 1e-12, "tau": 0.1, "rank": 1}):
        model = KernelRidge(**given)
        message = r"must come to a residual.*got \d.* after \d+ steps. Pass a larger"
        with pytest.warns(ConvergenceWarning, match=message):
            model.fit(points, values)
        squared = np.square(points[:, None] - points[None]).sum(-1)
        residual = values - (np.exp(-model.tau / 2 * squared) + given["alpha"] * np.eye(len(points))) @ model.dual_coef_
        relative = np.linalg.norm(residual, axis=0) / np.linalg.norm(values, axis=0)
        assert model.residual_ == pytest.approx(relative.max(), rel=1e-3) and model.residual_ > 1e-7


def test_samples_follow_the_density(rng):
    model = KernelDensity(4.0).fit([[0.0, 5.0], [9.0, 9.0], [2.0, 5.0]], sample_weight=[1.0, 0.0, 3.0])
    drawn = model.sample(20_000, random_state=0)
    mean, variance = np.array([1.5, 5.0]), np.array([0.75 + 0.25, 0.25])
    assert (np.abs(drawn.mean(0) - mean) < 5 * np.sqrt(variance / 20_000)).all()
    np.testing.assert_allclose(drawn.var(0), variance, rtol=0.05)
    np.testing.assert_array_equal(drawn[:3], model.sample(20_000, random_state=0)[:3])
    assert model.sample().shape == (1, 2) and model.sample(7, np.random.RandomState(1)).shape == (7, 2)


def test_what_cannot_be_is_said():
    with pytest.raises(NotFittedError, match="not fitted"):
        KernelDensity().sample()
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        KernelMean().fit(np.ones((3, 2)), np.ones(3), sample_weight=[1, 2])


def test_sums_are_compiled_for_few_numbers_of_points():
    sizes = {num: len(padded(np.zeros(num), "constant")) for num in range(1, 5000)}
    assert all(num <= size <= max(num + 63, 1.125 * num) for num, size in sizes.items())
    assert len(set(sizes.values())) < 40
