"""Groups: sums over pairs of equal labels, and MMD² between all pairs of sets, against dense float64 with a mask."""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from scipy.special import logsumexp

from formulas import gradients, kernel_matrix, mmd, tensors
from jaxgauss import gauss_sum, kernel_sum, log_gauss_sum, log_kernel_sum, mmd_squared_matrix
from jaxgauss._methods import mmd_matrix
from jaxgauss._sums import segments as grouped
from oracle import assert_close, gauss_sum64, gradients64, relative_error, with_gradients

M, N = 40, 50
LABELS = {  # of M queries and N keys
    "equal": (np.arange(M) % 4, np.arange(N) % 4),
    "unequal": (np.sort(np.arange(M) ** 2 % 7), np.repeat([5, 0, 3, 1], [1, 9, 30, 10])),  # labels without a partner
    "one": (np.zeros(M, "uint8"), np.zeros(N, "int16")),
    "alone": (np.arange(M), np.arange(N)[::-1] - 5),
    "nobody": (np.full(M, -3), np.full(N, 2**62)),
}


def points_of(rng, labels, apart, dim=3):
    """Normal points about the position of their group, in which all digits of float32 are kept."""
    return np.round(rng.normal(size=(len(labels), dim)) * 64) / 64 + apart * (labels.astype("int64") % 5)[:, None]


def dense(queries, keys, values, tau, labels, kernel="gauss"):
    a, b = labels
    return np.where(a[:, None] == b, kernel_matrix(queries, keys, tau, kernel), 0) @ values


def assert_right(rng, layout, apart=0.0, dtype="float64", tolerances=(1e-13, 1e-10)):
    """Sums and all gradients, of groups at positions so far apart."""
    labels, tau = LABELS[layout], np.asarray(0.7, dtype)
    operands = [*(points_of(rng, x, apart) for x in labels), rng.normal(size=(N, 2))]
    g, operands = rng.normal(size=(M, 2)).astype(dtype), [x.astype(dtype) for x in operands]
    sums, found = with_gradients(functools.partial(gauss_sum, segments=labels))(*operands, tau, g)
    queries, keys, values = (x.astype("float64") for x in operands)
    exact, slopes = np.zeros((M, 2)), [np.zeros(x.shape) for x in operands] + [np.zeros(())]
    for label in np.intersect1d(*labels):
        i, j = (x == label for x in labels)
        exact[i] = gauss_sum64(queries[i], keys[j], values[j], tau)
        own = gradients64(queries[i], keys[j], values[j], tau, g[i])
        slopes[0][i], slopes[1][j], slopes[2][j], slopes[3] = *own[:3], slopes[3] + own[3]
    assert sums.dtype == dtype
    if layout == "nobody":
        assert not np.any(sums) and not any(np.any(x) for x in found)
    else:
        assert relative_error(sums, exact) < tolerances[0]
        assert_close(found, slopes, tolerances[1])


@pytest.mark.parametrize("layout", LABELS)
def test_only_pairs_of_equal_labels_are_summed(rng, layout):
    assert_right(rng, layout, 1e4 if layout in ("unequal", "one") else 0.0)


def test_groups_far_apart_keep_their_digits_in_float32(rng):
    assert_right(rng, "unequal", 1e4, "float32", (1e-6, 1e-5))


@pytest.mark.parametrize("kernel", ["matern12", "energy"])
def test_other_kernels(rng, kernel):
    labels = LABELS["unequal"]
    queries, keys = (points_of(rng, x, 10.0) for x in labels)
    values = rng.normal(size=N)
    found = kernel_sum(queries, keys, values, 0.7, kernel=kernel, segments=labels)
    assert relative_error(found, dense(queries, keys, values, 0.7, labels, kernel)) < 1e-12


class Series:
    """Labels as a column of a table, as in pandas."""

    def __init__(self, labels):
        self.labels = labels

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.labels, dtype)


