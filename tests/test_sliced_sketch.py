"""Sketches of random directions: in any dimension, of keys in whatever parts, and by whatever carries sketches."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxgauss
from jaxgauss import FourierSketch, KeyChunks, Sliced, SlicedSketch, fourier_sketch, gauss_sum, gauss_sum_streamed

ENGINE = Sliced(1024, 2, rng_key=jax.random.key(3))


@pytest.fixture
def problem(rng):
    keys, queries = (rng.normal(size=(n, 30)) / 30**0.5 for n in (1001, 113))
    values = rng.uniform(size=(1001, 2))
    return tuple(x.astype("float32") for x in (queries, keys, values))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sums_of_parts_that_were_added_saved_and_pickled(problem, tmp_path, dtype):
    queries, keys, values = (x.astype(dtype) for x in problem)
    parts = [fourier_sketch(keys[i::3], values[i::3], 2.0, engine=ENGINE) for i in range(3)]
    sketch = parts[0] + parts[1] + parts[2] + fourier_sketch(keys[:0], values[:0], 2.0, engine=ENGINE)
    sketch.save(tmp_path / "sketch.npz")
    sums = gauss_sum(queries, keys, values, 2.0, engine=ENGINE)
    for found in (sketch, SlicedSketch.load(tmp_path / "sketch.npz"), pickle.loads(pickle.dumps(sketch))):
        assert found(queries).dtype == dtype and repr(found) == repr(sketch)
        np.testing.assert_allclose(found(queries), sums, rtol=1e-4 if dtype == "float32" else 1e-10)
    exact = gauss_sum(queries, keys, values, 2.0)
    assert np.linalg.norm(sums - exact) < 0.05 * np.linalg.norm(exact)
    assert sketch.coefficients.nbytes <= 2**17  # kilobytes, whatever the number of keys
    one = fourier_sketch(keys, values[:, 0], 2.0, engine=ENGINE)(queries[:112].reshape(2, 7, 8, 30))
    np.testing.assert_allclose(one.reshape(112), sums[:112, 0], rtol=1e-4)


def test_streamed_by_dask_over_a_mesh_and_under_jit(problem, tmp_path):
    queries, keys, values = problem
    sums = fourier_sketch(keys, values, engine=ENGINE)(queries)
    chunks = KeyChunks(keys, values, size=300)
    path = tmp_path / "sum.npz"
    for _ in range(2):
        found = gauss_sum_streamed(queries, chunks, engine=ENGINE, saved=path)
        np.testing.assert_allclose(found, sums, rtol=1e-4)
    with pytest.raises(ValueError, match="`saved` must be a new file"):
        gauss_sum_streamed(queries, chunks, engine=Sliced(1024, 2, rng_key=jax.random.key(4)), saved=path)

    array = pytest.importorskip("dask.array")
    blocks = (array.from_array(x, chunks=(300, x.shape[1])) for x in (keys, values))
    lazy = jaxgauss.dask.fourier_sketch(*blocks, engine=ENGINE)
    np.testing.assert_allclose(lazy.compute(scheduler="threads")(queries), sums, rtol=1e-4)

    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))

    def of_all(keys, values):
        return jax.lax.psum(fourier_sketch(keys, values, engine=ENGINE), "data")

    summed = jax.jit(jax.shard_map(of_all, mesh=mesh, in_specs=P("data"), out_specs=P()))(keys, values)
    np.testing.assert_allclose(jax.jit(lambda sketch, x: sketch(x))(summed, queries), sums, rtol=1e-4)

    def total(summed):
        return jax.jit(jax.grad(lambda *x: jnp.sin(summed(*x)).sum(), (0, 1, 2)))(queries, keys, values)

    ours = total(lambda q, k, v: fourier_sketch(k, v, 1.0, engine=ENGINE)(q))
    slopes = total(lambda q, k, v: gauss_sum(q, k, v, engine=ENGINE))
    for x, y in zip(ours, slopes, strict=True):
        assert np.linalg.norm(x - y) <= 1e-3 * np.linalg.norm(y)


def test_wrong_calls(problem, tmp_path):
    queries, keys, values = problem
    sketch = fourier_sketch(keys, values, engine=ENGINE)
    with pytest.raises(ValueError, match=r"must be a sketch of the same kind.*got rng_key \(0, 4\) and \(0, 3\)"):
        fourier_sketch(keys, values, engine=Sliced(1024, 2, rng_key=jax.random.key(4))) + sketch
    with pytest.raises(ValueError, match=r"`lower`, `upper` and `tolerance` must be left out with Sliced"):
        fourier_sketch(keys, values, lower=0.0, engine=ENGINE)
    with pytest.raises(ValueError, match=r"must be one of sketches, 'fourier' or jaxgauss.Sliced"):
        fourier_sketch(keys, values, engine="dense")
    with pytest.raises(ValueError, match=r"More dimensions take engine=jaxgauss.Sliced\(rng_key=…\)"):
        fourier_sketch(keys, values)
    with pytest.raises(TypeError, match="`rng_key` must be known before a transformation such as jit"):
        jax.jit(lambda key: fourier_sketch(keys, values, engine=Sliced(rng_key=key))(queries))(jax.random.key(0))
    with pytest.raises(ValueError, match=r"`jaxgauss.SlicedSketch`: `queries` and `keys` must"):
        sketch(queries[:, :7])
    with pytest.raises(ValueError, match="`kernel` must be 'gauss' with Sliced"):
        jaxgauss.kernel_sum_streamed(queries, KeyChunks(keys, values), kernel="imq", engine=ENGINE)
    sketch.save(tmp_path / "sliced.npz")
    with pytest.raises(ValueError, match=r"`jaxgauss\.FourierSketch`: `path` must be a file that `save` has written"):
        FourierSketch.load(tmp_path / "sliced.npz")
