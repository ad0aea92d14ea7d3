"""What checks let pass, and what they find under transformations; tests/test_wrong_calls.py is the table of errors."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgauss
from jaxgauss import gauss_sum
from jaxgauss._sums import preparation as checked
from oracle import gauss_sum64, relative_error

ones = lambda *shape: jnp.ones(shape)  # noqa: E731
GOOD = {"queries": ones(5, 3), "keys": ones(7, 3), "values": ones(7, 2), "tau": 1.0}


@pytest.mark.parametrize(
    "change, message",  # all shapes that are wrong are in test_wrong_calls
    [
        ({"queries": ones(3)}, r"`queries` must be points.*got queries \(3,\), keys \(7, 3\)"),
        (
            {"values": ones(5, 2)},
            r"one row for each key; got .*values \(5, 2\)\. The last .* \(…, N, C\)\.(?! Weights)",
        ),
        ({"queries": ones(2, 5, 3), "keys": ones(4, 7, 3)}, r"must broadcast .*got queries \(2, 5, 3\)"),
    ],
)
def test_shapes_are_checked_in_a_trace_too(change, message):
    with pytest.raises(ValueError, match=message):
        jax.jit(gauss_sum)(**(GOOD | change))


def test_float64_by_blocks_needs_the_64_bit_mode():
    with jax.enable_x64(False):
        operands = [np.ones((4, 2), np.float32)] * 3
        with pytest.raises(ValueError, match=r"float64 in XLA needs jax\.config\.update.*got Blocked"):
            gauss_sum(*operands, engine="blocked", precision="float64")
        assert gauss_sum(*operands, engine="rescale", precision="float64").dtype == jnp.float32


def test_a_remembered_plan_is_that_of_its_mode():
    x = np.ones((4, 2), np.float32)
    for function in (gauss_sum, lambda *x, **how: jaxgauss.mmd_squared(*x[:2], 1.0, **how)):
        function(x, x, x, engine="dense", precision="float64")
        with jax.enable_x64(False), pytest.raises(ValueError, match="float64 in XLA needs"):
            function(x, x, x, engine="dense", precision="float64")


def test_tau_is_checked_in_the_dtype_that_it_is_used_in():
    """And integers of any size are bandwidths."""
    points, values = np.linspace(0, 1e-5, 8, dtype=np.float32).reshape(4, 2), np.ones((4, 1), np.float32)
    with jax.enable_x64(False):
        for tau in (1e39, 1e-46, 2**200, np.float64(1e300)):
            with pytest.raises(ValueError, match="positive and finite in float32; got tau"):
                gauss_sum(points, points, values, tau)
        for tau in (2, np.int64(2**32 + 4), 2**40, np.uint8(3), np.array([1, 2**33])):
            exact = gauss_sum64(points, points, values, np.asarray(tau, float))
            assert relative_error(gauss_sum(points, points, values, tau), exact) < 1e-5


def test_a_traced_tau_is_not_read():
    assert jnp.isnan(jax.jit(lambda tau: gauss_sum(**(GOOD | {"tau": tau})))(-1.0)).all()


TAKE_TAU = sorted(
    name
    for name, function in vars(jaxgauss).items()
    if inspect.isfunction(function) and "tau" in inspect.signature(function).parameters
)


@pytest.mark.parametrize("name", TAKE_TAU)
def test_another_name_of_the_bandwidth_is_told_how_to_convert(name):
    for option, convention in (("sigma", "sigma"), ("gamma", "gamma, 'gamma'")):
        with pytest.raises(TypeError) as caught:
            getattr(jaxgauss, name)(**{option: 2.0})
        assert f"Pass tau=jaxgauss.tau_from_bandwidth({convention}): τ is 1/σ²." in caught.value.__notes__


def test_many_functions_take_tau():
    assert {"gauss_sum", "mmd_squared", "mmd_test", "svgd", "kde_logpdf"} <= set(TAKE_TAU)


@pytest.mark.parametrize("rng_key", [jax.random.key(0), jax.random.PRNGKey(0), np.asarray(jax.random.PRNGKey(0))])
def test_random_keys_of_either_kind_are_taken(rng_key):
    assert jaxgauss.median_tau(jnp.ones((4, 2)), rng_key=rng_key, max_points=2) == 1


def test_a_mask_without_pairs_has_no_unbiased_estimate():
    """It would be 0/0: refused where it can be seen; under jit it is NaN, not a number that looks like one."""
    x = jnp.arange(10.0).reshape(5, 2)
    functions = {
        "mmd_squared": lambda a, **o: jaxgauss.mmd_squared(x, x + 1, 1.0, y_weights=a, **o),
        "embedding_norm_squared": lambda a, **o: jaxgauss.embedding_norm_squared(x, 1.0, weights=a, **o),
        "ksd_squared": lambda a, **o: jaxgauss.ksd_squared(x, -x, 1.0, weights=a, **o),
    }
    for name, function in functions.items():
        traced = jax.jit(functools.partial(function, estimator="unbiased"))
        for weights in (np.eye(5)[0], jnp.eye(5)[1] / 3, np.zeros(5)):
            said = rf"`jaxgauss.{name}`: .*weights` must weigh pairs .* got {np.count_nonzero(weights)} of 5"
            with pytest.raises(ValueError, match=said):
                function(weights, estimator="unbiased")
            assert jnp.isnan(traced(weights)) and jnp.isfinite(function(weights))


def test_results_print_in_a_line():
    x, rng_key = jnp.linspace(0, 1, 40, dtype="float32").reshape(20, 2), jax.random.key(0)
    test = jaxgauss.mmd_test(x, x + 9, 1.0, rng_key=rng_key, num_permutations=99)
    assert repr(test) == f"KernelTest(statistic={float(test.statistic):.4g}, p_value=0.01, null_statistics=float32[99])"
    both = jax.vmap(lambda x: jaxgauss.mmd_test(x, x, 1.0, rng_key=rng_key, num_permutations=99))(jnp.stack([x, x]))
    assert repr(both) == "KernelTest(statistic=float32[2], p_value=float32[2], null_statistics=float32[2,99])"
    search = repr(jaxgauss.leave_one_out_tau(x, np.ones(3)))
    assert search == "BandwidthSearch(tau=1, taus=float32[3], scores=float32[3])"
    chosen = jaxgauss.kernel_herding(x[:1], 1.0, 1)
    shown = f"weights=float32[1], weighted_mmd={float(chosen.weighted_mmd):.4g})"
    assert repr(chosen) == f"Herding(indices=int32[1], mmd=float32[1], {shown}" and chosen.weighted_mmd < 1e-6
    modes = repr(jaxgauss.mean_shift(x, x, 1.0, max_steps=2))
    assert modes == "MeanShift(points=float32[20,2], labels=int32[20], num_steps=2)"
    state = jaxgauss.SVGDState({"a": x}, {"tau": 2.0}, ())
    assert repr(state) == "SVGDState(particles={'a': float32[20,2]}, kernel_parameters={'tau': 2.0}, opt_state=())"
    estimate = jaxgauss.ErrorEstimate(jnp.float32(1e-6), jnp.float32(0), jnp.float32(0.5))
    assert repr(estimate) == "ErrorEstimate(relative_error=1e-06, standard_error=0, largest_ratio=0.5)"
    seen = []
    jax.jit(lambda *fields: seen.append(repr(jaxgauss.KernelTest(*fields))))(1.0, 2.0, x)
    assert seen == ["KernelTest(statistic=float64[], p_value=float64[], null_statistics=float32[20,2])"]
    chunks = jaxgauss.KeyChunks(np.ones((10, 3)), np.ones(10, "float32"), size=4)
    assert repr(chunks) == "KeyChunks(keys float64[10,3], values float32[10], size=4)"


def test_what_shapes_tell_is_found_once_and_values_are_looked_at_every_time(monkeypatch):
    q, v = jnp.ones((12, 3)), jnp.ones(12)
    calls, original = [], checked._checked
    monkeypatch.setattr(checked, "_checked", lambda *x: (calls.append(x[0].engine.name), original(*x))[1])
    checked._remembered.cache_clear()
    for tau in (1.0, 2, jnp.asarray(3.0), np.float32(4)):
        gauss_sum(q, q, v, tau)
    assert calls == ["auto"]
    for tau in (-1.0, 0, jnp.asarray(-1.0), np.asarray(np.nan), True * -1):
        with pytest.raises(ValueError, match="must be positive"):
            gauss_sum(q, q, v, tau)
    assert calls == ["auto"]
    gauss_sum(q, q, v, engine="dense")
    with jax.numpy_dtype_promotion("standard"):
        gauss_sum(q, q, v.astype("float32"))
    with pytest.raises(Exception, match="promotion=strict"):
        gauss_sum(q, q, v.astype("float32"))
    with jax.default_matmul_precision("high"):
        gauss_sum(q, q, v)
    numbers = np.ones((12, 3))
    assert gauss_sum(numbers, numbers, numbers).dtype == np.float64
    with jax.enable_x64(False):
        assert gauss_sum(numbers, numbers, numbers).dtype == np.float32
    assert calls == ["auto", "dense", "auto", "auto", "auto", "auto", "auto"]


MASKED = {
    "mmd_squared": lambda f, x, w: f(x, x[:9] + 1, 1.0, x_weights=w, estimator="unbiased"),
    "energy_distance": lambda f, x, w: f(x[:9] + 1, x, y_weights=w),
    "embedding_norm_squared": lambda f, x, w: f(x, 1.0, weights=w),
    "mmd_witness": lambda f, x, w: f(x[:9], x, x + 1, 1.0, x_weights=w),
    "mmd_flow_velocity": lambda f, x, w: f(x[:9], x, 1.0, y_weights=w),
    "ksd_squared": lambda f, x, w: f(x, -x, 1.0, weights=w),
    "kde_logpdf": lambda f, x, w: f(x[:9], x, 1.0, weights=w),
    "hsic": lambda f, x, w: f(x, jnp.sin(x), 1.0, 1.0, weights=w),
    "kernel_herding": lambda f, x, w: f(x, 1.0, 3, weights=w).mmd,
    "mean_shift": lambda f, x, w: f(x[:9], x, 1.0, weights=w).points,
    "leave_one_out_tau": lambda f, x, w: f(x, np.ones(2), weights=w).scores,
}


@pytest.mark.parametrize("name", MASKED)
def test_a_mask_keeps_points_of_equal_weight(rng, name):
    x, mask = rng.normal(size=(12, 2)), np.arange(12) % 3 > 0
    found = MASKED[name](getattr(jaxgauss, name), x, jnp.asarray(mask))
    weighted = MASKED[name](getattr(jaxgauss, name), x, mask / mask.sum())
    np.testing.assert_allclose(found, weighted, rtol=1e-12)
    with pytest.raises(ValueError, match=rf"`jaxgauss.{name}`: .*weights` must keep a point; got False for all 12"):
        MASKED[name](getattr(jaxgauss, name), x, np.zeros(12, bool))


@pytest.mark.parametrize("name", [*MASKED][:6])
def test_normalized_weights_add_up_to_one(rng, name):
    """And have the derivatives of that."""
    x, weights = rng.normal(size=(12, 2)), rng.uniform(1, 5, 12)

    def value(w, **how):
        return jnp.sin(MASKED[name](functools.partial(getattr(jaxgauss, name), **how), x, w)).sum()

    ways = (functools.partial(value, normalize=True), lambda w: value(w / w.sum()))
    found, expected = jax.jit(lambda w: [jax.value_and_grad(f)(w) for f in ways])(jnp.asarray(weights))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-12), found, expected)
    with pytest.raises(ValueError, match=rf"`jaxgauss.{name}`: `.*weights` must not add up to zero to be normalized"):
        value(np.resize([1.0, -1.0], 12), normalize=True)
    with pytest.raises(TypeError, match=rf"`jaxgauss.{name}`: `normalize` must be True or False; got str 'yes'"):
        value(weights, normalize="yes")


def test_weights_that_should_have_been_normalized_are_noticed(rng):
    x, ones = rng.normal(size=(2, 6, 2)), np.ones(6)
    for name in ("mmd_squared", "mmd_flow_velocity"):
        function = getattr(jaxgauss, name)
        with pytest.warns(UserWarning, match=rf"`jaxgauss.{name}`: `y_weights` should have the sum 1.*; got 6") as seen:
            function(*x, 1.0, y_weights=ones)
        assert [warning.filename for warning in seen] == [__file__]
        function(*x, 1.0, x_weights=ones / 6, y_weights=ones - 2)  # of other signs: on purpose
        jax.jit(lambda w, f=function: f(*x, 1.0, y_weights=w))(ones)
    with pytest.raises(TypeError, match=r"`weights` must be floating; got booleans\. Pass points\[mask\]"):
        jaxgauss.mmd_squared_matrix(x[0], 1.0, segments=np.arange(6) % 2, weights=ones > 0)