@pytest.mark.parametrize("kind", [Series, np.ndarray.tolist, jnp.asarray, lambda x: x.astype("uint64"), np.ma.asarray])
def test_whatever_holds_integers_is_labels(rng, kind):
    labels, points = np.arange(M) ** 2 % 7, rng.normal(size=(M, 2))
    calls = [functools.partial(f, points, points) for f in (log_gauss_sum, log_kernel_sum)]
    calls += [functools.partial(f, points, points, points) for f in (gauss_sum, kernel_sum)]
    for call in calls:
        np.testing.assert_array_equal(*(call(segments=(x, x)) for x in (labels, kind(labels))))
    np.testing.assert_array_equal(*(mmd_squared_matrix(points, 1.0, segments=x) for x in (labels, kind(labels))))


def test_a_wide_group_keeps_small_distances(rng):
    """Points a thousandth of a bandwidth apart, and one 1e5 bandwidths away, which must not move the center."""
    points = np.concatenate([rng.normal(size=(30, 2)) * 1e-3, np.full((10, 2), 1e5)]).astype("float32")
    labels = np.zeros(40, int), np.zeros(40, int)
    slope = jax.grad(lambda q: gauss_sum(q, points, np.ones(40, "float32"), segments=labels)[0])(points)
    exact = gradients64(points, points, np.ones((40, 1)), 1.0, np.eye(40)[:, :1])[0]
    assert relative_error(slope[0], exact[0]) < 1e-4


def test_batches_bandwidths_and_vmap(rng):
    labels, tau = LABELS["equal"], np.asarray([0.3, 0.7, 2.0])
    queries, keys, values = rng.normal(size=(2, 1, M, 3)), rng.normal(size=(N, 3)), rng.normal(size=(3, N, 2))
    run = functools.partial(gauss_sum, segments=labels)
    mapped = jax.vmap(run, (None, None, 0, 0))
    sums, of_first, weights = jax.jit(
        lambda q, k, v: (run(q, k, v, tau), mapped(q[0, 0], k, v, tau), run(q[0, 0], k, v[0, :, 0], tau))
    )(queries, keys, values)
    exact = np.asarray([[dense(q[0], keys, v, t, labels) for v, t in zip(values, tau, strict=True)] for q in queries])
    of_weights = [dense(queries[0, 0], keys, values[0, :, 0], t, labels) for t in tau]  # (T, M)
    assert_close((sums, of_first, weights), (exact, exact[0], of_weights), 1e-13)


def test_second_derivatives_and_forward_mode(rng):
    labels, tau = LABELS["equal"], 0.1
    queries, keys, values = rng.normal(size=(M, 9)), rng.normal(size=(N, 9)), rng.normal(size=N)
    mask = labels[0][:, None] == labels[1]

    def formula(keys):
        squared = jnp.square(queries[:, None] - keys[None]).sum(-1)
        return jnp.sin(jnp.where(mask, jnp.exp(-tau / 2 * squared), 0) @ values).sum()

    def ours(keys, **options):
        return jnp.sin(gauss_sum(queries, keys, values, tau, segments=labels, **options)).sum()

    direction = rng.normal(size=keys.shape)
    exact = jax.jit(lambda x: jax.jvp(jax.grad(formula), (x,), (direction,))[1])(keys)
    twice = jax.jit(jax.grad(lambda x: (jax.grad(ours)(x) * direction).sum()))(keys)
    forward = jax.jit(lambda x: jax.jvp(jax.grad(functools.partial(ours, forward_mode=True)), (x,), (direction,))[1])
    assert_close([twice, forward(keys)], [exact, exact], 1e-10)


