"""Kernel regression and mean shift: against dense softmax, in the far tail, and at rest."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from sklearn.datasets import make_blobs

import formulas
from jaxgauss import kde_logpdf, kde_score, kernel_mean, leave_one_out_tau, mean_shift
from jaxgauss._methods import leave_one_out_sums as over_others
from oracle import assert_close, attention_calls, relative_error

EVERY = (0, 1, 2, 3, 4)


def log_kernel(kernel, u):
    return -u / 2 if kernel == "gauss" else formulas.PROFILES[kernel](u)[0].log()


def dense(queries, keys, values, tau, log_weights, kernel="gauss"):
    u = tau[..., None, None] * (queries[..., :, None, :] - keys[..., None, :, :]).square().sum(-1)
    return torch.softmax(log_kernel(kernel, u) + log_weights[..., None, :], -1) @ values


def exact(*operands, **kernel):
    return dense(*formulas.tensors(*operands), **kernel).numpy()


def ours(*operands, **options):
    return kernel_mean(*operands[:4], log_weights=operands[4], **options)


def slopes(**options):
    """Gradients of the sum of sines, and the value."""

    def sine(*operands):
        value = ours(*operands, **options)
        return jnp.sin(value).sum(), value

    return jax.grad(sine, EVERY, has_aux=True)


@pytest.fixture
def case(rng):
    shapes = (2, 9, 3), (7, 3), (7, 4), (2,), (7,)
    queries, keys, values, taus, log_weights = (rng.normal(size=shape) for shape in shapes)
    return [jnp.asarray(x) for x in (queries, keys, values, np.exp(taus), log_weights)]


@pytest.mark.parametrize(
    "kernel, method", [("gauss", "blocked"), ("gauss", "differences"), ("matern32", "auto"), ("matern12", "auto")]
)
def test_value_and_gradients(case, kernel, method):
    gradients, found = jax.jit(slopes(kernel=kernel, engine=method))(*case)
    assert_close([found], [exact(*case, kernel=kernel)], 1e-13)
    assert_close(gradients, formulas.gradients(functools.partial(dense, kernel=kernel), case), 1e-10)


@pytest.mark.parametrize("kernel, method", [("gauss", "rescale"), ("imq", "auto")])
def test_second_derivatives(case, kernel, method):
    """Values, gradients, and those of a number made of the gradients."""

    @jax.jit
    def derivatives(*x):
        def of_slopes(*x):
            first, value = slopes(kernel=kernel, engine=method)(*x)
            return sum(jnp.sin(g).sum() for g in first), (value, *first)

        second, others = jax.grad(of_slopes, EVERY, has_aux=True)(*x)
        return *others, *second

    formula = functools.partial(dense, kernel=kernel)
    orders = [formulas.gradients(formula, case, which) for which in ((), EVERY)]
    assert_close(derivatives(*case), [exact(*case, kernel=kernel), *orders[0], *orders[1]], 1e-10)


@pytest.mark.parametrize("kernel", ["gauss", "imq"])
def test_mapped_gradients_without_the_64_bit_mode(rng, kernel):
    """Of programs that are mapped after they were traced, and of far points, which need float64."""
    shapes = (2, 9, 3), (2, 7, 3), (2, 7, 2), (2,), (2, 7)
    case = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    case[0][:, 0] += 1000
    case[3] = np.exp(case[3])
    with jax.enable_x64(False):
        found, _ = jax.jit(jax.vmap(slopes(kernel=kernel)))(*case)
    assert all(x.dtype == np.float32 for x in found)
    each = [formulas.gradients(functools.partial(dense, kernel=kernel), x) for x in zip(*case, strict=True)]
    assert_close(found, [np.stack(x) for x in zip(*each, strict=True)], 1e-5)


def test_weights_in_half_precision(rng):
    x, log_weights = rng.normal(size=(400, 3)).astype(np.float16), rng.normal(size=400).astype(np.float16)
    found = kernel_mean(x, x, x, log_weights=log_weights, kernel="imq")
    expected = exact(x, x, x, 1.0, log_weights, kernel="imq")
    assert found.dtype == np.float16 and relative_error(found, expected) < 1e-3


def test_the_far_tail_is_that_of_more_digits(rng):
    """All Φ below 1e-300: the weights of the nearest keys, in twice float32's digits and more.

    Of keys that are far from one another as well, in pairs that a query weighs against each other.
    """
    directions, normal, values = rng.normal(size=(50, 3)), rng.normal(size=(400, 3)), rng.uniform(1, 2, size=400)
    beside = 400 * normal[:200] + 0.01 * rng.normal(size=(200, 3))
    queries = np.linspace(60, 1000, 50)[:, None] * directions / np.linalg.norm(directions, axis=1, keepdims=True)
    for keys in (normal, np.concatenate([400 * normal[:200], beside])):
        case = [x.astype("float32") for x in (queries, keys, values)]
        wide = [x.astype(np.longdouble) for x in case]
        exponents = -np.longdouble(np.float32(0.7)) / 2 * np.square(wide[0][:, None] - wide[1]).sum(-1)
        assert exponents.max() < -691  # Φ < 1e-300
        weights = np.exp(exponents - exponents.max(1, keepdims=True))
        expected = (weights @ wide[2] / weights.sum(1)).astype(np.float64)
        for method in ("auto", "rescale", "blocked"):
            found = np.asarray(kernel_mean(*case, np.float32(0.7), engine=method), np.float64)
            assert np.abs(found / expected - 1).max() < 1e-6


def test_keys_without_weight_are_left_out(case):
    queries, keys, values, tau, _ = case
    mask = jnp.where(jnp.arange(7) < 5, 0, -jnp.inf)
    found = kernel_mean(queries, keys, values, tau, log_weights=mask)
    assert relative_error(found, exact(queries, keys[:5], values[:5], tau, jnp.zeros(5))) < 1e-13


@pytest.mark.parametrize("kernel, num", [("gauss", 2), ("gauss", 3000), ("matern32", 3000)])  # 3000 are sorted
def test_points_as_far_away_as_float32_holds(kernel, num):
    keys, values = np.zeros((num, 2), "float32"), np.zeros(num, "float32")
    keys[-1], values[-1] = 1e25, 1
    queries = np.float32([[1e30, 0], [2e25, 1e25], [0, 1]])
    assert kernel_mean(queries[1:], keys, values, kernel=kernel).tolist() == [1, 0]
    found, gradient = jax.value_and_grad(lambda q: kernel_mean(q, keys, values, kernel=kernel).sum())(queries)
    assert 1 <= found <= 2 and np.isfinite(gradient).all()


@pytest.mark.parametrize("precision, tolerance", [("float16", 5e-3), ("float32", 1e-6)])
def test_precisions(rng, precision, tolerance):
    queries, keys, values = (jnp.asarray(rng.normal(size=(200, d)), jnp.float32) for d in (3, 3, 2))
    found = kernel_mean(queries, keys, values, 1.0, precision=precision)
    assert relative_error(found, exact(queries, keys, values, 1.0, np.zeros(200))) < tolerance


def test_number_of_attention_calls():
    """Those of mean shift are of each step."""
    x = jax.ShapeDtypeStruct((32, 4), "float32")
    for function, *operands in ((kernel_mean, x, x, x, 1.0), (mean_shift, x, x, 1.0)):
        assert attention_calls(functools.partial(function, engine="rescale"), *operands) == 1


def test_there_is_no_mean_of_keys_that_are_all_left_out(case):
    *operands, log_weights = case
    nothing = jnp.full_like(log_weights, -jnp.inf)
    with pytest.raises(
        ValueError, match=r"`log_weights` must be above -inf for at least one point; got log_weights \(7,\)"
    ):
        kernel_mean(*operands, log_weights=nothing)
    plain = jax.jit(kernel_mean)(*operands, log_weights=nothing)
    assert_close([plain], [np.broadcast_to(operands[2].mean(0), plain.shape)], 1e-13)


@pytest.mark.parametrize("kernel, by_groups", [("gauss", False), ("gauss", True), ("imq", True)])
def test_leaving_one_out_of_a_regression(rng, monkeypatch, kernel, by_groups):
    monkeypatch.setattr(over_others, "has_cuda", lambda: by_groups)
    monkeypatch.setattr(over_others, "PAIRS", 90 * 37)
    monkeypatch.setattr(over_others, "GROUP", 37)
    num, narrow = (91, 300.0) if by_groups else (90, 3000.0)  # another shape: no program of the other way is reused
    x, w, taus = rng.uniform(size=(num, 2)), rng.uniform(size=num), np.array([1.0, 30.0, narrow])
    x[0] += 50  # alone: nothing else is left of a sum that it was subtracted from
    y = np.stack([np.sin(5 * x[:, 0]), x[:, 1]], -1) + 0.1 * rng.normal(size=(num, 2))

    def formula(x, y, taus):
        u, weights = taus[:, None, None] * (x[:, None] - x).square().sum(-1), torch.tensor(w)
        logits = torch.where(torch.eye(num, dtype=torch.bool), -torch.inf, log_kernel(kernel, u) + weights.log())
        return -(y - torch.softmax(logits, -1) @ y).square().sum(-1) @ weights / weights.sum()

    def scores(x, y, taus):
        return leave_one_out_tau(x, taus, values=y, weights=w, kernel=kernel).scores

    operands = [jnp.asarray(z) for z in (x, y, taus)]
    sine = jax.grad(lambda *z: (jnp.sin(found := scores(*z)).sum(), found), (0, 1, 2), has_aux=True)
    gradients, found = jax.jit(sine)(*operands)
    assert relative_error(found, formula(*formulas.tensors(*operands))) < 1e-11
    assert_close(gradients, formulas.gradients(formula, operands), 1e-9)
    search = leave_one_out_tau(x, taus, values=y[:, 0], weights=w, kernel=kernel)
    assert float(search.tau) == taus[np.argmax(search.scores)]


def test_leaving_one_out_finds_the_noise(rng):
    """The best bandwidth of a smooth function is wider than that of a wiggly one; the bar changes nothing."""
    x = rng.uniform(size=(400, 1))
    found = [
        leave_one_out_tau(x, values=np.sin(f * x[:, 0]) + 0.2 * rng.normal(size=400), progress=bool(f > 5))
        for f in (3, 30)
    ]
    assert found[1].tau > 4 * found[0].tau
    with pytest.raises(ValueError, match=r"values.*\(399,\)"):
        leave_one_out_tau(x, values=np.ones(399))


BLOBS, _ = make_blobs(120, centers=[[0, 0], [6, 0], [0, 6]], random_state=0, shuffle=False)


def test_points_rest_at_modes():
    modes = jax.jit(lambda x: mean_shift(x, x, 0.5, tol=1e-8))(BLOBS)
    assert np.bincount(modes.labels).tolist() == [40, 40, 40] and (np.diff(modes.labels) >= 0).all()
    assert np.abs(kde_score(modes.points, BLOBS, 0.5)).max() < 1e-7
    assert (kde_logpdf(modes.points, BLOBS, 0.5) >= kde_logpdf(BLOBS, BLOBS, 0.5)).all()
    assert 5 < int(modes.num_steps) < 500
    assert int(mean_shift(BLOBS, BLOBS, 0.5, tol=1e-8, max_steps=3).num_steps) == 3


def test_mean_shift_with_weights_and_from_elsewhere():
    """Masked data have no modes; the bar changes nothing; none is fine."""
    mask = (np.arange(120) < 80).astype(float)
    starts = np.array([[0.5, 0.5], [5.0, 1.0], [1.0, 4.9]])
    modes = mean_shift(starts, BLOBS, 0.5, weights=mask)
    few = mean_shift(starts, BLOBS[:80], 0.5, progress=True)
    assert relative_error(modes.points, few.points) < 1e-12 and modes.labels.tolist() == [0, 1, 0]
    assert mean_shift(starts[:0], BLOBS, 0.5).points.shape == (0, 2)
    each = [mean_shift(x[None], BLOBS, 0.5, tol=1e-9).points for x in starts]
    together = jax.vmap(lambda x: mean_shift(x[None], BLOBS, 0.5, tol=1e-9).points)(starts)
    assert np.abs(together - np.stack(each)).max() < 1e-7


def test_gradients_of_modes_are_those_of_differences(rng):
    """By the implicit function theorem; where a point begins does not matter."""
    starts, w = jnp.asarray(BLOBS[::40]), jnp.asarray(rng.uniform(0.5, 1.5, size=120))

    def modes(starts, data, tau, w):
        return jnp.sin(mean_shift(starts, data, tau, weights=w, tol=1e-12).points).sum()

    operands = starts, jnp.asarray(BLOBS), jnp.asarray(0.5), w
    gradients = jax.jit(jax.grad(modes, (0, 1, 2, 3)))(*operands)
    assert not gradients[0].any()
    for i in (1, 2, 3):
        along = jnp.asarray(rng.normal(size=operands[i].shape))
        ends = [modes(*(x + sign * 1e-5 * along if j == i else x for j, x in enumerate(operands))) for sign in (1, -1)]
        slope = float((ends[0] - ends[1]) / 2e-5)
        assert float((gradients[i] * along).sum()) == pytest.approx(slope, rel=1e-5, abs=1e-8)
