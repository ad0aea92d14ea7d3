"""Forward mode, reverse mode, and one over the other, against the dense sum under the same transformations."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
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


MODES = pytest.mark.parametrize("forward_mode", [False, True])


@MODES
@pytest.mark.parametrize(("method", "channels"), [("rescale", 3), ("blocked", 40)])
def test_several_channels_by_moments_or_in_blocks(rng, method, channels, forward_mode):
    operands = [jnp.asarray(x) for x in problem(rng, 23, 31, 3, channels).operands]
    ours = functools.partial(gauss_sum, engine=method, forward_mode=forward_mode)
    both = jax.jit(lambda f, *x: (jvp(f, *x), gradients(f, *x)), static_argnums=0)
    assert_close(*(leaves(both(f, *operands)) for f in (ours, in_plain_jax)), 1e-12)


def in_float64(operands):
    """The tangent in the same direction, to the last bit."""
    wide, directions = (tuple(y.astype(jnp.float64) for y in x) for x in (operands, map(jnp.cos, operands)))
    return jax.jvp(in_plain_jax, wide, directions)


@MODES
def test_tangents_of_points_far_from_their_center(rng, forward_mode):
    """In float32, where a tangent of moments about the center would be lost."""
    near = problem(rng, 6, 7, 3, 1, dtype="float32")
    shift = np.array([3e4, 0, 0], np.float32)  # two clusters
    queries, keys = np.concatenate([near.queries, near.queries + shift]), np.concatenate([near.keys, near.keys + shift])
    operands = [jnp.asarray(x) for x in (queries, keys, np.concatenate([near.values] * 2), near.tau)]
    results = leaves(jvp(functools.partial(gauss_sum, forward_mode=forward_mode), *operands))
    assert_close(results, leaves(in_float64(operands)), 1e-5)


@MODES
@pytest.mark.parametrize("size, outlier", [(3e37, 0), (1, 1e30), (1e-3, 1e15)])
def test_tangents_of_large_values_and_of_an_outlier(rng, size, outlier, forward_mode):
    """In float32 they are finite where the tangent is."""
    given = problem(rng, 60, 130, 4, 5, dtype="float32")
    queries, keys, values = (jnp.asarray(x) for x in (given.queries, given.keys, size * given.values))
    keys = keys.at[2].add(outlier)

    def tangent(function, *operands):
        return jax.jvp(lambda q, v: function(q, operands[1], v, 0.5), operands[::2], tuple(map(jnp.sin, operands[::2])))

    ours = jax.jit(functools.partial(tangent, functools.partial(gauss_sum, forward_mode=forward_mode)))
    exact = tangent(in_plain_jax, *(x.astype("float64") for x in (queries, keys, values)))
    assert_close(leaves(ours(queries, keys, values)), leaves(exact), 1e-5)


@MODES
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float16", 4e-3)])
def test_tangents_in_lower_precision(rng, dtype, tolerance, forward_mode):
    operands = [jnp.asarray(x, dtype) for x in problem(rng, 203, 113, 5, 1, positive=True).operands]
    ours = functools.partial(gauss_sum, engine="rescale", precision=dtype, forward_mode=forward_mode)
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


@pytest.mark.parametrize("kernel", ["gauss", "imq", "matern12"])
@pytest.mark.parametrize("num, dim", [(7, 1), (2100, 1), (7, 5)])
@pytest.mark.parametrize("exclude_self", [False, True])
def test_tangents_by_default(rng, kernel, num, dim, exclude_self):
    """By moments, by differences and by the rules of gradients, transposed; of points with neighbours of their own."""
    x, v = jnp.asarray(rng.normal(size=(num, dim))), jnp.asarray(rng.normal(size=num))

    def ours(x, v, tau):
        return jaxgauss.kernel_sum(x, x, v, tau, kernel=kernel, exclude_self=exclude_self)

    def plain(x, v, tau):
        u = tau * jnp.square(x[:, None] - x[None]).sum(-1) + jnp.eye(num)  # no root of zero
        kappa = {"gauss": jnp.exp(-u / 2), "imq": (1 + u) ** -0.5, "matern12": jnp.exp(-jnp.sqrt(u))}[kernel]
        off = jnp.where(jnp.eye(num) == 1, 0.0 if exclude_self else 1.0, kappa)
        return off @ v

    directions = jnp.cos(x), jnp.sin(v), 0.3
    found, right = (jax.jit(lambda *x, f=f: jax.jvp(f, x, directions))(x, v, 1.5) for f in (ours, plain))
    assert_close(leaves(found), leaves(right), 1e-11)


def test_nothing_to_sum_has_no_tangent():
    operands = jnp.ones((3, 2)), jnp.ones((0, 2)), jnp.ones((0, 1))
    primal, tangent = jax.jvp(functools.partial(gauss_sum, forward_mode=True), operands, operands)
    assert primal.shape == tangent.shape == (3, 1) and not (primal.any() or tangent.any())


CALLS = FUNCTIONS | {"mean_shift": lambda f, x, *_: f(x, x, 1.0).points}
CALLS["mmd_squared_to_normal"] = lambda f, x, y, s, v, w: f(x, 1.0, weights=w)
CALLS["leave_one_out_tau"] = lambda f, x, y, s, v, w: f(x, np.ones(2)).scores
DIFFERENTIABLE = ["gauss_sum", "log_gauss_sum", "mmd_squared", "embedding_norm_squared", "mmd_witness"]
DIFFERENTIABLE += ["mmd_flow_velocity", "svgd_direction", "ksd_squared", "kde_logpdf", "kde_score", "hsic"]
DIFFERENTIABLE += ["kernel_mean", "kernel_sum", "log_kernel_sum", "energy_distance", "mean_shift", "leave_one_out_tau"]
DIFFERENTIABLE += ["mmd_squared_to_normal", "uniformity", "alignment", "drift"]


@pytest.mark.parametrize(
    "name, num",  # few points: one kernel matrix, which is kept; many: blocks of it
    [*((name, 24) for name in DIFFERENTIABLE), ("gauss_sum", 1100)],
)
def test_tangents_and_gradients_are_adjoint(rng, name, num):
    """⟨g, J v⟩ = ⟨Jᵀ g, v⟩, for points and weights."""
    x, y, d_x = (jnp.asarray(rng.normal(size=(num, 2))) for _ in range(3))
    w, d_w = jnp.full(num, 1 / num), jnp.sin(x[:, 0]) / num

    def call(x, w):
        return CALLS[name](getattr(jaxgauss, name), x, y, jnp.sin(x), w, w)

    @jax.jit
    def both(x, w):
        result, tangent = jax.jvp(call, (x, w), (d_x, d_w))
        g = jnp.cos(result)
        gradients = jax.vjp(call, x, w)[1](g)
        return jnp.vdot(g, tangent), sum(map(jnp.vdot, gradients, (d_x, d_w)))

    forward, reverse = both(x, w)
    assert float(forward) == pytest.approx(float(reverse), rel=1e-9, abs=1e-12) and float(forward) != 0


def mmd(x, y):
    pairs = (x, x, 1), (x, y, -2), (y, y, 1)
    return sum(s * in_plain_jax(a, b, jnp.ones(len(b)) / len(b)).mean() for a, b, s in pairs)


def density(x, y):
    return jnp.log(in_plain_jax(x, y, jnp.ones(len(y)) / len(y))).sum()


PAIRS = {
    "mmd_squared": (lambda x, y: jaxgauss.mmd_squared(x, y, 1.0), mmd),
    "kde_logpdf": (lambda x, y: jaxgauss.kde_logpdf(x, y, 1.0).sum(), density),
    "gauss_sum": (
        lambda x, y: jnp.sin(gauss_sum(x, y, y[:, 0])).sum(),
        lambda x, y: jnp.sin(in_plain_jax(x, y, y[:, 0])).sum(),
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_hessians_in_any_mode(rng, name):
    """Forward over reverse, reverse over reverse, and a product with a vector."""
    x, y = (jnp.asarray(rng.normal(size=(n, 2))) for n in (4, 5))
    ours, dense = PAIRS[name]

    @jax.jit
    def found(x):
        product = jax.jvp(lambda x: jax.grad(ours)(x, y), (x,), (jnp.cos(y[:4]),))[1]
        return jax.hessian(ours)(x, y), jax.jacrev(jax.grad(ours))(x, y), product

    exact = jax.hessian(dense)(x, y)
    forward, reverse, product = found(x)
    assert relative_error(forward, exact) < 1e-11 and relative_error(reverse, exact) < 1e-11
    assert relative_error(product, jnp.einsum("ijkl,kl->ij", exact, jnp.cos(y[:4]))) < 1e-11


def test_rules_hold_in_a_loop_that_is_differentiated_twice(rng):
    x, v = jnp.asarray(rng.normal(size=(9, 2))), jnp.asarray(rng.normal(size=9))

    def summed(function, a):
        def step(total, scale):
            return total + jnp.sin(function(a * scale * x, x, v)).sum(), None

        return lax.scan(step, 0.0, jnp.array([1.0, 2.0]))[0]

    ours, dense = (functools.partial(summed, f) for f in (gauss_sum, in_plain_jax))
    exact = jax.grad(jax.grad(dense))(1.1)
    for second in (jax.grad(jax.grad(ours)), jax.jit(jax.grad(jax.grad(ours))), jax.jacfwd(jax.grad(ours))):
        assert float(second(1.1)) == pytest.approx(float(exact), rel=1e-11)


@pytest.mark.parametrize("num", [9, 700])
def test_what_is_linear_is_transposed(rng, num):
    """A sum in its values, and the pullback of one in its cotangents: solvers of linear systems need that."""
    x, y, g = (jnp.asarray(rng.normal(size=(n, 2))) for n in (num, num + 1, num))
    v = jnp.sin(y[:, :1])
    (transposed,) = jax.linear_transpose(jax.jit(lambda v: gauss_sum(x, y, v)), v)(g[:, :1])
    assert relative_error(transposed, in_plain_jax(y, x, g[:, :1])) < 1e-12

    def summed(x):
        return gauss_sum(x, y, v)[:, 0]

    (tangent,) = jax.linear_transpose(jax.vjp(summed, x)[1], g[:, 0])((g,))
    assert relative_error(tangent, jax.jvp(lambda x: in_plain_jax(x, y, v)[:, 0], (x,), (g,))[1]) < 1e-12


TRANSPOSED = {
    "imq": lambda x, y, v: jaxgauss.kernel_sum(x, y, v, kernel="imq"),
    "mixture": lambda x, y, v: jaxgauss.kernel_sum(x, y, v, kernel="imq", engine="mixture"),
    "segments": lambda x, y, v: jaxgauss.kernel_sum(x, y, v, kernel="matern12", segments=(np.arange(9) % 3,) * 2),
    "others": lambda x, y, v: jaxgauss.kernel_sum(x, y, v, kernel="energy", exclude_self=True),
    "mean": lambda x, y, v: jaxgauss.kernel_mean(x, y, v),
    "sharded": lambda x, y, v: jaxgauss.gauss_sum_sharded(x, y, v, mesh=MESH, key_axis="data"),
    "gauss": lambda x, y, v: gauss_sum(x, y, v),
}
MESH = jax.make_mesh((1,), ("data",), devices=jax.devices()[:1], axis_types=(jax.sharding.AxisType.Auto,))


@pytest.mark.parametrize("name", TRANSPOSED)
def test_sums_are_transposed_in_their_values(rng, name):
    """Outside of `jit`, inside, and a program of another: as by `jax.vjp`."""
    x, y, v, g = jnp.asarray(rng.normal(size=(4, 9, 2)))
    f = functools.partial(TRANSPOSED[name], x, y)
    exact = jax.jit(lambda g: jax.vjp(f, v)[1](g))(g)
    for program in (f, jax.jit(f)):
        (found,) = jax.linear_transpose(program, v)(g)
        assert relative_error(found, exact[0]) < 1e-12
    (found,) = jax.linear_transpose(jax.vmap(f), jnp.stack([v, v]))(jnp.stack([g, 2 * g]))
    assert relative_error(found[1], 2 * exact[0]) < 1e-12
