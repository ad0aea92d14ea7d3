"""Gaussian processes: three ways to one posterior, likelihoods and gradients, calibration, and scikit-learn's own."""

import math
import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from threadpoolctl import threadpool_limits

from jaxgauss._engines.fourier.trigonometric import Modes, trigonometric_sums, trigonometric_values
from jaxgauss._methods import gaussian_process
from jaxgauss._methods.gaussian_process import Objective, box_of
from jaxgauss._methods.process_by_matrix import ByMatrix, log_likelihood
from jaxgauss._methods.process_by_transforms import ByTransforms
from jaxgauss._methods.process_by_waves import ByWaves
from jaxgauss.sklearn import GaussianProcess

CLOUDS = {  # points, and length scales
    "line": lambda rng: (rng.uniform(size=(301, 1)), [0.05]),
    "plane": lambda rng: (1e4 + rng.uniform(size=(257, 2)) * [1, 30], [0.3, 5.0]),
    "clusters": lambda rng: (rng.normal(size=(203, 2)) + 5.0 * rng.integers(0, 3, (203, 1)), [1.0, 2.0]),
    "space": lambda rng: (rng.uniform(size=(151, 3)), [0.9, 1.3, 1.1]),
    "line in a plane": lambda rng: (rng.uniform(size=(149, 2)) * [1, 0] + [0, 3], [0.2, 0.4]),
    "few": lambda rng: (rng.normal(size=(2, 2)), [1.0, 1.0]),
}
NOISE = 0.03


@pytest.fixture(autouse=True)
def one_thread():
    """For matrices as small as these, threads of LAPACK that share cores with other processes only wait."""
    with threadpool_limits(1):
        yield


def matrix(x, y, scale):
    return np.exp(-np.square((x[:, None] - y[None]) / scale).sum(-1) / 2)


def dense(points, values, scale, queries):
    """Mean and variance of f, and log-likelihood at the best s² of each channel, by the formulas."""
    gram, cross = matrix(points, points, scale) + NOISE * np.eye(len(points)), matrix(queries, points, scale)
    variances = (values * np.linalg.solve(gram, values)).mean(0)
    value = -len(values) / 2 * (1 + np.log(2 * np.pi * variances)).sum()
    value -= len(variances) * np.linalg.slogdet(gram)[1] / 2
    variance = 1 - (cross * np.linalg.solve(gram, cross.T).T).sum(1)
    return cross @ np.linalg.solve(gram, values), variance, value


@pytest.mark.parametrize("cloud", CLOUDS)
def test_posteriors_and_likelihoods_are_those_of_the_formulas(rng, cloud):
    """Of two values each, predicted inside, at the ends and outside; gradients are finite differences."""
    points, scale = CLOUDS[cloud](rng)
    values = np.stack([np.sin(points.sum(1) / scale[0]), rng.normal(size=len(points))], 1)
    box, scale = box_of(points), np.array(scale)
    queries = np.concatenate([points[:5], rng.uniform(*box, (20, len(scale))), box])
    mean, variance, value = dense(points, values, scale, queries)
    assert np.abs(ByTransforms(points, values, scale, NOISE, box).mean(queries) - mean).max() < 1e-4
    by_matrix, by_waves = ByMatrix(points, values, scale, NOISE), ByWaves(points, values, scale, NOISE, box)
    gradients = []
    for found in by_matrix, by_waves:
        assert np.abs(found.mean(queries) - mean).max() < 2e-6
        assert np.abs(found.variance(queries) - variance).max() < 1e-6
        likelihood, gradient, _ = log_likelihood([found.likelihood()])
        assert likelihood == pytest.approx(value, abs=1e-3)
        gradients.append(gradient)

    def of_matrix(theta):
        return log_likelihood([ByMatrix(points, values, np.exp(theta[:-1]), np.exp(theta[-1])).likelihood()])[0]

    theta = np.log(np.append(scale, NOISE))
    steps = 1e-4 * np.eye(len(theta))
    differences = [(of_matrix(theta + x) - of_matrix(theta - x)) / 2e-4 for x in steps]
    assert np.abs(gradients[0] - differences).max() < 1e-6 * np.abs(gradients[0]).max()
    assert np.abs(gradients[0] - gradients[1]).max() < 1e-2


