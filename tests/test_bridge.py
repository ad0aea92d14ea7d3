"""The door to PyTorch: no copies, one callback a setting, one readable error, and a process that lives on."""

import contextlib
import functools
import subprocess
import sys
import warnings
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import torch_backend
from emulated_cuda import Launches
from jaxgauss import Attention, explain, gauss_sum
from jaxgauss._engines import branches, bridge, plan
from jaxgauss._engines import run as dispatch
from jaxgauss._engines.attention import reductions as engine
from jaxgauss._sums import preparation as checked
from oracle import assert_close, gauss_sum64, gradients64, problem, relative_error
from torch_backend import operators


@pytest.fixture
def fresh():
    """Nothing compiled, before and after: what the test patches is traced, and does not outlive it."""

    def clear():
        for cache in (bridge.buffered, branches._batched, plan.warn_once, checked._remembered, checked._planned):
            cache.cache_clear()
        jax.clear_caches()

    clear()
    yield
    clear()


@pytest.fixture
def callbacks(monkeypatch, fresh) -> list[list[str]]:
    """The operators of every callback."""
    calls, original = [], torch.inference_mode

    @contextlib.contextmanager
    def logged():
        with original(), Launches() as operators:
            yield
        calls.append(operators.names)

    monkeypatch.setattr(torch, "inference_mode", logged)
    return calls


FORWARD = ["_scaled_dot_product_flash_attention_for_cpu", "copy_", "copy_"]


@pytest.mark.parametrize(
    "transform, dtype, method",
    [*((jax.jit, "float32", x) for x in torch_backend.METHODS), (lambda f: f, "float64", "rescale")],
)
def test_one_operator_in_one_callback(rng, callbacks, transform, dtype, method):
    """Nothing is copied, cast or packed beside it."""
    operands = [jnp.asarray(x) for x in problem(rng, 300, 200, 16, 8, dtype=dtype, tau=0.1).operands]
    jax.block_until_ready(transform(lambda *x: gauss_sum(*x, engine=method))(*operands))
    assert callbacks == [FORWARD]


def test_value_and_gradients_take_two_callbacks(rng, callbacks):
    *operands, _ = (jnp.asarray(x) for x in problem(rng, 300, 200, 16, 1, tau=0.1))
    function = jax.value_and_grad(lambda *x: gauss_sum(*x, engine="rescale").sum(), (0, 1, 2))
    jax.block_until_ready(jax.jit(function)(*operands))
    assert callbacks == [FORWARD] * 2
    del callbacks[:]
    operands[2] = jnp.repeat(operands[2], 40, 1)
    jax.block_until_ready(jax.jit(function)(*operands))
    forward, backward = callbacks
    assert forward == FORWARD and sum("attention" in name for name in backward) == 1 and len(backward) <= 8


def test_shared_keys_reach_pytorch_once(monkeypatch, fresh):
    shapes, original = [], operators.FORWARD["cpu"]
    monkeypatch.setitem(
        operators.FORWARD, "cpu", lambda *x: shapes.append([y.stride()[:2] for y in x[:3]]) or original(*x)
    )
    q, k, v = jnp.ones((4, 3, 6, 2)), jnp.ones((3, 5, 2)), jnp.ones((5, 1))
    over = jax.vmap(jax.vmap(lambda q, k: gauss_sum(q, k, v, engine="rescale")), (0, None))
    jax.block_until_ready(jax.jit(over)(q, k))
    assert shapes == [[(3 * 6 * 16, 6 * 16), (0, 5 * 16), (0, 0)]]  # shared keys and values: strides of zero


def test_inputs_are_never_written(rng):
    case = problem(rng, 30, 20, 4, 3)
    operands = [jnp.asarray(x) for x in case]
    jax.block_until_ready(jax.vjp(lambda *x: gauss_sum(*x, engine="rescale"), *operands[:4])[1](operands[4]))
    assert all(np.array_equal(x, y) for x, y in zip(operands, case, strict=True))


def test_a_setting_has_one_callback_and_a_shape_is_compiled_once(rng):
    q, k, v, tau = (jnp.asarray(x) for x in problem(rng).operands)
    kernel = torch_backend.KERNELS["cpu"]
    callbacks = [bridge.buffered(engine.torch_attention, (x, 1)) for x in (kernel, replace(kernel))]
    assert callbacks[0] is callbacks[1]
    count = []
    f = jax.jit(lambda *x: (count.append(1), gauss_sum(*x, engine="rescale"))[1])
    for i in range(3):
        f(q + i, k, v, tau)
    assert len(count) == 1


