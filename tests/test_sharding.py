"""Sums over a mesh of devices, of one process or of several: partial sums add, and nothing else is sent."""

import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest
import sharded
import sketched

from formulas import kernel_matrix
from jaxgauss import gauss_sum_sharded, kernel_sum_sharded
from oracle import gauss_sum64, relative_error

FOLDER = Path(__file__).parent


@functools.cache
def exact(function: str, points: str) -> list[np.ndarray]:
    """What one device gives, by the dense sum where it is one."""
    if function in ("forward", "gradients"):
        result = getattr(sharded, function)(*sharded.OPERANDS)
    elif function in ("half", "large"):
        queries, keys, values, tau = getattr(sharded, function.upper())
        result = gauss_sum64(queries, keys, values[:, None], tau)[:, 0]
    else:
        run = getattr(sharded, function) if function == "eager" else jax.jit(getattr(sharded, function))
        result = run(sharded.FAR if points == "far" else sharded.X, sharded.Y)
    return [np.asarray(x) for x in jax.tree.leaves(result)]


@contextlib.contextmanager
def processes(
    num: int, num_devices: int, *arguments: str, program: str = "sharded.py"
) -> Iterator[list[subprocess.Popen]]:
    """Programs that talk to each other over the loopback address, each with its devices; killed in the end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={num_devices}"
    environment = {**os.environ, "XLA_FLAGS": flags, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, program]
    commands = [command if num == 1 else [*command, address, str(num), str(i), *arguments] for i in range(num)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with contextlib.ExitStack() as stack:
        popen = functools.partial(subprocess.Popen, cwd=FOLDER, env=environment, text=True, **pipes)
        programs = [stack.enter_context(popen(x)) for x in commands]
        for program in programs:
            stack.callback(program.kill)
        yield programs


def printed(programs: list[subprocess.Popen]) -> list:
    """What is read in the last lines of programs that end well."""
    outputs = [program.communicate(timeout=400) for program in programs]
    assert not any(program.returncode for program in programs), [error for _, error in outputs]
    return [json.loads(out.splitlines()[-1]) for out, _ in outputs]


@pytest.mark.slow
@pytest.mark.parametrize("num_processes", [1, 2])
def test_eight_devices_of_one_or_more_processes_give_what_one_device_gives(num_processes, request):
    if num_processes > 1:
        request.getfixturevalue("gloo")
    with processes(num_processes, 8 // num_processes) as programs:
        outputs = printed(programs)
    for name, result in ((name, result) for found in outputs for name, result in found.items()):
        function, points, *_ = *name.split(", "), ""
        if function == "collectives":
            assert result == ({} if points == "queries" else {"all-reduce": 1}), (name, result)
            continue
        for ours, expected in zip(result, exact(function, points if points == "far" else ""), strict=True):
            largest = 1e-3 if function in ("half", "large") else 1e-9
            assert relative_error(ours, expected) < largest, (name, ours, expected)


@pytest.mark.slow
def test_a_killed_process_ends_the_others_and_their_job_goes_on_to_the_same_digits(gloo, tmp_path):
    """Two processes add up their sketches: killed, started again with those that were saved, and undisturbed."""
    (tmp_path / "undisturbed").mkdir()
    with processes(2, 1, str(tmp_path), "killed", program="sketched.py") as (survivor, victim):
        _, error = survivor.communicate(timeout=100)
        assert victim.wait(timeout=100) == -signal.SIGKILL
    assert survivor.returncode not in (0, -signal.SIGKILL)
    assert "Connection closed by peer" in error or "heartbeat timeout" in error, error
    with processes(2, 1, str(tmp_path), program="sketched.py") as restarted:
        resumed, undisturbed = zip(*printed(restarted), strict=True)
    assert [x.pop("found") for x in undisturbed] == [0, 0]
    assert [x.pop("found") for x in resumed][1] == 3
    assert resumed[0] == resumed[1] == undisturbed[0] == undisturbed[1]
    keys, weights = map(np.concatenate, zip(*map(sketched.chunk, range(sketched.CHUNKS)), strict=True))
    expected = gauss_sum64(sketched.QUERIES, keys, weights[:, None], sketched.TAU)[:, 0]
    for sums in resumed[0].values():
        assert np.abs(np.array(sums) - expected).max() < 1e-6 * np.abs(weights).sum()


MESH = jax.sharding.AbstractMesh((4, 2), ("data", "model"))


def test_a_mesh_that_does_not_fit_is_refused():
    """Others are in test_wrong_calls."""
    queries, keys = np.zeros((4, 3)), np.zeros((6, 3))
    with pytest.raises(ValueError, match=r"number of keys; got keys \(6, 3\).*with 2 more, of value"):
        gauss_sum_sharded(queries, keys, np.zeros(6), mesh=MESH, key_axis="data")
    with pytest.raises(ValueError, match=r"queries; got queries \(4, 3\).*with 4 more\."):
        gauss_sum_sharded(queries, keys, np.zeros(6), mesh=MESH, query_axis=("data", "model"))


def test_a_mesh_of_one_device_is_a_mesh(rng):
    mesh = jax.make_mesh((1,), ("data",), devices=jax.devices()[:1], axis_types=(jax.sharding.AxisType.Auto,))
    queries, keys, values = rng.normal(size=(5, 2)), rng.normal(size=(7, 2)), rng.normal(size=(2, 7, 1))
    sums = gauss_sum_sharded(queries, keys, values, np.array([[0.5], [2.0]]), mesh=mesh, key_axis="data")
    np.testing.assert_allclose(sums, gauss_sum64(queries, keys, values, np.array([[0.5], [2.0]])), rtol=1e-12)


def test_many_points_of_another_kernel_may_lie_anywhere(rng):
    """So many that they would be sorted: both ways of the program vary alike over the mesh."""
    x = rng.normal(size=(800, 3)).astype(np.float32)
    mesh = jax.make_mesh((1,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    for scale in (1, 100):
        found = kernel_sum_sharded(scale * x, scale * x, x, 0.7, kernel="imq", mesh=mesh, query_axis="rows")
        assert relative_error(found, kernel_matrix(scale * x, scale * x, 0.7, "imq") @ np.float64(x)) < 1e-5
