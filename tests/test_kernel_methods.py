"""MMD, SVGD, KSD, densities and bandwidths against their textbook formulas, written densely."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.stats import norm

from jaxgauss import (
    embedding_norm_squared,
    gauss_sum,
    kde_logpdf,
    kde_score,
    ksd_squared,
    leave_one_out_tau,
    log_gauss_sum,
    median_heuristic,
    mmd_flow_velocity,
    mmd_squared,
    mmd_test,
    mmd_witness,
    svgd,
    svgd_direction,
)
from jaxgauss._methods import mmd as module
from oracle import assert_close, relative_error

TAUS = [np.asarray(0.7), np.asarray([0.2, 0.7, 3.0])]
ESTIMATORS = ["biased", "unbiased"]


def kernel(x, y, tau):
    return jnp.exp(-tau / 2 * jnp.square(x[:, None] - y[None]).sum(-1))


def mixed(function):
    """The mean of function(…, tau) over one-dimensional tau."""

    def of_all(*operands, tau):
        return jnp.stack([function(*operands, tau=t) for t in jnp.atleast_1d(tau)]).mean(0)

    return of_all


def pairs(matrix, a, estimator):
    """Σ a_i a_j matrix_ij, or (Σa)² times its weighted mean over i ≠ j."""
    products = a[:, None] * a[None]
    if estimator == "biased":
        return (products * matrix).sum()
    products = products * (1 - jnp.eye(len(a)))
    return (products * matrix).sum() / products.sum() * a.sum() ** 2


@mixed
def dense_mmd(x, y, a, b, estimator, tau):
    cross = a @ kernel(x, y, tau) @ b
    return pairs(kernel(x, x, tau), a, estimator) + pairs(kernel(y, y, tau), b, estimator) - 2 * cross


@mixed
def dense_witness(points, x, y, a, b, tau):
    return kernel(points, x, tau) @ a - kernel(points, y, tau) @ b


@mixed
def dense_svgd(x, s, tau):
    return (kernel(x, x, tau)[:, :, None] * (s[None] + tau * (x[:, None] - x[None]))).mean(1)


@mixed
def dense_ksd(x, s, a, estimator, tau):
    d, dim = x[:, None] - x[None], x.shape[1]
    slopes = ((s[:, None] - s[None]) * d).sum(-1)
    stein = s @ s.T + tau * slopes + tau * dim - tau**2 * jnp.square(d).sum(-1)
    return pairs(kernel(x, x, tau) * stein, a, estimator)


def dense_logpdf(points, samples, w, tau):
    logs = [
        jax.nn.logsumexp(-t / 2 * jnp.square(points[:, None] - samples[None]).sum(-1) + jnp.log(w / w.sum())[None], -1)
        + samples.shape[1] / 2 * jnp.log(t / 2 / jnp.pi)
        for t in jnp.atleast_1d(tau)
    ]
    return jax.nn.logsumexp(jnp.stack(logs), 0) - np.log(len(logs))


def mmd(x, y, a, b, tau, **options):
    return mmd_squared(x, y, tau, x_weights=a, y_weights=b, **options)


@pytest.fixture
def case(rng):
    """x, y, a, b in float64."""
    return (
        *(jnp.asarray(rng.normal(size=(n, 3)) + 0.3 * i) for i, n in enumerate((13, 9))),
        jnp.asarray(rng.normal(size=13) + 0.3),
        jnp.asarray(rng.uniform(size=9)),
    )


def dense_norm(x, a, estimator, tau):
    return mixed(lambda x, a, tau: pairs(kernel(x, x, tau), a, estimator))(x, a, tau=tau)


def dense_flow(x, y, a, b, tau):
    return -jax.grad(lambda z: dense_witness(z, x, y, a, b, tau=tau).sum())(x)


def dense_score(points, samples, w, tau):
    return jax.grad(lambda z: dense_logpdf(z, samples, w, tau).sum())(points)


# name: ours and the formula, of x, y, a, b, tau and an estimator
TABLE = {
    "mmd": (
        lambda x, y, a, b, tau, e: mmd(x, y, a, b, tau, estimator=e),
        lambda x, y, a, b, tau, e: dense_mmd(x, y, a, b, e, tau=tau),
    ),
    "norm": (
        lambda x, y, a, b, tau, e: embedding_norm_squared(x, tau, weights=a, estimator=e),
        lambda x, y, a, b, tau, e: dense_norm(x, a, e, tau),
    ),
    "witness": (
        lambda x, y, a, b, tau, e: mmd_witness(y + 1, x, y, tau, x_weights=a, y_weights=b),
        lambda x, y, a, b, tau, e: dense_witness(y + 1, x, y, a, b, tau=tau),
    ),
    "flow": (
        lambda x, y, a, b, tau, e: mmd_flow_velocity(x, y, tau, x_weights=a, y_weights=b),
        lambda x, y, a, b, tau, e: dense_flow(x, y, a, b, tau),
    ),
    "svgd": (
        lambda x, y, a, b, tau, e: svgd_direction(y, x[: len(y)], tau),
        lambda x, y, a, b, tau, e: dense_svgd(y, x[: len(y)], tau=tau),
    ),
    "ksd": (
        lambda x, y, a, b, tau, e: ksd_squared(y, x[: len(y)], tau, weights=b, estimator=e),
        lambda x, y, a, b, tau, e: dense_ksd(y, x[: len(y)], b, e, tau=tau),
    ),
    "logpdf": (
        lambda x, y, a, b, tau, e: kde_logpdf(x, y, tau, weights=b),
        lambda x, y, a, b, tau, e: dense_logpdf(x, y, b, tau),
    ),
    "score": (
        lambda x, y, a, b, tau, e: kde_score(x, y, tau, weights=b),
        lambda x, y, a, b, tau, e: dense_score(x, y, b, tau),
    ),
}
WITH_ESTIMATORS = [*((name, "biased") for name in TABLE), *((name, "unbiased") for name in ("mmd", "norm", "ksd"))]


def scalar(function, estimator):
    return lambda *operands: jnp.sin(function(*operands, estimator)).sum()


@pytest.mark.parametrize("name, estimator", WITH_ESTIMATORS)
def test_gradients_match_the_formula(case, name, estimator):
    tau = TAUS[0] if estimator == "unbiased" else TAUS[1]
    ours, dense = (scalar(function, estimator) for function in TABLE[name])
    operands = (*case, jnp.asarray(tau))
    value, gradients = jax.jit(jax.value_and_grad(ours, (0, 1, 2, 3, 4)))(*operands)
    exact, exact_gradients = jax.jit(jax.value_and_grad(dense, (0, 1, 2, 3, 4)))(*operands)
    assert float(value) == pytest.approx(float(exact), rel=1e-11)
    for gradient, expected in zip(gradients, exact_gradients, strict=True):
        assert jnp.abs(gradient - expected).max() <= 1e-10 * max(1e-3, jnp.abs(expected).max())


@pytest.mark.parametrize("moving", [(0,), (1,), (4,), (0, 2), (1, 3)])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_mmd_gradients_of_what_moves(case, moving, estimator):
    """Each pattern takes its own pass: x alone, y alone, or both."""
    ours, dense = (scalar(function, estimator) for function in TABLE["mmd"])
    operands = (*case, jnp.asarray(TAUS[0]))
    assert_close(jax.jit(jax.grad(ours, moving))(*operands), jax.jit(jax.grad(dense, moving))(*operands), 1e-11)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_form_in_blocks_is_the_form(case, monkeypatch, estimator):
    """That of y with itself, from three quarters of its pairs: value, and gradients of any order."""
    x, y, a, b = case
    ours = lambda x, y: mmd(x, y, a[: len(x)], b, 0.7, estimator=estimator)  # noqa: E731
    results = []
    for blocks in (1, 4):
        monkeypatch.setattr(module, "BLOCKS", blocks)
        monkeypatch.setattr(module, "WORTH_BLOCKS", 2)
        jax.clear_caches()
        twice = jax.grad(lambda x: jax.grad(ours)(x, y)[0, 0])
        results.append((ours(x, y), jax.grad(ours)(x, y), jax.grad(ours, 1)(x, y), twice(x)))
    jax.clear_caches()
    assert_close(*results, 1e-12)


def test_mmd_is_differentiable_again(case):
    ours, dense = (scalar(function, "unbiased") for function in TABLE["mmd"])

    def again(function):
        return jax.grad(lambda *z: sum(jnp.sin(g).sum() for g in jax.grad(function, (0, 1, 4))(*z)), (0, 1, 2, 3, 4))

    operands = (*case, jnp.asarray(0.7))
    assert_close(jax.jit(again(ours))(*operands), jax.jit(again(dense))(*operands), 1e-11)


@pytest.mark.parametrize(
    "name, estimator, offset",  # several bandwidths, and one far from the origin
    [*((*x, 50) for x in WITH_ESTIMATORS), ("mmd", "biased", 0), ("ksd", "biased", 0), ("score", "biased", 0)],
)
def test_float32_is_right_to_five_digits(rng, name, estimator, offset):
    case = [rng.normal(size=(n, 5)) + 0.5 * i + offset for i, n in enumerate((300, 200))]
    case = [jnp.asarray(z, jnp.float32) for z in (*case, rng.uniform(size=300) / 150, rng.uniform(size=200) / 100)]
    ours, dense = TABLE[name]
    tau = jnp.asarray(TAUS[0] if offset else TAUS[1], jnp.float32)
    result = ours(*case, tau, estimator)
    assert result.dtype == jnp.float32
    exact = jax.jit(dense, static_argnums=5)(*(z.astype(jnp.float64) for z in (*case, tau)), estimator)
    assert relative_error(result, exact) < 1e-5


@pytest.mark.parametrize("name", [name for name in TABLE if name not in ("logpdf", "score")])
def test_half_precision(rng, name):
    """Within the promise for gauss_sum of the size of the terms."""
    x, y = (jnp.asarray(rng.normal(size=(250, 5)) + 0.5 * i, jnp.float32) for i in range(2))
    a = jnp.full(250, 1 / 250, jnp.float32)
    _, dense = TABLE[name]
    exact = dense(*(z.astype(jnp.float64) for z in (x, y, a, a, jnp.float32(0.7))), "unbiased")

    def in_half(*operands):
        function = {
            "mmd": lambda x, y, a, b, tau: mmd(x, y, a, b, tau, estimator="unbiased", precision="float16"),
            "norm": lambda x, y, a, b, tau: embedding_norm_squared(x, tau, estimator="unbiased", precision="float16"),
            "witness": lambda x, y, a, b, tau: mmd_witness(y + 1, x, y, tau, precision="float16"),
            "flow": lambda x, y, a, b, tau: mmd_flow_velocity(x, y, tau, precision="float16"),
            "svgd": lambda x, y, a, b, tau: svgd_direction(y, x, tau, precision="float16"),
            "ksd": lambda x, y, a, b, tau: ksd_squared(y, x, tau, estimator="unbiased", precision="float16"),
        }[name]
        return function(*operands)

    assert relative_error(in_half(x, y, a, a, 0.7), exact) < 5e-3


@pytest.mark.parametrize("name", TABLE)
def test_points_a_thousand_bandwidths_apart(rng, name):
    """Two far clusters: exponents formed from products would have no digits left."""
    centers = 3e4 * rng.integers(0, 2, size=(40, 1))
    case = [jnp.asarray(rng.normal(size=(n, 2)) + centers[:n], jnp.float32) for n in (40, 30)]
    case += [jnp.full(n, 1 / n, jnp.float32) for n in (40, 30)]
    ours, dense = TABLE[name]
    tau = jnp.float32(0.3)
    dense = jax.jit(dense, static_argnums=5)
    exact = dense(*(z.astype(jnp.float64) for z in (*case, tau)), "biased")
    if name in ("svgd", "ksd"):  # whose scores are points
        case[0], exact = (
            case[1] / 3e4,
            dense(case[1].astype(jnp.float64) / 3e4, *(z.astype(jnp.float64) for z in (*case[1:], tau)), "biased"),
        )
    assert relative_error(ours(*case, tau, "biased"), exact) < 1e-5


@pytest.mark.parametrize("name", TABLE)
def test_under_vmap(rng, name):
    x, y = (jnp.asarray(rng.normal(size=(2, n, 3))) for n in (7, 5))
    a, b = (jnp.asarray(rng.uniform(size=(2, n))) for n in (7, 5))
    ours, _ = TABLE[name]
    tau = jnp.asarray([0.5, 0.9])
    results = jax.vmap(lambda *operands: ours(*operands, "biased"))(x, y, a, b, tau)
    each = [ours(x[i], y[i], a[i], b[i], tau[i], "biased") for i in range(2)]
    assert relative_error(results, jnp.stack(each)) < 1e-12


CALLS = {  # attention calls, each with everything that can be asked for from it
    "mmd_squared": (mmd_squared, 2),
    "gradient of mmd_squared": (jax.value_and_grad(mmd_squared), 2),
    "gradient of both": (jax.value_and_grad(mmd_squared, (0, 1, 2)), 2),
    "y_norm_squared": (jax.value_and_grad(functools.partial(mmd_squared, y_norm_squared=0.3)), 1),
    "embedding_norm_squared": (jax.value_and_grad(lambda x, y, tau, **o: embedding_norm_squared(x, tau, **o)), 1),
    "mmd_witness": (lambda x, y, tau, **o: mmd_witness(x, x, y, tau, **o), 1),
    "mmd_flow_velocity": (mmd_flow_velocity, 1),
    "svgd_direction": (lambda x, y, tau, **o: svgd_direction(x, x, tau, **o), 1),
    "ksd_squared": (lambda x, y, tau, **o: ksd_squared(x, x, tau, **o), 1),
    "kde_logpdf": (kde_logpdf, 1),
    "kde_score": (kde_score, 1),
}


@pytest.mark.parametrize("name", CALLS)
def test_number_of_attention_calls(name):
    function, expected = CALLS[name]
    x, y = jnp.ones((32, 4), jnp.float32), jnp.ones((24, 4), jnp.float32)
    compiled = jax.jit(functools.partial(function, method="rescale")).lower(x, y, jnp.ones(3, jnp.float32)).compile()
    calls = [x for x in compiled.as_text().splitlines() if re.search(r'custom_call_target="xla_\w*buffer', x)]
    together = [x for x in calls if "f32[1,3," in x]  # others are for points out of reach: float64, or one τ each
    assert len(together) == expected


@pytest.mark.parametrize(
    "function",
    [
        lambda x, tau: gauss_sum(x, x, x, tau),
        lambda x, tau: jax.grad(lambda x: gauss_sum(x, x, x, tau).sum())(x),
        lambda x, tau: jax.grad(lambda x: log_gauss_sum(x, x, None, tau).sum())(x),
        lambda x, tau: jax.grad(mmd_squared)(x, x, tau),
        lambda x, tau: ksd_squared(x, x, tau),
        lambda x, tau: leave_one_out_tau(x, tau).scores,
        lambda x, tau: mmd_test(x, x, tau, rng_key=jax.random.key(0)).p_value,
    ],
)
def test_several_bandwidths_in_many_blocks(function):
    """Traced only: every way out, differences too, must add up its blocks in the shape of all bandwidths."""
    jax.eval_shape(function, jax.ShapeDtypeStruct((9000, 3), "float32"), jax.ShapeDtypeStruct((2,), "float32"))


@pytest.mark.parametrize("method", ["rescale", "blocked"])
def test_nowhere_to_look(method):
    """No points give nothing, as in `gauss_sum`, and gradients of zero."""
    none, x, taus = jnp.ones((0, 2)), jnp.ones((3, 2)), jnp.ones(2)
    assert kde_logpdf(none, x, taus, method=method).shape == (0,)
    assert kde_score(none, x, taus, method=method).shape == (0, 2)
    assert mmd_witness(none, x, x, taus, method=method).shape == (0,)
    gradient = jax.grad(lambda x: kde_logpdf(none, x, 1.0, method=method).sum() + mmd_witness(none, x, x, 1.0).sum())
    assert not gradient(x).any()
    with pytest.raises(ValueError, match="`samples` must hold at least 1 points"):
        kde_logpdf(x, none, 1.0)


def test_a_single_particle_climbs_without_a_bandwidth():
    sampler = svgd(lambda x: 3 - x, optax.sgd(0.5))
    state = sampler.init(jnp.zeros((1, 2)))
    for _ in range(20):
        state = sampler.step(state)
    assert jnp.abs(state.particles - 3).max() < 1e-4 and state.kernel_parameters["tau"] == 1


def test_candidates_one_by_one_give_the_same(rng, capsys):
    x = jnp.asarray(rng.normal(size=(40, 2)))
    for taus in (None, jnp.asarray([0.5, 2.0, 8.0])):
        shown, expected = leave_one_out_tau(x, taus, progress=True), leave_one_out_tau(x, taus)
        assert_close(shown, expected, 1e-12)
    assert "leave_one_out_tau: 100%" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"`jaxgauss.leave_one_out_tau`: `progress` must be False .* got True"):
        jax.jit(lambda x: leave_one_out_tau(x, progress=True))(x)


def test_closed_forms(rng):
    x, y = jnp.asarray(rng.normal(size=(1, 4))), jnp.asarray(rng.normal(size=(1, 4)))
    k = float(np.exp(-np.square(x - y).sum()))
    assert float(mmd_squared(x, y, 2.0)) == pytest.approx(2 - 2 * k, rel=1e-12)
    assert relative_error(svgd_direction(x, y, 2.0), y) < 1e-12  # alone, a particle climbs
    assert float(ksd_squared(x, y, 2.0)) == pytest.approx(float(jnp.square(y).sum()) + 2 * 4, rel=1e-12)
    far = x + 50 / np.sqrt(2.0) * jnp.asarray([[1.0, 0, 0, 0]])  # 50 bandwidths
    normal = -0.5 * 50**2 + 2 * np.log(2.0 / (2 * np.pi))
    assert float(kde_logpdf(far.astype("float32"), x.astype("float32"), 2.0)[0]) == pytest.approx(normal, rel=1e-5)
    assert relative_error(kde_score(far, x, 2.0), 2 * (x - far)) < 1e-12


def test_mmd_of_gaussians_is_that_of_their_distributions(rng):
    """E k = (1 + 2τ)^{-D/2} exp(-½ τ/(1 + 2τ) ‖difference of means‖²): the U-statistic has it as its mean."""
    x, y = (jnp.asarray(rng.normal(size=(2000, 2)) + shift, jnp.float32) for shift in (0.0, 0.5))
    tau = 0.8
    expected = 2 / (1 + 2 * tau) * (1 - np.exp(-tau / (1 + 2 * tau) * 0.5**2 * 2 / 2))
    estimates = jax.vmap(lambda x, y: mmd_squared(x, y, tau, estimator="unbiased"))(
        x.reshape(20, 100, 2), y.reshape(20, 100, 2)
    )
    estimates = np.asarray(estimates)
    error = estimates.std() / np.sqrt(19)
    assert abs(estimates.mean() - expected) < 5 * error < expected


def test_a_known_term_is_not_summed_again(case):
    x, y, a, b = case
    known = embedding_norm_squared(y, TAUS[1], weights=b, estimator="unbiased")
    value, gradient = jax.value_and_grad(functools.partial(mmd, estimator="unbiased", y_norm_squared=known))(
        x, y, a, b, TAUS[1]
    )
    expected, expected_gradient = jax.value_and_grad(functools.partial(mmd, estimator="unbiased"))(x, y, a, b, TAUS[1])
    assert float(value) == pytest.approx(float(expected), rel=1e-12)
    assert relative_error(gradient, expected_gradient) < 1e-12


def test_signs_that_optax_takes(rng):
    """Minus the velocity, or the direction, is what an optimizer descends along."""
    x, y = (jnp.asarray(rng.normal(size=(50, 2)) + 2 * i, jnp.float32) for i in range(2))

    def moved(optimizer, direction, steps):
        def step(carry, _):
            x, state = carry
            updates, state = optimizer.update(-direction(x), state)
            return (optax.apply_updates(x, updates), state), None

        return jax.jit(lambda x: jax.lax.scan(step, (x, optimizer.init(x)), length=steps)[0][0])(x)

    flown = moved(optax.sgd(2.0), lambda x: mmd_flow_velocity(x, y, 0.2), 100)
    assert mmd_squared(flown, y, 0.2) < 0.1 * mmd_squared(x, y, 0.2)
    drawn = moved(optax.sgd(0.5), lambda x: svgd_direction(x, 3 - x, 1.0), 100)  # the scores of N(3, 1)
    assert jnp.abs(drawn.mean(0) - 3).max() < 0.1 and 0.6 < drawn.std() < 1.1


def test_median_heuristic(rng):
    points = rng.normal(size=(40, 3))
    squared = np.square(points[:, None] - points).sum(-1)[np.triu_indices(40, 1)]
    assert float(median_heuristic(points)) == pytest.approx(1 / np.median(squared), rel=1e-12)
    assert float(jax.jit(median_heuristic)(points)) == pytest.approx(1 / np.median(squared), rel=1e-12)
    many = jnp.asarray(rng.normal(size=(20000, 3)))
    chosen = [float(median_heuristic(many, rng_key=jax.random.key(i), max_points=500)) for i in range(2)]
    assert chosen[0] != chosen[1] and np.allclose(chosen, 1 / 4.73, rtol=0.1)  # the median of 2χ²₃
    assert float(median_heuristic(many)) == pytest.approx(1 / 4.73, rel=0.1)
    assert float(median_heuristic(jnp.ones((5, 2)))) == 1
    assert float(median_heuristic(jnp.asarray([[0.0], [0.0], [0.0], [0.0], [2.0]]))) == 0.25
    assert np.isfinite(median_heuristic(1e30 * points.astype(np.float32)))
    assert not np.any(jax.grad(lambda x: median_heuristic(x))(points))
    for scale in (1e-4, 1.0, 1e4):  # in float16 τ would be infinite, or zero
        half = jnp.asarray(scale * points, "float16")
        expected = float(median_heuristic(half.astype(jnp.float64)))
        assert float(median_heuristic(half)) == pytest.approx(expected, rel=1e-5)
    for value in (np.nan, np.inf):
        assert np.isnan(median_heuristic(np.where(np.arange(40)[:, None] == 7, value, points)))


@pytest.mark.parametrize("group", [1024, 6])
def test_leave_one_out(rng, monkeypatch, group):
    points, w, taus = rng.normal(size=(20, 2)), rng.uniform(size=20), np.asarray([0.3, 3.0, 1000.0])
    points[0] += 30  # alone: its density must not be lost in rounding
    monkeypatch.setattr("jaxgauss._methods.leave_one_out.GROUP", group)
    jax.clear_caches()
    search = leave_one_out_tau(points, taus, weights=w)
    others = ~np.eye(20, dtype=bool)
    squared = np.square(points[:, None] - points).sum(-1)
    expected = []
    for tau in taus:
        logs = np.where(others, np.log(w / w.sum()) - tau / 2 * squared, -np.inf)
        largest = logs.max(1)
        sums = largest + np.log(np.exp(logs - largest[:, None]).sum(1))
        expected.append((w / w.sum()) @ (sums - np.log(1 - w / w.sum()) + np.log(tau / 2 / np.pi)))
    assert relative_error(search.scores, expected) < 1e-11
    assert float(search.tau) == taus[np.argmax(expected)]
    jax.clear_caches()


def test_weights_of_zero_have_derivatives(rng):
    """A mask, or a projection onto the simplex: a sample without weight still says what a weight would do."""

    def density(x, k, tau, w):
        squared = jnp.square(x[:, None] - k[None]).sum(-1)
        return jnp.log(
            (jnp.exp(-tau[:, None, None] / 2 * squared[None]) * tau[:, None, None]).mean(0) @ w / w.sum() / 2 / np.pi
        )

    def score(x, *others):
        return jax.grad(lambda x: density(x, *others).sum())(x)

    x, k, taus = rng.normal(size=(6, 2)), rng.normal(size=(8, 2)), np.array([0.5, 2.0])
    k[2] = x[0] + 0.1
    w = rng.uniform(size=8) * (np.arange(8) % 3 != 2)
    for ours, formula in ((kde_logpdf, density), (kde_score, score)):
        slopes = lambda f: jax.jit(jax.grad(lambda *x: jnp.square(f(*x)).sum(), (0, 1, 2, 3)))  # noqa: E731
        weighted = lambda x, k, tau, w, f=ours: f(x, k, tau, weights=w)  # noqa: E731
        assert_close(slopes(weighted)(x, k, taus, w), slopes(formula)(x, k, taus, w), 1e-12)
    far = k + 30 * (w > 0)[:, None]  # where a weight would be all that is seen
    gradient = jax.grad(lambda w: kde_logpdf(x[:1], far, 1.0, weights=w)[0])(w)
    assert np.isfinite(gradient).all() and gradient[2] > 1e20


def test_moving_samples_up_the_density_removes_its_first_bias():
    """SD-KDE: of the quantiles of a normal distribution, which have no noise, errors fall as h⁴ instead of h²."""
    samples, points = norm.ppf((np.arange(2000) + 0.5) / 2000)[:, None], np.linspace(-2, 2, 21)[:, None]
    errors = []
    for tau in (1 / 0.4**2, 1 / 0.2**2):
        moved = samples + kde_score(samples, samples, tau) / (2 * tau)
        densities = (jnp.exp(kde_logpdf(points, x, tau)) for x in (samples, moved))
        errors.append([np.abs(x - norm.pdf(points[:, 0])).max() for x in densities])
    plain, moved = np.array(errors[0]) / errors[1]
    assert 3 < plain < 5 and 11 < moved < 17 and errors[1][1] < errors[1][0] / 15


def test_leave_one_out_finds_the_bandwidth(rng):
    """For a normal sample the optimum is near Scott's rule."""
    points = jnp.asarray(rng.normal(size=(1500, 2)), jnp.float32)
    search = jax.jit(leave_one_out_tau)(points)
    scott = 1500 ** (2 / 6)
    assert scott / 4 < search.tau < 4 * scott and len(search.taus) == 25
    gradient = jax.grad(lambda x: leave_one_out_tau(x, search.taus[:2]).scores.sum())(points)
    assert np.isfinite(gradient).all() and np.any(gradient)
    for same in (jnp.ones((5, 2), "float16"), jnp.full((5, 2), 1e30, "float32")):
        search = leave_one_out_tau(same)
        assert all(x.dtype == np.float32 and np.isfinite(x).all() for x in search)


