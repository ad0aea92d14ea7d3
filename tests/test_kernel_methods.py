"""MMD, SVGD, KSD, densities and bandwidths, with every kernel, against their textbook formulas, written densely."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
from scipy.special import logsumexp

from formulas import PROFILES, exact, exact_gradients, tensors
from jaxgauss import (
    embedding_norm_squared,
    energy_distance,
    gauss_sum,
    kde_logpdf,
    kde_score,
    ksd_squared,
    leave_one_out_tau,
    log_gauss_sum,
    median_tau,
    mmd_flow_velocity,
    mmd_squared,
    mmd_witness,
    rational_quadratic,
    svgd,
    svgd_direction,
)
from jaxgauss._kernels.kernels import KERNELS
from jaxgauss._methods import mmd_form
from oracle import assert_close, relative_error

ONE, SEVERAL = np.asarray(0.7), np.asarray([0.2, 0.7, 3.0])
EVERY = (0, 1, 2, 3, 4)
# of x, y, a, b, τ and an estimator, where there are two
METHODS = {
    "mmd": lambda x, y, a, b, tau, e, **o: mmd_squared(x, y, tau, x_weights=a, y_weights=b, estimator=e, **o),
    "norm": lambda x, y, a, b, tau, e, **o: embedding_norm_squared(x, tau, weights=a, estimator=e, **o),
    "witness": lambda x, y, a, b, tau, e, **o: mmd_witness(y + 1, x, y, tau, x_weights=a, y_weights=b, **o),
    "flow": lambda x, y, a, b, tau, e, **o: mmd_flow_velocity(x, y, tau, x_weights=a, y_weights=b, **o),
    "svgd": lambda x, y, a, b, tau, e, **o: svgd_direction(y, x[: len(y)], tau, **o),
    "ksd": lambda x, y, a, b, tau, e, **o: ksd_squared(y, x[: len(y)], tau, weights=b, estimator=e, **o),
    "logpdf": lambda x, y, a, b, tau, e, **o: kde_logpdf(x, y, tau, weights=b, **o),
    "score": lambda x, y, a, b, tau, e, **o: kde_score(x, y, tau, weights=b, **o),
}
OTHER, DENSITY = rational_quadratic(2.5), rational_quadratic(4.0)


def samples(rng, dim=3, kernel="gauss"):
    """x, y, a, b in float64: some points coincide, weights of x are of either sign, one of y is zero."""
    x, y = rng.normal(size=(37, dim)), rng.normal(size=(30, dim)) + 0.3
    y[4:7] = x[4:7]
    a, b = (rng.normal(size=37) + 0.5) / 15, rng.uniform(size=30) * (np.arange(30) != 3) / 15
    if kernel == "energy":  # whose weights must have one sum
        a, b = a / a.sum(), b / b.sum()
    return [jnp.asarray(z) for z in (x, y, a, b)]


def loss(name, estimator="biased", **options):
    def sines(*operands):
        found = METHODS[name](*operands, estimator, **options)
        return jnp.sin(found).sum(), found

    return sines


# Every method: by differences, in 9 dimensions by products, under vmap; and kernels with a kink, without, one's own
GRADIENTS = [
    ("mmd", "gauss", "biased", 3, False),
    ("mmd", "gauss", "unbiased", 3, True),
    ("norm", "gauss", "unbiased", 3, True),
    ("witness", "gauss", "biased", 3, True),
    ("flow", "gauss", "biased", 9, True),
    ("svgd", "gauss", "biased", 9, True),
    ("ksd", "gauss", "unbiased", 3, True),
    ("logpdf", "gauss", "biased", 3, True),
    ("score", "gauss", "biased", 3, True),
    ("mmd", "matern12", "unbiased", 6, False),
    ("mmd", "energy", "unbiased", 2, False),
    ("mmd", OTHER, "biased", 2, False),
    ("ksd", "matern52", "unbiased", 2, False),
    ("ksd", "imq", "unbiased", 6, False),
    ("ksd", "cauchy", "biased", 2, False),
    ("logpdf", "matern12", "biased", 5, False),
    ("logpdf", DENSITY, "biased", 2, False),
]


@pytest.mark.parametrize("name, kernel, estimator, dim, batched", GRADIENTS, ids=str)
def test_values_and_gradients_are_those_of_the_formula(rng, name, kernel, estimator, dim, batched):
    """Of a batch of two, or of one sample; there and in norms a weight is zero, and still has a derivative."""
    taus = [jnp.asarray(SEVERAL if estimator == "biased" else ONE) * factor for factor in (1, 1.3)]
    batch = [(*samples(rng, dim, kernel), tau) for tau in taus]
    method = "blocked" if dim in (2, 9) and name != "logpdf" else "auto"
    ours = jax.value_and_grad(loss(name, estimator, kernel=kernel, engine=method), EVERY, has_aux=True)
    if batched:
        operands = [jnp.stack(x) for x in zip(*batch, strict=True)]
        (_, values), gradients = jax.jit(jax.vmap(ours))(*operands)
        found = [(value, [x[i] for x in gradients]) for i, value in enumerate(values)]
    else:
        (_, value), gradients = jax.jit(ours)(*batch[0])
        found = [(value, gradients)]
    tolerance = 1e-9 if kernel != "gauss" and name in ("ksd", "logpdf") else 1e-10
    for (value, gradients), operands in zip(found, batch, strict=False):
        assert relative_error(value, exact(name, operands, kernel, estimator)) < (1e-11 if kernel == "gauss" else 1e-12)
        assert_close(gradients, exact_gradients(name, operands, kernel, estimator), tolerance)


VALUES_OF_OTHERS = [
    *(("witness", kernel) for kernel in ("energy", OTHER)),
    *(("flow", kernel) for kernel in ("matern12", "energy")),
    *(("svgd", kernel) for kernel in ("matern52", "cauchy")),
    *(("score", kernel) for kernel in ("matern12", DENSITY)),
    *(("ksd", "matern32"), ("mmd", "matern32"), ("norm", "imq")),
]


@pytest.mark.parametrize("name, kernel", VALUES_OF_OTHERS, ids=str)
def test_values_with_other_kernels(rng, name, kernel):
    operands = *samples(rng, 2, kernel), np.asarray([0.3, 2.0])
    found = METHODS[name](*operands, "unbiased", kernel=kernel)
    assert relative_error(found, exact(name, operands, kernel, "unbiased")) < (1e-10 if name == "flow" else 1e-12)


@pytest.mark.parametrize(
    "moving, kernel, estimator",
    [
        ((0,), "gauss", "biased"),
        ((0,), "energy", "biased"),
        ((1,), "gauss", "unbiased"),
        ((4,), "gauss", "biased"),
        ((0, 2), "imq", "unbiased"),
    ],
    ids=str,
)
def test_mmd_gradients_of_what_moves(rng, moving, kernel, estimator):
    """Each pattern takes its own pass: x alone, y alone, or both."""
    operands = *samples(rng, 2, kernel), jnp.asarray(ONE)
    found = jax.jit(jax.grad(loss("mmd", estimator, kernel=kernel), moving, has_aux=True))(*operands)[0]
    every = exact_gradients("mmd", operands, kernel, estimator)
    assert_close(found, [every[i] for i in moving], 1e-11 if kernel == "gauss" else 1e-10)


@pytest.mark.parametrize("kernel", ["gauss", "matern12"])
def test_mmd_is_differentiable_again(rng, kernel):
    operands = *samples(rng, 2, kernel), jnp.asarray(ONE)
    first = jax.grad(loss("mmd", "unbiased", kernel=kernel), (0, 1, 4), has_aux=True)
    again = jax.jit(jax.grad(lambda *z: sum(jnp.sin(g).sum() for g in first(*z)[0]), EVERY))(*operands)
    expected = exact_gradients("mmd", operands, kernel, "unbiased", twice=(0, 1, 4))
    assert_close(again, expected, 1e-11 if kernel == "gauss" else 1e-10)


@pytest.mark.parametrize("estimator, num", [("biased", 19), ("unbiased", 21)])  # no other test has such shapes
def test_a_form_in_blocks_is_the_form(rng, monkeypatch, estimator, num):
    """That of y with itself, from three quarters of its pairs: value, and gradients of any order."""
    monkeypatch.setattr(mmd_form, "BLOCKS", 4)
    monkeypatch.setattr(mmd_form, "WORTH_BLOCKS", 2)
    operands = *(z[:num] for z in samples(rng)), jnp.asarray(ONE)
    of_x, of_y = (jax.jit(jax.grad(loss("mmd", estimator), i, has_aux=True)) for i in (0, 1))
    found, value = of_y(*operands)
    expected = exact("mmd", operands, estimator=estimator), *exact_gradients("mmd", operands, estimator=estimator)
    assert_close([value, found], [expected[0], expected[2]], 1e-11)
    if estimator == "unbiased":
        assert_close(of_x(*operands)[:1], expected[1:2], 1e-11)
        first = jax.grad(loss("mmd", estimator, engine="blocked"), has_aux=True)
        twice = jax.jit(jax.grad(lambda *z: jnp.sin(first(*z)[0]).sum(), EVERY))(*operands)
        assert_close(twice, exact_gradients("mmd", operands, estimator=estimator, twice=(0,)), 1e-11)


@pytest.mark.parametrize("kernel, estimator", [("gauss", "unbiased"), ("energy", "biased")])
def test_a_known_term_is_not_summed_again(rng, kernel, estimator):
    x, y, a, b = samples(rng, 2, kernel)
    known = embedding_norm_squared(y, SEVERAL, kernel=kernel, weights=b, estimator=estimator)
    options = {"kernel": kernel, "y_norm_squared": known}
    operands = x, y, a, b, jnp.asarray(SEVERAL)
    (_, value), gradient = jax.jit(jax.value_and_grad(loss("mmd", estimator, **options), has_aux=True))(*operands)
    assert relative_error(value, exact("mmd", operands, kernel, estimator)) < 1e-11
    assert relative_error(gradient, exact_gradients("mmd", operands, kernel, estimator)[0]) < 1e-10


def relative_to_exact(name, operands, estimator, **options):
    """The error of what float32 gives."""
    single = [jnp.asarray(x, jnp.float32) for x in operands]
    found = METHODS[name](*single, estimator, **options)
    assert found.dtype == jnp.float32
    return relative_error(found, exact(name, single, estimator=estimator))


@pytest.mark.parametrize("name", METHODS)
def test_float32_is_right_to_five_digits(rng, name):
    """Far from the origin, and in two clusters ten thousand bandwidths apart: products would have no digits left.

    In half precision, within the promise for gauss_sum of the size of the terms.
    """
    clusters = 3e4 * rng.integers(0, 2, size=(300, 1))
    weights = rng.uniform(size=300) / 150, rng.uniform(size=200) / 100
    several = name in ("mmd", "ksd", "score")
    for apart, offset, tau in ((0, 50, ONE), (clusters, 0, np.asarray(0.3))):
        x = rng.normal(size=(300, 5)) + offset + apart
        y = rng.normal(size=(200, 5)) + offset + 0.5 + (apart if offset else apart[:200])
        if not offset and name in ("svgd", "ksd"):  # whose scores are points
            x = x / 3e4
        operands = x, y, *weights, tau * np.asarray([1, 0.3, 5]) if several else tau
        assert relative_to_exact(name, operands, "unbiased") < 1e-5
    if name not in ("logpdf", "score"):
        x, y = (rng.normal(size=(250, 5)) + 0.5 * i for i in range(2))
        operands = x, y, *[np.full(250, 1 / 250)] * 2, ONE
        assert relative_to_exact(name, operands, "unbiased", precision="float16") < 5e-3


CALLS = {  # attention calls, each with everything that can be asked for from it
    "mmd_squared": (mmd_squared, 2),
    "gradient of mmd_squared": (jax.value_and_grad(mmd_squared), 2),
    "gradient of both": (jax.value_and_grad(mmd_squared, (0, 1, 2)), 1),
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
    compiled = jax.jit(functools.partial(function, engine="rescale")).lower(x, y, jnp.ones(3, jnp.float32)).compile()
    calls = [x for x in compiled.as_text().splitlines() if re.search(r'custom_call_target="xla_\w*buffer', x)]
    together = [x for x in calls if "f32[1,3," in x]  # others are for points out of reach: float64, or one τ each
    assert len(together) == expected


@pytest.mark.parametrize(
    "function",
    [
        lambda x, tau: jax.value_and_grad(lambda x: gauss_sum(x, x, x, tau).sum())(x),
        lambda x, tau: jax.grad(lambda x: log_gauss_sum(x, x, None, tau).sum())(x),
        lambda x, tau: ksd_squared(x, x, tau),
    ],
)
def test_several_bandwidths_in_many_blocks(function):
    """Traced only: every way out, differences too, must add up its blocks in the shape of all bandwidths."""
    jax.eval_shape(function, jax.ShapeDtypeStruct((9000, 3), "float32"), jax.ShapeDtypeStruct((2,), "float32"))


@pytest.mark.parametrize("method", ["rescale", "blocked"])
def test_nowhere_to_look(method):
    """No points give nothing, as in `gauss_sum`, and gradients of zero."""
    none, x, taus = jnp.ones((0, 2)), jnp.ones((3, 2)), jnp.ones(2)
    assert kde_logpdf(none, x, taus, engine=method).shape == (0,)
    assert kde_score(none, x, taus, engine=method).shape == (0, 2)
    assert mmd_witness(none, x, x, taus, engine=method).shape == (0,)
    if method == "blocked":
        sums = jax.grad(lambda x: (kde_logpdf(none, x, 1.0) + mmd_witness(none, x, x, 1.0)).sum())
        assert not jax.jit(sums)(x).any()


def test_a_single_particle_climbs_without_a_bandwidth():
    sampler = svgd(lambda x: 3 - x, optax.sgd(0.5))
    state = sampler.init(jnp.zeros((1, 2)))
    for _ in range(20):
        state = sampler.step(state)
    assert jnp.abs(state.particles - 3).max() < 1e-4 and state.kernel_parameters["tau"] == 1


def test_parts_with_a_bar_give_the_same(rng, capsys):
    """Candidates one by one, densities of some points at a time."""
    x, samples = jnp.asarray(rng.normal(size=(40, 2))), rng.normal(size=(30, 2))
    for taus in (None, jnp.asarray([0.5, 2.0, 8.0])):
        shown, expected = leave_one_out_tau(x, taus, progress=True), leave_one_out_tau(x, taus)
        assert_close(shown, expected, 1e-12)
    assert "leave_one_out_tau: 100%" in capsys.readouterr().err
    for tau in (0.7, SEVERAL):
        shown, expected = (kde_logpdf(x, samples, tau, weights=np.ones(30), progress=z) for z in (True, False))
        assert_close(shown, expected, 1e-13)
    shown = capsys.readouterr().err
    assert "kde_logpdf: 100%" in shown and "40/40" in shown


@pytest.mark.filterwarnings("ignore:.*got NaN among them")
def test_median_tau(rng):
    points = rng.normal(size=(40, 3))
    squared = np.square(points[:, None] - points).sum(-1)[np.triu_indices(40, 1)]
    assert float(median_tau(points)) == pytest.approx(1 / np.median(squared), rel=1e-12)
    assert float(jax.jit(median_tau)(points)) == pytest.approx(1 / np.median(squared), rel=1e-12)
    many = jnp.asarray(rng.normal(size=(20000, 3)))
    chosen = [float(median_tau(many, rng_key=jax.random.key(i), max_points=500)) for i in range(2)]
    assert chosen[0] != chosen[1] and np.allclose(chosen, 1 / 4.73, rtol=0.1)  # the median of 2χ²₃
    assert float(median_tau(many)) == pytest.approx(1 / 4.73, rel=0.1)
    assert float(median_tau(jnp.ones((5, 2)))) == 1
    assert float(median_tau(jnp.asarray([[0.0], [0.0], [0.0], [0.0], [2.0]]))) == 0.25
    assert np.isfinite(median_tau(1e30 * points.astype(np.float32)))
    assert not np.any(jax.grad(lambda x: median_tau(x))(points))
    for scale in (1e-4, 1.0, 1e4):  # in float16 τ would be infinite, or zero
        half = jnp.asarray(scale * points, "float16")
        expected = float(median_tau(half.astype(jnp.float64)))
        assert float(median_tau(half)) == pytest.approx(expected, rel=1e-5)
    for value in (np.nan, np.inf):
        assert np.isnan(median_tau(np.where(np.arange(40)[:, None] == 7, value, points)))


@pytest.mark.parametrize(
    "kernel, log_kappa, by_groups, num",
    [
        ("gauss", lambda u: -u / 2, False, 20),
        ("gauss", lambda u: -u / 2, True, 22),  # of a shape that no other test compiles for
        ("matern32", lambda u: np.log1p(np.sqrt(3 * u)) - np.sqrt(3 * u), False, 20),
    ],
)
def test_leave_one_out(rng, monkeypatch, kernel, log_kappa, by_groups, num):
    points, w, taus = rng.normal(size=(num, 2)), rng.uniform(size=num), np.asarray([0.3, 3.0, 1000.0])
    points[0] += 30  # alone: its density must not be lost in rounding
    monkeypatch.setattr("jaxgauss._methods.leave_one_out_sums.GROUP", 6)
    monkeypatch.setattr("jaxgauss._methods.leave_one_out_sums.has_cuda", lambda: by_groups)
    search = leave_one_out_tau(points, taus, kernel=kernel, weights=w)
    others, w = ~np.eye(num, dtype=bool), w / w.sum()
    squared, expected = np.square(points[:, None] - points).sum(-1), []
    for tau in taus:
        sums = logsumexp(np.where(others, np.log(w) + log_kappa(tau * squared), -np.inf), axis=1)
        expected.append(w @ (sums - np.log(1 - w) + np.log(tau) - KERNELS[kernel].log_integral(2)))
    assert relative_error(search.scores, expected) < 1e-11
    assert float(search.tau) == taus[np.argmax(expected)]


@pytest.mark.parametrize("dim, nearest", [(1, 32), (2, 3)])
def test_leave_one_out_of_many_points(rng, monkeypatch, dim, nearest):
    """Sums over all points, less a point's own term; where that hides the others, its neighbours, or all."""
    monkeypatch.setattr("jaxgauss._methods.leave_one_out.MANY", 1)
    monkeypatch.setattr("jaxgauss._methods.leave_one_out.NEAREST", nearest)
    points, taus = rng.normal(size=(67, dim)), np.asarray([0.3, 30.0, 1e3, 1e5])
    points[0], points[1] = 30, points[2]
    w = rng.uniform(size=67) * (np.arange(67) % 7 > 0)
    search = leave_one_out_tau(points, taus, weights=w)
    w = w / w.sum()
    with np.errstate(divide="ignore"):
        logits = np.log(w) - taus[:, None, None] / 2 * np.square(points[:, None] - points).sum(-1)
    sums = logsumexp(np.where(np.eye(67, dtype=bool), -np.inf, logits), axis=2)
    expected = (w * (sums - np.log(1 - w))).sum(1) + dim / 2 * np.log(taus / (2 * np.pi))
    assert relative_error(search.scores, expected) < 1e-11 and float(search.tau) == taus[np.argmax(expected)]


