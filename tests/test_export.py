"""`jax.export`: what XLA computes leaves the process, with shapes that are not known yet, too."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from jaxgauss import explain, gauss_sum, gauss_sum_blocked, gauss_sum_dense, kde_logpdf, log_gauss_sum, mmd_squared
from oracle import assert_close, gauss_sum64, gradients64


def shapes(*sizes: str) -> list[jax.ShapeDtypeStruct]:
    scope = export.SymbolicScope()
    return [jax.ShapeDtypeStruct(export.symbolic_shape(x, scope=scope), "float32") for x in sizes]


def exported(function, *specs):
    """The program as others get it."""
    return export.export(jax.jit(function))(*specs).call


SIZES = [(5, 7), (1100, 1), (1025, 2049)]  # few points, one key, several tiles that do not divide


def test_sums_of_symbolic_shapes(rng):
    methods = "auto", "dense", "differences"
    call = exported(lambda *x: [gauss_sum(*x, 2.0, engine=m) for m in methods], *shapes("m, 3", "n, 3", "n, 2"))
    for m, n in SIZES:
        operands = [rng.normal(size=s).astype("float32") for s in ((m, 3), (n, 3), (n, 2))]
        assert_close(call(*operands), [gauss_sum64(*operands, np.asarray(2.0))] * len(methods), 2e-6)


@pytest.mark.parametrize("method", ["blocked", "dense"])
def test_gradients_of_symbolic_shapes_in_batches(rng, method):
    loss = jax.grad(lambda *x: jnp.sin(gauss_sum(*x, engine=method)).sum(), (0, 1, 2, 3))
    call = exported(loss, *shapes("b, m, 3", "b, n, 3", "n, 2", "b"))
    for batch, m, n in ((2, 5, 7), (3, 1100, 3)):
        operands = [rng.normal(size=s).astype("float32") for s in ((batch, m, 3), (batch, n, 3), (n, 2))]
        operands.append(np.linspace(0.5, 1, batch, dtype="float32"))
        assert_close(call(*operands), gradients64(*operands, np.cos(gauss_sum64(*operands))), 1e-5)


def test_others_of_symbolic_shapes(rng):
    def others(x, y, w):
        sums = gauss_sum_dense(x, y, w), gauss_sum_blocked(x, y, w), log_gauss_sum(x, y, jnp.log(w))
        slope = jax.grad(lambda x: gauss_sum(x, y, w).sum())(x)
        return *sums, slope, kde_logpdf(x, y, 1.0, weights=w), mmd_squared(x, y, 1.0, y_weights=w / 400)

    operands = [rng.uniform(0.1, 1, size=s).astype("float32") for s in ((30, 3), (1200, 3), (1200,))]
    found = exported(others, *shapes("m, 3", "n, 3", "n"))(*operands)
    assert_close(found, jax.jit(others)(*(x.astype("float64") for x in operands)), 1e-5)


def test_the_plan_for_symbolic_shapes_says_why():
    plan = explain(*shapes("m, 3", "n, 3", "n"))
    assert plan.name == "blocked" and "symbolic shapes" in plan.reason
    with pytest.raises(ValueError, match=r"kernels take no symbolic shapes; got Attention\(\)\. Use engine='auto'"):
        explain(*shapes("m, 3", "n, 3", "n"), engine="rescale")


def test_a_program_with_a_callback_is_refused():
    """To PyTorch, in `vmap` too, to finufft, or to what sums far points; the same functions run where they are."""
    points, values = np.ones((5, 3), "float32"), np.ones((5, 2), "float32")
    many = tuple(np.ones((1200, width), "float32") for width in (3, 3, 2))
    rescaled = functools.partial(gauss_sum, engine="rescale")
    calls = [
        (gauss_sum, many),
        (functools.partial(gauss_sum, engine="fourier"), many),
        (mmd_squared, (*many[:2], np.float32(1))),
        (lambda *x: kde_logpdf(*x, 1.0), many[:2]),
        (rescaled, (points, points, values)),
        (jax.vmap(rescaled, (0, None, None)), (points[None], points, values)),
        (jax.grad(lambda *x: rescaled(*x).sum()), (points, points, values)),
    ]
    for function, operands in calls:
        specs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in operands]
        with pytest.raises(
            ValueError, match=r"must run in XLA alone; got one with a callback, by which PyTorch.*engine='blocked'"
        ):
            exported(function, *specs)
        assert np.isfinite(jax.jit(function)(*operands)).all()
    exported(functools.partial(gauss_sum, engine="blocked"), *specs)