GOOD = {"x": jnp.ones((5, 3)), "y": jnp.ones((4, 3)), "tau": 1.0}
WRONG = [
    ({"x": jnp.ones(3)}, ValueError, r"`x` must be points.*got x \(3,\), y \(4, 3\)"),
    ({"x": jnp.ones((2, 5, 3))}, ValueError, r"`x` must be points.*got x \(2, 5, 3\).*vmap"),
    ({"y": jnp.ones((4, 2))}, ValueError, r"same dimension; got x \(5, 3\), y \(4, 2\)"),
    ({"y": jnp.ones((0, 3))}, ValueError, r"`y` must hold at least 1 points; got x \(5, 3\), y \(0, 3\)"),
    ({"y": jnp.ones((1, 3)), "estimator": "unbiased"}, ValueError, r"`y` must hold at least 2 points"),
    ({"x": jnp.ones((5, 3), int)}, TypeError, "got x int64"),
    ({"x": [[1.0]]}, TypeError, "got list"),
    ({"tau": -1.0}, ValueError, r"positive and finite in float\d\d; got tau -1"),
    ({"tau": jnp.ones((2, 2))}, ValueError, r"one-dimensional, for a mixture; got tau \(2, 2\)"),
    ({"estimator": "best"}, ValueError, "`estimator` must be 'biased' or 'unbiased'; got 'best'"),
    ({"x_weights": jnp.ones(4)}, ValueError, r"`x_weights` must hold one weight for each point of `x`; got .*\(4,\)"),
    ({"y_weights": [1.0]}, TypeError, "`y_weights` must be a JAX or NumPy array; got list"),
    ({"precision": "half"}, ValueError, "`precision` must be one of.*got 'half'"),
    ({"speed": "fast"}, TypeError, "options must be among method, .*, key_axis; got speed"),
]


