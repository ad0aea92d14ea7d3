"""Estimates without the pairs i = i, of points so sparse that these pairs would hide all others."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import formulas
from formulas import exact, matrix, tensors
from jaxgauss import embedding_norm_squared, hsic, ksd_squared, mmd_estimate, mmd_squared, mmd_squared_matrix
from oracle import relative_error

NUM, DIM = 30, 3
LABELS = np.arange(2 * NUM) % 2
CALLS = {  # of x, y, a, b and τ; the name of their formula
    "mmd_squared": ("mmd", lambda x, y, a, b, t, **o: mmd_squared(x, y, t, x_weights=a, y_weights=b, **o)),
    "embedding_norm_squared": ("norm", lambda x, y, a, b, t, **o: embedding_norm_squared(x, t, weights=a, **o)),
    "ksd_squared": ("ksd", lambda x, y, a, b, t, **o: ksd_squared(y, x, t, weights=b, **o)),
    "mmd_squared_matrix": (
        "mmd",
        lambda x, y, a, b, t, **o: mmd_squared_matrix(
            jnp.stack([x, y], 1).reshape(-1, DIM), t, segments=LABELS, weights=jnp.stack([a, b], 1).ravel(), **o
        )[0, 1],
    ),
    "mmd_estimate": ("mmd", lambda x, y, a, b, t, **o: mmd_estimate(x, y, t, **o).mmd_squared),
}


def sparse_points(rng, gap, dtype="float32"):
    """x, y on a grid of so many bandwidths, moved a little; and weights, (N,) each."""
    grid = np.stack(np.meshgrid(*[np.arange(4)] * DIM), -1).reshape(-1, DIM)
    points = gap * (rng.permutation(grid)[: 2 * NUM] + 0.15 * rng.uniform(size=(2 * NUM, DIM)))
    weights = rng.uniform(0.5, 1.5, (2, NUM)) * np.where(rng.uniform(size=(2, NUM)) < 0.2, -1, 1) / NUM
    return [z.astype(dtype) for z in (points[:NUM], points[NUM:], *weights)]


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("kernel, gap", [("gauss", 4.0), ("gauss", 7.0), ("matern12", 12.0), ("matern52", 12.0)])
def test_own_pairs_hide_no_others(rng, name, kernel, gap):
    """Values and gradients in float32, against float64: within 1e-6 of the terms between different points."""
    formula, call = CALLS[name]
    if name == "ksd_squared" and kernel == "matern12":
        kernel = "imq"
    x, y, a, b = sparse_points(rng, gap)
    if name == "mmd_estimate":
        a, b = (np.full(NUM, 1 / NUM, "float32") for _ in range(2))
    tau = np.asarray([1.0, 2.0], "float32") if gap == 4 else np.float32(1.0)
    operands = x, y, a, b, tau
    given = [jnp.asarray(z) for z in operands]

    def value(*z):
        return call(*z, kernel=kernel, estimator="unbiased")

    gradients = jax.jit(jax.grad(lambda *z: jnp.sin(value(*z)), range(5)))(*given)
    found, expected = value(*given), exact(formula, operands, kernel, "unbiased")
    sizes = abs(expected)
    if formula in ("mmd", "norm"):
        x64, y64, a64, b64, t64 = tensors(*operands)
        sizes = abs(float(formulas.norm(kernel, x64, y64, a64.abs(), b64, t64, "unbiased")))
        if formula == "mmd":
            sizes += 2 * float(a64.abs() @ matrix(kernel, x64, y64, t64) @ b64.abs())
    else:
        sizes = 100 * sizes
    assert abs(float(found) - expected) < 1e-6 * sizes
    for ours, theirs in zip(gradients, formulas.exact_gradients(formula, operands, kernel, "unbiased"), strict=True):
        if np.any(ours):  # not those of weights that are not given
            assert relative_error(ours, theirs) < 2e-5  # float32 rounds the exponents of cross terms


def test_sparse_points_are_found_in_one_sample_of_a_batch(rng):
    """Under `vmap`, one sparse sample beside dense ones; second derivatives; and weights that are mostly zero."""
    x, y, a, b = sparse_points(rng, 7.0, "float64")
    a, b = a * (np.arange(NUM) % 7 == 3), b * (np.arange(NUM) % 5 == 1)
    operands = x, y, a, b, np.float64(1)

    def value(*z):
        return CALLS["mmd_squared"][1](*z, estimator="unbiased")

    batch = [jnp.stack([z, scale * z]) for z, scale in zip((x, y, a, b), (0.1, 0.1, 1, 1), strict=True)]
    for i, found in enumerate(jax.jit(jax.vmap(value, (0, 0, 0, 0, None)))(*batch, 1.0)):
        assert relative_error(found, exact("mmd", [*(z[i] for z in batch), 1.0], estimator="unbiased")) < 1e-9
    second = jax.grad(lambda z: jnp.sin(jax.grad(lambda *z: jnp.sin(value(*z)))(z, *operands[1:])).sum())(x)
    expected = formulas.exact_gradients("mmd", operands, estimator="unbiased", twice=(0,))[0]
    assert relative_error(second, expected) < 1e-9


@pytest.mark.parametrize("weighted", [False, True])
def test_sparse_pairs_show_dependence(rng, weighted):
    """The unbiased HSIC in float32, against its formula from float64 matrices without their diagonals."""
    x, y, a, _ = sparse_points(rng, 5.0)
    a = np.abs(a) if weighted else np.full(NUM, 1 / NUM, "float32")
    w = jnp.asarray(a) if weighted else None
    found = hsic(jnp.asarray(x), jnp.asarray(y), jnp.float32(1), jnp.float32(1), weights=w, estimator="unbiased")
    w = np.float64(a) / np.float64(a).sum()
    k, m = (matrix("gauss", *tensors(z, z, 1.0)).numpy() * (1 - np.eye(NUM)) for z in (x, y))
    p1, p2, p3, p4 = ((w**n).sum() for n in (1, 2, 3, 4))
    of_x, of_y, both = k @ w, m @ w, k * m
    twos = w @ both @ w / (p1**2 - p2)
    threes = ((w * of_x * of_y).sum() - w @ both @ w**2) / (p1**3 - 3 * p1 * p2 + 2 * p3)
    fours = (w @ of_x) * (w @ of_y) - 4 * (w**2 * of_x * of_y).sum() + 2 * w**2 @ both @ w**2
    fours /= p1**4 - 6 * p1**2 * p2 + 3 * p2**2 + 8 * p1 * p3 - 6 * p4
    assert abs(float(found) - (twos - 2 * threes + fours)) < 2e-6 * (abs(twos) + 2 * abs(threes) + abs(fours))
