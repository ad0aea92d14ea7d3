"""The kernel methods with every kernel, against NumPy in float64 with full matrices, SciPy and the closed forms."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import jaxgauss
from jaxgauss import (
    embedding_norm_squared,
    energy_distance,
    kernel_sum,
    ksd_squared,
    mmd_flow_velocity,
    mmd_squared,
    mmd_test,
    mmd_witness,
    rational_quadratic,
    svgd_direction,
)
from jaxgauss._kernels.kernels import KERNELS
from oracle import assert_close, relative_error

NAMED = ["matern12", "matern32", "matern52", "imq", "cauchy", "energy", rational_quadratic(2.5)]
FEW = ["matern12", "imq", "energy", rational_quadratic(2.5)]  # with a kink, without, of weights alike, of one's own
SMOOTH = [kernel for kernel in NAMED if kernel not in ("matern12", "energy")]


@pytest.fixture
def dim():
    return 2


def matrix(kernel, x, y, tau):
    """κ of all pairs, the mean over several τ; and what it is of a point with itself."""
    kernel, squared = KERNELS.get(kernel, kernel), jnp.square(x[:, None] - y[None]).sum(-1)
    return jnp.stack([kernel(t * squared) for t in jnp.atleast_1d(tau)]).mean(0)


def mmd_dense(kernel, x, y, tau, a, b, estimator="biased"):
    at_zero = KERNELS.get(kernel, kernel).at_zero

    def own(x, a):
        form, squares = a @ matrix(kernel, x, x, tau) @ a, jnp.square(a).sum()
        if estimator == "biased":
            return form
        return jnp.square(a.sum()) / (jnp.square(a.sum()) - squares) * (form - at_zero * squares)

    return own(x, a) - 2 * a @ matrix(kernel, x, y, tau) @ b + own(y, b)


@pytest.fixture
def samples(rng, dim):
    """Two samples, some points of which coincide, and weights."""
    x = rng.normal(size=(30, dim))
    y = np.concatenate([rng.normal(size=(34, dim)) + 0.5, x[4:7]])
    a, b = rng.uniform(size=30), rng.uniform(size=37)
    return [jnp.asarray(z) for z in (x, y, a / a.sum(), b / b.sum())]


@pytest.mark.parametrize("kernel, dim", [*((x, 2) for x in FEW), ("matern12", 6), ("imq", 6)], ids=str)
def test_mmd_and_what_belongs_to_it(samples, kernel):
    """Value and all gradients, second derivatives, the witness, its flow, and the term of y alone."""
    x, y, a, b = samples
    for estimator, tau in (("biased", jnp.asarray(0.7)), ("unbiased", jnp.asarray([0.3, 2.0]))):

        def ours(x, y, tau, a, b, estimator=estimator):
            return mmd_squared(x, y, tau, kernel=kernel, x_weights=a, y_weights=b, estimator=estimator)

        def exact(x, y, tau, a, b, estimator=estimator):
            return mmd_dense(kernel, x, y, tau, a, b, estimator)

        results = [jax.jit(jax.value_and_grad(f, (0, 1, 2, 3, 4)))(x, y, tau, a, b) for f in (ours, exact)]
        assert_close(*(jax.tree.leaves(z) for z in results), 1e-10)
        alone = jax.jit(jax.grad(ours))(x, y, tau, a, b)
        assert relative_error(alone, results[1][1][0]) < 1e-10
    options = {"kernel": kernel, "x_weights": a, "y_weights": b}
    velocity = mmd_flow_velocity(x, y, tau, **options)
    biased = jax.grad(functools.partial(exact, estimator="biased"))(x, y, tau, a, b)
    assert relative_error(velocity, -biased / (2 * a[:, None])) < 1e-10
    witness = mmd_witness(y, x, y, tau, **options)
    assert relative_error(witness, matrix(kernel, y, x, tau) @ a - matrix(kernel, y, y, tau) @ b) < 1e-12
    known = embedding_norm_squared(y, tau, kernel=kernel, weights=b)
    whole = mmd_squared(x, y, tau, y_norm_squared=known, **options)
    assert relative_error(whole, exact(x, y, tau, a, b, "biased")) < 1e-11


@pytest.mark.parametrize("kernel", ["matern52", "imq", "matern12"])
def test_second_derivatives_of_mmd(rng, kernel):
    x, y, d = (jnp.asarray(rng.normal(size=(n, 2))) for n in (7, 6, 7))
    a, b = jnp.full(7, 1 / 7), jnp.full(6, 1 / 6)
    ours, exact = (
        jax.grad(lambda x, y, t: (jax.grad(f)(x, y, t) * d).sum(), (0, 1, 2))(x, y, jnp.asarray(0.7))  # noqa: B023
        for f in (
            lambda x, y, t: mmd_squared(x, y, t, kernel=kernel),
            lambda x, y, t: mmd_dense(kernel, x, y, t, a, b),
        )
    )
    assert_close(ours, exact, 1e-10)


@pytest.mark.parametrize("kernel", NAMED, ids=str)
def test_mixtures_serve_the_methods(samples, kernel):
    """As they would on CUDA: within the mixture's error, 1e-6 of κ(0), or of the diameter."""
    x, y, a, b = samples
    tau, options = jnp.asarray([0.3, 0.6]), {"kernel": kernel, "x_weights": a, "y_weights": b}
    limit = 4e-6 * (10 if kernel == "energy" else 1)
    for estimator in ("biased", "unbiased"):
        ours, exact = (mmd_squared(x, y, tau, estimator=estimator, method=m, **options) for m in ("mixture", "auto"))
        assert abs(ours - exact) < limit
    ours, exact = (mmd_witness(y, x, y, tau, method=m, **options) for m in ("mixture", "auto"))
    assert jnp.abs(ours - exact).max() < limit