@pytest.mark.parametrize("way, dim, num", [(ByMatrix, 2, 2000), (ByWaves, 1, 2000), (ByTransforms, 2, 400)])
def test_samples_have_the_covariance_of_the_posterior(rng, way, dim, num):
    points, values = rng.uniform(size=(80, dim)), rng.normal(size=(80, 1))
    queries, scale = rng.uniform(0.1, 0.9, (6, dim)), np.array([0.5, 0.6])[:dim]
    found = way(points, values, scale, 0.1, *(() if way is ByMatrix else (box_of(points),)))
    samples = found.deviations(queries, num, rng)
    cross, gram = matrix(queries, points, scale), matrix(points, points, scale) + 0.1 * np.eye(80)
    exact = matrix(queries, queries, scale) - cross @ np.linalg.solve(gram, cross.T)
    size = np.sqrt(np.diag(exact))
    assert np.abs((samples.T @ samples / num - exact) / size / size[:, None]).max() < 5 * np.sqrt(2 / num)


@pytest.mark.parametrize("dim, most", [(1, (50,)), (2, (45, 13)), (3, (5, 23, 7))])
def test_trigonometric_sums_and_values(rng, dim, most):
    modes = Modes(rng.normal(size=dim), rng.uniform(7, 9, dim), np.array(most))
    points, values = rng.normal(size=(101, dim)), rng.normal(size=(3, 101))
    j = np.stack(np.meshgrid(*[np.arange(-x, x + 1) for x in most], indexing="ij"), -1).reshape(-1, dim)
    waves = np.exp(2j * np.pi * ((points - modes.center) / modes.period) @ j.T)
    sums = trigonometric_sums(modes, points, values)
    assert np.abs(sums - (values @ waves.conj()).reshape(3, *modes.shape)).max() < 1e-11
    found = sums * np.exp(-np.square(j).sum(1) / 100).reshape(modes.shape)
    exact = (found.reshape(3, -1) @ waves.T).real
    assert np.abs(trigonometric_values(modes, points, found) - exact).max() < 1e-12 * np.abs(found).sum()


def of_process(rng, num, scale, noise):
    """Points in the unit box, noisy values of a random function of variance one, and the function."""
    frequencies, phases = rng.normal(size=(len(scale), 500)) / np.array(scale)[:, None], rng.uniform(0, 2 * np.pi, 500)

    def function(x):
        return np.cos(x @ frequencies + phases).sum(1) / np.sqrt(250)

    points = rng.uniform(size=(num, len(scale)))
    return points, function(points) + noise**0.5 * rng.normal(size=num), function


def test_what_is_learned_is_the_truth_and_bands_hold_what_they_should(rng, monkeypatch):
    monkeypatch.setattr(gaussian_process, "PART", 400)
    points, values, function = of_process(rng, 2500, (0.3, 0.15), 0.04)
    model = GaussianProcess(length_scale=[1.0, 1.0], random_state=0).fit(points, 7 + 5 * values)
    assert model.exact_ and isinstance(model._posterior, ByWaves) and model.std_error_ == 0
    assert np.abs(np.log(model.length_scale_ / [0.3, 0.15])).max() < 0.2
    assert model.noise_variance_ == pytest.approx(25 * 0.04, rel=0.1)
    others = rng.uniform(size=(4000, 2))
    mean, std = model.predict(others, return_std=True)
    truth = 7 + 5 * (function(others) + 0.2 * rng.normal(size=4000))
    assert 0.93 < (np.abs(truth - mean) < 2 * std).mean() < 0.97
    theta = model.theta_
    value, gradient = model.log_marginal_likelihood(theta, eval_gradient=True)
    assert value == pytest.approx(model.log_marginal_likelihood_value_) and np.abs(gradient).max() < 1
    assert value > max(model.log_marginal_likelihood(theta + shift) for shift in (0.1, -0.1))


def test_many_length_scales_take_transforms(rng, monkeypatch):
    monkeypatch.setattr(gaussian_process, "MODES", 300)
    monkeypatch.setattr(gaussian_process, "PART", 400)
    points, values, function = of_process(rng, 2500, (0.1, 0.1), 0.04)
    model = GaussianProcess(random_state=0, num_samples=32).fit(points, values)
    assert isinstance(model._posterior, ByTransforms) and not model.exact_ and model.std_error_ == 0.125
    assert np.abs(np.log(model.length_scale_ / 0.1)).max() < 0.2
    others = rng.uniform(size=(1000, 2))
    mean, std = model.predict(others, return_std=True)
    truth = function(others) + 0.2 * rng.normal(size=1000)
    assert 0.92 < (np.abs(truth - mean) < 2 * std).mean() < 0.98
    exact = ByMatrix(points[:1], model._values[:1], model.length_scale_, model.noise_)
    assert (np.sqrt(exact.variance(others) * model.variance_ + model.noise_variance_) > 0.9 * std).all()


