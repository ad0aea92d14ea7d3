"""Fourier sketches: sums of all keys that went in, in whatever parts; and an error where a sketch does not hold."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from test_anywhere import error, pairs

from jaxgauss import FourierSketch, fourier_sketch
from oracle import gauss_sum64, gradients64

BOX = {"lower": -1.0, "upper": 2.0}


def problem(rng, dim, dtype="float32", num_channels=2):
    keys, queries = (rng.uniform(-1, 2, (n, dim)).astype(dtype) for n in (1001, 113))
    tau = {1: 200.0, 2: 40.0, 3: 9.0}[dim]
    values = rng.normal(size=(1001, num_channels)).astype(dtype)
    return queries, keys, values, tau


@pytest.mark.parametrize("dim, dtype, bound", [(1, "float64", 1e-12), (2, "float32", 2e-6), (3, "bfloat16", 2e-6)])
def test_sums_of_parts_that_were_added_and_saved(rng, tmp_path, dim, dtype, bound):
    queries, keys, values, tau = problem(rng, dim, dtype)
    parts = [fourier_sketch(keys[i::3], values[i::3], tau, **BOX) for i in range(3)]
    sketch = parts[0] + parts[1] + parts[2] + fourier_sketch(keys[:0], values[:0], tau, **BOX)
    sketch.save(tmp_path / "sketch.npz")
    sums = FourierSketch.load(tmp_path / "sketch.npz")(queries)
    assert [path.name for path in tmp_path.iterdir()] == ["sketch.npz"]
    phi, _, _ = pairs("gauss", queries, keys, tau)
    assert sums.dtype == ("float64" if dtype == "float64" else "float32")
    assert error(sums, phi @ np.float64(values), phi @ np.abs(np.float64(values))) < bound
    assert np.array_equal(sums, sketch(queries)) and sketch(queries[:0]).shape == (0, 2)


def test_weights_leading_axes_and_one_point(rng):
    queries, keys, values, tau = problem(rng, 2)
    sketch = fourier_sketch(keys, values[:, 0], tau, **BOX)
    np.testing.assert_array_equal(sketch(queries[:112].reshape(2, 7, 8, 2)), sketch(queries[:112]).reshape(2, 7, 8))
    one = fourier_sketch(keys[:1], np.ones(1, "float32"), tau)  # a box of no extent
    assert abs(float(one(keys[:1])[0]) - 1) < 1e-6


def test_the_number_of_sketches_adds_no_error():
    """Ones counted one by one beside 2²⁴, from where float32 counts no further."""
    point = np.full((1, 1), 0.3, "float32")
    ones, large = (fourier_sketch(point, np.full(1, x, "float32"), **BOX) for x in (1, 2**24))
    total = large
    for _ in range(1000):
        total += ones
    total += fourier_sketch(point, np.full(1, -(2**24), "float32"), **BOX)
    assert abs(float(total(point)[0]) - 1000) < 0.1


def test_tolerance(rng):
    queries, keys, values, _ = problem(rng, 2, "float64")
    tau = 160.0  # a box of 38 bandwidths: one block of waves a coordinate, or two
    phi, _, _ = pairs("gauss", queries, keys, tau)
    found = {x: fourier_sketch(keys, values, tau, **BOX, tolerance=x) for x in (1e-2, 1e-5, 1e-8)}
    for tolerance, sketch in found.items():
        assert np.abs(sketch(queries) - phi @ values).max() < tolerance * np.abs(values).sum(0).max()
    sizes = [x.coefficients.size for x in found.values()]
    assert sizes == sorted(sizes) and sizes[0] < sizes[-1]


def test_gradients_are_those_of_sums(rng):
    *operands, tau = problem(rng, 2, "float64")

    def slopes(summed):
        return jax.jit(jax.grad(lambda *x: jnp.sin(summed(*x)).sum(), (0, 1, 2)))(*operands)

    ours = slopes(lambda queries, keys, values: fourier_sketch(keys, values, tau, **BOX)(queries))
    sums = gauss_sum64(*operands, np.asarray(tau))
    for x, y in zip(ours, gradients64(*operands, np.asarray(tau), np.cos(sums)), strict=False):
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-11 * np.abs(y).max())


def test_under_transformations(rng):
    queries, keys, values, tau = problem(rng, 2)
    sketch = fourier_sketch(keys, values, tau, **BOX)
    np.testing.assert_array_equal(jax.jit(lambda s, q: s(q))(sketch, queries), sketch(queries))
    np.testing.assert_allclose(jax.vmap(lambda q: sketch(q[None])[0])(queries), sketch(queries), rtol=1e-4, atol=1e-4)
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))

    def of_all(keys, values):
        return jax.lax.psum(fourier_sketch(keys, values, tau, **BOX), "data")

    summed = jax.jit(jax.shard_map(of_all, mesh=mesh, in_specs=P("data"), out_specs=P()))(keys, values)
    np.testing.assert_allclose(summed(queries), sketch(queries), rtol=1e-4, atol=1e-4)
    hessian = jax.jit(jax.jacrev(jax.grad(lambda q: sketch(q[None])[0, 0])))(queries[0])
    assert hessian.shape == (2, 2) and np.isfinite(hessian).all()


def test_outside_of_the_box(rng):
    queries, keys, values, tau = problem(rng, 2)
    sketch = fourier_sketch(keys, values, tau, **BOX)
    outside = np.array(queries)
    outside[3] = 2.5
    with pytest.raises(ValueError, match=r"`queries` must be in the box .*; got \[2.5, 2.5\], and 0 others outside"):
        sketch(outside)
    spoiled = np.isnan(jax.jit(sketch)(outside)).all(1)
    assert spoiled[3] and spoiled.sum() == 1
    with pytest.raises(ValueError, match=r"`jaxgauss.fourier_sketch`: `keys` must be in the box .*; got \[2.5, 2.5\]"):
        fourier_sketch(outside, values[:113], tau, **BOX)
    assert np.isnan(jax.jit(lambda k: fourier_sketch(k, values[:113], tau, **BOX)(queries))(outside)).all()
    with pytest.raises(ValueError, match=r"got \[nan, "):
        fourier_sketch(np.full((1, 2), np.nan), np.ones(1), **BOX)


K, V = np.zeros((5, 2), "float32"), np.ones(5, "float32")


def test_other_files_numbers_and_dtypes_are_refused(tmp_path):
    np.savez(tmp_path / "other.npz", a=1)
    (tmp_path / "text.npz").write_text("text")
    for name in ("other.npz", "text.npz"):
        with pytest.raises(ValueError, match=f"must be a file that `save` has written; got .*{name}"):
            FourierSketch.load(tmp_path / name)
    with pytest.raises(TypeError, match="unsupported operand"):
        fourier_sketch(K, V, **BOX) + 1.0
    fourier_sketch(np.float64(K), np.float64(V), **BOX).save(tmp_path / "wide.npz")
    with jax.enable_x64(False), pytest.raises(ValueError, match="needs JAX's 64-bit mode; got it switched off"):
        FourierSketch.load(tmp_path / "wide.npz")


def test_a_sketch_can_be_pickled_and_is_added_and_summed_like_itself(rng):
    """And loses no digits in a process without the 64-bit mode, which cannot sum it, but hand it on."""
    queries, keys, values, tau = problem(rng, 2, "float64")
    sketch, other = (fourier_sketch(keys[i::2], values[i::2], tau, **BOX) for i in range(2))
    with jax.enable_x64(False):
        found = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(sketch))))
        with pytest.raises(ValueError, match="a sketch in float64 needs JAX's 64-bit mode; got it switched off"):
            found(queries)
    assert repr(found) == repr(sketch) and found.coefficients.dtype == "float64"
    np.testing.assert_array_equal(found(queries), sketch(queries))
    for total in (found + other, other + found, found + pickle.loads(pickle.dumps(other))):
        np.testing.assert_array_equal(total.coefficients, (sketch + other).coefficients)
        np.testing.assert_array_equal(total.rounding, (sketch + other).rounding)
        np.testing.assert_array_equal(total(queries), (sketch + other)(queries))
    single = fourier_sketch(*(x.astype("float32") for x in (keys, values)), tau, **BOX)
    with jax.enable_x64(False):
        found = pickle.loads(pickle.dumps(single))
        np.testing.assert_array_equal(found(queries.astype("float32")), single(queries.astype("float32")))


def test_it_says_what_it_is():
    text = repr(fourier_sketch(K, V, 2.0, **BOX, tolerance=1e-4))
    assert text == "FourierSketch(float32[1], 40 × 40 waves, tau=2, [-1, 2] × [-1, 2], tolerance=1.0e-04)"
