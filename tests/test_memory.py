"""Peak memory is linear: measured in a process of its own, above what the process needs for a small problem."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
import jax, jax.numpy as jnp
from compare_dense import peak_bytes
from jaxgauss import gauss_sum, gauss_sum_blocked

name, num = sys.argv[1], int(sys.argv[2])
function = gauss_sum_blocked if name == "gauss_sum_blocked" else lambda *x: gauss_sum(*x, method=name)

def run(num):
    q, k = (jax.random.normal(jax.random.key(i), (num, 16)) / 4 for i in range(2))
    v = jax.random.normal(jax.random.key(2), (num, 1))
    value, vjp = jax.vjp(function, q, k, v)
    jax.block_until_ready((value, vjp(value)))

run(64)
before = peak_bytes()
run(num)
print((peak_bytes() - before) / 2**20)
"""


def peak_mebibytes(name: str, num: int) -> float:
    command = [sys.executable, "-c", SCRIPT, name, str(num)]
    examples = Path(__file__).parent.parent / "examples"
    environment = {name: x for name, x in os.environ.items() if name != "XLA_FLAGS"}  # optimized, unlike the tests
    run = subprocess.run(command, cwd=examples, capture_output=True, text=True, check=True, env=environment)
    return float(run.stdout)


@pytest.mark.parametrize("name", ["auto", "rescale", "gauss_sum_blocked"])
def test_forward_and_gradient_need_linear_memory(name):
    """The kernel matrix of 16384 points has 1 GiB."""
    assert peak_mebibytes(name, 16384) < 200


def test_the_measurement_sees_a_kernel_matrix():
    assert peak_mebibytes("dense", 8192) > 250
