"""Sums over the others: pairs of equal index are left out exactly, against dense float64 without the diagonal."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.distance import cdist

import jaxgauss
from formulas import kernel_matrix
from jaxgauss import Attention, Mixture, gauss_sum, kde_logpdf, kde_score, kernel_mean, kernel_sum, log_kernel_sum
from oracle import relative_error

TAU = 0.7
SUMS, SLOPES = {"float32": 2e-6, "float64": 1e-12}, {"float32": 1e-5, "float64": 1e-11}


def near(rng, num, dim):
    return rng.normal(size=(num, dim))


def copies(rng, num, dim):
    """Each point twice, or three times, and others so close that products do not tell them apart."""
    x = np.resize(rng.normal(size=(num // 3 + 1, dim)), (num, dim))
    x[::5] += 1e-5 * rng.normal(size=x[::5].shape)
    return x


def clusters(rng, num, dim):
    return rng.normal(size=(num, dim)) + 1e4 * (np.arange(num) % 5)[:, None]


def outlier(rng, num, dim):
    """One whose terms with all others are about e-30."""
    x = rng.normal(size=(num, dim)) / dim**0.5
    x[num // 3] = np.eye(dim)[0] * (140 / TAU) ** 0.5
    return x


CLOUDS = [near, copies, clusters, outlier]


def isolated(rng, num, dim):
    """Every ninth point has no other within eight bandwidths: its own term is e14 times those of all others."""
    x = rng.normal(size=(num, dim))
    x[::9, 0] = np.arange(len(x[::9])) * 8 / TAU**0.5 + 15
    return x


@pytest.fixture
def small_groups(monkeypatch):
    """Two levels of groups, as CUDA divides many points."""
    monkeypatch.setattr("jaxgauss._sums.others.SMALLEST", 30)
    monkeypatch.setattr("jaxgauss._sums.others.SIBLINGS", 2)


def others_of(x, tau, kernel="gauss"):
    """The kernel matrix without its diagonal."""
    found = kernel_matrix(x.astype("float64"), x.astype("float64"), tau, kernel)
    np.fill_diagonal(found, 0)
    return found


def assert_right(found, matrix, values, tolerance):
    """In L2 over the queries, relative to the sizes of the others' terms; and in each row."""
    values, sizes = values.astype("float64"), np.abs(matrix) @ np.abs(values.astype("float64"))
    error = np.abs(np.asarray(found, "float64") - matrix @ values)
    assert np.linalg.norm(error) <= tolerance * np.linalg.norm(sizes)
    assert (error <= 100 * tolerance * sizes).all()


WAYS = ["auto", "clusters", "differences", "fourier"]
SAME = ["blocked", "dense", Attention(), Attention("reweight")]  # one of `WAYS`, where pairs are left out
CASES = [(engine, cloud) for engine in WAYS for cloud in (*CLOUDS, isolated)] + [(engine, outlier) for engine in SAME]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("engine, cloud", CASES)
def test_every_engine_leaves_out_the_diagonal(rng, engine, cloud, dtype):
    x, values = cloud(rng, 80, 3).astype(dtype), rng.normal(size=(80, 2)).astype(dtype)
    found = gauss_sum(x, x, values, TAU, engine=engine, exclude_self=True)
    assert found.dtype == dtype
    assert_right(found, others_of(x, TAU), values, SUMS[dtype])


QUARTIC = jaxgauss.Kernel(lambda u: 1 / jnp.square(1 + u))
EXACT = {  # of r², with the derivative zero where points coincide
    "gauss": lambda u: jnp.exp(-u / 2),
    "matern12": lambda u: jnp.exp(-root(u)),
    "matern52": lambda u: (1 + 5**0.5 * root(u) + 5 / 3 * u) * jnp.exp(-(5**0.5) * root(u)),
    "imq": lambda u: 1 / jnp.sqrt(1 + u),
    "energy": lambda u: -root(u),
    QUARTIC: lambda u: 1 / jnp.square(1 + u),
}


def root(u):
    return jnp.where(u > 0, jnp.sqrt(jnp.where(u > 0, u, 1)), 0)


