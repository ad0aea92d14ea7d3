"""Sketches and sums of Dask arrays: those of all points in one place, on whatever workers, and if one is killed."""

import os
import signal
import time
from pathlib import Path

import dask
import dask.array as da
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dask.sizeof import sizeof
from test_anywhere import error, pairs

import jaxgauss
from jaxgauss import Kernel, fourier_sketch
from jaxgauss._engines.fourier.frame import in_frame
from jaxgauss.dask import _sketch_of
from oracle import gauss_sum64, relative_error

ROWS = (300, 280, 0, 290, 131)  # of blocks
BOX = {"lower": -1.0, "upper": 2.0}


@pytest.fixture(autouse=True)
def here():
    """In this thread, unless a test says otherwise."""
    with dask.config.set(scheduler="sync"):
        yield


def problem(rng, dim, dtype="float32", num_channels=2):
    keys, queries = (rng.uniform(-1, 2, (n, dim)).astype(dtype) for n in (sum(ROWS), 113))
    return queries, keys, rng.normal(size=(sum(ROWS), num_channels)).astype(dtype)


def in_blocks(*arrays, rows=ROWS):
    return [da.from_array(x, chunks=(rows, *x.shape[1:])) for x in arrays]


@pytest.mark.parametrize("dim, dtype, bound", [(1, "float64", 1e-12), (2, "bfloat16", 2e-6)])
def test_a_sketch_of_blocks_is_that_of_all_points(rng, dim, dtype, bound):
    queries, keys, values = problem(rng, dim, dtype)
    tau = {1: 200.0, 2: 40.0}[dim]
    sketch = jaxgauss.dask.fourier_sketch(*in_blocks(keys, values), tau, **BOX).compute()
    phi, _, _ = pairs("gauss", queries, keys, tau)
    assert error(sketch(queries), phi @ np.float64(values), phi @ np.abs(np.float64(values))) < bound
    whole = fourier_sketch(keys, values, tau, **BOX)
    assert repr(sketch) == repr(whole) and sketch.tolerance == whole.tolerance
    assert sizeof(sketch) == 2 * whole.coefficients.nbytes


def test_blocks_of_unknown_lengths_and_weights(rng):
    """As a table has them: of two columns and a weight, which are read once."""
    queries, keys, values = problem(rng, 2, num_channels=1)
    read = []

    def rows(block, block_info=None):
        read.append(block_info[0]["chunk-location"][0])
        return block

    table = da.map_blocks(rows, *in_blocks(np.concatenate([keys, values], 1)), meta=np.empty((0, 3), "float32"))
    table._chunks = (np.nan,) * len(ROWS), (3,)
    weights = values[:, 0]
    sketch = jaxgauss.dask.fourier_sketch(table[:, :2], table[:, 2], 40.0, **BOX).compute()
    assert sorted(read) == list(range(len(ROWS)))
    np.testing.assert_allclose(sketch(queries), fourier_sketch(keys, weights, 40.0, **BOX)(queries), rtol=0, atol=1e-4)
    sums = jaxgauss.dask.gauss_sum(queries, table[:, :2], table[:, 2], 40.0).compute()
    assert sums.shape == (113,) and relative_error(sums, gauss_sum64(queries, keys, values, 40.0)[:, 0]) < 1e-5


@pytest.mark.parametrize(
    "dtype, options, bound", [("float64", {"kernel": Kernel(lambda u: jnp.exp(-u / 2))}, 1e-13), ("bfloat16", {}, 4e-3)]
)
def test_sums_in_five_dimensions(rng, dtype, options, bound):
    queries, keys, values = problem(rng, 5, dtype)
    sums = jaxgauss.dask.gauss_sum(queries, *in_blocks(keys, values), 0.7, **options).compute()
    assert sums.dtype == dtype and isinstance(sums, np.ndarray)
    q, k, v = (np.float64(x) for x in (queries, keys, values))
    assert np.abs(sums - gauss_sum64(q, k, v, 0.7)).max() < bound * gauss_sum64(q, k, abs(v), 0.7).max()


def test_leading_axes_and_bandwidths(rng):
    queries, keys, values = problem(rng, 2)
    queries, tau = queries[:112].reshape(2, 56, 2), np.array([0.5, 2.0], "float32")
    sums = jaxgauss.dask.gauss_sum(queries, *in_blocks(keys, values), tau).compute()
    assert relative_error(sums, gauss_sum64(queries, keys, values, tau)) < 1e-5
    by_waves = jaxgauss.dask.gauss_sum(queries, *in_blocks(keys, values), 40.0, engine="fourier").compute()
    assert np.abs(by_waves - gauss_sum64(queries, keys, values, 40.0)).max() < 1e-6 * np.abs(values).sum()


