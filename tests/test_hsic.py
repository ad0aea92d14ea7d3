"""HSIC and its test: against full matrices, against sums over all quadruples, its level and its power."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from formulas import gradients, kernel_matrix, matrix, soft_maximum, tensors
from jaxgauss import hsic, hsic_test
from jaxgauss._methods import hsic_test as module
from jaxgauss._methods import resampling
from oracle import assert_close, attention_calls, relative_error

KEY = jax.random.key(7)
EVERY = (0, 1, 2, 3)


def centered(k, estimator):
    """HKH; or without the diagonal, so that all rows have the sum zero."""
    n = len(k)
    if estimator == "biased":
        h = torch.eye(n).to(k) - 1 / n
        return h @ k @ h
    others = 1 - torch.eye(n)
    k = k * others
    rows = k.sum(0) / (n - 2)
    return others * (k - rows[:, None] - rows + k.sum() / ((n - 1) * (n - 2)))


def both(x, y, tau_x, tau_y, estimator):
    return (centered(matrix("gauss", z, z, tau), estimator) for z, tau in ((x, tau_x), (y, tau_y)))


def factor(n, estimator):
    return 1 / n**2 if estimator == "biased" else 1 / (n * (n - 3))


def dense(x, y, tau_x, tau_y, estimator):
    k, l = both(x, y, tau_x, tau_y, estimator)  # noqa: E741
    return factor(len(x), estimator) * (k * l).sum()


def dense_weighted(x, y, tau_x, tau_y, weights):
    a, k, l = weights / weights.sum(), matrix("gauss", x, x, tau_x), matrix("gauss", y, y, tau_y)  # noqa: E741
    return a @ (k * l) @ a - 2 * (a * (k @ a)) @ (l @ a) + (a @ k @ a) * (a @ l @ a)


@pytest.fixture
def pairs(rng):
    x = rng.normal(size=(40, 3))
    return jnp.asarray(x), jnp.asarray(x[:, :2] ** 2 + rng.normal(size=(40, 2)))


def sines(estimator, engine="auto"):
    """30 of it, so that a sine sees it."""

    def function(*operands):
        value = hsic(*operands, estimator=estimator, engine=engine)
        return jnp.sin(30 * value), value

    return function


def test_value_and_gradients_are_those_of_full_matrices(pairs):
    operands = *pairs, jnp.asarray(0.7), jnp.asarray(1.3)
    (_, value), found = jax.jit(jax.value_and_grad(sines("unbiased"), EVERY, has_aux=True))(*operands)
    assert relative_error(value, dense(*tensors(*operands), "unbiased")) < 1e-12
    assert_close(found, gradients(lambda *z: 30 * dense(*z, "unbiased"), operands), 1e-10)


def test_several_bandwidths_under_vmap(rng):
    x, y, taus = rng.normal(size=(2, 20, 2)), rng.normal(size=(2, 20, 1)), ([0.2, 0.7], [1.0, 2.0, 3.0])
    batch = [jnp.asarray(z) for z in (x, y, *(np.stack([z, np.sqrt(z)]) for z in taus))]
    (_, values), found = jax.jit(jax.vmap(jax.value_and_grad(sines("biased", "blocked"), EVERY, has_aux=True)))(*batch)
    for i, operands in enumerate(zip(*batch, strict=True)):
        assert relative_error(values[i], dense(*tensors(*operands), "biased")) < 1e-12
        assert_close([z[i] for z in found], gradients(lambda *z: 30 * dense(*z, "biased"), operands), 1e-10)


def test_second_derivatives(pairs):
    """Of those by x and τ of x; y has the same ones."""
    operands = *(z[:12] for z in pairs), jnp.asarray(0.7), jnp.asarray(1.3)
    first = jax.grad(sines("unbiased", "blocked"), (0, 2), has_aux=True)
    again = jax.jit(jax.grad(lambda *z: sum(jnp.sin(g).sum() for g in first(*z)[0]), EVERY))(*operands)
    assert_close(again, gradients(lambda *z: 30 * dense(*z, "unbiased"), operands, twice=(0, 2)), 1e-10)


def test_weights(rng, pairs):
    """Biased: the matrices of weights. Unbiased: sums over all pairs, triples and quadruples of distinct points."""
    operands, w = (*pairs, 0.7, 1.3), jnp.asarray(rng.uniform(size=40))
    biased = jax.jit(jax.value_and_grad(lambda x, y, w: hsic(x, y, 0.7, 1.3, weights=w), 2))
    ours, found = biased(*pairs, w)
    assert relative_error(ours, dense_weighted(*tensors(*operands, w))) < 1e-10
    cosine = np.cos(float(ours))  # of the sine that they are of
    assert relative_error(cosine * found, gradients(dense_weighted, (*operands, w))[4]) < 1e-10
    assert abs(float(biased(jnp.ones((40, 3)), jnp.ones((40, 2)), w)[0])) < 1e-15

    unbiased = jax.jit(lambda w: hsic(*operands, weights=w, estimator="unbiased"))
    k, l = (kernel_matrix(z[:7], tau=tau) for z, tau in zip(pairs, (0.7, 1.3), strict=True))  # noqa: E741

    def mean(function, size):
        tuples = np.array(list(itertools.permutations(range(7), size))).T
        products = np.prod(np.asarray(w)[tuples], 0)
        return (products * function(*tuples)).sum() / products.sum()

    exact = mean(lambda i, j: k[i, j] * l[i, j], 2) - 2 * mean(lambda i, j, q: k[i, j] * l[i, q], 3)
    exact += mean(lambda i, j, q, r: k[i, j] * l[q, r], 4)
    assert float(unbiased(jnp.where(jnp.arange(40) < 7, w, 0))) == pytest.approx(exact, rel=1e-11)
    same = float(dense(*tensors(*operands), "unbiased"))
    assert float(unbiased(jnp.full(40, 3.0))) == pytest.approx(same, rel=1e-12)
    assert np.isnan(unbiased(jnp.eye(40)[0]))  # too few points, which under jit is no error


@pytest.mark.parametrize("estimator", ["biased", "unbiased"])
def test_float32_and_points_far_apart(rng, estimator):
    """Relative to the terms that cancel; two far clusters, where products lose the exponents; and half precision."""
    for apart in (0, 3e4):
        x, y = (rng.normal(size=(300, d)) + apart * rng.integers(0, 2, size=(300, 1)) for d in (3, 2))
        x, y = x.astype("float32"), y.astype("float32")
        exact, ours = float(dense(*tensors(x, y, 0.7, 0.3), estimator)), hsic(x, y, 0.7, 0.3, estimator=estimator)
        terms = kernel_matrix(x, tau=0.7).mean() * kernel_matrix(y, tau=0.3).mean()
        assert ours.dtype == jnp.float32 and abs(float(ours) - exact) < 2e-6 * terms
    if estimator == "biased":
        half = hsic(x / 3e4, y / 3e4, 0.7, 0.7, precision="float16")
        assert 0 < abs(float(half) - float(dense(*tensors(x / 3e4, y / 3e4, 0.7, 0.7), estimator))) < 5e-3


@pytest.mark.parametrize("with_gradients, calls", [(False, 3), (True, 6)])
def test_number_of_attention_calls(with_gradients, calls):
    loss = functools.partial(hsic, engine="rescale")
    function = jax.value_and_grad(loss, (0, 1, 2, 3)) if with_gradients else loss
    x = jax.ShapeDtypeStruct((32, 4), "float32")
    assert attention_calls(function, x, x, 1.0, 1.0) == calls
    assert attention_calls(lambda x: hsic_test(x, x, 1.0, 1.0, rng_key=KEY), x) == 0


def columns_of(n, number, wild):
    design = resampling.Resamplings.of(n, number, "unbiased", "float64")
    return np.asarray(module._columns(design, wild, jnp.ones((1, n), bool), KEY, 0))[0]


def resampled(x, y, tau_x, tau_y, number, estimator, wild):
    """The form of every resampling, and the norms of both matrices."""
    k, l = (z.numpy() for z in both(*tensors(x, y, tau_x, tau_y), estimator))  # noqa: E741
    columns = columns_of(len(x), number, wild)
    if wild:
        forms = np.einsum("ip,ij,jp->p", columns, k * l, columns)
    else:
        forms = np.array([(k * l[p][:, p]).sum() for p in columns.T])
    return forms, np.sqrt((k**2).sum() * (l**2).sum())


@pytest.mark.parametrize(
    "num, estimator, kind, dtype",
    [
        (45, "biased", "permutation", "float64"),
        (4, "unbiased", "permutation", "float64"),
        (90, "unbiased", "permutation", "float64"),
        (45, "unbiased", "wild", "float64"),
        (90, "biased", "wild", "float32"),
    ],
)
def test_statistics_are_those_of_full_matrices(request, rng, capsys, num, estimator, kind, dtype):
    """Of many points in blocks, with a bar, or in float32."""
    x, y = (rng.normal(size=(num, dim)).astype(dtype) for dim in (3, 2))
    options = {"rng_key": KEY, "num_permutations": 60, "estimator": estimator, "resampling": kind}
    exact = factor(num, estimator) * resampled(x, y, 0.7, 1.3, 60, estimator, kind == "wild")[0]
    if num == 90:
        request.getfixturevalue("small_blocks")
    result = hsic_test(x, y, 0.7, 1.3, progress=num == 90 and dtype == "float64", **options)
    apart = np.append(result.statistic, result.null_statistics) - exact
    assert np.abs(apart).max() < (1e-11 if dtype == "float64" else 1e-4) * np.abs(exact).max()
    assert ("hsic_test: 100%" in capsys.readouterr().err) == (num == 90 and dtype == "float64")
    if dtype == "float64":
        assert float(result.p_value) == pytest.approx((1 + (exact[1:] >= exact[0] - 1e-14).sum()) / 61)
    value = float(dense(*tensors(x, y, 0.7, 1.3), estimator))
    assert float(result.statistic) == pytest.approx(value, abs=1e-14 if dtype == "float64" else 1e-7)


@pytest.mark.parametrize("kind", ["permutation", "wild"])
def test_bandwidths_are_aggregated(rng, kind):
    x, y = rng.normal(size=(30, 2)), rng.normal(size=(30, 1))
    taus = np.array([0.3, 3.0, 300.0]), np.array([0.5, 50.0])
    result = hsic_test(x, y, *taus, rng_key=KEY, num_permutations=20, resampling=kind)
    found = (resampled(x, y, s, t, 20, "unbiased", kind == "wild") for s, t in itertools.product(*taus))
    exact = soft_maximum(30, [forms / norm for forms, norm in found])
    assert relative_error(np.append(result.statistic, result.null_statistics), exact) < 1e-11


def dependent(key, num, strength):
    """Two numbers and a noisy quadratic function of the first."""
    first, second = jax.random.split(key)
    x, z = jax.random.normal(first, (num, 2)), jax.random.normal(second, (num, 1))
    return x, strength * (x[:, :1] ** 2 - 1) + z


@functools.partial(jax.jit, static_argnums=(0, 1))
def power(num, kind, strength):
    """The share of 40 dependent samples that is rejected at 5 %."""

    def p_value(key):
        data, labels = jax.random.split(key)
        x, y = dependent(data, num, strength)
        return hsic_test(x, y, 1.0, 1.0, rng_key=labels, num_permutations=19, resampling=kind).p_value

    return (jax.lax.map(p_value, jax.random.split(KEY, 40)) <= 0.05).mean()


def test_power_rises_with_points_and_with_dependence():
    few, many, strong = (float(power(num, "permutation", x)) for num, x in ((30, 0.3), (100, 0.3), (100, 0.6)))
    assert few < 0.5 < many + 0.3 and many + 0.1 < strong
    assert few + 0.1 < many and strong > 0.6
    many, strong = (float(power(100, "wild", strength)) for strength in (0.3, 0.6))
    assert many + 0.3 > 0.5 and many + 0.1 < strong and strong > 0.6


def test_narrow_bandwidths_do_not_reject():
    """Where points see hardly any other, the biased wild bootstrap would always reject; the unbiased has ties."""
    x, y = jax.random.normal(KEY, (2, 30, 5))
    result = hsic_test(x, y, 1e4, 1e4, rng_key=KEY, num_permutations=19, resampling="wild")
    assert float(result.p_value) == 1.0 and float(result.statistic) == 0.0


def test_equal_statistics_are_ties():
    """Of two numbers each, in any units: a p-value is a share of tables, not a matter of rounding."""
    x, y = (jnp.asarray(np.arange(12) // k % 2, float)[:, None] for k in (2, 3))
    columns = columns_of(12, 99, False)
    agree = np.array([(np.asarray(x)[:, 0] == np.asarray(y)[p, 0]).sum() for p in columns.T])
    expected = (np.abs(agree[1:] - 6) >= abs(agree[0] - 6)).sum()
    for tau in (1e-6, 1.0, 100.0):
        found = hsic_test(x, y, tau, tau, rng_key=KEY, num_permutations=99)
        assert round(float(found.p_value) * 100) == 1 + expected