def stein(kernel, x, s, tau):
    """The Stein kernel of all pairs by JAX's derivatives of the formula."""
    profile, dim = KERNELS.get(kernel, kernel), x.shape[1]

    def k(p, q):
        return profile(tau * jnp.square(p - q).sum())

    def h(p, q, s, t):
        mixed = jnp.trace(jax.jacfwd(jax.grad(k, 1), 0)(p, q))
        return k(p, q) * s @ t + s @ jax.grad(k, 1)(p, q) + t @ jax.grad(k, 0)(p, q) + mixed

    every = jax.vmap(jax.vmap(h, (None, 0, None, 0)), (0, None, 0, None))
    diagonal = profile.at_zero * jnp.square(s).sum(-1) + tau * dim * profile.slope.at_zero
    return jnp.where(jnp.eye(len(x), dtype=bool), diagonal[:, None], every(x, x, s, s))


@pytest.mark.parametrize("kernel, dim", [*((x, 2) for x in SMOOTH), ("imq", 6)], ids=str)
def test_ksd_is_that_of_the_formula(samples, kernel):
    x, _, a, _ = samples
    s, h = 0.1 - x, stein(kernel, x, 0.1 - x, 0.7)
    assert relative_error(ksd_squared(x, s, 0.7, kernel=kernel, weights=a), a @ h @ a) < 1e-12
    unbiased = (h.sum() - jnp.trace(h)) / (30 * 29)
    assert abs(ksd_squared(x, s, 0.7, kernel=kernel, estimator="unbiased") - unbiased) < 1e-12
    slopes = [
        jax.jit(jax.grad(f, (0, 1, 2)))(x, s, jnp.asarray(0.7))
        for f in (
            lambda x, s, t: ksd_squared(x, s, t, kernel=kernel, weights=a),
            lambda x, s, t: a @ stein(kernel, x, s, t) @ a,
        )
    ]
    if kernel != "matern32":  # whose third derivatives have a kink where points coincide with themselves
        assert_close(*slopes, 1e-9)
    assert all(jnp.isfinite(z).all() for z in slopes[0])


def test_ksd_of_imq_is_the_closed_form(samples):
    """In NumPy: (c² + r²)^β with c = 1, β = -½; Gorham & Mackey 2017."""
    x, s = np.asarray(samples[0]), 0.1 - np.asarray(samples[0])
    z = x[:, None] - x[None]
    r, dim = np.square(z).sum(-1), x.shape[1]
    cross = np.einsum("id,ijd->ij", s, z) - np.einsum("jd,ijd->ij", s, z)
    h = s @ s.T / np.sqrt(1 + r) + cross * (1 + r) ** -1.5 + dim * (1 + r) ** -1.5 - 3 * r * (1 + r) ** -2.5
    assert relative_error(ksd_squared(x, s, 1.0, kernel="imq"), h.mean()) < 1e-12


@pytest.mark.parametrize("kernel", [kernel for kernel in NAMED if kernel != "energy"], ids=str)
def test_svgd_direction_is_that_of_the_formula(samples, kernel):
    x, s = samples[0], 0.1 - samples[0]
    slope = matrix(KERNELS.get(kernel, kernel).slope, x, x, 0.7)
    exact = (matrix(kernel, x, x, 0.7) @ s + 0.7 * (slope.sum(1, keepdims=True) * x - slope @ x)) / len(x)
    assert relative_error(svgd_direction(x, s, 0.7, kernel=kernel), exact) < 1e-12


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


