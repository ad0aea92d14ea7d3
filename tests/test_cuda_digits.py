"""The digits of float32 points on CUDA, emulated: float32's by "auto", unless half precision is four times as fast."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxgauss import Attention, explain, gauss_sum, kde_logpdf, log_gauss_sum
from jaxgauss._checks.names import as_kernel
from jaxgauss._engines.engines import plan_of
from jaxgauss._engines.settings import Settings
from oracle import attention_calls
from torch_backend.heads import num_heads
from torch_backend.kernels import finest_kernel, select_kernel
from torch_backend.signed import chunked_by_sign, signed_sum

pytestmark = [pytest.mark.usefixtures("cuda"), pytest.mark.emulated]

SIZES = (3, 1), (16, 1), (32, 32), (64, 64), (128, 1)  # D, C
NUM, ROWS = 4096, 96  # of keys, and of queries
CLOUDS = {
    "near": lambda rng, x: x,
    "wide": lambda rng, x: 2 * x,
    "far from the origin": lambda rng, x: x + 1000,
    "an outlier": lambda rng, x: np.concatenate([x[:-1], x[-1:] + 500]),
    "clusters": lambda rng, x: x + 10 * rng.integers(0, 3, (len(x), 1)),
    "copies": lambda rng, x: x[rng.integers(0, 40, len(x))],
}


def cloud(rng, name, dim, channels):
    """Queries, keys and values in float32: queries are some of the keys, and others like them."""
    keys = np.float32(CLOUDS[name](rng, rng.normal(size=(NUM, dim)) / dim**0.5))
    return keys[-ROWS:], keys, np.float32(rng.normal(size=(NUM, channels)))


def exact(queries, keys, values, g):
    """The sum and the gradients of ⟨g, sum⟩ in float64, and the sums of the sizes of their terms."""
    q, k, v, g = (np.float64(x) for x in (queries, keys, values, g))
    apart = [k[:, i] - q[:, i, None] for i in range(q.shape[1])]  # of each coordinate, (M, N)
    phi = np.exp(-sum(map(np.square, apart)) / 2)

    def sums(phi, apart, sign, v, g):
        pulls = [(phi * (g @ v.T) * x for x in apart) for _ in range(2)]
        d_queries, d_keys = (np.stack([x.sum(axis) for x in xs], 1) for axis, xs in zip((1, 0), pulls, strict=True))
        return phi @ v, d_queries, sign * d_keys, phi.T @ g

    return sums(phi, apart, -1, v, g), sums(phi, [*map(np.abs, apart)], 1, np.abs(v), np.abs(g))


def errors(found, right, sizes):
    """In L2, relative to the sizes of the terms."""
    pairs = zip(found, right, sizes, strict=True)
    return [float(np.linalg.norm(np.asarray(x, float) - y) / np.linalg.norm(size)) for x, y, size in pairs]


def chosen(dim, channels, *, pulls):
    """What "auto" takes for as many queries as keys; few would be for XLA."""
    return plan_of(Settings(pulls=pulls), "cuda", NUM**2, dim, channels).engine


@pytest.mark.parametrize("name", CLOUDS)
@pytest.mark.parametrize("dim, channels", SIZES, ids=str)
def test_float32_points_keep_float32s_digits(rng, dim, channels, name):
    """By "auto": 2e-6 of the terms, and 1e-5 of those of gradients."""
    operands = cloud(rng, name, dim, channels)
    g = np.float32(rng.normal(size=(ROWS, channels)))
    right, sizes = exact(*operands, g)
    forward, backward = (functools.partial(gauss_sum, engine=chosen(dim, channels, pulls=x)) for x in (False, True))
    total, pullback = jax.vjp(backward, *operands)
    found = [forward(*operands), total, *pullback(g)]
    assert np.less(errors(found, [right[0], *right], [sizes[0], *sizes]), [2e-6, 2e-6, 1e-5, 1e-5, 1e-5]).all()


FINE = Attention(kernel="flash", precision="float32")
VALUES = {
    "both signs": lambda rng, n: rng.normal(size=n),
    "few negative": lambda rng, n: rng.normal(size=n) + 3,
    "positive": lambda rng, n: rng.uniform(0.1, 1, n),
    "negative": lambda rng, n: -rng.uniform(0.1, 1, n),
    "zeros": lambda rng, n: rng.normal(size=n) * (rng.uniform(size=n) < 0.1),
    "all zero": lambda rng, n: np.zeros(n),
    "of all sizes": lambda rng, n: rng.normal(size=n) * 10.0 ** rng.integers(-20, 20, n),
    "one": lambda rng, n: np.eye(n)[0],
}


@pytest.mark.parametrize("num", [1, 5, 2049, 9000])
@pytest.mark.parametrize("name", VALUES)
def test_sums_by_log_sum_exps(rng, name, num):
    """Of one to eight chunks, of which one is taken twice, for values of one sign, of both, and of none."""
    keys, queries = rng.normal(size=(num, 3)), rng.normal(size=(40, 3))
    values = np.float32(VALUES[name](rng, num))[:, None]
    operands = np.float32(queries), np.float32(keys), values
    (right, *_), (size, *_) = exact(*operands, np.zeros((40, 1)))
    found = np.asarray(gauss_sum(*operands, engine=FINE), float)
    assert np.linalg.norm(found - right) <= 1e-6 * np.linalg.norm(size)


def test_every_key_counts_once_and_chunks_have_one_sign(rng):
    """Of NumPy's arrays, in a batch: as many heads for every element, with the sign that counts in each."""
    keys, means = rng.normal(size=(2, 1, 5000, 2)), np.array([0.0, 2.0, -9.0])
    values = rng.normal(size=(2, 3, 5000, 1)) + means[:, None, None]
    chunks, own, signs = chunked_by_sign(keys, values)
    assert chunks.shape == (2, 3, 5, 1250, 2) and own.shape == (2, 3, 5, 1250, 1) and signs.shape == (2, 3, 5, 1, 1)
    counted = np.where(signs * own > 0, own, 0)
    assert np.allclose(counted.sum((2, 3, 4)), values.sum((2, 3)))
    moments, right = (counted * chunks).sum((2, 3)), (values * keys).sum(2)
    assert np.allclose(moments, right)

    def log_sum(a, b, log_weights):
        apart = np.square(a[..., :, None, :] - b[..., None, :, :]).sum(-1)
        return np.log(np.exp(-apart / 2 + log_weights.mT).sum(-1, keepdims=True))

    queries = rng.normal(size=(2, 1, 7, 2))
    phi = np.exp(-np.square(queries[..., :, None, :] - keys[..., None, :, :]).sum(-1) / 2)
    with np.errstate(divide="ignore"):
        assert np.allclose(signed_sum(queries, keys, values, log_sum), phi @ values, rtol=1e-9)