def test_the_number_of_blocks_adds_no_error():
    """Ones beside 2²⁴, from where float32 counts no further."""
    values = np.ones(66, "float32")
    values[0], values[-1] = 2**24, -(2**24)
    blocks, query = in_blocks(np.full((66, 1), 0.3, "float32"), values, rows=(1,) * 66), np.full((1, 1), 0.3, "float32")
    assert jaxgauss.dask.gauss_sum(query, *blocks).compute().tolist() == [64.0]
    sketch = jaxgauss.dask.fourier_sketch(*blocks, **BOX).compute()
    assert abs(float(sketch(query)[0]) - 64) < 0.1


def test_workers_take_the_mode_of_the_caller(rng):
    """Whatever theirs is."""
    queries, keys, values = problem(rng, 1, "float64")
    found = {}
    for wide in (False, True):
        with jax.enable_x64(wide):
            lazy = jaxgauss.dask.fourier_sketch(*in_blocks(keys, values), **BOX)
        with jax.enable_x64(not wide):
            found[wide] = lazy.compute()
    assert [x.coefficients.dtype for x in found.values()] == ["float32", "float64"]
    assert np.abs(found[True](queries) - gauss_sum64(queries, keys, values, 1.0)).max() < 1e-11
    with jax.enable_x64(False), pytest.raises(ValueError, match="a sketch in float64 needs JAX's 64-bit mode"):
        found[True](queries)


def test_blocks_of_similar_lengths_share_a_program(rng):
    _, keys, values = problem(rng, 2)
    kind = {**BOX, "tolerance": 0.0123}
    before = in_frame._cache_size()
    for num in range(961, 1001, 13):
        _sketch_of(keys[:num], values[:num], 1.0, kind, True)
    assert in_frame._cache_size() == before + 1


K, V = da.zeros((5, 2), chunks=(3, 2)), da.ones(5, chunks=3)


def test_a_key_outside_of_the_box_is_an_error_of_its_task():
    with pytest.raises(ValueError, match=r"`keys` must be in the box .*; got \[0\.0, 0\.0\]"):
        jaxgauss.dask.fourier_sketch(K, V, lower=1, upper=2).compute()


@pytest.mark.slow
def test_a_killed_worker_loses_nothing(tmp_path):
    from distributed import Client, LocalCluster, wait

    log, num = str(tmp_path / "log"), 20

    def made_slowly(block_info=None) -> np.ndarray:
        """A block of points, and a line that says where it was made; workers need not import this file."""
        (number, _), shape = (block_info[None][name] for name in ("chunk-location", "chunk-shape"))
        time.sleep(0.1)
        with open(log, "a") as file:
            print(os.getpid(), file=file)
        return np.random.default_rng(number).uniform(size=shape).astype("float32")

    def makers() -> list[int]:
        return [int(line) for line in Path(log).read_text().split("\n")[:-1]]

    Path(log).touch()
    points = da.map_blocks(made_slowly, chunks=((1000,) * num, (3,)), meta=np.empty((0, 3), "float32"))
    queries = np.random.default_rng(1).uniform(size=(50, 2)).astype("float32")
    arrays = points[:, :2], points[:, 2]
    lazy = [jaxgauss.dask.fourier_sketch(*arrays, 50.0, lower=0, upper=1), jaxgauss.dask.gauss_sum(queries, *arrays)]
    workers = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0")
    with workers as cluster, Client(cluster) as client:
        futures = client.compute(lazy)
        while len(makers()) < num // 2:
            time.sleep(0.05)
        assert not any(x.done() for x in futures)
        victim = makers()[0]
        assert victim != os.getpid()
        os.kill(victim, signal.SIGKILL)
        wait(futures, timeout=100)
        sketch, sums = client.gather(futures)
    assert len(makers()) > num  # what it held was computed again
    one, expected, made = dask.compute(*lazy, points)
    assert np.array_equal(sketch.coefficients, one.coefficients) and np.array_equal(sketch.rounding, one.rounding)
    assert np.array_equal(sketch(queries), one(queries)) and np.array_equal(sums, expected)
    exact = gauss_sum64(queries, *np.split(np.float64(made), [2], 1), 50.0)[:, 0]
    assert relative_error((sketch + one)(queries), 2 * exact) < 1e-5
