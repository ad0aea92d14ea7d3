"""The shapes that private functions promise, checked by jaxtyping and beartype in a process of its own."""

import subprocess
import sys

import pytest

SCRIPT = """
from jaxtyping import install_import_hook

with install_import_hook(["jaxgauss._dense", "jaxgauss._gauss_sum"], "beartype.beartype"):
    import jaxgauss
import jax, jax.numpy as jnp
from jaxgauss import _dense

q, k, v = jnp.ones((2, 5, 3)), jnp.ones((7, 3)), jnp.ones((7, 2))
for method in ("rescale", "blocked"):
    for values in (v, v[:, :1], v[:, 0]):
        value, vjp = jax.vjp(lambda *x: jaxgauss.gauss_sum(*x, method=method), q, k, values, 1.0)
        vjp(value)
    jaxgauss.gauss_sum(q, k, v, jnp.ones(2), method=method)
jaxgauss.gauss_sum_blocked(q, k, v)
{wrong}
"""


@pytest.mark.parametrize("wrong, code", [("", 0), ("_dense.center(jnp.ones(3))", 1), ("_dense.unbroadcast(3, ())", 1)])
def test_shapes_are_what_they_say(wrong, code):
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT.replace("{wrong}", wrong)], capture_output=True, text=True, check=False
    )
    assert run.returncode == code, run.stderr
    assert ("beartype" in run.stderr or "jaxtyping" in run.stderr) == bool(code), run.stderr
