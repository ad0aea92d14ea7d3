"""The derivative rules against closed forms and automatic differentiation of the dense sum, in float64 and float32."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from jax.test_util import check_grads

import formulas
from jaxgauss import (
    explain,
    gauss_sum,
    gauss_sum_blocked,
    gauss_sum_dense,
    kernel_mean,
    kernel_sum,
    log_gauss_sum,
    mmd_squared,
)
from jaxgauss._checks.settings import Settings
from jaxgauss._engines import rules
from jaxgauss._engines import run as dispatch
from jaxgauss._engines.products import engine as products
from oracle import assert_close, gauss_sum64, gradients64, problem, with_gradients

ALL = (0, 1, 2, 3)


def arrays(case) -> list[jax.Array]:
    return [jnp.asarray(x) for x in case]


def pullback(*operands, **options):
    """Outside of `jit`, where only what the points need is compiled."""
    *operands, g = arrays(operands)
    return jax.vjp(functools.partial(gauss_sum, **options), *operands)[1](g)


def formula(q, k, v, tau):
    return formulas.matrix("gauss", q, k, tau) @ v


def loss(function, **options):
    return lambda *x: jnp.sin(function(*x, **options)).sum()


@pytest.mark.parametrize(
    "method, size",  # whatever the method, C > 1 takes the rules of "rescale"
    [
        *(("rescale", (1, 1, 1, 1)), ("rescale", (29, 31, 59, 1)), ("rescale", (11, 13, 2, 40))),
        *(("blocked", (7, 5, 3, 2)), ("blocked", (11, 13, 2, 40))),
        *(("reweight", (29, 31, 59, 1)), ("prescale", (7, 5, 3, 2))),
    ],
)
def test_gradients_match_dense(rng, method, size):
    case, ours = problem(rng, *size), with_gradients(functools.partial(gauss_sum, engine=method))
    assert_close(ours(*case)[1], gradients64(*case), 1e-12)


@pytest.mark.parametrize("method, dim, channels", [("rescale", 16, 1), ("blocked", 32, 32)])
def test_float32_gradients_hold_their_figure(rng, method, dim, channels):
    case = problem(rng, 400, 300, dim, channels, tau=1.0, dtype="float32")
    for offset in np.float32([0, 30]):  # compiled once
        moved = case._replace(queries=case.queries + offset, keys=case.keys + offset)
        assert_close(pullback(*moved, engine=method), gradients64(*moved), 1e-5)


@pytest.mark.parametrize("precision, channels, tolerance", [("float16", 1, 3e-3), ("bfloat16", 8, 3e-2)])
def test_half_precision_gradients(rng, precision, channels, tolerance):
    case = problem(rng, 300, 400, 8, channels, tau=1.0, dtype="float32")
    assert_close(pullback(*case, precision=precision), gradients64(*case), tolerance)


@pytest.mark.parametrize(
    "method, size", [("blocked", (5, 6, 2, 1)), ("rescale", (4, 5, 20, 4)), ("differences", (4, 5, 2, 2))]
)
def test_second_derivatives_match_dense(rng, method, size):
    operands = arrays(problem(rng, *size).operands)
    slope = jax.grad(loss(gauss_sum, engine=method), ALL)
    ours = jax.jit(jax.grad(lambda *x: sum(jnp.sin(g).sum() for g in slope(*x)), ALL))(*operands)
    assert_close(ours, formulas.gradients(formula, operands, twice=ALL), 1e-9)


@pytest.mark.parametrize("channels", [1, 30])
def test_coincident_points_have_finite_gradients(channels):
    x, values = jnp.zeros((4, 3)), jnp.ones((4, channels))
    gradients = jax.grad(lambda q, k: gauss_sum(q, k, values, engine="rescale").sum(), (0, 1))(x, x)
    assert not any(x.any() for x in gradients)


@pytest.mark.parametrize(
    "method, channels, shapes",
    [
        ("rescale", 1, ((), (4,), (), ())),
        ("rescale", 1, ((3, 1), (4,), (3, 4), (4,))),
        ("blocked", 1, ((4,), (), (), ())),
        ("blocked", 20, ((), (), (4,), ())),
        ("blocked", 20, ((), (), (), (4,))),
    ],
)
def test_gradients_of_shared_operands_are_summed(rng, method, channels, shapes):
    q, k = rng.normal(size=(*shapes[0], 5, 2)), rng.normal(size=(*shapes[1], 7, 2))
    v, tau = rng.normal(size=(*shapes[2], 7, channels)), rng.uniform(0.5, 2, size=shapes[3])
    g = rng.normal(size=(*np.broadcast_shapes(*shapes), 5, channels))
    value, gradients = with_gradients(functools.partial(gauss_sum, engine=method))(q, k, v, tau, g)
    assert_close([value, *gradients], [gauss_sum64(q, k, v, tau), *gradients64(q, k, v, tau, g)], 1e-11)


@pytest.mark.parametrize("function, order", [(gauss_sum_dense, 1), (gauss_sum_blocked, 2)])
def test_native_sums_have_forward_mode_too(rng, function, order):
    operands = arrays(problem(rng, 4, 5, 2, 3).operands)
    check_grads(function, operands, order=order, modes=["fwd", "rev"], rtol=1e-5)


def test_bandwidth_is_learnable(rng):
    """An Optax loop that recovers the τ that made the data."""
    q, k, v, _, _ = arrays(problem(rng, 60, 50, 2, 1))
    target = gauss_sum64(q, k, v, 3.0)
    optimizer = optax.adam(0.1)

    @jax.jit
    def step(log_tau, state):
        slope = jax.grad(lambda x: jnp.square(gauss_sum(q, k, v, jnp.exp(x), engine="rescale") - target).mean())
        updates, state = optimizer.update(slope(log_tau), state)
        return optax.apply_updates(log_tau, updates), state

    log_tau = jnp.asarray(0.0)
    state = optimizer.init(log_tau)
    with jax.numpy_dtype_promotion("standard"):  # for Optax
        for _ in range(150):
            log_tau, state = step(log_tau, state)
    assert abs(float(jnp.exp(log_tau)) - 3.0) < 0.03


@pytest.mark.parametrize(
    "channels, wanted, expected",
    [
        (1, (0, 1, 2, 3), ["sum", "sum"]),  # one channel: value and all gradients
        (1, (0,), ["sum"]),  # only the queries move: nothing but the value's own sum
        (1, (1,), ["sum", "sum"]),
        (1, (2,), ["sum", "sum"]),
        (40, (0, 1, 2, 3), ["gradients", "sum"]),
        (40, (2,), ["sum", "sum"]),
    ],
)
def test_number_of_sums(channels, wanted, expected):
    operands = [jax.ShapeDtypeStruct(x, "float64") for x in ((600, 16), (500, 16), (500, channels), ())]
    found = explain(jax.value_and_grad(loss(gauss_sum, engine="blocked"), wanted), *operands)
    assert sorted(kind for x in found.parts for kind in [x.kind] * round(x.number)) == expected


@pytest.mark.parametrize("num, dim, exponentials", [(30, 16, 1), (700, 16, 2)])
def test_small_matrix_is_kept_for_the_gradients(rng, monkeypatch, num, dim, exponentials):
    """One matrix Φ for value and gradients, unless it is larger than sixteen times the operands; under vmap as well."""
    for module in (rules, products):  # the program of near points alone
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


def test_gradients_from_a_kept_matrix(rng):
    operands = arrays(problem(rng, 20, 15, 4, 3, dtype="float32"))
    assert dispatch.keeps_tile(Settings(), *operands[:4])
    assert_close(pullback(*operands), gradients64(*operands), 2e-6)


def test_second_derivatives_out_of_reach_are_finite(rng):
    """Where the kept matrix is not what the gradients come from, nothing of it shows."""
    normal, weights = (jnp.asarray(rng.normal(size=(6, width)), "float32") for width in (3, 1))
    slope = jax.grad(lambda x: jnp.square(gauss_sum(x, x + 1, weights)).sum())
    ours = jax.jit(jax.grad(lambda x: (slope(x) * weights).sum()))
    for spread in np.float32([1e4, 1e9, 1e25]):
        x, moved, w = formulas.tensors(spread * normal, spread * normal + 1, weights)
        x.requires_grad_()
        total = (formulas.matrix("gauss", x, x + (moved - x).detach(), w.new_tensor(1.0)) @ w).square().sum()
        of_slope = torch.autograd.grad(total, x, create_graph=True)[0] * w
        exact = torch.autograd.grad(of_slope.sum(), x)[0]
        np.testing.assert_allclose(ours(spread * normal), exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("channels, patterns", [(1, [(1,), (2,), (3,), (0, 2)]), (24, [(0, 2), (1,), ALL])])
def test_wanted_gradients_may_change_between_calls(rng, channels, patterns):
    """JAX caches the forward rule for each pattern of wanted gradients, but one tree of residuals for all."""
    operands = arrays(problem(rng, 6, 5, 3, channels).operands)
    exact = formulas.gradients(formula, operands)
    for wanted in patterns:
        function = functools.partial(gauss_sum, engine="blocked")
        of_sum = loss(jax.checkpoint(function) if wanted == (0, 2) else function)
        assert_close(jax.grad(of_sum, wanted)(*operands), [exact[i] for i in wanted], 1e-12)


FUNCTIONS = {
    "gauss_sum": lambda x, y, w, tau: gauss_sum(x, y, w, tau).sum(),
    "kernel_sum": lambda x, y, w, tau: kernel_sum(x, y, w, tau, kernel="matern32").sum(),
    "log_gauss_sum": lambda x, y, w, tau: log_gauss_sum(x, y, w, tau, engine="differences").sum(),
    "kernel_mean": lambda x, y, w, tau: kernel_mean(x, y, y, tau, log_weights=w, engine="differences").sum(),
    "mmd_squared": lambda x, y, w, tau: mmd_squared(x, y, tau, y_weights=w, kernel="matern12"),
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
    patterns = [(0,), (1, 2), (3,)]
    pullbacks = [pullback(wanted) for wanted in patterns]
    for wanted, pull in zip(patterns, pullbacks, strict=True):
        assert_close(pull(jnp.float32(1)), [exact[i] for i in wanted], 1e-5)