def test_conjugate_gradients_that_do_not_converge_warn(rng, monkeypatch):
    monkeypatch.setattr("jaxgauss._methods.process_by_transforms.STEPS", 3)
    points = rng.uniform(size=(400, 2))
    with pytest.warns(RuntimeWarning, match=r"must come to a residual of 1e-08; got .* after 3 steps"):
        ByTransforms(points, points[:, :1], np.array([0.3, 0.3]), 1e-3, box_of(points))


def test_it_is_scikit_learns(rng):
    points, values, _ = of_process(rng, 150, (0.4, 0.4), 0.01)
    theirs = GaussianProcessRegressor(ConstantKernel() * RBF(0.3) + WhiteKernel(0.1), normalize_y=True)
    theirs.fit(points, values)
    ours = GaussianProcess(length_scale=0.3).fit(points, values)
    assert ours.length_scale_ == pytest.approx(theirs.kernel_.k1.k2.length_scale, rel=1e-2)
    others = rng.uniform(-0.5, 1.5, (50, 2))
    for found, expected in zip(*(x.predict(others, return_std=True) for x in (ours, theirs)), strict=True):
        np.testing.assert_allclose(found, expected, atol=2e-2 * values.std())
    likelihood = theirs.log_marginal_likelihood_value_ - len(values) * np.log(values.std())
    assert ours.log_marginal_likelihood_value_ == pytest.approx(likelihood, abs=1e-2)


def test_outside_of_the_points_it_is_the_prior_and_just_outside_the_posterior(rng):
    points, values, _ = of_process(rng, 3000, (0.3, 0.3), 0.04)
    fixed = {"length_scale": 0.3, "noise": 0.04, "learn": False}
    model = GaussianProcess(**fixed).fit(points, values)
    queries = np.array([[0.5, 1.2], [-0.1, 1.3], [40.0, 0.5], [-1e6, 1e6]])
    exact = ByMatrix(points, model._values, model.length_scale_, model.noise_)
    mean, std = model.predict(queries, return_std=True)
    np.testing.assert_allclose(mean, model._mean + model._size * exact.mean(queries)[:, 0], atol=1e-5)
    variance = (exact.variance(queries) + model.noise_) * model.variance_
    np.testing.assert_allclose(std, np.sqrt(variance), rtol=1e-5)
    samples = model.sample_y(queries[:2], n_samples=400, random_state=0)
    assert samples.shape == (2, 400)
    spread = np.sqrt(np.square(samples - mean[:2, None]).mean(1))
    np.testing.assert_allclose(spread, np.sqrt(std[:2] ** 2 - model.noise_variance_), rtol=5 / np.sqrt(800))
    with pytest.raises(ValueError, match=r"got 3.33e\+06 × 3.33e\+06 length scales"):
        model.sample_y(queries)


def test_several_values_constants_and_copies(rng):
    points, values, _ = of_process(rng, 120, (0.4,), 0.04)
    both = np.stack([values, 3 + 100 * values, np.full(120, 5.0)], 1)
    model = GaussianProcess(length_scale=0.4, random_state=0).fit(points, both)
    mean, std = model.predict(points, return_std=True)
    assert mean.shape == std.shape == (120, 3) and model.variance_.shape == (3,)
    np.testing.assert_allclose(mean[:, 1], 3 + 100 * mean[:, 0], rtol=1e-9)
    np.testing.assert_allclose(mean[:, 2], 5)
    assert model.sample_y(points[:7], 4).shape == (7, 3, 4)
    again = pickle.loads(pickle.dumps(model)).predict(points)
    assert np.array_equal(again, mean) and not hasattr(clone(model), "length_scale_")
    constant = GaussianProcess().fit(points, np.full(120, 2.0))
    assert np.isfinite(constant.predict(points, return_std=True)).all() and constant.predict(points)[0] == 2
    one = GaussianProcess().fit([[0.0, 1.0]], [3.0]).predict([[0.0, 1.0], [5.0, 5.0]], return_std=True)
    assert np.isfinite(one).all()
    same = GaussianProcess().fit(np.zeros((5, 2)), np.arange(5.0)).predict(np.zeros((1, 2)))
    assert same == pytest.approx(2.0)


