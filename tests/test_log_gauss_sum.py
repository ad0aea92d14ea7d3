"""log_gauss_sum and its gradients against jax.nn.logsumexp in float64, in the tails, under transformations."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jaxgauss import gauss_sum, log_gauss_sum
from jaxgauss._engines import dispatch, means
from jaxgauss._engines.dispatch import kernel_means
from jaxgauss._kernels.kernels import KERNELS
from jaxgauss._sums import log_gauss_sum as rules
from oracle import SIZES, assert_close, problem

METHODS = ("rescale", "blocked", "differences")
ALL = (0, 1, 2, 3)


def dense(queries, keys, log_weights, tau):
    """The formula, for JAX's own differentiation."""
    squared = jnp.square(queries[..., :, None, :] - keys[..., None, :, :]).sum(-1)
    return jax.nn.logsumexp(log_weights[..., None, :] - tau[..., None, None] / 2 * squared, axis=-1)


def arguments(rng, m=7, n=5, d=3, tau=0.7, dtype="float64"):
    case = problem(rng, m, n, d, 1, tau=tau)
    return [jnp.asarray(x, dtype) for x in (case.queries, case.keys, rng.normal(size=n), case.tau)]


def slope(function):
    return jax.grad(lambda *x: jnp.sin(function(*x)).sum(), ALL)


@jax.jit
def exact_of(*x):
    return dense(*x), slope(dense)(*x)


@pytest.mark.parametrize("method, size", [*itertools.product(("rescale", "blocked"), SIZES), ("differences", SIZES[1])])
def test_value_and_gradients_match_dense(rng, method, size):
    x = arguments(rng, *size[:3])
    ours = functools.partial(log_gauss_sum, method=method)
    (value, gradients), (exact, slopes) = jax.jit(lambda *x: (ours(*x), slope(ours)(*x)))(*x), exact_of(*x)
    assert_close([value, *gradients], [exact, *slopes], 1e-12)


@pytest.mark.parametrize("method", ["rescale", "blocked"])
def test_second_derivatives_match_dense(rng, method):
    x = arguments(rng, 4, 5, 2)
    ours = lambda *y: log_gauss_sum(*y, method=method)  # noqa: E731
    twice = lambda f: jax.jit(jax.grad(lambda *y: sum(jnp.sin(z).sum() for z in slope(f)(*y)), ALL))  # noqa: E731
    assert_close(twice(ours)(*x), twice(dense)(*x), 1e-10)


@pytest.mark.parametrize(
    "method, axes",
    [
        *(("rescale", x) for x in ((0, None, None, None), (None, 0, None, None), (None, None, 0, None))),
        *((x, (0, None, 0, 0)) for x in ("rescale", "blocked")),
    ],
)
def test_vmap(rng, method, axes):
    stacked = [jnp.stack([x, 1.5 * x]) if axis == 0 else x for x, axis in zip(arguments(rng), axes, strict=True)]
    ours, exact = (
        jax.jit(jax.vmap(slope(f), axes))(*stacked) for f in (lambda *x: log_gauss_sum(*x, method=method), dense)
    )
    assert_close(ours, exact, 1e-12)


def test_a_conditional_stays_one_under_vmap(rng):
    """Not a selection between two computed branches."""
    q, k, w, tau = arguments(rng, dtype="float32")
    text = jax.jit(jax.vmap(lambda q: log_gauss_sum(q, k, w, tau))).lower(jnp.stack([q, q])).as_text()
    assert "stablehlo.case" in text or "stablehlo.if" in text


def test_leading_axes_broadcast(rng):
    q, k, tau = rng.normal(size=(3, 1, 4, 2)), rng.normal(size=(2, 5, 2)), rng.uniform(0.5, 1, size=(3, 1))
    w = rng.normal(size=(2, 5))
    x = [jnp.asarray(y) for y in (q, k, w, tau)]
    with jax.numpy_rank_promotion("allow"):
        exact = dense(*x)
    assert_close([log_gauss_sum(*x, method=m) for m in ("rescale", "blocked")], [exact, exact], 1e-13)


def test_other_transformations(rng):
    q, k, w, tau = arguments(rng)
    f = lambda q: log_gauss_sum(q, k, w, tau, method="rescale").sum()  # noqa: E731
    exact = jax.grad(lambda q: dense(q, k, w, tau).sum())(q)
    scanned = jax.lax.scan(lambda total, q: (total + f(q[None]), jax.grad(f)(q[None])[0]), jnp.zeros(()), q)[1]
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.shard_map(jax.grad(f), mesh=mesh, in_specs=P("i"), out_specs=P("i"))
    assert_close([jax.grad(jax.checkpoint(f))(q), scanned, jax.jit(rows)(q)], [exact] * 3, 1e-12)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("both", [False, True])