def test_the_derivative_by_a_weight_of_zero_is_finite(rng):
    """Far from all others, where a weight would be all that is seen."""
    w = rng.uniform(size=8) * (np.arange(8) % 3 != 2)
    far = rng.normal(size=(8, 2)) + 30 * (w > 0)[:, None]
    gradient = jax.jit(jax.grad(lambda w: kde_logpdf(np.zeros((1, 2)), far, 1.0, weights=w)[0]))(w)
    assert np.isfinite(gradient).all() and gradient[2] > 1e20


def test_moving_samples_up_the_density_removes_its_first_bias():
    """SD-KDE: of the quantiles of a normal distribution, which have no noise, errors fall as h⁴ instead of h²."""
    samples, points = scipy.stats.norm.ppf((np.arange(1000) + 0.5) / 1000)[:, None], np.linspace(-2, 2, 21)[:, None]
    errors = []
    for tau in (1 / 0.4**2, 1 / 0.2**2):
        moved = samples + kde_score(samples, samples, tau, engine="blocked") / (2 * tau)
        densities = (jnp.exp(kde_logpdf(points, x, tau, engine="blocked")) for x in (samples, moved))
        errors.append([np.abs(x - scipy.stats.norm.pdf(points[:, 0])).max() for x in densities])
    plain, moved = np.array(errors[0]) / errors[1]
    assert 3 < plain < 5 and 11 < moved < 17 and errors[1][1] < errors[1][0] / 15


