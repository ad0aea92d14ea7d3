"""log_gauss_sum and its gradients against PyTorch's logsumexp in float64, in the tails, under transformations."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.sharding import PartitionSpec as P

import formulas
from jaxgauss import gauss_sum, log_gauss_sum
from jaxgauss._arrays.custom_rule import with_rule
from jaxgauss._engines import log_rules as rules
from jaxgauss._engines import means
from jaxgauss._engines.products import engine as products
from jaxgauss._engines.run import kernel_means
from jaxgauss._kernels.kernels import KERNELS
from oracle import assert_close, problem, with_gradients

METHODS = ("rescale", "blocked", "differences")
ALL = (0, 1, 2, 3)


def dense(queries, keys, log_weights, tau):
    squared = (queries[..., :, None, :] - keys[..., None, :, :]).square().sum(-1)
    return torch.logsumexp(log_weights[..., None, :] - tau[..., None, None] / 2 * squared, -1)


def exact_of(*x):
    """The value and, in float64 as well, the gradients of the sum of its sines."""
    return [dense(*formulas.tensors(*x)).numpy(), *formulas.gradients(dense, x)]


def arguments(rng, m=7, n=5, d=3, tau=0.7, dtype="float64"):
    case = problem(rng, m, n, d, 1, tau=tau)
    return [jnp.asarray(x, dtype) for x in (case.queries, case.keys, rng.normal(size=n), case.tau)]


def value_and_slope(function):
    """What `exact_of` is, of JAX's function, in float64."""

    def sine(*x):
        value = function(*x)
        return jnp.sin(value).sum(), value

    def found(*x):
        slopes, value = jax.grad(sine, ALL, has_aux=True)(*x)
        return [y.astype("float64") for y in (value, *slopes)]

    return jax.jit(found)


@pytest.mark.parametrize(
    "method, size",
    [("rescale", (1, 1, 1)), ("rescale", (41, 53, 59)), ("blocked", (41, 53, 59)), ("differences", (7, 5, 3))],
)
def test_value_and_gradients_match_dense(rng, method, size):
    x = arguments(rng, *size)
    assert_close(value_and_slope(functools.partial(log_gauss_sum, engine=method))(*x), exact_of(*x), 1e-12)


@pytest.mark.parametrize("method", ["rescale", "blocked"])
def test_second_derivatives_match_dense(rng, method):
    x, first = arguments(rng, 4, 5, 2), value_and_slope(functools.partial(log_gauss_sum, engine=method))
    ours = jax.jit(jax.grad(lambda *y: sum(jnp.sin(z).sum() for z in first(*y)[1:]), ALL))(*x)
    assert_close(ours, formulas.gradients(dense, x, twice=ALL), 1e-10)


def mapped(x, axes):
    """Arguments for `vmap`, and what each of its elements is."""
    stacked = [jnp.stack([y, 1.5 * y]) if axis == 0 else y for y, axis in zip(x, axes, strict=True)]
    each = [exact_of(*(y[i] if axis == 0 else y for y, axis in zip(stacked, axes, strict=True))) for i in (0, 1)]
    return stacked, [np.stack(y) for y in zip(*each, strict=True)]


@pytest.mark.parametrize(
    "method, axes", [("rescale", (0, None, None, None)), ("rescale", (None, 0, 0, None)), ("blocked", (0, None, 0, 0))]
)
def test_vmap(rng, method, axes):
    x, exact = mapped(arguments(rng), axes)
    ours = value_and_slope(functools.partial(log_gauss_sum, engine=method))
    assert_close(jax.vmap(ours, axes)(*x), exact, 1e-12)


def test_a_conditional_stays_one_under_vmap(rng):
    """Not a selection between two computed branches."""
    q, k, w, tau = arguments(rng, dtype="float32")
    text = jax.jit(jax.vmap(lambda q: log_gauss_sum(q, k, w, tau))).lower(jnp.stack([q, q])).as_text()
    assert "stablehlo.case" in text or "stablehlo.if" in text


def test_leading_axes_broadcast(rng):
    q, k, tau = rng.normal(size=(3, 1, 4, 2)), rng.normal(size=(2, 5, 2)), rng.uniform(0.5, 1, size=(3, 1))
    w = rng.normal(size=(2, 5))
    exact = dense(*formulas.tensors(q, k, w, tau))
    assert_close([log_gauss_sum(q, k, w, tau, engine=m) for m in ("rescale", "blocked")], [exact, exact], 1e-13)


