"""Every public function under the settings with which JAX's users debug, eager and jitted."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_both_modes import CALLS, DIFFERENTIABLE
from test_given import FUNCTIONS, MESH, V, W, Z, chunks, function

import jaxgauss

SETTINGS = {
    "transfer_guard": lambda: jax.transfer_guard("disallow"),
    "debug_nans": lambda: jax.debug_nans(True),
    "debug_infs": lambda: jax.debug_infs(True),
    "disable_jit": lambda: jax.disable_jit(),
    "enable_checks": lambda: jax.enable_checks(True),
    "checking_leaks": lambda: jax.checking_leaks(),
}  # strict promotion of dtypes and ranks is on in all tests
SLOW = {"disable_jit", "enable_checks", "checking_leaks"}
UNGUARDED = {"dask.gauss_sum", "lineax.gauss_operator"}  # tasks of Dask get NumPy's arrays; the case itself makes one
each_setting = pytest.mark.parametrize(
    "setting", [pytest.param(x, marks=[pytest.mark.slow] * (x in SLOW)) for x in SETTINGS]
)


@pytest.fixture(scope="module")
def operands():
    return [jnp.asarray(np.float32(x)) for x in (Z, Z[::-1] + 0.5, np.sin(Z), V, W)]


@each_setting
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_runs(operands, name, setting):
    """With the results that it has without the setting."""
    if setting == "transfer_guard" and name in UNGUARDED:
        pytest.skip("its case moves arrays itself")

    def call():
        if name == "mmd_estimate":  # its case cuts arrays, which moves numbers
            return jaxgauss.mmd_estimate(*cut, 1.0)
        return FUNCTIONS[name](function(name), *operands)

    cut = [chunks(x) for x in operands[:2]]
    usual = call()
    with SETTINGS[setting]():
        found = call()
    for x, y in zip(*map(jax.tree.leaves, (found, usual)), strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-5)


@each_setting
@pytest.mark.parametrize("name", ["kernel_sum", *DIFFERENTIABLE[::3]])
def test_gradients_run(operands, name, setting):
    """Of jitted functions, and of those with a kernel that has a kink."""
    x, *others = operands
    kernel = {"kernel": "matern12"} if name in ("kernel_sum", "mmd_squared") else {}

    def total(x):
        if kernel:
            call = getattr(jaxgauss, name)
            return call(x, others[0], *([others[2]] if name == "kernel_sum" else []), 1.0, **kernel).sum()
        return CALLS[name](function(name), x, *others).sum()

    usual = jax.jit(jax.grad(total))(x)
    with SETTINGS[setting]():
        found = jax.jit(jax.grad(lambda x: total(x)))(x)
    np.testing.assert_allclose(found, usual, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("queries, keys", [(3, 0), (0, 3)])
@pytest.mark.parametrize("kernel", ["gauss", "imq", "matern12"])
def test_sums_of_nothing_run_without_jit(queries, keys, kernel):
    """A loop over no blocks has no types of its own there."""
    x, y, v = jnp.ones((queries, 2), "float32"), jnp.ones((keys, 2), "float32"), jnp.ones((keys, 1), "float32")

    def sums(x):
        over_mesh = jaxgauss.kernel_sum_sharded(x, y, v, mesh=MESH, key_axis="data", kernel=kernel)
        return jaxgauss.kernel_sum(x, y, v, kernel=kernel), over_mesh

    with jax.disable_jit():
        found, pullback = jax.vjp(sums, x)
        assert [z.shape for z in found] == [(queries, 1)] * 2 and not any(z.any() for z in found)
        (slope,) = pullback(jax.tree.map(jnp.ones_like, found))
        assert slope.shape == x.shape and not slope.any()
