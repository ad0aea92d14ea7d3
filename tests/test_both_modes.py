"""Forward mode, reverse mode, and one over the other, against the dense sum under the same transformations."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_given import FUNCTIONS

import jaxgauss
from jaxgauss import gauss_sum
from oracle import assert_close, in_plain_jax, problem, relative_error


def leaves(result) -> list[np.ndarray]:
    return [np.asarray(x) for x in jax.tree.leaves(result)]


def loss(function):
    return lambda *operands: jnp.sin(function(*operands)).sum()


def gradients(function, *operands):
    return jax.grad(loss(function), (0, 1, 2, 3))(*operands)


def jvp(function, *operands):
    return jax.jvp(function, operands, tuple(jnp.cos(x) for x in operands))


TRANSFORMS = {
    "linearize of jit": lambda f, *x: jax.linearize(jax.jit(f), *x)[1](*(jnp.cos(y) for y in x)),
    "jacfwd": lambda f, *x: jax.jacfwd(f, (0, 1, 2, 3))(*x),
    "reverse over forward": lambda f, *x: jax.jacrev(jax.jacfwd(loss(f), 3), 0)(*x),
    "forward over forward": lambda f, *x: jax.jacfwd(jax.jacfwd(loss(f), 3), (0, 1))(*x),
    "vmap of hessian": lambda f, q, k, v, t: jax.vmap(lambda q, v: jax.hessian(loss(f))(q, k, v, t))(
        jnp.stack([q, 2 * q]), jnp.stack([v, v + 1])
    ),
    "jvp of gradient": lambda f, *x: jvp(functools.partial(gradients, f), *x),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms_agree_with_dense(rng, transform):
    operands = [jnp.asarray(x) for x in problem(rng, 4, 5, 2, 1).operands]
    ours = functools.partial(gauss_sum, engine="rescale", forward_mode=True)
    results, exact = (jax.jit(functools.partial(TRANSFORMS[transform], f))(*operands) for f in (ours, in_plain_jax))
    assert_close(leaves(results), leaves(exact), 1e-10)


@pytest.mark.parametrize(("method", "channels"), [("rescale", 3), ("blocked", 40)])
def test_several_channels_by_moments_or_in_blocks(rng, method, channels):
    operands = [jnp.asarray(x) for x in problem(rng, 23, 31, 3, channels).operands]
    ours = functools.partial(gauss_sum, engine=method, forward_mode=True)
    both = jax.jit(lambda f, *x: (jvp(f, *x), gradients(f, *x)), static_argnums=0)
    assert_close(*(leaves(both(f, *operands)) for f in (ours, in_plain_jax)), 1e-12)


def in_float64(operands):
    """The tangent in the same direction, to the last bit."""
    wide, directions = (tuple(y.astype(jnp.float64) for y in x) for x in (operands, map(jnp.cos, operands)))
    return jax.jvp(in_plain_jax, wide, directions)


def test_tangents_of_points_far_from_their_center(rng):
    """In float32, where a tangent of moments about the center would be lost."""
    near = problem(rng, 6, 7, 3, 1, dtype="float32")
    shift = np.array([3e4, 0, 0], np.float32)  # two clusters
    queries, keys = np.concatenate([near.queries, near.queries + shift]), np.concatenate([near.keys, near.keys + shift])
    operands = [jnp.asarray(x) for x in (queries, keys, np.concatenate([near.values] * 2), near.tau)]
    results = leaves(jvp(functools.partial(gauss_sum, forward_mode=True), *operands))
    assert_close(results, leaves(in_float64(operands)), 1e-5)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float16", 4e-3)])
def test_tangents_in_lower_precision(rng, dtype, tolerance):
    operands = [jnp.asarray(x, dtype) for x in problem(rng, 203, 113, 5, 1, positive=True).operands]
    ours = functools.partial(gauss_sum, engine="rescale", precision=dtype, forward_mode=True)
    results = leaves(jvp(ours, *operands))
    assert_close(results, leaves(in_float64(operands)), tolerance)


def test_value_and_tangent_take_two_calls_and_so_do_all_gradients(rng):
    operands = [jnp.asarray(x, jnp.float32) for x in problem(rng).operands]
    operands[2] = operands[2][:, :1]
    ours = functools.partial(gauss_sum, engine="rescale", forward_mode=True)
    for transform in (jvp, gradients):
        text = jax.jit(functools.partial(transform, ours)).lower(*operands).compile().as_text()
        assert text.count('custom_call_target="xla_buffer_python_cpu_callback"') == 2


def test_tangents_under_shard_map(rng):
    mesh = jax.make_mesh((1,), ("data",), devices=jax.devices()[:1], axis_types=(jax.sharding.AxisType.Auto,))
    rows, nowhere = jax.sharding.PartitionSpec("data"), jax.sharding.PartitionSpec()
    operands = [jnp.asarray(x) for x in problem(rng).operands]

    def local(*operands):
        return jax.lax.psum(gauss_sum(*operands, engine="rescale", forward_mode=True), "data")

    sharded = jax.shard_map(local, mesh=mesh, in_specs=(nowhere, rows, rows, nowhere), out_specs=nowhere)
    of_both = jax.jit(TRANSFORMS["jvp of gradient"], static_argnums=0)
    results, exact = (leaves(of_both(f, *operands)) for f in (sharded, in_plain_jax))
    assert_close(results, exact, 1e-12)


def test_nothing_to_sum_has_no_tangent():
    operands = jnp.ones((3, 2)), jnp.ones((0, 2)), jnp.ones((0, 1))
    primal, tangent = jax.jvp(functools.partial(gauss_sum, forward_mode=True), operands, operands)
    assert primal.shape == tangent.shape == (3, 1) and not (primal.any() or tangent.any())


CALLS = FUNCTIONS | {"mean_shift": lambda f, x, *_: f(x, x, 1.0).points}
REVERSE_ONLY = ["gauss_sum", "log_gauss_sum", "mmd_squared", "embedding_norm_squared", "mmd_witness"]
REVERSE_ONLY += ["mmd_flow_velocity", "svgd_direction", "ksd_squared", "kde_logpdf", "kde_score", "hsic"]
REVERSE_ONLY += ["kernel_mean", "kernel_sum", "mean_shift", "leave_one_out_tau"]


@pytest.mark.parametrize(
    "name, num",  # few points: one kernel matrix, which is kept; many: blocks of it
    [*((name, 24) for name in REVERSE_ONLY), ("gauss_sum", 1100), ("leave_one_out_tau", 1100)],
)
def test_the_default_refuses_at_any_size_and_says_what_to_do(name, num):
    x, w = jax.ShapeDtypeStruct((num, 2), "float32"), jax.ShapeDtypeStruct((num,), "float32")

    def tangent(x, w):
        return jax.jvp(lambda x: CALLS[name](getattr(jaxgauss, name), x, x, jnp.sin(x), w, w), (x,), (x,))[1]

    said = rf"`jaxgauss.{name}`: .* got a tangent float32\[{num},2\] by .*jacrev"
    with pytest.raises(TypeError, match=said) as error:
        jax.jit(tangent).lower(x, w)
    assert ("forward_mode=True" in str(error.value)) == (name in ("gauss_sum", "kernel_sum"))


@pytest.mark.parametrize("num", [5, 500])
@pytest.mark.parametrize("transform", [jax.hessian, jax.jacfwd, lambda f: lambda x: jax.linearize(f, x)[1](x)])
def test_the_default_refuses_without_jit_too(transform, num):
    x = jnp.ones((num, 2), jnp.float32)
    with pytest.raises(TypeError, match="forward_mode=True"):
        transform(lambda x: jaxgauss.gauss_sum(x, x, x[:, 0]).sum())(x)


def test_hessian_in_reverse_mode(rng):
    """As the error says."""
    x, y = (jnp.asarray(rng.normal(size=(n, 2))) for n in (4, 5))

    def dense(x):
        return sum(s * in_plain_jax(a, b, jnp.ones(len(b)) / len(b)).mean() for a, b, s in ((x, x, 1), (x, y, -2)))

    def ours(x):
        return jaxgauss.mmd_squared(x, y, 1.0)

    @jax.jit
    def found(x):
        product = jax.grad(lambda x: jnp.vdot(jax.grad(ours)(x), jnp.cos(y[:4])))(x)
        return jax.hessian(dense)(x), jax.jacrev(jax.grad(ours))(x), product

    expected, hessian, product = found(x)
    assert relative_error(hessian, expected) < 1e-11
    assert relative_error(product, jnp.einsum("ijkl,kl->ij", expected, jnp.cos(y[:4]))) < 1e-11
