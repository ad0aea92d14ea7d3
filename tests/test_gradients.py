"""The derivative rules against closed forms and automatic differentiation of the dense sum, in float64 and float32."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.test_util import check_grads

from jaxgauss import (
    gauss_sum,
    gauss_sum_blocked,
    gauss_sum_dense,
    kernel_mean,
    kernel_sum,
    log_gauss_sum,
    mmd_squared,
)
from jaxgauss._checks.settings import Settings
from jaxgauss._engines import branches, dispatch
from oracle import assert_close, gradients64, problem, relative_error, with_gradients

ALL = (0, 1, 2, 3)


def arrays(case) -> list[jax.Array]:
    return [jnp.asarray(x) for x in case]


def pullback(**options):
    run = with_gradients(functools.partial(gauss_sum, **options))
    return lambda *operands: run(*operands)[1]


SIZES = [(1, 1, 1, 1), (7, 5, 3, 2), (29, 31, 59, 1), (11, 13, 2, 40)]


@pytest.mark.parametrize(
    "method, size",  # whatever the method, C > 1 takes the rules of "rescale"
    [*itertools.product(("rescale", "blocked"), SIZES), *itertools.product(("reweight", "prescale"), SIZES[1:3])],
)
def test_gradients_match_dense(rng, method, size):
    case, ours = problem(rng, *size), pullback(method=method)
    for factor in (1.0, -0.7):  # two problems, compiled once
        scaled = [*(factor * x for x in case[:3]), *case[3:]]
        assert_close(ours(*scaled), gradients64(*scaled), 1e-12)


@pytest.mark.parametrize(
    "method, dim, channels",
    [("rescale", 16, 1), ("rescale", 3, 7), ("rescale", 64, 64), ("blocked", 16, 1), ("blocked", 32, 32)],
)
def test_float32_gradients_hold_their_figure(rng, method, dim, channels):
    case, ours = problem(rng, 400, 300, dim, channels, tau=1.0, dtype="float32"), pullback(method=method)
    for offset in np.float32([0, 30]):  # compiled once
        moved = case._replace(queries=case.queries + offset, keys=case.keys + offset)
        assert_close(ours(*moved), gradients64(*moved), 1e-5)


@pytest.mark.parametrize("precision, channels, tolerance", [("float16", 1, 3e-3), ("bfloat16", 8, 3e-2)])
def test_half_precision_gradients(rng, precision, channels, tolerance):
    case = problem(rng, 300, 400, 8, channels, tau=1.0, dtype="float32")
    assert_close(pullback(precision=precision)(*case), gradients64(*case), tolerance)


@pytest.mark.parametrize(
    "method, size",
    [("rescale", (5, 6, 3, 1)), ("blocked", (5, 6, 3, 1)), ("blocked", (5, 6, 2, 5)), ("rescale", (4, 5, 20, 4))],
)
def test_hessian_vector_products_match_dense(rng, method, size):
    *operands, _ = arrays(problem(rng, *size))
    directions = [jnp.asarray(rng.normal(size=x.shape)) for x in operands]

    def curvature(function):
        def slope(*x):
            gradients = jax.grad(lambda *x: jnp.sin(function(*x)).sum(), ALL)(*x)
            return sum(jnp.vdot(d, g) for d, g in zip(directions, gradients, strict=True))

        return jax.jit(jax.grad(slope, ALL))(*operands)

    assert_close(curvature(lambda *x: gauss_sum(*x, method=method)), curvature(gauss_sum_dense), 1e-9)


@pytest.mark.parametrize("channels", [1, 6])
def test_third_derivatives_match_dense(rng, channels):
    q, k, v, tau, _ = arrays(problem(rng, 3, 4, 4, channels))

    def third(function):
        def along(t):
            return jnp.sin(function(q + t, k, v * (1 - t), tau + t)).sum()

        return jax.jit(jax.grad(jax.grad(jax.grad(along))))(jnp.asarray(0.1))

    ours = third(lambda *x: gauss_sum(*x, method="rescale"))
    assert relative_error(ours, third(gauss_sum_dense)) <= 1e-9


@pytest.mark.parametrize("channels", [1, 5])
def test_check_grads(rng, channels):
    *operands, _ = arrays(problem(rng, 4, 5, 2, channels))
    check_grads(lambda *x: gauss_sum(*x, method="rescale"), operands, order=2, modes=["rev"], rtol=1e-5)


@pytest.mark.parametrize("channels", [1, 30])
def test_coincident_points_have_finite_gradients(channels):
    points = jnp.zeros((4, 3))
    gradients = jax.grad(lambda q, k: gauss_sum(q, k, jnp.ones((4, channels)), method="rescale").sum(), (0, 1))(
        points, points
    )
    assert not any(x.any() for x in gradients)


SHARED = [((4,), (), (), ()), ((), (4,), (), ()), ((), (), (4,), ()), ((), (), (), (4,)), ((3, 1), (4,), (3, 4), (4,))]


@pytest.mark.parametrize(
    "method, channels, shapes",
    [*(("rescale", 1, x) for x in SHARED), *(("blocked", 20, x) for x in SHARED[3:])],
)
def test_gradients_of_shared_operands_are_summed(rng, method, channels, shapes):
    q, k = rng.normal(size=(*shapes[0], 5, 2)), rng.normal(size=(*shapes[1], 7, 2))
    v, tau = rng.normal(size=(*shapes[2], 7, channels)), rng.uniform(0.5, 2, size=shapes[3])
    g = rng.normal(size=(*np.broadcast_shapes(*shapes), 5, channels))
    assert_close(pullback(method=method)(q, k, v, tau, g), gradients64(q, k, v, tau, g), 1e-11)


@pytest.mark.parametrize("function, order", [(gauss_sum_dense, 1), (gauss_sum_blocked, 2)])
def test_native_sums_have_forward_mode_too(rng, function, order):
    *operands, _ = arrays(problem(rng, 4, 5, 2, 3))
    check_grads(function, operands, order=order, modes=["fwd", "rev"], rtol=1e-5)


def test_bandwidth_is_learnable(rng):
    """An Optax loop that recovers the τ that made the data."""
    q, k, v, _, _ = arrays(problem(rng, 60, 50, 2, 1))
    target = gauss_sum_dense(q, k, v, 3.0)
    optimizer = optax.adam(0.1)

    @jax.jit
    def step(log_tau, state):
        def loss(log_tau):
            return jnp.square(gauss_sum(q, k, v, jnp.exp(log_tau), method="rescale") - target).mean()

        updates, state = optimizer.update(jax.grad(loss)(log_tau), state)
        return optax.apply_updates(log_tau, updates), state

    log_tau = jnp.asarray(0.0)
    state = optimizer.init(log_tau)
    with jax.numpy_dtype_promotion("standard"):  # for Optax
        for _ in range(150):
            log_tau, state = step(log_tau, state)
    assert abs(float(jnp.exp(log_tau)) - 3.0) < 0.03


@pytest.fixture
def kernel_calls(monkeypatch) -> list[str]:
    """The names of the sums and pullbacks that run, in order."""
    calls = []

    def record(name, function):
        def recorded(*args, **options):
            jax.debug.callback(lambda: calls.append(name))
            return function(*args, **options)

        return recorded

    monkeypatch.setattr(dispatch, "scaled_sum", record("sum", dispatch.scaled_sum))
    pullback = dispatch.PULLBACK._replace(in_xla=record("pullback", dispatch.PULLBACK.in_xla))
    monkeypatch.setattr(dispatch, "PULLBACK", pullback)
    branches._batched.cache_clear()
    jax.clear_caches()
    yield calls
    branches._batched.cache_clear()
    jax.clear_caches()


@pytest.mark.parametrize(
    "channels, wanted, expected",
    [
        (1, (0, 1, 2, 3), ["sum", "sum"]),  # one channel: value and all gradients
        (1, (0,), ["sum"]),  # only the queries move: nothing but the value's own sum
        (1, (1,), ["sum", "sum"]),
        (1, (2,), ["sum", "sum"]),
        (40, (0, 1, 2, 3), ["pullback", "sum"]),
        (40, (2,), ["sum", "sum"]),
    ],
)
def test_number_of_kernel_calls(rng, kernel_calls, channels, wanted, expected):
    *operands, g = arrays(problem(rng, 6, 5, 3, channels))

    def value_and_gradients(*x):
        value, vjp = jax.vjp(
            lambda *y: gauss_sum(*(y[wanted.index(i)] if i in wanted else x[i] for i in ALL), method="blocked"),
            *(x[i] for i in wanted),
        )
        return value, vjp(g)

    value, gradients = jax.block_until_ready(jax.jit(value_and_gradients)(*operands))
    jax.effects_barrier()
    assert sorted(kernel_calls) == expected
    exact = gradients64(*operands, g)
    assert_close([value, *gradients], [gauss_sum_dense(*operands), *(exact[i] for i in wanted)], 1e-12)


@pytest.mark.parametrize("num, dim, exponentials", [(30, 16, 1), (700, 16, 2)])
def test_small_matrix_is_kept_for_the_gradients(rng, monkeypatch, num, dim, exponentials):
    """One matrix Φ for value and gradients, unless it is larger than sixteen times the operands; under vmap as well."""
    for module in (branches, dispatch):  # the program of near points alone
        monkeypatch.setattr(module, "one_of_two", lambda is_near, near, anywhere, *x: near(*x))
    jax.clear_caches()
    operands = arrays(problem(rng, num, num, dim, 1))[:3]
    points = [jnp.stack([x, x + 1]) for x in operands]
    for function, arguments in ((gauss_sum, operands), (jax.vmap(gauss_sum), points)):

        def gradients(*x, function=function):
            return jax.vjp(function, *x)[1](jnp.ones((*x[0].shape[:-1], 1)))

        inside = jax.jit(gradients).lower(*arguments).compile().as_text().count(" exponential(")
        saved = jax.tree.leaves(jax.eval_shape(lambda *x, function=function: jax.vjp(function, *x)[1], *arguments))
        assert inside == exponentials
        assert sum(x.size for x in saved) <= (1 + 8) * sum(x.size for x in arguments) + 100
    monkeypatch.undo()
    jax.clear_caches()


@pytest.mark.parametrize("channels", [1, 3])
def test_gradients_from_a_kept_matrix(rng, channels):
    operands = arrays(problem(rng, 20, 15, 4, channels, dtype="float32"))
    assert dispatch.keeps_tile(Settings(), *operands[:4])
    assert_close(pullback()(*operands), gradients64(*operands), 2e-6)


def test_second_derivatives_out_of_reach_are_finite(rng):
    """Where the kept matrix is not what the gradients come from, nothing of it shows."""
    normal, weights = (jnp.asarray(rng.normal(size=(6, width)), "float32") for width in (3, 1))

    def hessian_times_itself(**options):
        slope = jax.grad(lambda x: jnp.square(gauss_sum(x, x + 1, weights, **options)).sum())
        return jax.jit(jax.grad(lambda x: (slope(x) * weights).sum()))

    exact, ours = hessian_times_itself(method="differences"), hessian_times_itself()
    for spread in np.float32([1e4, 1e9, 1e25]):
        found = ours(spread * normal)
        assert np.isfinite(found).all()
        np.testing.assert_allclose(found, exact(spread * normal), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("channels", [1, 24])
def test_wanted_gradients_may_change_between_calls(rng, channels):
    """JAX caches the forward rule for each pattern of wanted gradients, but one tree of residuals for all."""
    *operands, _ = arrays(problem(rng, 6, 5, 3, channels))

    def loss(function):
        return lambda *x: jnp.sin(function(*x)).sum()

    exact = jax.grad(loss(gauss_sum_dense), ALL)(*operands)
    patterns = [(lambda f: f, x) for x in ((0, 2), (1,), ALL)]
    if channels == 1:
        patterns += [(lambda f: f, x) for x in ((2,), (3,), (0,))] + [(jax.checkpoint, x) for x in ((0, 2), (1,))]
    for transform, wanted in patterns:
        ours = jax.grad(loss(transform(lambda *x: gauss_sum(*x, method="blocked"))), wanted)(*operands)
        assert_close(ours, [exact[i] for i in wanted], 1e-12)


FUNCTIONS = {
    "gauss_sum": lambda x, y, w, tau: gauss_sum(x, y, w, tau).sum(),
    "kernel_sum": lambda x, y, w, tau: kernel_sum(x, y, w, tau, kernel="matern32").sum(),
    "log_gauss_sum": lambda x, y, w, tau: log_gauss_sum(x, y, w, tau).sum(),
    "kernel_mean": lambda x, y, w, tau: kernel_mean(x, y, jnp.sin(y), tau, log_weights=w).sum(),
    "mmd_squared": lambda x, y, w, tau: mmd_squared(x, y, tau, y_weights=w),
}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_pullbacks_may_wait_for_one_another(rng, function):
    """Each is called after all are formed; they share a program, and what JAX caches of it."""
    function, tau = jax.jit(FUNCTIONS[function]), jnp.float32(0.5)
    operands = [*(jnp.asarray(rng.normal(size=size), "float32") for size in [(40, 3), (50, 3), (50,)]), tau]

    def pullback(wanted):
        def of_wanted(*moving):
            given = dict(enumerate(operands)) | dict(zip(wanted, moving, strict=True))
            return function(*(given[i] for i in ALL))

        return jax.vjp(of_wanted, *(operands[i] for i in wanted))[1]

    exact = jax.grad(function, ALL)(*operands)
    patterns = [(0,), (1,), (0, 1), (2,), (3,)]
    pullbacks = [pullback(wanted) for wanted in patterns]
    for wanted, pull in zip(patterns, pullbacks, strict=True):
        assert_close(pull(jnp.float32(1)), [exact[i] for i in wanted], 1e-5)
