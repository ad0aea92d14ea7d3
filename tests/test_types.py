"""The shapes that private functions promise, checked by jaxtyping and beartype in a process of its own."""

import subprocess
import sys

import pytest

SCRIPT = """
from jaxtyping import install_import_hook

checked = ["jaxgauss._arrays.points", "jaxgauss._engines.products.gaussian", "jaxgauss._sums.gauss_sum"]
with install_import_hook(checked, "beartype.beartype"):
    import jaxgauss
import jax, jax.numpy as jnp
from jaxgauss._arrays import points

def value_and_gradients(q, k, v, tau):
    value, vjp = jax.vjp(lambda *x: jaxgauss.gauss_sum(*x, engine=method), q, k, v, tau)
    return vjp(value)

q, k, v = jnp.ones((2, 5, 3)), jnp.ones((7, 3)), jnp.ones((7, 2))
for method in ("rescale", "blocked"):  # shapes are checked while functions are traced
    for values, tau in ((v, 1.0), (v[:, 0], 1.0), (v, jnp.ones(2))):
        jax.eval_shape(value_and_gradients, q, k, values, tau)
jax.eval_shape(jaxgauss.gauss_sum_blocked, q, k, v)
print("right shapes pass")
for wrong in (lambda: points.center(jnp.ones(3)), lambda: points.unbroadcast(3, ())):
    try:
        wrong()
    except Exception as error:
        print(type(error).__module__)
"""


@pytest.mark.slow
def test_shapes_are_what_they_say():
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert run.stdout.startswith("right shapes pass\n") and run.returncode == 0, run.stderr
    refused = run.stdout.split("\n")[1:-1]
    assert len(refused) == 2 and all("jaxtyping" in x or "beartype" in x for x in refused), run.stdout
