"""Streamed sums: the sum of all chunks at once, in bounded memory, and the same bits after an interruption."""

import builtins
import functools
import gc
import itertools
import signal
import subprocess
import sys
import weakref
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgauss
from jaxgauss import KeyChunks, gauss_sum, gauss_sum_streamed
from jaxgauss._sums import stream as streamed
from oracle import gauss_sum64, problem, relative_error


def interrupted(chunks, stop, error=KeyboardInterrupt):
    """The chunks up to one that is not to be had."""
    for i, chunk in enumerate(chunks):
        if i == stop:
            raise error(f"at chunk {stop}")
        yield chunk


def test_sum_is_that_of_all_chunks_at_once(rng):
    """Of chunks that may be ragged and empty, lazy or a sequence; of half precision accumulated in float32."""
    p = problem(rng, 9, 203, 4, 2, tau=2.0)
    exact, bounds = gauss_sum64(*p.operands), [0, 0, 40, 40, 43, 203]
    chunks = [(p.keys[i:j], p.values[i:j]) for i, j in itertools.pairwise(bounds)]
    for given in (iter(chunks), KeyChunks(p.keys, p.values, 50)):
        assert relative_error(gauss_sum_streamed(p.queries, given, 2), exact) < 1e-13
    assert not gauss_sum_streamed(p.queries, chunks[:1]).any()
    single = [x.astype("float32") for x in p.operands]
    found = gauss_sum_streamed(single[0], KeyChunks(*single[1:3], 50), single[3], engine="rescale")
    assert found.dtype == "float32" and relative_error(found, exact) < 3e-6
    assert np.array_equal(gauss_sum_streamed(single[0], [single[1:3]], single[3]), gauss_sum(*single))
    half = np.ones((1, 2), np.float16)
    found = gauss_sum_streamed(half, [(half, half[:, :1])] * 2500)  # by ones, float16 counts to 2048
    assert found.dtype == jnp.float16 and float(found[0, 0]) == 2500


@pytest.mark.parametrize("dim", [1, 3])
def test_coefficients_of_all_chunks(rng, dim):
    """Keys lie in the box of the queries, around it, or where no query sees them; those do not count."""
    p = problem(rng, 31, 603, dim, 2, tau=3.0)
    keys = p.keys * rng.choice([1, 3, 1e6], (603, 1))
    sums = gauss_sum_streamed(p.queries, KeyChunks(keys, p.values, 50), 3, engine=jaxgauss.Fourier(1e-9))
    exact = gauss_sum64(p.queries, keys, p.values, 3.0)
    assert np.abs(np.asarray(sums) - exact).max() < 1e-9 * np.abs(p.values).sum(0).max()
    batch = gauss_sum_streamed(p.queries[:30].reshape(2, 15, dim), KeyChunks(keys, p.values), 3.0, engine="fourier")
    assert relative_error(batch.reshape(30, 2), exact[:30]) < 1e-12


@pytest.mark.filterwarnings("ignore:.*got NaN among them")
def test_coefficients_of_what_is_not_finite(rng):
    p = problem(rng, 9, 40, 2, 1)
    queries, keys = p.queries.copy(), p.keys.copy()
    queries[3], keys[5] = np.nan, np.inf
    sums = gauss_sum_streamed(queries, KeyChunks(keys, p.values, 10), p.tau, engine="fourier")
    exact = gauss_sum64(queries, np.delete(keys, 5, 0), np.delete(p.values, 5, 0), p.tau)
    np.testing.assert_allclose(sums, exact, rtol=1e-10, atol=1e-12)
    keys[5] = np.nan
    assert np.isnan(gauss_sum_streamed(p.queries, KeyChunks(keys, p.values, 10), p.tau, engine="fourier")).all()


def test_weights_batches_and_several_bandwidths(rng):
    p = problem(rng, 12, 50, 3, 1)
    queries, tau = p.queries.reshape(2, 6, 3), np.array([0.5, 3.0])
    result = gauss_sum_streamed(jnp.asarray(queries), KeyChunks(p.keys, p.values[:, 0], 20), jnp.asarray(tau))
    assert relative_error(result, gauss_sum64(queries, p.keys, p.values, tau)[..., 0]) < 1e-13