def test_leave_one_out_finds_the_bandwidth(rng):
    """For a normal sample the optimum is near Scott's rule."""
    points = jnp.asarray(rng.normal(size=(500, 2)), jnp.float32)
    search = jax.jit(leave_one_out_tau)(points)
    scott = 500 ** (2 / 6)
    assert scott / 4 < search.tau < 4 * scott and len(search.taus) == 25
    gradient = jax.jit(jax.grad(lambda x: leave_one_out_tau(x, search.taus[:2]).scores.sum()))(points)
    assert np.isfinite(gradient).all() and np.any(gradient)
    for same in (jnp.ones((5, 2), "float16"), jnp.full((5, 2), 1e30, "float32")):
        search = leave_one_out_tau(same)
        assert all(x.dtype == np.float32 and np.isfinite(x).all() for x in search)


def test_public_methods_keep_working_under_a_mesh(rng):
    """Sharded samples under shard_map: each device has its own statistic."""
    from jax.sharding import PartitionSpec as P

    x, y, *_ = samples(rng)
    mesh = jax.make_mesh((1,), ("devices",), axis_types=(jax.sharding.AxisType.Auto,))
    function = jax.value_and_grad(lambda x, y: mmd_squared(x, y, 0.7))
    sharded = jax.shard_map(
        lambda x, y: jax.tree.map(lambda z: z[None], function(x, y)),
        mesh=mesh,
        in_specs=(P("devices"), P()),
        out_specs=P("devices"),
    )
    value, gradient = jax.jit(sharded)(x, y)
    operands = x, y, np.full(37, 1 / 37), np.full(30, 1 / 30), 0.7
    assert relative_error(value[0], exact("mmd", operands)) < 1e-12
    slope = exact_gradients("mmd", operands)[0] / np.cos(float(value[0]))  # of the sine that it is of
    assert relative_error(gradient[0], slope) < 1e-12