def exact(queries, keys, values, tau, kernel="gauss"):
    """The sum over the others in plain JAX, from differences."""
    squared = jnp.square(queries[..., :, None, :] - keys[..., None, :, :]).sum(-1)
    tau = tau.reshape((1,) * (squared.ndim - 2 - tau.ndim) + tau.shape + (1, 1))
    diagonal = jnp.expand_dims(jnp.eye(keys.shape[-2], dtype=bool), range(squared.ndim - 2))
    matrix = jnp.where(diagonal, 0, EXACT[kernel](tau * squared))
    return jnp.matmul(matrix, values, precision="highest")


@pytest.mark.parametrize("kernel", EXACT, ids=str)
@pytest.mark.parametrize("cloud", CLOUDS)
def test_every_kernel(rng, kernel, cloud):
    x, values = cloud(rng, 80, 12).astype("float32"), rng.normal(size=(80, 1)).astype("float32")
    found = kernel_sum(x, x, values[:, 0], TAU, kernel=kernel, exclude_self=True)[:, None]
    given = (jnp.asarray(y, "float64") for y in (x, x))
    matrix = np.asarray(exact(*given, jnp.eye(80), jnp.float64(np.float32(TAU)), kernel))
    assert_right(found, matrix, values, 1e-5)


def slopes(function, *operands):
    """Those of Σ g s, in all operands; `function` of queries, keys, values and τ."""
    *given, g = operands
    return jax.grad(lambda *x: (g * function(*x)).sum(), range(len(given)))(*given)


GRADIENTS = [
    *(("gauss", cloud, 3, "float32") for cloud in CLOUDS),
    *[("gauss", near, 12, "float64"), ("matern12", copies, 3, "float32"), ("matern52", outlier, 12, "float32")],
    *[("imq", near, 12, "float32"), ("energy", copies, 3, "float64"), (QUARTIC, clusters, 3, "float32")],
]


@pytest.mark.parametrize("kernel, cloud, dim, dtype", GRADIENTS)
def test_gradients_are_those_of_the_formula(rng, kernel, cloud, dim, dtype):
    x, values, g = cloud(rng, 80, dim), rng.normal(size=(80, 2)), rng.normal(size=(80, 2))
    operands = [jnp.asarray(y, dtype) for y in (x, x, values, TAU, g)]
    found = slopes(jax.jit(functools.partial(kernel_sum, kernel=kernel, exclude_self=True)), *operands)
    wide = [y.astype("float64") for y in operands]
    dense = slopes(functools.partial(exact, kernel=kernel), *wide)
    for own, right, terms in zip(found, dense, sizes_of_slopes(kernel, *wide), strict=True):
        error = np.linalg.norm(np.asarray(own, "float64") - right)
        assert error <= SLOPES[dtype] * np.linalg.norm(terms)


def sizes_of_slopes(kernel, queries, keys, values, tau, g):
    """Σ|terms| of each gradient."""
    u = tau * jnp.square(queries[:, None] - keys[None]).sum(-1)
    off = ~jnp.eye(len(keys), dtype=bool)
    kappa, psi = (
        jnp.where(off, jnp.abs(x), 0) for x in (EXACT[kernel](u), 2 * jax.vmap(jax.vmap(jax.grad(EXACT[kernel])))(u))
    )
    w = psi * jnp.abs(g @ values.T)
    distances = jnp.sqrt(u / tau)
    return (
        tau * (w * distances).sum(1),
        tau * (w * distances).sum(0),
        kappa.T @ jnp.abs(g),
        (w * u).sum() / (2 * tau),
    )


@pytest.mark.parametrize(
    "engine, cloud", [("blocked", near), ("clusters", near), ("fourier", near), ("fourier", outlier)]
)
def test_gradients_of_every_engine(rng, engine, cloud):
    x, values, g = cloud(rng, 80, 2), rng.normal(size=(80, 1)), rng.normal(size=(80, 1))
    operands = [jnp.asarray(y, "float32") for y in (x, x, values, TAU, g)]
    found = slopes(functools.partial(gauss_sum, engine=engine, exclude_self=True), *operands)
    wide = [y.astype("float64") for y in operands]
    for own, right in zip(found, slopes(exact, *wide), strict=True):
        assert relative_error(own, right) < 1e-5