def test_energy_distance_is_dcors(rng):
    dcor = pytest.importorskip("dcor")
    x, y = rng.normal(size=(50, 3)), rng.normal(size=(60, 3)) + 1
    assert float(energy_distance(x, y)) == pytest.approx(dcor.energy_distance(x, y), rel=1e-12)


@pytest.mark.parametrize("kernel", ["gauss", *NAMED], ids=str)
def test_mmd_test_holds_its_level(kernel):
    """200 tests of one distribution at 10 % (14 to 28 of them, or 8 to 34, with probability 0.998)."""

    def one(rng_key):
        points, labels = jax.random.split(rng_key)
        x = jax.random.normal(points, (2, 12, 2))
        return mmd_test(*x, jnp.asarray([0.3, 3.0]), rng_key=labels, num_permutations=19, kernel=kernel).p_value

    p_values = jax.jit(lambda keys: jax.lax.map(one, keys))(jax.random.split(jax.random.key(5), 200))
    assert 8 <= int((p_values <= 0.1).sum()) <= 34
    assert 0.4 < float(p_values.mean()) < 0.65


@pytest.mark.parametrize("kernel", FEW, ids=str)
def test_mmd_test_has_the_statistic_of_the_loss(samples, kernel):
    x, y, *_ = samples
    for estimator in ("biased", "unbiased"):
        run = functools.partial(mmd_test, x, y, 0.7, rng_key=jax.random.key(0), num_permutations=30, kernel=kernel)
        test = run(estimator=estimator)
        assert relative_error(test.statistic, mmd_squared(x, y, 0.7, kernel=kernel, estimator=estimator)) < 1e-10
        by_sums = run(estimator=estimator, method="blocked")
        assert by_sums.p_value == test.p_value
        assert relative_error(by_sums.null_statistics, test.null_statistics) < 1e-9


def test_kernels_that_do_not_fit_are_refused():
    x, w = np.ones((4, 2)), np.ones(4)
    with pytest.raises(ValueError, match=r"`jaxgauss.svgd_direction`: `kernel` must be positive .*; got .*energy"):
        svgd_direction(x, x, 1.0, kernel="energy")
    with pytest.raises(ValueError, match=r"`jaxgauss.svgd`: `kernel` must be positive definite; got .*energy"):
        jaxgauss.svgd(lambda x: x, None, kernel="energy")
    with pytest.raises(ValueError, match=r"`jaxgauss.ksd_squared`: .* second derivatives; got Kernel\(matern12\)"):
        ksd_squared(x, x, 1.0, kernel="laplace")
    with pytest.raises(ValueError, match=r"`x_weights` and `y_weights` must have one sum .*; got sums 4 and 1"):
        mmd_squared(x, x, 1.0, kernel="energy", x_weights=w)
    with pytest.raises(ValueError, match=r"`jaxgauss.energy_distance`: `x_weights` .*; got sums 1 and 4"):
        energy_distance(x, x, y_weights=w)
    with pytest.raises(ValueError, match=r"`jaxgauss.energy_distance`: `estimator` must be .*; got 'v'"):
        energy_distance(x, x, estimator="v")
    with pytest.raises(ValueError, match=r"`jaxgauss.mmd_squared`: `kernel` must be one of gauss, .*; got 'rbf'"):
        mmd_squared(x, x, 1.0, kernel="rbf")
    with pytest.raises(ValueError, match=r"`jaxgauss.mmd_squared`: `method` must be one of auto, mixture.*'prescale'"):
        mmd_squared(x, x, 1.0, kernel="imq", method="prescale")
    assert float(mmd_squared(x, x + 1, 1.0, kernel="imq", x_weights=w)) > 0  # which is positive definite


def test_kernels_agree_with_the_sum_they_are_made_of(samples):
    x, y, a, b = samples
    form = sum(s * z @ kernel_sum(p, q, w, 0.7, kernel="cauchy") for s, z, p, q, w in
               ((1, a, x, x, a), (-2, a, x, y, b), (1, b, y, y, b)))  # fmt: skip
    ours = mmd_squared(x, y, 0.7, kernel="cauchy", x_weights=a, y_weights=b)
    assert relative_error(ours, form) < 1e-12


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


