"""FlexAttention as a kernel: its sums and gradients have the digits of float32; it is compiled before it is called."""

import functools
import importlib.util
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from test_anywhere import error, errors
from torch._dynamo.testing import CompileCounterWithBackend

import emulated_cuda
from jaxgauss import Attention, explain, gauss_sum, kernel_mean, log_gauss_sum
from jaxgauss._engines import costs
from oracle import gauss_sum64, gradients64, problem, relative_error, squared64, with_gradients
from torch_backend import attention, devices, flex, select_kernel

pytestmark = [pytest.mark.usefixtures("cuda"), pytest.mark.emulated]

FLEX, EFFICIENT = Attention(kernel="flex"), Attention(kernel="efficient", precision="float32")
SIZES = [(3, 1), (16, 1), (32, 32), (64, 64), (128, 1), (5, 7)]
NUM, NUM_KEYS = 131, 187

COMPILED, LACKING = flex.compiled, devices.lacking_for_flex  # the real ones


@functools.cache
def compiled(engine, function=gauss_sum):
    return with_gradients(functools.partial(function, engine=engine))


def cases(rng, dim, channels, clouds):
    """Arguments of `compiled`, for values of one size and of sizes from 1e-20 to 1e20."""
    for name, z in clouds:
        for size in (0, 20):
            v = rng.normal(size=(NUM_KEYS, channels)) * 10.0 ** rng.uniform(-size, size, (NUM_KEYS, 1))
            arrays = z[:NUM], z[NUM:], v, 1.0, rng.normal(size=(NUM, channels))
            yield (name, size), [np.float32(x) for x in arrays]


def unit(rng, dim):
    return rng.normal(size=(NUM + NUM_KEYS, dim)) / dim**0.5


def near(rng, dim):
    """Points up to 11 bandwidths from their center."""
    x = unit(rng, dim)
    return {
        "unit": x,
        "wide": 3.5 * x,
        "far from the origin": x + 1000,
        "copies": x[rng.integers(0, 40, len(x))],
    }.items()


def far(rng, dim):
    x = unit(rng, dim)
    outliers = np.where(np.isin(np.arange(len(x)), (3, NUM + 3))[:, None], x + 1000, x)
    return {"outliers": outliers, "clusters": x + 3000 * (np.arange(len(x))[:, None] % 2) * np.eye(dim)[0]}.items()


@pytest.mark.parametrize("dim, channels", SIZES)
def test_sums_and_gradients_of_near_points(rng, dim, channels):
    for name, case in cases(rng, dim, channels, near(rng, dim)):
        sums, gradients = compiled(FLEX)(*case)
        found = errors("gauss", *case, sums, *gradients)
        assert np.less(found, [2e-6, 1e-5, 1e-5, 2e-6, 1e-5]).all(), (name, found)