def wave(rng, num, dim=1):
    """Points in the unit box, and values of waves with a little noise."""
    points = rng.uniform(size=(num, dim))
    return points, np.sin(9 * points).sum(1) + 0.1 * rng.normal(size=num)


def with_row(points, row, place):
    points = points.copy()
    points[row] = place
    return points


ODD = {  # points that lie where no box, mean or nearest neighbor tells how far others lie from one another
    "outlier": lambda x: with_row(x, 7, 1e3),
    "far outlier": lambda x: with_row(x, 7, -1e6),
    "farther outlier": lambda x: with_row(x, 7, 1e12),
    "farthest outlier": lambda x: with_row(x, 7, 1e300),
    "outliers": lambda x: with_row(x, [1, 7, 9], [[1e3], [-1e6], [1e12]]),
    "outlier in one coordinate": lambda x: with_row(x, 7, [0.5, 1e6]),
    "copies": lambda x: with_row(x, slice(40, 80), x[:40]),
    "nearly copies": lambda x: with_row(x, slice(40, 80), x[:40] + 1e-9),
    "clusters": lambda x: x + 1e6 * (np.arange(len(x))[:, None] // 40),
    "constant coordinate": lambda x: x * [1, 0] + [0, 1e9],
    "coordinates of different units": lambda x: x * [1e-9, 1e9],
}
PLANE = {"outlier in one coordinate", "constant coordinate", "coordinates of different units"}


@pytest.mark.parametrize("start", [None, "given"])
@pytest.mark.parametrize("odd", ODD)
def test_a_few_odd_points_do_not_hide_the_function(rng, odd, start):
    points = ODD[odd](rng.uniform(size=(120, 2 if odd in PLANE else 1)))
    of_one = points / 1e-9 if odd == "coordinates of different units" else points
    values = np.sin(9 * of_one[:, 0]) + 0.1 * rng.normal(size=120)
    given = [0.2] * points.shape[1]
    if start is None:  # with one length scale for all coordinates, their units count
        given = None if odd != "coordinates of different units" else [1.0, 1.0]
    model = GaussianProcess(given).fit(points, values)
    residuals = values - model.predict(points)
    assert np.sqrt(np.mean(np.square(residuals))) < 0.13
    assert 0.05 < np.sqrt(model.noise_variance_) < 0.15


@pytest.mark.parametrize("seed", range(4))
def test_what_is_learned_is_likelier_than_every_start(seed):
    """Of few or many points, of any spread, with and without an outlier among points and values."""
    rng = np.random.default_rng(seed)
    num, dim = int(rng.integers(2, 60)), int(rng.integers(1, 4))
    points, values = rng.standard_cauchy((num, dim)) ** 3, rng.standard_cauchy(num)
    for given in (None, 0.2, [0.2] * dim, 1e-30, [1e9] * dim):
        model = GaussianProcess(given).fit(points, values)
        objective = model._objective(lambda: None)
        starts = objective.plain(0.1)
        if given is not None:
            starts.append(np.log(np.append(given, 0.1)))
        found = model.log_marginal_likelihood_value_
        assert found >= max(map(model.log_marginal_likelihood, starts)) - 1e-9 * abs(found)
        assert all(np.isfinite(x).all() for x in model.predict(points, return_std=True))


def test_odd_points_are_as_likely_as_by_scikit_learn(rng):
    points, values = wave(rng, 60)
    for odd in ("far outlier", "clusters"):
        places = ODD[odd](points)
        theirs = GaussianProcessRegressor(ConstantKernel() * RBF(0.2) + WhiteKernel(0.1), normalize_y=True)
        theirs.fit(places, values)
        likelihood = theirs.log_marginal_likelihood_value_ - len(values) * np.log(values.std())
        model = GaussianProcess().fit(places, values)
        assert model.log_marginal_likelihood_value_ > likelihood - 1e-2
        found, expected = model.predict(points), theirs.predict(points)
        np.testing.assert_allclose(found, expected, atol=2e-2 * values.std())


def every_way(monkeypatch):
    """The ways to the posterior; all but the first for more than 50 points."""
    yield ByMatrix
    monkeypatch.setattr(gaussian_process, "FEW", 50)
    monkeypatch.setattr(gaussian_process, "PART", 50)
    yield ByWaves
    monkeypatch.setattr(gaussian_process, "MODES", 3)
    yield ByTransforms


@pytest.mark.parametrize("learn", [True, False])
def test_results_scale_with_values_and_points(rng, monkeypatch, learn):
    points, values = wave(rng, 80)
    values = np.stack([values, -3 * values], 1)
    queries = rng.uniform(size=(20, 1))

    def results(way, unit=1.0, size=1.0, offset=0.0):
        """Predictions, samples, likelihood and length scale, in units of the points and values."""
        options = {"learn": learn, "random_state": 0, "num_samples": 4}
        model = GaussianProcess([0.25 * unit], **options).fit(unit * points, size * (values + offset))
        assert type(model._posterior) is way
        mean, std = model.predict(unit * queries, return_std=True)
        samples = model.sample_y(unit * queries[:5], 3)
        likelihood = model.log_marginal_likelihood_value_
        if way is ByTransforms:  # of parts
            samples, likelihood = np.zeros(1), 0.0
        else:
            likelihood += values.size * math.log(size)
        return (mean / size - offset, std / size, samples / size - offset), likelihood, model.length_scale_ / unit

    for way in every_way(monkeypatch):
        expected, likelihood, scale = results(way)
        for unit, size in ((2.0**-400, 2.0**500), (1e150, 1e160), (1e-150, 1e-200), (1e300, 1e300), (1e-305, 1e-305)):
            found, also, longer = results(way, unit, size)
            for x, y in zip(found, expected, strict=True):
                np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)
            assert also == pytest.approx(likelihood, abs=1e-4) and longer == pytest.approx(scale, rel=1e-4)
        found, _, longer = results(way, offset=1e9)
        np.testing.assert_allclose(found[0], expected[0], atol=1e-5)
        np.testing.assert_allclose(found[1], expected[1], rtol=1e-4)


