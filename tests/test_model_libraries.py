"""Generators in Flax and in Equinox: several devices take the step of one."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

LIBRARIES = "flax", "equinox"
# The batch is small: of half a million hidden units a few lie within rounding of zero, and gradients differ by 7e-5 and
# more where a ReLU lets one through on one device and not on four.
SCRIPT = """
import json, sys
import jax
import numpy as np
from jax.sharding import AxisType
from jaxgauss import embedding_norm_squared

def flax(mesh):
    import mmd_flax
    from flax import nnx

    generator, optimizer, rngs, images, _ = mmd_flax.begin(mesh, 10)
    norm = embedding_norm_squared(images, mmd_flax.TAUS, mesh=mesh, query_axis="data")
    loss = mmd_flax.train_step(generator, optimizer, rngs, images, norm, mesh=mesh, batch=16)
    return loss, jax.tree.leaves(optimizer.opt_state[0].mu), nnx.state(generator), images

def equinox(mesh):
    import mmd_equinox

    model, optimizer, state, images, _ = mmd_equinox.begin(mesh, 10)
    norm = embedding_norm_squared(images, mmd_equinox.TAUS, mesh=mesh, query_axis="data")
    given = model, state, images, norm, jax.random.key(1), optimizer, mesh, 16
    model, state, loss = mmd_equinox.train_step(*given)
    return loss, jax.tree.leaves(state[0].mu), [x for x in jax.tree.leaves(model) if isinstance(x, jax.Array)], images

def run(library, devices):
    mesh = jax.make_mesh((len(devices),), ("data",), axis_types=(AxisType.Auto,), devices=devices)
    loss, moments, model, images = globals()[library](mesh)
    return {
        "loss": float(loss),
        "gradient": np.concatenate([np.ravel(x) for x in moments]),  # a tenth of it, after the first step
        "images": [len(x.data) for x in images.addressable_shards],
        "devices": sorted({len(x.devices()) for x in jax.tree.leaves(model)}),
    }

for library in sys.argv[1:]:
    found = [run(library, jax.devices()[:1]), run(library, jax.devices())]
    one, four = (each.pop("gradient") for each in found)
    print(json.dumps([*found, len(one), float(np.linalg.norm(four - one) / np.linalg.norm(one))]))
"""


@pytest.mark.slow
def test_several_devices_take_the_step_of_one():
    libraries = [x for x in LIBRARIES if importlib.util.find_spec(x)]
    flags = os.environ["XLA_FLAGS"] + " --xla_force_host_platform_device_count=4"
    environment = {**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": str(Path(__file__).parent.parent / "examples")}
    command = [sys.executable, "-W", "error", "-c", SCRIPT, *libraries]
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert run.returncode == 0, run.stderr
    for line in run.stdout.splitlines()[-len(libraries) :]:
        one, four, num, difference = json.loads(line)
        assert one["images"] == [1280] and four["images"] == [320] * 4  # shared out
        assert one["devices"] == [1] and four["devices"] == [4]  # which all have the generator
        assert four["loss"] == pytest.approx(one["loss"], rel=0, abs=3e-6)  # each within 1e-6 of its terms
        assert num > 1e5 and difference < 2e-5  # of gradients in float32; it is 1e-7