def test_tails_in_float32(rng, method, both):
    """The sum itself is zero there: exp(-5e7)."""
    near, keys, w, tau = arguments(rng, 40, 50, 3, tau=1.0, dtype="float32")
    for far in np.float32([30, 1e4]):
        q, k = near + far, jnp.concatenate([keys, keys + far]) if both else keys
        x = q, k, jnp.concatenate([w, w]) if both else w, tau
        exact, slopes = far_exact(*(z.astype(jnp.float64) for z in x))
        found, ours = jax.jit(lambda *x: value_and_slopes(functools.partial(log_gauss_sum, method=method), *x))(*x)
        assert jnp.all(jnp.abs(found.astype(jnp.float64) - exact) <= 1e-5 * jnp.maximum(1, jnp.abs(exact)))
        for z, y in zip(ours, slopes, strict=True):
            assert jnp.isfinite(z).all()
            assert jnp.linalg.norm(z.astype(jnp.float64) - y) <= 1e-4 * jnp.linalg.norm(y) + 1e-4


def value_and_slopes(function, *x):
    value, pullback = jax.vjp(function, *x)
    return value, pullback(jnp.ones_like(value))


far_exact = jax.jit(functools.partial(value_and_slopes, dense))


@pytest.mark.parametrize("precision, tolerance", [("bfloat16", 2e-2), ("float16x2", 1e-4)])
def test_half_precision(rng, precision, tolerance):
    x = arguments(rng, 100, 120, 8, dtype="float32")
    wide = [y.astype(jnp.float64) for y in x]
    ours = lambda *y: log_gauss_sum(*y, precision=precision)  # noqa: E731
    assert jnp.abs(ours(*x).astype(jnp.float64) - dense(*wide)).max() < tolerance
    assert_close(slope(ours)(*x), slope(dense)(*wide), 2 * max(tolerance, 2e-3))


def test_it_is_the_logarithm_of_the_sum(rng):
    q, k, w, tau = arguments(rng)
    assert_close([jnp.exp(log_gauss_sum(q, k, w, tau))], [gauss_sum(q, k, jnp.exp(w), tau)], 1e-13)
    assert_close([log_gauss_sum(q, k)], [dense(q, k, jnp.zeros(5), jnp.ones(()))], 1e-13)


@pytest.mark.parametrize("method", METHODS)
def test_weights_of_zero(rng, method):
    q, k, w, tau = arguments(rng)
    w = w.at[1:3].set(-jnp.inf)
    exact = dense(q, jnp.delete(k, jnp.array([1, 2]), axis=0), jnp.delete(w, jnp.array([1, 2])), tau)
    assert_close([log_gauss_sum(q, k, w, tau, method=method)], [exact], 1e-13)
    gradients = slope(lambda *x: log_gauss_sum(*x, method=method))(q, k, w, tau)
    assert all(jnp.isfinite(x).all() for x in gradients) and not gradients[1][1:3].any()
    assert jnp.all(log_gauss_sum(q, k, jnp.full(5, -jnp.inf), tau, method=method) == -jnp.inf)


def test_empty_sums():
    assert jnp.all(log_gauss_sum(jnp.ones((3, 2)), jnp.ones((0, 2))) == -jnp.inf)
    assert log_gauss_sum(jnp.ones((0, 2)), jnp.ones((3, 2)), method="rescale").shape == (0,)
    assert log_gauss_sum(jnp.ones((4, 3, 2)), jnp.ones((0, 2))).shape == (4, 3)


def test_score_and_value_cost_one_call(rng, monkeypatch):
    calls = []
    q, k, w, tau = (x.astype(jnp.float32) for x in arguments(rng))

    counted = jax.custom_vjp(lambda *x: calls.append(x[1]) or kernel_means(*x), nondiff_argnums=(0, 1))
    counted.defvjp(rules._means_forward, rules._means_backward)
    monkeypatch.setattr(rules, "means", counted)
    jax.clear_caches()
    compiled = jax.jit(jax.value_and_grad(lambda q: log_gauss_sum(q, k, w, tau, method="rescale").sum())).lower(q)
    lines = [x for x in compiled.compile().as_text().splitlines() if "custom_call_target" in x]
    assert True in calls and len(lines) == 1  # points that are not near are XLA's
    jax.clear_caches()


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"method": "prescale"}, ValueError, "got 'prescale'"),
        ({"log_weights": jnp.ones(4)}, ValueError, r"got log_weights \(4,\), keys \(5, 2\)"),
        ({"log_weights": jnp.ones(())}, ValueError, r"got log_weights \(\)"),
        ({"log_weights": [1.0] * 5}, TypeError, "got list"),
        ({"log_weights": jnp.ones(5, int)}, TypeError, "got log_weights int64"),
        ({"keys": jnp.ones(5)}, ValueError, r"got queries \(3, 2\), keys \(5,\)"),
        ({"keys": None}, TypeError, "got NoneType"),
        ({"tau": -1.0}, ValueError, "got tau -1.0"),
        ({"backend": "flash"}, ValueError, "must be one for cpu, .*; got 'flash'"),
    ],
)
def test_wrong_arguments_are_named(change, error, message):
    call = {"queries": jnp.ones((3, 2)), "keys": jnp.ones((5, 2)), "log_weights": None, "tau": 1.0} | change
    with pytest.raises(error, match=message):
        log_gauss_sum(**call)


