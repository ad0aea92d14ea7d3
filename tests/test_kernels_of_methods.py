"""What is special to a kernel in the methods: mixtures, energy, levels, densities, and kernels that do not fit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import jaxgauss
from formulas import PROFILES, exact, kernel_matrix, tensors
from jaxgauss import (
    energy_distance,
    ksd_squared,
    mmd_flow_velocity,
    mmd_squared,
    mmd_test,
    mmd_witness,
    rational_quadratic,
    svgd_direction,
)
from jaxgauss._kernels.kernels import KERNELS
from oracle import relative_error

FEW = ["matern12", "imq", "energy", rational_quadratic(2.5)]  # with a kink, without, of weights alike, of one's own


@pytest.fixture
def samples(rng):
    """Two samples, some points of which coincide, and weights."""
    x = rng.normal(size=(30, 2))
    y = np.concatenate([rng.normal(size=(34, 2)) + 0.5, x[4:7]])
    a, b = rng.uniform(size=30), rng.uniform(size=37)
    return x, y, a / a.sum(), b / b.sum()


@pytest.mark.parametrize(
    "kernel, estimator", [("matern12", "biased"), ("imq", None), ("energy", "unbiased"), (FEW[3], None)], ids=str
)
def test_mixtures_serve_the_methods(samples, kernel, estimator):
    """As they would on CUDA: within the mixture's error, 1e-6 of κ(0), or of the diameter."""
    x, y, a, b = samples
    tau, options = np.asarray([0.3, 0.6]), {"kernel": kernel, "x_weights": a, "y_weights": b, "method": "mixture"}
    if estimator:
        found, name = mmd_squared(x, y, tau, estimator=estimator, **options), "mmd"
    else:
        found, name = mmd_witness(y + 1, x, y, tau, **options), "witness"
    error = np.abs(found - exact(name, (*samples, tau), kernel, estimator)).max()
    assert 0 < error < 4e-6 * (10 if kernel == "energy" else 1)


def test_ksd_of_matern32_has_a_gradient(samples):
    """Its third derivatives have a kink where points coincide, as each does with itself."""
    x, _, a, _ = samples
    gradient = jax.grad(lambda *z: ksd_squared(*z, kernel="matern32", weights=a), (0, 1, 2))(x, 0.1 - x, 0.7)
    assert all(jnp.isfinite(z).all() for z in gradient)


def test_svgd_takes_a_kernel(rng):
    import optax

    particles = jnp.asarray(rng.normal(size=(40, 2)))
    sampler = jaxgauss.svgd(lambda x: -(x - 1.0), optax.sgd(0.5), kernel="imq")
    state = sampler.init(particles)
    direction = svgd_direction(particles, 1 - particles, state.kernel_parameters["tau"], kernel="imq")
    assert relative_error(sampler.step(state).particles, particles + 0.5 * direction) < 1e-12


def test_energy_distance_is_scipys(rng):
    x, y, a, b = rng.normal(size=50), rng.normal(size=60) + 1, rng.uniform(size=50), rng.uniform(size=60)
    a, b = a / a.sum(), b / b.sum()
    ours = energy_distance(x[:, None], y[:, None], x_weights=a, y_weights=b)
    assert float(ours) == pytest.approx(scipy.stats.energy_distance(x, y, a, b) ** 2, rel=1e-12)
    scaled = mmd_squared(x[:, None], y[:, None], 9.0, kernel="energy", x_weights=a, y_weights=b)
    assert relative_error(scaled, 3 * ours) < 1e-12


@pytest.mark.parametrize("kernel", ["matern12", "imq", "energy"])
def test_mmd_test_holds_its_level(kernel):
    """200 tests of one distribution at 10 % (14 to 28 of them, or 8 to 34, with probability 0.998)."""

    def one(rng_key):
        points, labels = jax.random.split(rng_key)
        x = jax.random.normal(points, (2, 12, 2))
        return mmd_test(*x, jnp.asarray([0.3, 3.0]), rng_key=labels, num_permutations=19, kernel=kernel).p_value

    p_values = jax.jit(lambda keys: jax.lax.map(one, keys))(jax.random.split(jax.random.key(5), 200))
    assert 8 <= int((p_values <= 0.1).sum()) <= 34
    assert 0.4 < float(p_values.mean()) < 0.65