MANY = [
    *[("gauss", clusters, 9, "float32"), ("imq", clusters, 3, "float32")],
    *[("matern12", near, 9, "float32"), ("matern12", copies, 3, "float64")],
]


@pytest.mark.parametrize("kernel, cloud, dim, dtype", MANY)
def test_tiles_of_sorted_points(rng, kernel, cloud, dim, dtype):
    """Sums and gradients of as many points as are sorted."""
    num = 710 if dim == 3 else 350
    x, values, g = cloud(rng, num, dim).astype(dtype), *rng.normal(size=(2, num, 1)).astype(dtype)
    tau = jnp.asarray(TAU, dtype)
    summed = functools.partial(kernel_sum, kernel=kernel, engine="clusters", exclude_self=True)
    found, pullback = jax.vjp(jax.jit(summed), *map(jnp.asarray, (x, x, values)), tau)
    wide = [jnp.asarray(y, "float64") for y in (x, x, values, tau, g)]
    matrix = np.asarray(exact(*wide[:2], jnp.eye(num), wide[3], kernel))
    assert_right(found, matrix, values, {"float32": 1e-5, "float64": 1e-12}[dtype])
    dense, terms = slopes(functools.partial(exact, kernel=kernel), *wide), sizes_of_slopes(kernel, *wide)
    for own, right, size in zip(pullback(jnp.asarray(g)), dense, terms, strict=True):
        error = np.linalg.norm(np.asarray(own, "float64") - right)
        assert error <= 2 * SLOPES[dtype] * np.linalg.norm(size)


SORTED = [
    *[("gauss", near, 5, "float32"), ("gauss", copies, 5, "float64"), ("gauss", clusters, 3, "float32")],
    ("matern12", near, 5, "float32"),
]


@pytest.mark.parametrize("kernel, cloud, dim, dtype", SORTED)
def test_logarithms_by_tiles_of_sorted_points(rng, kernel, cloud, dim, dtype):
    """One weight is e100, so that its point's own term is beyond all others in float32."""
    num = 1200 if dim == 3 else 950
    x, values = cloud(rng, num, dim).astype(dtype), rng.normal(size=(num, 2)).astype(dtype)
    log_weights = rng.uniform(-2, 2, num) + 100 * (np.arange(num) == 500)
    how = {"kernel": kernel, "log_weights": log_weights.astype(dtype), "exclude_self": True, "engine": "clusters"}
    wide, tau = x.astype("float64"), np.float64(np.dtype(dtype).type(TAU))
    with np.errstate(divide="ignore"):
        logits = np.log(others_of(wide, tau, kernel)) + log_weights.astype(dtype).astype("float64")
    logits = np.where(np.isfinite(logits), logits, -1e30)
    right, unit = jax.nn.logsumexp(logits, -1), {"float32": 1e-5, "float64": 1e-12}[dtype]
    seen = right > -600  # others underflow in the matrix
    found = log_kernel_sum(x, x, tau=TAU, **how)
    assert (np.abs(np.asarray(found, "float64") - right) <= unit * np.maximum(1, np.abs(right)))[seen].all()
    found = kernel_mean(x, x, values, TAU, **how)
    right = jax.nn.softmax(logits, -1) @ values.astype("float64")
    assert np.abs(np.asarray(found, "float64") - right)[seen].max() < 3 * unit and seen.mean() > 0.9


