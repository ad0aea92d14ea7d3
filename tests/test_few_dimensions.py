"""Sums by waves, of many points in one, two and three dimensions: right for any cloud; they take no time here."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from test_anywhere import SIZES, clouds, error, errors, pairs

import formulas
import jaxgauss
from jaxgauss._engines.fourier import boxes, nufft
from jaxgauss._engines.fourier import cost as few_dimensions
from jaxgauss._engines.fourier import sums as waves
from jaxgauss._engines.plan import Plan
from jaxgauss._engines.request import NOTHING, Channels, Request
from jaxgauss._kernels.kernels import GAUSS
from oracle import in_plain_jax, relative_error, squared64, with_gradients

CHOSEN = Plan("cpu", jaxgauss.Blocked(precision="float32"), "")


def each(names, *cases):
    """Ways of the fixture `free`, and what goes with them: every dimension and every method by one way at least."""
    return pytest.mark.parametrize(f"free, {names}", cases, indirect=["free"])


WAYS = "products", "finufft"
by_products, by_finufft = (pytest.mark.parametrize("free", [x], indirect=True) for x in WAYS)


@pytest.fixture(scope="module")
def free(request):
    """Waves take no time, so that they are taken wherever they hold the points; by products, or by fast transforms."""
    fast, transformed, calls = request.param == "finufft", nufft._transform, []
    if fast:
        pytest.importorskip("finufft")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nufft, "is_installed", lambda: fast)
        patch.setattr(nufft, "_transform", lambda *x: (calls.append(1), transformed(*x))[1])
        patch.setattr(waves, "transforms_pay", lambda *_: True)
        patch.setattr(few_dimensions, "_of_waves", lambda *_: 0.0)
        jax.clear_caches()
        yield calls
    assert bool(calls) == fast
    jax.clear_caches()


CLOUDS = {
    "a line": lambda x: x * np.eye(len(x[0]))[0],
    "a diagonal": lambda x: x[:, :1] * np.ones(len(x[0])),
    "one point": lambda x: x * 0 + 7,
    "an outlier": lambda x: x + 1e4 * (np.arange(len(x))[:, None] == 3),
    "two clusters": lambda x: x + 30 * (np.arange(len(x))[:, None] % 2),
    "close together": lambda x: x * 1e-6,
}


def not_alike(rng, dim):
    """Clouds that are not alike everywhere, and values of both signs that nearly cancel."""
    for cloud in CLOUDS.values():
        x, y = (cloud(rng.normal(size=(n, dim))).astype(np.float32) for n in SIZES[dim])
        yield x, y, np.where(np.arange(len(y)) % 2, 1, -1).astype(np.float32), np.float32(1), np.ones(len(x), "float32")


@each("method, dim", ("products", "fourier", 1), ("products", "auto", 3), ("finufft", "auto", 2))
def test_sums_and_all_gradients_of_any_cloud(rng, free, method, dim):
    free.clear()
    ours = with_gradients(functools.partial(jaxgauss.gauss_sum, engine=method))
    for case in clouds(rng, dim, 4) if dim == 3 else itertools.chain(clouds(rng, dim, 6), not_alike(rng, dim)):
        sums, gradients = ours(*case)
        of_sums, of_queries, of_keys, of_values, of_tau = errors("gauss", *case, sums, *gradients)
        assert of_sums < 2e-6 and of_values < 2e-6
        assert of_queries < 1e-5 and of_keys < 1e-5
        if method == "auto":
            assert of_tau < 1e-5
    assert bool(free) == nufft.is_installed()


@by_finufft
def test_clouds_without_jit(rng, free):
    """What the points tell chooses the program."""
    f = jax.value_and_grad(lambda *z: jaxgauss.gauss_sum(*z).sum())
    for x, y, v, tau, _ in not_alike(rng, 2):
        phi, _, apart = pairs("gauss", x, y, tau)
        w = phi * np.float64(v)
        total, slope = f(x, y, v, tau)
        assert error(total, (phi @ np.float64(v)).sum(), phi.sum()) < 2e-6
        assert error(slope, (w[..., None] * apart).sum(1), (phi * np.linalg.norm(apart, axis=-1)).sum(1)) < 1e-5


@each("dim", ("finufft", 1), ("products", 3))
def test_logarithms_and_means_of_any_cloud(rng, free, dim):
    """Rows in far tails as well: these promise digits to each row."""
    ours = jax.jit(
        lambda x, y, v, w, tau: (
            jaxgauss.log_gauss_sum(x, y, w, tau),
            jaxgauss.kernel_mean(x, y, v, tau, log_weights=w),
        )
    )
    for x, y, v, tau, _ in clouds(rng, dim, 6):
        weights = rng.normal(size=len(y)).astype(np.float32)
        exponents = weights - float(tau) / 2 * squared64(np.float64(x), np.float64(y))
        exact = np.logaddexp.reduce(exponents, 1)
        p, (logs, found) = np.exp(exponents - exact[:, None]), ours(x, y, v, weights, tau)
        assert np.max(np.abs(np.asarray(logs) - exact) / np.maximum(1, np.abs(exact))) < 1e-5
        assert error(found, p @ v, p @ np.abs(v)) < 1e-5


@by_finufft
def test_derivatives_of_second_order(rng, free):
    """Of a sum and of its slopes, beside plain JAX in float64."""
    x, y = (rng.normal(size=(n, 2)) for n in (400, 401))
    v, direction = rng.normal(size=401), rng.normal(size=(400, 2))

    def plain(x, y, v, tau):
        return jnp.exp(-tau / 2 * jnp.square(x[:, None] - y[None]).sum(-1)) @ v

    def of_slopes(f):
        def curvature(x, y, v, tau):
            slope = jax.grad(lambda x: jnp.square(f(x, y, v, tau)).sum())(x)
            return (slope * direction.astype(x.dtype)).sum()

        return jax.jit(jax.grad(curvature, (0, 1, 2, 3)))

    operands = x, y, v, np.asarray(0.7)
    exact, found = of_slopes(plain)(*operands), of_slopes(jaxgauss.gauss_sum)(*map(np.float32, operands))
    assert all(error(a, np.asarray(b), np.asarray(b)) < 2e-5 for a, b in zip(found, exact, strict=True))


@by_products
def test_few_points_far_away_leave_the_others_to_waves(rng, monkeypatch, free):
    """Queries and keys, at any distance: sums, gradients and logarithms of all are right, and few are in doubt."""
    for name, x in {"GROUPS": 64, "BEYOND": (0, 3, 8), "LEAST": 256}.items():
        monkeypatch.setattr(boxes, name, x)
    monkeypatch.setattr(few_dimensions, "OUTSIDE", 1)
    monkeypatch.setattr(few_dimensions, "DIFFERENCES", -1.0)  # so that the smallest box is taken
    num, tau = 701, np.float32(0.7)  # no other test has as many points
    sizes = few_dimensions.Sizes(num, num, 2, 1)
    choice = jax.jit(functools.partial(few_dimensions.waves_pay_here, CHOSEN, 6, "float32", sizes))
    sums_of, logs_of = with_gradients(jaxgauss.gauss_sum), jax.jit(lambda q, k: jaxgauss.log_gauss_sum(q, k, None, tau))
    for away in (8, 1e5, 1e37, np.inf):
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
        pays, box = choice(np.sqrt(tau).reshape(1, 1), x, y)
        assert pays and box.error > 0  # that of nearly all points


@by_finufft
@pytest.mark.filterwarnings("ignore:.*got NaN among them")
def test_what_is_not_finite_stays_in_its_row(rng, free):
    x, sum_of = rng.normal(size=(600, 2)).astype(np.float32), jax.jit(jaxgauss.gauss_sum)
    spoiled = x.copy()
    spoiled[5, 1] = np.nan
    sums = sum_of(spoiled, x, np.ones(600, np.float32), 1.0)
    exact, _, _ = pairs("gauss", x, x, 1.0)
    others = np.arange(600) != 5
    assert np.isnan(sums[5]) and error(sums[others], exact.sum(1)[others], exact.sum(1)[others]) < 2e-6
    large = sum_of(x, x, np.full(600, 1e37, np.float32), 1.0)
    assert np.isfinite(large[exact.sum(1) < 10]).all()


@by_finufft
def test_batches_and_vmap(rng, free):
    x, v = rng.normal(size=(2, 600, 2)).astype(np.float32), rng.normal(size=(2, 600, 3)).astype(np.float32)
    f = jax.value_and_grad(lambda x, v, tau: jaxgauss.gauss_sum(x, x, v, tau).sum(), (0, 1))
    (sums, slopes), tau = jax.jit(jax.vmap(f))(x, v, np.float32([1.0, 2.0])), (1.0, 2.0)
    for i in range(2):
        phi, _, apart = pairs("gauss", x[i], x[i], tau[i])
        w = phi * (np.float64(v[i]).sum(1)[None] + np.float64(v[i]).sum(1)[:, None])
        of_points, of_values = tau[i] * (w[..., None] * apart).sum(1), np.repeat(phi.sum(0)[:, None], 3, 1)
        for found, exact in (
            (sums[i], (phi @ np.float64(v[i])).sum()),
            (slopes[0][i], of_points),
            (slopes[1][i], of_values),
        ):
            np.testing.assert_allclose(found, exact, rtol=2e-4, atol=2e-4)


@by_finufft
def test_methods(rng, free):
    """MMD and densities, with their gradients."""
    x, y = rng.normal(size=(2, 900, 2)).astype(np.float32) + np.float32([[[0]], [[0.3]]])
    for name, ours in (
        ("mmd", lambda x: jaxgauss.mmd_squared(x, y, 2.0)),
        ("logpdf", lambda x: jaxgauss.kde_logpdf(x, y, 2.0)),
    ):
        operands = x, y, *[np.full(900, 1 / 900)] * 2, 2.0
        sine = jax.grad(lambda x, f=ours: (jnp.sin(found := f(x)).sum(), found), has_aux=True)
        slope, found = jax.jit(sine)(x)
        assert relative_error(found, formulas.exact(name, operands)) < 2e-5
        assert relative_error(slope, formulas.exact_gradients(name, operands)[0]) < 2e-5


@each("dims", ("products", (2, 3)), ("finufft", (1, 2)))
def test_rounding_is_estimated(rng, free, dims):
    """The error that waves assume is that of the queries, within a factor, of points alike or in a cluster."""

    @jax.jit
    def by_waves(x):
        one, ones, nothing = (jnp.ones((n, width), "float32") for n, width in ((1, 1), (3000, 1), (3000, 0)))
        of = waves.wave_grid(3, CHOSEN, promise, one, few_dimensions.Sizes(3000, *x.shape, 1), boxes.box(x))
        return waves.sums_by_waves(request, of, promise, x, x, ones, one, nothing, nothing)

    promise, request = waves.SUMS["float32"], Request(Channels((GAUSS,), (1,)), NOTHING)
    for dim in dims:
        for x in (rng.uniform(-6, 6, (3000, dim)), rng.normal(size=(3000, dim))):
            x = x.astype(np.float32)
            sums, doubt = by_waves(x)
            exact = np.exp(squared64(np.float64(x), np.float64(x)) / -2).sum(1)
            assert doubt.mean() < 0.01 and error(sums.sums[:, 0], exact, exact) < 1e-6


@by_finufft
def test_on_a_mesh(rng, free):
    """Under `shard_map` types have the axes that arrays vary over: of both ways, and of loops of a length that does."""
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    x = jnp.asarray(rng.normal(size=(600, 2)).astype(np.float32))

    def both(x):
        sums, pullback = jax.vjp(lambda x: jaxgauss.gauss_sum(x, x, jnp.ones(len(x), "float32"), 1.0), x)
        return sums, pullback(2 * sums)[0] + jax.grad(lambda x: jaxgauss.log_gauss_sum(x, x).sum())(x)

    spec = jax.sharding.PartitionSpec("d")
    sums, slopes = jax.jit(jax.shard_map(both, mesh=mesh, in_specs=spec, out_specs=spec))(x)
    phi, _, apart = pairs("gauss", x, x, 1.0)
    exact = phi.sum(1)
    w = phi * (2 * exact[:, None] + 2 * exact + 1 / exact[:, None] + 1 / exact)
    for found, expected in ((sums, exact), (slopes, (w[..., None] * apart).sum(1))):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@by_products
def test_rows_in_far_tails(rng, free):
    """Sums of which no term is above 1e-20 have digits of their own: waves alone leave rounding there."""
    x, y = (rng.normal(size=(600, 2)).astype(np.float32) for _ in range(2))
    x[:8] = np.stack([np.linspace(13, 15, 8), np.zeros(8)], 1)
    phi, _, _ = pairs("gauss", x, y, 1.0)
    exact = phi.sum(1)
    sums = np.asarray(jax.jit(jaxgauss.gauss_sum)(x, y, np.ones(600, np.float32)))
    logs = np.asarray(jax.jit(jaxgauss.log_gauss_sum)(x, y))
    assert exact[:8].max() < 1e-20
    assert np.max(np.abs(sums / exact - 1)) < 1e-3
    assert np.max(np.abs(logs - np.log(exact)) / np.maximum(1, np.abs(np.log(exact)))) < 1e-5


@pytest.mark.slow
@by_products
@pytest.mark.parametrize("mapped", [jax.vmap, lambda f: lambda t: lax.map(f, t, batch_size=2)])
def test_second_derivatives_of_a_batch_in_jaxs_own_mode(rng, free, mapped):
    """What JAX maps and differentiates after it was traced, where float64 is off but for the waves.

    Of so many points that parts of a program for one element are in a loop of their own.
    """
    x, taus = rng.normal(size=(1000, 1)).astype("float32"), np.array([1, 2], "float32")

    def second(f, x):
        return mapped(jax.hessian(lambda t: f(x, x, jnp.ones_like(x[:, 0]), t).sum()))

    with jax.enable_x64(False):
        found = jax.jit(second(jaxgauss.gauss_sum, x))(taus)
    assert relative_error(found, second(in_plain_jax, x.astype("float64"))(taus.astype("float64"))) < 1e-6


@by_products
def test_derivatives_of_higher_order_in_jaxs_own_mode(rng, free):
    """Where float64 is off but for the waves: programs of batches and of KSD, of derivatives itself; its gradient."""

    def slope(f):
        return lambda *z: jnp.vdot(along.astype(z[0].dtype), jax.grad(f)(*z))

    x, along = (np.float32(rng.normal(size=(200, 2))) for _ in range(2))
    tau = np.float32(0.7)
    with jax.enable_x64(False):
        each = jax.vmap(jaxgauss.gauss_sum, (None, None, None, 0))
        jax.jit(slope(slope(lambda *z: jnp.sin(each(*z)).sum()))).trace(x, x, x, np.ones(3, np.float32))
        jax.jit(jax.grad(slope(jaxgauss.ksd_squared))).trace(x, -x, tau)
        found = jax.jit(jax.grad(jaxgauss.ksd_squared))(x, -x, tau)
        many = jax.ShapeDtypeStruct((20_000, 2), np.float32)
        jax.jit(jaxgauss.kde_logpdf).lower(many, many, tau)  # what JAX expands as late as here must not ask for 64 bits
    dense = jax.jit(jax.grad(functools.partial(jaxgauss.ksd_squared, engine="dense")))
    assert relative_error(found, dense(*map(jnp.float64, (x, -x, tau)))) < 1e-5


@each("moving", ("products", 0), ("products", 2), ("finufft", 1))
def test_gradients_of_the_witness(rng, free, moving):
    points = x, y, z = [np.float32(rng.normal(size=(n, 2))) for n in (300, 301, 302)]
    tau, (k, _, to_y), (m, _, to_z) = 0.7, pairs("gauss", x, y, 0.7), pairs("gauss", x, z, 0.7)
    g = 3 * np.cos(3 * (k.mean(1) - m.mean(1)))[:, None]
    of_y, of_z = tau / 301 * (g * k)[..., None] * to_y, tau / 302 * (g * m)[..., None] * to_z
    exact = of_y.sum(1) - of_z.sum(1), -of_y.sum(0), of_z.sum(0)
    f = jax.jit(jax.grad(lambda *p: jnp.sin(3 * jaxgauss.mmd_witness(*p, np.float32(tau))).sum(), moving))
    assert relative_error(f(*points), exact[moving]) < 1e-5
