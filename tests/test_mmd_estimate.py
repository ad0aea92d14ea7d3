"""MMD² with a standard error: dense formulas, the spread of many samples, chunks, and bad input."""

import gc
import weakref
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from formulas import exact_gradients, kernel_matrix
from jaxgauss import mmd_estimate, mmd_squared
from jaxgauss._methods import mmd_estimate as module
from oracle import assert_close, relative_error

REPETITIONS = 1000
SIZES = 60, 90  # of x and y


@pytest.fixture
def samples(rng):
    return rng.normal(size=(23, 3)), 0.6 * rng.normal(size=(31, 3)) + 0.4


def dense(x, y, taus, estimator, kernel="gauss"):
    """MMD² and its standard error from matrices in float64."""

    def rows(a, b):
        others = ~np.eye(len(a), dtype=bool) if estimator == "unbiased" else np.ones((len(a), len(a)), bool)
        own, cross = (kernel_matrix(a, z, taus, kernel) for z in (a, b))
        return np.where(others, own, 0).sum(1) / others.sum(1) - cross.mean(1)

    f, g = rows(x, y), rows(y, x)
    return f.mean() + g.mean(), np.sqrt(4 * f.var(ddof=1) / len(f) + 4 * g.var(ddof=1) / len(g))


CASES = {  # a kernel, bandwidths, an estimator, the dtype of points, and how far off the estimate may be
    "one bandwidth": ("gauss", 0.7, "unbiased", "float64", 1e-13),
    "several of another kernel": ("imq", np.array([0.2, 3.0]), "unbiased", "float64", 1e-13),
    "energy": ("energy", 0.7, "biased", "float64", 1e-13),
    "float32": ("gauss", 0.7, "unbiased", "float32", 1e-6),
    "float16": ("gauss", 0.7, "unbiased", "float16", 2e-3),
    "far from one another": ("gauss", 1.0, "unbiased", "float32", 1e-6),
    "of unit length": ("gauss", 0.01, "biased", "float32", 1e-7),
}


@pytest.mark.parametrize("name", CASES)
def test_the_estimate_is_that_of_matrices_in_memory_and_in_chunks(rng, samples, name):
    """Chunks are ragged, one is empty. As in CMMD, of unit length all kernels are near one, MMD² a small difference."""
    (x, y), (kernel, taus, estimator, dtype, tolerance) = samples, CASES[name]
    if name == "far from one another":  # where float32 has lost the distances within a cluster
        x, y = (rng.normal(size=(20, 2)) + 3000 * (np.arange(20) % 2)[:, None] + 0.5 * i for i in range(2))
    if name == "of unit length":
        x, y = (rng.normal(size=(300, 64)) + 0.2 * i for i in range(2))
        x, y = (z / np.linalg.norm(z, axis=1, keepdims=True) for z in (x, y))
    x, y = x.astype(dtype), y.astype(dtype)
    exact, options = dense(x, y, taus, estimator, kernel), {"kernel": kernel, "estimator": estimator}
    for given in ((x, y), ([x[:9], x[:0], x[9:]], lambda: iter(np.array_split(y, 2)))):
        result = mmd_estimate(*given, taus, **options)
        assert {z.dtype.name for z in result} == {"float32" if dtype == "float16" else dtype}
        assert np.abs(np.array(result, np.float64) - exact).max() <= tolerance
    assert name != "of unit length" or 1e-5 < exact[1] < exact[0] < 1e-2
    if dtype == "float64":
        assert exact[0] == pytest.approx(float(mmd_squared(x, y, taus, **options)), rel=1e-10)


def test_chunks_of_float64_without_it(samples):
    """Of which y is an array, one chunk."""
    exact = dense(*samples, 0.7, "unbiased")
    with jax.enable_x64(False):
        result = mmd_estimate([samples[0]], samples[1], 0.7)
    assert result.mmd_squared.dtype == jnp.float32 and float(result.mmd_squared) == pytest.approx(exact[0], abs=1e-6)


@jax.jit
def spread(shift):
    """Estimates and standard errors of many pairs of samples, in float64."""

    def estimate(rng_key):
        keys = jax.random.split(rng_key)
        x, y = (jax.random.normal(key, (num, 2)) for key, num in zip(keys, SIZES, strict=True))
        return mmd_estimate(x, y + shift, 0.5)

    return jax.vmap(estimate)(jax.random.split(jax.random.key(0), REPETITIONS))


