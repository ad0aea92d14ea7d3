"""Wherever points lie, sums and gradients of float32 have their digits: random clouds × kernels × methods."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgauss import (
    Kernel,
    energy_distance,
    hsic,
    kde_logpdf,
    kde_score,
    kernel_herding,
    kernel_mean,
    kernel_sum,
    ksd_squared,
    leave_one_out_tau,
    log_gauss_sum,
    mean_shift,
    mmd_flow_velocity,
    mmd_squared,
    mmd_witness,
    svgd_direction,
)
from jaxgauss._checks.names import as_kernel
from jaxgauss._engines import anywhere, means
from jaxgauss._engines.leaves import leaf_order
from jaxgauss._kernels.kernels import KERNELS
from jaxgauss._methods import over_others
from oracle import with_gradients

POWER = Kernel(lambda u: -(u**0.75), "power", conditional=True)  # of the generalized energy distance of exponent 1.5
# Every kernel in some of the dimensions that ways differ by.
EVERY = [
    *(("gauss", dim) for dim in (3, 17, 64)),
    *(("matern12", 2), ("matern12", 17), ("matern32", 5), ("matern52", 64), ("imq", 1), ("imq", 17)),
    *(("cauchy", 3), ("energy", 2), ("energy", 17), (POWER, 5)),
]
LOGARITHMS = jax.jit(log_gauss_sum)
# So many points that they are sorted.
SIZES = {1: (513, 600), 2: (400, 401), 3: (600, 600), 5: (270, 300), 17: (600, 600), 64: (70, 130)}
ONES = np.ones(600, np.float32)


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
    u, kernel = np.float64(tau) * np.square(apart).sum(-1), as_kernel("test", kernel)
    return np.asarray(kernel(jnp.asarray(u))), np.asarray(kernel.slope(jnp.asarray(u))), apart


def error(found, exact, size) -> float:
    """Relative to the sum of the terms' sizes; or of 1e-15, for a decay of e^-z knows z to 2⁻²⁴ z at best."""
    difference = np.linalg.norm(np.asarray(found, np.float64) - exact)
    return float(difference / max(np.linalg.norm(size), 1e-15))


def errors(kernel, x, y, v, tau, g, sums, dx, dy, dv, dtau) -> list[float]:
    """Of sums, and of the gradients of queries, keys, values and τ at a cotangent."""
    kappa, psi, apart = pairs(kernel, x, y, tau)
    w, t = psi * np.outer(np.float64(g), v), float(tau)
    pulls, sizes = w[..., None] * apart, np.abs(w) * np.linalg.norm(apart, axis=-1)
    spread = w * np.square(apart).sum(-1) / 2
    return [
        error(sums, kappa @ v, np.abs(kappa) @ np.abs(v)),
        error(dx, t * pulls.sum(1), t * sizes.sum(1)),
        error(dy, -t * pulls.sum(0), t * sizes.sum(0)),
        error(dv, g @ kappa, np.abs(g) @ np.abs(kappa)),
        error(dtau, -spread.sum(), np.abs(spread).sum()),
    ]


@functools.cache
def compiled(kernel):
    """For several tests: those of one kernel and of points of one shape share a program."""
    return with_gradients(functools.partial(kernel_sum, kernel=kernel))


def assert_right(kernel, *case):
    """Sums and all gradients."""
    sums, gradients = compiled(kernel)(*case)
    assert np.less(errors(kernel, *case, sums, *gradients), [1e-5, 2e-5, 2e-5, 1e-5, 2e-5]).all()


@pytest.mark.parametrize("kernel, dim", EVERY, ids=str)
def test_sums_and_all_gradients(rng, kernel, dim):
    for case in clouds(rng, dim, 6):
        assert_right(kernel, *case)