@pytest.mark.parametrize("kernel, function", [("gauss", log_gauss_sum), ("imq", log_kernel_sum)])
def test_logarithms(rng, kernel, function):
    labels = LABELS["unequal"]
    queries, keys = (points_of(rng, x, 100.0) for x in labels)
    log_weights = rng.normal(size=N)
    logs = np.asarray(function(queries, keys, log_weights, 0.7, kernel=kernel, segments=labels))
    masked = np.where(labels[0][:, None] == labels[1], log_weights, -np.inf)
    with np.errstate(divide="ignore"):
        exact = logsumexp(masked + np.log(kernel_matrix(queries, keys, 0.7, kernel)), axis=1)
    lonely = ~np.isin(*labels)
    assert lonely.any() and np.all(logs[lonely] == -np.inf)
    assert relative_error(logs[~lonely], exact[~lonely]) < 1e-12
    ones = np.asarray(function(queries, keys, tau=0.7, kernel=kernel, segments=labels))
    assert relative_error(np.exp(ones[~lonely]), dense(queries, keys, np.ones(N), 0.7, labels, kernel)[~lonely]) < 1e-12


def test_without_points():
    points, nobody, none = jnp.ones((3, 2)), jnp.ones((0, 2)), np.zeros(0, int)
    labels = jnp.arange(3)
    assert gauss_sum(nobody, points, jnp.ones((3, 4)), segments=(none, labels)).shape == (0, 4)
    assert gauss_sum(points, nobody, jnp.ones(0), segments=(labels, none)).tolist() == [0, 0, 0]
    assert jax.jit(lambda x: gauss_sum(x, x, x[:, :0], segments=(labels, labels)))(points).shape == (3, 0)


def test_float16_and_programs_shared_by_layouts(rng):
    """Labels are arguments of the program: other labels of the same sizes compile nothing."""
    program: Any = grouped._by_groups
    points, values = rng.normal(size=(N, 3)).astype("float16"), np.ones(N, "float16")
    labels = [rng.permutation(np.repeat(np.arange(5), 10)) for _ in range(2)]
    first = gauss_sum(points, points, values, segments=(labels[0], labels[0]))
    assert first.dtype == "float16"
    size = program._cache_size()
    second = gauss_sum(points, points, values, segments=(labels[1], labels[1]))
    assert program._cache_size() == size
    for found, label in zip((first, second), labels, strict=True):
        x = points.astype("float64")
        assert relative_error(found, dense(x, x, np.ones(N), 1.0, (label, label))) < 1e-3


def padded_pairs(layout):
    return sum(x.queries.size * x.keys.shape[1] for x in layout.batches)


ALIKE, MANY, UNEQUAL = np.full(100, 1000), np.full(10_000, 10), np.arange(50, 501, 7)
ONE_LARGE, POWERS = np.array([100_000] + [10] * 1000), 2 ** np.arange(17)


@pytest.mark.parametrize(
    "sizes, rows, most", [(ALIKE, 1.0, 1), (MANY, 1.0, 1), (UNEQUAL, 1.2, 8), (ONE_LARGE, 1.0, 2), (POWERS, 1.2, 6)]
)
def test_padding_is_small_and_programs_are_few(sizes, rows, most):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    layout = grouped.layout_of(labels, labels[::-1].copy())
    assert len(layout.batches) <= most
    assert sum(x.queries.size for x in layout.batches) <= rows * len(labels)
    assert padded_pairs(layout) <= 1.25 * sum(sizes**2)


def test_sizes_of_queries_and_keys_may_differ(rng):
    labels = [np.repeat(np.arange(300), np.exp(rng.uniform(0, 6, 300)).astype(int)) for _ in range(2)]
    layout = grouped.layout_of(*labels)
    pairs = sum((labels[0] == x).sum() * (labels[1] == x).sum() for x in range(300))
    assert 1 < len(layout.batches) <= grouped.MOST
    assert padded_pairs(layout) < 2.5 * pairs + grouped.WORTH


# MMD² between all pairs

SIZES = (9, 3, 30, 70, 2)
SETS = np.random.default_rng(0).permutation(np.repeat([4, -2, 11, 0, 7], SIZES))
NAMES = np.unique(SETS)


