"""Strict JAX: 64-bit mode, no silent promotion of dtypes or ranks; warnings are errors (pyproject)."""

import contextlib
import gc
import importlib.metadata
import os
import socket
from collections.abc import Iterator
from pathlib import Path

# Most of the time here goes into compiling functions that run once: compile them without optimizing.
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_backend_optimization_level=0"
if importlib.metadata.version("jaxlib").startswith("0.10."):  # a flag that XLA does not know would end the process
    os.environ["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # several processes share the cores
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's and SciPy's, whose threads wait busily

import jax
import matplotlib
import numpy as np
import pytest

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import emulated_cuda
from emulated_cuda import HAS_CUDA

gc.set_threshold(100_000, 20, 50)  # what JAX keeps is large and stays: looking through it takes time

ROOT = Path(__file__).parents[1]
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers whose seed pytest shows when the test fails."""
    seed = getattr(request, "param", 0)
    print(f"rng seed {seed}")
    return np.random.default_rng(seed)


@pytest.fixture(autouse=True, scope="session")
def uncalibrated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The costs that come with jaxgauss, whatever was measured on this machine."""
    with pytest.MonkeyPatch.context() as patch:
        path = tmp_path_factory.mktemp("cache") / "costs.json"
        patch.setattr("jaxgauss._engines.costs.calibrated_path", lambda: path)
        yield


@pytest.fixture
def as_it_comes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """JAX with its defaults, and the examples and benchmarks to import."""
    for folder in (ROOT, ROOT / "examples"):
        monkeypatch.syspath_prepend(folder)
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield
    plt.close("all")


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resamplings in blocks of few columns, of few points at a time: 90 points have several."""
    columns = 8 * 90 * 12
    for name, value in {
        "resampling.BYTES": columns,
        "resampling.FEW": 50,
        "mmd_test.BYTES": columns,
        "pair_forms.GROUP": 32,
        "labelings.GROUP": 30,
    }.items():
        monkeypatch.setattr(f"jaxgauss._methods.{name}", value)


@pytest.fixture
def gloo() -> None:
    """What connects JAX's processes on CPUs: it looks the machine up by its name."""
    try:
        socket.getaddrinfo(socket.gethostname(), None)
    except OSError:
        pytest.skip(f"the machine's name, {socket.gethostname()!r}, does not resolve")


@pytest.fixture(scope="module")
def cuda() -> Iterator[None]:
    """JAX with a CUDA device: the real one, or stand-ins for it on the CPU."""
    with contextlib.nullcontext() if HAS_CUDA else emulated_cuda.emulated():
        yield


@pytest.fixture
def free_waves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waves take no time in emulation, so that "auto" takes them for few points."""
    if not HAS_CUDA:
        monkeypatch.setattr("jaxgauss._engines.fourier.cost.time_of_waves_on_cuda", lambda *_: 0.0)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest test first, for the sake of several workers, and those that emulate CUDA last, one after another.

    Without a CUDA device tests of CUDA are emulated, but for those marked gpu, which are skipped; with one it is the
    other way round.
    """
    items.sort(key=lambda item: (item.path.name != "test_sharding.py", "cuda" in item.fixturenames, item.path.name))
    for item in items:
        if "cuda" in item.fixturenames and not {"emulated", "gpu"} & set(item.keywords):
            item.add_marker(pytest.mark.gpu if HAS_CUDA else pytest.mark.emulated)
        if "gpu" in item.keywords and not HAS_CUDA:
            item.add_marker(pytest.mark.skip(reason="JAX has no CUDA device"))
        if "emulated" in item.keywords and HAS_CUDA:
            item.add_marker(pytest.mark.skip(reason="there is a CUDA device"))