@pytest.mark.parametrize("transform", [lambda f: f, lambda f: jax.jit(jax.vmap(f))])
def test_a_failure_in_pytorch_surfaces_once_and_the_process_lives_on(rng, monkeypatch, fresh, transform):
    def fail(*operands, **options):
        raise ArithmeticError("the kernel is on strike")

    operands = [jnp.asarray(x)[None] for x in problem(rng).operands]
    monkeypatch.setitem(operators.FORWARD, "cpu", fail)
    message = r"`jaxgauss`: PyTorch failed on float64\[.*\] on cpu, .*float64.*: the kernel is on strike"
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        jax.block_until_ready(transform(lambda *x: gauss_sum(*x, engine="rescale"))(*operands))
    monkeypatch.undo()
    result = gauss_sum(*operands, engine="rescale")
    assert relative_error(result, gauss_sum64(*operands)) < 1e-13


def test_memory_errors_on_a_gpu_name_the_setting():
    message = bridge._failure(torch.OutOfMemoryError("CUDA out of memory"), "float32[8, 3] on cuda")
    assert "XLA_PYTHON_CLIENT_PREALLOCATE=false" in message and "float32[8, 3]" in message
    assert "XLA" not in bridge._failure(ValueError("x"), "")


def test_several_platforms_share_one_program(rng, monkeypatch, fresh):
    """As on a GPU machine: the branch is chosen when the program is lowered."""
    for module in (branches, dispatch):
        monkeypatch.setattr(module, "platforms", lambda: ["cpu", "cuda"])
    monkeypatch.setattr(bridge, "serves", lambda platform: True)
    case = problem(rng, c=30)
    exact = [gauss_sum64(*case.operands), *gradients64(*case)]

    def run(*case, **options):
        value, pullback = jax.vjp(functools.partial(gauss_sum, **options), *case[:4])
        return value, *pullback(case[4])

    for method in ("auto", "rescale"):  # by XLA on both platforms; by attention here, by blocks there
        mapped = jax.jit(jax.vmap(functools.partial(run, engine=method)))(*(x[None] for x in case))
        assert_close([x[0] for x in mapped], exact, 1e-12)
    low = jax.jit(functools.partial(run, precision="float16"))(*map(np.float32, case))  # by both kernels
    assert_close(low, exact, 1e-2)


def test_a_kernel_of_another_platform_is_refused_when_it_runs(rng, monkeypatch, fresh):
    """Under jit a program may be lowered for a platform other than the one that was checked."""
    monkeypatch.setattr("jaxgauss._sums.preparation.expected_platform", lambda *x: "cuda")
    monkeypatch.setattr(bridge, "serves", lambda platform: True)
    operands = problem(rng, dtype="float32").operands
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"must be one for cpu, .*; got 'flash', which runs on cuda"):
        jax.block_until_ready(jax.jit(lambda *x: gauss_sum(*x, engine=Attention(kernel="flash")))(*operands))


@pytest.mark.parametrize("platform, dtype", [("tpu", "float32"), ("cuda", "float32"), ("cuda", "float64")])
def test_auto_falls_back_to_blocks_and_says_so_once(rng, monkeypatch, fresh, platform, dtype):
    monkeypatch.setattr("jaxgauss._sums.preparation.expected_platform", lambda *x: platform)
    if dtype == "float64":
        monkeypatch.setattr(bridge, "serves", lambda platform: True)
    operands = problem(rng, dtype=dtype).operands
    assert explain(*operands).name == "dense"
    with pytest.warns(UserWarning, match=r"jaxgauss: .*; XLA sums instead") as caught:
        result = gauss_sum(*operands)
    assert len(caught) == 1 and relative_error(result, gauss_sum64(*operands)) < 1e-5
    with warnings.catch_warnings(action="error"):
        gauss_sum(*operands)  # once
        gauss_sum(*operands, engine="blocked")  # asked for
    with pytest.raises(ValueError, match=r"; got Attention\(\)\. Use engine='auto'"):
        gauss_sum(*operands, engine="rescale")


@pytest.mark.slow
def test_importing_changes_nothing_and_loads_no_pytorch_nor_finufft():
    code = """
import jax, sys, warnings
before = dict(jax.config.values)
import jaxgauss
assert dict(jax.config.values) == before
assert not {"torch", "finufft"} & sys.modules.keys()
points = jax.ShapeDtypeStruct((20_000, 2), "float32")
jax.eval_shape(lambda x: jaxgauss.gauss_sum(x, x, x), points)
jax.grad(jaxgauss.mmd_squared)(jax.numpy.ones((9, 2)), jax.numpy.zeros((9, 2)), 1.0)
jaxgauss.explain(points, points, points)
assert not {"torch", "finufft"} & sys.modules.keys()
import torch
threads = torch.get_num_threads()
jaxgauss.gauss_sum(jax.numpy.ones((3, 2)), jax.numpy.ones((3, 2)), jax.numpy.ones((3,)), engine="rescale")
assert torch.get_num_threads() == threads and dict(jax.config.values) == before
assert torch.is_grad_enabled()
"""
    subprocess.run([sys.executable, "-c", code], check=True)