@pytest.mark.parametrize("kernel, dim", [*((x, 2) for x in DENSITIES), ("matern12", 5)], ids=str)
def test_densities_are_those_of_the_formula(samples, kernel):
    """With weights, some of them zero, several bandwidths, scores and all gradients; and far away."""
    x, y, _, b = samples
    b, taus, dim = b.at[3].set(0.0), jnp.asarray([0.3, 2.0]), x.shape[1]
    volume = KERNELS.get(kernel, kernel).log_integral(dim)

    def exact(x, y, taus, b):
        phis = jnp.stack([t ** (dim / 2) * matrix(kernel, x, y, t) for t in taus]).mean(0)
        return jnp.log(phis @ (b / b.sum())) - volume

    def ours(x, y, taus, b):
        return jaxgauss.kde_logpdf(x, y, taus, weights=b, kernel=kernel)

    results = [
        jax.jit(jax.value_and_grad(lambda *z, f=f: f(*z).sum(), (0, 1, 2, 3)))(x, y, taus, b) for f in (ours, exact)
    ]
    assert_close(*(jax.tree.leaves(z) for z in results), 1e-9)
    assert relative_error(jaxgauss.kde_score(x, y, taus, weights=b, kernel=kernel), results[1][1][0]) < 1e-9
    far = jaxgauss.kde_logpdf(1e4 + x.astype("float32"), y.astype("float32"), 1.0, kernel=kernel)
    assert jnp.isfinite(far).all()


def test_leave_one_out_takes_a_kernel(rng):
    x, taus = rng.normal(size=(40, 2)), np.asarray([0.5, 4.0])
    search = jaxgauss.leave_one_out_tau(x, taus, kernel="matern32")
    for tau, found in zip(taus, search.scores, strict=True):
        phi = tau * np.asarray(matrix("matern32", x, x, tau)) * (1 - np.eye(40)) / 39
        exact = np.log(phi.sum(1)).mean() - KERNELS["matern32"].log_integral(2)
        assert float(found) == pytest.approx(exact, rel=1e-10)


def test_logarithms_of_kernels(rng):
    """Where κ underflows, they do not; a mesh of one device makes no difference."""
    x, y = rng.normal(size=(5, 3)), rng.normal(size=(7, 3)) + 3000
    logs = jaxgauss.log_gauss_sum(x, y, kernel="matern12")
    r = np.linalg.norm(x[:, None] - y[None], axis=-1)
    assert relative_error(logs, -r.min(1) + np.log(np.exp(r.min(1, keepdims=True) - r).sum(1))) < 1e-13
    with pytest.raises(ValueError, match=r"`jaxgauss.log_gauss_sum`: `kernel` must be positive definite; got .*energy"):
        jaxgauss.log_gauss_sum(x, y, kernel="energy")
    with pytest.raises(ValueError, match=r"`method` must be one of auto, differences; got 'rescale'"):
        jaxgauss.log_gauss_sum(x, y, kernel="imq", method="rescale")
    with pytest.raises(ValueError, match=r"`jaxgauss.kde_logpdf`: `kernel` must have an integral .*imq\) in 3 dim"):
        jaxgauss.kde_logpdf(x, y, 1.0, kernel="imq")
    with pytest.raises(ValueError, match=r"`jaxgauss.leave_one_out_tau`: .* integral .*Kernel\(<lambda>\) in 3 dim"):
        jaxgauss.leave_one_out_tau(x, kernel=jaxgauss.Kernel(lambda u: jnp.exp(-u)))


@pytest.mark.parametrize("kernel", SMOOTH, ids=str)
@pytest.mark.parametrize("dim", [2, 17])
def test_gradients_have_their_digits_far_out(rng, kernel, dim):
    """In float32, relative to the terms' sizes, of clusters, an outlier and a wide cloud: moments would lose them."""
    z = rng.normal(size=(60, dim))
    clusters, number = rng.integers(0, 2, (60, 1)), np.arange(60)[:, None]
    for cloud in (z + 10 * clusters, z + 1e4 * clusters, np.where(number == 7, 1000, z), 100 * z):
        x, y = np.split(cloud.astype(np.float32), 2)
        terms = []
        for other in (x, y):
            z = np.float64(x)[:, None] - np.float64(other)[None]
            terms.append(np.asarray(KERNELS.get(kernel, kernel).slope(jnp.square(z).sum(-1)))[..., None] * z / 30)
        velocity, size = terms[0].sum(1) - terms[1].sum(1), sum(np.abs(x).sum(1) for x in terms)
        for ours in (
            mmd_flow_velocity(x, y, 1.0, kernel=kernel),
            jax.grad(lambda x: mmd_squared(x, y, 1.0, kernel=kernel))(x) * -15,  # noqa: B023
        ):
            assert np.linalg.norm(np.asarray(ours) - velocity) <= 2e-5 * np.linalg.norm(size) + 1e-30