def test_a_millionth_is_a_weight_in_half_precision():
    """1/N of a million points, which float16 would round by 1.4 %."""
    x = jnp.zeros((10**6, 1), jnp.float16)
    assert float(mmd_witness(x[:1], x, x[:1] + 1000, 1.0)[0]) == pytest.approx(1, rel=1e-3)


@pytest.mark.parametrize(
    "name, kernel, estimator",
    [("norm", OTHER, "biased"), ("witness", "energy", "")],
    ids=str,
)
def test_mixtures_serve_the_methods(rng, name, kernel, estimator):
    """As they would on CUDA: within the mixture's error, 1e-6 of κ(0), or of the diameter."""
    x, y, _, b = samples(rng, 2)
    operands = x, y, np.full(37, 1 / 37), b / b.sum(), np.asarray([0.3, 0.6])
    found = METHODS[name](*operands, estimator, kernel=kernel, engine="mixture")
    error = np.abs(found - exact(name, operands, kernel, estimator)).max()
    assert 0 < error < 4e-6 * (10 if kernel == "energy" else 1)


def test_ksd_of_matern32_has_a_gradient(rng):
    """Its third derivatives have a kink where points coincide, as each does with itself."""
    x, _, a, _ = samples(rng, 2)
    of = jax.jit(jax.grad(lambda *z: ksd_squared(*z, kernel="matern32", weights=a, engine="blocked"), (0, 1, 2)))
    gradient = of(x, 0.1 - x, jnp.asarray(0.7))
    assert all(jnp.isfinite(z).all() for z in gradient)


