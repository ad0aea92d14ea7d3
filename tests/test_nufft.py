"""Waves by finufft: what they are by products, under `vmap` and in threads too; nothing where it is not installed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgauss
from jaxgauss import explain, gauss_sum
from jaxgauss._engines.fourier import boxes, nufft
from jaxgauss._engines.fourier import cost as few_dimensions
from jaxgauss._engines.fourier import frequencies as nodes
from jaxgauss._engines.fourier import series as fourier
from jaxgauss._engines.fourier import sums as waves
from jaxgauss._inspect import calibrate

pytest.importorskip("finufft")

BOXES = [  # dtype, dimension, length and blocks of waves
    *(("float32", 1, 90, [3]), ("float32", 3, 18, [2, 2, 2])),
    *(("float64", 1, 20, [1]), ("float64", 2, 60, [2, 2])),
]
ERRORS = {"float32": 1e-6, "float64": 5e-14}


def operands(rng, dim, length, channels, dtype, num=90):
    x = rng.uniform(-length / 2, length / 2, (num, dim)).astype(dtype)
    x[:2] = [[-length / 2], [length / 2]]
    return x, rng.normal(size=(channels, num)).astype(dtype)


def nodes_of(x, most=4):
    """Those of points in units of the bandwidth, for products and for fast transforms."""
    around = boxes.box(jnp.asarray(x))
    of, fits, _ = nodes.nodes(most, around.center, around.extent, jnp.ones(x.shape[-1], x.dtype), 1e-7)
    assert fits
    return of, of._replace(eps=jnp.full((), nufft.LEAST[x.dtype.name], x.dtype))


def relative(found, exact):
    assert found.shape == exact.shape and found.dtype == exact.dtype
    found, exact = (np.ravel(np.asarray(x, "float64")) for x in (found, exact))
    return np.linalg.norm(found - exact) / np.linalg.norm(exact)


@pytest.mark.parametrize("dtype, dim, length, counts", BOXES)
def test_coefficients_and_values_are_those_by_products(rng, dim, length, counts, dtype):
    """Of three channels, of which two share a transform."""

    @jax.jit
    def both(of, x, v):
        found = fourier.coefficients(of, x, v)
        decaying = found * nodes.spectrum(of, jnp.ones((1, dim), dtype), jnp.ones(1, dtype))[None]
        return found, fourier.values_at(of, x, decaying), fourier.derivatives_at(of, x, decaying[:1])

    x, v = operands(rng, dim, length, 3, dtype)
    of, fast = nodes_of(x)
    assert of.counts.tolist() == counts
    for found, exact, factor in zip(both(fast, x, v), both(of, x, v), (1, 1, 10), strict=True):
        assert relative(found, exact) < factor * ERRORS[dtype]


def test_channels_of_any_size_keep_their_digits(rng):
    """Two share a transform: neither has the rounding of the other, nor its NaN, nor overflows."""
    x, v = operands(rng, 2, 9, 4, np.dtype("float32"))
    v *= np.float32([[1e-30], [1], [np.nan], [1e34]])
    of, fast = nodes_of(x)
    exact = fourier.coefficients(of, x, v)
    found = fourier.coefficients(fast, x, v)
    assert np.isnan(found[2, :80, :80]).all()
    for i in (0, 1, 3):
        assert relative(found[i], exact[i]) < 1e-6
    values = fourier.values_at(fast, x, exact)
    assert np.isnan(values[2]).all() and np.isfinite(values[jnp.asarray([0, 1, 3])]).all()


def test_points_that_are_no_numbers_and_no_points(rng):
    """In a query its own row, in a key all coefficients; finufft would read out of bounds."""
    x, v = operands(rng, 2, 9, 2, np.dtype("float64"))
    _, fast = nodes_of(x)
    found, others = fourier.coefficients(fast, x, v), np.arange(len(x)) != 5
    for bad in (np.nan, np.inf):
        spoiled = x.copy()
        spoiled[5, 1] = bad
        assert np.isnan(fourier.coefficients(fast, spoiled, v)).sum() == 2 * 80**2
        values = fourier.values_at(fast, spoiled, found)
        assert np.isnan(values[:, 5]).all()
        np.testing.assert_array_equal(values[:, others], fourier.values_at(fast, x, found)[:, others])
    found = nufft.coefficients_by_transforms(fast, 40, x[:0], v[:, :0])
    assert found.shape == (2, 320, 320) and not found.any()
    assert nufft.values_by_transforms(fast, 40, x[:0], found).shape == (2, 0)


@pytest.mark.parametrize("mapped", [(0, None, None), (0, 0, 0), (None, None, 0)])
def test_vmap_of_nodes_and_points(rng, mapped):
    boxes = [operands(rng, 2, length, 1, np.dtype("float64")) for length in (9, 30)]
    x, v = (np.stack(z) for z in zip(*boxes, strict=True))
    both = [nodes_of(np.concatenate([x[i], x[1]])) for i in range(2)]
    of, fast = (jax.tree.map(lambda *y: jnp.stack(y), *each) for each in zip(*both, strict=True))

    def some(*operands):
        return [z if m == 0 else jax.tree.map(lambda y: y[0], z) for m, z in zip(mapped, operands, strict=True)]

    f = jax.jit(jax.vmap(lambda of, x, v: fourier.values_at(of, x, fourier.coefficients(of, x, v)), mapped))
    assert relative(f(*some(fast, x, v)), f(*some(of, x, v))) < 1e-13


def test_threads_take_parts_of_the_points(rng, monkeypatch):
    """As many as there are cores, and never a grid for few points."""
    x, v = operands(rng, 1, 20, 3, np.dtype("float64"), num=1000)
    of, fast = nodes_of(x)
    seen, plan = [], __import__("finufft").Plan
    monkeypatch.setattr("finufft.Plan", lambda *y, **z: (seen.append(y), plan(*y, **z))[1])
    monkeypatch.setattr(nufft.os, "cpu_count", lambda: 5)
    for points, parts in ((8192, 1), (100, 5), (300, 3)):
        monkeypatch.setattr(nufft, "POINTS", points)
        seen.clear()
        found = jax.block_until_ready(fourier.coefficients(fast, x, v))
        assert len(seen) == parts and relative(found, fourier.coefficients(of, x, v)) < 1e-14
        assert relative(fourier.values_at(fast, x, found), fourier.values_at(of, x, found)) < 1e-14
    monkeypatch.setattr(nufft, "SHARE", 0)
    seen.clear()
    jax.block_until_ready(fourier.coefficients(fast, x, v))
    assert len(seen) == 1


def test_a_failure_surfaces_and_the_process_lives_on(rng, monkeypatch):
    x, v = operands(rng, 2, 9, 1, np.dtype("float64"))
    _, fast = nodes_of(x)
    with monkeypatch.context() as patch:
        patch.setattr("finufft.Plan", lambda *_, **__: 1 / 0)
        with pytest.raises(jax.errors.JaxRuntimeError, match=r"`jaxgauss`: .*fourier.nufft failed on .*zero"):
            jax.block_until_ready(fourier.coefficients(fast, x, v))
    assert np.isfinite(fourier.coefficients(fast, x, v)).all()


@pytest.mark.parametrize(
    "num, installed, ways",
    [
        (301, True, {"products"}),
        (3001, True, {"products", "finufft"}),
        (20_001, True, {"finufft"}),
        (20_002, False, {"products"}),
    ],
)
def test_a_program_has_only_the_ways_that_its_sizes_leave_open(monkeypatch, rng, num, installed, ways):
    """What is not there need not be compiled. No other test has as many points."""
    monkeypatch.setattr(nufft, "is_installed", lambda: installed)
    traced = set()
    for name, module, function in (
        ("products", fourier, "_values_by_products"),
        ("finufft", nufft, "values_by_transforms"),
    ):
        original = getattr(module, function)
        monkeypatch.setattr(module, function, lambda *x, name=name, f=original: (traced.add(name), f(*x))[1])
    x, v = rng.uniform(size=(num, 2)).astype("float32"), rng.normal(size=num).astype("float32")
    jax.block_until_ready(jax.value_and_grad(lambda x, v: gauss_sum(x, x, v, engine="fourier").sum())(x, v))
    assert traced == ways


@pytest.fixture
def seen(monkeypatch):
    """The tolerances that transforms are asked for."""
    tolerances, transform = [], nufft._transform
    monkeypatch.setattr(nufft, "_transform", lambda *x: (tolerances.append(float(x[2])), transform(*x))[1])
    return tolerances


def test_what_finufft_is_asked_for(rng, seen):
    """Sums have float32's digits, gradients far more: else queries would be in doubt, and summed again by tiles."""
    x = jnp.asarray(rng.uniform(0, 20, (20_000, 2)), "float32")
    v = jnp.ones(len(x), "float32")
    jax.block_until_ready(gauss_sum(x, x, v))
    np.testing.assert_allclose(seen, nufft.LEAST["float32"], rtol=1e-6)
    seen.clear()
    jax.block_until_ready(jax.grad(lambda q: gauss_sum(q, x, v).sum())(x))
    np.testing.assert_allclose(seen, waves.SUMS["float32"].of_one / waves.OF_PROMISE, rtol=1e-6)


