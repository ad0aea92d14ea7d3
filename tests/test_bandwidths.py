"""Bandwidths of points with ties and outliers: `leave_one_out_tau` and `median_tau`."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxgauss import leave_one_out_tau, median_tau
from jaxgauss.sklearn import KernelDensity

JITTED = jax.jit(leave_one_out_tau)
TAUS = np.geomspace(0.1, 1e8, 19)


def warns():
    return pytest.warns(UserWarning, match="`points` should differ")


@pytest.mark.parametrize("form", ["at once", "many", "bar", "jit", "vmap", "values", "weights", "matern32"])
def test_copies_of_points_change_no_bandwidth(rng, monkeypatch, form):
    """The chosen τ is that of single points with weights, with a warning outside of transformations."""
    monkeypatch.setattr("jaxgauss._methods.leave_one_out.MANY", 1 if form == "many" else 10**6)
    x, counts = rng.normal(size=(53, 1)), rng.integers(2, 4, 53)
    more: dict[str, Any] = {"kernel": "matern32"} if form == "matern32" else {}
    copies, w = (
        np.repeat(x, counts, 0),
        rng.uniform(0.5, 1, counts.sum()) if form == "weights" else np.ones(sum(counts)),
    )
    sums = np.bincount(np.repeat(np.arange(53), counts), w)
    values = {"values": np.sin(3 * x) + 0.3 * rng.normal(size=(53, 1))} if form == "values" else {}
    single = leave_one_out_tau(x, TAUS, weights=sums, **values, **more)
    order = rng.permutation(len(w))
    given = [copies[order], TAUS]
    more |= {name: np.repeat(v, counts, 0)[order] for name, v in values.items()}
    if form == "jit":
        found = JITTED(*given)
    elif form == "vmap":
        found = jax.tree.map(lambda z: z[0], jax.vmap(leave_one_out_tau, (0, None))(given[0][None], TAUS))
    else:
        with warns():
            weights = {"weights": w[order]} if form == "weights" else {}
            found = leave_one_out_tau(*given, **weights, **more, progress=form == "bar")
    assert found.tau == single.tau < 1e4 < TAUS[np.argmax(found.scores)]


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.floats(1e-6, 1e6), st.booleans())
def test_a_bandwidth_is_no_narrower_than_the_grid(seed, dim, step, in_jit):
    """Of counts: σ ≥ the grid's step / √D. Outside of `jit` a warning says if another τ has the largest score."""
    points = (step * np.random.default_rng(seed).poisson(1.5, (96, dim))).astype("float32")
    taus = (np.geomspace(1e-3, 1e6, 19) / step**2).astype("float32")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        search = (JITTED if in_jit else leave_one_out_tau)(points, taus)
        best = search.taus[np.argmax(search.scores)]
        assert len(said) == bool(search.tau < best and not in_jit)
        assert dim > 1 or (search.tau < best and KernelDensity("leave_one_out").fit(points).tau_ * step**2 < 1)
    assert search.tau * step**2 < 1.1 * dim


def test_equal_points_of_different_values_show_the_noise(rng):
    """Then nothing is left out of a regression, and the largest score decides, as without equal points."""
    x = rng.integers(0, 9, (120, 1)).astype(float)
    search = leave_one_out_tau(x, TAUS, values=x[:, 0] % 2 + 0.1 * rng.normal(size=120))
    assert search.tau == TAUS[np.argmax(search.scores)] > 4
    close = rng.normal(size=(200, 1)).round(2)  # equal points that decide nothing
    search = leave_one_out_tau(close)
    assert search.tau == search.taus[np.argmax(search.scores)] and len(np.unique(close)) < 200


@pytest.mark.parametrize("value", [0.1, 1 / 3, 7.3e5, 1e30])
@pytest.mark.parametrize("num", [3, 7, 50])
def test_equal_points_count_as_of_variance_one(value, num):
    """Their mean is rounded; so is that of a constant column beside a varying one."""
    scott = num ** (2 / 5)
    for array in (jnp.full((num, 1), value, "float32"), np.full((num, 1), value)):
        search = leave_one_out_tau(array)
        np.testing.assert_allclose([*search.taus[:1], *search.taus[-1:]], [scott / 16, scott * 4096], rtol=1e-5)
        assert search.tau == search.taus[6] and median_tau(array) == 1
    varying = np.arange(num) * value * 1e-12
    columns = np.stack([np.full(num, value), varying], -1).astype("float32")
    expected = num ** (1 / 3) / (np.var(varying) / 2)
    assert float(leave_one_out_tau(jnp.asarray(columns)).taus[6]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("outlier", [1e6, -1e20, 3e38])
@pytest.mark.parametrize("where", [0, 50, 99])
def test_an_outlier_moves_no_bandwidth_far(rng, outlier, where):
    """Candidates stay around the τ of the other points, scores are finite, and the median of distances is exact."""
    x = rng.normal(size=(100, 2)).astype("float32")
    y = x.copy()
    y[where] = outlier
    best = float(leave_one_out_tau(x).tau)
    for points in (y, y.astype(float)):
        search = leave_one_out_tau(points)
        assert search.taus[0] < best < search.taus[-1] and np.isfinite(search.scores).all()
        assert best / 256 < search.tau < 4 * best
        z = y.astype(float)
        squared = np.square(z[:, None] - z[None]).sum(-1)[np.triu_indices(100, 1)]
        assert float(median_tau(points)) == pytest.approx(1 / np.median(squared), rel=1e-5)