@pytest.mark.parametrize("dim, channels", SIZES)
def test_far_points_are_those_of_the_second_kernel(rng, dim, channels):
    """The memory-efficient kernel sums them, from three numbers for each coordinate: the error is some 2⁻²⁸ R."""
    for name, case in cases(rng, dim, channels, far(rng, dim)):
        results, by_second = (jax.tree.leaves(compiled(engine)(*case)) for engine in (FLEX, EFFICIENT))
        for ours, theirs in zip(results, by_second, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        if not name[1]:
            bound = gauss_sum64(*case[:2], np.abs(case[2]), case[3])
            assert error(results[0], gauss_sum64(*case[:4]), bound) < 1e-5, name


def test_explain_tells_of_far_points(rng):
    for scale, engine in ((1, FLEX), (20, EFFICIENT)):
        plan = explain(*(np.float32(scale * x) for x in problem(rng, 60, 70, 3, 1).operands), engine=FLEX)
        assert plan.engine == engine and ("farther than float32 reaches" in plan.reason) == (scale > 1)


@pytest.mark.parametrize("method", ["prescale", "reweight"])
def test_the_papers_methods(rng, method):
    case = problem(rng, 45, 37, 5, 3, dtype="float32")
    assert (
        relative_error(gauss_sum(*case.operands, engine=Attention(method, kernel="flex")), gauss_sum64(*case[:4]))
        < 2e-6
    )


@pytest.mark.parametrize("num_keys, channels", [(1, 1), (40, 130), (40, 256)])
def test_more_channels_than_a_call_has_and_a_single_key(rng, num_keys, channels):
    case = problem(rng, 30, num_keys, 17, channels, tau=3.0, dtype="float32")
    sums, gradients = compiled(FLEX)(*case)
    assert np.less(errors("gauss", *case, sums, *gradients), [2e-6, 1e-5, 1e-5, 2e-6, 1e-5]).all()


@pytest.mark.parametrize("axes", [(None, 0, None), (0, None, None), (0, 0, 0), (None, None, 0)])
def test_batches(rng, axes):
    """What a batch shares, and what it does not."""
    shapes = (33, 5), (37, 5), (37, 2)
    operands = [
        np.float32(rng.normal(size=x if axis is None else (4, *x)) / 2) for x, axis in zip(shapes, axes, strict=True)
    ]
    function = functools.partial(gauss_sum, engine=FLEX)
    exact = gauss_sum64(*(x if x.ndim == 3 else x[None] for x in operands), np.ones(1))
    assert relative_error(jax.vmap(function, axes)(*operands), exact) < 2e-6
    assert relative_error(function(*operands), exact) < 2e-6
    g = jnp.float32(rng.normal(size=exact.shape))
    slopes = jax.jit(lambda *x: jax.vjp(jax.vmap(function, axes), *x)[1](g))(*operands)
    aligned = (x if x.ndim == 3 else x[None] for x in operands)
    for ours, theirs in zip(slopes, gradients64(*aligned, np.ones(1), g)[:3], strict=True):
        assert relative_error(ours, theirs.reshape(ours.shape)) < 1e-5


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_logarithms_and_means(rng, scale):
    """With weights from 1e-20 to 1e20, and of zero."""
    x, y = (np.float32(scale * rng.normal(size=(n, 3))) for n in (NUM, NUM_KEYS))
    v, logs = np.float32(rng.normal(size=(NUM_KEYS, 4))), np.float32(rng.uniform(-46, 46, NUM_KEYS))
    logs[5] = -np.inf
    exponents = np.float64(logs) - squared64(x, y) / 2
    exact = logsumexp(exponents, axis=1)
    found = np.asarray(log_gauss_sum(x, y, logs, 1.0, engine=FLEX))
    assert np.abs(found - exact).max() < 2e-5
    means = kernel_mean(x, y, v, 1.0, engine=FLEX)
    weights = np.exp(-squared64(x, y) / 2)
    assert error(means, weights @ v / weights.sum(1)[:, None], (weights @ np.abs(v)) / weights.sum(1)[:, None]) < 4e-6


@pytest.mark.parametrize("num_queries, num_keys, width, value_width", [(70, 50, 16, 32), (1, 5, 32, 16)])
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_pytorch_returns_what_its_stand_in_does(num_queries, num_keys, width, value_width):
    """The natural logarithm, and weights of both biases: in float64, by PyTorch on a CPU, and by the stand-in."""
    generator = torch.Generator().manual_seed(0)
    shapes = (num_queries, width), (num_keys, width), (num_keys, value_width), (num_keys,), (num_queries,)
    operands = [torch.randn(2, 3, *shape, generator=generator) for shape in shapes]
    q, k, v, of_keys, of_queries = (x.double() for x in operands)
    logits = q @ k.mT + of_keys[..., None, :] + of_queries[..., None]
    exact = logits.softmax(-1) @ v, logits.logsumexp(-1)
    for function in (flex.flex, emulated_cuda.flex_attention):
        assert max(map(relative_error, function(*operands), exact)) < 1e-6


@pytest.fixture
def counter(monkeypatch):
    """Counts what PyTorch compiles, which then runs without Inductor."""
    found = CompileCounterWithBackend("eager")
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=found))
    monkeypatch.setattr(flex, "compiled", COMPILED)
    COMPILED.cache_clear()
    attention._run_once.cache_clear()
    yield found
    COMPILED.cache_clear()
    attention._run_once.cache_clear()


def shapes_of(num_queries, num_keys, width=16, value_width=16, batch=(1, 1)):
    sizes = (num_queries, width), (num_keys, width), (num_keys, value_width), (1, num_keys), (num_queries, 1)
    return [(*batch, *size) for size in sizes]


def test_what_is_prepared_is_not_compiled_again(counter):
    """Numbers of points may vary; PyTorch's limit is eight versions of a function."""
    kernel = select_kernel("flex", "auto", "cuda", "float32", 3)
    sizes = [(70, 50), (30, 90), (40, 40), (64, 128)]
    for shapes in [
        *(shapes_of(*x) for x in sizes),
        shapes_of(1, 50),
        shapes_of(70, 50, 32),
        shapes_of(70, 50, batch=(2, 3)),
    ]:
        attention.prepare(kernel, *shapes)
        before = counter.frame_count
        with torch.inference_mode():
            queries, keys, values, *biases = map(torch.ones, shapes)
            attention.attention(queries, keys, values, kernel, biases=tuple(biases))
        assert counter.frame_count == before
    assert counter.frame_count <= 5
    for width in range(16, 32):  # more forms than a function may have versions
        attention.prepare(kernel, *shapes_of(20, 30, width))
    assert counter.frame_count <= 21


