"""Bad input: one test a message, before anything runs."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import jaxgauss
from jaxgauss import Kernel, KeyChunks, explain, gauss_sum
from jaxgauss._sums import checked
from oracle import gauss_sum64, relative_error

ones = lambda *shape: jnp.ones(shape)  # noqa: E731
GOOD = {"queries": ones(5, 3), "keys": ones(7, 3), "values": ones(7, 2), "tau": 1.0}
WRONG_SHAPES = [
    ({"queries": ones(3)}, r"`queries` must be points.*got queries \(3,\), keys \(7, 3\)"),
    ({"keys": ones(3)}, r"`keys` must be points.*got queries \(5, 3\), keys \(3,\)"),
    ({"values": jnp.asarray(1.0)}, r"`values` must be weights.*values \(\)"),
    ({"keys": ones(7, 2)}, r"same dimension; got queries \(5, 3\), keys \(7, 2\)"),
    ({"queries": ones(5, 0), "keys": ones(7, 0)}, r"at least one dimension; got queries \(5, 0\)"),
    ({"values": ones(5, 2)}, r"one row for each key; got .*values \(5, 2\)\. The last .* \(…, N, C\)\.(?! Weights)"),
    ({"values": ones(5)}, r"one row for each key; got .*values \(5,\)\. Weights are one for each key, \(7,\)"),
    ({"values": ones(2, 7)}, r"got .*values \(2, 7\).*Weights in batches need .*values\[\.\.\., None\]"),
    ({"queries": ones(2, 5, 3), "keys": ones(4, 7, 3)}, r"must broadcast .*got queries \(2, 5, 3\)"),
    (
        {"queries": ones(2, 5, 3), "tau": ones(3)},
        r"`tau` against them; got .*tau \(3,\).*in each dimension scale the points: queries \* jnp.sqrt\(tau\)",
    ),
    ({"queries": ones(2, 5, 3), "tau": ones(4)}, r"got .*tau \(4,\)\. Add axes of length 1\.(?! For)"),
]
WRONG_TAUS = [
    *((0.0, r"0\.0"), (-1, "-1"), (jnp.asarray(-1.0), r"-1\.0"), (np.array([1.0, -2.0]), r"\[ 1\. -2\.\]")),
    *((float("nan"), "nan"), (float("inf"), "inf"), (1e309, "inf"), (10**400, "1000")),
]
WRONG_DTYPES = [
    ({"queries": ones(5, 3).astype(int)}, r"got queries int64.*queries.astype\(jnp.float32\)"),
    ({"values": ones(7, 2).astype(complex)}, r"got values complex128.*values\.real and values\.imag"),
    ({"keys": np.ones((7, 3), complex)}, r"got keys complex128.*\[keys\.real, keys\.imag\]"),
    ({"keys": ones(7, 3).astype(bool)}, "got keys bool"),
    ({"keys": ones(7, 3).astype(jnp.float8_e4m3fn)}, "got keys float8_e4m3fn"),
    ({"queries": [[1.0, 2.0, 3.0]]}, r"got list\. Convert with jnp.asarray\(queries, jnp.float32\): only `tau`"),
    ({"values": 1}, r"got int\. For all alike jnp.full\(number, 1\)"),
    ({"tau": np.zeros((), [("a", "f4")])}, "real number or array; got tau array"),
    ({"queries": torch.ones(5, 3)}, r"got queries torch.float32.*jnp.from_dlpack\(queries\).*torch_backend"),
    ({"queries": jax.random.key(0)}, "got queries key<fry>.*`rng_key`"),
    ({"tau": "wide"}, "real number or array; got tau 'wide'"),
    ({"tau": None}, "real number or array; got tau None"),
    ({"tau": jnp.asarray(1j)}, "real number or array; got tau Array"),
]
SUMS = "gauss_sum gauss_sum_dense gauss_sum_blocked explain"


@pytest.mark.parametrize("change, message", [x for x in WRONG_SHAPES if "tau" not in x[0]])
def test_shapes_are_checked_in_a_trace_too(change, message):
    with pytest.raises(ValueError, match=message):
        jax.jit(gauss_sum)(**(GOOD | change))


POINTS, PAIR = {"points": ones(5, 3)}, {"x": ones(5, 3), "y": ones(4, 3), "tau": 1.0}
KEY, CHUNK = {"rng_key": jax.random.key(0)}, np.ones((4, 3))
TWO = {"x": ones(6, 3), "y": ones(6, 2), "tau_x": 1.0, "tau_y": 1.0}
GOOD_FOR = {
    "mmd_squared": PAIR,
    "energy_distance": {"x": ones(5, 3), "y": ones(4, 3)},
    "mmd_test": PAIR | KEY,
    "mmd_estimate": {"x": CHUNK, "y": CHUNK, "tau": 1.0},
    "hsic": TWO,
    "hsic_test": TWO | KEY,
    "svgd": {"grad_logdensity_fn": jnp.sin, "optimizer": None},
    "svgd_direction": {"particles": ones(5, 3), "scores": ones(5, 3), "tau": 1.0},
    "ksd_squared": POINTS | {"scores": ones(5, 3), "tau": 1.0},
    "ksd_test": POINTS | {"scores": ones(5, 3), "tau": 1.0} | KEY,
    "kde_logpdf": POINTS | {"samples": ones(5, 3), "tau": 1.0},
    "kde_score": POINTS | {"samples": ones(5, 3), "tau": 1.0},
    "kernel_herding": POINTS | {"tau": 1.0, "num": 2},
    "leave_one_out_tau": POINTS,
    "median_heuristic": POINTS,
    "log_gauss_sum": {"queries": ones(5, 3), "keys": ones(7, 3)},
    "tau_from_bandwidth": {"bandwidth": 1.0},
    **dict.fromkeys(SUMS.split(), GOOD),
}
REFUSED = [  # functions, what is changed of good arguments, and the message: of a ValueError, if nothing else is said
    *((SUMS, *wrong) for wrong in WRONG_SHAPES),
    *((SUMS, *wrong, TypeError) for wrong in WRONG_DTYPES),
    *((SUMS, {"tau": tau}, rf"positive and finite in float\d\d; got tau {said}") for tau, said in WRONG_TAUS),
    ("mmd_squared", {"x": ones(3)}, r"`x` must be points.*got x \(3,\), y \(4, 3\)"),
    ("mmd_squared", {"x": ones(2, 5, 3)}, r"`x` must be points.*got x \(2, 5, 3\).*vmap"),
    ("mmd_squared", {"y": ones(4, 2)}, r"same dimension; got x \(5, 3\), y \(4, 2\)"),
    ("mmd_squared", {"y": ones(0, 3)}, r"`y` must hold at least 1 points; got x \(5, 3\), y \(0, 3\)"),
    ("mmd_squared", {"y": ones(1, 3), "estimator": "unbiased"}, r"`y` must hold at least 2 points"),
    ("mmd_test", {"y": ones(1, 3)}, r"`y` must hold at least 2 points; got x \(5, 3\), y \(1, 3\)"),
    ("mmd_squared", {"x": jnp.ones((5, 3), int)}, "got x int64", TypeError),
    ("mmd_squared", {"x": [[1.0]]}, "got list", TypeError),
    ("mmd_squared ksd_test mmd_estimate", {"tau": -1.0}, r"`tau` must be positive and finite in float\d\d; got tau -1"),
    ("mmd_squared mmd_estimate", {"tau": ones(2, 2)}, r"a number or one-dimensional, for a mixture; got tau \(2, 2\)"),
    ("mmd_squared mmd_test hsic hsic_test", {"estimator": "best"}, "must be 'biased' or 'unbiased'; got 'best'"),
    ("mmd_estimate energy_distance", {"estimator": "best"}, "must be 'biased' or 'unbiased'; got 'best'"),
    ("mmd_squared", {"x_weights": ones(4)}, r"`x_weights` must hold one weight for each point of `x`; got .*\(4,\)"),
    ("mmd_squared", {"y_weights": [1.0]}, "`y_weights` must be a JAX or NumPy array; got list", TypeError),
    ("mmd_squared", {"precision": "half"}, "`precision` must be one of.*got 'half'"),
    ("mmd_squared", {"speed": "fast"}, "options must be among method, .*, key_axis; got speed", TypeError),
    ("hsic_test", {"method": "dense"}, "options must be among mesh, query_axis, key_axis; got method", TypeError),
    ("mmd_squared", {"kernel": "energy", "x_weights": ones(5)}, r"weights` must have one sum .*; got sums 5 and 1"),
    ("energy_distance", {"y_weights": ones(4)}, r"`x_weights` .* must have one sum .*; got sums 1 and 4"),
    ("mmd_squared mmd_estimate", {"kernel": "rbf"}, r"`kernel` must be one of gauss, .*; got 'rbf'"),
    ("mmd_squared", {"kernel": "imq", "method": "prescale"}, r"`method` must be one of auto, mixture.*'prescale'"),
    ("log_gauss_sum", {"kernel": "imq", "method": "rescale"}, r"must be one of auto, differences; got 'rescale'"),
    ("mmd_estimate", {"method": "slow"}, r"`method` must be one of .*got 'slow'"),
    ("svgd svgd_direction log_gauss_sum", {"kernel": "energy"}, r"`kernel` must be positive definite; got .*energy"),
    ("kernel_herding ksd_test", {"kernel": "energy"}, r"`kernel` must be positive definite; got .*energy"),
    ("ksd_squared ksd_test", {"kernel": "laplace"}, r"`kernel` must have second derivatives; got Kernel\(matern12\)"),
    ("kde_logpdf", {"kernel": "imq"}, r"`kernel` must have an integral .*imq\) in 3 dim"),
    ("leave_one_out_tau", {"kernel": Kernel(lambda u: jnp.exp(-u))}, r"integral .*Kernel\(<lambda>\) in 3 dim"),
    ("svgd_direction", {"scores": ones(4, 3)}, r"`scores` must be of the shape of `particles`; .*scores \(4, 3\)"),
    ("ksd_squared ksd_test", {"scores": ones(4, 3)}, r"must be of the shape of `points`; .*scores \(4, 3\)"),
    ("ksd_test", {"points": ones(1, 3), "scores": ones(1, 3)}, "`points` must hold at least 2 points"),
    ("kde_logpdf kde_score", {"weights": 1 - 2 * jnp.eye(5)[0]}, r"weights` must not .*got weights from -1.0 to 1.0"),
    ("kernel_herding", {"weights": -ones(5)}, "`weights` must not be negative"),
    ("hsic", {"weights": -ones(6)}, r"`weights` must not be negative, nor all zero; got weights from -1"),
    ("kde_logpdf", {"samples": ones(0, 3)}, r"`samples` must hold at least 1 points"),
    ("leave_one_out_tau", {"taus": 1.0}, r"`taus` must be one-dimensional; got taus \(\)"),
    ("median_heuristic", {"max_points": 1}, r"`max_points` must be an integer of at least 2; got 1"),
    ("median_heuristic", {"points": ones(1, 3)}, r"`points` must hold at least 2 points; got points \(1, 3\)"),
    ("mmd_squared", {"y_norm_squared": ones(3)}, r"`y_norm_squared` must be one number; got y_norm_squared \(3,\)"),
    ("kernel_herding", {"num": 6}, r"`num` must be at most the number of points; got num 6, points \(5, 3\)"),
    ("kernel_herding", {"num": 0}, "`num` must be a positive integer; got 0"),
    ("mmd_test hsic_test", {"num_permutations": 0}, r"`num_permutations` must be a positive integer; got 0"),
    ("ksd_test", {"num_bootstrap": 1.5}, "`num_bootstrap` must be a positive integer; got 1.5"),
    ("ksd_test", {"flip_probability": 1.0}, "`flip_probability` must lie between 0 and 1; got 1.0"),
    ("mmd_test hsic_test", {"resampling": "boot"}, r"`resampling` must be 'permutation' or 'wild'; got 'boot'"),
    ("mmd_test", {"resampling": "wild"}, r".*must be of one size; got x \(5, 3\), y \(4, 3\)"),
    ("ksd_test", {"estimator": "biased", "tau": np.ones(2)}, r"several .* must go with .* got 'biased', tau \(2,\)"),
    ("hsic_test", {"tau_x": np.ones(2), "estimator": "biased"}, r"several .* with .*'unbiased'; got .*, tau_x \(2"),
    ("hsic hsic_test", {"y": ones(5, 2)}, r"points of the same number; got x \(6, 3\), y \(5, 2\)"),
    ("hsic hsic_test", {"y": ones(6)}, r"`y` must be points.*got x \(6, 3\), y \(6,\)"),
    ("hsic hsic_test", {"tau_y": -1.0}, r"`tau_y` must be positive and finite in float\d\d; got tau_y -1"),
    ("hsic hsic_test", {"tau_x": ones(2, 2)}, r"`tau_x` must be a number or one-dim.*; got tau_x \(2, 2\)"),
    (
        "hsic",
        {"x": ones(3, 3), "y": ones(3, 2), "estimator": "unbiased"},
        r"at least 4 points; got x \(3, 3\), y \(3, 2\)",
    ),
    ("hsic", {"estimator": "unbiased", "weights": jnp.eye(6)[0]}, r"must weigh four .* got 1 of 6 points with weight"),
    ("mmd_estimate", {"x": CHUNK[:, :2]}, r"points of the same dimension; got x \(4, 2\), y \(4, 3\)"),
    ("mmd_estimate", {"x": CHUNK[0]}, r"`x` must be points.*got x \(3,\)"),
    ("mmd_estimate", {"x": CHUNK[:1]}, r"`x` must hold at least 2 points; got x \(1, 3\)"),
    ("mmd_estimate", {"x": [CHUNK[:1]]}, r"`x` must hold at least 2 points; got x \(1, 3\)"),
    ("mmd_estimate", {"x": [CHUNK[:, :2]]}, r"points of the same dimension; got x \(4, 2\), y \(4, 3\)"),
    ("mmd_estimate", {"x": [CHUNK, CHUNK[:, :2]]}, r"chunks of one dimension, at least one; got dimensions \[2, 3\]"),
    ("mmd_estimate", {"x": []}, r"chunks of one dimension, at least one; got dimensions \[\]"),
    ("mmd_estimate", {"x": CHUNK.tolist()}, r"`x\[0\]` must be a JAX or NumPy array; got list", TypeError),
    ("mmd_estimate", {"x": [CHUNK[0]]}, r"`x\[0\]` must be points \(number, dimension\); got x\[0\] \(3,\)"),
    ("mmd_estimate", {"y": [CHUNK, CHUNK.astype(int)]}, r"`y\[1\]` must be of dtype .*got y\[1\] int64", TypeError),
    ("mmd_estimate", {"y": KeyChunks(CHUNK, CHUNK)}, r"`y\[0\]` must .*got a tuple\. Pass the points alone", TypeError),
    (
        "mmd_estimate",
        {"x": iter([CHUNK])},
        r"read again and again; got list_iterator\. Pass a list, or a fun",
        TypeError,
    ),
    ("mmd_estimate", {"x": 3.0}, r"`x` must be .*read again and again; got float", TypeError),
    ("mmd_estimate", {"x": lambda: None}, r"`x` must be .*read again and again; got function", TypeError),
    ("mmd_estimate", {"x": [CHUNK], "tau": 0.0}, r"`tau` must be positive and finite.*got tau 0.0"),
    ("mmd_estimate", {"progress": True}, r"`progress` must be False for arrays.*got True\. Pass chunks"),
    ("mmd_estimate", {"mesh": None, "saved": 1}, r"options must be among .*got saved", TypeError),
    ("mmd_estimate", {"x": [CHUNK], "mesh": None}, r"must be among method, precision, backend; got mesh", TypeError),
    ("tau_from_bandwidth", {"convention": "foo"}, r"`convention` must be one of sigma.*got 'foo'"),
    ("tau_from_bandwidth", {"bandwidth": -1.0}, "`bandwidth` must be positive; got -1"),
]


@pytest.mark.parametrize("names, change, message, error", [(*wrong, ValueError)[:4] for wrong in REFUSED])
def test_wrong_arguments_are_named(names, change, message, error):
    for name in names.split():
        with pytest.raises(error, match=f"`jaxgauss.{name}`: .*{message}"):
            getattr(jaxgauss, name)(**(GOOD_FOR[name] | change))


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
        message = rf"`jaxgauss.{name}`: `rng_key` must be one random key; got .*random.key\(0\)"
        with pytest.raises(TypeError, match=message):
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
