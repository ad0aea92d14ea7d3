"""Peak memory is linear: measured in a process of its own, above what the process needs for an eighth of the points."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from jaxgauss import leave_one_out_tau, mmd_squared
from jaxgauss._methods import over_others

SCRIPT = """
import sys
import jax, jax.numpy as jnp, torch  # loaded before anything is measured: its libraries alone take 190 MiB
from compare_dense import peak_bytes
from jaxgauss import gauss_sum, gauss_sum_blocked, gauss_sum_dense, hsic_test, mmd_squared
from jaxgauss import mmd_test, svgd_direction

name, num = sys.argv[1], int(sys.argv[2])
linear = [gauss_sum, lambda *x: gauss_sum(*x, method="rescale"), gauss_sum_blocked]
functions = {"linear": linear, "dense": [gauss_sum_dense]}

def kernel_methods(x):
    half = len(x) // 2
    for kernel in ("gauss", "imq", "matern12"):
        jax.block_until_ready(jax.value_and_grad(mmd_squared)(x[:half], x[half:], 1.0, kernel=kernel))
        jax.clear_caches()  # programs need memory, whatever the number of points
    jax.block_until_ready(mmd_test(x[:half], x[half:], 1.0, rng_key=jax.random.key(0), num_permutations=20))
    jax.clear_caches()
    jax.block_until_ready(svgd_direction(x, -x, 1.0))
    jax.clear_caches()

def dependence(x):
    jax.block_until_ready(hsic_test(x, x[:, :5], 1.0, 1.0, rng_key=jax.random.key(0), resampling="wild"))
    jax.clear_caches()

def run(num):
    if name == "linear":
        x = jax.random.normal(jax.random.key(0), (min(num, 10_000), 30))
        kernel_methods(x)
        dependence(x)
    q, k = (jax.random.normal(jax.random.key(i), (num, 16)) / 4 for i in range(2))
    v = jax.random.normal(jax.random.key(2), (num, 1))
    for function in functions[name]:
        value, vjp = jax.vjp(function, q, k, v)
        jax.block_until_ready((value, vjp(value)))
        jax.clear_caches()

jax.block_until_ready(gauss_sum(*jnp.ones((3, 64, 16)), method="rescale"))  # PyTorch's threads, too
run(num // 8)  # compilers too need memory for programs of many blocks
before = peak_bytes()
run(num)
print((peak_bytes() - before) / 2**20)
"""


def peak_mebibytes(name: str, num: int) -> float:
    command = [sys.executable, "-c", SCRIPT, name, str(num)]
    examples = Path(__file__).parent.parent / "examples"
    flags = os.environ["XLA_FLAGS"].replace("--xla_backend_optimization_level=0", "").strip()  # optimized, as users are
    environment = {**os.environ, "XLA_FLAGS": flags}
    run = subprocess.run(command, cwd=examples, capture_output=True, text=True, check=True, env=environment)
    return float(run.stdout)


@pytest.mark.slow
def test_sums_and_methods_need_linear_memory():
    """Gauss sums with gradients by auto, rescale and gauss_sum_blocked: the kernel matrix of 12288 points has 576 MiB.

    MMD of three kernels with its gradient, a permutation test, an SVGD step; the test by HSIC with 999 resamplings: a
    kernel matrix of their 10000 points has 381 MiB.
    """
    assert peak_mebibytes("linear", 12288) < 200


@pytest.mark.slow
def test_the_measurement_sees_a_kernel_matrix():
    assert peak_mebibytes("dense", 8192) > 250


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
