"""2^x and e^x in float32."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgauss._arrays.exponential import SHORT, exp, exp2


@pytest.mark.parametrize("num", [SHORT, 2 * SHORT])
def test_every_exponent_has_all_digits(num):
    """Those of XLA's 2^x, which sums of few points take, have one unit less for every power of two of the exponent."""
    x = np.linspace(-125.5, 127.5, num, dtype=np.float32)
    errors = np.asarray(jax.jit(exp2)(jnp.asarray(x)), np.float64) / np.exp2(x.astype(np.float64)) - 1
    assert np.abs(errors).max() < (1e-7 if num > SHORT else 8e-6)
    errors = np.asarray(exp(jnp.asarray(x / 2)), np.float64) / np.exp((x / 2).astype(np.float64)) - 1
    assert (np.abs(errors) < 1.2e-7 * np.maximum(1, np.abs(x / 2))).all()
    assert np.abs(errors.mean()) < 1e-7


@pytest.mark.parametrize("fill", [0, SHORT])
def test_what_is_no_normal_number(fill):
    ends = [0, -126.5, -127, -127.5, -150, -1e30, -np.inf, 127.99, 128, 129, 1e30, np.inf, np.nan]
    found = np.asarray(jax.jit(exp2)(jnp.asarray(ends + [0] * fill, "float32")))[: len(ends)]
    assert found[0] == 1
    assert (found[1:7] >= 0).all() and (found[1:7] < 2.0**-126).all() and (found[4:7] == 0).all()
    assert 2.0**127.9 < found[7] < np.inf and np.isposinf(found[8:12]).all() and np.isnan(found[12])


def test_derivatives_of_every_order():
    x, ones = jnp.linspace(-20, 3, 2 * SHORT, dtype="float32"), jnp.ones(2 * SHORT, "float32")
    wide = np.asarray(x, np.float64)

    def slope(function):
        return lambda x: jax.jvp(function, (x,), (ones,))[1]

    for derivative in (slope(exp), slope(slope(exp))):
        np.testing.assert_allclose(derivative(x), np.exp(wide), rtol=3e-6)
        np.testing.assert_allclose(jax.vjp(derivative, x)[1](ones)[0], np.exp(wide), rtol=3e-6)
    np.testing.assert_allclose(jax.vjp(exp2, x)[1](ones)[0], np.log(2) * np.exp2(wide), rtol=3e-6)
