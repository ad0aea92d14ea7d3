"""Sums by waves, of many points in one, two and three dimensions: right for any cloud, and taken where they pay."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_anywhere import clouds, error, errors, pairs

from jaxgauss import (
    explain,
    gauss_sum,
    kde_logpdf,
    kernel_mean,
    ksd_squared,
    log_gauss_sum,
    mmd_flow_velocity,
    mmd_squared,
    mmd_witness,
    svgd_direction,
)
from jaxgauss._checks.settings import Settings
from jaxgauss._engines import boxes, few_dimensions, fourier, nodes, nufft, radial, waves
from jaxgauss._engines.examined import examined
from jaxgauss._engines.plan import Plan
from jaxgauss._engines.wanted import NOTHING, Channels, Wanted
from jaxgauss._kernels.kernels import GAUSS
from oracle import relative_error, with_gradients

CHOSEN = Plan("cpu", "blocked", "float32", "xla", "")


def each(names, *cases):
    """Ways of the fixture `free`, and what goes with them: every dimension and every method by one way at least."""
    return pytest.mark.parametrize(f"free, {names}", cases, indirect=["free"])


WAYS = "products", "finufft"
by_products, by_finufft = (pytest.mark.parametrize("free", [x], indirect=True) for x in WAYS)


@pytest.fixture(params=WAYS)
def free(request, monkeypatch):
    """Waves take no time, so that they are taken wherever they hold the points; by products, or by fast transforms."""
    fast, transformed, calls = request.param == "finufft", nufft._transform, []
    if fast:
        pytest.importorskip("finufft")
    monkeypatch.setattr(nufft, "is_installed", lambda: fast)
    monkeypatch.setattr(nufft, "_transform", lambda *x: (calls.append(1), transformed(*x))[1])
    monkeypatch.setattr(waves, "transforms_pay", lambda *_: True)
    monkeypatch.setattr(few_dimensions, "_of_waves", lambda *_: 0.0)
    jax.clear_caches()
    yield calls
    assert fast or not calls
    jax.clear_caches()


@each("method, dim", *((x, "fourier", 1) for x in WAYS), ("products", "auto", 3), ("finufft", "auto", 2))
def test_sums_and_all_gradients_of_any_cloud(rng, free, method, dim):
    ours = with_gradients(functools.partial(gauss_sum, method=method))
    for case in clouds(rng, dim, 8):
        sums, gradients = ours(*case)
        of_sums, of_queries, of_keys, of_values, of_tau = errors("gauss", *case, sums, *gradients)
        assert of_sums < 2e-6 and of_values < 2e-6
        assert of_queries < 1e-5 and of_keys < 1e-5
        if method == "auto":
            assert of_tau < 1e-5
    assert bool(free) == nufft.is_installed()


@each("dim", ("products", 1), ("finufft", 2), ("products", 3))
def test_logarithms_and_means_of_any_cloud(rng, free, dim):
    """Rows in far tails as well: these promise digits to each row."""
    logs, means = jax.jit(log_gauss_sum), jax.jit(kernel_mean)
    for x, y, v, tau, _ in clouds(rng, dim, 8):
        weights = rng.normal(size=len(y)).astype(np.float32)
        apart = np.float64(y)[None] - np.float64(x)[:, None]
        exponents = weights - float(tau) / 2 * np.square(apart).sum(-1)
        largest = exponents.max(1, keepdims=True)
        p = np.exp(exponents - largest)
        exact, size = largest[:, 0] + np.log(p.sum(1)), p @ np.abs(v) / p.sum(1)
        assert np.max(np.abs(np.asarray(logs(x, y, weights, tau)) - exact) / np.maximum(1, np.abs(exact))) < 1e-5
        assert error(means(x, y, v, tau, log_weights=weights), p @ v / p.sum(1), size) < 1e-5


def test_float64(rng):
    for dim in (1, 2, 3):
        x = rng.uniform(-4, 4, (1500, dim))
        v = rng.normal(size=(1500, 2))
        phi, _, _ = pairs("gauss", x, x, 1.0)
        found = gauss_sum(x, x, v, 1.0, method="fourier")
        assert found.dtype == jnp.float64 and error(found, phi @ v, phi @ np.abs(v)) < 1e-12


@pytest.mark.parametrize(
    "dim, blocks, tolerances",
    [(1, 1, [1e-6]), (1, 3, [1e-9]), (2, 1, [1e-2]), (2, 2, [1e-4]), (3, 1, [1e-2, 1e-9])],
)
def test_the_bound_holds(dim, blocks, tolerances):
    """Of Φ itself, for one key and queries all over the box, corners included; of boxes that fill their waves."""
    for tolerance in tolerances:
        num = blocks * nodes.WAVES[dim] * 2 * np.pi
        length = 0.999 * (num / (b := np.sqrt(2 * np.log(4 * dim / tolerance))) - b)
        x = np.stack(np.meshgrid(*[np.linspace(0, length, 7)] * dim), -1).reshape(-1, dim)
        found = gauss_sum(x, x[:1], np.ones(1), 1.0, method="fourier", tolerance=tolerance)
        wrong = np.max(np.abs(found - np.exp(-np.square(x - x[0]).sum(-1) / 2)))
        around = boxes.box(jnp.asarray(x))
        of, fits, bound = nodes.nodes(8, around.center, around.extent, jnp.ones(dim), tolerance)
        assert fits and wrong - 1e-14 <= bound <= tolerance < 2 * bound and (of.counts == blocks).all()


@each("method", ("products", "fourier"), ("finufft", "auto"))
def test_derivatives_of_second_order(rng, free, method):
    """Of a sum and of its slopes, beside plain JAX in float64."""
    x, y = (rng.normal(size=(n, 2)) for n in (400, 401))
    v, direction = rng.normal(size=401), rng.normal(size=(400, 2))

    def plain(x, y, v, tau):
        return jnp.exp(-tau / 2 * jnp.square(x[:, None] - y[None]).sum(-1)) @ v

    def of_slopes(f):
        def curvature(x, y, v, tau):
            slope = jax.grad(lambda x: jnp.square(f(x, y, v, tau)).sum())(x)
            return (slope * direction.astype(x.dtype)).sum()

        return jax.grad(curvature, (0, 1, 2, 3))

    exact = jax.jit(of_slopes(plain))(x, y, v, 0.7)
    single = [np.float32(z) for z in (x, y, v, 0.7)]
    found = jax.jit(of_slopes(functools.partial(gauss_sum, method=method)))(*single)
    for a, b in zip(found, exact, strict=True):
        assert error(a, np.asarray(b), np.asarray(b)) < 2e-5


def test_waves_are_taken_where_they_pay(rng):
    """And what points that are here tell, a program need not ask."""
    x = rng.uniform(-5, 5, (20000, 2)).astype(np.float32)
    v = np.ones(20000, np.float32)
    assert examined(Settings(), 1.0, x, x, v).waves
    assert not examined(Settings(), 1e8, x, x, v).waves  # so narrow that tiles leave nearly all out
    assert examined(Settings(), 1.0, x[:600], x[:600], v[:600]).waves is not True
    assert not examined(Settings(method="blocked"), 1.0, x, x, v).waves
    assert not examined(Settings(), 1.0, np.repeat(x, 2, 1), np.repeat(x, 2, 1), v).waves  # four dimensions


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_gradients_take_more_points_than_sums_until_waves_pay(dim):
    counts = [2**i for i in range(5, 20)]
    sizes = ([few_dimensions.Sizes(n, n, dim, 1, pulls=pulls) for n in counts] for pulls in (False, True))
    sums, gradients = ([few_dimensions.most_blocks("float32", x) for x in y] for y in sizes)
    assert 0 in sums and 0 in gradients and sums[-1] > 0 < gradients[-1]
    assert all(x >= y for x, y in zip(sums, gradients, strict=True)) and sums != gradients


def test_gradients_have_an_estimate_of_their_own(rng, monkeypatch):
    """Outside of `jit` and inside."""
    monkeypatch.setattr(few_dimensions, "PULLS_OF_WAVES", 1e9)
    x, v = rng.uniform(-5, 5, (20000, 2)).astype(np.float32), np.ones((20000, 1), np.float32)
    assert examined(Settings(), 1.0, x, x, v).waves and not examined(Settings(), 1.0, x, x, v, pulls=True).waves
    operands = *map(jnp.asarray, (x, x, v)), jnp.ones((), "float32")
    assert few_dimensions.are_for_waves(CHOSEN, *operands) and not few_dimensions.are_for_waves(
        CHOSEN, *operands, pulls=True
    )


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_the_share_of_tiles_is_estimated(rng, dim):
    for num, length in itertools.product((4096, 16384), (20, 200, 2000)):
        x = jnp.asarray(rng.uniform(0, length, (num, dim)), "float32")
        found = radial.share_of_tiles(GAUSS, CHOSEN, x, x, jnp.ones((), "float32"))
        of = few_dimensions.Sizes(num, num, dim, 1)
        assert 0.4 < few_dimensions.share_within(np, of, np.full(dim, float(length))) / found < 2.5


def test_explain_tells_of_waves(rng):
    x = rng.normal(size=(20000, 2)).astype(np.float32)
    found = explain(x, x, np.ones(20000, np.float32), 4.0)
    assert found.method == "fourier" and "40 × 40 waves" in found.reason and "in doubt" in found.reason
    assert explain(x[:500], x[:500], np.ones(500, np.float32), 4.0).method == "dense"


CLOUDS = {
    "a line": lambda x: x * [1, 0],
    "a diagonal": lambda x: x[:, :1] * [1, 1],
    "one point": lambda x: x * 0 + 7,
    "an outlier": lambda x: x + 1e4 * (np.arange(len(x))[:, None] == 3),
    "two clusters": lambda x: x + 30 * (np.arange(len(x))[:, None] % 2),
    "close together": lambda x: x * 1e-6,
}


@each("compiles", ("products", True), ("finufft", False))
def test_clouds_that_are_not_alike_everywhere(rng, free, compiles):
    """Values of both signs that nearly cancel; sums and gradients, by `jit` and without."""
    v = np.where(np.arange(700) % 2, 1, -1).astype(np.float32)
    f = jax.value_and_grad(lambda x, y: gauss_sum(x, y, v, 1.0).sum())
    f = jax.jit(f) if compiles else f
    for name, of in CLOUDS.items():
        x, y = (of(rng.normal(size=(700, 2))).astype(np.float32) for _ in range(2))
        phi, _, apart = pairs("gauss", x, y, 1.0)
        w = phi * np.float64(v)
        size = (np.abs(w) * np.linalg.norm(apart, axis=-1)).sum(1)
        total, slope = f(x, y)
        assert error(total, (phi @ np.float64(v)).sum(), phi.sum()) < 2e-6, name
        assert error(slope, (w[..., None] * apart).sum(1), size) < 1e-5, name


@by_products
def test_few_points_far_away_leave_the_others_to_waves(rng, monkeypatch, free):
    """Queries and keys, at any distance: sums, gradients and logarithms of all are right, and few are in doubt."""
    for name, x in {"GROUPS": 64, "BEYOND": (0, 3, 8), "LEAST": 256}.items():
        monkeypatch.setattr(boxes, name, x)
    monkeypatch.setattr(few_dimensions, "OUTSIDE", 1)
    monkeypatch.setattr(few_dimensions, "DIFFERENCES", -1.0)  # so that the smallest box is taken
    num, tau = 700, np.float32(0.7)

    sums_of, logs_of = with_gradients(gauss_sum), jax.jit(lambda q, k: log_gauss_sum(q, k, None, tau))
    for away in (8, 15, 25, 1e5, 1e37, np.inf):
        x, y = rng.normal(size=(2, num, 2)).astype(np.float32)
        x[:3], y[2:5] = (rng.choice([-1, 1], (3, 2)) * away * rng.uniform(1, 2, (3, 1)) for _ in range(2))
        x[3] = y[3] + (0.3 if away < 1e5 else 0)  # a far key is seen from a far query
        v, g = rng.normal(size=(2, num)).astype(np.float32)
        v[2:5] *= 1e6  # what is left out would be seen
        (sums, gradients), logs = sums_of(x, y, v, tau, g), logs_of(x, y)
        rows, keys = np.arange(num), np.arange(num)
        if away > 1e6:  # of the others
            rows, keys = rows[5:], np.delete(keys, [2, 3, 4])
        phi, _, apart = pairs("gauss", x[rows], y[keys], tau)
        assert error(np.asarray(sums)[rows], phi @ v[keys], phi @ np.abs(v[keys])) < 2e-6
        exact = np.logaddexp.reduce(-float(tau) / 2 * np.square(apart).sum(-1), 1)
        assert np.max(np.abs(np.asarray(logs)[rows] - exact) / np.maximum(1, np.abs(exact))) < 1e-5
        if away < 1e6:
            assert all(x < 1e-5 for x in errors("gauss", x, y, v, tau, g, sums, *gradients))
        assert "nearly all points' box" in explain(x, y, v, tau).reason


def test_boxes_of_nearly_all_points(rng):
    """The first is that of all; as many points are outside of the others as is said, of whatever order."""
    x = rng.normal(size=(20_011, 2)).astype(np.float32)
    x[7] = np.nan
    for points in (x, np.sort(x, 0), x[:, ::-1] * 1e30):
        found = np.asarray(boxes.boxes(jnp, jnp.asarray(points), jnp.asarray(points[:5000])))
        np.testing.assert_array_equal(found, boxes.boxes(np, points, points[:5000]))
        np.testing.assert_array_equal(found[0], [np.nanmin(points, 0), np.nanmax(points, 0)])
        outside = [int(boxes.outside(jnp.asarray(ends), jnp.asarray(points)).sum()) for ends in found]
        assert outside[0] == 0 and (outside[1:] <= 4.5 * boxes.points_beyond(4)[1:]).all()


@pytest.mark.filterwarnings("ignore:.*got NaN among them")
def test_what_is_not_finite_stays_in_its_row(rng, free):
    x = rng.normal(size=(600, 2)).astype(np.float32)
    spoiled = x.copy()
    spoiled[5, 1] = np.nan
    sums = jax.jit(gauss_sum)(spoiled, x, np.ones(600, np.float32), 1.0)
    exact, _, _ = pairs("gauss", x, x, 1.0)
    others = np.arange(600) != 5
    assert np.isnan(sums[5]) and error(sums[others], exact.sum(1)[others], exact.sum(1)[others]) < 2e-6
    large = jax.jit(gauss_sum)(x, x, np.full(600, 1e37, np.float32), 1.0)
    assert np.isfinite(large[exact.sum(1) < 10]).all()


@by_finufft
def test_batches_and_vmap(rng, free):
    x, v = rng.normal(size=(2, 600, 2)).astype(np.float32), rng.normal(size=(2, 600, 3)).astype(np.float32)
    f = jax.value_and_grad(lambda x, v, tau: gauss_sum(x, x, v, tau).sum(), (0, 1))
    vmapped = jax.vmap(f)(x, v, np.float32([1.0, 2.0]))
    for i in range(2):
        for a, b in zip(jax.tree.leaves(vmapped), jax.tree.leaves(f(x[i], v[i], i + 1.0)), strict=True):
            np.testing.assert_allclose(a[i], b, rtol=2e-4, atol=2e-4)


def test_export_by_name(rng, monkeypatch):
    """By products; a program that calls finufft is refused by JAX, as one that calls PyTorch is."""
    monkeypatch.setattr(nufft, "is_installed", lambda: False)
    x, v = rng.normal(size=(300, 2)).astype(np.float32), np.ones(300, np.float32)
    f = jax.jit(functools.partial(gauss_sum, method="fourier"))
    again = jax.export.export(f)(x, x, v, np.float32(1))
    np.testing.assert_allclose(again.call(x, x, v, np.float32(1)), f(x, x, v, 1.0), rtol=1e-6)


@by_products
def test_methods_are_as_without(rng, monkeypatch, free):
    """MMD and densities, with their gradients, by waves and by pairs."""
    x, y = rng.normal(size=(2, 900, 2)).astype(np.float32)

    def values():
        jax.clear_caches()
        mmd = jax.value_and_grad(lambda x: mmd_squared(x, y + 0.3, 2.0))(x)
        logs = jax.value_and_grad(lambda x: kde_logpdf(x, y, 9.0).sum())(x)
        return jax.tree.leaves((mmd, logs))

    by_waves = values()
    monkeypatch.setattr(few_dimensions, "_of_waves", lambda *_: np.inf)
    for a, b in zip(by_waves, values(), strict=True):
        assert error(a, np.float64(b), np.float64(b)) < 2e-5


@pytest.mark.parametrize(
    "options, message",
    [
        ({"tolerance": 1e-3}, "got tolerance 0.001, method 'auto'"),
        ({"method": "fourier", "tolerance": 2.0}, "got 2.0"),
        ({"method": "fourier", "precision": "float16"}, "got precision 'float16'"),
    ],
)
def test_options_that_do_not_fit(options, message):
    with pytest.raises(ValueError, match=message):
        gauss_sum(np.ones((3, 2)), np.ones((3, 2)), np.ones(3), **options)


def test_too_many_dimensions_and_no_number():
    with pytest.raises(ValueError, match="got 'fourier' in 4"):
        gauss_sum(np.ones((3, 4)), np.ones((3, 4)), np.ones(3), method="fourier")
    with pytest.raises(TypeError, match="got str"):
        gauss_sum(np.ones((3, 2)), np.ones((3, 2)), np.ones(3), method="fourier", tolerance="1e-3")


def test_rounding_is_estimated(rng, free):
    """The error that waves assume is that of the queries, within a factor, of points alike or in a cluster."""

    @jax.jit
    def by_waves(x):
        one, ones, nothing = (jnp.ones((n, width), "float32") for n, width in ((1, 1), (3000, 1), (3000, 0)))
        of = waves.wave_grid(3, CHOSEN, promise, one, few_dimensions.Sizes(3000, *x.shape, 1), boxes.box(x))
        return waves.sums_by_waves(wanted, of, promise, x, x, ones, one, nothing, nothing)

    promise, wanted = waves.SUMS["float32"], Wanted(Channels((GAUSS,), (1,)), NOTHING)
    for dim in (1, 2, 3):
        for x in (rng.uniform(-6, 6, (3000, dim)), rng.normal(size=(3000, dim))):
            x = x.astype(np.float32)
            sums, doubt = by_waves(x)
            phi, _, _ = pairs("gauss", x, x, 1.0)
            assert doubt.mean() < 0.01
            assert error(sums.sums[:, 0], phi.sum(1), phi.sum(1)) < 1e-6


@by_finufft
def test_on_a_mesh(rng, free):
    """Under `shard_map` types have the axes that arrays vary over: of both ways, and of loops of a length that does."""
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    x = jnp.asarray(rng.normal(size=(600, 2)).astype(np.float32))

    def both(x):
        sums, pullback = jax.vjp(lambda x: gauss_sum(x, x, jnp.ones(len(x), "float32"), 1.0), x)
        return sums, pullback(2 * sums)[0] + jax.grad(lambda x: log_gauss_sum(x, x).sum())(x)

    spec = jax.sharding.PartitionSpec("d")
    found = jax.jit(jax.shard_map(both, mesh=mesh, in_specs=spec, out_specs=spec))(x)
    for a, b in zip(found, both(x), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@by_products
def test_rows_in_far_tails(rng, free):
    """Sums of which no term is above 1e-20 have digits of their own: waves alone leave rounding there."""
    x, y = (rng.normal(size=(600, 2)).astype(np.float32) for _ in range(2))
    x[:8] = np.stack([np.linspace(13, 15, 8), np.zeros(8)], 1)
    phi, _, _ = pairs("gauss", x, y, 1.0)
    exact = phi.sum(1)
    sums, logs = (
        np.asarray(jax.jit(f)(*given)) for f, given in ((gauss_sum, (x, y, np.ones(600, "f"))), (log_gauss_sum, (x, y)))
    )
    assert exact[:8].max() < 1e-20
    assert np.max(np.abs(sums / exact - 1)) < 1e-3
    assert np.max(np.abs(logs - np.log(exact)) / np.maximum(1, np.abs(np.log(exact)))) < 1e-5


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_slopes_are_derivatives(rng, dim):
    """Those of waves at the points are those of the coefficients, and so are their own derivatives."""
    x = jnp.asarray(rng.normal(size=(50, dim)))
    around = boxes.box(x)
    of = nodes.nodes(1, around.center, around.extent, jnp.ones(dim), 1e-9)[0]
    found = fourier.coefficients(of, x, jnp.asarray(rng.normal(size=(1, 50))))
    found *= nodes.spectrum(of, jnp.ones((1, dim)), jnp.ones(1))[None]
    g = jnp.asarray(rng.normal(size=(1 + dim, 50)))

    def by_coefficients(x, found):
        slopes = [fourier.derivative(of, found, d) for d in range(dim)]
        return fourier.values_at(of, x, jnp.concatenate([found, *slopes]))

    both = functools.partial(fourier.derivatives_at, of), by_coefficients
    ours, exact = (jax.tree.leaves(with_gradients(f)(x, found, g)) for f in both)
    for a, b in zip(ours, exact, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)


@jax.jit
def pulls_of(x, y, v, scale, shares):
    """By waves sums, pulls and doubt of a Gaussian, or of several, of weights that are both summed and pull."""
    channels = Channels((GAUSS,), (1,))
    ones = jnp.ones((len(x), 1), x.dtype)
    operands = x, y, v[:, None], scale[:, None], ones, v[:, None]
    sizes, wanted = few_dimensions.Sizes(len(x), *y.shape, 1, len(scale)), Wanted(channels, channels, repeats=True)
    ((found, doubt),) = waves.sums_of_sides(
        [wanted], 8, CHOSEN, waves.SUMS["float32"], operands, sizes, boxes.box(x, y), shares
    )
    return found.sums[:, 0], found.pulls, doubt


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_several_gaussians_have_one_sum(rng, dim):
    """The sum and the pulls of the kernel that they are, without anything that pairs would mend."""
    tau, shares = np.float32([0.2, 0.5, 1.0, 2.0]), np.float32([0.1, 0.2, 0.3, 0.4])
    x, y = (rng.normal(size=(n, dim)).astype(np.float32) for n in (300, 401))
    v = rng.normal(size=401).astype(np.float32)
    sums, pulls, doubt = pulls_of(x, y, v, np.sqrt(tau), shares[:, None])
    apart = np.float64(y)[None] - np.float64(x)[:, None]
    of_each = np.exp(-tau[:, None, None].astype(float) / 2 * np.square(apart).sum(-1))
    phi, psi = np.tensordot(shares, of_each, 1), np.tensordot(shares * tau, of_each, 1)
    assert doubt.mean() < 0.01
    assert error(sums, phi @ v, phi @ np.abs(v)) < 1e-6
    w = psi * v
    assert error(pulls, (w[..., None] * apart).sum(1), (np.abs(w) * np.linalg.norm(apart, axis=-1)).sum(1)) < 1e-6


@pytest.mark.parametrize("cloud_of", ["normal", "uniform"])
def test_few_pulls_are_in_doubt(rng, cloud_of):
    """Of values of both signs."""
    for dim in (1, 2, 3):
        x = rng.normal(size=(3000, dim)) if cloud_of == "normal" else rng.uniform(-6, 6, (3000, dim))
        x, v = x.astype(np.float32), rng.normal(size=3000).astype(np.float32)
        _, _, doubt = pulls_of(x, x, v, np.ones(1, np.float32), None)
        assert doubt.mean() < 0.005


def test_several_bandwidths_of_methods(rng, monkeypatch):
    """MMD with all of its gradients, its witness and flow, and SVGD, beside the mean of plain ones in float64."""
    monkeypatch.setattr(few_dimensions, "_of_waves", lambda *_: 1.0)  # so that one sum takes less time than several
    tau = np.float32([0.3, 1.0, 2.0])
    x, y = (rng.normal(size=(n, 2)).astype(np.float32) for n in (300, 401))

    def plain(x, y, tau):
        def k(a, b):
            return jnp.exp(-tau[:, None, None] / 2 * jnp.square(a[:, None] - b[None]).sum(-1)[None]).mean(0)

        return k(x, x).mean() - 2 * k(x, y).mean() + k(y, y).mean(), k(x, x).mean(1) - k(x, y).mean(1), k(x, x)

    exact = [np.float64(z) for z in (x, y, tau)]
    (value, (witness, phi)), gradients = jax.value_and_grad(
        lambda *z: (plain(*z)[0], plain(*z)[1:]), (0, 1, 2), has_aux=True
    )(*map(jnp.asarray, exact))
    for moving in ((0,), (0, 1, 2)):
        found, slopes = jax.jit(jax.value_and_grad(mmd_squared, moving))(x, y, tau)
        assert abs(float(found) - float(value)) < 1e-6
        for i, slope in zip(moving, slopes, strict=True):
            assert error(slope, np.asarray(gradients[i]), np.asarray(gradients[i])) < 2e-5
    assert error(mmd_witness(x, x, y, tau), np.asarray(witness), np.asarray(phi).mean(1)) < 2e-6
    velocity = np.asarray(gradients[0]) * -len(x) / 2
    assert error(mmd_flow_velocity(x, y, tau), velocity, velocity) < 2e-5
    apart = exact[0][None] - exact[0][:, None]
    of_each = np.exp(-exact[2][:, None, None] / 2 * np.square(apart).sum(-1))
    pushed = np.asarray(phi) @ -exact[0] - (np.tensordot(exact[2] / 3, of_each, 1)[..., None] * apart).sum(1)
    assert error(svgd_direction(x, -x, tau), pushed / len(x), pushed / len(x)) < 2e-5


@by_products
def test_derivatives_of_higher_order_in_jaxs_own_mode(rng, free):
    """Where float64 is off but for the waves: programs of third order and of batches; numbers of second by KSD."""

    def slope(f):
        return lambda *z: jnp.vdot(along.astype(z[0].dtype), jax.grad(f)(*z))

    x, along = (np.float32(rng.normal(size=(200, 2))) for _ in range(2))
    tau = np.float32(0.7)
    with jax.enable_x64(False):
        jax.jit(slope(slope(slope(lambda *z: jnp.sin(gauss_sum(*z)).sum())))).trace(x, x, x, tau)
        each = jax.vmap(gauss_sum, (None, None, None, 0))
        jax.jit(slope(slope(lambda *z: jnp.sin(each(*z)).sum()))).trace(x, x, x, np.ones(3, np.float32))
        found = jax.jit(jax.grad(slope(ksd_squared)))(x, -x, tau)
        many = jax.ShapeDtypeStruct((20_000, 2), np.float32)
        jax.jit(kde_logpdf).lower(many, many, tau)  # what JAX expands as late as here must not ask for 64 bits
    exact = jax.grad(slope(functools.partial(ksd_squared, method="dense")))(*map(jnp.float64, (x, -x, tau)))
    assert relative_error(found, exact) < 1e-5


@each("moving", *((x, i) for x in WAYS for i in range(3)))
def test_gradients_of_the_witness(rng, free, moving):
    x, y, z = (np.float32(rng.normal(size=(n, 2))) for n in (300, 301, 302))
    tau = np.float32(0.7)

    def plain(x, y, z):
        def mean(a, b):
            return jnp.exp(-0.35 * jnp.square(a[:, None] - b[None]).sum(-1)).mean(1)

        return jnp.sin(3 * (mean(x, y) - mean(x, z))).sum()

    found = jax.jit(jax.grad(lambda *p: jnp.sin(3 * mmd_witness(*p, tau)).sum(), moving))(x, y, z)
    exact = jax.grad(plain, moving)(*map(jnp.float64, (x, y, z)))
    assert relative_error(found, exact) < 1e-5
