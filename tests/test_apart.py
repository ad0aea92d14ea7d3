"""Programs apart: a jitted program holds the way for near points, and one callback for all others."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from test_load import run
from test_programs import programs  # noqa: F401

import jaxgauss as jg
from jaxgauss._engines import apart, far
from oracle import assert_close, gauss_sum64, gradients64, relative_error

LOOPS = re.compile(r"\b(sort|while)\(")
CALLS = {
    "gauss_sum": lambda x, y, v: jg.gauss_sum(x, y, v),
    "its gradients": jax.grad(lambda *x: jg.gauss_sum(*x).sum(), (0, 1, 2)),
    "many channels": jax.grad(
        lambda x, y, v: jg.gauss_sum(x, y, jnp.stack([v * k for k in range(9)], 1)).sum(), (0, 1)
    ),
    "kernel_sum": jax.grad(lambda *x: jg.kernel_sum(*x, kernel="imq").sum(), (0, 1, 2)),
    "mmd_squared": jax.value_and_grad(lambda x, y, _: jg.mmd_squared(x, y, 1.0), (0, 1)),
    "hsic": jax.grad(lambda x, y, _: jg.hsic(x, y, 1.0, 1.0), (0, 1)),
    "kde_logpdf": lambda x, y, _: jg.kde_logpdf(x, y, 1.0),
    "its gradient": jax.grad(lambda x, y, _: jg.kde_logpdf(x, y, 1.0).sum()),
    "kernel_mean": lambda x, y, v: jg.kernel_mean(x, y, v),
    "svgd_direction": lambda x, y, _: jg.svgd_direction(x, y, 1.0),
}


def cloud(rng, num: int, dim: int, *, far: bool = True, dtype="float32"):
    """Two sets of points, and values; the first point is perhaps an outlier."""
    x, y = rng.normal(size=(2, num, dim)).astype(dtype) / 2
    if far:
        x[0], y[1] = 1000.0, -300.0
        y[2] = x[0]
    return x, y, rng.normal(size=num).astype(dtype)


@pytest.mark.parametrize("num", [40, 800])
@pytest.mark.parametrize("dim", [2, 16])
@pytest.mark.parametrize("name", CALLS)
def test_a_program_has_one_way_and_callbacks(rng, name, dim, num):
    """No points are sorted in it, whatever is differentiated, and few loops run; the results are those of float64."""
    f, operands = jax.jit(CALLS[name]), cloud(rng, num, dim)
    program = f.lower(*operands).compile()
    text = program.as_text()
    assert text.count("xla_buffer_python_cpu_callback") >= 1 and "sort(" not in text
    assert len(LOOPS.findall(text)) <= 4
    assert_close(*(jax.tree.leaves(f(*(x.astype(t) for x in operands))) for t in ("float32", "float64")), 3e-5)


def test_far_programs_are_compiled_when_they_are_met_and_once_for_a_shape(rng, programs):  # noqa: F811
    near, (x, y, v) = cloud(rng, 710, 10, far=False), cloud(rng, 710, 10)
    first, second = (jax.jit(lambda *z, c=c: c * jg.gauss_sum(*z)) for c in map(np.float32, (1, 2)))
    jax.block_until_ready([f(*near) for f in (first, second)])
    programs.clear()
    once = np.asarray(first(x, y, v))
    assert len(programs) == 1
    np.testing.assert_allclose(second(x, y, v), 2 * once, rtol=1e-6)
    np.testing.assert_allclose(jg.gauss_sum(x, y, v), once, rtol=1e-6)
    assert len(programs) == 2  # that of the eager call, which holds a callback alone
    assert relative_error(once, gauss_sum64(x, y, v, np.asarray(1.0))) < 2e-6


def test_points_decide_each_time(rng, monkeypatch):
    """The same program sums by waves, by tiles, and queries in doubt from differences."""
    ways = []
    for name in ("_waves", "_batch_by_tiles", "_rows_by_differences"):
        way = getattr(far, name)
        monkeypatch.setattr(far, name, lambda *x, way=way, name=name, **how: (ways.append(name), way(*x, **how))[1])
    f, v = jax.jit(jg.gauss_sum), rng.normal(size=6000).astype("float32")
    wide = rng.uniform(0, 60, (6000, 2)).astype("float32")
    doubtful, apart = wide.copy(), 1e5 * wide
    doubtful[:3] += 1000
    for points, expected in (
        (wide, ["_waves"]),
        (doubtful, ["_waves", "_rows_by_differences"]),
        (apart, ["_batch_by_tiles"]),
    ):
        ways.clear()
        found = f(points, points, v)
        assert ways == expected
        assert relative_error(found, gauss_sum64(points, points, v, np.asarray(1.0))) < 2e-6


@pytest.mark.parametrize("kernel", ["gauss", "imq"])
def test_few_far_points_take_products_in_float64_while_these_have_the_digits(rng, monkeypatch, kernel):
    ways = []
    for name in ("_by_products", "_batch_by_tiles"):
        way = getattr(far, name)
        monkeypatch.setattr(far, name, lambda *x, way=way, name=name: (ways.append(name), way(*x))[1])
    x, y, v = cloud(rng, 40, 5, far=False)
    y[7] = x[3]

    @jax.jit
    def every(x, y, v):
        return jax.value_and_grad(lambda *z: jnp.square(jg.kernel_sum(*z, kernel=kernel)).sum(), (0, 1, 2))(x, y, v)

    def exact(x, y, v):
        difference = x[:, None] - y[None]
        u = jnp.square(difference).sum(-1)
        kappa = jnp.exp(-u / 2) if kernel == "gauss" else (1 + u) ** -0.5
        return jnp.square(kappa @ v).sum()

    for distance, way in ((30.0, "_by_products"), (1e4, "_by_products"), (1e6, "_batch_by_tiles")):
        x[0], y[1] = distance, -distance
        ways.clear()
        found = every(x, y, v)
        assert {*ways} == {way}
        with jax.enable_x64(True):
            expected = jax.value_and_grad(exact, (0, 1, 2))(*(z.astype("float64") for z in (x, y, v)))
        assert_close(*map(jax.tree.leaves, (found, expected)), 1e-5)


def test_transformations(rng):
    """`vmap` of `grad`, `scan`, `checkpoint`, derivatives of second order, and a loop whose points move away."""
    x, y, v = cloud(rng, 600, 3, dtype="float64")
    one = np.asarray(1.0)

    def loss(x, y, v):
        return jnp.sin(jg.gauss_sum(x, y, v)).sum()

    exact = gradients64(x, y, v[:, None], one, np.cos(gauss_sum64(x, y, v[:, None], one)))[:3]
    every = jax.jit(jax.vmap(jax.grad(jax.checkpoint(loss), (0, 1, 2)), (0, None, 0)))
    found = every(np.stack([x, x]), y, np.stack([v, v]))
    assert_close([z[1].reshape(e.shape) for z, e in zip(found, exact, strict=True)], exact, 1e-10)

    def move(x, shift):
        return lax.scan(lambda x, s: (x + s, jg.gauss_sum(x, y, v)[5]), x, jnp.full(3, shift))

    shifts = jnp.array([0.0, 20.0])
    _, sums = jax.jit(lambda x: lax.scan(move, x, shifts))(x)
    steps = [0, 0, 0, 0, 20, 40]
    assert_close(sums.ravel(), np.array([gauss_sum64(x + s, y, v, one)[5] for s in steps]), 1e-10)

    few, direction = x[:, :1], np.cos(np.arange(600.0))[:, None]
    slope = jax.grad(lambda z: jg.gauss_sum(z, y[:, :1], v).sum())
    product = jax.jit(lambda z, d: jax.vjp(slope, z)[1](d)[0])(few, direction)
    u = few - y[:, 0]
    curvature = ((u**2 - 1) * np.exp(-(u**2) / 2)) @ v
    assert_close(product, direction * curvature[:, None], 1e-8)


MODES = {
    "32 bits": lambda: jax.enable_x64(False),
    "64 bits": lambda: jax.enable_x64(True),
    "debug_nans": lambda: jax.debug_nans(True),
    "disable_jit": lambda: jax.disable_jit(True),
    "checks": lambda: jax.enable_checks(True),
    "no transfer": lambda: jax.transfer_guard("disallow"),
}


@pytest.mark.parametrize("mode", MODES)
def test_modes_of_the_caller(rng, mode):
    x, y, v, tau = jax.device_put((*cloud(rng, 600, 3), np.float32(1)))
    with MODES[mode]():
        slope = jax.jit(jax.grad(lambda v: jg.gauss_sum(x, y, v, tau).sum()))
        found = [jax.jit(jg.gauss_sum)(x, y, v, tau), slope(v), jax.jit(jg.kde_logpdf)(x, y, tau)]
        assert all(z.dtype == "float32" for z in found)
    x, y, v = map(np.asarray, (x, y, v))
    dense = np.exp(-((x[:, None].astype("float64") - y[None]) ** 2).sum(-1) / 2)
    assert_close(found[:2], [dense @ v, dense.sum(0)], 2e-6)


def test_a_failure_says_what_failed_and_the_next_call_works(rng, monkeypatch):
    x, y, v = cloud(rng, 620, 11)
    f = jax.jit(jg.gauss_sum)

    def broken(*_):
        raise ArithmeticError("on strike")

    with monkeypatch.context() as patch:
        patch.setattr(far, "_batch_by_tiles", broken)
        with pytest.raises(Exception, match=r"`jaxgauss`: .*failed on float32\[620, 11\].*on strike"):
            jax.block_until_ready(f(x, y, v))
    assert relative_error(f(x, y, v), gauss_sum64(x, y, v, np.asarray(1.0))) < 2e-6


def test_programs_apart_have_a_client_of_their_own_that_waits():
    """JAX has no public way to make one; if this fails, JAX has moved it."""
    device = apart.device(0)
    assert device.platform == "cpu" and device not in jax.devices() and apart.device(1) is not device
    with jax.default_device(device):
        assert jax.jit(jnp.sin)(np.ones(3)).devices() == {device}


CLOUDS = """
import functools
from jax import lax
from jax.sharding import PartitionSpec
from jaxgauss import gauss_sum_sharded, kde_logpdf

