"""shard_map over several devices of the host: partial sums add, gradients of replicated operands too."""

import subprocess
import sys

SCRIPT = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, PartitionSpec as P
from jaxgauss import gauss_sum, gauss_sum_blocked, gauss_sum_dense

jax.config.update("jax_enable_x64", True)
assert jax.device_count() == 4
mesh = jax.make_mesh((2, 2), ("q", "k"), axis_types=(AxisType.Auto,) * 2)
rng = np.random.default_rng(0)

def norm_error(xs, ys):
    return max(float(jnp.abs(x - y).max() / jnp.abs(y).max()) for x, y in zip(xs, ys, strict=True))

for channels in (1, 24):
    shapes = ((8, 3), (6, 3), (6, channels))
    operands = [jnp.asarray(rng.normal(size=s)) for s in shapes] + [jnp.asarray(0.7)]
    exact = jax.value_and_grad(lambda *x: jnp.sin(gauss_sum_dense(*x)).sum(), (0, 1, 2, 3))(*operands)
    ours = [lambda *x, m=m: gauss_sum(*x, method=m) for m in ("rescale", "blocked")]
    for function in (*ours, gauss_sum_blocked):
        for check_vma in (True, False):
            sharded = jax.shard_map(
                lambda *x: jax.lax.psum(function(*x), "k"), mesh=mesh, check_vma=check_vma,
                in_specs=(P("q"), P("k"), P("k"), P()), out_specs=P("q"),
            )
            ours = jax.jit(jax.value_and_grad(lambda *x: jnp.sin(sharded(*x)).sum(), (0, 1, 2, 3)))(*operands)
            error = norm_error(jax.tree.leaves(ours), jax.tree.leaves(exact))
            assert error < 1e-12, (channels, check_vma, error)
    placed = jax.device_put(operands[0], jax.sharding.NamedSharding(mesh, P("q")))
    plain = jax.jit(lambda *x: gauss_sum(*x, method="rescale"))(placed, *operands[1:])
    assert norm_error([plain], [gauss_sum_dense(*operands)]) < 1e-13
print("agrees")
"""


def test_partial_sums_add_over_a_mesh(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0")
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert run.stdout == "agrees\n", run.stderr