def test_svgd_takes_a_kernel(rng):
    particles = jnp.asarray(rng.normal(size=(40, 2)))
    sampler = svgd(lambda x: -(x - 1.0), optax.sgd(0.5), kernel="imq")
    state = sampler.init(particles)
    tau = 2 * np.log(40) * median_tau(particles)
    direction = svgd_direction(particles, 1 - particles, tau, kernel="imq")
    assert relative_error(state.kernel_parameters["tau"], tau) < 1e-12
    assert relative_error(sampler.step(state).particles, particles + 0.5 * direction) < 1e-12


def test_energy_distance_is_scipys(rng):
    x, y, a, b = rng.normal(size=50), rng.normal(size=60) + 1, rng.uniform(size=50), rng.uniform(size=60)
    a, b = a / a.sum(), b / b.sum()
    ours = energy_distance(x[:, None], y[:, None], x_weights=a, y_weights=b)
    assert float(ours) == pytest.approx(scipy.stats.energy_distance(x, y, a, b) ** 2, rel=1e-12)
    scaled = mmd_squared(x[:, None], y[:, None], 9.0, kernel="energy", x_weights=a, y_weights=b)
    assert relative_error(scaled, 3 * ours) < 1e-12


@pytest.mark.parametrize("kernel", ["matern12", "matern32", "matern52", DENSITY, "gauss"], ids=str)
def test_integrals_are_those_of_profiles(kernel):
    """Σ κ(r²) times the surface of a sphere, of the density and its scale."""
    for dim in (1, 2, 5):
        if not np.isfinite(found := KERNELS.get(kernel, kernel).log_integral(dim)):
            continue
        surface = 2 * np.pi ** (dim / 2) / scipy.special.gamma(dim / 2)
        integral, _ = scipy.integrate.quad(
            lambda r, dim=dim: r ** (dim - 1) * float(PROFILES[kernel](*tensors(r * r))[0]), 0, np.inf
        )
        assert found == pytest.approx(np.log(surface * integral), rel=1e-6)