def cloud(num, dim=3):
    x = np.random.default_rng(num).normal(size=(num, dim)).astype("float32")
    x[0] = 1000
    return x, x[:, 0].copy()

def dense(x):
    return np.exp(-((x[:, None].astype("float64") - x[None]) ** 2).sum(-1) / 2)

@jax.jit
def every(x, v):
    loss = lambda x, v: jnp.sin(gauss_sum(x, x, v)).sum()
    return gauss_sum(x, x, v), jax.grad(loss, 1)(x, v), kde_logpdf(x, x, 1.0)

def check(num):
    x, v = cloud(num)
    phi = dense(x)
    sums = phi @ v
    exact = sums, np.cos(sums) @ phi, np.log(phi.mean(1)) - 1.5 * np.log(2 * np.pi)
    found = every(x, v)
    assert all(relative_error(x, y) < 1e-5 for x, y in zip(found, exact))
"""

THREADS = """
with ThreadPoolExecutor(12) as threads:  # new shapes at once
    list(threads.map(check, range(600, 648, 8)))
with ThreadPoolExecutor(64) as threads:  # more than there are threads of XLA
    list(threads.map(lambda _: [check(600) for _ in range(3)], range(64)))
x, v = cloud(600)
waiting = [every(x, v * c) for c in range(40)]  # outstanding calls
assert relative_error(waiting[39][0], 39 * waiting[1][0]) < 1e-6
"""

LEAKS = """
with jax.checking_leaks():
    check(608)
