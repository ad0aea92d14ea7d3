"""Where sums by waves, of many points in few dimensions, are estimated to pay; their nodes, boxes and rounding."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_anywhere import error, pairs

import formulas
import jaxgauss
from jaxgauss._checks.settings import Settings
from jaxgauss._engines import far, means
from jaxgauss._engines.clusters import sorted_tiles
from jaxgauss._engines.fourier import boxes
from jaxgauss._engines.fourier import cost as few_dimensions
from jaxgauss._engines.fourier import frequencies as nodes
from jaxgauss._engines.fourier import series as fourier
from jaxgauss._engines.fourier import sums as waves
from jaxgauss._engines.near import examined
from jaxgauss._engines.plan import Plan
from jaxgauss._engines.request import Channels, Request
from jaxgauss._kernels.kernels import GAUSS
from oracle import relative_error, squared64, with_gradients

CHOSEN = Plan("cpu", jaxgauss.Blocked(precision="float32"), "")


@pytest.mark.parametrize("dim, tolerance, counts", [(1, 1e-9, (1, 3)), (2, 1e-4, (1, 2)), (3, 1e-2, (1,))])
def test_the_bound_holds(dim, tolerance, counts):
    """Of Φ itself, for one key and queries all over the box, corners included; of boxes that fill their waves."""
    for blocks in counts:
        num = blocks * nodes.WAVES[dim] * 2 * np.pi
        length = 0.999 * (num / (b := np.sqrt(2 * np.log(4 * dim / tolerance))) - b)
        x = np.stack(np.meshgrid(*[np.linspace(0, length, 7)] * dim), -1).reshape(-1, dim)
        found = jaxgauss.gauss_sum(x, x[:1], np.ones(1), 1.0, engine=jaxgauss.Fourier(tolerance))
        wrong = np.max(np.abs(found - np.exp(-np.square(x - x[0]).sum(-1) / 2)))
        around = boxes.box(jnp.asarray(x))
        of, fits, bound = jax.jit(nodes.nodes, static_argnums=0)(
            8, around.center, around.extent, np.ones(dim), tolerance
        )
        assert fits and wrong - 1e-14 <= bound <= tolerance < 2 * bound and (of.counts == blocks).all()
        v = np.sin(np.arange(2 * len(x))).reshape(-1, 2)
        sums, phi = jaxgauss.gauss_sum(x, x, v, 1.0, engine="fourier"), pairs("gauss", x, x, 1.0)[0]
        assert sums.dtype == jnp.float64 and error(sums, phi @ v, phi @ np.abs(v)) < 1e-12


def test_waves_are_taken_where_they_pay(rng):
    """And what points that are here tell, a program need not ask."""
    x = rng.uniform(-5, 5, (20000, 2)).astype(np.float32)
    v = np.ones(20000, np.float32)
    assert examined(Settings(), 1.0, x, x, v).waves
    assert not examined(Settings(), 1e8, x, x, v).waves  # so narrow that tiles leave nearly all out
    assert examined(Settings(), 1.0, x[:600], x[:600], v[:600]).waves is not True
    assert not examined(Settings(), 1.0, x[:1024, :1], x[:1024, :1], v[:1024]).waves  # less than a callback takes
    assert not examined(Settings(jaxgauss.Blocked()), 1.0, x, x, v).waves
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
        found = float(sorted_tiles.mean_share(GAUSS, x, x, jnp.ones((), "float32")))
        of = few_dimensions.Sizes(num, num, dim, 1)
        assert 0.4 < few_dimensions.share_within(np, of, np.full(dim, float(length))) / found < 2.5


def test_explain_tells_of_waves(rng):
    x = rng.normal(size=(5000, 2)).astype(np.float32)
    found = jaxgauss.explain(x, x, np.ones(5000, np.float32), 4.0)
    assert found.name == "fourier" and "40 × 40 waves" in found.reason and "in doubt" in found.reason
    assert jaxgauss.explain(x[:500], x[:500], np.ones(500, np.float32), 4.0).name == "dense"


def test_boxes_of_nearly_all_points(rng):
    """The first is that of all; as many points are outside of the others as is said, of whatever order."""
    x = rng.normal(size=(20_011, 2)).astype(np.float32)
    x[7] = np.nan
    boxes_of = jax.jit(functools.partial(boxes.boxes, jnp))
    for points in (x, np.sort(x, 0), x[:, ::-1] * 1e30):
        found = np.asarray(boxes_of(points, points[:5000]))
        np.testing.assert_array_equal(found, boxes.boxes(np, points, points[:5000]))
        np.testing.assert_array_equal(found[0], [np.nanmin(points, 0), np.nanmax(points, 0)])
        outside = [int(boxes.outside(jnp.asarray(ends), jnp.asarray(points)).sum()) for ends in found]
        assert outside[0] == 0 and (outside[1:] <= 4.5 * boxes.points_beyond(4)[1:]).all()


def test_slopes_are_derivatives(rng, dim=3):
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
    sizes, request = few_dimensions.Sizes(len(x), *y.shape, 1, len(scale)), Request(channels, channels, repeats=True)
    ((found, doubt),) = waves.sums_of_sides(
        [request],
        min(8, nodes.MOST[x.shape[1]]),
        CHOSEN,
        waves.SUMS["float32"],
        operands,
        sizes,
        boxes.box(x, y),
        shares,
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


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_few_pulls_are_in_doubt(rng, dim):
    """Of values of both signs."""
    for x in (rng.normal(size=(1000, dim)), rng.uniform(-6, 6, (1000, dim))):
        x, v = x.astype(np.float32), rng.normal(size=1000).astype(np.float32)
        assert pulls_of(x, x, v, np.ones(1, np.float32), None)[2].mean() < 0.005


def test_several_bandwidths_of_methods(rng, monkeypatch):
    """MMD with all of its gradients, its witness and flow, and SVGD, beside the mean of plain ones in float64."""
    monkeypatch.setattr(few_dimensions, "_of_waves", lambda *_: 1.0)  # so that one sum takes less time than several
    tau, (x, y) = np.float32([0.3, 1, 2]), (rng.normal(size=(n, 2)).astype(np.float32) for n in (401, 300))
    operands = x, y, np.full(401, 1 / 401), np.full(300, 1 / 300), tau
    found, slopes = jax.jit(jax.value_and_grad(jaxgauss.mmd_squared, (0, 1, 2)))(x, y, tau)
    assert abs(float(found) - float(formulas.exact("mmd", operands))) < 1e-6
    of_sine = formulas.exact_gradients("mmd", operands)
    for slope, expected in zip(slopes, (of_sine[0], of_sine[1], of_sine[4]), strict=True):
        assert relative_error(slope, expected / np.cos(float(found))) < 2e-5
    assert relative_error(jaxgauss.mmd_witness(y + 1, x, y, tau), formulas.exact("witness", operands)) < 2e-5
    assert relative_error(jaxgauss.mmd_flow_velocity(x, y, tau), formulas.exact("flow", operands)) < 2e-5
    assert relative_error(jaxgauss.svgd_direction(y, x[:300], tau), formulas.exact("svgd", operands)) < 2e-5


def a_map(half):
    """Places of a map of the plane."""
    sides = (np.linspace(-half, half, n, dtype="float32") for n in (100, 80))
    return np.stack(np.meshgrid(*sides, indexing="ij"), -1).reshape(-1, 2)


@pytest.fixture
def doubts(monkeypatch):
    """The shares of the queries that waves leave in doubt."""
    shares = []

    def noting(found, doubt, *rest):
        shares.extend(float(np.mean(x)) for x in doubt)
        return few_dimensions.doubt_resolved(found, doubt, *rest)

    for module in (far, means):
        monkeypatch.setattr(module, "doubt_resolved", noting)
    return shares


@pytest.mark.parametrize("half, sigma", [(3, 0.2), (5, 0.5)])
def test_maps_leave_far_tails_in_doubt_and_nothing_else(rng, doubts, half, sigma):
    """Logarithms, means and sums in float32: a place is in doubt only if its sum is tiny; all have their digits."""
    q, k, tau = a_map(half), rng.normal(size=(20_000, 2)).astype("float32"), np.float32(1 / sigma**2)
    k = k if half == 5 else rng.uniform(-3, 3, k.shape).astype("float32")
    v, some = np.cos(k[:, 0]), rng.permutation(len(q))[:200]
    exponents = -float(tau) / 2 * squared64(np.float64(q)[some], np.float64(k))
    exact, phi = np.logaddexp.reduce(exponents, 1), np.exp(exponents)
    p = np.exp(exponents - exact[:, None])
    tails = np.mean(exact - exact.max() < -12)
    for function, right in (
        (jaxgauss.log_gauss_sum, lambda x: np.max(np.abs(x - exact) / np.maximum(1, np.abs(exact))) < 1e-5),
        (lambda q, k, _, tau: jaxgauss.kernel_mean(q, k, v, tau), lambda x: error(x, p @ v, p @ np.abs(v)) < 1e-5),
        (jaxgauss.gauss_sum, lambda x: error(x, phi.sum(1), phi.sum(1)) < 2e-6),
    ):
        doubts.clear()
        ones = np.full(len(k), 0 if function is jaxgauss.log_gauss_sum else 1, "float32")
        found = np.asarray(jax.jit(function)(q, k, ones, tau), float)
        assert doubts and max(doubts) <= tails + 0.01 and right(found[some])


@pytest.mark.parametrize("away", [5, 10, 40])
def test_a_map_of_which_a_part_is_far_away(rng, doubts, away):
    """Every row of a far tail has digits of its own, whether waves, differences or tiles sum it."""
    k = rng.uniform(-8, 8, (4000, 2)).astype("float32")
    q = np.concatenate([k[:2000], k[:500] + np.float32([16 + away, 0])])
    exact = np.logaddexp.reduce(-squared64(np.float64(q), np.float64(k)) / 2, 1)
    logs = np.asarray(jax.jit(jaxgauss.log_gauss_sum)(q, k), float)
    assert np.max(np.abs(logs - exact) / np.maximum(1, np.abs(exact))) < 1e-5
    sums, is_there = np.asarray(jax.jit(jaxgauss.gauss_sum)(q, k, np.ones(4000, "float32")), float), exact > -60
    assert np.max(np.abs(sums[is_there] / np.exp(exact[is_there]) - 1)) < 1e-3
    assert relative_error(sums, np.exp(exact)) < 2e-6
    assert doubts and max(doubts) <= 0.21


@pytest.mark.parametrize("num, way", [(0, []), (20, [(64, False)]), (40, [(100, True)]), (260, [(300, True)])])
def test_queries_in_doubt_are_summed_again(num, way):
    """Few from differences, more by tiles, so that few programs are compiled; nearly all with all others."""
    doubt, found, ways = np.arange(800) < num, np.zeros((800, 1)), []

    def of_rows(some, are_many):
        ways.append((len(some), are_many))
        return some[:, None] + 1.0

    resolve = functools.partial(few_dimensions.doubt_resolved, [found], of_rows=[of_rows], by_tiles=lambda: ["all"])
    (total,) = resolve(doubt=[doubt])
    np.testing.assert_array_equal(total, np.where(doubt, np.arange(800) + 1, 0)[:, None])
    assert ways == way and resolve(doubt=[np.arange(800) < 750]) == ["all"]


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_the_share_in_tails(rng, dim):
    keys = rng.uniform(-5, 5, (5000, dim)).astype("float32")
    queries = np.concatenate([keys[:3000], keys[:1000] + 18])
    queries[0], keys[0] = np.nan, np.nan
    for scale in (0.1, 1.0, 10.0):
        ends = np.stack([np.nanmin(queries, 0), np.nanmax(queries, 0)]) / scale
        found = boxes.share_in_tails(np.full(dim, scale), ends, queries / scale, keys / scale)
        assert abs(found - 0.25) < 0.01