def test_many_points_by_waves(rng):
    """In two dimensions; points that have a term of e-17 with their only neighbor are summed again."""
    x, values = rng.normal(size=(4500, 2)).astype("float32"), rng.normal(size=(4500, 1)).astype("float32")
    x[::999] += np.float32(60) * np.arange(len(x[::999]))[:, None]
    x[1::999] = x[::999] + np.asarray([[7, 0]], "float32")
    matrix, unit = np.exp(np.float32(TAU) / -2 * cdist(*2 * [x.astype("float64")], "sqeuclidean")), 1e-5
    np.fill_diagonal(matrix, 0)
    found = jax.jit(functools.partial(gauss_sum, exclude_self=True))(x, x, values, TAU)
    assert_right(found, matrix, values, SUMS["float32"])
    total = matrix.sum(1)
    found = jax.jit(functools.partial(log_kernel_sum, exclude_self=True))(x, x, tau=TAU)
    assert (np.abs(np.asarray(found, "float64") - np.log(total)) < unit * np.maximum(1, np.abs(np.log(total)))).all()
    found = jax.jit(functools.partial(kernel_mean, exclude_self=True))(x, x, values, TAU)
    assert np.abs(np.asarray(found, "float64") - matrix @ values.astype("float64") / total[:, None]).max() < 3 * unit


def test_mixtures(rng):
    x, values = rng.normal(size=(80, 2)), rng.normal(size=(80, 2))
    found = kernel_sum(x, x, values, TAU, kernel="imq", engine=Mixture(), exclude_self=True)
    assert_right(found, others_of(x, TAU, "imq"), values, 2e-6)


@pytest.mark.parametrize("forward_mode, cloud", [(False, near), (False, outlier), (True, outlier)])
def test_hessians(rng, forward_mode, cloud):
    x, direction, values = map(jnp.asarray, (cloud(rng, 20, 9), rng.normal(size=(20, 9)), rng.normal(size=(20, 1))))
    options = {"exclude_self": True, "forward_mode": forward_mode}

    def hessian_of(function):
        def loss(x):
            return jnp.square(function(x, x, values, jnp.float64(TAU))).sum()

        if forward_mode:
            return jax.jvp(jax.grad(loss), (x,), (direction,))[1]
        return jax.grad(lambda x: (jax.grad(loss)(x) * direction).sum())(x)

    assert relative_error(hessian_of(functools.partial(gauss_sum, **options)), hessian_of(exact)) < 1e-10


def test_leading_axes_and_mapped_ones(rng):
    x, values, taus = rng.normal(size=(2, 1, 40, 3)), rng.normal(size=(3, 40, 2)), np.array([0.3, 0.7, 2.0])
    found = gauss_sum(x, x, values, taus, exclude_self=True)
    right = exact(jnp.asarray(x), jnp.asarray(x), jnp.asarray(values), jnp.asarray(taus))
    assert found.shape == (2, 3, 40, 2)
    assert relative_error(found, right) < 1e-13
    mapped = jax.vmap(jax.vmap(functools.partial(gauss_sum, exclude_self=True), (None, None, 0, 0)), (0, 0, None, None))
    assert relative_error(jax.jit(mapped)(x[:, 0], x[:, 0], values, taus), right) < 1e-13


@pytest.mark.parametrize("num", [0, 1, 2, 31])
def test_any_number_of_points(rng, num):
    x, weights = rng.normal(size=(num, 2)), rng.normal(size=num)
    found = gauss_sum(x, x, weights, exclude_self=True)
    assert found.shape == (num,)
    assert np.allclose(found, others_of(x, 1.0) @ weights, rtol=1e-13) if num > 1 else not found.any()


def test_the_pair_is_left_out_wherever_its_points_are(rng):
    """Such as x and jax.lax.stop_gradient(x), or other keys."""
    queries, keys, values = (rng.normal(size=(40, 3)) for _ in range(3))
    right = exact(*map(jnp.asarray, (queries, keys, values)), jnp.float64(1))
    assert relative_error(gauss_sum(queries, keys, values, exclude_self=True), right) < 1e-13
    x, v, g = (jnp.asarray(y) for y in (queries, values, keys))
    found = jax.grad(lambda x: (g * gauss_sum(x, jax.lax.stop_gradient(x), v, exclude_self=True)).sum())(x)
    right = slopes(exact, x, x, v, jnp.float64(1), g)[0]
    assert relative_error(found, right) < 1e-13


