"""Points in two parts: float32 exponents with their digits where points lie far from their center."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.distance import cdist

import torch_backend
from jaxgauss import explain, gauss_sum, kernel_mean, ksd_squared, log_gauss_sum, mmd_squared
from jaxgauss._arrays.split import SPLIT_REACH, key_factors, query_factors, split_points
from jaxgauss._engines import plan, reach, tiles
from oracle import gauss_sum64, relative_error

M, N = 97, 131


@pytest.fixture(autouse=True)
def in_float64(monkeypatch):
    """Two parts of the fewest pairs; what is summed in float64 after all."""
    called = []
    monkeypatch.setattr(reach, "SPLIT_PAIRS", 1)
    monkeypatch.setattr(plan, "TILE", plan.TILE._replace(entries=0))  # so many are summed in blocks
    for name in ("wide_sum", "wide_pullback", "wide_means"):
        function = getattr(torch_backend, name)

        def counted(*operands, function=function, **options):
            called.append(function.__name__)
            return function(*operands, **options)

        monkeypatch.setattr(torch_backend, name, counted)
    jax.clear_caches()
    return called


def samples(rng, dim: int, radius: float) -> tuple[np.ndarray, ...]:
    """Queries near to keys that fill a ball, the farthest `radius` from their mean, and values."""
    keys = rng.normal(size=(N, dim))
    keys *= radius / np.linalg.norm(keys, axis=1).max()
    queries = keys[rng.integers(0, N, M)] + 0.7 * dim**-0.5 * rng.normal(size=(M, dim))
    return queries.astype("float32"), keys.astype("float32"), rng.normal(size=(N, 2)).astype("float32")


@pytest.mark.parametrize("dim", [1, 3, 64])
def test_the_first_product_is_exact(rng, dim):
    """In any order of its terms; and both together are the exponents."""
    queries, keys, _ = samples(rng, dim, 0.98 * SPLIT_REACH**0.5)
    a, b = split_points(*(jnp.asarray(x) for x in (queries, keys)), jnp.float32(1))
    (a1, a2), (b1, b2) = ([np.asarray(x) for x in y] for y in (query_factors(a), key_factors(b)))
    product = a1 @ b1.T
    np.testing.assert_array_equal(product, a1.astype(np.float64) @ b1.T)
    np.testing.assert_array_equal(product, (a1[:, ::-1].copy() @ b1[:, ::-1].T))
    exponents = cdist(queries, keys, "sqeuclidean") * -np.log2(np.e) / 2
    seen = exponents > -30
    assert np.abs(product + a2 @ b2.T - exponents)[seen].max() < 6e-6 * dim**0.5
    assert seen.any()


@pytest.mark.parametrize("dim", [1, 3, 64])
@pytest.mark.parametrize(("radius", "way"), [(60.0, "two parts"), (240.0, "two parts"), (300.0, "float64")])
def test_sums(rng, in_float64, dim, radius, way):
    """Batched and under jit; `explain` says so. Of whole points they would err by 2e-4 to 5e-3."""
    queries, keys, values = samples(rng, dim, radius)
    exact = gauss_sum64(queries, keys, values, 1.0)
    batched = jax.jit(jax.vmap(gauss_sum, (None, None, 0)))(queries, keys, np.stack([values, 2 * values]))
    for found in (gauss_sum(queries, keys, values), batched[0], batched[1] / 2):
        found = np.asarray(found, np.float64)
        assert np.linalg.norm(found - exact) < 1e-5 * np.linalg.norm(gauss_sum64(queries, keys, np.abs(values), 1.0))
    assert bool(in_float64) == (way == "float64")
    chosen = explain(queries, keys, values)
    assert (chosen.method, chosen.precision) == ("blocked", "float64" if in_float64 else "float32")
    assert ("two parts" in chosen.reason) == (way == "two parts")


@pytest.mark.parametrize("shared", ["keys", "queries"])
def test_parts_are_of_points_about_their_center(rng, in_float64, shared):
    """Wherever that is: of points that are not centered the norms would have no digits left."""
    queries, keys, values = samples(rng, 3, 60.0)
    queries, keys = queries + np.float32(3000), keys + np.float32(3000)
    exact, size = (gauss_sum64(queries, keys, v, 1.0) for v in (values, np.abs(values)))
    batch = np.stack([queries, queries]), np.stack([keys, keys])
    found = gauss_sum(batch[0], keys, values) if shared == "keys" else gauss_sum(queries, batch[1], values)
    assert np.linalg.norm(np.asarray(found, np.float64) - exact, axis=(1, 2)).max() < 1e-5 * np.linalg.norm(size)
    assert not in_float64


@pytest.mark.parametrize(("radius", "channels"), [(55.0, 1), (55.0, 2), (80.0, 2)])
def test_gradients(rng, in_float64, radius, channels):
    """Of queries, keys and values, by channels and by the pullback; that of τ is formed in float64."""
    queries, keys, values = samples(rng, 3, radius)
    values = values[:, :channels]
    cotangent = rng.normal(size=(M, channels)).astype("float32")

    def form(sums, *operands):
        return (cotangent.astype(operands[0].dtype) * sums(*operands)).sum()

    def formula(q, k, v, tau):
        return jnp.exp(-tau / 2 * jnp.square(q[:, None] - k[None]).sum(-1)) @ v

    exact = jax.grad(functools.partial(form, formula), (0, 1, 2, 3))(
        *(np.float64(x) for x in (queries, keys, values, 1))
    )
    ours = jax.jit(jax.grad(functools.partial(form, gauss_sum), (0, 1, 2)))(queries, keys, values, np.float32(1))
    for found, expected in zip(ours, exact, strict=False):
        assert relative_error(found, expected) < 1e-5
    assert bool(in_float64) == (radius > 64)
    slope = jax.grad(functools.partial(form, gauss_sum), 3)(queries, keys, values, np.float32(1))
    assert abs(float(slope) - float(exact[3])) < 1e-5 * np.abs(values).sum()
    assert in_float64


@pytest.mark.parametrize("case", ["near", "far queries", "weights", "one weight", "NaN", "beyond"])
def test_logarithms_and_means(rng, in_float64, case):
    """As far from all keys as one likes: the large exponent is taken out of the exact product."""
    queries, keys, values = samples(rng, 3, 180.0 if case == "beyond" else 100.0)
    log_weights = np.zeros(N, "float32")
    if case == "far queries":  # a hundred bandwidths from keys, of which each has a near neighbour
        keys[1::2] = keys[:-1:2] + np.float32(0.01) * keys[1::2] / 100
        queries *= -0.5
    if case == "weights":
        log_weights = rng.normal(size=N).astype("float32") * 20
    if case == "one weight":
        log_weights = np.where(np.arange(N) == 1, np.float32(0.5), np.float32(-np.inf))
    if case == "NaN":
        queries[3] = np.nan
    logits = -cdist(queries, keys, "sqeuclidean") / 2 + log_weights
    exact = np.asarray(jax.nn.logsumexp(logits, axis=1))
    shares = np.exp(logits - exact[:, None])
    logs, score = jax.jit(jax.value_and_grad(lambda q: log_gauss_sum(q, keys, log_weights).sum()))(queries)
    seen = np.arange(M) != (3 if case == "NaN" else -1)
    found = np.asarray(log_gauss_sum(queries, keys, log_weights), np.float64)
    assert np.isnan(found[~seen]).all()
    np.testing.assert_array_less(np.abs(found - exact)[seen], 1e-5 * np.maximum(1, np.abs(exact[seen])))
    slopes, score = shares @ keys - queries, np.asarray(score)
    sizes = np.maximum(1, np.linalg.norm(slopes, axis=1))
    assert np.max(np.linalg.norm(score - slopes, axis=1)[seen] / sizes[seen]) < 2e-5
    assert np.isfinite(logs) == (case != "NaN")
    means = np.asarray(kernel_mean(queries, keys, values, log_weights=log_weights))
    assert np.max(np.abs(means - shares @ values)[seen]) < (2e-5 if case == "weights" else 1e-5) * np.abs(values).max()
    assert bool(in_float64) == (case == "beyond")


@pytest.mark.parametrize("weight", [-np.inf, -3e5])
def test_hardly_any_weight(rng, in_float64, weight):
    """More than can be taken out."""
    queries, keys, _ = samples(rng, 3, 100.0)
    exact = jax.nn.logsumexp(-cdist(queries, keys, "sqeuclidean") / 2 + weight, axis=1)
    np.testing.assert_allclose(log_gauss_sum(queries, keys, np.full(N, weight, "float32")), exact, rtol=1e-6)
    assert in_float64


def test_the_largest_logit_over_blocks(rng):
    """The last ones padded."""
    a, b = rng.normal(size=(2, 97, 3)), rng.normal(size=(131, 3)) - 9
    a = np.abs(a)
    found = tiles.tiled_max(jnp.asarray(a), jnp.asarray(b)[None], tile=tiles.Tile(64, 7, 7, 1))
    np.testing.assert_allclose(found, (a @ b.T).max(-1, keepdims=True), rtol=1e-12)
    assert np.max(found) < 0


def test_memory(monkeypatch):
    """What any branch may need is given at every call, so two parts must not need much more than float64 does."""
    points, values = np.zeros((4096, 128), "float32"), np.zeros((4096, 1), "float32")

    def needed() -> int:
        jax.clear_caches()
        return jax.jit(gauss_sum).lower(points, points, values).compile().memory_analysis().temp_size_in_bytes

    in_two_parts = needed()
    monkeypatch.setattr(reach, "SPLIT_PAIRS", 2**62)
    in_float64 = needed()
    assert in_float64 < in_two_parts < 2 * in_float64 < 32 * 2**20  # beyond which malloc has new pages for every call


def test_derivatives_of_logarithms(rng, in_float64):
    """But for the score they are formed in float64, of any order."""
    queries, keys, _ = samples(rng, 2, 60.0)
    log_weights = rng.normal(size=N).astype("float32")

    def formula(q, k, w):
        return jax.nn.logsumexp(w[None] - jnp.square(q[:, None] - k[None]).sum(-1) / 2, axis=1).sum()

    def ours(*operands):
        return log_gauss_sum(*operands).sum()

    wide = [np.float64(x) for x in (queries, keys, log_weights)]
    exact = jax.grad(formula, (0, 1, 2))(*wide)
    for found, expected in zip(jax.grad(ours, (0, 1, 2))(queries, keys, log_weights), exact, strict=True):
        assert relative_error(found, expected) < 1e-5
    assert in_float64
    along = rng.normal(size=queries.shape).astype("float32")
    twice = jax.grad(lambda q: (along * jax.grad(ours)(q, keys, log_weights)).sum())(queries)
    expected = jax.grad(lambda q: (np.float64(along) * jax.grad(formula)(q, *wide[1:])).sum())(wide[0])
    assert relative_error(twice, expected) < 1e-5


def test_methods_of_one_and_of_several_bandwidths(rng, in_float64):
    """Each goes its own way: near, of two parts, in float64. What is of second order in points has no two parts."""
    x, y = (z.astype("float32") for z in rng.normal(size=(2, 150, 2)))
    squares = np.square(np.concatenate([x, y])).sum(1).max()

    def formula(x, y, tau):
        def mean(x, y):
            return jnp.exp(-tau / 2 * jnp.square(x[:, None] - y[None]).sum(-1)).mean()

        return mean(x, x) - 2 * mean(x, y) + mean(y, y)

    taus = (np.array([1.0, 30.0, 1e4]) ** 2 / squares).astype("float32")
    for tau, ways in ((taus[1], {1}), (taus[:2], {1}), (taus, {1, 2})):
        value, slope = jax.value_and_grad(mmd_squared)(x, y, tau)
        exact = [jax.value_and_grad(formula)(*(np.float64(z) for z in (x, y, t))) for t in np.ravel(tau)]
        assert abs(float(value) - np.mean([e[0] for e in exact])) < 2e-6
        assert relative_error(slope, np.mean([e[1] for e in exact], 0)) < 1e-5
        assert bool(in_float64) == (2 in ways)
    for second_order in (lambda: jax.grad(mmd_squared, (0, 1))(x, y, taus[1]), lambda: ksd_squared(x, -x, taus[1])):
        in_float64.clear()
        jax.block_until_ready(second_order())
        assert in_float64
