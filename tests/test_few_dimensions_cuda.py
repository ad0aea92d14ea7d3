"""Waves on CUDA: no float64, and the same sums as on a CPU; by name nothing waits, by "auto" the device looks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_anywhere import cloud as anywhere
from test_anywhere import error, errors, pairs

from jaxgauss import Fourier, FourierSketch, explain, fourier_sketch, gauss_sum, gauss_sum_sharded, mmd_squared
from jaxgauss._checks.settings import Settings
from jaxgauss._engines.differences.all_pairs import sums_by_differences
from jaxgauss._engines.fourier import fitting
from jaxgauss._engines.fourier import frequencies as nodes
from jaxgauss._engines.fourier import series as fourier
from jaxgauss._engines.near import examined
from oracle import relative_error, with_gradients

pytestmark = pytest.mark.usefixtures("cuda")
by_waves = functools.partial(gauss_sum, engine="fourier")
LONGEST = {1: 3000.0, 2: 195.0, 3: 40.0}  # bandwidths of a box that all waves hold


def cloud(rng, dim, length, start=0.0):
    """Queries, keys, values, τ and a cotangent: uniform in a box of so many bandwidths."""
    tau, num = np.float32(4.0), 300 if dim < 3 else 120
    x, y = (np.float32(rng.uniform(0, length / 2, (n, dim)) + start) for n in (num, num + 1))
    return (
        x,
        y,
        *(rng.normal(size=n).astype(np.float32) for n in (num + 1,)),
        tau,
        rng.normal(size=num).astype("float32"),
    )


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_sums_and_all_gradients(rng, dim):
    """In boxes of all sizes that waves hold, at the origin and away from it."""
    ours = with_gradients(by_waves)
    for length, start in ((0.1, 0.0), (8.0, -50.0), (LONGEST[dim], 0.0), (LONGEST[dim], 1000.0)):
        case = cloud(rng, dim, length, start)
        sums, gradients = ours(*case)
        assert max(errors("gauss", *case, sums, *gradients)) < 3e-6


def test_batches_and_float64(rng):
    x, y = rng.uniform(0, 9, (3, 40, 2)), rng.uniform(0, 9, (50, 2))
    v = rng.normal(size=(50, 2))
    phi, _, _ = pairs("gauss", x.reshape(-1, 2), y, 1.0)
    found = by_waves(x, y, v, 1.0).reshape(-1, 2)
    assert found.dtype == jnp.float64 and error(found, phi @ v, phi @ np.abs(v)) < 1e-13
    apart = x + 1e5 * np.arange(3)[:, None, None]  # each element of a batch has its box
    for points in (np.float32(x), np.float32(apart)):
        exact = [pairs("gauss", p, p, 1.0)[0].sum(1) for p in points]
        assert relative_error(by_waves(points, points, np.ones((3, 40, 1), np.float32), 1.0)[..., 0], exact) < 1e-6
    assert by_waves(x[0, :0], y, v, 1.0).shape == (0, 2)
    z, tau = np.float32(x[0]), np.float32([0.01, 1.0, 400.0])  # one series for all would take too many waves
    phi = [pairs("gauss", a, b, tau[:, None, None])[0] for a, b in ((z, z), (z, y), (y, y))]
    exact = phi[0].mean() - 2 * phi[1].mean() + phi[2].mean()
    for function in (mmd_squared, jax.jit(mmd_squared, static_argnames="engine")):
        assert abs(float(function(z, np.float32(y), tau, engine="fourier")) - exact) < 1e-6


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_points_that_lie_too_far_apart(rng, dim):
    """An error where the points can be seen, NaN under `jit`."""
    x, y, v, tau, _ = cloud(rng, dim, 1.3 * LONGEST[dim] + 20)
    assert np.isnan(jax.jit(by_waves)(x, y, v, tau)).all()
    for function in (by_waves, functools.partial(explain, engine="fourier")):
        with pytest.raises(ValueError, match=r"on CUDA 'fourier' has \d+ waves .* or leave the engine on 'auto'"):
            function(x, y, v, tau)


def test_other_functions_refuse_them_by_name_and_take_nearer_ones(rng):
    x, y, v, tau, _ = cloud(rng, 2, 1.3 * LONGEST[2] + 20)
    with pytest.raises(ValueError, match=r"`jaxgauss\.mmd_squared`: on CUDA 'fourier'"):
        mmd_squared(x, y, tau, engine="fourier")
    mesh = jax.make_mesh((1,), ("device",), axis_types=(jax.sharding.AxisType.Auto,))
    over_mesh = functools.partial(gauss_sum_sharded, mesh=mesh, key_axis="device", engine="fourier")
    with pytest.raises(ValueError, match=r"`jaxgauss\.gauss_sum_sharded`: on CUDA 'fourier'"):
        over_mesh(x, y, v, tau)
    assert relative_error(over_mesh(x / 2, y / 2, v, tau), by_waves(x / 2, y / 2, v, tau)) < 2e-6
    assert np.isfinite(jax.jit(functools.partial(gauss_sum, engine=Fourier(0.1)))(x[:50] / 2, y, v, tau / 3)).all()


def test_no_more_waves_than_points_need_where_they_can_be_seen():
    """At the ends of the blocks as well, where the device may round the other way."""
    tau, tolerance = np.float32(1.7), 1e-5
    fit = jax.jit(lambda most, *box: nodes.nodes(most, *box, jnp.float32(tolerance), at_once=True)[1], static_argnums=0)
    for dim in (1, 2, 3):
        b = np.sqrt(2 * np.log(4 * dim / tolerance))
        for blocks in range(1, nodes.MOST[dim] if dim > 1 else 4):
            full = (blocks * nodes.WAVES[dim] * 2 * np.pi / b - b) / np.sqrt(float(tau))
            for length in full * (1 + 2.0**-24 * np.array([-12, -4, -2, -1, 0, 1, 2, 4, 12])):
                x = np.float32([[0.0] * dim, [length] * dim])
                found = examined(Settings(Fourier(tolerance)), tau, x, x, x[:, 0]).blocks
                assert found is not None and blocks <= found <= max(2 * blocks, 2)
                assert fit(found, x.mean(0), x[1], np.full(dim, np.sqrt(tau)))
        sums = gauss_sum(x, x, np.ones(2, np.float32), tau, engine=Fourier(tolerance))
        assert np.max(np.abs(np.asarray(sums) - 1)) < 2 * tolerance
    assert examined(Settings(Fourier()), 1.0, x * np.nan, x, x[:, 0]).blocks is None
    assert explain(x[:20], x[:20], x[:20, 0], 1e-3, engine="fourier").reason.startswith("20 × 20 × 20 waves hold")


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_auto_has_the_digits_wherever_points_lie(rng, free_waves, dim):
    """Of one program: clouds that waves hold, those that they do not, and some of whose sums are small."""
    ours, num = with_gradients(gauss_sum), 700
    clouds = [rng.normal(size=(2 * num, dim)) * size for size in (0.01, 1.0, 20.0)]
    for x in map(np.float32, [*clouds, clouds[1] + 1e4, *(anywhere(rng, 2 * num, dim) for _ in range(4))]):
        v, g = rng.normal(size=num).astype("float32"), rng.uniform(size=num).astype("float32")
        for values, cotangent in ((v, g), (g, np.ones_like(g))):
            case = x[:num], x[num:], values, np.float32(0.7), cotangent
            sums, gradients = ours(*case)
            assert max(errors("gauss", *case, sums, *gradients)) < 4e-6


def test_differences_are_for_what_waves_do_not_hold(rng, free_waves, monkeypatch):
    """Those that are NaN show where they were taken: nowhere, at a few queries, or everywhere."""
    nothing = lambda *given: jax.tree.map(lambda x: x * jnp.nan, sums_by_differences(*given))  # noqa: E731
    monkeypatch.setattr(fitting, "sums_by_differences", nothing)
    x, y = (np.float32(rng.normal(size=(5000, 2))) for _ in range(2))
    summed = jax.jit(lambda x: gauss_sum(x, y, np.ones(5000, np.float32), 2.0))
    assert np.isfinite(summed(x)).all()
    assert 0 < np.isnan(summed(np.where(np.arange(5000)[:, None] % 1500 == 0, x * 0 + 500, x))).sum() <= 5000 // 32
    assert np.isnan(summed(300 * x)).all()
    wide, weights = np.float32(rng.uniform(0, 45, (5000, 2))), np.ones(5000, np.float32)  # 120 waves, not 40
    assert np.isfinite(jax.jit(lambda x: gauss_sum(x, wide, weights, 2.0))(wide)).all()
    pulled = jax.jit(jax.grad(lambda x, tau: gauss_sum(x, y[:, :1], weights, tau).sum()))
    assert np.isfinite(pulled(x[:, :1], 2.0)).all() and np.isnan(pulled(x[:, :1], 1e-4)).all()


def test_auto_under_transformations(rng, free_waves):
    """Second derivatives, batches, several τ and a mesh: each has a conditional of its own, or none."""
    x, y = (np.float32(rng.normal(size=(300, 2))) for _ in range(2))
    v, tau = np.float32(rng.normal(size=300)), np.float32([0.3, 1.0, 4.0])

    def every(**options):
        summed = functools.partial(gauss_sum, **options)

        def product(x):
            return jax.grad(lambda x: summed(x, y, v, 1.0)[:40].sum())(x)

        several = jax.vmap(summed, (None, None, None, 0))(x, y, v, tau)
        moved = jax.vmap(summed, (0, None, None, None))(jnp.stack([x, x + 1]), y, v, 1.0)
        return (
            several,
            moved,
            jax.grad(lambda x: jnp.vdot(product(x), y))(x),
            jax.grad(mmd_squared)(x, y, tau, **options),
        )

    for ours, exact in zip(jax.jit(every)(), every(engine="differences"), strict=True):
        assert relative_error(ours, exact) < 3e-6
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    assert relative_error(gauss_sum_sharded(x, y, v, 1.0, mesh=mesh, key_axis="d"), gauss_sum(x, y, v, 1.0)) < 3e-6


def test_auto_takes_waves_of_many_points(rng):
    def plan(num, dim):
        points, values = (jax.ShapeDtypeStruct((num, x), "float32") for x in (dim, 1))
        return explain(points, points, values)

    assert all("waves of each coordinate hold the points" in plan(2**20, dim).reason for dim in (1, 2, 3))
    assert not any(plan(*x).name == "fourier" for x in ((1000, 1), (10_000, 3), (2**20, 4)))
    x, v = np.float32(rng.normal(size=(30_000, 2))), np.ones((30_000, 1), np.float32)
    assert explain(x, x, v).reason.startswith("40 × 40 waves hold the points' box of")
    far = explain(x, x, v, 1e6)
    assert far.name == "blocked" and "differences of coordinates sum all pairs" in far.reason


@pytest.mark.parametrize("dim, blocks", [(1, 128), (2, 5), (3, 2)])
def test_all_waves_at_once_are_those_of_the_blocks(rng, dim, blocks):
    """Coefficients, values and derivatives; so a sketch may be made in one place and asked in another."""
    tolerance, dtype = 1e-7, "float32"
    b = np.sqrt(2 * np.log(4 * dim / tolerance))
    length = 0.999 * (blocks * nodes.WAVES[dim] * 2 * np.pi / b - b)
    x, v = np.float32(rng.uniform(0, length, (200, dim))), np.float32(rng.normal(size=(2, 200)))
    given = blocks, jnp.full(dim, length / 2, dtype), jnp.full(dim, length, dtype), jnp.ones(dim, dtype), tolerance
    (one, fits, _), (other, others_fit, _) = (nodes.nodes(*given, at_once=y) for y in (True, False))
    assert fits and others_fit and one.at_once and not other.at_once and (one.period == other.period).all()

    @jax.jit
    def of_both(x, v):
        made = [(y, fourier.coefficients(y, x, v)) for y in (one, other)]
        return [(a, fourier.values_at(y, x, a), fourier.derivatives_at(y, x, a)) for y, a in made]

    for ours, theirs, tolerance in zip(*of_both(x, v), (2e-6, 5e-6, 5e-6), strict=True):
        assert relative_error(ours, np.asarray(theirs)) < tolerance


def test_sketches(rng, tmp_path):
    keys, queries = (rng.uniform(0, 1, (n, 2)).astype(np.float32) for n in (500, 60))
    values = rng.normal(size=(500, 2)).astype(np.float32)
    sketch = fourier_sketch(keys[:200], values[:200], 900.0, lower=0, upper=1)
    sketch += fourier_sketch(keys[200:], values[200:], 900.0, lower=0, upper=1)
    sketch.save(tmp_path / "sketch.npz")
    phi, _, _ = pairs("gauss", queries, keys, 900.0)
    assert error(FourierSketch.load(tmp_path / "sketch.npz")(queries), phi @ values, phi @ np.abs(values)) < 2e-6
    line = fourier_sketch(keys[:, :1], values, 1e9, lower=0, upper=1)  # of more waves than are computed at once
    phi, _, _ = pairs("gauss", queries[:, :1], keys[:, :1], 1e9)
    assert error(line(queries[:, :1]), phi @ values, phi @ np.abs(values) + 1e-6 * np.abs(values).sum(0)) < 2e-6
