"""Wherever points lie, sums and gradients of float32 have their digits: random clouds × kernels × methods."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.distance import cdist

import jaxgauss
from jaxgauss._checks.names import as_kernel
from jaxgauss._engines import means
from jaxgauss._engines.clusters import sorted_tiles as anywhere
from jaxgauss._engines.clusters.leaves import leaf_order
from jaxgauss._kernels.kernels import KERNELS
from jaxgauss._methods import leave_one_out_sums as over_others
from oracle import with_gradients

POWER = jaxgauss.Kernel(
    lambda u: -(u**0.75), "power", conditional=True
)  # of the generalized energy distance of exponent 1.5
# Every kernel, smooth ones and such with a kink in few dimensions and in many, which ways differ by.
EVERY = [
    *(("gauss", 3), ("gauss", 17), ("matern12", 17), ("matern32", 5), ("matern52", 64)),
    *(("imq", 17), ("cauchy", 1), ("energy", 2), (POWER, 17)),
]
# So many points that they are sorted: for gradients, in 3 and in 17 dimensions for sums as well.
SIZES = {1: (513, 600), 2: (400, 401), 3: (600, 600), 5: (270, 300), 17: (200, 310), 64: (70, 130)}


def cloud(rng: np.random.Generator, num: int, dim: int) -> np.ndarray:
    """Normal points; some clusters, outliers, copies or a scale, and an offset."""
    x = rng.normal(size=(num, dim)) * 10 ** rng.uniform(-3, rng.choice([0, 2, 4]))
    if rng.integers(2):
        x += 10 ** rng.uniform(0, 7) * rng.integers(0, 3, (num, 1)) * rng.normal(size=dim)
    if rng.integers(2):
        x[rng.integers(0, num, 2)] += 10 ** rng.uniform(1, 4)
    if rng.integers(2):
        x = x[rng.integers(0, num // 4, num)]
    return (x + rng.choice([0, 0, 1e3, 1e6])).astype(np.float32)


def clouds(rng, dim, num_clouds):
    """Queries, keys, weights, τ and a cotangent, of clouds of one shape."""
    num, num_keys = SIZES[dim]
    for _ in range(num_clouds):
        x, tau = cloud(rng, num + num_keys, dim), np.float32(rng.choice([0.3, 1 / dim]))
        v, g = (rng.normal(size=n).astype(np.float32) for n in (num_keys, num))
        yield x[:num], x[num:], v, tau, g


def pairs(kernel, x, y, tau):
    """κ, ψ and y - x of all pairs, in float64."""
    apart = np.float64(y)[None] - np.float64(x)[:, None]
    return *profiles(kernel, np.float64(tau) * np.square(apart).sum(-1)), apart


def profiles(kernel, u):
    kernel, u = as_kernel("test", kernel), jnp.asarray(u)
    return np.asarray(kernel(u)), np.asarray(kernel.slope(u))


def error(found, exact, size) -> float:
    """Relative to the sum of the terms' sizes; or of 1e-15, for a decay of e^-z knows z to 2⁻²⁴ z at best."""
    difference = np.linalg.norm(np.asarray(found, np.float64) - exact)
    return float(difference / max(np.linalg.norm(size), 1e-15))


def errors(kernel, x, y, v, tau, g, sums, dx, dy, dv, dtau) -> list[float]:
    """Of sums, and of the gradients of queries, keys, values and τ at a cotangent; of any number of channels."""
    x, y, v, g, t = (np.float64(z) for z in (x, y, v, g, tau))
    apart = [b[None] - a[:, None] for a, b in zip(x.T, y.T, strict=True)]
    squares = functools.reduce(lambda total, z: total + z * z, apart, 0)
    kappa, psi = profiles(kernel, t * squares)
    w = psi * (g.reshape(len(x), -1) @ v.reshape(len(y), -1).T)
    pulls, sizes, spread = [w * z for z in apart], np.abs(w) * np.sqrt(squares), w * squares / 2
    return [
        error(sums, kappa @ v, np.abs(kappa) @ np.abs(v)),
        error(dx, t * np.stack([z.sum(1) for z in pulls], 1), t * sizes.sum(1)),
        error(dy, -t * np.stack([z.sum(0) for z in pulls], 1), t * sizes.sum(0)),
        error(dv, kappa.T @ g, np.abs(kappa).T @ np.abs(g)),
        error(dtau, -spread.sum(), np.abs(spread).sum()),
    ]