def test_other_transformations(rng):
    q, k, w, tau = arguments(rng)
    f = lambda q: jnp.sin(log_gauss_sum(q, k, w, tau, engine="rescale")).sum()  # noqa: E731
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))

    @jax.jit
    def found(q):
        scanned = jax.lax.scan(lambda total, q: (total + f(q[None]), jax.grad(f)(q[None])[0]), jnp.zeros(()), q)[1]
        rows = jax.shard_map(jax.grad(f), mesh=mesh, in_specs=P("i"), out_specs=P("i"))
        return jax.grad(jax.checkpoint(f))(q), scanned, rows(q)

    assert_close(found(q), [exact_of(q, k, w, tau)[1]] * 3, 1e-12)


@pytest.mark.parametrize("method, both", [*((x, True) for x in METHODS), ("rescale", False)])
def test_tails_in_float32(rng, method, both):
    """The sum itself is zero there: exp(-5e7)."""
    near, keys, w, tau = arguments(rng, 40, 50, 3, tau=1.0, dtype="float32")
    pulled = with_gradients(functools.partial(log_gauss_sum, engine=method))
    for far in np.float32([30, 1e4]):
        q, k = near + far, jnp.concatenate([keys, keys + far]) if both else keys
        x = q, k, jnp.concatenate([w, w]) if both else w, tau
        moving = [z.requires_grad_() for z in formulas.tensors(*x)]
        exact = dense(*moving)
        slopes, exact = torch.autograd.grad(exact.sum(), moving), exact.detach().numpy()
        found, *ours = (np.asarray(z, np.float64) for z in jax.tree.leaves(pulled(*x, jnp.ones(40, "float32"))))
        assert np.all(np.abs(found - exact) <= 1e-5 * np.maximum(1, np.abs(exact)))
        for z, y in zip(ours, slopes, strict=True):
            assert np.isfinite(z).all() and np.linalg.norm(z - y.numpy()) <= 1e-4 * np.linalg.norm(y) + 1e-4


@pytest.mark.parametrize("precision, tolerance", [("bfloat16", 2e-2), ("float16x2", 1e-4)])
def test_half_precision(rng, precision, tolerance):
    x = arguments(rng, 100, 120, 8, dtype="float32")
    found, *slopes = value_and_slope(functools.partial(log_gauss_sum, precision=precision))(*x)
    exact, *others = exact_of(*x)
    assert np.abs(found - exact).max() < tolerance
    assert_close(slopes, others, 2 * max(tolerance, 2e-3))


def test_it_is_the_logarithm_of_the_sum(rng):
    q, k, w, tau = arguments(rng)
    assert_close([jnp.exp(log_gauss_sum(q, k, w, tau))], [gauss_sum(q, k, jnp.exp(w), tau)], 1e-13)
    assert_close([log_gauss_sum(q, k)], [dense(*formulas.tensors(q, k, np.zeros(5), 1.0))], 1e-13)


@pytest.mark.parametrize("method", METHODS)
def test_weights_of_zero(rng, method):
    q, k, w, tau = arguments(rng)
    w = w.at[1:3].set(-jnp.inf)
    ours = value_and_slope(functools.partial(log_gauss_sum, engine=method))
    found, *gradients = ours(q, k, w, tau)
    assert_close([found], [dense(*formulas.tensors(q, k, w, tau))], 1e-13)
    assert all(jnp.isfinite(x).all() for x in gradients) and not gradients[1][1:3].any()
    assert jnp.all(ours(q, k, jnp.full(5, -jnp.inf), tau)[0] == -jnp.inf)


def test_empty_sums():
    assert jnp.all(log_gauss_sum(jnp.ones((3, 2)), jnp.ones((0, 2))) == -jnp.inf)
    assert log_gauss_sum(jnp.ones((0, 2)), jnp.ones((3, 2)), engine="rescale").shape == (0,)
    assert log_gauss_sum(jnp.ones((4, 3, 2)), jnp.ones((0, 2))).shape == (4, 3)


def test_score_and_value_cost_one_call(rng, monkeypatch):
    calls = []
    q, k, w, tau = (x.astype(jnp.float32) for x in arguments(rng))

    rule = rules._means_backward, rules._means_forward
    counted = with_rule(lambda *x: calls.append(x[1]) or kernel_means(*x), 2, *rule)
    monkeypatch.setattr(rules, "means", counted)
    jax.clear_caches()
    compiled = jax.jit(jax.value_and_grad(lambda q: log_gauss_sum(q, k, w, tau, engine="rescale").sum())).lower(q)
    lines = [x for x in compiled.compile().as_text().splitlines() if "custom_call_target" in x]
    assert True in calls and len([x for x in lines if "jaxgauss:apart" not in x]) == 1
    jax.clear_caches()


