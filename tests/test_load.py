"""Threads, thousands of steps, child processes, Ctrl-C, failures: right sums, level memory, a process that lives on."""

import itertools
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_bridge import fresh  # noqa: F401

from jaxgauss import gauss_sum
from oracle import gauss_sum64, problem, relative_error
from torch_backend import operators

pytestmark = pytest.mark.slow

START = """
import multiprocessing, os, signal, sys, threading, warnings
from concurrent.futures import ThreadPoolExecutor
import jax, jax.numpy as jnp, numpy as np
from jaxgauss import gauss_sum
from oracle import gauss_sum64, problem, relative_error

num = 700  # enough for both libraries to use all their threads
case = problem(np.random.default_rng(0), num, num, 16, 1, dtype="float32")
exact = gauss_sum64(*case.operands)
rescale = lambda *x: gauss_sum(*x, engine="rescale")
"""

THREADS = """
steps = [f for method in ("rescale", "auto") for f in [lambda *x, m=method: gauss_sum(*x, engine=m)] * 2]
steps[1::2] = map(jax.jit, steps[1::2])

def work(i):
    q, k, v, tau = case.operands
    factors = np.float32(i + 1), np.float32(-i - 1)
    return [relative_error(f(q, k, c * v, tau), c * exact) for _ in range(3) for c in factors for f in steps]

with ThreadPoolExecutor(8) as threads:  # which meet at the first use, nothing imported or compiled
    errors = list(threads.map(work, range(12)))
assert np.max(errors) < 1e-5, np.max(errors)
"""

INTERRUPTS = """
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells have what runs in the background ignore it
f = jax.jit(rescale)
operands = [jnp.asarray(x) for x in case.operands]
f(*operands)
for delay in (0.05, 0.06, 0.07):
    threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        while True:
            f(*operands)
    except (Exception, KeyboardInterrupt) as error:
        assert "KeyboardInterrupt" in repr(error), error
    assert relative_error(f(*operands), exact) < 1e-5
"""

MEMORY = """
def resident_mebibytes():
    status = open("/proc/self/status").read()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024

@jax.jit
def step(x, tau):
    loss = lambda x, tau: rescale(x, y, weights, tau).mean()
    value, (d_x, d_tau) = jax.value_and_grad(loss, (0, 1))(x, tau)
    return x - 0.1 * d_x, tau - 1e-4 * d_tau, value

def train(x, tau, steps):
    for _ in range(steps):
        x, tau, _ = step(x, tau)
        rescale(x, y, weights, 1.0).block_until_ready()
    return x, tau

x, y, weights, tau, _ = map(jnp.asarray, problem(np.random.default_rng(0), 32, 32, 128, 1, dtype="float32"))
step(100 * x, tau)  # out of reach, where some later steps are, too
x, tau = train(x, tau, 100)
if sys.platform == "linux":
    before, arrays = resident_mebibytes(), len(jax.live_arrays())
    x, tau = train(x, tau, 500)
    assert len(jax.live_arrays()) == arrays
    grown = resident_mebibytes() - before
    assert grown < 4, grown  # to leak the points of a step, 16 KiB, would cost 8 MiB
"""

EXIT = """
x, v, busy = jnp.ones((4096, 16)) / 4096, jnp.ones((4096, 1)), jnp.ones((1500, 1500))
f = jax.jit(lambda v: gauss_sum(x, x, v, engine="rescale"))
f(v).block_until_ready()
threading.Thread(target=lambda: [f(v).block_until_ready() for _ in range(2)]).start()
for _ in range(3):
    busy = busy @ busy / 1500
for _ in range(20):
    f(v * busy[:1, :1])  # not ready: what needs it is computed by a thread of XLA
"""

CHILDREN = """
def first_sum(pool):
    return relative_error(pool.apply(gauss_sum, case.operands, {"engine": "rescale"}), exact)

warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)  # JAX says what may happen; here is what does
fork, spawn = map(multiprocessing.get_context, ("fork", "spawn"))
with fork.Pool(1) as pool:  # before this process has used JAX
    assert first_sum(pool) < 1e-5


def refused(pool):
    try:
        pool.apply_async(gauss_sum, case.operands, {"engine": "rescale"}).get(60)
    except (RuntimeError, ValueError) as error:
        return "must not be forked after JAX was used" in str(error)
    raise AssertionError("a forked process computed")


jnp.ones(3).block_until_ready()
with fork.Pool(1) as pool:  # JAX was used, but no sum computed
    assert refused(pool)
assert relative_error(rescale(*case.operands), exact) < 1e-5
with fork.Pool(1) as pool:
    assert pool.apply(np.sum, ([1, 2],)) == 3  # as in a DataLoader
    assert refused(pool)
with spawn.Pool(1) as pool:
    assert first_sum(pool) < 1e-5
assert relative_error(rescale(*case.operands), exact) < 1e-5
"""


def run(*parts: str) -> str:
    """The output of a Python process that ends well and writes no errors; one that waits forever is stopped."""
    settings = {"JAX_PLATFORMS": "cpu", "OMP_WAIT_POLICY": "passive", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", START + "\n".join(parts)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, env=os.environ | settings)
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    return result.stdout


def test_threads_interrupts_level_memory_and_an_exit_in_flight():
    run(THREADS, INTERRUPTS, MEMORY, EXIT)


def test_child_processes_compute_or_say_why_not():
    run(CHILDREN)


def test_failures_are_told_once_under_jit_and_scan(rng, monkeypatch, capfd, fresh):  # noqa: F811
    """In turn and in threads."""
    *operands, _ = (jnp.asarray(x) for x in problem(rng, 60, 60, 8, 1))
    original, is_broken = operators.FORWARD["cpu"], False

    def sometimes(*operands, **options):
        if is_broken:
            raise ArithmeticError("the kernel is on strike")
        return original(*operands, **options)

    def failure(function) -> str:
        with pytest.raises((jax.errors.JaxRuntimeError, ValueError)) as caught:  # ValueError by JAX's fast path
            jax.block_until_ready(function(*operands))
        return str(caught.value)

    def scanned(q, k, v, tau):
        return jax.lax.scan(lambda c, _: (gauss_sum(q, k, c, tau, engine="rescale"), None), v, None, length=3)[0]

    monkeypatch.setitem(operators.FORWARD, "cpu", sometimes)
    functions = [lambda *x: gauss_sum(*x, engine="rescale"), jax.jit(scanned)]
    functions.insert(1, jax.jit(functions[0]))
    good = [function(*operands) for function in functions]
    is_broken = True
    with ThreadPoolExecutor(4) as threads:
        for message in itertools.chain(map(failure, functions), threads.map(failure, functions * 4)):
            assert message.count("PyTorch failed on float64[1, 1, 60, 16]") == message.count("on strike") == 1
            assert len(message) < 5000
    is_broken = False
    assert all(np.array_equal(function(*operands), x) for function, x in zip(functions, good, strict=True))
    assert relative_error(good[0], gauss_sum64(*operands)) < 1e-13
    assert capfd.readouterr().err == ""
