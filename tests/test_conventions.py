"""Other libraries' conventions: their numbers from ours. Libraries that are not installed are skipped."""

import functools

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


@pytest.mark.parametrize("name", ["scott", "silverman"])
@pytest.mark.parametrize("dim, weighted", [(1, False), (3, True), (6, False)])
def test_densities_of_scipy_by_the_name_of_their_bandwidth(rng, name, dim, weighted):
    """In units that differ, far from the origin; under jit; scores are the gradients."""
    y = rng.normal(size=(90, dim)) @ rng.normal(size=(dim, dim)) * 10.0 ** np.arange(dim) + 1e3
    x, weights = y[:40] + 0.1 * y[40:80] - 100, rng.integers(0, 4, 90).astype(float) if weighted else None
    counted = np.ones(90, bool) if weights is None else weights > 0  # of a weight of zero SciPy's logarithms are NaN
    theirs = gaussian_kde(y[counted].T, name, None if weights is None else weights[counted])
    exact = theirs.logpdf(x.T)
    ours = functools.partial(jaxgauss.kde_logpdf, bandwidth=name, weights=weights)
    assert relative_error(ours(x, y), exact) < 1e-12 > relative_error(jax.jit(ours)(x, y), exact)
    assert relative_error(jnp.exp(ours(x, y)), theirs.pdf(x.T)) < 1e-12
    mask = np.arange(90) % 3 > 0
    kept = gaussian_kde(y[mask].T, name).logpdf(x.T)
    assert relative_error(ours(x, np.where(mask[:, None], y, np.nan), weights=mask), kept) < 1e-12
    score = functools.partial(jaxgauss.kde_score, bandwidth=name, weights=weights)
    differences = y[counted] - x[:, None]
    logs = np.log(theirs.weights) - np.einsum("mnd,de,mne->mn", differences, theirs.inv_cov, differences) / 2
    shares = np.exp(logs - logs.max(1, keepdims=True))
    expected = np.einsum("mn,mnd->md", shares / shares.sum(1, keepdims=True), differences) @ theirs.inv_cov
    for found in (score(x, y), jax.jit(score)(x, y)):
        assert (np.abs(found - expected).max(0) < 1e-11 * np.abs(expected).max(0)).all()


@pytest.mark.parametrize("function", [jaxgauss.kde_logpdf, jaxgauss.kde_score])
def test_gradients_of_a_named_bandwidth_flow_through_the_covariance(rng, function):
    x, y, w = rng.normal(size=(7, 3)), rng.normal(size=(20, 3)) * [1, 2, 30], rng.uniform(size=20)

    def dense(x, y, w):
        shares = w / w.sum()
        squares = jnp.square(shares).sum()
        apart = y - shares[None] @ y
        covariance = (shares[:, None] * apart).T @ apart / (1 - squares) * squares ** (2 / 7)
        z = x[:, None] - y[None]
        u = jnp.einsum("mnd,de,mne->mn", z, jnp.linalg.inv(covariance), z)
        factor = -jnp.linalg.slogdet(2 * jnp.pi * covariance)[1] / 2
        return jax.nn.logsumexp(jnp.log(shares)[None] - u / 2, 1) + factor

    def loss(function, *operands):
        return jnp.sin(function(*operands)).sum()

    def ours(x, y, w):
        return function(x, y, bandwidth="scott", weights=w, engine="dense")

    exact = dense if function is jaxgauss.kde_logpdf else lambda x, *z: jax.grad(lambda x: dense(x, *z).sum())(x)
    expected = jax.grad(functools.partial(loss, exact), (0, 1, 2))(x, y, w)
    gradients = jax.jit(jax.vmap(jax.grad(functools.partial(loss, ours), (0, 1, 2))))(x[None], y[None], w[None])
    for found, one in zip(gradients, expected, strict=True):
        assert relative_error(np.squeeze(found), one) < 1e-10


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_named_bandwidth_keeps_the_digits_of_correlated_samples(rng, dtype):
    """Of a correlation of 0.9999: not many fewer than points that are whitened in float64 and then rounded."""
    y = rng.normal(size=(500, 2)) @ np.array([[1, 1], [0, 1e-2 if dtype == "float32" else 1]])
    x, y = (jnp.asarray(z, dtype) for z in (y[:50] + 1e-2, y))
    x64, y64 = (np.asarray(z, float) for z in (x, y))
    theirs = gaussian_kde(y64.T)
    exact, root = theirs.logpdf(x64.T), np.linalg.cholesky(theirs.covariance)
    rounded = [(z.astype("float32") @ np.linalg.inv(root).T.astype("float32")).astype(dtype) for z in (x64, y64)]
    naive = np.asarray(jaxgauss.kde_logpdf(*rounded, 1.0), float) - np.log(np.diag(root)).sum()
    found = jaxgauss.kde_logpdf(x, y, bandwidth="scott")
    assert found.dtype == dtype
    assert np.abs(np.asarray(found, float) - exact).max() < 4 * np.abs(naive - exact).max()


def test_a_singular_covariance_is_refused_or_nan():
    """Where the host sees the samples it is an error; under jit NaN, as of a wrong τ."""
    y = jnp.linspace(0, 1, 30)[:, None] * jnp.ones((1, 2)) * 1e3
    for samples in (y, y.astype("float32"), y[:2, :1] * 0, y[:1, :1]):
        with pytest.raises(ValueError, match="of a singular covariance"):
            jaxgauss.kde_logpdf(samples, samples, bandwidth="scott")
        if samples.size > 2:
            score = jax.jit(functools.partial(jaxgauss.kde_score, bandwidth="scott", engine="dense"))
            assert jnp.isnan(score(samples, samples)).all()
    assert jnp.isnan(jaxgauss.kde_logpdf(y, y.at[0].set(jnp.nan), bandwidth="scott")).all()
    outlier = jnp.asarray(np.random.default_rng(0).normal(size=(40, 2)), "float32").at[0, 0].set(3e38)
    assert jnp.isfinite(jaxgauss.kde_logpdf(outlier[1:], outlier, bandwidth="scott")).all()


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