def test_it_is_compiled_before_a_program_runs(rng, monkeypatch):
    """Where the program is traced; the callback meets nothing new."""
    made, events = flex.compiled(), []
    monkeypatch.setattr(flex, "compiled", lambda *form: events.append(form) or made)
    case = [jnp.float32(x) for x in problem(rng, 41, 43, 5, 2)]
    function = compiled.__wrapped__(FLEX)
    lowered = function.lower(*case)
    traced = set(events)
    assert {form[:4] for form in traced} == {(16, 16, 1, 2)}
    events.clear()
    jax.block_until_ready(lowered.compile()(*case))
    assert events and set(events) <= traced


def test_a_stand_in_that_is_wrong_is_noticed(rng, monkeypatch):
    case = problem(rng, 40, 50, 5, 3, dtype="float32")
    right = emulated_cuda.STAND_INS["flex_attention"]
    monkeypatch.setitem(emulated_cuda.STAND_INS, "flex_attention", lambda *x: (1.02 * right(*x)[0], right(*x)[1]))
    assert relative_error(gauss_sum(*case.operands, engine=FLEX), gauss_sum64(*case.operands)) > 1e-2


def test_what_it_lacks_is_told(rng, monkeypatch):
    case = problem(rng, dtype="float32").operands
    monkeypatch.setattr(devices, "lacking_for_flex", lambda: "a machine without Triton")
    select_kernel.cache_clear()
    for function in (gauss_sum, explain):
        with pytest.raises(ValueError, match=r"by Triton and a C compiler .* \(here a machine without Triton\)"):
            function(*case, engine=FLEX)
    select_kernel.cache_clear()


def test_what_is_looked_for(monkeypatch):
    find = {"triton": object()}
    monkeypatch.setattr(importlib.util, "find_spec", find.get)
    monkeypatch.setenv("CC", "cc")
    assert LACKING.__wrapped__() == ""
    monkeypatch.setattr(torch.nn.attention.flex_attention, "AuxRequest", None)
    monkeypatch.delattr(torch.nn.attention.flex_attention, "AuxRequest")
    assert "does not return its log-sum-exp" in LACKING.__wrapped__()
    monkeypatch.delenv("CC")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "without a C compiler" in LACKING.__wrapped__()
    find.clear()
    assert LACKING.__wrapped__() == "a machine without Triton"


@pytest.mark.parametrize(
    "options, dim, message",
    [
        ({}, 129, "at most 128 columns"),
        ({"precision": "float16"}, 3, r"computes in float32 \(here float16\)"),
        ({"precision": "float64"}, 3, "no fused attention in float64 on CUDA"),
    ],
)
def test_what_it_does_not_take_is_refused(rng, options, dim, message):
    case = [jnp.float32(x) for x in problem(rng, d=dim).operands]
    with pytest.raises(ValueError, match=message):
        gauss_sum(*case, engine=Attention(kernel="flex", **options))


def test_it_needs_a_card(rng):
    case = [jnp.float32(x) for x in problem(rng).operands]
    with jax.default_device(jax.devices("cpu")[0]), pytest.raises(ValueError, match="'flex' is one for CUDA"):
        gauss_sum(*case, engine=FLEX)


@pytest.mark.parametrize("grade", ["default", "high", "highest"])
def test_its_precision_is_float32(rng, grade):
    case = [jnp.float32(x) for x in problem(rng).operands]
    assert (
        explain(*case, engine=Attention(kernel="flex", precision=grade)).engine
        == FLEX
        == Attention(kernel="flex", precision="float32")
    )
    with jax.default_matmul_precision(grade):
        assert explain(*case, engine=FLEX).engine == FLEX


def test_auto_takes_it_where_it_was_measured(monkeypatch):
    points = jax.ShapeDtypeStruct((70_000, 32), "float32")
    options = {"precision": "float32"}
    assert explain(points, points, points, **options).engine == EFFICIENT
    assert explain(points, points, points, engine=FLEX).reason == "asked for by name"
    assert explain(lambda x: gauss_sum(x, x, x, engine=FLEX), points).milliseconds == float("inf")
    rows, _ = costs.cuda_costs("emulated")
    row = {"flex in float32": costs.Cost(2e5, 1e-4, 1e-5)}
    monkeypatch.setattr(costs, "cuda_costs", lambda _: (rows | row, True))
    emulated_cuda.forget()
    found = explain(points, points, points, **options)
    assert found.engine == FLEX
    assert explain(points, points, points).engine == FLEX  # a channel for each coordinate
    assert found.reason.startswith("an estimated 3.83 ms by attention")
    emulated_cuda.forget()