def hostile(rng, kernel, dim):
    """The same as `clouds`, by their names: moments or products about a center have no digits there."""
    num, num_keys = SIZES[dim]
    unit, ones, odd = rng.normal(size=(num + num_keys, dim)) / dim**0.5, np.ones(num_keys), np.arange(num_keys) % 2
    apart = rng.integers(-1, 2, (len(unit), 1)) * np.eye(dim)[0]
    again = unit[copied := np.r_[:num, np.arange(num_keys) % num]]  # keys are queries
    mixed = np.where(np.r_[:num, :num_keys][:, None] % 2, 1e-3 * unit + 4 * apart, 2 * unit)
    outliers, near = dim**0.5 * again, np.where(copied[:, None] < num // 2, 1e-9 * again, 1e5)
    outliers[[5, num + 5], 0], outliers[-2:, -1] = 1e20, (3e38, -3e38)
    cases = {
        "tight clusters few bandwidths apart": (1e-3 * unit + 4 * apart, ones, 1),
        "not as tight": (1e-2 * unit + 4 * apart, ones, 1),
        "weights of zero far from the others": (mixed, odd, 1),
        "in a leaf with copies far away, points nearer than float64 keeps about a center": (near, ones, 1),
    }
    if not as_kernel("test", kernel).conditional:  # else sums are beyond float32's range
        cases["outliers whose squares, and differences, overflow"] = outliers, ones, 1 / dim
    for share in (0.95, 0.05):  # on one side moments may have digits, on the other not
        tight = np.r_[np.arange(num) < share * num, odd][:, None]
        cases[f"{share} of the queries in tight clusters"] = (
            np.where(tight, 1e-3, 1) * unit + 3 * tight * apart,
            ones,
            2,
        )
    for size in (1e1, 1e4, 1e7):  # of points that coincide a product knows u to 2⁻²⁴ of their norms
        z = again * dim**0.5 / 10 + (size * rng.integers(0, 3, (len(unit), 1)))[copied]
        cases[f"leaves with points of two clusters {size} apart"] = z, ones, 1 / dim
    for name, (z, v, tau) in cases.items():
        z, v = np.float32(z), np.float32(v)
        yield name, (z[:num], z[num:], v, np.float32(tau), np.ones(num, np.float32))


def assert_right(kernel, cases):
    """Sums and all gradients."""
    compiled = with_gradients(functools.partial(jaxgauss.kernel_sum, kernel=kernel))
    for name, case in cases:
        sums, gradients = compiled(*case)
        assert np.less(errors(kernel, *case, sums, *gradients), [1e-5, 2e-5, 2e-5, 1e-5, 2e-5]).all(), name


@pytest.mark.parametrize("kernel, dim", EVERY, ids=str)
def test_sums_and_all_gradients(rng, kernel, dim):
    assert_right(kernel, itertools.chain(enumerate(clouds(rng, dim, 5)), hostile(rng, kernel, dim)))


def test_gradients_of_two_channels_and_of_more_queries_than_a_block_has(rng, num=4300, num_keys=300):
    tight = np.r_[np.arange(num) % 2, np.arange(num_keys) % 2]
    z = (np.where(tight, 1e-3, 1)[:, None] * rng.normal(size=(num + num_keys, 3))).astype(np.float32)
    v, g = (rng.normal(size=(n, 2)).astype(np.float32) for n in (num_keys, num))
    assert_right("imq", [("two channels", (z[:num], z[num:], v, np.float32(2), g))])


@pytest.mark.parametrize("kernel, dim, num, shared_keys", [("gauss", 17, 130, False), ("energy", 2, 370, True)])
def test_batches(rng, kernel, dim, num, shared_keys):
    """Of so many points that they are sorted; under `vmap` as well."""
    x, (v, g) = cloud(rng, 2 * num, dim).reshape(2, num, dim), np.float32(rng.normal(size=(2, 2, num, 1)))
    y, tau, ours = (
        x[0] if shared_keys else x,
        np.float32(0.3),
        with_gradients(functools.partial(jaxgauss.kernel_sum, kernel=kernel)),
    )
    of_batch, (sums, slopes) = (
        ours(x, y, v, tau, g),
        jax.vmap(ours, (0, None if shared_keys else 0, 0, None, 0))(x, y, v, tau, g),
    )
    for i in range(2):
        case = kernel, x[i], y if shared_keys else y[i], v[i], tau, g[i]
        of_all = errors(*case, sums[i], *(z[i] for z in slopes))
        assert np.less(of_all, [1e-5, 2e-5, 2e-5, 1e-5, 2e-5]).all()
        dx, dy, dv, _ = of_batch[1]
        of_some = errors(*case, of_batch[0][i], dx[i], slopes[1][i] if shared_keys else dy[i], dv[i], slopes[3][i])
        assert np.less(of_some, [1e-5, 2e-5, 2e-5, 1e-5, 2e-5]).all()


def assert_right_mmd(kernel, x, y, tau, value, slopes, velocity, witness):
    """Of as many points in y as in x: MMD², its gradients in x and y; the flow at x, the witness at all."""
    num, z, t = len(x), np.r_[x, y], float(tau)
    signs = np.repeat([1.0, -1.0], num) / num
    kappa, psi, apart = pairs(kernel, z, z, tau)
    assert error(value, signs @ kappa @ signs, np.abs(kappa).sum() / num**2) < 1e-5
    pulls = t * ((psi * signs)[..., None] * apart).sum(1)
    sizes = t * (psi * np.abs(signs) * np.linalg.norm(apart, axis=-1)).sum(1)
    of_flow = velocity, slice(num), -1
    for found, rows, factor in (slopes[0], slice(num), 2 / num), (slopes[1], slice(num, None), -2 / num), of_flow:
        assert error(found, factor * pulls[rows], factor * sizes[rows]) < 2e-5
    assert error(witness, kappa @ signs, np.abs(kappa) @ np.abs(signs)) < 1e-5


@pytest.mark.parametrize("kernel, dim", [("gauss", 64), ("energy", 2), ("matern32", 2), ("cauchy", 17)])
def test_mmd_witness_and_flow(rng, kernel, dim):
    """In many dimensions points may see little but themselves: terms far smaller than moments are rounded by."""

    @jax.jit
    def ours(x, y, tau):
        found = jax.value_and_grad(functools.partial(jaxgauss.mmd_squared, kernel=kernel), (0, 1))(x, y, tau)
        witness = jaxgauss.mmd_witness(jnp.concatenate([x, y]), x, y, tau, kernel=kernel)
        return *found, jaxgauss.mmd_flow_velocity(x, y, tau, kernel=kernel), witness

    num = {2: 600, 17: 300, 64: 280}[dim]
    cases = [(cloud(rng, num, dim), 1 / dim) for _ in range(4)]
    normal = rng.normal(size=(num, dim)).astype(np.float32)
    for z, tau in [*cases, (normal, 0.1), (normal, 0.5)]:
        x, y = np.split(z, 2)
        assert_right_mmd(kernel, x, y, tau := np.float32(tau), *ours(x, y, tau))


def test_energy_distance_of_points_of_any_size(rng):
    x, y = (rng.normal(size=(n, 3)) + i for i, n in enumerate((50, 60)))
    f, to_x, to_y = jax.jit(jax.value_and_grad(jaxgauss.energy_distance)), x[:, None] - x, x[:, None] - y
    own, others = (np.linalg.norm(z, axis=-1, keepdims=True) for z in (to_x, to_y))
    exact = 2 * others.mean() - own.mean() - cdist(y, y).mean()
    slope = ((to_y / others).mean(1) - (to_x / np.where(own > 0, own, 1)).mean(1)) * 2 / 50
    for scale in (1e-30, 1e-15, 1e15, 1e30):
        found = f(*((scale * z).astype(np.float32) for z in (x, y)))
        assert abs(float(found[0]) / scale - exact) < 1e-5 * exact and error(found[1], slope, slope) < 2e-5


@pytest.mark.parametrize("function, kernel", [(jaxgauss.kde_score, "matern52"), (jaxgauss.kernel_mean, "matern12")])
def test_second_derivatives_of_logarithms_at_points_that_coincide(rng, function, kernel):
    """Of so many that they are taken in blocks."""
    x = rng.normal(size=(65, 2)).astype(np.float32)
    others = (x[:3], x[:3]) if function is jaxgauss.kernel_mean else (x[:3], 1.0)
    slope = jax.jit(jax.grad(lambda q: jnp.sin(function(q, *others, kernel=kernel)).sum()))
    assert np.isfinite(slope(x)).all()


@pytest.mark.parametrize("kernel, dim", [("gauss", 2), ("matern52", 17)])
def test_stein_discrepancy_and_direction(rng, kernel, dim):
    num, slope = {2: 400, 17: 150}[dim], KERNELS[kernel].slope
    ours = jax.jit(lambda *z: (jaxgauss.ksd_squared(*z, kernel=kernel), jaxgauss.svgd_direction(*z, kernel=kernel)))
    for _ in range(5):
        x, s, tau = cloud(rng, num, dim), rng.normal(size=(num, dim)).astype(np.float32), np.float32(1 / dim)
        t, s64, (value, direction) = float(tau), np.float64(s), ours(x, s, tau)
        kappa, psi, apart = pairs(kernel, x, x, tau)
        u, lengths = t * np.square(apart).sum(-1), np.linalg.norm(apart, axis=-1)
        cross = -((s64[:, None] - s64[None]) * apart).sum(-1)
        terms = kappa * (s64 @ s64.T), t * psi * cross, t * dim * psi, -t * u * np.asarray(slope.slope(jnp.asarray(u)))
        assert error(num**2 * value, sum(z.sum() for z in terms), sum(np.abs(z).sum() for z in terms)) < 1e-5
        exact = kappa @ s64 - t * (psi[..., None] * apart).sum(1)
        size = (kappa @ np.abs(s64)).sum(1) + t * (psi * lengths).sum(1)
        assert error(num * direction, exact, size) < 2e-5


@pytest.mark.parametrize("dim", [2, 17])
def test_densities_scores_modes_and_herds(rng, dim):
    num, t = {2: 300, 17: 150}[dim], 1 / dim

    @jax.jit
    def ours(y, x, tau):
        rest, herd = jaxgauss.mean_shift(y, x, tau, tol=1e-3).points, jaxgauss.kernel_herding(x, tau, num=20).indices
        return jaxgauss.kde_logpdf(y + 1, x, tau), jaxgauss.kde_score(y + 1, x, tau), rest, herd

    def softmax(queries, x):
        apart = np.float64(x)[None] - np.float64(queries)[:, None]
        logits = -t / 2 * np.square(apart).sum(-1)
        logs = np.logaddexp.reduce(logits, 1)
        p = np.exp(logits - logs[:, None])
        return logs, (p[..., None] * apart).sum(1), (p * np.linalg.norm(apart, axis=-1)).sum(1)

    for _ in range(5):
        x = cloud(rng, num, dim)
        y = x[: num // 2]
        density, score, rest, chosen = map(np.asarray, ours(y, x, np.float32(t)))
        logs, exact, size = softmax(y + 1, x)
        logs += dim / 2 * np.log(t / (2 * np.pi)) - np.log(num)
        assert (np.abs(density - logs) <= 1e-5 * np.maximum(1, np.abs(logs))).all()
        assert error(score, t * exact, t * size) < 2e-5
        step = t**0.5 * np.linalg.norm(softmax(rest, x)[1], axis=-1)
        assert step.max() < 2e-3 + t**0.5 * 2**-22 * np.linalg.norm(x, axis=-1).max()
        kappa = pairs("gauss", x, x, np.float32(t))[0]
        for i, place in enumerate(chosen):
            worth = kappa.mean(1) - kappa[:, chosen[:i]].sum(1) / (i + 1)
            worth[chosen[:i]] = -np.inf
            assert worth[place] > worth.max() - 1e-5


def test_independence_criterion(rng):
    """Of two clouds, each with a τ of its own."""
    num, ours = 200, jax.jit(jax.value_and_grad(jaxgauss.hsic, (0, 1, 2, 3)))
    for _ in range(4):
        points, taus = [cloud(rng, num, dim) for dim in (3, 17)], rng.choice([0.02, 0.3, 1], 2).astype(np.float32)
        value, gradients = ours(*points, *taus)
        kernels, _, apart = zip(*(pairs("gauss", z, z, t) for z, t in zip(points, taus, strict=True)), strict=True)
        for i, (k, other) in enumerate((kernels, kernels[::-1])):
            mean, t = other.mean(0), float(taus[i])
            slope = (other - mean[:, None] - mean[None] + mean.mean()) / num**2  # of HSIC, with respect to k
            size = (other + mean[:, None] + mean[None] + mean.mean()) / num**2
            assert error(value, (k * slope).sum(), (k * size).sum()) < 1e-5
            lengths = np.linalg.norm(apart[i], axis=-1)
            exact = 2 * t * ((k * slope)[..., None] * apart[i]).sum(1)
            assert error(gradients[i], exact, 2 * t * (k * size * lengths).sum(1)) < 2e-5
            spread = k * np.square(lengths) / 2
            assert error(gradients[2 + i], -(spread * slope).sum(), (spread * size).sum()) < 2e-5


@pytest.mark.parametrize("kernel, dim", [("gauss", 17), ("imq", 3), ("matern12", 3), ("matern52", 17)])
def test_logarithms_and_means(rng, kernel, dim):
    """Also of queries far from all keys, whose exponents are in the millions."""

    def both(q, k, v, tau):
        return jaxgauss.log_gauss_sum(q, k, None, tau, kernel=kernel), jaxgauss.kernel_mean(q, k, v, tau, kernel=kernel)

    ours = with_gradients(both)
    for x, y, v, tau, g in clouds(rng, dim, 4):
        t = float(tau)
        (logs, found_means), of_logs = ours(x, y, v, tau, (g, 0 * g))
        _, of_means = ours(x, y, v, tau, (0 * g, g))
        apart = np.float64(y)[None] - np.float64(x)[:, None]
        squares, profile = np.square(apart).sum(-1), as_kernel("test", kernel)
        exponents = np.asarray(profile.log(jnp.asarray(t * squares)))
        exact = np.logaddexp.reduce(exponents, 1)
        p = np.exp(exponents - exact[:, None])
        assert (np.abs(np.asarray(logs) - exact) <= 1e-5 * np.maximum(1, np.abs(exact))).all()
        assert error(found_means, p @ np.float64(v), p @ np.abs(v)) < 1e-5
        slope = np.asarray(jax.vmap(jax.vmap(jax.grad(profile.log)))(jnp.asarray(np.maximum(t * squares, 1e-300))))
        lengths = np.linalg.norm(apart, axis=-1)
        centered = np.float64(v)[None] - (p @ np.float64(v))[:, None]
        for found, weights in ((of_logs, p * g[:, None]), (of_means, p * g[:, None] * centered)):
            w = -2 * t * slope * weights
            assert error(found[0], (w[..., None] * apart).sum(1), (np.abs(w) * lengths).sum(1)) < 2e-5
            assert error(found[1], -(w[..., None] * apart).sum(0), (np.abs(w) * lengths).sum(0)) < 2e-5
            assert error(found[3], -(w * squares).sum() / (2 * t), (np.abs(w) * squares).sum() / (2 * t)) < 2e-5
        assert error(of_means[2], g @ p, np.abs(g) @ p) < 1e-5


def test_logarithms_of_clusters_of_which_one_counts(rng):
    """What is left of a tile are those far from its center: their weights, and those near, relative to their own."""
    ours, normal, log_weights = jax.jit(jaxgauss.log_gauss_sum), rng.normal(size=(500, 3)), rng.normal(size=500)
    far = {num: normal + 1e3 * (np.arange(500) >= num)[:, None] for num in (200, 300)}
    cases = {
        "few without weight": (far[200], np.where(np.arange(500) < 200, -np.inf, log_weights)),
        "most without weight": (far[300], np.where(np.arange(500) < 300, -np.inf, log_weights)),
        "a far key of large weight": (np.where(np.arange(500)[:, None] == 7, 1e3, normal), 20 * (np.arange(500) == 7)),
    }
    for name, case in cases.items():
        x, w = (z.astype(np.float32) for z in case)
        exponents = np.square(np.float64(x)[:, None] - np.float64(x)[None]).sum(-1) / -2 + np.float64(w)[None]
        exact = np.logaddexp.reduce(exponents, 1)
        assert (np.abs(np.asarray(ours(x, x, w)) - exact) <= 1e-5 * np.maximum(1, np.abs(exact))).all(), name


def test_leaving_one_out(rng, monkeypatch):
    """Of regressions: exponents of any size are relative to that of the nearest, which may be nearly all of a mean."""
    monkeypatch.setattr(over_others, "PAIRS", 60 * 150)
    num, dim, t = 150, 17, 1 / 17

    @jax.jit
    @functools.partial(jax.value_and_grad, argnums=(0, 1, 2))
    def ours(x, v, tau):
        return jaxgauss.leave_one_out_tau(x, tau[None], values=v).scores[0]

    for i in range(8):
        x, v = cloud(rng, num, dim), rng.normal(size=num).astype(np.float32)
        if i % 2:  # in a row, where two others are as far from each of them
            x = (1e-2 * rng.normal(size=(num, dim)) + 300 * rng.permutation(num)[:, None] / dim**0.5).astype(np.float32)
        apart = np.float64(x)[None] - np.float64(x)[:, None]
        squares = np.square(apart).sum(-1)
        logits = -t / 2 * squares + np.where(np.eye(num), -np.inf, 0)
        p = np.exp(logits - logits.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        mean = (p @ np.float64(v))[:, None]
        left, ours_at = v[:, None] - mean, ours(x, v, np.float32(t))
        assert error(ours_at[0], -np.square(left).mean(), np.square(np.abs(v[:, None]) + np.abs(mean)).mean()) < 1e-5
        w = 2 * p * left * (v[None] - mean) / num
        size = 2 * p * (np.abs(v[:, None]) + np.abs(mean)) * (np.abs(v[None]) + np.abs(mean)) / num
        w, size, lengths = w + w.T, size + size.T, np.sqrt(squares)
        assert error(ours_at[1][0], t * (w[..., None] * apart).sum(1), t * (size * lengths).sum(1)) < 2e-5
        assert error(ours_at[1][2], -(w * squares).sum() / 4, (size * squares).sum() / 4) < 2e-5


def test_leaving_one_out_by_all_candidates(rng):
    """Also those for which the nearest point is nearly all of a mean: its part of a gradient hides no other term."""
    x = rng.normal(size=(200, 3)).astype(np.float32)
    x[0] += 1000
    v, taus = np.sin(2 * x[:, :2]), np.geomspace(0.1, 1e4, 25).astype(np.float32)

    def dense(x, v):
        u = taus.astype(x.dtype)[:, None, None] * jnp.square(x[:, None] - x[None]).sum(-1)[None]
        p = jax.nn.softmax(jnp.where(jnp.eye(200, dtype=bool)[None], -jnp.inf, -u / 2), -1)
        return -jnp.square(v[None] - p @ v).sum(-1).mean(-1).sum()

    found = jax.grad(lambda *z: jaxgauss.leave_one_out_tau(z[0], taus, values=z[1]).scores.sum(), (0, 1))(x, v)
    expected = jax.jit(jax.grad(dense, (0, 1)))(np.float64(x), np.float64(v))
    assert all(error(a, b, jnp.abs(b).max()) < 2e-6 for a, b in zip(found, expected, strict=True))


def test_an_infinite_coordinate_is_no_plausible_number(rng):
    x, y = (rng.normal(size=(n, 3)).astype(np.float32) for n in (50, 60))
    x[7, 1] = np.inf
    assert not np.isfinite(jaxgauss.energy_distance(x, y))


@pytest.mark.parametrize("exponent", [0.5, 1.0])
def test_powers_have_finite_gradients(rng, exponent):
    """Zero where points coincide, in every order."""
    x, ones = np.repeat(rng.normal(size=(20, 3)), 2, 0), np.ones((3, 2))
    kernel = jaxgauss.Kernel(lambda u: -(u**exponent), conditional=True)

    @jax.jit
    def ours(x):
        found = jax.value_and_grad(lambda x: jaxgauss.mmd_squared(x, jnp.zeros((1, 3)), 1.0, kernel=kernel))(x)
        return *found, jax.grad(lambda x: jaxgauss.kernel_sum(x, ones, ones, kernel=kernel).sum())(ones)

    value, slopes, at_ones = ours(x)
    apart = np.linalg.norm(x[:, None] - x[None], axis=-1)
    exact = 2 * np.mean(np.linalg.norm(x, axis=1) ** (2 * exponent)) - np.mean(apart ** (2 * exponent))
    assert abs(value - exact) < 1e-12 and np.isfinite(slopes).all() and (at_ones == 0).all()


@pytest.mark.parametrize("num", [2, 64, 65, 4097])
def test_leaves_hold_every_point_once_and_lie_apart(rng, num):
    x, order_of = rng.normal(size=(num, 3)).astype(np.float32), jax.jit(functools.partial(leaf_order, largest=64))
    far = x + np.where(rng.integers(0, 2, (num, 1)), np.float32(1e4), 0)
    spoiled = np.r_[np.float32([[np.nan, np.inf, 1e30]]), x[1:]]
    for points in (spoiled, far):
        order = np.asarray(order_of(points))
        assert order.shape[1] <= 64 and order.size < num + 8 * len(order)
        assert (np.sort(order, axis=None) == np.arange(order.size)).all()
    order = np.minimum(order, num - 1)  # leaves are filled up by copies of the last point
    assert (np.ptp(far[order][..., 0], axis=1) > 5e3).sum() <= 1
    line = far[:, :1]
    leaves = [line[leaf] for leaf in np.minimum(np.asarray(order_of(line)), num - 1)]
    assert all(a.max() <= b.min() for a, b in itertools.pairwise(leaves))


@pytest.mark.parametrize("num", [2, 65, 300])
def test_keys_that_are_the_queries_lie_in_the_same_leaves(rng, num):
    """Alone or with as many others: only pairs of leaves of one index have points that coincide."""
    x, others = (jnp.asarray(z) for z in rng.normal(size=(2, num, 3)).astype(np.float32))
    order = functools.partial(leaf_order, largest=64)
    for keys in (x, jnp.concatenate([x, others]), jnp.concatenate([x, others[:1]])):
        own, leaves = map(np.asarray, anywhere._orders(order, x, keys))
        assert (np.sort(leaves, axis=None) == np.arange(leaves.size)).all()
        if len(keys) % num == 0:
            first = leaves[: len(own)]
            assert (first[own < num] == own[own < num]).all() and (first[own >= num] >= len(keys)).all()


@pytest.mark.parametrize(
    "kernel, rate, dtype, decays",
    [("matern12", 1, "float32", 70), ("matern52", 5, "float32", 70), ("matern52", 5, "float64", 150)],
)
def test_leaves_apart_are_skipped_where_a_kernel_is_zero_in_its_dtype(rng, kernel, rate, dtype, decays):
    """And no nearer: what is so many decays apart is summed in one, and skipped in float32 farther than it knows."""
    x, y = (z.astype(dtype) for z in rng.normal(size=(2, 1100, 1)))
    near, far, ones = y + decays / rate**0.5, y + 200 / rate**0.5, np.ones(1100, dtype)
    exact = pairs(kernel, x, near, 1.0)[0].sum(1)
    near, far = (np.asarray(jaxgauss.kernel_sum(x, z, ones, kernel=kernel, engine="blocked")) for z in (near, far))
    assert 0 < exact.max() < 1e-20 and np.linalg.norm(near / exact - 1) < (1e-9 if dtype == "float64" else 1e-3)
    assert (far == 0).all() == (dtype == "float32")


def calls_of(monkeypatch, module, name, told):
    """What `told` makes of the operands of each call of a private function while a program runs."""
    seen, function = [], getattr(module, name)

    def recorded(*operands):
        jax.debug.callback(lambda x: seen.append(float(x)), told(*operands))
        return function(*operands)

    monkeypatch.setattr(module, name, recorded)
    return seen


def test_few_leaves_are_doubtful_about_their_own_center(rng, monkeypatch):
    """Of clusters: about another center products would know nothing, and all pairs would take differences."""
    shares = calls_of(monkeypatch, anywhere, "_add_differences", lambda _, flags, *__: jnp.stack(flags).mean())
    x = (rng.normal(size=(1023, 17)) + 1e4 * rng.integers(1, 3, (1023, 1))).astype(np.float32)
    jax.block_until_ready(jaxgauss.kernel_sum(x, x, x[:, 0], 1 / 17, kernel="imq"))  # no other test has 1023 points
    jax.effects_barrier()
    assert shares and max(shares) <= 0.5  # what is not of the cluster of the center, and little else


def test_tiles_of_logarithms_are_about_their_own_center(rng, monkeypatch):
    """Of clusters: about another center no product would know an exponent. Tiles of others are left out."""
    taken = calls_of(monkeypatch, means, "difference_logits", lambda *_: 1)
    x = (rng.normal(size=(2048, 5)) + 1e6 * np.repeat([[1], [2]], 1024, 0)).astype(np.float32)
    jax.block_until_ready(jaxgauss.log_gauss_sum(x, x))  # no other test has 2048 points in five dimensions
    jax.effects_barrier()
    assert not taken
    x[0] += 1e6 * np.float32([1, -1, 0, 0, 0])  # farther from its tile's center than products know
    jax.block_until_ready(jaxgauss.log_gauss_sum(x, x))
    jax.effects_barrier()
    assert taken