def test_costs_choose_and_explain_tells(rng):
    """Few points by products, many by finufft; many waves, too, as below."""
    for way, num in (("by products", 3000), ("by finufft", 20_000)):
        x = rng.uniform(-10, 10, (num, 2)).astype("float32")
        assert way in explain(x, x, np.ones(num, "float32")).reason


def test_many_waves(rng, monkeypatch):
    """Of a box of some hundreds of bandwidths, that products do not take."""
    x = rng.uniform(-150, 150, (100_000, 2)).astype("float32")
    v = rng.normal(size=100_000).astype("float32")
    plan = explain(x, x, v)
    assert plan.name == "fourier" and "by finufft" in plan.reason
    phi = np.exp(-np.square(np.float64(x)[:50, None] - np.float64(x)[None]).sum(-1) / 2)
    wrong = np.asarray(jax.jit(gauss_sum)(x, x, v))[:50] - phi @ np.float64(v)
    assert np.linalg.norm(wrong) < 2e-6 * np.linalg.norm(phi @ np.abs(np.float64(v)))
    monkeypatch.setattr(nufft, "is_installed", lambda: False)
    assert explain(x, x, v).name != "fourier"


def test_a_tolerance_makes_transforms_cheap(rng, monkeypatch, seen, tolerance=1e-3):
    monkeypatch.setattr("jaxgauss._engines.fourier.sums.transforms_pay", lambda *_: True)
    x, v = operands(rng, 2, 9, 1, np.dtype("float32"), num=500)
    found = np.asarray(gauss_sum(x, x, v[0], engine=jaxgauss.Fourier(tolerance)))
    phi = np.exp(-np.square(np.float64(x)[:, None] - np.float64(x)[None]).sum(-1) / 2)
    assert np.max(np.abs(found - phi @ np.float64(v[0]))) < tolerance * np.abs(v).sum()
    np.testing.assert_allclose(seen, [tolerance / 8] * 2, rtol=1e-6)


def test_calibrate_measures_both(monkeypatch):
    found = calibrate.trials("float64", 64, 2, 1)
    q = jnp.asarray(np.random.default_rng(0).normal(size=(64, 2)))
    sums = {name: found[name].function(q, q, jnp.ones((64, 1))) for name in ("waves in float64", "nufft in float64")}
    assert 0 < relative(*sums.values()) < 1e-13
    monkeypatch.setattr(nufft, "is_installed", lambda: False)
    assert "nufft in float64" not in calibrate.trials("float64", 64, 2, 1)


def test_most_blocks_are_more_where_it_is_installed(monkeypatch):
    sizes = few_dimensions.Sizes(10**6, 10**6, 2, 1)
    assert few_dimensions.most_blocks("float32", sizes) == few_dimensions.MORE[2] > nodes.MOST[2]
    monkeypatch.setattr(nufft, "is_installed", lambda: False)
    assert few_dimensions.most_blocks("float32", sizes) == nodes.MOST[2]