@pytest.mark.parametrize("change, error, message", WRONG)
def test_wrong_arguments_are_named(change, error, message):
    with pytest.raises(error, match="`jaxgauss.mmd_squared`.*" + message):
        mmd_squared(**{**GOOD, **change})


def test_more_wrong_arguments_are_named():
    x = jnp.ones((5, 3))
    with pytest.raises(ValueError, match=r"`scores` must be of the shape of `particles`; .*scores \(4, 3\)"):
        svgd_direction(x, x[:4], 1.0)
    with pytest.raises(ValueError, match=r"`scores` must be of the shape of `points`; .*scores \(4, 3\)"):
        ksd_squared(x, x[:4], 1.0)
    for function in (kde_logpdf, kde_score):
        with pytest.raises(ValueError, match=r"`weights` must not be negative.*got weights from -1.0 to 1.0"):
            function(x, x, 1.0, weights=jnp.asarray([1.0, -1.0, 1.0, 1.0, 1.0]))
    with pytest.raises(ValueError, match=r"`taus` must be one-dimensional; got taus \(\)"):
        leave_one_out_tau(x, 1.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"`max_points` must be an integer of at least 2; got 1"):
        median_heuristic(x, max_points=1)
    with pytest.raises(ValueError, match=r"`points` must hold at least 2 points; got points \(1, 3\)"):
        median_heuristic(x[:1])


def test_public_methods_keep_working_under_a_mesh(case):
    """Sharded samples under shard_map: each device has its own statistic."""
    from jax.sharding import PartitionSpec as P

    x, y, _, _ = case
    mesh = jax.make_mesh((1,), ("devices",), axis_types=(jax.sharding.AxisType.Auto,))
    function = jax.value_and_grad(lambda x, y: mmd_squared(x, y, 0.7))
    sharded = jax.shard_map(
        lambda x, y: jax.tree.map(lambda z: z[None], function(x, y)),
        mesh=mesh,
        in_specs=(P("devices"), P()),
        out_specs=P("devices"),
    )
    value, gradient = jax.jit(sharded)(x, y)
    expected, expected_gradient = function(x, y)
    assert float(value[0]) == pytest.approx(float(expected)) and relative_error(gradient[0], expected_gradient) < 1e-12


def test_a_millionth_is_a_weight_in_half_precision():
    """1/N of a million points, which float16 would round by 1.4 %."""
    x = jnp.zeros((10**6, 1), jnp.float16)
    assert float(mmd_witness(x[:1], x, x[:1] + 1000, 1.0)[0]) == pytest.approx(1, rel=1e-3)
