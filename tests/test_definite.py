"""Kernels of one's own that are not positive definite, which some functions need, are noticed."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxgauss as jg
import jaxgauss.lineax
from jaxgauss import Kernel
from jaxgauss._kernels.definite import indefinite

WENDLAND = Kernel(lambda u: jnp.maximum(0, 1 - jnp.sqrt(u)) ** 4 * (4 * jnp.sqrt(u) + 1))
TRIANGLE = Kernel(lambda u: jnp.maximum(0, 1 - jnp.sqrt(u)))
DIFFERENCE = Kernel(lambda u: jnp.exp(-u / 2) - 0.5 * jnp.exp(-u / 8))  # of equal integrals on a line
MULTIQUADRIC = Kernel(lambda u: -jnp.sqrt(1 + u))
BOX = Kernel(lambda u: (u < 1).astype(u.dtype))


def plate(u):
    return jnp.where(u > 0, u * jnp.log(jnp.where(u > 0, u, 1)) / 2, 0)


# A kernel, and in how many dimensions it is positive definite at most, conditionally if it says so
KERNELS = {
    "gauss": (Kernel(lambda u: jnp.exp(-u / 2)), np.inf),
    "in float32": (Kernel(lambda u: jnp.exp(-u.astype("float32")).astype(u.dtype)), np.inf),
    "student": (Kernel(lambda u: (1 + u / 3) ** -2), np.inf),
    "laplace": (Kernel(lambda u: jnp.exp(-jnp.sqrt(u))), np.inf),
    "constant": (Kernel(jnp.ones_like), np.inf),
    "multiquadric": (Kernel(MULTIQUADRIC.profile, conditional=True), np.inf),
    "squared distance": (Kernel(lambda u: -u, conditional=True), np.inf),
    "cosine": (Kernel(lambda u: jnp.cos(jnp.sqrt(u))), 1),
    "triangle": (TRIANGLE, 1),
    "difference": (DIFFERENCE, 1),
    "box": (BOX, 0),
    "fourth power": (Kernel(lambda u: jnp.exp(-(u**2))), 0),
    "parabola": (Kernel(lambda u: jnp.maximum(0, 1 - u)), 0),
    "thin plate": (Kernel(plate, conditional=True), 0),
    "cubic": (Kernel(lambda u: u**1.5, conditional=True), 0),
    "negative": (Kernel(lambda u: -jnp.exp(-u)), 0),
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_is_positive_definite_in_so_many_dimensions(name):
    kernel, most = KERNELS[name]
    for dim in (1, 2, 3, 70):
        assert (indefinite(kernel, dim) is None) == (dim <= most)


def test_named_kernels_are_not_looked_at_and_what_is_no_number_shows_nothing():
    for kernel in (*jg._kernels.kernels.KERNELS.values(), jg.rational_quadratic(0.3)):
        assert indefinite(kernel, 2) is None
    assert indefinite(Kernel(lambda u: jnp.where(u > 0, u * jnp.nan, 1 + u)), 2) is None
    assert indefinite(WENDLAND, 3) is None
    assert indefinite(MULTIQUADRIC, 2).is_conditional and not indefinite(BOX, 2).is_conditional


X = np.random.default_rng(0).normal(size=(30, 2))
KEY = jax.random.key(0)
CALLS = {
    "mmd_squared": lambda k: jg.mmd_squared(X, X + 1, 1.0, kernel=k),
    "embedding_norm_squared": lambda k: jg.embedding_norm_squared(X, 1.0, kernel=k),
    "mmd_squared_matrix": lambda k: jg.mmd_squared_matrix(X, 1.0, segments=np.arange(30) % 3, kernel=k),
    "mmd_estimate": lambda k: jg.mmd_estimate(X, X + 1, 1.0, kernel=k),
    "mmd_test": lambda k: jg.mmd_test(X, X + 1, 1.0, rng_key=KEY, num_permutations=9, kernel=k),
    "mmd_flow_velocity": lambda k: jg.mmd_flow_velocity(X, X + 1, 1.0, kernel=k),
    "ksd_squared": lambda k: jg.ksd_squared(X, -X, 1.0, kernel=k),
    "ksd_test": lambda k: jg.ksd_test(X, -X, 1.0, rng_key=KEY, num_bootstrap=9, kernel=k),
    "svgd_direction": lambda k: jg.svgd_direction(X, -X, 1.0, kernel=k),
    "kernel_herding": lambda k: jg.kernel_herding(X, 1.0, 2, kernel=k),
    "lineax.gauss_operator": lambda k: jaxgauss.lineax.gauss_operator(X, 1.0, kernel=k),
}


@pytest.mark.parametrize("name", CALLS)
def test_functions_that_need_a_positive_definite_kernel_warn(name):
    said = rf"^`jaxgauss.{name}`: `kernel` should be positive definite, .* in 2 dimensions has the eigenvalue -"
    with pytest.warns(UserWarning, match=said) as seen:
        CALLS[name](DIFFERENCE)
    assert {x.filename for x in seen} == {__file__}


def test_a_warning_knows_conditional_kernels_and_programs():
    """Also while JAX traces; with the fix that fits."""
    with pytest.warns(UserWarning, match="pass conditional=True to its `Kernel`"):
        negative = jax.jit(lambda x: jg.mmd_squared(x, x + 1, 1.0, kernel=MULTIQUADRIC))(X)
    assert float(negative) > 0  # the sums of weights are equal
    with pytest.warns(UserWarning, match="for weights that add up to zero, .*`kernel_sum` takes any kernel"):
        negative = jg.mmd_squared(9 * X, 9 * X + 1, 1.0, kernel=KERNELS["thin plate"][0])
    assert float(jg.mmd_squared(X, X + 1, 1.0, kernel=KERNELS["multiquadric"][0])) > 0


def test_sums_take_any_kernel():
    """No warning is made: here it would be an error."""
    jg.kernel_sum(X, X, np.ones(30), kernel=DIFFERENCE)
    jg.kernel_mean(X, X, X, kernel=BOX)
    jg.mmd_witness(X, X, X + 1, 1.0, kernel=DIFFERENCE)
    jg.svgd(lambda x: -x, optax.sgd(0.1), kernel=DIFFERENCE)
