"""Wherever the points lie: derivatives of first and second order have the digits of the plain formula in float32."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgauss import (
    gauss_sum,
    gauss_sum_blocked,
    gauss_sum_dense,
    ksd_squared,
    log_gauss_sum,
    mmd_squared,
    svgd_direction,
)
from oracle import assert_close, relative_error

NUM = 150
WEIGHTS = np.random.default_rng(1).normal(size=(NUM, 1))


def differences(x, y):
    return x[:, None] - y[None]


def kernel(x, y, tau):
    return jnp.exp(-tau / 2 * jnp.square(differences(x, y)).sum(-1))


def sum_formula(x, y, tau):
    return kernel(x, y, tau) @ WEIGHTS.astype(x.dtype)


def mmd_formula(x, y, tau):
    return kernel(x, x, tau).mean() - 2 * kernel(x, y, tau).mean() + kernel(y, y, tau).mean()


def ksd_formula(x, s, tau):
    apart = differences(x, x)
    squared, along = jnp.square(apart).sum(-1), (differences(s, s) * apart).sum(-1)
    return (kernel(x, x, tau) * (s @ s.T + tau * (along + x.shape[1]) - tau**2 * squared)).mean()


def svgd_formula(x, s, tau):
    phi = kernel(x, x, tau)
    return (phi @ s + tau * (phi[..., None] * differences(x, x)).sum(1)) / len(x)


FUNCTIONS = {
    "gauss_sum": (lambda x, y, tau: gauss_sum(x, y, WEIGHTS.astype(x.dtype), tau), sum_formula),
    "mmd_squared": (mmd_squared, mmd_formula),
    "ksd_squared": (ksd_squared, ksd_formula),
    "svgd_direction": (svgd_direction, svgd_formula),
}


def weighted(x):
    """A number that depends on every entry."""
    return (x * jnp.cos(jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape)).sum()


def derivatives(function):
    """Gradients in all arguments, and those of a number made of the gradients."""

    def first(*operands):
        slopes = jax.grad(lambda *x: weighted(function(*x)), (0, 1, 2))(*operands)
        return sum(map(weighted, slopes)), slopes

    def found(*operands):
        second, slopes = jax.grad(first, (0, 1, 2), has_aux=True)(*operands)
        return *slopes, *second

    return jax.jit(found)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_have_their_digits(rng, name):
    """On clusters at ±5, ±20, ±100 and 1e6 bandwidths, and at τ from .01 to 100 on N(0, I)."""
    ours, plain = map(derivatives, FUNCTIONS[name])
    for apart, tau in ((5, 1), (20, 1), (100, 1), (1e6, 1), (0, 0.01), (0, 1), (0, 100)):
        x, y = rng.normal(size=(2, NUM, 3))
        scores, signs = -x, np.where(np.arange(NUM) % 2, 1, -1)[:, None]
        others = scores if name in ("ksd_squared", "svgd_direction") else y + apart * signs
        case = [np.asarray(z, np.float32) for z in (x + apart * signs, others, tau)]
        exact = plain(*(z.astype(np.float64) for z in case))
        for i, (found, rough, expected) in enumerate(zip(ours(*case), plain(*case), exact, strict=True)):
            bound = max(1e-5, 20 * relative_error(rough, expected))
            assert relative_error(found, expected) <= bound, (apart, tau, i)


def test_each_bandwidth_goes_its_own_way(rng):
    """A wide, a middling and a narrow one: value and gradients, of one pair of samples and of a batch of pairs."""
    x, y = rng.normal(size=(2, 3, NUM, 2)).astype(np.float32)
    taus = np.float32([0.01, 1, 1e4])

    def exact(x, y, taus):
        x, y, taus = (z.astype(np.float64) for z in (x, y, taus))
        parts = [jax.value_and_grad(mmd_formula, (0, 1, 2))(x, y, tau) for tau in taus]
        values, gradients = zip(*parts, strict=True)
        d_x, d_y, d_tau = zip(*gradients, strict=True)
        return np.mean(values), np.mean(d_x, 0), np.mean(d_y, 0), np.stack(d_tau) / len(taus)

    function = jax.value_and_grad(mmd_squared, (0, 1, 2))
    batched = jax.jit(jax.vmap(function, (0, 0, None)))(x, y, taus)
    for i in range(len(x)):
        expected = exact(x[i], y[i], taus)
        for value, gradients in (jax.jit(function)(x[i], y[i], taus), jax.tree.map(lambda z: z[i], batched)):  # noqa: B023
            for found, one in zip((value, *gradients), expected, strict=True):
                assert relative_error(found, one) < 1e-5


@pytest.mark.parametrize("x64", [False, True])
def test_of_any_order_in_either_mode(rng, x64):
    """Batches of Hessians, and of third derivatives, with JAX's 64-bit mode on, and off."""
    x, y, v = (rng.normal(size=(n, 2)).astype(np.float32) for n in (6, 5, 5))

    def of_batch(function):
        def along(t, x):
            return weighted(jnp.sin(function(x * (1 + t), jnp.asarray(y), jnp.asarray(v) * (1 - t), 1 + t)))

        number = jnp.asarray(0.1, x.dtype)
        if x64:
            return jax.jit(jax.vmap(jax.jacrev(jax.grad(along, 1), 1), (None, 0)))(number, jnp.stack([x, -x]))
        return jax.jit(jax.vmap(jax.grad(jax.grad(jax.grad(along))), (None, 0)))(number, jnp.stack([x, -x]))

    with jax.enable_x64(x64):
        found = of_batch(gauss_sum)
        assert found.dtype == np.float32
    x, y, v = (z.astype(np.float64) for z in (x, y, v))
    assert relative_error(found, of_batch(lambda x, y, v, tau: kernel(x, y, tau) @ v)) < 1e-5