def test_the_number_of_chunks_adds_no_error(rng):
    """At coincident points a chunk's sum is its value; large ones cancel at the end."""
    point = np.ones((1, 2), np.float32)
    values = rng.uniform(size=(1000, 1)).astype(np.float32)
    values[0], values[-1] = 2**20, -(2**20)
    exact = values.astype(np.float64).sum()
    result = gauss_sum_streamed(point, KeyChunks(point.repeat(1000, 0), values, 1))
    assert abs(float(result[0, 0]) - exact) < 1e-6 * exact
    assert abs(float(np.cumsum(values)[-1]) - exact) > 1e-4 * exact


def test_a_sum_beyond_the_range_is_infinite():
    point, huge = np.ones((1, 2), np.float32), np.full(1, 3e38, np.float32)
    assert gauss_sum_streamed(point, [(point, huge), (point, huge), (point, huge / 8)])[0] == np.inf


@pytest.mark.parametrize("method", ["auto", "fourier"])
@pytest.mark.parametrize("size", [1, 7, 40])
def test_partial_sums_may_be_beyond_the_range(rng, tmp_path, size, method):
    """Of one chunk or of several; the sum is resumed, too."""
    keys, queries = rng.normal(size=(40, 2)).astype("float32"), np.zeros((3, 2), "float32")
    values = np.repeat([1e-30, 3e38, -3e38], [2, 20, 18]).astype("float32")
    values[3:5] = 1e25, -2e38
    chunks = KeyChunks(keys, values, size)
    kept = {"saved": tmp_path / "sum.npz", "engine": method}
    gauss_sum_streamed(queries, [chunks[0]], 1e-3, **kept)
    sums = gauss_sum_streamed(queries, chunks, 1e-3, **kept)
    exact = gauss_sum64(queries, keys, values[:, None].astype("float64"), 1e-3)[:, 0]
    assert np.abs(np.float64(sums) - exact).max() < 1e-6 * np.abs(np.float64(values)).sum()


def test_64_bit_arrays_outside_of_the_64_bit_mode(rng):
    p = problem(rng)
    with jax.enable_x64(False):
        result = gauss_sum_streamed(p.queries, KeyChunks(p.keys, p.values, 7), p.tau)
    assert result.dtype == jnp.float32 and relative_error(result, gauss_sum64(*p.operands)) < 1e-5


@pytest.mark.parametrize("as_chunks, error, method", [(list, KeyboardInterrupt, "auto"), (iter, OSError, "fourier")])
def test_an_interrupted_sum_resumes_to_the_same_bits(rng, tmp_path, as_chunks, error, method):
    p = problem(rng, 20, 500, 3, 2, dtype="float32")
    gauss_sum_streamed = functools.partial(jaxgauss.gauss_sum_streamed, engine=method)
    bounds = [0, 90, 190, 200, 290, 390, 430, 500]
    chunks = [(p.keys[i:j], p.values[i:j]) for i, j in itertools.pairwise(bounds)]
    whole = gauss_sum_streamed(p.queries, chunks, p.tau)
    for stop in (0, 1, 4, 5):
        with pytest.raises(error, match=f"at chunk {stop}"):
            gauss_sum_streamed(p.queries, interrupted(chunks, stop, error), p.tau, saved=tmp_path / "sum.npz")
        if stop:
            assert np.load(tmp_path / "sum.npz")["num_chunks"] == stop
    for _ in range(2):  # to the end, and from there
        resumed = gauss_sum_streamed(p.queries, as_chunks(chunks), p.tau, saved=tmp_path / "sum.npz")
        assert np.array_equal(resumed, whole)
    assert [x.name for x in tmp_path.iterdir()] == ["sum.npz"]


def test_a_chunk_that_failed_is_not_counted(rng, tmp_path, monkeypatch):
    p, added = problem(rng, 20, 500, 3, 2), itertools.count()
    chunks, original = KeyChunks(p.keys, p.values, 100), streamed._added

    def fails(*operands):
        if next(added) == 2:
            raise KeyboardInterrupt
        return original(*operands)

    monkeypatch.setattr(streamed, "_added", fails)
    with pytest.raises(KeyboardInterrupt):
        gauss_sum_streamed(p.queries, chunks, p.tau, saved=tmp_path / "sum.npz")
    assert np.load(tmp_path / "sum.npz")["num_chunks"] == 2
    resumed = gauss_sum_streamed(p.queries, chunks, p.tau, saved=tmp_path / "sum.npz")
    assert np.array_equal(resumed, gauss_sum_streamed(p.queries, chunks, p.tau))


