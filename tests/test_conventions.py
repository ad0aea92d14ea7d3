"""Other libraries' conventions: their numbers from ours. Libraries that are not installed are skipped."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.spatial.distance import cdist
from scipy.stats import gaussian_kde, ttest_ind
from sklearn.gaussian_process.kernels import Matern, RationalQuadratic
from sklearn.metrics.pairwise import rbf_kernel

import jaxgauss
from oracle import relative_error


@pytest.fixture(autouse=True)
def promotion():
    """What JAX allows by default: other libraries rely on it."""
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture
def samples(rng):
    return rng.normal(size=(60, 3)), rng.normal(size=(45, 3)) + 0.4


def ott_matrix(x, y):
    return pytest.importorskip("ott.geometry.pointcloud").PointCloud(x, y, epsilon=0.9).kernel_matrix


def squares(x, y):
    return cdist(x, y, "sqeuclidean")


KERNELS = {  # the convention's name: a bandwidth, our kernel, their matrix, and how far their digits go
    "scikit-learn": (0.3, "gauss", lambda x, y: rbf_kernel(x, y, gamma=0.3), 1e-12),
    "hyppo": (0.3, "gauss", lambda x, y: np.exp(-0.3 * squares(x, y)), 1e-12),
    "epsilon": (0.9, "gauss", ott_matrix, 1e-5),
    "ott": (0.9, "gauss", ott_matrix, 1e-5),
    "Matern": (0.7, "matern32", Matern(0.7, nu=1.5), 1e-12),
    "RationalQuadratic": (0.7, jaxgauss.rational_quadratic(1.7), RationalQuadratic(0.7, alpha=1.7), 1e-12),
    "imq": (0.7, "imq", lambda x, y: 0.7 * (0.7**2 + squares(x, y)) ** -0.5, 1e-12),  # of Stein's
    "coreax": (0.7, "gauss", lambda x, y: np.exp(-squares(x, y) / (2 * 0.7**2)), 1e-12),
    "coreax PCIMQKernel": (0.7, "imq", lambda x, y: (1 + squares(x, y) / (2 * 0.7**2)) ** -0.5, 1e-12),
    "coreax RationalQuadraticKernel": (
        0.7,
        jaxgauss.rational_quadratic(1.7),
        lambda x, y: (1 + squares(x, y) / (2 * 1.7 * 0.7**2)) ** -1.7,
        1e-12,
    ),
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_a_bandwidth_keeps_its_dtype(dtype):
    for bandwidth in (jnp.asarray([0.5, 4], dtype), np.asarray([0.5, 4], dtype)):
        tau = jaxgauss.tau_from_bandwidth(bandwidth)
        assert tau.dtype == dtype and tau.tolist() == [4, 0.0625]


@pytest.mark.parametrize("convention", KERNELS)
def test_kernels_of(samples, convention):
    (x, y), (bandwidth, kernel, theirs, tolerance) = samples, KERNELS[convention]
    ours = jaxgauss.kernel_sum(x, y, np.ones(45), jaxgauss.tau_from_bandwidth(bandwidth, convention), kernel=kernel)
    assert relative_error(ours, theirs(x, y).sum(1)) < tolerance


def test_scipy_gaussian_kde(samples):
    x, y = (z[:, :1] for z in samples)
    theirs = gaussian_kde(y[:, 0])
    tau = jaxgauss.tau_from_bandwidth(theirs.factor * y.std(ddof=1), "scipy")
    assert relative_error(jaxgauss.kde_logpdf(x, y, tau), theirs.logpdf(x[:, 0])) < 1e-12


def test_geomloss(samples):
    geomloss, torch = pytest.importorskip("geomloss"), pytest.importorskip("torch")
    coincident = (1 / 60 + 1 / 45) * 1e-4  # there no distance is below 1e-4
    for loss, kernel, tau, more in (
        ("gaussian", "gauss", jaxgauss.tau_from_bandwidth(0.8, "geomloss"), 0),
        ("laplacian", "laplace", jaxgauss.tau_from_bandwidth(0.8, "laplacian"), coincident),
        ("energy", "energy", 1.0, coincident),
    ):
        theirs = geomloss.SamplesLoss(loss, blur=0.8, backend="tensorized")(*map(torch.as_tensor, samples))
        assert float(jaxgauss.mmd_squared(*samples, tau, kernel=kernel)) - more == pytest.approx(
            2 * float(theirs), rel=1e-6
        )


def log_density(position):
    return -jnp.square(position["a"] - 1).sum() / 2 - jnp.square(position["b"]) / 8


def test_blackjax_takes_the_same_step(rng):
    blackjax = pytest.importorskip("blackjax")
    particles = {"a": jnp.asarray(rng.normal(size=(30, 2))), "b": jnp.asarray(rng.normal(size=30))}
    optimizer = optax.adam(0.1)
    theirs = blackjax.svgd(jax.grad(log_density), optimizer)
    ours = jaxgauss.svgd(jax.grad(log_density), optimizer)
    state = ours.init(particles)
    reference = theirs.init(particles, {"length_scale": 2 / state.kernel_parameters["tau"]})
    for _ in range(3):
        state, reference = ours.step(state), theirs.step(reference)
        for name in particles:
            assert relative_error(state.particles[name], reference.particles[name]) < 1e-10
        theirs_tau = jaxgauss.tau_from_bandwidth(reference.kernel_parameters["length_scale"], "blackjax")
        assert float(state.kernel_parameters["tau"]) == pytest.approx(float(theirs_tau), rel=1e-10)


@pytest.mark.slow
def test_a_numpyro_model_plugs_in(rng):
    numpyro = pytest.importorskip("numpyro")
    from numpyro.contrib.einstein.stein_kernels import RBFKernel
    from numpyro.infer.util import initialize_model

    data = jnp.asarray(rng.normal(size=20) + 2)

    def model():
        mean = numpyro.sample("mean", numpyro.distributions.Normal(0.0, 10.0))
        scale = numpyro.sample("scale", numpyro.distributions.LogNormal(0.0, 1.0))
        numpyro.sample("data", numpyro.distributions.Normal(mean, scale), obs=data)

    _, potential_fn, *_ = initialize_model(jax.random.key(0), model)
    particles = {"mean": jnp.asarray(rng.normal(size=100) + 2), "scale": jnp.asarray(rng.normal(size=100))}
    sampler = jaxgauss.svgd(jax.grad(lambda position: -potential_fn(position)), optax.adam(0.05))
    state = sampler.init(particles)
    state = jax.jit(lambda state: jax.lax.fori_loop(0, 300, lambda _, state: sampler.step(state), state))(state)
    assert float(state.particles["mean"].mean()) == pytest.approx(float(data.mean()), abs=0.1)

    flat = jnp.stack([particles["mean"], particles["scale"]], -1)  # the direction, with NumPyro's own kernel
    kernel = RBFKernel().compute(None, flat, None, None)
    h = -1 / jnp.log(kernel(flat[0], flat[1])) * jnp.square(flat[0] - flat[1]).sum()
    scores = jax.vmap(jax.grad(lambda x: -potential_fn({"mean": x[0], "scale": x[1]})))(flat)
    each = jax.vmap(lambda x: jax.vmap(lambda y, s: kernel(y, x) * s + jax.grad(kernel)(y, x))(flat, scores).mean(0))
    ours = jaxgauss.svgd_direction(flat, scores, jaxgauss.tau_from_bandwidth(h, "numpyro"))
    assert relative_error(ours, each(flat)) < 1e-6


def test_conversions():
    assert [jaxgauss.tau_from_bandwidth(2.0, c) for c in ("sigma", "gamma", "h", "keops")] == [0.25, 4.0, 1.0, 0.5]
    assert {jaxgauss.tau_from_bandwidth(2.0, c) for c in ("lengthscale", "gpytorch", "pykeops kriging")} == {0.25}
    assert jax.jit(jaxgauss.tau_from_bandwidth)(jnp.asarray([1.0, 2.0])).tolist() == [1.0, 0.25]


@pytest.mark.parametrize("name", ["mmd_test", "hsic_test", "ksd_test"])
def test_tests_unpack_as_scipys_do(name, samples):
    x, y = samples[0][:20], samples[1][:20]
    theirs = ttest_ind(x[:, 0], y[:, 0])
    taus, rng_key = (1.0,) * (1 + (name == "hsic_test")), jax.random.key(0)
    ours = getattr(jaxgauss, name)(x, y, *taus, rng_key=rng_key)
    for found in (ours, jax.jit(getattr(jaxgauss, name))(x, y, *taus, rng_key=rng_key), theirs):
        statistic, p_value = found
        assert (statistic, p_value) == (found.statistic, found.pvalue) == (found[0], found[1])
    assert ours.statistic != ours.p_value
    assert [x.shape for x in jax.tree.leaves(ours)] == [(), (), ours.null_statistics.shape]