@pytest.fixture
def in_one_pass(monkeypatch):
    """Means of the fewest pairs in one pass; how often it took two passes after all."""
    passes, in_two_passes = [], means.blocked_means

    def counted(*operands, **options):
        jax.debug.callback(lambda: passes.append(1))
        return in_two_passes(*operands, **options)

    monkeypatch.setattr(dispatch, "ONE_PASS", 1)
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


@pytest.mark.parametrize("case", ["ordinary", "same points", "a near key", "no weight where one looks", "NaN"])
@pytest.mark.filterwarnings("ignore:.*got NaN among them")
def test_means_look_at_some_keys_first(rng, in_one_pass, case):
    """They take two passes only where a term is 2¹²⁷ times as large as those that were looked at; right in any case."""
    m, n, dim = 70, 200 + len(case), 32 if case == "same points" else 2  # sizes that nobody else has
    queries, keys = (jnp.asarray(rng.uniform(-4, 4, (num, dim)), jnp.float32) for num in (m, n))
    log_weights = jnp.asarray(rng.normal(size=n), jnp.float32)
    if case == "same points":
        queries, keys = 0.8 * keys[:m], 0.8 * keys  # some 10 bandwidths from their center, 15 from one another
    if case == "a near key":
        ends = [jnp.asarray([[0, 11 * (-1) ** i] for i in range(num)], jnp.float32) for num in (m, n)]
        queries, keys = queries / 40 + ends[0], keys / 40 + ends[1]  # as far from their center as near points may be
        queries, keys = queries.at[69].set(np.float32([11, 0])), keys.at[199].set(np.float32([11, 0.1]))
    if case == "no weight where one looks":
        log_weights = jnp.full(n, -jnp.inf, "float32").at[199].set(np.float32(0.5))
    if case == "NaN":
        queries = queries.at[3].set(jnp.nan)
    operands = queries, keys, log_weights, jnp.float32(1.0)
    found = np.asarray(log_gauss_sum(*operands), np.float64)
    jax.effects_barrier()
    assert bool(in_one_pass) == (case in ("a near key", "no weight where one looks"))
    exact = np.asarray(dense(*(x.astype("float64") for x in operands)))
    assert bool(np.isnan(found[3])) == (case == "NaN")
    seen = ~np.isnan(exact)
    assert np.all(np.abs(found - exact)[seen] <= 3e-5 * np.maximum(1, np.abs(exact))[seen])


@pytest.mark.parametrize("axes", [None, (0, None, None, None), (None, 0, 0, None), (0, 0, 0, 0)])
def test_means_in_one_pass_have_gradients_and_batches(rng, in_one_pass, axes):
    x = arguments(rng, 83, 91, 5, dtype="float32")
    wide = [z.astype("float64") for z in x]
    ours, exact = slope(log_gauss_sum), slope(dense)
    if axes is not None:
        x, wide = (
            [jnp.stack([z, 1.5 * z]) if axis == 0 else z for z, axis in zip(y, axes, strict=True)] for y in (x, wide)
        )
        ours, exact = jax.vmap(ours, axes), jax.vmap(exact, axes)
    assert_close(jax.jit(ours)(*x), jax.jit(exact)(*wide), 1e-5)
    jax.effects_barrier()
    assert not in_one_pass


@pytest.mark.parametrize("argnum", [0, 1, 2, 3])
def test_only_gradients_of_tau_take_the_formula(rng, monkeypatch, argnum):
    """Where it is not known whether points are near: all differences in float64 take twenty times as long."""
    taken = []

    def recorded(*operands, formula=rules.means_formula):
        taken.append(1)
        return formula(*operands)

    monkeypatch.setattr(rules, "means_formula", recorded)
    x = arguments(rng, dtype="float32")
    jax.clear_caches()
    jax.jit(jax.grad(lambda *x: log_gauss_sum(*x).sum(), argnum)).trace(*x)
    jax.clear_caches()
    assert bool(taken) == (argnum == 3)