def test_the_standard_error_is_how_far_estimates_spread():
    """Within five standard errors of each side, and so is the share of 95 % intervals that hold the exact value."""
    shift = 1.0
    found = spread(shift)
    deviations = np.square(found.mmd_squared - found.mmd_squared.mean())  # whose mean is the variance of an estimate
    claimed = np.square(found.standard_error)
    error = np.hypot(deviations.std(), claimed.std()) / REPETITIONS**0.5
    assert abs(deviations.mean() - claimed.mean()) < 5 * error < deviations.mean() / 2
    exact = 1 - np.exp(-(shift**2) / 4)  # E k(X, X') = 1/(1 + 2τ) = ½, E k(X, Y) = ½ exp(-τ/2 ‖shift‖² / (1 + 2τ))
    assert abs(found.mmd_squared.mean() - exact) < 5 * found.mmd_squared.std() / REPETITIONS**0.5
    covered = np.abs(found.mmd_squared - exact) < 1.96 * found.standard_error
    assert abs(covered.mean() - 0.95) < 5 * (0.95 * 0.05 / REPETITIONS) ** 0.5


def test_of_one_distribution_it_is_too_large_by_the_root_of_two():
    """As the docstring says: f vanishes, and twice the variance is what estimates of it spread by."""
    found = spread(0.0)
    ratios = np.square(found.standard_error).mean() / found.mmd_squared.var()
    squares = np.square(found.mmd_squared - found.mmd_squared.mean())
    assert abs(ratios - 2) < 5 * 2 * squares.std() / squares.mean() / REPETITIONS**0.5 < 1  # so it is not 1


def test_gradients_are_that_of_mmd_squared_and_finite_of_a_standard_error(samples):
    x, y = samples
    gradients = jax.jit(jax.jacrev(lambda x, y: tuple(mmd_estimate(x, y, 0.7))))
    ours, of_error = gradients(x, y)
    weights, value = (np.full(23, 1 / 23), np.full(31, 1 / 31)), dense(x, y, 0.7, "unbiased")[0]
    exact = exact_gradients("mmd", (*samples, *weights, 0.7), estimator="unbiased")[0]  # of its sine
    assert relative_error(np.cos(value) * ours, exact) < 1e-12 and np.any(of_error)
    points = np.ones_like(x), np.ones_like(y)
    assert mmd_estimate(*points, 0.7).standard_error == 0 and not np.any(gradients(*points)[1])


def test_a_mesh_changes_nothing(samples):
    mesh = jax.make_mesh((1, 1), ("rows", "columns"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    shared = mmd_estimate(*samples, 0.7, mesh=mesh, query_axis="rows", key_axis="columns")
    assert relative_error(shared, dense(*samples, 0.7, "unbiased")) < 1e-12


class Watched(np.ndarray):
    """An array that can be pointed at weakly."""


def test_few_chunks_are_in_memory_at_a_time(rng):
    """The one whose rows are summed, and two at most that are read: of eight and of four."""
    alive, most = [], []
    parts = rng.normal(size=(8, 50, 3))

    def chunks(num):
        for part in parts[:num]:
            chunk = part.copy().view(Watched)
            alive.append(weakref.ref(chunk))
            on_device = sum(z.shape == (50, 3) for z in jax.live_arrays())
            most.append((sum(z() is not None for z in alive), on_device))
            yield chunk
            del chunk

    gc.collect()
    mmd_estimate(lambda: chunks(8), lambda: chunks(4), 0.5)
    assert len(alive) == 12 + 12 + 12 * 12  # read once to look at them, once as rows, and once for each of these
    assert max(host for host, _ in most) <= 4 and max(device for _, device in most) <= 2


def test_the_bar_counts_the_chunks(samples, capsys):
    x, y = samples
    mmd_estimate([x[:9], x[:0], x[9:]], [y], 0.7, progress=True)
    assert "mmd_estimate: 100%" in (shown := capsys.readouterr().err) and "9/9" in shown


def test_arrays_are_divided_for_a_bar(samples, capsys, monkeypatch):
    x, y = samples
    monkeypatch.setattr(module, "explained", lambda *_, **__: SimpleNamespace(milliseconds=1e4))
    for estimator in ("unbiased", "biased"):
        shown, expected = (mmd_estimate(x, y, 0.7, estimator=estimator, progress=z) for z in (True, False))
        assert_close(shown, expected, 1e-12)
    shown = capsys.readouterr().err
    assert "mmd_estimate: 100%" in shown and "16/16" in shown


def test_it_prints_numbers(samples):
    assert repr(mmd_estimate(*samples, 0.7)).startswith("MMDEstimate(mmd_squared=0.")