def test_a_finished_sum_goes_on_with_new_chunks(rng, tmp_path):
    p = problem(rng, 20, 500, 3, 2)
    read = []

    class Recorded(KeyChunks):
        def __getitem__(self, index):
            read.append(index)
            return super().__getitem__(index)

    for num in (300, 500):
        chunks = Recorded(p.keys[:num], p.values[:num], 100)
        result = gauss_sum_streamed(p.queries, chunks, p.tau, saved=str(tmp_path / "sum"))
    assert np.array_equal(result, gauss_sum_streamed(p.queries, list(chunks), p.tau))
    list_read_once = [read.count(i) - 1 for i in range(5)]
    assert list_read_once == [2, 2, 2, 2, 1]  # the old ones too, to know them; at 3 the first sum has ended


SCRIPT = """
import signal, sys, time, numpy as np, jaxgauss
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells have what runs in the background ignore it
def chunks():
    for i in range(100):
        if i == 3:
            print("reading", flush=True)
            time.sleep(1)
        yield np.ones((5, 2)), np.ones(5)
jaxgauss.gauss_sum_streamed(np.ones((1, 2)), chunks(), saved=sys.argv[1])
"""


@pytest.mark.slow
def test_ctrl_c_saves_what_has_been_summed(tmp_path):
    run = subprocess.Popen([sys.executable, "-c", SCRIPT, tmp_path / "sum.npz"], stdout=-1, stderr=-1, text=True)
    assert run.stdout is not None and run.stdout.readline() == "reading\n"
    run.send_signal(signal.SIGINT)
    assert run.communicate()[1].endswith("KeyboardInterrupt\n") and run.returncode != 0
    assert np.load(tmp_path / "sum.npz")["num_chunks"] in (2, 3)


def test_a_generator_may_use_its_memory_again_and_sees_its_sum_saved_on_the_way(rng, tmp_path):
    p, found = problem(rng, 20, 500, 3, 2), []

    def chunks():
        keys, values = np.empty((100, 3)), np.empty((100, 2))
        for i in range(0, 500, 100):
            found.append((tmp_path / "sum.npz").exists())
            keys[:], values[:] = p.keys[i : i + 100], p.values[i : i + 100]
            yield keys, values
            keys[:], values[:] = np.nan, np.nan

    sums = gauss_sum_streamed(p.queries, chunks(), p.tau, saved=tmp_path / "sum.npz")
    assert relative_error(sums, gauss_sum64(*p.operands)) < 1e-13 and not found[0] and found[-1]


@pytest.mark.parametrize("method", ["auto", "rescale"])
def test_two_chunks_are_alive_at_most(method):
    alive, most = [], []

    class Watched(np.ndarray):
        pass

    def chunks():
        for _ in range(6):
            keys = np.ones((50, 3)).view(Watched)
            alive.append(weakref.ref(keys))
            on_device = sum(x.shape == (50, 3) for x in jax.live_arrays())
            most.append((sum(x() is not None for x in alive), on_device))
            yield keys, np.ones(50)
            del keys

    gc.collect()
    gauss_sum_streamed(np.ones((2, 3)), chunks(), engine=method)
    assert max(host for host, _ in most) <= 2 and max(device for _, device in most) <= 2


def rss_file():
    return int(Path("/proc/self/status").read_text().split("RssFile:")[1].split()[0]) / 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc")
@pytest.mark.parametrize("mode", ["r", "r+", "c"])
def test_pages_of_a_memory_map_are_given_back(tmp_path, mode):
    """32 MiB; a private copy keeps its pages, which may have been written to."""
    np.save(tmp_path / "keys.npy", np.ones((2**17, 64), np.float32))
    keys = np.load(tmp_path / "keys.npy", mmap_mode=mode)
    if mode != "r":
        keys[5] = 2
    point, chunks = np.ones((1, 64), np.float32), KeyChunks(keys, np.ones(2**17, np.float32))
    assert len(chunks) == 9
    gauss_sum_streamed(point, [chunks[0]])
    before = rss_file()
    result = gauss_sum_streamed(point, chunks, 1.0)
    assert (rss_file() - before < 8) == (mode != "c")
    assert float(result[0]) == 2**17 - (mode != "r") and keys[5, 0] == 1 + (mode != "r")