"""

DEVICES = """
x, v = cloud(4800)
mesh = jax.make_mesh((8,), ("points",))
exact = dense(x) @ v
for _ in range(3):
    found = gauss_sum_sharded(x, x, v, mesh=mesh, query_axis="points")
    assert relative_error(found, exact) < 1e-5
some = jax.make_mesh((8,), ("points",), axis_types=(jax.sharding.AxisType.Auto,))
specs = PartitionSpec("points"), PartitionSpec(), PartitionSpec()
summed = jax.jit(jax.shard_map(gauss_sum, mesh=some, in_specs=specs, out_specs=PartitionSpec("points")))
assert relative_error(summed(x, x, v), exact) < 1e-5
wide = np.random.default_rng(0).uniform(0, 40, (24_000, 2)).astype("float32")  # finufft, within a program apart
jax.jit(jax.value_and_grad(lambda x: gauss_sum(x, x, x[:, 0]).sum()))(wide)
some = np.exp(-((wide[:64, None].astype("float64") - wide[None]) ** 2).sum(-1) / 2)
assert relative_error(jax.jit(gauss_sum)(wide, wide, wide[:, 0])[:64], some @ wide[:, 0]) < 1e-5
"""


def test_many_threads():
    run(CLOUDS, THREADS)


def test_many_threads_on_one_core():
    run("os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})", CLOUDS, THREADS)


def test_eight_devices():
    run('os.environ["XLA_FLAGS"] += " --xla_force_host_platform_device_count=8"', CLOUDS, DEVICES)


def test_no_tracer_leaks():
    """In a process of its own: JAX looks for tracers among all objects."""
    run(CLOUDS, LEAKS)


def test_constants_are_not_sorted_by_the_compiler(rng):
    """Points in a closure take no longer to compile than as an argument: as many sorts are left in the program."""
    x, v = (jnp.asarray(rng.normal(size=(600, n)), "float32") for n in (8, 1))

    def total(x, v):
        return jg.kernel_sum(x, x, v, kernel="matern12", engine="clusters").sum()

    lowered = jax.jit(total).lower(x, v), jax.jit(lambda v: total(x, v)).lower(v)
    as_argument, in_closure = (program.compile().as_text().count(" sort(") for program in lowered)
    assert in_closure == as_argument > 0