def matrix64(kernel, estimator, points, weights, tau):
    """By its formula in PyTorch, a pair of sets after the other."""
    sets = [np.flatnonzero(name == SETS) for name in NAMES]
    values = [
        mmd(kernel, points[i], points[j], weights[i], weights[j], tau, estimator) if i is not j else 0 * tau.sum()
        for i, j in itertools.product(sets, sets)
    ]
    return torch.stack(values).reshape(len(sets), len(sets))


@pytest.fixture
def blocks(monkeypatch):
    """Several blocks of points, the last one with chunks that are empty."""
    monkeypatch.setattr(mmd_matrix, "BLOCK", 20)
    monkeypatch.setattr(mmd_matrix, "CUDA_BLOCK", 20)
    monkeypatch.setattr(mmd_matrix, "WIDTHS", (8,))
    mmd_matrix._chunk_table.cache_clear()
    yield
    mmd_matrix._chunk_table.cache_clear()


@pytest.mark.parametrize("kernel, estimator", [("gauss", "biased"), ("imq", "unbiased"), ("energy", "biased")])
def test_the_matrix_and_its_gradients_are_those_of_the_formula(rng, blocks, kernel, estimator):
    points, weights = rng.normal(size=(len(SETS), 3)), rng.uniform(0.5, 1.5, len(SETS))
    tau = np.asarray([0.2, 0.7] if kernel == "gauss" else [0.7])
    if kernel == "energy":
        for name in NAMES:
            weights[name == SETS] /= weights[name == SETS].sum()

    def ours(*operands):
        points, weights, tau = operands
        options = {"kernel": kernel, "estimator": estimator, "weights": weights}
        found = mmd_squared_matrix(points, tau, segments=SETS, **options)
        return jnp.sin(found).sum(), found

    (_, found), slopes = jax.jit(jax.value_and_grad(ours, (0, 1, 2), has_aux=True))(points, weights, tau)
    assert np.array_equal(found, found.T) and not np.diagonal(found).any()
    formula = functools.partial(matrix64, kernel, estimator)
    assert relative_error(found, formula(*tensors(points, weights, tau))) < 1e-12
    assert_close(slopes, gradients(formula, (points, weights, tau)), 1e-10)


def test_the_matrix_of_many_points_in_float32(rng):
    """Without weights."""
    labels = np.repeat(np.arange(3), (900, 50, 400))
    points = (rng.normal(size=(1350, 3)) + 0.1 * labels[:, None]).astype("float32")
    found = mmd_squared_matrix(points, 1.0, segments=labels)
    kernel, shares = kernel_matrix(points), np.eye(3)[labels] / np.bincount(labels)
    means = shares.T @ kernel @ shares
    assert found.dtype == "float32"
    exact = np.diag(means)[:, None] + np.diag(means) - 2 * means
    np.testing.assert_allclose(np.asarray(found), exact, atol=1e-6)


def test_the_matrix_under_vmap_and_with_one_set(rng):
    points = rng.normal(size=(2, len(SETS), 2))
    mapped = jax.jit(jax.vmap(lambda x: mmd_squared_matrix(x, 0.7, segments=SETS)))(points)
    assert relative_error(mapped[1], mmd_squared_matrix(points[1], 0.7, segments=SETS)) < 1e-12
    assert mmd_squared_matrix(points[0], 0.7, segments=0 * SETS).tolist() == [[0.0]]


def test_one_point_with_unknown_weights_has_no_unbiased_estimate():
    x, labels = jnp.ones((3, 2)), np.asarray([5, 7, 5])
    with pytest.raises(ValueError, match=r"two points with weight.*such as 7"):
        jax.jit(lambda w: mmd_squared_matrix(x, 1.0, segments=labels, weights=w, estimator="unbiased"))(jnp.ones(3))
