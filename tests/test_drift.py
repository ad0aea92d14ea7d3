"""The drifting field against its dense formula in NumPy float64, in its authors' words: a matrix and two softmaxes."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from scipy.spatial.distance import cdist
from scipy.special import logsumexp

import jaxgauss
from jaxgauss import drift

RADII = np.array([0.05, 0.2, 1.0])  # of distances of about one
TOLERANCE = {"float32": 1e-5, "float64": 1e-12}  # of the largest |V|


def targets_of(x, y, negatives, a, b, c):
    """Negatives, of which the first may be x; positives; their weights; and how many are x, and negatives."""
    own = negatives is None or a is not None
    groups = ([(x, a)] if own else []) + ([] if negatives is None else [(negatives, c)]) + [(y, b)]
    weights = [np.ones(len(z)) if w is None else w for z, w in groups]
    every, weights = np.concatenate([z for z, _ in groups]).astype("float64"), np.concatenate(weights)
    return every, weights.astype("float64"), len(x) * own, len(every) - len(y)


def exact(x, y, tau, negatives=None, a=None, b=None, c=None, *, unit_rms=False, kernel="laplace"):
    """Σ_τ V, with weights a of x, b of positives and c of negatives."""
    x = x.astype("float64")
    every, w, num_own, num = targets_of(x, y, negatives, a, b, c)
    total = np.zeros_like(x)
    for t in np.atleast_1d(np.asarray(tau, "float64")):
        logs = -np.sqrt(t) * cdist(x, every) if kernel == "laplace" else -t / 2 * cdist(x, every, "sqeuclidean")
        logs[np.arange(num_own), np.arange(num_own)] = -np.inf
        rows, columns = (logsumexp(logs, axis, keepdims=True) for axis in (1, 0))
        if kernel == "gauss":
            parts = [np.exp(logs[:, z] - logs[:, z].max(1, keepdims=True)) * w[z] for z in (np.s_[:num], np.s_[num:])]
            repelled, attracted = (p / p.sum(1, keepdims=True) for p in parts)
            total = total + t * (attracted @ every[num:] - repelled @ every[:num])
            continue
        affinity = np.exp(logs - rows / 2 - columns / 2) * w
        negative, positive = affinity[:, :num], affinity[:, num:]
        field = negative.sum(1, keepdims=True) * (positive @ every[num:])
        field -= positive.sum(1, keepdims=True) * (negative @ every[:num])
        total = total + (field / np.sqrt(np.square(field).mean()) if unit_rms else field)
    return total


def clouds(rng, g, p, dim=16, dtype="float32"):
    """Points about one apart, from each other and from data."""
    x, y = rng.normal(size=(g, dim)), 0.3 + 0.7 * rng.normal(size=(p, dim))
    return ((z / (2 * dim) ** 0.5).astype(dtype) for z in (x, y))


def assert_right(found, expected, dtype="float32", worse=1):
    assert found.shape == expected.shape and found.dtype == dtype
    error = np.abs(np.asarray(found, "float64") - expected).max()
    assert error <= worse * TOLERANCE[dtype] * np.abs(expected).max()


@pytest.fixture
def few_pairs(monkeypatch):
    """Several blocks of rows, the last of which is not full."""
    monkeypatch.setattr("jaxgauss._methods.drift.PAIRS", dict.fromkeys(("cpu", "cuda"), 1000))
    jax.clear_caches()  # of programs with one block
    yield
    jax.clear_caches()


WAYS = {
    "plain": {},
    "rms": {"unit_rms": True},
    "weights": {"self_weights": 41, "positive_weights": 30},
    "negatives": {"negatives": 23},
    "weighted negatives": {"negatives": 23, "negative_weights": 23, "positive_weights": 30, "unit_rms": True},
    "x and negatives": {"negatives": 23, "self_weights": 41, "negative_weights": 23},
}


def called(rng, way, dtype, x, y):
    """The options of a call, and the arguments of the exact formula."""
    given = {k: v if k == "unit_rms" else rng.uniform(0.2, 3, v) for k, v in WAYS[way].items()}
    if "negatives" in given:
        given["negatives"] = rng.normal(size=(23, x.shape[1])) / 5
    given = {k: v if k == "unit_rms" else v.astype(dtype) for k, v in given.items()}
    names = "negatives", "self_weights", "positive_weights", "negative_weights"
    return given, [given.get(name) for name in names]


@pytest.mark.parametrize("blocks", [False, True], ids=["whole", "blocks"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_field_is_that_of_the_matrix(rng, request, dtype, way, blocks):
    if blocks:
        request.getfixturevalue("few_pairs")
    x, y = clouds(rng, 41, 30, dtype=dtype)
    options, given = called(rng, way, dtype, x, y)
    unit_rms = options.get("unit_rms", False)
    found = drift(x, y, RADII**-2, **options)
    assert_right(found, exact(x, y, RADII**-2, *given, unit_rms=unit_rms), dtype)
    one = drift(x, y, 25.0, **options)
    assert_right(one, exact(x, y, 25.0, *given, unit_rms=unit_rms), dtype)


@pytest.mark.parametrize("way", ["plain", "weights", "x and negatives"])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_gaussian_field_is_a_difference_of_scores(rng, dtype, way):
    x, y = clouds(rng, 41, 30, dtype=dtype)
    options, given = called(rng, way, dtype, x, y)
    found = drift(x, y, np.array([0.5, 4.0]), kernel="gauss", **options)
    assert_right(found, exact(x, y, [0.5, 4.0], *given, kernel="gauss"), dtype)
    if way == "plain" and dtype == "float64":
        scores = jaxgauss.kde_score(x, y, 4.0) - jaxgauss.kde_score(x, x, 4.0, exclude_self=True)
        assert_right(drift(x, y, 4.0, kernel="gauss"), np.asarray(scores, "float64"), dtype, worse=3)


@pytest.mark.parametrize("radius", [1e-3, 1e-2, 30.0, 1e4])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_radii_of_every_size(rng, dtype, radius):
    """Those far below the distances lose digits as 24 bits of exponents do; none underflows with unit_rms."""
    x, y = clouds(rng, 41, 30, dtype=dtype)
    tau = np.float64(np.asarray(radius**-2, dtype))
    expected = exact(x, y, tau, unit_rms=True)
    worse = max(1, 0.02 / radius, 0.3 * radius if radius > 10 else 0)
    assert_right(drift(x, y, tau, unit_rms=True), expected, dtype, worse=worse)


def copies(rng, x):
    return np.resize(x[:7], x.shape) + np.where(np.arange(len(x))[:, None] % 3, 0, 1e-6 * rng.normal(size=x.shape))


def clusters(rng, x):
    return x + 1e4 * (np.arange(len(x)) % 2)[:, None]


def outlier(rng, x):
    return np.where(np.arange(len(x))[:, None] == 3, 1e6, x)


@pytest.mark.parametrize("blocks", [False, True], ids=["whole", "blocks"])
@pytest.mark.parametrize("moved", [copies, clusters, outlier])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_hostile_points(rng, request, dtype, moved, blocks):
    if blocks:
        request.getfixturevalue("few_pairs")
    x, y = (moved(rng, z).astype(dtype) for z in clouds(rng, 41, 30, 3))
    found = drift(x, y, RADII**-2, kernel="laplace")
    expected = exact(x, y, RADII**-2)
    near = np.abs(expected).max(1) < 1e4  # a point far from all others has a field of their distance
    assert_right(found[near], expected[near], dtype, worse=1 if moved is copies else 4e4 / np.abs(expected[near]).max())
    assert np.isfinite(found).all()


@pytest.mark.parametrize("moved", [copies, clusters])
def test_differences_of_coordinates_as_on_cuda(rng, monkeypatch, few_pairs, moved):
    for module in ("_methods.drift", "_engines.pair_distances"):
        monkeypatch.setattr(f"jaxgauss.{module}.has_cuda", lambda: True)
    x, y = (moved(rng, z).astype("float32") for z in clouds(rng, 43, 31, 11))
    assert "xf64>" not in jax.jit(lambda x, y: drift(x, y, RADII**-2)).lower(x, y).as_text()
    expected = exact(x, y, RADII**-2)
    assert_right(drift(x, y, RADII**-2), expected, worse=1 if moved is copies else 4e4 / np.abs(expected).max())


def test_duplicates_are_at_distance_zero(rng):
    """Products of norms would put equal points 1e-3 apart, which a small radius sees."""
    x = np.repeat(3 + rng.normal(size=(12, 3)), 2, 0).astype("float32")
    y = np.concatenate([x[:5], x[5:9] + np.float32(1e-3)])
    for tau in (1e2, 1e5, 1e6):
        expected = exact(x, y, tau)
        error = np.abs(np.asarray(drift(x, y, tau), "float64") - expected).max()
        assert error <= 1e-5 * np.abs(expected).max() + 2**-22 * np.abs(x).max()


def test_far_data_attract(rng):
    """All data lie a thousand radii away: V underflows, and its direction does not."""
    x, y = clouds(rng, 20, 15)
    far = (y + 1000).astype("float32")
    found = drift(x, far, 1.0, unit_rms=True)
    assert np.isfinite(found).all() and float(jnp.square(found).mean()) == pytest.approx(1, rel=1e-5)
    assert (np.asarray(found).mean(0) > 0).all()
    assert not np.asarray(drift(x, far, 1.0)).any() and np.isfinite(drift(x, far, 1.0, kernel="gauss")).all()


def test_one_positive_and_two_points(rng):
    x, y = clouds(rng, 2, 1)
    for kernel in ("laplace", "gauss"):
        assert_right(drift(x, y, RADII**-2, kernel=kernel), exact(x, y, RADII**-2, kernel=kernel), worse=3)
    one = drift(x[:1], y, 25.0, negatives=x[1:])
    assert_right(one, exact(x[:1], y, 25.0, x[1:]))


@pytest.mark.parametrize("kernel", ["laplace", "gauss"])
def test_weights_and_masks(rng, kernel):
    """Equal weights scale the field of A by their product, and not a mean. A mask is ones and zeros."""
    x, y = clouds(rng, 20, 15)
    mask = np.arange(15) < 9
    kept = drift(x, y, 25.0, kernel=kernel, positive_weights=mask)
    assert_right(kept, exact(x, y, 25.0, None, None, mask.astype(float), kernel=kernel))
    twice = drift(x, y, 25.0, kernel=kernel, positive_weights=np.full(15, 2.0, "float32"))
    np.testing.assert_allclose(twice, (2 if kernel == "laplace" else 1) * drift(x, y, 25.0, kernel=kernel), rtol=1e-5)


def test_points_without_weight_do_not_hide_those_far_away(rng):
    x, y = clouds(rng, 20, 15)
    far = np.where((np.arange(15) > 3)[:, None], y + 60, y).astype("float32")
    found = drift(x, far, 25.0, kernel="gauss", positive_weights=np.arange(15) > 3)
    assert_right(found, exact(x, far[4:], 25.0, kernel="gauss"))


def test_batches_are_loops(rng, few_pairs):
    x, y = rng.normal(size=(3, 2, 9, 4)), rng.normal(size=(2, 7, 4))
    a, b = rng.uniform(1, 2, (3, 1, 9)), rng.uniform(1, 2, 7)
    negatives = rng.normal(size=(3, 1, 5, 4))
    found = drift(x, y, RADII**-2, negatives=negatives, self_weights=a, positive_weights=b, unit_rms=True)
    assert found.shape == (3, 2, 9, 4)
    for i in range(3):
        for j in range(2):
            given = x[i, j], y[j], RADII**-2, negatives[i, 0], a[i, 0], b
            assert_right(found[i, j], exact(*given, unit_rms=True), "float64")
    shared = drift(x[0, 0], y, 1.0)
    assert_right(shared[1], exact(x[0, 0], y[1], 1.0), "float64")


@pytest.mark.parametrize("x64, blocks", [(False, False), (False, True), (True, False)])
def test_transforms(rng, request, x64, blocks):
    if blocks:
        request.getfixturevalue("few_pairs")
    dtype = "float64" if x64 else "float32"
    with jax.enable_x64(x64):
        x, y = (jnp.asarray(rng.normal(size=(3, n, 4)), dtype) for n in (30, 25))
        expected = np.stack([exact(np.asarray(a), np.asarray(b), RADII**-2) for a, b in zip(x, y, strict=True)])
        taus = jnp.asarray(RADII**-2, dtype)
        call = functools.partial(drift, tau=taus)
        for found in (jax.vmap(call)(x, y), jax.jit(jax.vmap(call))(x, y), jax.jit(call)(x, y), call(x, y)):
            assert_right(found, expected, dtype)
        assert_right(jax.vmap(call, (0, None))(x, y[0])[0], expected[0], dtype)

        def loss(x, y, tau, w):
            return jnp.sin(drift(x, y, tau, positive_weights=w, unit_rms=True)).sum()

        given = x[0], y[0], taus, jnp.ones(25, dtype)
        one = jax.grad(loss, range(4))(*given)
        for found, same in zip(jax.jit(jax.grad(loss, range(4)))(*given), one, strict=True):
            np.testing.assert_allclose(found, same, atol=1e-4 * np.abs(same).max())
        mapped = jax.vmap(jax.grad(loss), (0, 0, None, None))(x, y, taus, given[3])
        np.testing.assert_allclose(mapped[0], one[0], atol=1e-4 * np.abs(one[0]).max())
        tangent = jax.jit(lambda x: jax.jvp(lambda x: loss(x, *given[1:]), (x,), (x,))[1])(x[0])
        assert float(tangent) == pytest.approx(float((x[0] * one[0]).sum()), rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("kernel, blocks", [("laplace", True), ("gauss", False)])
def test_gradients_of_all_operands(rng, request, kernel, blocks):
    if blocks:
        request.getfixturevalue("few_pairs")
    x, y, n = (jnp.asarray(rng.normal(size=(k, 3))) for k in (22, 17, 11))
    a, b, c = (jnp.asarray(rng.uniform(1, 2, k)) for k in (22, 17, 11))

    def field(x, y, tau, n, a, b, c):
        weights = {"self_weights": a, "positive_weights": b, "negative_weights": c}
        return drift(x, y, tau, kernel=kernel, negatives=n, **weights)

    check_grads(field, (x, y, jnp.asarray([0.4, 3.0]), n, a, b, c), 1, rtol=1e-5, atol=1e-5)
    check_grads(lambda x: field(x, y, jnp.asarray(0.4), n, a, b, c), (x,), 2, ["rev"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("blocks", [False, True])
def test_hessians(rng, request, blocks):
    if blocks:
        request.getfixturevalue("few_pairs")
    x, y = (jnp.asarray(rng.normal(size=(n, 3)), "float32") for n in (20, 40))

    def loss(field, x):
        return jnp.sin(field(x)).sum()

    def formula(x):
        every = jnp.concatenate([x, wide])
        squared = jnp.square(x[:, None] - every[None]).sum(-1)
        own = jnp.eye(20, 60, dtype=bool)
        logs = jnp.where(own, -1e30, -jnp.sqrt(jnp.where(own, 1, squared)))
        rows, columns = (jax.nn.logsumexp(logs, axis, keepdims=True) for axis in (1, 0))
        affinity = jnp.exp(logs - rows / 2 - columns / 2)
        negative, positive = affinity[:, :20], affinity[:, 20:]
        repelled, attracted = negative.sum(1)[:, None], positive.sum(1)[:, None]
        return repelled * (positive @ wide) - attracted * (negative @ x)

    wide = y.astype("float64")
    right = jax.hessian(functools.partial(loss, formula))(x.astype("float64"))
    gradient = jax.grad(functools.partial(loss, lambda x: drift(x, y, 1.0)))
    for found in (jax.jacrev(gradient)(x), jax.jit(jax.jacfwd(gradient))(x)):
        assert np.abs(np.asarray(found, "float64") - right).max() < 2e-5 * np.abs(right).max()


def test_gradients_where_points_coincide(rng):
    x = jnp.asarray(np.repeat(rng.normal(size=(5, 3)), 2, 0))
    gradient = jax.grad(lambda x: jnp.sin(drift(x, x, 4.0)).sum())(x)
    assert np.isfinite(gradient).all() and np.abs(gradient).max() > 0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_summed_in_float32(rng, dtype):
    x, y = (z.astype(dtype) for z in clouds(rng, 20, 15))
    found = drift(x, y, 25.0)
    assert found.dtype == dtype
    expected = exact(np.asarray(x, "float64"), np.asarray(y, "float64"), 25.0)
    assert np.abs(np.asarray(found, "float64") - expected).max() <= float(jnp.finfo(dtype).eps) * np.abs(expected).max()


def test_memory_is_linear(rng):
    def temporary(num):
        x = jax.ShapeDtypeStruct((num, 8), "float32")
        analysis: Any = jax.jit(lambda x, y: drift(x, y, 1.0)).lower(x, x).compile().memory_analysis()
        return analysis.temp_size_in_bytes

    assert temporary(8192) < 1.5 * temporary(4096) < 2**26


def test_equilibrium_is_zero(rng):
    """Data that are the generated points themselves leave those where they are, but for the pairs left out."""
    x, _ = clouds(rng, 400, 1, 2)
    assert np.abs(drift(x, x + 1e-4, 4.0)).mean() < 0.1 * np.abs(drift(x, x + 1, 4.0)).mean()
