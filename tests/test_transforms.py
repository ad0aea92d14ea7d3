"""Every transformation that JAX users compose, against the same one of the dense sum."""

import functools
import itertools

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from jaxgauss import gauss_sum
from oracle import assert_close, gauss_sum64, in_plain_jax, problem, relative_error

ALL = (0, 1, 2, 3)


def operands_of(rng, channels, batch=None):
    *operands, _ = problem(rng, 6, 5, 2, channels)
    if batch is None:
        return [jnp.asarray(x) for x in operands]
    return [jnp.asarray(x * rng.uniform(0.5, 1.5, size=(batch,) + (1,) * x.ndim)) for x in operands]


def loss(f):
    return lambda *x: jnp.sin(f(*x)).sum()


def gradients(f):
    return jax.grad(loss(f), ALL)


def scanned(f):
    def total(q, k, v, tau):
        def step(carry, _):
            q, s = carry
            return (q - 0.1 * jnp.sin(q), s + f(q, k, v, tau)), f(q, k, v, tau).sum()

        return jax.lax.scan(step, (q, jnp.zeros((q.shape[0], v.shape[1]))), None, length=3)

    return total


TRANSFORMS = {
    "plain": lambda f: f,
    "jit": jax.jit,
    "vmap": jax.vmap,
    "jit(vmap)": lambda f: jax.jit(jax.vmap(f)),
    "grad": gradients,
    "jit(grad)": lambda f: jax.jit(gradients(f)),
    "vmap(grad)": lambda f: jax.vmap(gradients(f)),
    "grad(vmap)": lambda f: gradients(jax.vmap(f)),
    "jit(grad(jit))": lambda f: jax.jit(gradients(jax.jit(f))),
    "value_and_grad": lambda f: jax.value_and_grad(loss(f), (0, 2)),
    "scan": scanned,
    "grad(scan)": lambda f: gradients(lambda *x: scanned(f)(*x)[1]),
    "checkpoint": lambda f: gradients(jax.checkpoint(f)),
    "checkpoint(scan)": lambda f: gradients(lambda *x: jax.checkpoint(scanned(f))(*x)[0][1]),
    "jacrev": lambda f: jax.jacrev(f, ALL),
    "jacrev(jacrev)": lambda f: jax.jit(jax.jacrev(jax.jacrev(loss(f), (0, 3)), (1, 2))),
    "map": lambda f: lambda *x: jax.lax.map(lambda y: f(*y), x),
    "while": lambda f: lambda *x: jax.lax.fori_loop(0, 3, lambda _, q: q - 0.1 * f(q, *x[1:])[:, :2], x[0]),
}
BATCHED = {"vmap", "jit(vmap)", "vmap(grad)", "grad(vmap)", "map"}


@pytest.mark.parametrize(
    "name, channels, method",  # by turns
    [(name, *[(1, "rescale"), (24, "blocked")][i % 2]) for i, name in enumerate(TRANSFORMS)],
)
def test_transformation_agrees_with_dense(rng, name, channels, method):
    if name == "while":
        channels = 2 if channels == 1 else 3  # as many as dimensions, to iterate on
    operands = operands_of(rng, channels, batch=3 if name in BATCHED else None)
    ours = TRANSFORMS[name](lambda *x: gauss_sum(*x, engine=method))(*operands)
    exact = TRANSFORMS[name](in_plain_jax)(*operands)
    assert jax.tree.structure(ours) == jax.tree.structure(exact)
    assert_close(jax.tree.leaves(ours), jax.tree.leaves(exact), 1e-10)


def test_vmap_on_every_subset_of_arguments(rng):
    """By turns of methods; with gradients where all are mapped, and where only the keys are."""
    batched, single = operands_of(rng, 24, batch=3), operands_of(rng, 24)
    for i, mapped in enumerate(itertools.product([True, False], repeat=4)):
        if not any(mapped):
            continue
        ours = functools.partial(gauss_sum, engine=["rescale", "blocked"][i % 2])
        axes = tuple(0 if is_mapped else None for is_mapped in mapped)
        operands = [x if is_mapped else y for x, y, is_mapped in zip(batched, single, mapped, strict=True)]
        assert relative_error(jax.vmap(ours, axes)(*operands), gauss_sum64(*operands)) <= 1e-11
        if i in (0, 11):
            results, exact = (jax.jit(jax.vmap(gradients(f), axes))(*operands) for f in (ours, in_plain_jax))
            assert_close(results, exact, 1e-11)


@pytest.mark.parametrize(
    "method, outer, inner",
    [
        ("rescale", (0, None, 0, None), (0, None, None, 0)),
        ("rescale", (None, 0, None, None), (0, None, None, None)),
        ("blocked", (0, 0, None, 0), (1, 0, 0, None)),
    ],
)
def test_nested_vmap_of_gradients(rng, method, outer, inner):
    *operands, _ = problem(rng, 6, 5, 2, 3)
    for axes, size in ((inner, 3), (outer, 4)):  # the innermost axis first: the outer one is then in front of it
        for i, axis in enumerate(axes):
            if axis is not None:
                factor = rng.uniform(0.5, 1.5, size=size)
                operands[i] = jnp.stack([jnp.asarray(operands[i]) * f for f in factor], axis)
    operands = [jnp.asarray(x) for x in operands]
    ours = functools.partial(gauss_sum, engine=method)
    results, exact = (jax.jit(jax.vmap(jax.vmap(gradients(f), inner), outer))(*operands) for f in (ours, in_plain_jax))
    assert_close(results, exact, 1e-11)


@pytest.mark.parametrize("method, channels, check_vma", [("blocked", 1, True), ("rescale", 24, False)])
def test_shard_map_on_one_device(rng, method, channels, check_vma):
    """Types of varying axes are checked on one device as on many; sums over several are in test_sharding."""
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))

    def total(f):
        def shard(q, k, v, tau):
            return jax.lax.psum(jnp.sin(f(q, k, v, tau)).sum(), "data")

        specs = P("data"), P(), P(), P()
        return jax.shard_map(shard, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=check_vma)

    operands = operands_of(rng, channels)
    functions = total(lambda *x: gauss_sum(*x, engine=method)), loss(in_plain_jax)
    results, exact = (jax.jit(jax.value_and_grad(f, ALL))(*operands) for f in functions)
    assert_close(jax.tree.leaves(results), jax.tree.leaves(exact), 1e-11)