def test_groups_of_labels(rng):
    labels = np.arange(60) % 4
    x, values = rng.normal(size=(60, 3)), rng.normal(size=(60, 2))
    found = kernel_sum(x, x, values, TAU, kernel="energy", segments=(labels, labels), exclude_self=True)
    matrix = np.where(labels[:, None] == labels, kernel_matrix(x, x, TAU, "energy"), 0)
    assert relative_error(found, matrix @ values) < 1e-13  # the energy kernel is zero on the diagonal
    found = gauss_sum(x, x, values, TAU, segments=(labels, labels), exclude_self=True)
    assert relative_error(found, np.where(labels[:, None] == labels, others_of(x, TAU), 0) @ values) < 1e-13


def test_half_precision_and_large_values(rng):
    x, values = rng.normal(size=(40, 3)).astype("float16"), rng.normal(size=40).astype("float16")
    found = gauss_sum(x, x, values, exclude_self=True)
    assert found.dtype == "float16"
    assert relative_error(found, others_of(x, 1.0) @ values.astype("float64")) < 1e-3
    x = np.zeros((40, 3), "float32")
    values = np.where(np.arange(40) % 2, 3e38, -3e38).astype("float32")
    assert relative_error(gauss_sum(x, x, values, exclude_self=True), -values.astype("float64")) < 1e-6


def weighted(rng, cloud, dim, dtype):
    """Points, values, and weights of which some are zero."""
    x, values = cloud(rng, 80, dim).astype(dtype), rng.normal(size=(80, 2)).astype(dtype)
    weights = rng.uniform(0.5, 2, size=80) * (np.arange(80) % 7 > 0)
    return x, values, weights.astype(dtype)


def exact_logits(x, weights, tau, kernel="gauss"):
    """log w κ of all pairs in float64, -inf on the diagonal."""
    squared = jnp.square(x[:, None] - x[None]).sum(-1)
    logs = {"gauss": lambda u: -u / 2, "matern12": lambda u: -root(u)}[kernel](tau * squared)
    positive = weights > 0
    logs = logs + jnp.where(positive, jnp.log(jnp.where(positive, weights, 1)), -jnp.inf)[None]
    return jnp.where(jnp.eye(len(x), dtype=bool), -jnp.inf, logs)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("cloud", CLOUDS)
@pytest.mark.parametrize("kernel", ["gauss", "matern12"])
def test_logarithms_and_means(rng, kernel, cloud, dtype):
    x, values, weights = weighted(rng, cloud, 3, dtype)
    logits = exact_logits(
        *(jnp.asarray(y, "float64") for y in (x, weights)), np.float64(np.dtype(dtype).type(TAU)), kernel
    )
    with np.errstate(divide="ignore"):
        how = {"kernel": kernel, "log_weights": np.log(weights), "exclude_self": True}
    unit = {"float32": 1e-5, "float64": 1e-12}[dtype]
    right = jax.nn.logsumexp(logits, -1)
    found = log_kernel_sum(x, x, tau=TAU, **how)
    assert (np.abs(np.asarray(found, "float64") - right) <= unit * np.maximum(1, np.abs(right))).all()
    found = kernel_mean(x, x, values, TAU, **how)
    assert np.abs(np.asarray(found, "float64") - jax.nn.softmax(logits, -1) @ values.astype("float64")).max() < 3 * unit


@pytest.mark.parametrize("engine", ["blocked", "clusters", Attention()], ids=str)
def test_logarithms_by_every_engine(rng, engine):
    x, _, weights = weighted(rng, near, 3, "float64")
    right = exact_logits(jnp.asarray(x), jnp.asarray(weights), TAU)
    found = kde_logpdf(x, x, TAU, weights=weights, engine=engine, exclude_self=True)
    density = 1.5 * np.log(TAU / 2 / np.pi) + jax.nn.logsumexp(right, -1) - np.log(weights.sum() - weights)
    assert relative_error(found, density) < 1e-12
    found = kde_score(x, x, TAU, weights=weights, engine=engine, exclude_self=True)
    assert relative_error(found, TAU * (jax.nn.softmax(right, -1) @ x - x)) < 1e-12