def test_what_is_not_finite_shows(rng):
    q, k, v = (np.float32(rng.normal(size=x)) for x in ((9, 3), (3000, 3), (3000, 1)))
    v[7] = np.nan
    assert np.isnan(gauss_sum(q, k, v, engine=FINE)).all()
    v[7], q[2] = 0, np.nan
    assert np.array_equal(np.isnan(gauss_sum(q, k, v, engine=FINE))[:, 0], np.arange(9) == 2)


@pytest.mark.parametrize(
    "shapes", [((4, 30, 3), (50, 3), (50, 1)), ((30, 3), (50, 3), (4, 50, 1)), ((30, 3), (4, 50, 3), (50, 3))]
)
def test_batches_and_several_channels(rng, shapes):
    """Each channel is a sum of its own; values of a batch are no channels."""
    operands = [np.float32(rng.normal(size=x)) for x in shapes]
    apart = np.square(operands[0][..., :, None, :] - operands[1][..., None, :, :].astype(float)).sum(-1)
    right = np.exp(-apart / 2) @ operands[2]
    found = np.asarray(gauss_sum(*operands, engine=FINE), float)
    assert np.linalg.norm(found - right) < 1e-6 * np.linalg.norm(right)
    gradients = jax.grad(lambda *x: jnp.sin(gauss_sum(*x, engine=FINE)).sum(), (0, 1, 2))(*operands)
    by_differences = jax.grad(lambda *x: jnp.sin(gauss_sum(*x, engine="differences")).sum(), (0, 1, 2))(*operands)
    for x, y in zip(gradients, by_differences, strict=True):
        assert np.linalg.norm(x - y) < 2e-5 * np.linalg.norm(y)


def test_values_of_a_batch_are_heads_of_one_call(rng):
    """And another one, in a branch."""
    operands = [np.float32(rng.normal(size=x)) for x in ((30, 3), (50, 3), (6, 50, 1))]
    assert attention_calls(functools.partial(gauss_sum, engine=FINE), *operands) == 2


