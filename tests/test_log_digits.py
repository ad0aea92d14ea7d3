"""Logarithms of sums: finite and right however far points lie from one another; in float64 with float64's digits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

from jaxgauss import kde_logpdf, kde_score, log_gauss_sum, log_kernel_sum, rational_quadratic
from jaxgauss._engines.plan import NEAR
from oracle import squared64

ENGINES = ("attention", "blocked", "clusters", "differences")
LOGS = {  # log κ(u) and its slope
    "gauss": (lambda u: -u / 2, lambda u: -0.5 + 0 * u),
    "matern12": (lambda u: -np.sqrt(u), lambda u: -0.5 / np.sqrt(u)),
    "matern32": (lambda u: np.log1p(np.sqrt(3 * u)) - np.sqrt(3 * u), lambda u: -1.5 / (1 + np.sqrt(3 * u))),
    "matern52": (
        lambda u: np.log1p(np.sqrt(5 * u) + 5 / 3 * u) - np.sqrt(5 * u),
        lambda u: -5 / 6 * (1 + np.sqrt(5 * u)) / (1 + np.sqrt(5 * u) + 5 / 3 * u),
    ),
    "imq": (lambda u: -0.5 * np.log1p(u), lambda u: -0.5 / (1 + u)),
    "cauchy": (lambda u: -np.log1p(u), lambda u: -1 / (1 + u)),
    rational_quadratic(2): (lambda u: -2 * np.log1p(u / 4), lambda u: -0.5 / (1 + u / 4)),
}


def exact_terms(kernel, queries, keys, tau, *, others=False, weights=1.0):
    """u, log w κ and log Σ w κ in float64, from differences; where kernels underflow, too."""
    u = tau * squared64(queries, keys)
    with np.errstate(divide="ignore"):
        terms = np.log(weights) + LOGS[kernel][0](u)
    if others:
        np.fill_diagonal(terms, -np.inf)
    return u, terms, np.logaddexp.reduce(terms, 1)


def assert_right(found, kernel, queries, keys, **how):
    """Logarithms, and their gradients, for τ = 1."""
    u, terms, logs = exact_terms(kernel, queries, keys, 1.0, **how)
    shares = np.exp(terms - terms.max(1, keepdims=True))  # the logarithm of equal large terms holds not their number
    shares *= LOGS[kernel][1](u + (terms == -np.inf)) / shares.sum(1, keepdims=True)
    slopes = 2 * (shares.sum(1)[:, None] * queries - shares @ keys)
    digits = 1e-5 if queries.dtype == np.float32 else 1e-13
    assert np.all(np.abs(np.asarray(found[0], "float64") - logs) <= digits * np.maximum(1, np.abs(logs)))
    np.testing.assert_allclose(np.asarray(found[1], "float64"), slopes, rtol=10 * digits)


def far_points(rng, dtype, dim):
    """Queries at all distances from the origin in one direction, keys near it, and their weights, of which one is 0."""
    direction = np.abs(rng.normal(size=dim)) + 0.1
    queries = 10.0 ** np.arange(3, 19)[:, None] * direction / np.linalg.norm(direction)
    return queries.astype(dtype), (0.1 * rng.normal(size=(5, dim))).astype(dtype), (np.arange(5) / 10).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kernel, engine", [*(("gauss", x) for x in ENGINES), *((x, "auto") for x in LOGS)])
def test_logarithms_of_sums_are_finite_at_any_distance(rng, kernel, engine, dtype):
    queries, keys, weights = far_points(rng, dtype, 3)

    def summed(queries):
        logs = log_kernel_sum(queries, keys, jnp.log(weights), kernel=kernel, engine=engine)
        return logs.sum(), logs

    with jax.enable_x64(dtype == "float64"):
        slopes, logs = jax.jit(jax.grad(summed, has_aux=True))(queries)
    assert_right((logs, slopes), kernel, queries, keys, weights=weights)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kernel", [x for x in LOGS if x != "imq"])
def test_log_densities_and_scores_are_finite_at_any_distance(rng, kernel, dtype):
    """With a weight of zero, and of all others."""
    queries, keys, weights = far_points(rng, dtype, 1)
    with jax.enable_x64(dtype == "float64"):
        factor = kde_logpdf(keys[:1], keys[:1], 1.0, kernel=kernel)
        for samples, given, num in ((keys, {"weights": weights}, 1), (queries, {"exclude_self": True}, 15)):
            logs = kde_logpdf(queries, samples, 1.0, kernel=kernel, **given) - factor + np.log(num).astype(dtype)
            score = kde_score(queries, samples, 1.0, kernel=kernel, **given)
            assert_right((logs, score), kernel, queries, samples, **(given if num == 1 else {"others": True}))


def test_beyond_they_saturate_and_only_empty_sums_are_infinite():
    """NaN stays NaN."""
    queries, keys = np.float32([[1e25], [0], [-3e38]]), np.float32([[0], [0.5]])
    for log_weights in (None, np.float32([-np.inf, 0])):
        found = np.asarray(log_gauss_sum(queries, keys, log_weights))
        assert -1e38 < found[0] == found[2] < -4e37 and -1 < found[1] < 1
        assert np.isnan(jax.jit(log_gauss_sum)(np.nan * queries, keys, log_weights)).all()
    assert np.all(log_gauss_sum(queries, keys, np.float32([-np.inf, -np.inf])) == -np.inf)
    of_others = log_gauss_sum(keys, keys, np.float32([-np.inf, 0]), exclude_self=True)
    assert np.isfinite(of_others[0]) and of_others[1] == -np.inf


def clouds():
    """Measured data, in their units and not, random points, clusters, an offset, an outlier, and copies."""
    data = load_breast_cancer().data[:300]
    unit, rng = (data - data.mean(0)) / data.std(0), np.random.default_rng(0)
    ends = np.where(np.arange(300) % 2, 1.0, -1.0)[:, None]
    yield from (data, unit, unit + 1e4 * ends, unit + 1e8 * ends, unit + 1e8)
    yield np.append(unit[:-1], 1e6 * unit[-1:], 0)
    yield np.repeat(unit[:100], 3, 0)
    for dim in (1, 2, 9, 100):
        yield rng.normal(size=(300, dim)) * np.geomspace(1, 1e4, dim)


@pytest.mark.parametrize("tau", [1e-4, 1e-2, 1.0, 100.0, 1e4])
@pytest.mark.parametrize("kernel", ["gauss", "matern12", "cauchy"])
def test_float64_has_its_digits_wherever_points_lie(kernel, tau):
    """At the points themselves, of the others, and between: two units of the largest ‖a‖² + ‖b‖² of near points."""
    error = 2 * (2 * NEAR["float64"]) * 2.0**-53
    with jax.enable_x64(True):
        for points in clouds():
            between = (points[::3] + points[1::3]) / 2
            for queries, others in ((points, False), (points, True), (between, False)):
                *_, exact = exact_terms(kernel, queries, points, tau, others=others)
                found = log_gauss_sum(queries, points, None, tau, kernel=kernel, exclude_self=others)
                assert np.all(np.abs(found - exact) <= error * np.maximum(1, np.abs(exact)))
