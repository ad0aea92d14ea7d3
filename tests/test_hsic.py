"""HSIC and its test: against full matrices, against sums over all quadruples, its level and its power."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import binom, kstest

from jaxgauss import hsic, hsic_test, mmd_squared
from jaxgauss._methods import hsic_test as module
from jaxgauss._methods import pair_forms, resampling
from oracle import assert_close, attention_calls, relative_error

KEY = jax.random.key(7)
ESTIMATORS = ["biased", "unbiased"]


def kernel(x, tau):
    squared = jnp.square(x[:, None] - x[None]).sum(-1)
    return jnp.exp(-jnp.reshape(tau, (-1, 1, 1)) / 2 * squared[None]).mean(0)


def centered(matrix, estimator):
    """HKH; or without the diagonal, so that all rows have the sum zero."""
    n = len(matrix)
    if estimator == "biased":
        h = jnp.eye(n) - 1 / n
        return h @ matrix @ h
    others = 1 - jnp.eye(n)
    k = matrix * others
    rows = k.sum(0) / (n - 2)
    return others * (k - rows[:, None] - rows[None] + k.sum() / ((n - 1) * (n - 2)))


def factor(n, estimator):
    return 1 / n**2 if estimator == "biased" else 1 / (n * (n - 3))


def dense(x, y, tau_x, tau_y, estimator):
    k, l = (centered(kernel(z, tau), estimator) for z, tau in ((x, tau_x), (y, tau_y)))  # noqa: E741
    return factor(len(x), estimator) * (k * l).sum()


def dense_weighted(x, y, tau_x, tau_y, weights):
    a, k, l = weights / weights.sum(), kernel(x, tau_x), kernel(y, tau_y)  # noqa: E741
    return a @ (k * l) @ a - 2 * (a * (k @ a)) @ (l @ a) + (a @ k @ a) * (a @ l @ a)


@pytest.fixture
def pairs(rng):
    x = rng.normal(size=(40, 3))
    return jnp.asarray(x), jnp.asarray(x[:, :2] ** 2 + rng.normal(size=(40, 2)))


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("taus", [(0.7, 1.3), (np.array([0.2, 0.7]), np.array([1.0, 2.0, 3.0]))], ids=["one", "many"])
def test_value_and_gradients_are_those_of_full_matrices(pairs, estimator, taus):
    operands = *pairs, *(jnp.asarray(tau) for tau in taus)
    ours, exact = (
        jax.jit(jax.value_and_grad(lambda *z, f=f: jnp.sin(30 * f(*z, estimator=estimator)), (0, 1, 2, 3)))(*operands)
        for f in (hsic, dense)
    )
    assert float(hsic(*operands, estimator=estimator)) == pytest.approx(float(dense(*operands, estimator)), rel=1e-12)
    assert_close(ours[1], exact[1], 1e-10)


def test_second_derivatives(pairs):
    x, y = (z[:12] for z in pairs)

    def again(function):
        first = jax.grad(lambda *z: function(*z, estimator="unbiased"), (0, 1, 2, 3))
        return jax.grad(lambda *z: sum(jnp.sin(9 * g).sum() for g in first(*z)), (0, 1, 2, 3))

    operands = x, y, jnp.asarray(0.7), jnp.asarray(1.3)
    assert_close(jax.jit(again(hsic))(*operands), jax.jit(again(dense))(*operands), 1e-10)


def test_weights(rng, pairs):
    """Biased: the matrices of weights. Unbiased: sums over all pairs, triples and quadruples of distinct points."""
    w = jnp.asarray(rng.uniform(size=40))
    operands = *pairs, jnp.asarray(0.7), jnp.asarray(1.3)
    ours = jax.value_and_grad(lambda w: hsic(*operands, weights=w))(w)
    exact = jax.value_and_grad(lambda w: dense_weighted(*operands, w))(w)
    assert_close(ours, exact, 1e-10)
    x, y, w = (z[:7] for z in (*pairs, w))
    k, l = np.asarray(kernel(x, 0.7)), np.asarray(kernel(y, 1.3))  # noqa: E741

    def mean(function, size):
        tuples = np.array(list(itertools.permutations(range(7), size))).T
        products = np.prod(np.asarray(w)[tuples], 0)
        return (products * function(*tuples)).sum() / products.sum()

    exact = mean(lambda i, j: k[i, j] * l[i, j], 2) - 2 * mean(lambda i, j, q: k[i, j] * l[i, q], 3)
    exact += mean(lambda i, j, q, r: k[i, j] * l[q, r], 4)
    assert float(hsic(x, y, 0.7, 1.3, weights=w, estimator="unbiased")) == pytest.approx(exact, rel=1e-11)
    same = [hsic(x, y, 0.7, 1.3, weights=z, estimator="unbiased") for z in (None, jnp.full(7, 3.0))]
    assert float(same[0]) == pytest.approx(float(same[1]), rel=1e-12)
    masked = hsic(*pairs, 0.7, 1.3, weights=(jnp.arange(40) < 7).astype(float), estimator="unbiased")
    assert float(masked) == pytest.approx(float(same[0]), rel=1e-12)


def test_float32_and_points_far_apart(rng):
    """Relative to the terms that cancel; two far clusters, where products lose the exponents."""
    for apart in (0, 3e4):
        x, y = (rng.normal(size=(300, d)) + apart * rng.integers(0, 2, size=(300, 1)) for d in (3, 2))
        x, y = (jnp.asarray(z, jnp.float32) for z in (x, y))
        for estimator in ESTIMATORS:
            ours = hsic(x, y, 0.7, 0.3, estimator=estimator)
            wide = [z.astype(jnp.float64) for z in (x, y)]
            terms = float(jnp.prod(jnp.stack([kernel(z, t).mean() for z, t in zip(wide, (0.7, 0.3), strict=True)])))
            assert ours.dtype == jnp.float32
            assert abs(float(ours) - float(dense(*wide, 0.7, 0.3, estimator))) < 2e-6 * terms


def test_half_precision_on_request(pairs):
    x, y = (z.astype(jnp.float32) for z in pairs)
    exact = float(hsic(x, y, 0.7, 0.7))
    assert 0 < abs(float(hsic(x, y, 0.7, 0.7, precision="float16")) - exact) < 5e-3


def test_it_is_the_mmd_between_the_pairs_and_all_combinations(rng):
    """Of the concatenated, scaled points: all N² combinations are a sample of independent ones."""
    x, y = rng.normal(size=(9, 2)), rng.normal(size=(9, 1))
    joint = np.concatenate([np.sqrt(0.5) * x, np.sqrt(2.0) * y], -1)
    product = np.array([[*joint[i, :2], *joint[j, 2:]] for i in range(9) for j in range(9)])
    assert float(hsic(x, y, 0.5, 2.0)) == pytest.approx(float(mmd_squared(joint, product, 1.0)), abs=1e-14)


@pytest.mark.parametrize("gradients, calls", [(False, 3), (True, 6)])
def test_number_of_attention_calls(gradients, calls):
    loss = functools.partial(hsic, method="rescale")
    function = jax.value_and_grad(loss, (0, 1, 2, 3)) if gradients else loss
    x = jax.ShapeDtypeStruct((32, 4), "float32")
    assert attention_calls(function, x, x, 1.0, 1.0) == calls
    assert attention_calls(lambda x: hsic_test(x, x, 1.0, 1.0, rng_key=KEY), x) == 0


def test_under_vmap(rng):
    x, y = jnp.asarray(rng.normal(size=(3, 20, 2))), jnp.asarray(rng.normal(size=(3, 20, 1)))
    together = jax.jit(jax.vmap(jax.grad(lambda x, y: hsic(x, y, 0.5, 2.0))))(x, y)
    each = jnp.stack([jax.grad(lambda x, y: hsic(x, y, 0.5, 2.0))(*z) for z in zip(x, y, strict=True)])
    assert relative_error(together, each) < 1e-12


def columns_of(n, number, wild):
    design = resampling.Resamplings.of(n, number, "unbiased", "float64")
    return np.asarray(module._columns(design, wild, jnp.ones((1, n), bool), KEY, 0))[0]


@pytest.mark.parametrize("num, estimator", [(45, "biased"), (45, "unbiased"), (4, "unbiased")])
@pytest.mark.parametrize("kind", ["permutation", "wild"])
def test_statistics_are_those_of_full_matrices(rng, num, estimator, kind):
    x, y = rng.normal(size=(num, 3)), rng.normal(size=(num, 2))
    result = hsic_test(x, y, 0.7, 1.3, rng_key=KEY, num_permutations=60, estimator=estimator, resampling=kind)
    k, l = (np.asarray(centered(kernel(z, t), estimator)) for z, t in ((x, 0.7), (y, 1.3)))  # noqa: E741
    columns = columns_of(num, 60, kind == "wild")
    if kind == "wild":
        exact = np.einsum("ip,ij,jp->p", columns, k * l, columns)
    else:
        exact = np.array([(k * l[p][:, p]).sum() for p in columns.T])
    exact *= factor(num, estimator)
    assert np.abs(np.append(result.statistic, result.null_statistics) - exact).max() < 1e-11 * np.abs(exact).max()
    assert float(result.p_value) == pytest.approx((1 + (exact[1:] >= exact[0] - 1e-14).sum()) / 61)
    assert float(result.statistic) == pytest.approx(float(hsic(x, y, 0.7, 1.3, estimator=estimator)), abs=1e-14)


@pytest.mark.parametrize("kind", ["permutation", "wild"])
def test_many_points_and_blocks(rng, monkeypatch, capsys, kind):
    """Groups of points, blocks of columns, float32 and the bar: the statistics stay."""
    x, y = rng.normal(size=(90, 3)), rng.normal(size=(90, 2))
    test = functools.partial(hsic_test, tau_x=0.7, tau_y=1.3, rng_key=KEY, num_permutations=30, resampling=kind)
    whole = test(x, y)
    monkeypatch.setattr(resampling, "BYTES", 8 * 90 * 12)
    monkeypatch.setattr(pair_forms, "GROUP", 32)
    monkeypatch.setattr(resampling, "FEW", 50)
    scale = float(jnp.abs(whole.null_statistics).max())
    for points, options, tolerance in (
        ((x, y), {}, 1e-12),
        ((x, y), {"progress": True}, 1e-12),
        ((np.float32(x), np.float32(y)), {}, 1e-4),
    ):
        found = test(*points, **options)
        apart = np.asarray(found.null_statistics, np.float64) - np.asarray(whole.null_statistics)
        assert np.abs(apart).max() <= tolerance * scale
    assert "100%" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["permutation", "wild"])
def test_bandwidths_are_aggregated(rng, kind):
    x, y = rng.normal(size=(30, 2)), rng.normal(size=(30, 1))
    taus = np.array([0.3, 3.0, 300.0]), np.array([0.5, 50.0])
    result = hsic_test(x, y, *taus, rng_key=KEY, num_permutations=20, resampling=kind)
    columns, each = columns_of(30, 20, kind == "wild"), []
    for s, t in itertools.product(*taus):
        k, l = (np.asarray(centered(kernel(z, tau), "unbiased")) for z, tau in ((x, s), (y, t)))  # noqa: E741
        norm = np.sqrt((k**2).sum() * (l**2).sum())
        if kind == "wild":
            each.append(np.einsum("ip,ij,jp->p", columns, k * l, columns) / norm)
        else:
            each.append(np.array([(k * l[p][:, p]).sum() for p in columns.T]) / norm)
    sharpness = np.sqrt(30 * 29)
    exact = np.log(np.exp(sharpness * np.array(each)).mean(0)) / sharpness
    assert relative_error(np.append(result.statistic, result.null_statistics), exact) < 1e-11


def dependent(key, num, strength):
    """Two numbers and a noisy quadratic function of the first."""
    first, second = jax.random.split(key)
    x, z = jax.random.normal(first, (num, 2)), jax.random.normal(second, (num, 1))
    return x, strength * (x[:, :1] ** 2 - 1) + z


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def p_values(num, draws, kind, taus, strength):
    def p_value(key):
        data, labels = jax.random.split(key)
        tau = taus if len(taus) == 1 else np.array(taus)
        tau = taus[0] if len(taus) == 1 else tau
        x, y = dependent(data, num, strength)
        return hsic_test(x, y, tau, tau, rng_key=labels, num_permutations=19, resampling=kind).p_value

    return jax.lax.map(p_value, jax.random.split(KEY, draws))


@pytest.mark.parametrize(
    "num, kind, taus",
    [(num, kind, (0.5,)) for num in (50, 200) for kind in ("permutation", "wild")] + [(50, "wild", (0.5, 5.0))],
)
def test_p_values_are_uniform_without_dependence(num, kind, taus):
    """300 nulls; the shares of rejections at six levels lie in binomial intervals that hold 99.99 % each."""
    found = np.asarray(p_values(num, 300, kind, taus, 0.0), np.float64)
    for level in (1, 2, 4, 8, 12, 16):
        low, high = binom.interval(0.9999, 300, level / 20)
        assert low <= (found <= level / 20 + 1e-9).sum() <= high
    jittered = found - np.random.default_rng(0).uniform(size=300) / 20
    assert kstest(jittered, "uniform").pvalue > 1e-4


@pytest.mark.parametrize("kind", ["permutation", "wild"])
def test_power_rises_with_points_and_with_dependence(kind):
    power = {
        (num, strength): float((p_values(num, 40, kind, (1.0,), strength) <= 0.05).mean())
        for num, strength in ((30, 0.3), (100, 0.3), (100, 0.6))
    }
    assert power[30, 0.3] < 0.5 < power[100, 0.3] + 0.3 and power[100, 0.3] + 0.1 < power[100, 0.6]
    assert power[30, 0.3] + 0.1 < power[100, 0.3] and power[100, 0.6] > 0.6


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


def test_ties_and_what_is_no_number():
    constant = hsic_test(jnp.ones((8, 2)), jnp.ones((8, 1)), 1.0, 1.0, rng_key=KEY, num_permutations=19)
    assert float(constant.p_value) == 1.0
    spoiled = jnp.ones((8, 2)).at[0, 0].set(jnp.nan)
    assert np.isnan(hsic_test(spoiled, jnp.ones((8, 1)), 1.0, 1.0, rng_key=KEY, num_permutations=19).p_value)


GOOD = {"x": jnp.ones((6, 3)), "y": jnp.ones((6, 2)), "tau_x": 1.0, "tau_y": 1.0}
WRONG = [
    ({"y": jnp.ones((5, 2))}, r"`x` and `y` must be points of the same number; got x \(6, 3\), y \(5, 2\)"),
    ({"y": jnp.ones(6)}, r"`y` must be points.*got x \(6, 3\), y \(6,\)"),
    ({"tau_y": -1.0}, r"`tau_y` must be positive and finite in float\d\d; got tau_y -1"),
    ({"tau_x": jnp.ones((2, 2))}, r"`tau_x` must be a number or one-dimensional, for a mixture; got tau_x \(2, 2\)"),
    ({"estimator": "best"}, "`estimator` must be 'biased' or 'unbiased'; got 'best'"),
]


@pytest.mark.parametrize("function", [hsic, functools.partial(hsic_test, rng_key=KEY)], ids=["hsic", "hsic_test"])
@pytest.mark.parametrize("change, message", WRONG)
def test_wrong_arguments_are_named(function, change, message):
    with pytest.raises(ValueError, match="`jaxgauss.hsic(_test)?`: .*" + message):
        function(**{**GOOD, **change})


def test_more_wrong_arguments_are_named():
    three = {**GOOD, "x": jnp.ones((3, 3)), "y": jnp.ones((3, 2))}
    with pytest.raises(ValueError, match=r"`x` must hold at least 4 points; got x \(3, 3\), y \(3, 2\)"):
        hsic(**three, estimator="unbiased")
    with pytest.raises(ValueError, match=r"`weights` must weigh four points .* got 3 of 6 points with weight"):
        hsic(**GOOD, estimator="unbiased", weights=jnp.array([1.0, 1, 1, 0, 0, 0]))
    few = jax.jit(lambda w: hsic(**GOOD, estimator="unbiased", weights=w))(jnp.array([1.0, 1, 1, 0, 0, 0]))
    assert np.isnan(few) and abs(float(hsic(**GOOD, weights=jnp.ones(6)))) < 1e-15
    with pytest.raises(ValueError, match=r"`weights` must not be negative, nor all zero; got weights from -1"):
        hsic(**GOOD, weights=-jnp.ones(6))
    with pytest.raises(ValueError, match="`resampling` must be 'permutation' or 'wild'; got 'bootstrap'"):
        hsic_test(**GOOD, rng_key=KEY, resampling="bootstrap")
    with pytest.raises(
        ValueError, match=r"several bandwidths must go with estimator 'unbiased'; got 'biased', tau_x \(2"
    ):
        hsic_test(**{**GOOD, "tau_x": np.ones(2)}, rng_key=KEY, estimator="biased")
    with pytest.raises(ValueError, match="`num_permutations` must be a positive integer; got 0"):
        hsic_test(**GOOD, rng_key=KEY, num_permutations=0)
    with pytest.raises(TypeError, match="options must be among mesh, query_axis, key_axis; got method"):
        hsic_test(**GOOD, rng_key=KEY, method="dense")  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="`progress` must be False under a transformation such as jit; got True"):
        jax.jit(lambda x: hsic_test(**{**GOOD, "x": x}, rng_key=KEY, progress=True))(GOOD["x"])