def squares(x, y):
    return np.square(x.astype(np.float64)[:, None] - y.astype(np.float64)[None]).sum(-1)


@pytest.mark.parametrize("function", [gauss_sum_dense, gauss_sum_blocked])
@pytest.mark.parametrize("apart", [3.0, 1e2, 1e4, 1e8])
def test_sums_in_xla_hold_for_clusters_far_apart(rng, function, apart):
    """In both dtypes, under `jit` and not, with tangents; and with an outlier, farther still."""
    for dtype, unit in (("float32", 2**-24), ("float64", 2**-53)):
        points = rng.normal(size=(300, 2)) + apart * np.where(np.arange(300) % 2, 1, -1)[:, None]
        points[-1] = 1e3 * apart
        points, ones, direction = points.astype(dtype), np.ones(300, dtype), rng.normal(size=(300, 2)).astype(dtype)
        phi = np.exp(-squares(points, points) / 2)
        assert relative_error(gauss_sum(points, points, ones, engine="differences"), phi.sum(1)) < 20 * unit
        slopes = -np.einsum("mn,mnd,md->m", phi, differences(*[points.astype("float64")] * 2), direction)
        for sums in (function, jax.jit(function)):
            value, tangent = jax.jvp(lambda q, f=sums: f(q, points, ones), (points,), (direction,))  # noqa: B023
            assert_close([sums(points, points, ones), value, tangent], [phi.sum(1), phi.sum(1), slopes], 50 * unit)


@pytest.mark.parametrize("dim", [2, 24, 1000])
def test_logarithms_hold_their_statement(rng, dim):
    """Near zero, where terms are 22 bandwidths away, and where each query sees one key, far from the center."""
    num, num_keys = (60, 50) if dim < 100 else (16, 15)  # so few that they are not sorted
    for case in (dim**-0.5, 1.0, 15 * dim**-0.5, "sphere"):
        x, y = (rng.normal(size=(n, dim)) for n in (num, num_keys))
        if case == "sphere":
            y *= 0.98 * max(22, 2 * dim**0.5) / np.linalg.norm(y, axis=1, keepdims=True)
            x = y[rng.integers(0, num_keys, num)] + 0.02 * x
        scale = 1 if case == "sphere" else case
        x, y = (scale * z.astype(np.float32) for z in (x, y))
        logits = -squares(x, y) / 2
        exact = np.logaddexp.reduce(logits, 1)
        reach = max(np.square(z - y.mean(0)).sum(1).max() for z in (x, y))
        for method, slope in (("auto", 3e-7), ("rescale", 6e-7)):
            error = np.abs(np.asarray(log_gauss_sum(x, y, engine=method), np.float64) - exact)
            assert np.all(error <= (1e-6 + slope * reach) * np.maximum(1, np.abs(exact)))


SCORES = {"of N(0, 80²)": lambda x: -x / 6400, "bounded": lambda x: -np.tanh(x), "large": lambda x: -x}


@pytest.mark.parametrize("scores", SCORES)
@pytest.mark.parametrize("kernel, alpha, rate", [("imq", 0.5, 1.0), ("cauchy", 1.0, 2.0)])
@pytest.mark.parametrize("estimator", ["biased", "unbiased"])
def test_stein_gradients_of_long_tails_have_their_digits(rng, kernel, alpha, rate, estimator, scores):
    """Of points so far apart that a point's own pair, which has no gradient, would hide all others in its rounding.

    A plain formula in float32 has up to 1e-5 of the gradient, because the gradient itself cancels: sums in another
    order, as on another CPU, change no more than that.
    """

    def dense(x, s, tau):
        apart = differences(x, x)
        u, along = tau * jnp.square(apart).sum(-1), (differences(s, s) * apart).sum(-1)
        power = 1 + rate / (2 * alpha) * u
        kappa, psi = power**-alpha, rate * power ** (-alpha - 1)
        chi = rate**2 * (alpha + 1) / alpha * power ** (-alpha - 2)
        h = kappa * (s @ s.T) + psi * tau * (along + x.shape[1]) - tau * u * chi
        return h.mean() if estimator == "biased" else (h.sum() - jnp.trace(h)) / (len(x) * (len(x) - 1))

    def ours(*operands):
        return ksd_squared(*operands, kernel=kernel, estimator=estimator)

    ours, plain = (jax.jit(jax.value_and_grad(f, (0, 1, 2))) for f in (ours, dense))
    for spread in (0.5, 10, 80, 800):
        x = (spread * rng.normal(size=(120, 3))).astype("float32")
        case = x, SCORES[scores](x), np.float32(2)
        exact = jax.tree.leaves(plain(*(z.astype("float64") for z in case)))
        for found, rough, expected in zip(*(jax.tree.leaves(f(*case)) for f in (ours, plain)), exact, strict=True):
            assert relative_error(found, expected) <= max(1e-5, 5 * relative_error(rough, expected))