def test_mixtures_lose_digits_as_sums_do():
    """Gradients of 4096 points are not four times as fast by Gaussians in half precision, but those of 100,000 are."""
    settings = Settings(pulls=True, kernel=as_kernel("kernel_sum", "imq"))
    assert [plan_of(settings, "cuda", n**2, 16, 1).name for n in (4096, 100_000)] == ["dense", "mixture"]


def test_logarithms_and_densities_take_log_sum_exps_alone(rng):
    x, y = (np.float32(rng.normal(size=(n, 5))) for n in (300, 5000))
    weights = np.float32(rng.normal(size=5000))
    apart = np.square(x[:, None] - y.astype(float)).sum(-1)
    right = torch.logsumexp(torch.tensor(-apart / 2 + weights), -1).numpy()
    assert np.abs(np.asarray(log_gauss_sum(x, y, weights, engine=FINE), float) - right).max() < 2e-6
    logs = torch.logsumexp(torch.tensor(-apart / 2), -1).numpy() - np.log(5000) - 2.5 * np.log(2 * np.pi)
    assert np.abs(np.asarray(kde_logpdf(x, y, 1.0, engine=FINE), float) - logs).max() < 2e-6
    plan = plan_of(Settings(logs=True, matmul_precision="highest"), "cuda", 50_000**2, 5, 0)
    assert plan.engine == Attention(kernel="cudnn", precision="float32")


def test_half_precision_says_what_it_costs_and_gains():
    points, values = (jax.ShapeDtypeStruct((70_000, n), "float32") for n in (32, 32))
    found = explain(points, points, values)
    assert found.engine == Attention(kernel="cudnn", precision="float16")
    assert "; which errs by 4e-4 of Σ Φ|v|: " in found.reason and "ms by precision='float32'" in found.reason
    few = jax.ShapeDtypeStruct((4096, 32), "float32")
    assert "ms by engine=Attention(precision='float16')" in explain(few, few, few).reason


def test_other_methods_have_no_digits_of_float32():
    points = jnp.ones((20, 3))
    with pytest.raises(ValueError, match="by the method 'rescale' alone; got Attention"):
        gauss_sum(points, points, points, engine=Attention("reweight", kernel="flash", precision="float32"))


def test_keys_are_in_as_many_heads_as_fill_a_card():
    """As a power of two that divides their number; other kernels, and many queries, take one."""
    half, exact = select_kernel("flash", "float16", "cuda", "float32", 16), finest_kernel("cuda", "float32")
    sizes = {(1, 16384, 16384): 4, (2, 16384, 16384): 2, (1, 65536, 65536): 1, (1, 100, 2**20): 16, (1, 4096, 4095): 1}
    assert {x: num_heads(half, *x) for x in sizes} == sizes
    assert num_heads(half, 1, 300, 4096) == 4 and num_heads(exact, 1, 300, 4096) == 1


@pytest.mark.parametrize(
    "precision, batch, num, heads",
    [("float16", (), (300, 4096), 4), ("float32", (3,), (200, 2048), 6), ("float16x2", (2, 3), (50, 2048), 6)],
    ids=str,
)
def test_heads_are_joined(rng, precision, batch, num, heads):
    """Sums, logarithms and gradients of batches, some of whose heads hold only keys far away."""
    queries, keys = (np.float32(rng.normal(size=(*batch, n, 8))) for n in num)
    keys[..., : num[1] // 2, :] += 5
    values = np.float32(rng.normal(size=(*batch, num[1], 3)))
    operands, engine = (queries, keys, values), Attention(kernel="flash", precision=precision)

    def results(**options):
        sums, pullback = jax.vjp(lambda *x: gauss_sum(*x, 0.3, **options), *operands)
        logs = log_gauss_sum(queries, keys, values[..., 0], 0.3, **options)
        return sums, *pullback(jnp.ones_like(sums)), logs

    text = jax.jit(functools.partial(results, engine=engine)).lower().as_text()
    assert f"x{heads}x{num[0]}x" in text
    exactly = results(engine="differences")
    sizes = [
        *jax.vjp(lambda *x: gauss_sum(*x, 0.3, engine="differences"), *operands[:2], np.abs(values))[:1],
        *exactly[1:],
    ]
    for x, y, size in zip(results(engine=engine), exactly, sizes, strict=True):
        most = 3e-6 if precision == "float32" else 3e-3
        assert np.linalg.norm(np.asarray(x - y, float)) < most * np.linalg.norm(np.asarray(size, float))