@pytest.fixture
def in_one_pass(monkeypatch):
    """Means of the fewest pairs in one pass; how often it took two passes after all."""
    passes, in_two_passes = [], means.blocked_means

    def counted(*operands, **options):
        jax.debug.callback(lambda: passes.append(1))
        return in_two_passes(*operands, **options)

    monkeypatch.setattr(products, "ONE_PASS", 1)
    monkeypatch.setattr(means, "blocked_means", counted)
    return passes


@pytest.mark.parametrize("kernel", ["gauss", "cauchy"])
def test_uneven_weights_of_points_that_lie_anywhere(rng, kernel):
    """No row of a tile whose points are near one another vanishes, whatever the weights, and whose tile it is."""
    points, log_weights = rng.normal(size=(1024, 3)), rng.uniform(-400, 400, 1024)
    points[0] += 1000  # in one tile of two
    log_weights[:512] = rng.choice([-math.inf, 0.0], 512)
    x, w = jnp.asarray(points, "float32"), jnp.asarray(log_weights, "float32")
    wide, weights = (np.asarray(z, np.float64) for z in (x, w))
    logs = KERNELS[kernel].log(jnp.asarray(np.square(wide[:, None] - wide).sum(-1)))
    exact = np.asarray(jax.nn.logsumexp(weights + np.asarray(logs), axis=1))
    found = np.asarray(log_gauss_sum(x, x, w, kernel=kernel), np.float64)
    assert np.all(np.abs(found - exact) <= 1e-5 * np.maximum(1, np.abs(exact)))


@pytest.mark.parametrize("cases", [["same points"], ["ordinary", "a near key", "no weight where one looks", "NaN"]])
@pytest.mark.filterwarnings("ignore:.*got NaN among them")
def test_means_look_at_some_keys_first(rng, in_one_pass, cases):
    """They take two passes only where a term is 2¹²⁷ times as large as those that were looked at; right in any case."""
    m, n, dim = 70, 213, 32 if cases == ["same points"] else 2  # sizes that nobody else has
    for case in cases:
        queries, keys = (jnp.asarray(rng.uniform(-4, 4, (num, dim)), jnp.float32) for num in (m, n))
        log_weights = jnp.asarray(rng.normal(size=n), jnp.float32)
        if case == "same points":
            queries, keys = 0.8 * keys[:m], 0.8 * keys  # some 10 bandwidths from their center, 15 from one another
        if case == "a near key":
            ends = [jnp.asarray([[0, 11 * (-1) ** i] for i in range(num)], jnp.float32) for num in (m, n)]
            queries, keys = queries / 40 + ends[0], keys / 40 + ends[1]  # as far from the center as near points may be
            queries, keys = queries.at[69].set(np.float32([11, 0])), keys.at[199].set(np.float32([11, 0.1]))
        if case == "no weight where one looks":
            log_weights = jnp.full(n, -jnp.inf, "float32").at[199].set(np.float32(0.5))
        if case == "NaN":
            queries = queries.at[3].set(jnp.nan)
        operands = queries, keys, log_weights, jnp.float32(1.0)
        in_one_pass.clear()
        found = np.asarray(log_gauss_sum(*operands), np.float64)
        jax.effects_barrier()
        assert bool(in_one_pass) == (case in ("a near key", "no weight where one looks"))
        exact = dense(*formulas.tensors(*operands)).numpy()
        assert bool(np.isnan(found[3])) == (case == "NaN")
        seen = ~np.isnan(exact)
        assert np.all(np.abs(found - exact)[seen] <= 3e-5 * np.maximum(1, np.abs(exact))[seen])


@pytest.mark.parametrize("axes", [(None, None, None, None), (None, 0, 0, None)])
def test_means_in_one_pass_have_gradients_and_batches(rng, in_one_pass, axes):
    x = arguments(rng, 83, 91, 5, dtype="float32")
    ours, exact = value_and_slope(log_gauss_sum), exact_of(*x)
    if 0 in axes:
        ours, (x, exact) = jax.vmap(ours, axes), mapped(x, axes)
    assert_close(ours(*x), exact, 1e-5)
    jax.effects_barrier()
    assert not in_one_pass


@pytest.mark.parametrize("argnums, takes_it", [((0, 1, 2), False), (3, True)])
def test_only_gradients_of_tau_take_the_formula(rng, monkeypatch, argnums, takes_it):
    """Where it is not known whether points are near: all differences in float64 take twenty times as long."""
    taken, formula = [], rules.means_formula
    monkeypatch.setattr(rules, "means_formula", lambda *x: (taken.append(1), formula(*x))[1])
    x = arguments(rng, dtype="float32")
    jax.clear_caches()
    jax.jit(jax.grad(lambda *x: log_gauss_sum(*x).sum(), argnums)).trace(*x)
    jax.clear_caches()
    assert bool(taken) == takes_it
