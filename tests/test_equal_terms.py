"""Errors that do not average: sums of many equal terms, whose roundings all go one way."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgauss

N = 20_000


@pytest.fixture
def points(monkeypatch):
    monkeypatch.setattr("jaxgauss._engines.fourier.nufft.is_installed", lambda: False)  # by products
    return jnp.asarray(np.random.default_rng(0).normal(size=(N, 1)), "float32")


def exact(queries, points, tau):
    squared = np.square(np.float64(queries) - np.float64(points)[:, 0])
    return np.exp(-tau / 2 * squared).mean(1)


def test_equal_weights_keep_their_digits(points):
    """As sums, as a sketch, and as the norm of an embedding; `estimate_error` looks at these very sums."""
    weights, some = jnp.full(N, np.float32(1 / N)), points[::100]
    sums = np.float64(jaxgauss.gauss_sum(points, points, weights, 1.0))
    right = exact(some, points, 1.0)
    assert np.linalg.norm(sums[::100] - right) < 5e-7 * np.linalg.norm(right)
    estimate = jaxgauss.estimate_error(points, points, weights, 1.0, rng_key=jax.random.key(0))
    given = jaxgauss.estimate_error(points, points, weights, 1.0, rng_key=jax.random.key(0), sums=jnp.float32(sums))
    np.testing.assert_allclose(estimate, given, rtol=1e-4)
    sketch = jaxgauss.fourier_sketch(points, weights, 1.0)
    assert np.abs(np.float64(sketch(some)) - right).max() < 1e-6 * right.max()
    norm = jaxgauss.embedding_norm_squared(points, 1.0)
    assert abs(float(norm) - sums.mean()) < 1e-6


CONSTANTS = 0.1, 0.3
CLOUDS = {  # where every term of a query's sum is one of few numbers
    "equal": lambda n, dim: np.zeros((n, dim)),
    "lattice": lambda n, dim: np.repeat(np.arange(n)[:, None] % 8 / 8, dim, 1),
    "far rows": lambda n, dim: np.where(np.arange(n)[:, None] < 3, 1e5, 0) + np.zeros((n, dim)),
}


NEAR = [(method, cloud) for method in ("blocked", "dense", "rescale") for cloud in ("equal", "lattice")]


@pytest.mark.parametrize("method, cloud", [*NEAR, *((x, cloud) for x in ("auto", "differences") for cloud in CLOUDS)])
@pytest.mark.parametrize("sizes", [(1, 200_000, 2), (3, 30_000, 1), (64, 5000, 8), (900, 900, 3), (2500, 3000, 17)])
def test_sums_of_equal_terms_keep_their_digits(method, sizes, cloud):
    """Of one value, of several channels, with few rows and with many."""
    (num_queries, num_keys, channels), dim = sizes, 5
    keys = CLOUDS[cloud](num_keys, dim).astype("float32")
    queries = keys[-num_queries:]
    points, counts = np.unique(keys, axis=0, return_counts=True)
    squared = np.square(queries[:, None] - np.float64(points)).sum(-1)
    values = np.float32([CONSTANTS[i % 2] for i in range(channels)])
    exact = (np.exp(-squared / 2) @ counts)[:, None] * np.float64(values)
    sums = jaxgauss.gauss_sum(queries, keys, np.broadcast_to(values, (num_keys, channels)), engine=method)
    assert (np.linalg.norm(np.float64(sums) - exact, axis=0) < 2e-6 * np.linalg.norm(exact, axis=0)).all()


KINDS = ("gauss", "auto"), ("gauss", "rescale"), ("imq", "auto")
WIDTHS = (1, 1), (1, 16), (4, 3), (17, 3)
SIZES = (2, 50_000), (50_000, 2), (1000, 1000)
MANY_TILES = (("imq", "auto"), (4, 3), (4_000_000, 1))


@pytest.mark.parametrize("kind, width, sizes", [*itertools.product(KINDS, WIDTHS, SIZES), MANY_TILES])
def test_gradients_of_equal_terms_keep_their_digits(kind, width, sizes):
    """Of points that lie in two places: of a value, of a query and of a key, beside the sums of their terms' sizes."""
    (kernel, method), (channels, dim), (num_queries, num_keys) = kind, width, sizes
    queries, keys = jnp.zeros((num_queries, dim), "float32"), jnp.full((num_keys, dim), 0.5, "float32")
    sides = (num_keys, CONSTANTS[0]), (num_queries, CONSTANTS[1])
    values, g = (jnp.full((n, channels), c, "float32") for n, c in sides)
    _, pullback = jax.vjp(lambda *x: jaxgauss.kernel_sum(*x, kernel=kernel, engine=method), queries, keys, values)
    u, both = dim / 4, channels * np.float64(np.float32(CONSTANTS[0])) * np.float64(np.float32(CONSTANTS[1]))
    kappa, psi = (np.exp(-u / 2),) * 2 if kernel == "gauss" else ((1 + u) ** -0.5, (1 + u) ** -1.5)
    exact = (
        np.full(queries.shape, psi * both * num_keys / 2),
        np.full(keys.shape, -psi * both * num_queries / 2),
        np.full(values.shape, kappa * num_queries * np.float64(np.float32(CONSTANTS[1]))),
    )
    for ours, right in zip(pullback(g), exact, strict=True):
        assert np.linalg.norm(np.float64(ours) - right) < 1e-5 * np.linalg.norm(right)


@pytest.mark.parametrize("sizes", [(3, 8, 1), (150, 300, 3), (900, 1500, 2)])
@pytest.mark.parametrize(
    "kernel, method",
    [("gauss", x) for x in ("auto", "differences", "rescale")] + [("imq", "auto"), ("imq", "mixture")],
)
def test_values_near_the_end_of_the_range(rng, kernel, method, sizes):
    """Finite sums of values whose partial sums overflow, and means; with gradients, traced or not."""
    num_queries, num_keys, channels = sizes
    keys = jnp.asarray(rng.normal(size=(num_keys, 3)), "float32")
    values = jnp.asarray(3e38 * rng.choice([-1, 1], size=(num_keys, channels)), "float32")
    queries = keys[:num_queries]
    u = np.square(np.float64(queries)[:, None] - np.float64(keys)).sum(-1)
    kappa = np.exp(-u / 2) if kernel == "gauss" else (1 + u) ** -0.5
    exact, size, largest = kappa @ np.float64(values), kappa @ np.abs(np.float64(values)), np.finfo("float32").max

    def function(queries, values):
        return jaxgauss.kernel_sum(queries, keys, values, kernel=kernel, engine=method)

    for sums in (function(queries, values), jax.jit(function)(queries, values)):
        ours = np.clip(np.float64(sums), -largest, largest)
        assert (np.abs(ours - np.clip(exact, -largest, largest)) <= 2e-6 * size).all()
    gradients = jax.grad(lambda *x: (1e-9 * function(*x)).sum(), (0, 1))(queries, values)
    assert all(np.isfinite(x).all() for x in gradients)
    assert np.isfinite(jaxgauss.kernel_mean(queries, keys, values, kernel=kernel)).all()
