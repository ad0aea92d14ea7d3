"""Other libraries' conventions: their numbers from ours. Libraries that are not installed are skipped."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.spatial.distance import cdist
from scipy.stats import gaussian_kde
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


def coreax_matrix(kernel, *options, **more):
    return lambda x, y: getattr(pytest.importorskip("coreax.kernels"), kernel)(*options, **more).compute(x, y)


def ott_matrix(x, y):
    return pytest.importorskip("ott.geometry.pointcloud").PointCloud(x, y, epsilon=0.9).kernel_matrix


def hyppo_matrix(x, y):
    both = np.concatenate([x, y])
    return pytest.importorskip("hyppo.tools").compute_kern(both, both, metric="rbf", gamma=0.3)[0][: len(x), len(x) :]


KERNELS = {  # the convention's name: a bandwidth, our kernel, their matrix, and how far their digits go
    "scikit-learn": (0.3, "gauss", lambda x, y: rbf_kernel(x, y, gamma=0.3), 1e-12),
    "hyppo": (0.3, "gauss", hyppo_matrix, 1e-12),
    "epsilon": (0.9, "gauss", ott_matrix, 1e-5),
    "ott": (0.9, "gauss", ott_matrix, 1e-5),
    "Matern": (0.7, "matern32", Matern(0.7, nu=1.5), 1e-12),
    "RationalQuadratic": (0.7, jaxgauss.rational_quadratic(1.7), RationalQuadratic(0.7, alpha=1.7), 1e-12),
    "imq": (0.7, "imq", lambda x, y: 0.7 * (0.7**2 + cdist(x, y, "sqeuclidean")) ** -0.5, 1e-12),  # of Stein's
    "coreax PCIMQKernel": (0.7, "imq", coreax_matrix("PCIMQKernel", 0.7), 1e-6),
    "coreax RationalQuadraticKernel": (
        0.7,
        jaxgauss.rational_quadratic(1.7),
        coreax_matrix("RationalQuadraticKernel", 0.7, relative_weighting=1.7),
        1e-6,
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


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of coreax's
@pytest.mark.parametrize("unique", [True, False])
def test_coreax_herding(samples, unique):
    pytest.importorskip("coreax")
    from coreax import Data
    from coreax.kernels import SquaredExponentialKernel
    from coreax.solvers import KernelHerding

    x, _ = samples
    theirs, _ = KernelHerding(15, SquaredExponentialKernel(0.8), unique=unique).reduce(Data(x))
    ours = jaxgauss.kernel_herding(x, jaxgauss.tau_from_bandwidth(0.8, "coreax"), 15, unique=unique)
    assert ours.indices.tolist() == np.ravel(theirs.unweighted_indices).tolist()


def test_coreax(samples):
    pytest.importorskip("coreax")
    from coreax import Data
    from coreax.kernels import SquaredExponentialKernel
    from coreax.metrics import KSD, MMD
    from coreax.score_matching import ScoreMatching

    x, y = (jnp.asarray(z) for z in samples)
    kernel = SquaredExponentialKernel(length_scale=0.8)
    ours = jaxgauss.mmd_squared(x, y, jaxgauss.tau_from_bandwidth(0.8, "coreax"))
    assert float(jnp.sqrt(ours)) == pytest.approx(float(MMD(kernel).compute(Data(x), Data(y))), rel=1e-6)

    class Normal(ScoreMatching):
        def match(self, x):
            return lambda points: -points

    theirs = KSD(kernel, score_matching=Normal()).compute(Data(x), Data(y))
    ours = jaxgauss.ksd_squared(y, -y, jaxgauss.tau_from_bandwidth(0.8, "coreax"))
    assert float(jnp.sqrt(ours)) == pytest.approx(float(theirs), rel=1e-6)


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


@pytest.mark.parametrize(("estimator", "power"), [("unbiased", 1), ("biased", 2)])
def test_hyppo_hsic(samples, rng, estimator, power):
    """A correlation, biased its root, and γ of x is that of y, too."""
    independence = pytest.importorskip("hyppo.independence")
    x, _ = samples
    y, tau = x[:, :2] ** 2 + rng.normal(size=(60, 2)), jaxgauss.tau_from_bandwidth(0.3, "hyppo")
    both, of_x, of_y = (float(jaxgauss.hsic(*z, tau, tau, estimator=estimator)) for z in ((x, y), (x, x), (y, y)))
    theirs = independence.Hsic(bias=estimator == "biased", gamma=0.3).statistic(x, y) ** power
    assert both / np.sqrt(of_x * of_y) == pytest.approx(theirs, rel=1e-9)


def test_hyppo_mmd(samples, rng):
    """HSIC of the pooled points with their labels, as a correlation: of samples of one size a multiple of MMD²."""
    ksample = pytest.importorskip("hyppo.ksample")
    x, _ = samples
    y, tau, n = rng.normal(size=(60, 3)) + 0.3, jaxgauss.tau_from_bandwidth(0.3, "hyppo"), 60
    pooled, labels = np.concatenate([x, y]), np.repeat([0.0, 1.0], n)[:, None]
    of_pooled, of_labels = (float(jaxgauss.hsic(z, z, tau, tau, estimator="unbiased")) for z in (pooled, labels))
    covariance = (1 - np.exp(-0.3)) * n * (n - 1) / (2 * (2 * n - 1) * (2 * n - 3))  # per MMD²
    covariance *= float(jaxgauss.mmd_squared(x, y, tau, estimator="unbiased"))
    theirs = ksample.MMD(gamma=0.3).statistic(x, y) * 8  # (2n)⁴ / (2 n² n²)
    assert covariance / np.sqrt(of_pooled * of_labels) == pytest.approx(theirs, rel=1e-9)


def test_dcor_products_of_kernels(samples, rng):
    dcor = pytest.importorskip("dcor")
    x, y = samples
    z = x[:, :2] ** 2 + rng.normal(size=(60, 2))
    first, second = (np.exp(-0.3 * cdist(w, w, "sqeuclidean")) for w in (x, z))
    theirs = dcor.mean_product(dcor.double_centered(first), dcor.double_centered(second))
    assert float(jaxgauss.hsic(x, z, 0.6, 0.6)) == pytest.approx(theirs, rel=1e-9)
    theirs = dcor.u_product(*(dcor.u_centered(w - np.eye(60)) for w in (first, second)))
    assert float(jaxgauss.hsic(x, z, 0.6, 0.6, estimator="unbiased")) == pytest.approx(theirs, rel=1e-9)
    assert float(jaxgauss.energy_distance(x, y)) == pytest.approx(dcor.energy_distance(x, y), rel=1e-9)


def test_kerneltests_mmdagg(samples):
    """k = exp(-d²/b²)."""
    theirs = pytest.importorskip("kt.mmdagg")
    _, found = theirs.mmdagg(*samples, kernel="gaussian", number_bandwidths=3, B1=9, B2=9, return_details=True)
    for bandwidth, mmd in zip(found["bandwidth"], found["mmd"], strict=True):
        ours = jaxgauss.mmd_squared(
            *samples, jaxgauss.tau_from_bandwidth(bandwidth**2, "epsilon"), estimator="unbiased"
        )
        assert float(ours) == pytest.approx(mmd, rel=1e-9)


def test_kerneltests_mmd_fuse(samples):
    """Its sharpness is n(n - 1)/√(N(N - 1)) times that of `mmd_test`, N the pooled points."""
    theirs = pytest.importorskip("kt.mmdfuse")
    pairs, pooled = 45 * 44, 105 * 104
    how = {"number_permutations": 9, "lambda_multiplier": pooled**0.5 / pairs, "return_details": True}
    _, found = theirs.mmdfuse(*samples, kernels="gaussian", **how)
    taus = jaxgauss.tau_from_bandwidth(jnp.asarray(found["bandwidth"]))
    ours = jaxgauss.mmd_test(*samples, taus, rng_key=jax.random.key(0), num_permutations=9)
    assert float(ours.statistic) == pytest.approx(found["statistic"] / pairs**0.5, rel=1e-9)


def test_kerneltests_ksd(samples):
    """KSDAgg has our "imq"; the incomplete sum, complete, has (b² + d²)^(-1/2)."""
    ksdagg, agginc = pytest.importorskip("kt.ksdagg"), pytest.importorskip("kt.agginc")
    x, _ = samples
    _, found = ksdagg.ksdagg(x, -x, number_bandwidths=3, B1=9, B2=9, return_details=True)
    for bandwidth, ksd in zip(found["bandwidth"], found["ksd"], strict=True):
        tau = jaxgauss.tau_from_bandwidth(bandwidth, "imq")
        ours = jaxgauss.ksd_squared(x, -x, tau, kernel="imq", estimator="unbiased")
        test = jaxgauss.ksd_test(x, -x, tau, rng_key=jax.random.key(0), num_bootstrap=9)
        assert float(ours) == pytest.approx(ksd, rel=1e-9) and float(test.statistic) == pytest.approx(ksd, rel=1e-9)
    _, found = agginc.inc("ksd", x, -x, R=59, B=9, bandwidth=0.7, return_details=True)
    ours = (
        jaxgauss.ksd_squared(x, -x, jaxgauss.tau_from_bandwidth(0.7, "imq"), kernel="imq", estimator="unbiased") / 0.7
    )
    assert float(ours) == pytest.approx(found["statistic"], rel=1e-9)


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