def test_a_length_scale_in_other_units_is_a_start_like_any_other(rng):
    points, values = wave(rng, 80)
    expected = GaussianProcess(0.25).fit(points, values)
    for unit in (1e150, 1e-150):
        model = GaussianProcess(0.25).fit(unit * points, values)
        np.testing.assert_allclose(model.predict(unit * points), expected.predict(points), atol=1e-3)
        assert model.length_scale_ == pytest.approx(unit * expected.length_scale_, rel=1e-3)


@pytest.mark.parametrize("points, value", [([[0.3]], 5.0), (np.zeros((4, 2)), 0.0), (np.eye(3), 1e9 / 3)])
def test_a_constant_has_a_scale_of_one_and_teaches_nothing(points, value):
    values = np.full(len(points), value)
    for given, noise in ((None, 0.1), (1e-30, 1e-10), (0.2, 1e6)):
        model = GaussianProcess(given, noise=noise).fit(points, values)
        mean, std = model.predict(points, return_std=True)
        assert (mean == value).all() and model.variance_ == 1
        assert model.noise_ == pytest.approx(noise) and given in (None, pytest.approx(model.length_scale_[0]))
        exact = ByMatrix(np.asarray(points), values[:, None], model.length_scale_, noise).variance(points)
        np.testing.assert_allclose(std, np.sqrt(exact + noise), rtol=1e-9)
    far = np.full((1, np.shape(points)[1]), 1e9)
    assert GaussianProcess().fit(points, values).predict(far, return_std=True)[1] == pytest.approx(np.sqrt(1.1))


def test_a_constant_does_not_change_what_is_learned_beside_it(rng, monkeypatch):
    points, values = wave(rng, 80)
    both = np.stack([values, np.full(80, 0.1 + 0.2)], 1)
    for way in every_way(monkeypatch):
        options = {"random_state": 0, "num_samples": 4}
        one, two = (GaussianProcess(**options).fit(points, x) for x in (values, both))
        assert type(two._posterior) is way and two.length_scale_ == pytest.approx(one.length_scale_, rel=1e-6)
        (mean, std), (means, stds) = (x.predict(points, return_std=True) for x in (one, two))
        np.testing.assert_allclose(means[:, 0], mean, atol=1e-6)
        assert (means[:, 1] == both[:, 1]).all()
        relative = std / np.sqrt(one.variance_)
        np.testing.assert_allclose(stds, np.stack([std, relative], 1), rtol=1e-3)  # as solved for samples
        assert two.log_marginal_likelihood_value_ == pytest.approx(one.log_marginal_likelihood_value_, abs=1e-6)


