"""Bad input: one test a message, before anything runs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxgauss import explain, gauss_sum, gauss_sum_blocked, gauss_sum_dense
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
    ({"values": jnp.ones((5, 2))}, ValueError, r"one row for each key; got .*values \(5, 2\)"),
    ({"values": jnp.ones(5)}, ValueError, r"one row for each key; got .*values \(5,\)"),
    (
        {"queries": jnp.ones((2, 5, 3)), "keys": jnp.ones((4, 7, 3))},
        ValueError,
        r"must broadcast .*got queries \(2, 5, 3\)",
    ),
    ({"queries": jnp.ones((2, 5, 3)), "tau": jnp.ones(3)}, ValueError, r"`tau` against them; got .*tau \(3,\)"),
    ({"queries": jnp.ones((5, 3), int)}, TypeError, "got queries int64"),
    ({"values": jnp.ones((7, 2), complex)}, TypeError, "got values complex128"),
    ({"keys": jnp.ones((7, 3), bool)}, TypeError, "got keys bool"),
    ({"keys": jnp.ones((7, 3), jnp.float8_e4m3fn)}, TypeError, "got keys float8_e4m3fn"),
    ({"queries": [[1.0, 2.0, 3.0]]}, TypeError, "got list.*jnp.asarray"),
    ({"tau": 0.0}, ValueError, r"positive and finite in float\d\d; got tau 0\.0"),
    ({"tau": -1}, ValueError, r"positive and finite in float\d\d; got tau -1"),
    ({"tau": float("nan")}, ValueError, r"positive and finite in float\d\d; got tau nan"),
    ({"tau": float("inf")}, ValueError, r"positive and finite in float\d\d; got tau inf"),
    ({"tau": np.array([1.0, -2.0])}, ValueError, r"positive and finite in float\d\d; got tau \[ 1\. -2\.\]"),
    ({"tau": jnp.asarray(-1.0)}, ValueError, r"positive and finite in float\d\d; got tau -1\.0"),
    ({"tau": 1e309}, ValueError, r"positive and finite in float\d\d; got tau inf"),
    ({"tau": 10**400}, ValueError, r"positive and finite in float\d\d; got tau 1000"),
    ({"tau": np.zeros((), [("a", "f4")])}, TypeError, "real number or array; got tau array"),
    ({"queries": torch.ones(5, 3)}, TypeError, "got queries torch.float32.*astype"),
    ({"queries": jax.random.key(0)}, TypeError, "got queries key"),
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
