"""The shapes that functions promise, of all modules, checked by jaxtyping and beartype in a process of its own."""

import subprocess
import sys

import pytest

SCRIPT = """
from jaxtyping import install_import_hook

with install_import_hook("jaxgauss", "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"):
    import jaxgauss as jg
import jax, jax.numpy as jnp, numpy as np
from jaxgauss._arrays import points

x, g = np.random.default_rng(0).normal(size=(2, 150, 3)).astype("float32")
far, w, key = np.concatenate([x, x + 1e3]), np.ones(150, "float32") / 150, jax.random.key(0)
groups = np.arange(150) // 40

def slopes(function, *operands):
    return jax.grad(lambda *x: function(*x).sum(), tuple(range(len(operands))))(*operands)

for engine in ("auto", "attention", "reweight", "blocked", "clusters", "fourier", "differences"):
    slopes(lambda *x: jg.gauss_sum(*x, engine=engine), x, g, w, 2.0)
    jax.jit(jax.vmap(lambda x: jg.gauss_sum(x, far, far, 2.0, engine=engine)))(np.stack([x, g]))
for engine in ("auto", "mixture"):
    slopes(lambda *x: jg.kernel_sum(*x, kernel="imq", engine=engine), x, g, w, 2.0)
slopes(lambda *x: jg.log_gauss_sum(x[0], far, tau=x[1]), far, 2.0)
slopes(lambda *x: jg.kernel_mean(*x, tau=2.0), x, g, g)
slopes(lambda *x: jg.mmd_squared(*x, np.array([1.0, 2.0], "float32")), x, g)
jax.jacrev(jax.grad(lambda q: jg.gauss_sum(q, x, w, 2.0).sum()))(x[:4])
for made in (
    jg.hsic(x, g, 1.0, 1.0), jg.kde_score(x, g, 1.0), jg.ksd_squared(x, -x, 1.0), jg.svgd_direction(x, -x, 1.0),
    jg.fourier_sketch(x, w)(x / 2), jg.mmd_test(x, g, 1.0, rng_key=key), jg.kernel_herding(x, 1.0, num=5),
    jg.mean_shift(x, x, 1.0), jg.leave_one_out_tau(x), jg.gauss_sum(x, g, w, segments=(groups, groups)),
    jg.gauss_sum_streamed(x, [(g, w)]), jg.explain(jg.mmd_squared, x, g, 1.0),
    jg.mmd_squared_matrix(x, 1.0, segments=groups),
):
    pass
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