def test_lengths_are_compiled_once(rng):
    p = problem(rng, 9, 100, 4, 1)
    chunks = [(p.keys[:n], p.values[:n]) for n in (64, 63, 50, 33, 64, 34, 32, 31, 17)]
    from jaxgauss._sums.stream import _added

    before = _added._cache_size()
    gauss_sum_streamed(p.queries, chunks)
    assert _added._cache_size() - before == 2  # 64 and 32


def test_the_bar_starts_where_the_sum_was(rng, tmp_path, capsys):
    p = problem(rng, 9, 100, 4, 1)
    chunks, saved = KeyChunks(p.keys, p.values, 10), tmp_path / "sum.npz"
    gauss_sum_streamed(p.queries, [chunks[i] for i in range(3)], saved=saved, progress=True)
    shown = capsys.readouterr().err
    assert " 3/3 " in shown
    gauss_sum_streamed(p.queries, chunks, saved=saved, progress=True)
    shown = capsys.readouterr().err
    assert " 3/10 " in shown and " 10/10 " in shown and " 2/10 " not in shown


def test_a_bar_needs_tqdm(monkeypatch):
    found = builtins.__import__

    def without_tqdm(name, *args, **kwargs):
        if name == "tqdm":
            raise ImportError(name)
        return found(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_tqdm)
    with pytest.raises(ImportError, match=r"`progress` must be False without tqdm; got True\. Run: pip install tqdm"):
        gauss_sum_streamed(np.ones((2, 3)), [(np.ones((4, 3)), np.ones(4))], progress=True)


Q, K, V = np.ones((5, 3)), np.ones((7, 3)), np.ones((7, 2))


def test_the_file_of_another_sum_is_refused(tmp_path):
    saved = tmp_path / "sum.npz"
    gauss_sum_streamed(Q, [(K, V)] * 3, saved=saved)
    for other in ({"queries": Q + 1}, {"tau": 2.0}, {"engine": "blocked"}):
        with pytest.raises(ValueError, match=rf"same queries, tau and options; got {saved}. Delete it"):
            gauss_sum_streamed(**({"queries": Q, "chunks": [(K, V)]} | other), saved=saved)
    with jax.enable_x64(False), pytest.raises(ValueError, match="same queries, tau and options; got"):
        gauss_sum_streamed(Q, [(K, V)] * 3, saved=saved)
    one_weight = V.copy()
    one_weight[3] += 1
    for chunk in ((K[:5], V[:5]), (K + 1, V), (K, one_weight), (K, V[:, 0])):
        for chunks in ([(K, V), (K, V), chunk], [chunk, (K, V), (K, V)]):
            with pytest.raises(ValueError, match=rf"first 3 chunks must be those summed in {saved}; got others, or f"):
                gauss_sum_streamed(Q, chunks, saved=saved)
    with pytest.raises(ValueError, match=r"first 3 chunks must be those summed in"):
        gauss_sum_streamed(Q, [(K, V)], saved=saved)
    for content in (b"", b"text", saved.read_bytes()[:200]):
        saved.write_bytes(content)
        with pytest.raises(ValueError, match=r"`saved` must be a new file, .*; got"):
            gauss_sum_streamed(Q, [(K, V)], saved=saved)


def test_key_chunks_are_a_sequence(tmp_path):
    chunks = KeyChunks(K, np.arange(7.0), size=3)
    assert len(chunks) == 3 and [len(keys) for keys, _ in chunks] == [3, 3, 1]
    assert [len(v) for _, v in chunks[1:]] == [3, 1] and [len(x) for x in chunks[-1]] == [1, 1]
    assert chunks[-1][1].tolist() == [6]
    assert len(KeyChunks(np.ones((2**20, 3), np.float32), np.ones(2**20, np.float32))) == 4
    assert not gauss_sum_streamed(K, KeyChunks(K[:0], V[:0])).any()
    with pytest.raises(IndexError):
        chunks[3]
    with pytest.raises(ValueError, match="got size True"):
        KeyChunks(K, V, True)
    for path in (tmp_path, tmp_path / "missing" / "sum.npz"):
        with pytest.raises(ValueError, match=rf"in a folder that exists; got '{path}'"):
            gauss_sum_streamed(K, chunks, saved=path)