@pytest.mark.parametrize("kernel, dim", [("imq", 3), ("gauss", 17)])
def test_gradients_at_both_sides_of_a_tile(rng, kernel, dim):
    """Of two channels, and of more queries than a block has: on one side moments may have digits, on the other not."""
    num, num_keys = 4300, 700
    for share in (0.95, 0.3, 0.05):  # of the queries in two tight clusters; half of the keys
        size = np.repeat([1, 1e-3, 1, 1e-3], [num - int(share * num), int(share * num), num_keys // 2, num_keys // 2])
        z = size[:, None] * rng.normal(size=(num + num_keys, dim)) / dim**0.5
        z[:, 0] += np.where(size < 1, 3 * rng.integers(0, 2, len(z)), 0)
        z, tau = z.astype(np.float32), np.float32(2)
        v, g = (rng.normal(size=(n, 2)).astype(np.float32) for n in (num_keys, num))
        _, found = compiled(kernel)(z[:num], z[num:], v, tau, g)
        exact, of_values, spread = np.zeros((2, num + num_keys, dim)), np.zeros((2, num_keys, 2)), np.zeros(2)
        for start in range(0, num, 430):
            rows = slice(start, start + 430)
            kappa, psi, apart = pairs(kernel, z[rows], z[num:], tau)
            w = psi * (np.float64(g[rows]) @ v.T)
            pulls, size_of = w[..., None] * apart, np.abs(w[..., None]) * np.abs(apart)
            exact[:, rows] = pulls.sum(1), size_of.sum(1)
            exact[:, num:] += -pulls.sum(0), size_of.sum(0)
            of_values += kappa.T @ g[rows], np.abs(kappa).T @ np.abs(g[rows])
            spread += [-(x * np.square(apart).sum(-1)).sum() / 2 for x in (w, -np.abs(w))]
        for x, rows in ((found[0], slice(num)), (found[1], slice(num, None))):
            assert error(x, 2 * exact[0, rows], 2 * exact[1, rows]) < 2e-5
        assert error(found[2], *of_values) < 1e-5 and error(found[3], *spread) < 2e-5


@pytest.mark.parametrize("kernel, shared_keys", [("gauss", False), ("energy", True)])
def test_batches(rng, kernel, shared_keys):
    """Of so many points that they are sorted; as a loop, under `vmap` as well."""
    x, v = cloud(rng, 2 * 600, 2).reshape(2, 600, 2), rng.normal(size=(2, 600, 1)).astype(np.float32)
    y = x[0] if shared_keys else x
    f = jax.value_and_grad(lambda x, y, v: kernel_sum(x, y, v, 0.3, kernel=kernel).sum(), (0, 2))
    loop = [f(x[i], y if shared_keys else y[i], v[i]) for i in range(2)]
    of_batch, vmapped = f(x, y, v), jax.vmap(f, (0, None if shared_keys else 0, 0))(x, y, v)
    assert error(of_batch[0], float(loop[0][0] + loop[1][0]), float(abs(loop[0][0]) + abs(loop[1][0]))) < 1e-5
    for i, (value, slopes) in enumerate(loop):
        assert error(vmapped[0][i], float(value), value) < 1e-5
        for a, b, c in zip(slopes, of_batch[1], vmapped[1], strict=True):
            assert error(b[i], np.float64(a), a) < 2e-5 and error(c[i], np.float64(a), a) < 2e-5


@pytest.mark.parametrize("kernel, dim", [("gauss", 17), ("matern32", 2), ("energy", 2)])
def test_mmd_witness_and_flow(rng, kernel, dim):
    num = {2: 300, 17: 150}[dim]
    ours = jax.jit(jax.value_and_grad(functools.partial(mmd_squared, kernel=kernel), (0, 1)))
    witness, velocity = (jax.jit(functools.partial(f, kernel=kernel)) for f in (mmd_witness, mmd_flow_velocity))
    for _ in range(6):
        z, tau = cloud(rng, 2 * num, dim), np.float32(1 / dim)
        x, y = z[:num], z[num:]
        value, slopes = ours(x, y, tau)
        signs = np.repeat([1.0, -1.0], num) / num
        kappa, psi, apart = pairs(kernel, z, z, tau)
        assert error(value, signs @ kappa @ signs, np.abs(kappa).sum() / num**2) < 1e-5
        assert error(witness(z, x, y, tau), kappa @ signs, np.abs(kappa) @ np.abs(signs)) < 1e-5
        pulls = float(tau) * ((psi * signs)[..., None] * apart).sum(1)
        sizes = float(tau) * ((psi * np.abs(signs)) * np.linalg.norm(apart, axis=-1)).sum(1)
        for found, rows, factor in (
            (slopes[0], slice(None, num), 2 / num),
            (slopes[1], slice(num, None), -2 / num),
            (velocity(x, y, tau), slice(None, num), -1),
        ):
            assert error(found, factor * pulls[rows], factor * sizes[rows]) < 2e-5


@pytest.mark.parametrize("kernel, dim", [("gauss", 3), ("cauchy", 3), ("imq", 17), ("matern12", 17), ("energy", 17)])
def test_slopes_where_near_pairs_carry_the_weight(rng, kernel, dim):
    """Tight clusters few bandwidths apart, and weights of zero far from the others: moments have no digits there."""
    for spread, masked in ((1e-3, False), (1e-2, False), (1e-3, True)):
        x, v = spread * rng.normal(size=(1200, dim)) / dim**0.5, ONES.copy()
        x[:, 0] += 4 * rng.integers(-1, 2, 1200)
        if masked:
            x[::2] = 2 * rng.normal(size=(600, dim)) / dim**0.5
            v[::2] = 0
        assert_right(kernel, *np.split(x.astype(np.float32), 2), v, np.float32(1), ONES)


@pytest.mark.parametrize("dim", [3, 17])
def test_leaves_with_points_of_two_clusters(rng, dim):
    """They are not skipped: of points that coincide u is 2⁻²⁴ of their norms by a product, more than any end."""
    for apart in 10.0 ** np.arange(1, 8):
        x = (rng.normal(size=(600, dim)) / 10 + apart * rng.integers(0, 3, (600, 1))).astype(np.float32)
        exact = pairs("gauss", x, x, 1 / dim)[0].sum(1)
        assert error(compiled("gauss")(x, x, ONES, np.float32(1 / dim), ONES)[0], exact, exact) < 1e-5


def test_pulls_of_points_far_nearer_than_float64_keeps(rng):
    """In a leaf that holds copies 1e5 away as well, moments about any center lose distances of 1e-9."""
    x = 1e-9 * rng.normal(size=(600, 17)).astype(np.float32)
    x[310:] = 1e5
    assert_right("gauss", x, x, ONES, np.float32(1), ONES)


@pytest.mark.parametrize("tau", [0.1, 0.5])
def test_points_that_see_little_but_themselves(rng, tau):
    """In many dimensions: the terms of MMD's gradient are then far smaller than what moments are rounded by."""
    x, y = rng.normal(size=(2, 600, 64)).astype(np.float32)
    slope, velocity = (f(x, y, np.float32(tau)) for f in (jax.grad(mmd_squared), mmd_flow_velocity))
    z, signs = np.r_[x, y], np.repeat([1.0, -1.0], 600) / 600
    _, psi, apart = pairs("gauss", x, z, tau)
    exact = tau * ((psi * signs)[..., None] * apart).sum(1)
    size = tau * (psi * np.abs(signs) * np.linalg.norm(apart, axis=-1)).sum(1)
    assert error(velocity, -exact, size) < 2e-5 and error(slope, exact / 300, size / 300) < 2e-5


@pytest.mark.parametrize("kernel", ["matern12", "matern52"])
def test_second_derivatives_of_logarithms_at_points_that_coincide(rng, kernel):
    """Of so many that they are taken in blocks."""
    x = rng.normal(size=(65, 2)).astype(np.float32)

    def shifts(f):
        return jax.grad(lambda q: jnp.sin(f(q)).sum())(x)

    for f in (lambda q: kde_score(q, x[:3], 1.0, kernel=kernel), lambda q: kernel_mean(q, x[:3], x[:3], kernel=kernel)):
        assert np.isfinite(shifts(f)).all()


@pytest.mark.parametrize("kernel, dim", [("gauss", 2), ("matern52", 17), ("imq", 2)])
def test_stein_discrepancy_and_direction(rng, kernel, dim):
    num = {2: 400, 17: 150}[dim]
    ours, direction = (jax.jit(functools.partial(f, kernel=kernel)) for f in (ksd_squared, svgd_direction))
    for _ in range(6):
        x, s = cloud(rng, num, dim), rng.normal(size=(num, dim)).astype(np.float32)
        tau, s64 = np.float32(1 / dim), np.float64(s)
        t, slope = float(tau), KERNELS[kernel].slope
        kappa, psi, apart = pairs(kernel, x, x, tau)
        u = t * np.square(apart).sum(-1)
        chi = np.asarray(slope.slope(jnp.asarray(u)))
        cross = -((s64[:, None] - s64[None]) * apart).sum(-1)
        terms = [z / num**2 for z in (kappa * (s64 @ s64.T), t * psi * cross, t * dim * psi, -t * u * chi)]
        assert error(ours(x, s, tau), sum(z.sum() for z in terms), sum(np.abs(z).sum() for z in terms)) < 1e-5
        exact = (kappa @ s64 - t * (psi[..., None] * apart).sum(1)) / num
        size = (kappa @ np.abs(s64)).sum(1) / num + t * (psi * np.linalg.norm(apart, axis=-1)).sum(1) / num
        assert error(direction(x, s, tau), exact, size) < 2e-5


@pytest.mark.parametrize("dim", [2, 17])
def test_densities_scores_modes_and_herds(rng, dim):
    num, rest = 300, jax.jit(functools.partial(mean_shift, tol=1e-3))
    density, score = jax.jit(kde_logpdf), jax.jit(kde_score)
    herd = jax.jit(functools.partial(kernel_herding, num=20))
    for _ in range(6):
        x, t = cloud(rng, num, dim), 1 / dim
        y, tau = x[: num // 2], np.float32(t)

        def softmax(queries, x=x, t=t):
            apart = np.float64(x)[None] - np.float64(queries)[:, None]
            logits = -t / 2 * np.square(apart).sum(-1)
            largest = logits.max(1, keepdims=True)
            logs = largest[:, 0] + np.log(np.exp(logits - largest).sum(1))
            return logs, np.exp(logits - logs[:, None]), apart

        logs, p, apart = softmax(y + 1)
        logs += dim / 2 * np.log(t / (2 * np.pi)) - np.log(num)
        assert (np.abs(np.asarray(density(y + 1, x, tau)) - logs) <= 1e-5 * np.maximum(1, np.abs(logs))).all()
        exact, size = (p[..., None] * apart).sum(1), (p * np.linalg.norm(apart, axis=-1)).sum(1)
        assert error(score(y + 1, x, tau), t * exact, t * size) < 2e-5

        _, p, apart = softmax(rest(y, x, tau).points)
        step = t**0.5 * np.linalg.norm((p[..., None] * apart).sum(1), axis=-1)
        assert step.max() < 2e-3 + t**0.5 * 2**-22 * np.linalg.norm(x, axis=-1).max()

        kappa = pairs("gauss", x, x, tau)[0]
        mean, chosen = kappa.mean(1), np.asarray(herd(x, tau).indices)
        for i, place in enumerate(chosen):
            worth = mean - kappa[:, chosen[:i]].sum(1) / (i + 1)
            worth[chosen[:i]] = -np.inf
            assert worth[place] > worth.max() - 1e-5


def test_independence_criterion(rng):
    """Of two clouds, each with a τ of its own."""
    num, ours = 200, jax.jit(jax.value_and_grad(hsic, (0, 1, 2, 3)))
    for _ in range(8):
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


@pytest.mark.parametrize("kernel, dim", [("gauss", 17), ("imq", 3)])
def test_logarithms_and_means(rng, kernel, dim):
    """Also of queries far from all keys, whose exponents are in the millions."""

    def both(q, k, v, tau):
        return log_gauss_sum(q, k, None, tau, kernel=kernel), kernel_mean(q, k, v, tau, kernel=kernel)

    @jax.jit
    def ours(q, k, v, tau, g):
        (logs, found), pullback = jax.vjp(both, q, k, v, tau)
        return logs, found, pullback((g, 0 * g)), pullback((0 * g, g))

    for x, y, v, tau, g in clouds(rng, dim, 4):
        t = float(tau)
        logs, found_means, of_logs, of_means = ours(x, y, v, tau, g)
        apart = np.float64(y)[None] - np.float64(x)[:, None]
        squares, profile = np.square(apart).sum(-1), as_kernel("test", kernel)
        exponents = np.asarray(profile.log(jnp.asarray(t * squares)))
        exact = np.asarray(jax.nn.logsumexp(exponents, axis=1))
        p = np.exp(exponents - exact[:, None])
        assert (np.abs(np.asarray(logs) - exact) <= 1e-5 * np.maximum(1, np.abs(exact))).all()
        assert error(found_means, p @ np.float64(v), p @ np.abs(v)) < 1e-5
        slope = np.asarray(jax.vmap(jax.vmap(jax.grad(profile.log)))(jnp.asarray(t * squares)))
        lengths = np.linalg.norm(apart, axis=-1)
        centered = np.float64(v)[None] - (p @ np.float64(v))[:, None]
        for found, weights in ((of_logs, p * g[:, None]), (of_means, p * g[:, None] * centered)):
            w = -2 * t * slope * weights
            assert error(found[0], (w[..., None] * apart).sum(1), (np.abs(w) * lengths).sum(1)) < 2e-5
            assert error(found[1], -(w[..., None] * apart).sum(0), (np.abs(w) * lengths).sum(0)) < 2e-5
            assert error(found[3], -(w * squares).sum() / (2 * t), (np.abs(w) * squares).sum() / (2 * t)) < 2e-5
        assert error(of_means[2], g @ p, np.abs(g) @ p) < 1e-5


@pytest.mark.parametrize("case", ["few without weight", "most without weight", "a far key of large weight"])
def test_logarithms_of_clusters_of_which_one_counts(rng, case):
    """What is left of a tile are those far from its center: their weights, and those near, relative to their own."""
    x, log_weights = rng.normal(size=(500, 3)).astype(np.float32), rng.normal(size=500).astype(np.float32)
    if case == "a far key of large weight":
        x[7], log_weights[:] = 1e3, 20 * (np.arange(500) == 7)
    else:
        num = 200 if case == "few without weight" else 300
        x[num:] += 1e3
        log_weights[:num] = -np.inf
    exponents = np.square(np.float64(x)[:, None] - np.float64(x)[None]).sum(-1) / -2 + np.float64(log_weights)[None]
    exact = np.logaddexp.reduce(exponents, 1)
    found = np.asarray(LOGARITHMS(x, x, log_weights), np.float64)
    assert (np.abs(found - exact) <= 1e-5 * np.maximum(1, np.abs(exact))).all()


@pytest.mark.parametrize("dim", [2, 17])
def test_leaving_one_out(rng, monkeypatch, dim):
    """Of regressions: exponents of any size are relative to that of the nearest, which may be nearly all of a mean."""
    monkeypatch.setattr(over_others, "PAIRS", 60 * 150)
    num, t = 150, 1 / dim

    @jax.jit
    @functools.partial(jax.value_and_grad, argnums=(0, 1, 2))
    def ours(x, v, tau):
        return leave_one_out_tau(x, tau[None], values=v).scores[0]

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

    found = jax.grad(lambda *z: leave_one_out_tau(z[0], taus, values=z[1]).scores.sum(), (0, 1))(x, v)
    expected = jax.grad(dense, (0, 1))(np.float64(x), np.float64(v))
    assert all(error(a, b, jnp.abs(b).max()) < 2e-6 for a, b in zip(found, expected, strict=True))


def test_energy_distance_of_points_of_any_size(rng):
    x, y = (rng.normal(size=(n, 3)) for n in (50, 60))
    f = jax.value_and_grad(energy_distance)
    exact, slope = f(x, y + 1)
    for scale in (1e-30, 1e-15, 1e15, 1e30):
        found = f(*((scale * z).astype(np.float32) for z in (x, y + 1)))
        assert abs(float(found[0]) / scale - exact) < 1e-5 * exact
        assert error(found[1], slope, slope) < 2e-5


@pytest.mark.parametrize("kernel, dim", [("gauss", 3), ("matern12", 17), ("imq", 17)])
def test_outliers_whose_squares_overflow(rng, kernel, dim):
    """Their own rows as well are those of finite points; the difference of two overflows, too."""
    x = rng.normal(size=(600, dim)).astype(np.float32)
    x[5, 0], x[300, 1], x[400, 1] = 1e20, -3e38, 3e38
    assert_right(kernel, x, x, ONES, np.float32(1 / dim), ONES)


def test_an_infinite_coordinate_is_no_plausible_number(rng):
    x, y = (rng.normal(size=(n, 3)).astype(np.float32) for n in (50, 60))
    x[7, 1] = np.inf
    assert not np.isfinite(energy_distance(x, y))


@pytest.mark.parametrize("exponent", [0.5, 0.75, 1.0])
def test_powers_have_finite_gradients(rng, exponent):
    """Zero where points coincide, in every order."""
    x = np.repeat(rng.normal(size=(20, 3)), 2, 0)
    kernel = Kernel(lambda u: -(u**exponent), conditional=True)
    value, slopes = jax.value_and_grad(lambda x: mmd_squared(x, jnp.zeros((1, 3)), 1.0, kernel=kernel))(x)
    apart = np.linalg.norm(x[:, None] - x[None], axis=-1)
    exact = 2 * np.mean(np.linalg.norm(x, axis=1) ** (2 * exponent)) - np.mean(apart ** (2 * exponent))
    assert abs(value - exact) < 1e-12
    assert np.isfinite(slopes).all()
    ones = np.ones((3, 2))
    assert (jax.grad(lambda x: kernel_sum(x, ones, ones, kernel=kernel).sum())(ones) == 0).all()


@pytest.mark.parametrize("num", [1, 64, 65, 4097])
def test_leaves_hold_every_point_once_and_lie_apart(rng, num):
    x = np.r_[[[np.nan, np.inf, 1e30]], rng.normal(size=(num, 3))].astype(np.float32)
    order = np.asarray(leaf_order(jnp.asarray(x), 64))
    assert order.shape[1] <= 64 and order.size < num + 1 + 8 * len(order)
    assert (np.sort(order, axis=None) == np.arange(order.size)).all()
    far = np.where(rng.integers(0, 2, (num, 1)), 1e4, 0) + rng.normal(size=(num, 3))
    order = np.asarray(leaf_order(jnp.asarray(far), 64))
    order = np.minimum(order, num - 1)  # leaves are filled up by copies of the last point
    mixed = np.ptp(far[order][..., 0], axis=1) > 5e3
    assert mixed.sum() <= 1
    line = far[:, :1].astype(np.float32)
    order = np.asarray(leaf_order(jnp.asarray(line), 64))
    leaves = [line[leaf] for leaf in np.minimum(order, num - 1)]
    assert all(a.max() <= b.min() for a, b in itertools.pairwise(leaves))


@pytest.mark.parametrize(
    "kernel, rate, dtype, decays",
    [("matern12", 1, "float32", 70), ("matern52", 5, "float32", 70), ("matern52", 5, "float64", 150)],
)
def test_leaves_apart_are_skipped_where_a_kernel_is_zero_in_its_dtype(rng, kernel, rate, dtype, decays):
    """And no nearer: what is so many decays apart is summed in one, and skipped in float32 farther than it knows."""
    x, y = (z.astype(dtype) for z in rng.normal(size=(2, 600, 1)))
    near, far, ones = y + decays / rate**0.5, y + 200 / rate**0.5, np.ones(600, dtype)
    exact = pairs(kernel, x, near, 1.0)[0].sum(1)
    found = np.asarray(kernel_sum(x, near, ones, kernel=kernel, method="blocked"))
    assert 0 < exact.max() < 1e-20 and np.linalg.norm(found / exact - 1) < (1e-9 if dtype == "float64" else 1e-3)
    assert (np.asarray(kernel_sum(x, far, ones, kernel=kernel)) == 0).all() == (dtype == "float32")


def test_few_leaves_are_doubtful_about_their_own_center(rng, monkeypatch):
    """Of clusters: about another center products would know nothing, and all pairs would take differences."""
    shares = []

    def recorded(total, flags, *others, add=anywhere._add_differences):
        jax.debug.callback(lambda x: shares.append(float(x)), jnp.stack(flags).mean())
        return add(total, flags, *others)

    monkeypatch.setattr(anywhere, "_add_differences", recorded)
    jax.clear_caches()
    x = (rng.normal(size=(1024, 17)) + 1e4 * rng.integers(1, 3, (1024, 1))).astype(np.float32)
    jax.block_until_ready(kernel_sum(x, x, x[:, 0], 1 / 17, kernel="imq"))
    jax.effects_barrier()
    jax.clear_caches()
    assert shares and max(shares) <= 0.5  # what is not of the cluster of the center, and little else


def test_tiles_of_logarithms_are_about_their_own_center(rng, monkeypatch):
    """Of clusters: about another center no product would know an exponent. Tiles of others are left out."""
    taken = []

    def recorded(*operands, logits=means.difference_logits):
        jax.debug.callback(lambda: taken.append(1))
        return logits(*operands)

    monkeypatch.setattr(means, "difference_logits", recorded)
    jax.clear_caches()
    x = (rng.normal(size=(2048, 3)) + 1e6 * np.repeat([[1], [2]], 1024, 0)).astype(np.float32)
    jax.block_until_ready(log_gauss_sum(x, x))
    jax.effects_barrier()
    assert not taken
    x[0] += 1e6 * np.float32([1, -1, 0])  # farther from its tile's center than products know
    jax.block_until_ready(log_gauss_sum(x, x))
    jax.effects_barrier()
    jax.clear_caches()
    assert taken
