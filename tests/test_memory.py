"""Peak memory is linear: measured in a process of its own, above what it has before a compiled program runs."""

import subprocess
import sys
from pathlib import Path

import jax
import pytest

from jaxgauss import leave_one_out_tau, mmd_squared
from jaxgauss._methods import leave_one_out_sums as over_others

NUM = 8192
SCRIPT = """
import contextlib, functools, time
import jax
from compare_dense import peak_bytes
from jaxgauss import gauss_sum, gauss_sum_blocked, hsic_test, mmd_squared, mmd_test, svgd_direction

def mebibytes(function, *shapes):
    compiled = jax.jit(function).lower(*(jax.ShapeDtypeStruct(shape, "float32") for shape in shapes)).compile()
    operands = [jax.random.normal(jax.random.key(i), shape) / shape[1] ** 0.5 for i, shape in enumerate(shapes)]
    jax.block_until_ready(compiled(*operands))  # which compiles what runs apart
    time.sleep(0.5)  # XLA gives memory back a little later
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak is counted from here on
    before = peak_bytes()
    jax.block_until_ready(compiled(*operands))
    return (peak_bytes() - before) / 2**20

def pulled_back(function):
    def both(*operands):
        value, vjp = jax.vjp(function, *operands)
        return value, vjp(value)
    return both

rescale, key = functools.partial(gauss_sum, engine="rescale"), jax.random.key(0)
mebibytes(rescale, *[(64, 16)] * 3)  # PyTorch and its threads
x, half = (NUM, 30), (NUM // 2, 30)
steps = [functools.partial(mmd_squared, tau=1.0, kernel=kernel) for kernel in ("gauss", "imq", "matern12")]
found = [mebibytes(jax.value_and_grad(step), half, half) for step in steps]
found.append(mebibytes(lambda x, y: mmd_test(x, y, 1.0, rng_key=key, num_permutations=20), half, half))
found.append(mebibytes(lambda x: svgd_direction(x, -x, 1.0), x))
sparse = jax.grad(lambda x: mmd_squared(x, x[::-1], 1e6, estimator="unbiased").sum())
found.append(mebibytes(sparse, (64, 512, 8)))
found.append(mebibytes(lambda x: hsic_test(x, x[:, :5], 1.0, 1.0, rng_key=key, resampling="wild"), x))
sums = gauss_sum, rescale, gauss_sum_blocked, lambda q, k, v: jax.numpy.exp(q @ k.T) @ v
print(*found, *(mebibytes(pulled_back(function), (NUM, 16), (NUM, 16), (NUM, 1)) for function in sums))
"""


@pytest.mark.slow
def test_sums_and_methods_need_linear_memory():
    """MMD of three kernels with its gradient, a permutation test, an SVGD step, a batch of MMD of sparse points, whose
    matrices have 128 MiB; the test by HSIC with 999 resamplings.

    Gauss sums with gradients by auto, rescale and gauss_sum_blocked. The kernel matrix of the points has 256 MiB, that
    of the halves, of which MMD is, 64 MiB; the measurement sees it where a formula forms it.
    """
    command = [sys.executable, "-c", SCRIPT.replace("NUM", str(NUM))]
    examples = Path(__file__).parent.parent / "examples"
    run = subprocess.run(command, cwd=examples, capture_output=True, text=True, check=True)
    *linear, dense = map(float, run.stdout.split())
    assert len(linear) == 10 and max(linear) < 50 and dense > 250, run.stdout


def test_the_way_out_takes_little_memory():
    """XLA allocates at every call what the branch not taken would need; from 32 MiB on, that is most of the time."""
    x = jax.ShapeDtypeStruct((1024, 16), "float32")
    step = jax.jit(jax.value_and_grad(lambda x, y: mmd_squared(x, y, 1.0)))
    assert step.lower(x, x).compile().memory_analysis().temp_size_in_bytes < 32 * 2**20


@pytest.mark.parametrize("by_groups, limit", [(False, 1024**2 * 8), (True, 1024 * 128 * 64 * 4)])
def test_gradients_of_a_search_hold_some_rows(monkeypatch, by_groups, limit):
    """Not all pairs; nor the differences of coordinates of every group, N · GROUP · D numbers."""
    monkeypatch.setattr(over_others, "GROUP", 128)
    monkeypatch.setattr(over_others, "has_cuda", lambda: by_groups)
    shapes = jax.ShapeDtypeStruct((1024, 64), "float32"), jax.ShapeDtypeStruct((2,), "float32")
    step = jax.jit(jax.grad(lambda x, taus: leave_one_out_tau(x, taus).scores.sum()))
    assert step.lower(*shapes).compile().memory_analysis().temp_size_in_bytes < limit