@pytest.mark.parametrize("kernel, estimator", [*zip(FEW, ["biased", "unbiased"] * 2, strict=True)], ids=str)
def test_mmd_test_has_the_statistic_of_the_loss(samples, kernel, estimator):
    x, y, *_ = samples
    options = {"rng_key": jax.random.key(0), "num_permutations": 30, "kernel": kernel, "estimator": estimator}
    test, by_sums = (mmd_test(x, y, 0.7, **options, method=method) for method in ("auto", "blocked"))
    weights = np.full(30, 1 / 30), np.full(37, 1 / 37)
    assert relative_error(test.statistic, exact("mmd", (x, y, *weights, 0.7), kernel, estimator)) < 1e-10
    assert by_sums.p_value == test.p_value
    assert relative_error(by_sums.null_statistics, test.null_statistics) < 1e-9


DENSITIES = ["matern12", "matern32", "matern52", rational_quadratic(4.0)]


@pytest.mark.parametrize("kernel", DENSITIES, ids=str)
def test_densities_integrate_to_one(kernel):
    """In one and two dimensions, on a grid; the tails beyond it are worked out for none, and small for all."""
    grid = np.linspace(-60, 60, 6001)[:, None]
    density = np.exp(jaxgauss.kde_logpdf(grid, np.array([[0.3], [-0.5]]), 2.0, kernel=kernel))
    assert density.sum() * (grid[1, 0] - grid[0, 0]) == pytest.approx(1, abs=1e-3)
    axis = np.linspace(-12, 12, 241)
    grid = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
    density = np.exp(jaxgauss.kde_logpdf(grid, np.zeros((1, 2)), 2.0, kernel=kernel))
    assert density.sum() * 0.1**2 == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("kernel", DENSITIES, ids=str)
def test_densities_are_finite_far_away(samples, kernel):
    x, y = (z.astype("float32") for z in samples[:2])
    assert jnp.isfinite(jaxgauss.kde_logpdf(1e4 + x, y, 1.0, kernel=kernel)).all()


def test_leave_one_out_takes_a_kernel(rng):
    x, taus = rng.normal(size=(40, 2)), np.asarray([0.5, 4.0])
    search = jaxgauss.leave_one_out_tau(x, taus, kernel="matern32")
    for tau, found in zip(taus, search.scores, strict=True):
        phi = tau * kernel_matrix(x, tau=tau, kernel="matern32") * (1 - np.eye(40)) / 39
        exact = np.log(phi.sum(1)).mean() - KERNELS["matern32"].log_integral(2)
        assert float(found) == pytest.approx(exact, rel=1e-10)


def test_weights_of_other_sums_are_taken_where_a_kernel_is_positive_definite():
    x = np.ones((4, 2))
    assert float(mmd_squared(x, x + 1, 1.0, kernel="imq", x_weights=np.ones(4))) > 0


def test_logarithms_of_kernels(rng):
    """Where κ underflows, they do not; a mesh of one device makes no difference."""
    x, y = rng.normal(size=(5, 3)), rng.normal(size=(7, 3)) + 3000
    logs = jaxgauss.log_gauss_sum(x, y, kernel="matern12")
    r = np.linalg.norm(x[:, None] - y[None], axis=-1)
    assert relative_error(logs, -r.min(1) + np.log(np.exp(r.min(1, keepdims=True) - r).sum(1))) < 1e-13


@pytest.mark.parametrize("dim", [2, 17])
@pytest.mark.parametrize(
    "kernel", [kernel for kernel in PROFILES if kernel not in ("gauss", "matern12", "energy")], ids=str
)
def test_gradients_have_their_digits_far_out(rng, kernel, dim):
    """In float32, relative to the terms' sizes, of clusters, an outlier and a wide cloud: moments would lose them."""
    z = rng.normal(size=(60, dim))
    clusters, number = rng.integers(0, 2, (60, 1)), np.arange(60)[:, None]
    velocity_of = jax.jit(lambda x, y: mmd_flow_velocity(x, y, 1.0, kernel=kernel))
    gradient_of = jax.jit(jax.grad(lambda x, y: mmd_squared(x, y, 1.0, kernel=kernel)))
    for cloud in (z + 10 * clusters, z + 1e4 * clusters, np.where(number == 7, 1000, z), 100 * z):
        x, y = np.split(cloud.astype(np.float32), 2)
        terms = []
        for other in (x, y):
            z = np.float64(x)[:, None] - np.float64(other)[None]
            psi = PROFILES[kernel](*tensors(np.square(z).sum(-1)))[1]
            terms.append(psi.numpy()[..., None] * z / 30)
        velocity, size = terms[0].sum(1) - terms[1].sum(1), sum(np.abs(x).sum(1) for x in terms)
        for ours in (velocity_of(x, y), -15 * gradient_of(x, y)):
            assert np.linalg.norm(np.asarray(ours) - velocity) <= 2e-5 * np.linalg.norm(size) + 1e-30
