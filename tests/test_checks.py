"""Bad input: one test a message, before anything runs."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import jaxgauss
from jaxgauss import explain, gauss_sum, gauss_sum_blocked, gauss_sum_dense
from jaxgauss._sums import checked
from oracle import gauss_sum64, relative_error

GOOD = {"queries": jnp.ones((5, 3)), "keys": jnp.ones((7, 3)), "values": jnp.ones((7, 2)), "tau": 1.0}

WRONG = [
    ({"queries": jnp.ones(3)}, ValueError, r"`queries` must be points.*got queries \(3,\), keys \(7, 3\)"),
    ({"keys": jnp.ones(3)}, ValueError, r"`keys` must be points.*got queries \(5, 3\), keys \(3,\)"),
    ({"values": jnp.asarray(1.0)}, ValueError, r"`values` must be weights.*values \(\)"),
    ({"keys": jnp.ones((7, 2))}, ValueError, r"same dimension; got queries \(5, 3\), keys \(7, 2\)"),
    (
        {"queries": jnp.ones((5, 0)), "keys": jnp.ones((7, 0))},
        ValueError,
        r"at least one dimension; got queries \(5, 0\)",
    ),
    (
        {"values": jnp.ones((5, 2))},
        ValueError,
        r"one row for each key; got .*values \(5, 2\)\. The last two axes of values are .* \(…, N, C\)\.(?! Weights)",
    ),
    (
        {"values": jnp.ones(5)},
        ValueError,
        r"one row for each key; got .*values \(5,\)\. Weights are one for each key, \(7,\)",
    ),
    (
        {"values": jnp.ones((2, 7))},
        ValueError,
        r"got .*values \(2, 7\).*Weights in batches need .*values\[\.\.\., None\]",
    ),
    (
        {"queries": jnp.ones((2, 5, 3)), "keys": jnp.ones((4, 7, 3))},
        ValueError,
        r"must broadcast .*got queries \(2, 5, 3\)",
    ),
    (
        {"queries": jnp.ones((2, 5, 3)), "tau": jnp.ones(3)},
        ValueError,
        r"`tau` against them; got .*tau \(3,\).*in each dimension scale the points: queries \* jnp.sqrt\(tau\)",
    ),
    (
        {"queries": jnp.ones((2, 5, 3)), "tau": jnp.ones(4)},
        ValueError,
        r"got .*tau \(4,\)\. Add axes of length 1\.(?! For)",
    ),
    ({"queries": jnp.ones((5, 3), int)}, TypeError, r"got queries int64.*queries.astype\(jnp.float32\)"),
    ({"values": jnp.ones((7, 2), complex)}, TypeError, r"got values complex128.*values\.real and values\.imag"),
    ({"keys": np.ones((7, 3), complex)}, TypeError, r"got keys complex128.*\[keys\.real, keys\.imag\]"),
    ({"keys": jnp.ones((7, 3), bool)}, TypeError, "got keys bool"),
    ({"keys": jnp.ones((7, 3), jnp.float8_e4m3fn)}, TypeError, "got keys float8_e4m3fn"),
    (
        {"queries": [[1.0, 2.0, 3.0]]},
        TypeError,
        r"got list\. Convert with jnp.asarray\(queries, jnp.float32\): only `tau`",
    ),
    ({"values": 1}, TypeError, r"got int\. For all alike jnp.full\(number, 1\)"),
    ({"tau": 0.0}, ValueError, r"positive and finite in float\d\d; got tau 0\.0"),
    ({"tau": -1}, ValueError, r"positive and finite in float\d\d; got tau -1"),
    ({"tau": float("nan")}, ValueError, r"positive and finite in float\d\d; got tau nan"),
    ({"tau": float("inf")}, ValueError, r"positive and finite in float\d\d; got tau inf"),
    ({"tau": np.array([1.0, -2.0])}, ValueError, r"positive and finite in float\d\d; got tau \[ 1\. -2\.\]"),
    ({"tau": jnp.asarray(-1.0)}, ValueError, r"positive and finite in float\d\d; got tau -1\.0"),
    ({"tau": 1e309}, ValueError, r"positive and finite in float\d\d; got tau inf"),
    ({"tau": 10**400}, ValueError, r"positive and finite in float\d\d; got tau 1000"),
    ({"tau": np.zeros((), [("a", "f4")])}, TypeError, "real number or array; got tau array"),
    ({"queries": torch.ones(5, 3)}, TypeError, r"got queries torch.float32.*jnp.from_dlpack\(queries\).*torch_backend"),
    ({"queries": jax.random.key(0)}, TypeError, "got queries key<fry>.*`rng_key`"),
    ({"tau": "wide"}, TypeError, "real number or array; got tau 'wide'"),
    ({"tau": None}, TypeError, "real number or array; got tau None"),
    ({"tau": jnp.asarray(1j)}, TypeError, "real number or array; got tau Array"),
]


@pytest.mark.parametrize("function", [gauss_sum, gauss_sum_dense, gauss_sum_blocked, explain])
@pytest.mark.parametrize("change, error, message", WRONG)
def test_wrong_arguments_are_named(function, change, error, message):
    with pytest.raises(error, match=f"`jaxgauss.{function.__name__}`: .*{message}"):
        function(**(GOOD | change))


@pytest.mark.parametrize("change, error, message", [x for x in WRONG if "tau" not in x[0] and x[1] is ValueError])
def test_shapes_are_checked_in_a_trace_too(change, error, message):
    with pytest.raises(error, match=message):
        jax.jit(gauss_sum)(**(GOOD | change))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"method": "softmax"}, "`method` must be one of auto, reweight, .*got 'softmax'"),
        ({"precision": "float8"}, "`precision` must be one of auto, float16, .*got 'float8'"),
        ({"backend": "triton"}, "`backend` must be one of auto, flash, .*got 'triton'"),
        ({"backend": "flash"}, "backend 'flash' runs on cuda; got points on cpu"),
        ({"backend": "cudnn", "method": "reweight"}, "backend 'cudnn' runs on cuda; got points on cpu"),
        ({"method": "blocked", "precision": "float16"}, "runs in XLA.*got precision 'float16'"),
        ({"method": "dense", "backend": "cpu"}, "runs in XLA.*backend 'cpu'"),
    ],
)
@pytest.mark.parametrize("function", [gauss_sum, explain])
def test_options_that_cannot_be_met_are_refused(function, options, message):
    with pytest.raises(ValueError, match=message):
        function(**GOOD, **options)
    with pytest.raises(ValueError, match=message):
        jax.jit(lambda q: function(q, *list(GOOD.values())[1:], **options))(GOOD["queries"])


def test_float64_by_blocks_needs_the_64_bit_mode():
    with jax.enable_x64(False):
        operands = [np.ones((4, 2), np.float32)] * 3
        with pytest.raises(ValueError, match="64-bit mode; got it switched off"):
            gauss_sum(*operands, method="blocked", precision="float64")
        assert gauss_sum(*operands, method="rescale", precision="float64").dtype == jnp.float32


@pytest.mark.parametrize("tau", [1e39, 1e-46, 2**200, np.float64(1e300)])
def test_tau_is_checked_in_the_dtype_that_it_is_used_in(tau):
    with jax.enable_x64(False), pytest.raises(ValueError, match="positive and finite in float32; got tau"):
        gauss_sum(np.ones((5, 3), np.float32), np.ones((7, 3), np.float32), np.ones((7, 2), np.float32), tau)


@pytest.mark.parametrize("tau", [2, np.int64(2**32 + 4), 2**40, np.uint8(3), np.array([1, 2**33])])
def test_integers_of_any_size_are_bandwidths(tau):
    points = np.linspace(0, 1e-5, 8, dtype=np.float32).reshape(4, 2)
    with jax.enable_x64(False):
        result = gauss_sum(points, points, np.ones((4, 1), np.float32), tau)
    exact = gauss_sum64(points, points, np.ones((4, 1)), np.asarray(tau, float))
    assert relative_error(result, exact) < 1e-5


def test_a_traced_tau_is_not_read():
    assert jnp.isnan(jax.jit(lambda tau: gauss_sum(**(GOOD | {"tau": tau})))(-1.0)).all()


def test_options_are_keywords():
    with pytest.raises(TypeError, match="positional"):
        gauss_sum(*GOOD.values(), "rescale")


TAKE_TAU = sorted(
    name
    for name, function in vars(jaxgauss).items()
    if inspect.isfunction(function) and "tau" in inspect.signature(function).parameters
)


@pytest.mark.parametrize("name", TAKE_TAU)
def test_another_name_of_the_bandwidth_is_told_how_to_convert(name):
    message = rf"`jaxgauss.{name}`: .* `tau`, 1/σ²; got {{}}\. Pass tau=jaxgauss.tau_from_bandwidth\({{}}\)"
    for option, convention in (("sigma", "sigma"), ("gamma", "gamma, 'gamma'")):
        with pytest.raises(TypeError, match=message.format(f"{option} 2.0", convention)):
            getattr(jaxgauss, name)(**{option: 2.0})


def test_many_functions_take_tau():
    assert {"gauss_sum", "mmd_squared", "mmd_test", "svgd", "kde_logpdf"} <= set(TAKE_TAU)


@pytest.mark.parametrize("rng_key", [0, None, jnp.ones(2), np.uint32(3), jax.random.split(jax.random.key(0))])
def test_what_is_no_random_key_is_refused(rng_key):
    x = jnp.ones((4, 2))
    functions = {
        "mmd_test": lambda: jaxgauss.mmd_test(x, x, 1.0, rng_key=rng_key),
        "estimate_error": lambda: jaxgauss.estimate_error(x, x, x, rng_key=rng_key),
    }
    if rng_key is not None:
        functions["median_heuristic"] = lambda: jaxgauss.median_heuristic(x, rng_key=rng_key)
    for name, function in functions.items():
        with pytest.raises(
            TypeError, match=rf"`jaxgauss.{name}`: `rng_key` must be one random key; got .*random.key\(0\)"
        ):
            function()


@pytest.mark.parametrize("rng_key", [jax.random.key(0), jax.random.PRNGKey(0), np.asarray(jax.random.PRNGKey(0))])
def test_random_keys_of_either_kind_are_taken(rng_key):
    assert jaxgauss.median_heuristic(jnp.ones((4, 2)), rng_key=rng_key, max_points=2) == 1


@pytest.mark.parametrize("weights", [np.eye(5)[0], jnp.eye(5)[1] / 3, np.zeros(5)])
def test_a_mask_without_pairs_has_no_unbiased_estimate(weights):
    """It would be 0/0: refused where it can be seen; under jit it is NaN, not a number that looks like one."""
    x = jnp.arange(10.0).reshape(5, 2)
    functions = {
        "mmd_squared": lambda a, **o: jaxgauss.mmd_squared(x, x + 1, 1.0, y_weights=a, **o),
        "embedding_norm_squared": lambda a, **o: jaxgauss.embedding_norm_squared(x, 1.0, weights=a, **o),
        "ksd_squared": lambda a, **o: jaxgauss.ksd_squared(x, -x, 1.0, weights=a, **o),
    }
    for name, function in functions.items():
        number = np.count_nonzero(weights)
        with pytest.raises(ValueError, match=rf"`jaxgauss.{name}`: .*weights` must weigh pairs .* got {number} of 5"):
            function(weights, estimator="unbiased")
        assert jnp.isnan(jax.jit(lambda a, f=function: f(a, estimator="unbiased"))(weights))
        assert jnp.isfinite(function(weights))


def test_results_print_in_a_line():
    x, rng_key = jnp.linspace(0, 1, 40, dtype="float32").reshape(20, 2), jax.random.key(0)
    test = jaxgauss.mmd_test(x, x + 9, 1.0, rng_key=rng_key, num_permutations=99)
    assert repr(test) == f"KernelTest(p_value=0.01, statistic={float(test.statistic):.4g}, null_statistics=float32[99])"
    both = jax.vmap(lambda x: jaxgauss.mmd_test(x, x, 1.0, rng_key=rng_key, num_permutations=99))(jnp.stack([x, x]))
    assert repr(both) == "KernelTest(p_value=float32[2], statistic=float32[2], null_statistics=float32[2,99])"
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
    assert seen == ["KernelTest(p_value=float64[], statistic=float64[], null_statistics=float32[20,2])"]
    chunks = jaxgauss.KeyChunks(np.ones((10, 3)), np.ones(10, "float32"), size=4)
    assert repr(chunks) == "KeyChunks(keys float64[10,3], values float32[10], size=4)"


def test_what_shapes_tell_is_found_once_and_values_are_looked_at_every_time(monkeypatch):
    q, v = jnp.ones((12, 3)), jnp.ones(12)
    calls, original = [], checked._checked
    monkeypatch.setattr(checked, "_checked", lambda *x: (calls.append(x[0].method), original(*x))[1])
    checked._remembered.cache_clear()
    for tau in (1.0, 2, jnp.asarray(3.0), np.float32(4)):
        gauss_sum(q, q, v, tau)
    assert calls == ["auto"]
    for tau in (-1.0, 0, jnp.asarray(-1.0), np.asarray(np.nan), True * -1):
        with pytest.raises(ValueError, match="must be positive"):
            gauss_sum(q, q, v, tau)
    assert calls == ["auto"]
    gauss_sum(q, q, v, method="dense")
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