def test_each_of_several_columns_is_what_it_is_alone(rng, monkeypatch):
    """A nearly clean, a noisy and a constant column, and one of a single spike: all results but random numbers."""
    points, values = wave(rng, 80)
    clean = np.sin(9 * points[:, 0]) + 0.01 * rng.normal(size=80)
    columns = [clean, values + rng.normal(size=80), np.full(80, 7.0), np.eye(80)[3]]
    values, queries = np.stack(columns, 1), np.append(points[:9], [[1.2], [40.0]], 0)
    for way in every_way(monkeypatch):
        options, error = {"noise": 1e-3, "random_state": 0, "num_samples": 8}, 1e-4 if way is ByTransforms else 1e-6
        learned = GaussianProcess([0.3], **options).fit(points, values)
        same = options | {"noise": learned.noise_, "learn": False}
        several = [learned, GaussianProcess(learned.length_scale_, **same).fit(points, values)]
        alone = [GaussianProcess(learned.length_scale_, **same).fit(points, x) for x in columns]
        assert {type(x._posterior) for x in (*several, *alone)} == {way}
        expected = [x.predict(queries, return_std=True) for x in alone]
        gradients = [x.log_marginal_likelihood(learned.theta_, eval_gradient=True) for x in alone]
        likelihood, gradient = map(sum, zip(*gradients, strict=True))
        for model in several:
            found = model.predict(queries, return_std=True)
            for x, of_each in zip(found, zip(*expected, strict=True), strict=True):
                np.testing.assert_allclose(x, np.stack(of_each, 1), rtol=error, atol=error)
            for name in ("variance_", "noise_variance_"):
                np.testing.assert_allclose(getattr(model, name), [getattr(x, name) for x in alone], rtol=1e-6)
            value, slopes = model.log_marginal_likelihood(learned.theta_, eval_gradient=True)
            assert value == pytest.approx(likelihood, rel=1e-9) == model.log_marginal_likelihood_value_
            np.testing.assert_allclose(slopes, gradient, rtol=1e-6, atol=1e-6)
        apart = several[0].sample_y(points[:5], 400) - several[0].predict(points[:5])[..., None]
        of_each = [x.sample_y(points[:5], 400) - x.predict(points[:5])[:, None] for x in alone]
        spreads = np.square(apart).mean((0, 2)) / [np.square(x).mean() for x in of_each]
        np.testing.assert_allclose(spreads, 1, atol=5 * 2 / np.sqrt(400))  # squares of 400 samples, twice


def test_variances_beyond_the_range_are_told(rng):
    points, values = wave(rng, 30)
    for size in (1e200, 1e-200):
        model = GaussianProcess(0.2, learn=False).fit(points, size * values)
        for name in ("variance_", "noise_variance_"):
            with pytest.warns(RuntimeWarning, match=r"variances must lie in the range of float64; got standard dev"):
                getattr(model, name)


def test_points_too_far_for_transforms_are_an_error(rng, monkeypatch):
    points, values = wave(rng, 80)
    ways = every_way(monkeypatch)
    for _ in range(2):
        next(ways)
    for place in (1e8, 1e30, 1e300):
        with pytest.raises(ValueError, match=r"length scales. Pass .* leave out rows, such as those far from all oth"):
            GaussianProcess(0.2, learn=False).fit(with_row(points, 7, place), values)


def test_a_bar_counts_likelihoods(rng, capsys):
    GaussianProcess(progress=True).fit(rng.uniform(size=(9, 2)), np.arange(9.0))
    assert "likelihood" in capsys.readouterr().err


def test_parts_of_many_points_are_near_or_anywhere(rng):
    points = rng.uniform(size=(5000, 2))
    parts = Objective(points, points[:, :1], True, np.random.RandomState(0), lambda: None).parts
    assert len(parts) == 6 and all(len(set(x)) == 800 for x in parts)
    sizes = [np.prod(np.ptp(points[x], 0)) for x in parts]
    assert max(sizes[:4]) < 0.4 and min(sizes[4:]) > 0.9