@pytest.mark.parametrize("cloud, dtype", [(near, "float32"), (outlier, "float32"), (outlier, "float64")])
def test_gradients_of_densities(rng, cloud, dtype):
    """In weights of zero, too."""
    x, _, weights = weighted(rng, cloud, 3, dtype)
    g = jnp.asarray(rng.normal(size=80))

    def loss(x, weights, tau):
        found = kde_logpdf(x, x, tau, weights=weights, exclude_self=True)
        return (g.astype(x.dtype) * found).sum()

    def formula(x, weights, tau):
        squared = jnp.square(x[:, None] - x[None]).sum(-1)
        logits = jnp.where(jnp.eye(80, dtype=bool), -1e30, -tau / 2 * squared)
        largest = jax.lax.stop_gradient(logits.max(1, keepdims=True))
        others = jnp.where(jnp.eye(80, dtype=bool), 0, 1.0) @ weights
        logs = largest[:, 0] + jnp.log(jnp.exp(logits - largest) @ weights) - jnp.log(others)
        return (g * (1.5 * jnp.log(tau / 2 / np.pi) + logs)).sum()

    found = jax.jit(jax.grad(loss, (0, 1, 2)))(x, weights, jnp.asarray(TAU, dtype))
    given = (jnp.asarray(y, "float64") for y in (x, weights, np.asarray(TAU, dtype)))
    for own, right in zip(found, jax.grad(formula, (0, 1, 2))(*given), strict=True):
        assert relative_error(own, right) < {"float32": 2e-5, "float64": 1e-11}[dtype]


def test_of_one_point_there_are_no_others(rng):
    assert log_kernel_sum(rng.normal(size=(1, 3)), rng.normal(size=(1, 3)), exclude_self=True).tolist() == [-np.inf]
    x = rng.normal(size=(2, 3))
    found = kernel_mean(x, x, np.array([3.0, 5.0]), exclude_self=True)
    assert np.allclose(found, [5.0, 3.0])


@pytest.mark.parametrize("cloud", [near, clusters])
def test_outside_of_the_64_bit_mode(rng, cloud):
    x = cloud(rng, 80, 3).astype("float32")
    with jax.enable_x64(False):
        found = jax.jit(lambda x: kde_score(x, x, TAU, exclude_self=True))(x)
    logits = exact_logits(jnp.asarray(x, "float64"), np.ones(80), np.float64(np.float32(TAU)))
    right = TAU * (jax.nn.softmax(logits, -1) @ x.astype("float64") - x.astype("float64"))
    assert relative_error(found, right) < 1e-5


@pytest.mark.emulated
@pytest.mark.parametrize("cloud", [near, outlier])
def test_programs_of_cuda(cuda, small_groups, rng, cloud):
    x, values, weights = weighted(rng, cloud, 3, "float32")
    found = gauss_sum(x, x, values, TAU, engine="differences", exclude_self=True)
    assert_right(found, others_of(x, np.float32(TAU)), values, 1e-5)
    found = jax.jit(functools.partial(kernel_sum, kernel="matern12", exclude_self=True))(x, x, values, np.float32(TAU))
    assert_right(found, others_of(x, np.float32(TAU), "matern12"), values, 1e-5)
    right = exact_logits(*(jnp.asarray(y, "float64") for y in (x, weights)), np.float64(np.float32(TAU)))
    found = jax.grad(lambda x: kde_logpdf(x, x, TAU, weights=weights, exclude_self=True).sum())(jnp.asarray(x))
    p = jax.nn.softmax(right, -1)
    with np.errstate(divide="ignore"):
        mean = kernel_mean(x, x, values, TAU, log_weights=np.log(weights), exclude_self=True)
    assert np.abs(np.asarray(mean, "float64") - p @ values.astype("float64")).max() < 3e-5
    wide = x.astype("float64")
    exact_slope = TAU * ((p @ wide - wide) + (p.T @ wide - p.sum(0)[:, None] * wide))
    assert relative_error(found, exact_slope) < 3e-5
