"""Sums over random directions: errors fall as they should, means have no bias, and JAX transforms them as they are."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.distance import cdist

import jaxgauss
from jaxgauss import Sliced, estimate_error, explain, gauss_sum, kernel_sum, mmd_flow_velocity, mmd_squared
from oracle import in_plain_jax

FORMULAS = {
    "gauss": lambda r: np.exp(-np.square(r) / 2),
    "matern12": lambda r: np.exp(-r),
    "matern32": lambda r: (1 + 3**0.5 * r) * np.exp(-(3**0.5) * r),
    "matern52": lambda r: (1 + 5**0.5 * r + 5 / 3 * np.square(r)) * np.exp(-(5**0.5) * r),
    "imq": lambda r: 1 / np.sqrt(1 + np.square(r)),
    "cauchy": lambda r: 1 / (1 + np.square(r)),
    "energy": lambda r: -r,
}


def sliced(seed=0, directions=256, frequencies=1):
    return Sliced(directions, frequencies, rng_key=jax.random.key(seed))


def cloud(rng, num, dim, wide=1.5):
    return (wide * rng.normal(size=(num, dim)) / dim**0.5).astype("float32")


def over_keys(function, num, seed=1):
    """A function of a key at many of them."""
    return jax.jit(lambda keys: jax.lax.map(function, keys, batch_size=16))(jax.random.split(jax.random.key(seed), num))


def relative_errors(rng, kernel, dim, nums, draws=12):
    """Errors of sums of values of both signs, relative to Σ|v|, in L2 over queries and random keys."""
    x, y, v = cloud(rng, 60, dim), cloud(rng, 80, dim), rng.normal(size=80).astype("float32")
    exact = FORMULAS[kernel](cdist(x, y)) @ v
    size = np.abs(v).sum() if kernel != "energy" else (cdist(x, y) @ np.abs(v)).mean()

    def error(num):
        found = over_keys(lambda key: kernel_sum(x, y, v, kernel=kernel, engine=Sliced(num, rng_key=key)), draws)
        return np.sqrt(np.square(np.asarray(found, "float64") - exact).mean()) / size

    return [error(num) for num in nums]


@pytest.mark.parametrize("dim", [2, 4, 10, 64, pytest.param(784, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kernel", ["gauss", "matern32", "imq", "energy"])
def test_the_error_falls_as_the_root_of_the_number_of_directions_or_faster(rng, kernel, dim):
    few, many = relative_errors(rng, kernel, dim, (16, 1024))
    assert many <= 0.5 / 32 and few <= 0.5 / 4 and many <= 1.4 * few / 8


@pytest.mark.slow
@pytest.mark.parametrize("dim", [4, 10, 64, 784])
@pytest.mark.parametrize("kernel", FORMULAS)
def test_the_error_over_16_to_4096_directions(rng, kernel, dim):
    errors = relative_errors(rng, kernel, dim, (16, 64, 256, 1024, 4096), draws=8)
    slope = np.polyfit(np.log([16, 64, 256, 1024, 4096]), np.log(errors), 1)[0]
    assert slope < -0.45 and max(np.multiply(errors, [4, 8, 16, 32, 64])) < 0.5


@pytest.mark.parametrize("kernel, dim", [("gauss", 3), ("gauss", 9), ("matern12", 9), ("imq", 40), ("energy", 7)])
def test_sums_and_gradients_have_no_bias(rng, kernel, dim):
    """Their means over 1,000 keys lie within four standard errors, also for points many bandwidths apart."""
    x, y, v = cloud(rng, 5, dim, 2.0), cloud(rng, 6, dim, 2.0), rng.normal(size=6).astype("float32")
    x[0] += 30

    def value(summed, x):
        return jnp.sin(jnp.arange(5.0, dtype="float32")) @ summed(x)

    def both(key):
        def summed(x):
            return kernel_sum(x, y, v, kernel=kernel, engine=Sliced(8, 2, rng_key=key))

        gradient = jax.grad(functools.partial(value, summed))(x) if kernel != "matern12" else x[:, :0]
        return jnp.concatenate([summed(x)[:, None], gradient], 1)

    found = over_keys(both, 1000)
    exact = FORMULAS[kernel](cdist(x, y)) @ v
    gradient = jax.grad(functools.partial(value, lambda x: kernel_sum(x, y, v, kernel=kernel)))(x)
    exact = np.concatenate([exact[:, None], gradient], 1)[:, : found.shape[2]]
    errors = np.asarray(found, "float64").std(0) / 1000**0.5
    assert (np.abs(np.asarray(found, "float64").mean(0) - exact) <= 4 * errors + 1e-5 * np.abs(exact)).all()


@pytest.mark.parametrize("kernel", ["gauss", "matern52", "energy"])
def test_gradients_are_those_of_the_sums_that_the_key_gives(rng, kernel):
    """In float64 by differences of them; of second order, too."""
    x, y = (rng.normal(size=(n, 8)) for n in (7, 9))
    operands = x, y, rng.normal(size=(9, 2)), np.float64(0.7)
    directions = [rng.normal(size=np.shape(z)) for z in operands]

    def value(*operands):
        return jnp.sin(kernel_sum(*operands, kernel=kernel, engine=sliced(directions=32))).sum()

    def along(function, size):
        return function(*(z + size * d for z, d in zip(operands, directions, strict=True)))

    gradients = jax.jit(jax.grad(value, (0, 1, 2, 3)))
    slope = sum(np.vdot(g, d) for g, d in zip(gradients(*operands), directions, strict=True))
    assert slope == pytest.approx(float(along(value, 1e-5) - along(value, -1e-5)) / 2e-5, rel=1e-6)
    _, forward = jax.jvp(value, operands, tuple(map(jnp.asarray, directions)))
    assert float(forward) == pytest.approx(slope, rel=1e-9)
    if kernel == "energy":
        return
    _, seconds = jax.jvp(gradients, operands, tuple(map(jnp.asarray, directions)))
    ahead, back = along(gradients, 1e-5), along(gradients, -1e-5)
    for second, a, b in zip(seconds, ahead, back, strict=True):
        np.testing.assert_allclose(second, (a - b) / 2e-5, rtol=1e-4, atol=1e-4)


def test_a_step_takes_its_key_as_an_argument_and_compiles_once(rng):
    x, y, v = cloud(rng, 50, 12), cloud(rng, 60, 12), np.ones(60, "float32")
    traces = []

    @jax.jit
    def step(key, x):
        traces.append(key)
        return gauss_sum(x, y, v, engine=Sliced(64, rng_key=key))

    first, again, other = (step(jax.random.key(i), x) for i in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert len(traces) == 1 and np.abs(first - other).max() > 1e-3
    eager = [gauss_sum(x, y, v, engine=sliced(i, 64)) for i in (1, 1, 2)]
    np.testing.assert_array_equal(*eager[:2])
    np.testing.assert_allclose(eager[0], first, rtol=1e-5)
    np.testing.assert_allclose(eager[2], other, rtol=1e-5)
    raw = gauss_sum(x, y, v, engine=Sliced(64, rng_key=jax.random.PRNGKey(1)))
    np.testing.assert_allclose(raw, first, rtol=1e-5)
    of_keys = jax.vmap(lambda key: step(key, x))(jax.vmap(jax.random.key)(jnp.arange(1, 3)))
    np.testing.assert_allclose(of_keys, [first, other], rtol=1e-4)
    as_argument = jax.jit(lambda engine, x: gauss_sum(x, y, v, engine=engine))  # the engine is a pytree
    np.testing.assert_allclose(as_argument(sliced(2, 64), x), other, rtol=1e-5)


def test_batches_masks_scales_and_one_self(rng):
    engine = sliced(directions=1024)
    x, y = cloud(rng, 3 * 40, 5).reshape(3, 40, 5), cloud(rng, 50, 5)
    v, tau = rng.uniform(size=(3, 50, 2)).astype("float32"), np.float32([0.5, 1.0, 2.0])
    found, exact = gauss_sum(x, y, v, tau, engine=engine), in_plain_jax(x, y[None], v, tau)
    assert np.linalg.norm(found - exact) < 0.01 * np.linalg.norm(exact)
    mapped = jax.vmap(functools.partial(gauss_sum, engine=engine), (0, None, 0, 0))(x, y, v, tau)
    np.testing.assert_allclose(mapped, found, rtol=1e-4, atol=1e-4)
    own = gauss_sum(y, y, v[0], engine=engine) - gauss_sum(y, y, v[0], engine=engine, exclude_self=True)
    np.testing.assert_allclose(own, v[0], rtol=1e-4, atol=1e-4)
    hidden, weights = np.array(y), np.array(v[0])
    hidden[7], weights[7] = np.nan, 0
    found, exact = (gauss_sum(x[0], z, weights, engine=engine) for z in (hidden, np.where(np.isnan(hidden), 0, hidden)))
    np.testing.assert_allclose(found, exact, rtol=1e-2)
    several = mmd_squared(x[0], y, jnp.float32([0.5, 2.0]), engine=engine)
    assert float(several) == pytest.approx(float(mmd_squared(x[0], y, jnp.float32([0.5, 2.0]))), abs=5e-3)


@pytest.mark.parametrize("place", [1e4, 1e7, 1e18, 1e30])
@pytest.mark.parametrize("kernel", ["gauss", "imq", "energy"])
def test_outliers_copies_and_one_point(rng, kernel, place):
    """Finite everywhere, and right within the error, which an outlier does not change for others."""
    x = np.concatenate([cloud(rng, 30, 6), cloud(rng, 1, 6) + np.float32(place)])
    x[3], engine, v = x[4], sliced(directions=1024), np.ones(31, "float32")

    def total(x, v, tau):
        return kernel_sum(x, x, v, tau, kernel=kernel, engine=engine)

    found = total(x, v, 1.0)
    gradients = jax.grad(lambda *given: total(*given)[:30].sum(), (0, 1, 2))(x, v, 1.0)
    assert all(np.isfinite(z).all() for z in (found, *gradients))
    if kernel != "energy":
        exact = kernel_sum(x, x, v, kernel=kernel)
        assert np.abs(found - exact)[:30].max() < 31 * 4 / 1024**0.5
    np.testing.assert_allclose(total(x[:1], v[:1], 1.0), FORMULAS[kernel](np.zeros(1)), rtol=1e-5, atol=1e-5)
    force = jax.grad(lambda q: kernel_sum(q, x[:1], v[:1], kernel=kernel, engine=engine).sum())(x[:1])
    np.testing.assert_allclose(force, 0, atol=1e-6)  # a point exerts none on itself


def test_without_points_or_channels_and_one_direction():
    x, none = np.ones((3, 4), "float32"), np.zeros((0, 4), "float32")
    engine = sliced(directions=1, frequencies=1)
    assert not gauss_sum(x, none, np.zeros(0, "float32"), engine=engine).any()
    assert gauss_sum(none, x, np.ones(3, "float32"), engine=engine).shape == (0,)
    assert gauss_sum(x, x, np.ones((3, 0), "float32"), engine=engine).shape == (3, 0)
    np.testing.assert_allclose(gauss_sum(x, x, np.ones(3, "float32"), engine=engine), 3.0, rtol=1e-6)


def test_kernel_methods(rng):
    """Losses, flows and their gradients, near the exact ones; and without pairs i = i."""
    x, y, engine = cloud(rng, 200, 20), cloud(rng, 250, 20) + np.float32(0.2), sliced(directions=4096)
    scores = -x
    calls = {
        "mmd_squared": lambda how: mmd_squared(x, y, 1.0, **how),
        "unbiased": lambda how: mmd_squared(x, y, 1.0, estimator="unbiased", **how),
        "matern32": lambda how: mmd_squared(x, y, 1.0, kernel="matern32", **how),
        "energy": lambda how: jaxgauss.energy_distance(x, y, **how),
        "gradient": lambda how: jax.jit(jax.grad(lambda x: mmd_squared(x, y, 1.0, **how)))(x),
        "of τ": lambda how: jax.grad(lambda tau: mmd_squared(x, y, tau, **how))(1.0),
        "velocity": lambda how: mmd_flow_velocity(x, y, 1.0, kernel="imq", **how),
        "of several": lambda how: mmd_flow_velocity(x, y, jnp.float32([0.5, 1.0]), **how),
        "witness": lambda how: jaxgauss.mmd_witness(y, x, y, 1.0, **how),
        "direction": lambda how: jaxgauss.svgd_direction(x, scores, 1.0, **how),
        "norm": lambda how: jaxgauss.embedding_norm_squared(x, 1.0, **how),
    }
    for name, call in calls.items():
        ours, exact = call({"engine": engine}), call({})
        assert np.linalg.norm(ours - exact) < 0.25 * np.linalg.norm(exact), name
    flow = mmd_flow_velocity(x, y, 1.0, engine=engine)
    slope = jax.grad(lambda x: mmd_squared(x, y, 1.0, engine=engine))(x)
    np.testing.assert_allclose(flow, -len(x) / 2 * slope, rtol=1e-3, atol=1e-5)


def test_over_a_mesh(rng):
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    x, v, engine = cloud(rng, 64, 9), np.ones(64, "float32"), sliced()
    summed = functools.partial(jaxgauss.gauss_sum_sharded, mesh=mesh, query_axis="data", engine=engine)
    np.testing.assert_allclose(summed(x, x, v), gauss_sum(x, x, v, engine=engine), rtol=1e-4)
    other = functools.partial(jaxgauss.gauss_sum_sharded, mesh=mesh, key_axis="data", engine=sliced(1))
    np.testing.assert_allclose(jax.jit(other)(x, x, v), gauss_sum(x, x, v, engine=sliced(1)), rtol=1e-4)
    loss = functools.partial(mmd_squared, x, x[:40] + np.float32(0.1), 1.0, engine=engine)
    assert float(loss(mesh=mesh, query_axis="data")) == pytest.approx(float(loss()), rel=1e-3)


def test_memory_is_linear():
    shapes = [jax.ShapeDtypeStruct(shape, "float32") for shape in ((100_000, 16), (100_000, 16), (100_000,))]

    def loss(x, y, v):
        return (gauss_sum(x, y, v, engine=sliced()) ** 2).sum()

    analysis = jax.jit(jax.grad(loss, (0, 1, 2))).lower(*shapes).compile().memory_analysis()
    assert analysis is not None and analysis.temp_size_in_bytes < 80 * 2**20  # a matrix would be 37 GiB


@pytest.mark.parametrize("dim", [3, 12, 100])
def test_the_error_is_told_without_exact_sums(rng, dim):
    """It is no less than half of the true one, and hardly more than three times as large."""
    x, y, v = cloud(rng, 300, dim), cloud(rng, 310, dim), rng.uniform(size=310).astype("float32")
    exact = gauss_sum(x, y, v)
    for num in (64, 1024):
        told, true = [], []
        for seed in range(4):
            engine = sliced(seed, num)
            told.append(estimate_error(x, y, v, rng_key=jax.random.key(0), engine=engine).relative_error)
            true.append(np.linalg.norm(gauss_sum(x, y, v, engine=engine) - exact) / np.linalg.norm(exact))
        told, true = (np.sqrt(np.mean(np.square(z))) for z in (told, true))
        assert 0.5 * true < told < 4 * true
    plan = explain(x, y, v, engine=engine)
    assert "an error of at most about 0.031 Σ|v|" in plan.reason and "of the sums, in L2" in plan.reason
    found = explain(gauss_sum, x, y, v, engine=engine)
    assert "sliced" in str(found) and found.milliseconds < 1000


def test_wrong_calls():
    x, v = np.ones((3, 4), "float32"), np.ones(3, "float32")
    for name, given in (("directions", 0), ("directions", 2.5), ("frequencies", True)):
        with pytest.raises(ValueError, match=f"`{name}` must be a positive integer; got {given}"):
            Sliced(**{name: given}, rng_key=jax.random.key(0))
    for engine in (Sliced(), "sliced"):
        with pytest.raises(TypeError, match=r"`rng_key` must be a random key; got None\. Pass rng_key"):
            gauss_sum(x, x, v, engine=engine)
    for given in (0, np.ones(2), jax.random.split(jax.random.key(0))):
        with pytest.raises(TypeError, match=r"`jaxgauss\.Sliced`: `rng_key` must be one random key; got"):
            gauss_sum(x, x, v, engine=Sliced(rng_key=given))
    with pytest.raises(ValueError, match=r"`jaxgauss.kernel_sum`.*no known mixture of Gaussians; got Sliced"):
        kernel_sum(x, x, v, kernel=jaxgauss.Kernel(lambda u: 1 / (1 + u**2)), engine=sliced())
    for call in (jaxgauss.kde_logpdf, jaxgauss.kernel_mean, jaxgauss.mean_shift):
        with pytest.raises(ValueError, match=rf"`jaxgauss.{call.__name__}`: `engine` must be one that .*Sliced is for"):
            call(x, x, *([x] if call is jaxgauss.kernel_mean else []), 1.0, engine=sliced())
    static = jax.jit(lambda engine: gauss_sum(x, x, v, engine=engine), static_argnums=0)
    with pytest.raises((TypeError, ValueError), match=r"`rng_key` must not be hashed"):  # it would never change
        static(sliced())
    with pytest.raises(ValueError, match="must be at least 2 to tell an error; got 1"):
        estimate_error(x, x, v, rng_key=jax.random.key(0), engine=sliced(directions=1))


@pytest.mark.parametrize("kernel", ["gauss", "matern32", "energy"])
def test_a_program_for_cuda_is_plain_xla(kernel):
    """It lowers for a platform that is not here, and needs no callback."""
    shapes = [jax.ShapeDtypeStruct(shape, "float32") for shape in ((300, 16), (400, 16), (400,))]

    def loss(key, x, y, v):
        return kernel_sum(x, y, v, kernel=kernel, engine=Sliced(rng_key=key)).sum()

    step = jax.jit(jax.grad(loss, (1, 2, 3))).trace(jax.random.key(0), *shapes)
    text = step.lower(lowering_platforms=("cuda",)).as_text()
    assert "callback" not in text and "cusolver" in text


@pytest.mark.usefixtures("cuda")
def test_on_an_emulated_card(rng):
    """By products alone: sums, gradients, a loss, and sums without pairs i = i."""
    x, y, v = cloud(rng, 70, 9), cloud(rng, 90, 9), rng.uniform(size=90).astype("float32")
    engine = sliced(directions=4096)

    def loss(summed, *given):
        return jnp.square(summed(*given)).sum()

    ours = jax.value_and_grad(functools.partial(loss, functools.partial(gauss_sum, engine=engine)), (0, 1, 2))(x, y, v)
    exact = jax.value_and_grad(functools.partial(loss, lambda *z: in_plain_jax(*z[:2], z[2][:, None])), (0, 1, 2))(
        x, y, v
    )
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(exact), strict=True):
        assert np.linalg.norm(a - b) < 0.05 * np.linalg.norm(b)
    assert float(mmd_squared(x, y, 1.0, engine=engine)) == pytest.approx(float(mmd_squared(x, y, 1.0)), abs=3e-3)
    others, exact = (gauss_sum(y, y, v, exclude_self=True, engine=x) for x in (engine, "blocked"))
    assert np.linalg.norm(others - exact) < 0.05 * np.linalg.norm(exact)
