"""Sums of several Gaussians as one kernel: near points share one product, in the digits of each Gaussian by itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import formulas
import jaxgauss
from jaxgauss import mmd_squared
from jaxgauss._engines.products.several import MOST

LADDER = {
    "three": [0.5, 1.0, 2.0],
    "wide": [1e-6, 1e-2, 1.0],
    "two equal": [1.0, 1.0],
    "many": [*np.linspace(0.1, 1, 20)],
}


def exact(x, y, tau, a, b):
    """MMD², and its gradients of x, y and τ, in float64."""
    operands = x, y, a, b, np.float64(tau)
    operands = [z.requires_grad_() for z in formulas.tensors(*operands)]
    value = formulas.mmd("gauss", *operands, "biased")
    value.backward()
    return value.item(), *(operands[i].grad.numpy() for i in (0, 1, 4))


@pytest.mark.parametrize("ladder", LADDER)
@pytest.mark.parametrize(
    "num, dim, engine",
    [(9, 1, "dense"), (700, 5, "blocked"), *((90, 40, x) for x in ("dense", "blocked", "attention", "clusters"))],
)
def test_digits_are_those_of_float64(rng, num, dim, engine, ladder):
    """Of the value, and of gradients that sum all Gaussians at once and, with that of τ, each by itself."""
    x, y = (rng.normal(size=(n, dim)).astype("float32") / dim**0.5 for n in (num, num + 7))
    a, b = (rng.uniform(0.5, 1, n).astype("float32") for n in (num, num + 7))
    a, b = a / a.sum(), b / b.sum()
    tau = np.float32(LADDER[ladder])

    def loss(x, y, tau):
        return mmd_squared(x, y, tau, x_weights=a, y_weights=b, engine=engine)

    value, *right = exact(x, y, tau, a, b)
    for which in ((0, 1), (0, 2)):
        found, slopes = jax.jit(jax.value_and_grad(loss, which))(x, y, tau)
        assert abs(found.item() - value) < 1e-6
        for i, slope in zip(which, slopes, strict=True):
            sizes = np.abs(right[i]).max()
            assert np.abs(np.asarray(slope) - right[i]).max() < 4e-6 * max(sizes, 1 / num if i < 2 else 1), i


@pytest.mark.parametrize("name", ["mmd_flow_velocity", "mmd_witness", "svgd_direction", "ksd_squared", "hsic"])
def test_the_mean_over_bandwidths_is_that_of_each(rng, name):
    """In all methods, also mapped over samples, over bandwidths and over both."""
    x, y = (jnp.asarray(rng.normal(size=(2, 40, 18)), "float32") / 4 for _ in range(2))
    tau = jnp.asarray([[0.3, 1.0, 2.0], [0.1, 0.2, 3.0]], "float32")

    def call(x, y, tau):
        function = getattr(jaxgauss, name)
        return function(x, x, y, tau) if name == "mmd_witness" else function(x, y, *[tau] * (1 + (name == "hsic")))

    def each(x, y, tau):
        return call(x, y, tau) if name == "hsic" else jnp.mean(jnp.stack([call(x, y, t) for t in tau]), 0)

    right = np.stack([each(*z) for z in zip(x, y, tau, strict=True)])
    size = 2e-6 * np.abs(right).max()
    np.testing.assert_allclose(jax.jit(jax.vmap(call))(x, y, tau), right, atol=size)
    np.testing.assert_allclose(jax.jit(jax.vmap(call, (0, 0, None)))(x, y, tau[0])[0], right[0], atol=size)
    of_taus = jax.jit(jax.vmap(call, (None, None, 0)))(x[1], y[1], tau)
    np.testing.assert_allclose(of_taus[1], right[1], atol=size)


def products(function, *operands):
    """The operations of each product of two matrices in a program, of its branches too."""

    def walk(jaxpr):
        for equation in jaxpr.eqns:
            if equation.primitive.name == "dot_general":
                (axes, _), _ = equation.params["dimension_numbers"]
                shape = equation.invars[0].aval.shape
                yield equation.outvars[0].aval.size * int(np.prod([shape[i] for i in axes]))
            for x in jax.tree.leaves([*equation.params.values()], is_leaf=lambda x: hasattr(x, "eqns")):
                x = getattr(x, "jaxpr", x)
                if hasattr(x, "eqns"):
                    yield from walk(x)

    return sum(walk(jax.make_jaxpr(function)(*operands).jaxpr))


def test_gaussians_share_their_products(rng):
    """Three take as many operations as one, and no others than one more column; more than MOST are summed in turn."""
    x, y = (jnp.asarray(rng.normal(size=(200, 60)), "float32") / 8 for _ in range(2))

    def operations(num):
        tau = jnp.linspace(0.5, 1, num) if num > 1 else 1.0
        return products(jax.value_and_grad(lambda x: mmd_squared(x, y, tau, engine="dense")), x)

    one = operations(1)
    assert operations(3) < 1.5 * one and operations(MOST + 1) > MOST / 2 * one
