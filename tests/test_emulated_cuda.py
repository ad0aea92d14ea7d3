"""The emulation of CUDA is right where it is right, and wrong where CUDA is: see `emulated_cuda`."""

import contextlib
import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import emulated_cuda
import jaxgauss
import torch_backend
from emulated_cuda import RefusedError
from jaxgauss import Attention, explain, gauss_sum, kernel_mean, log_gauss_sum, mmd_flow_velocity
from jaxgauss._engines import bridge, costs, tiles
from jaxgauss._engines.engine import Problem
from jaxgauss._engines.fourier.frequencies import MOST
from jaxgauss._inspect import calibrate
from jaxgauss._kernels.kernels import GAUSS
from oracle import assert_close, gauss_sum64, gradients64, problem, relative_error, with_gradients
from torch_backend import KERNELS, operators, select_kernel

pytestmark = [pytest.mark.usefixtures("cuda"), pytest.mark.emulated]

TURING, AMPERE, ADA, HOPPER = (7, 5), (8, 0), (8, 9), (9, 0)
CUDA_KERNELS = {name: kernel for name, kernel in KERNELS.items() if kernel.device == "cuda"}
EPS = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-6}


def operands(dtype, width=24, num_queries=70, num_keys=50):
    rng = np.random.default_rng(0)
    shapes = [(2, 3, n, width) for n in (num_queries, num_queries, num_keys, num_keys)]
    return [torch.from_numpy(rng.normal(size=shape) / width**0.5).to(getattr(torch, dtype)) for shape in shapes]


@pytest.mark.parametrize("name, dtype", [(name, x) for name, kernel in CUDA_KERNELS.items() for x in kernel.dtypes])
def test_stand_ins_are_attention_and_its_slopes(name, dtype):
    """Against PyTorch's autograd of the formula in float64."""
    kernel = CUDA_KERNELS[name]
    g, *tensors = operands(dtype, kernel.width(24))
    out, lse = operators.FORWARD[name](*tensors)
    q, k, v = (x.double().requires_grad_() for x in tensors)
    logits = q @ k.mT
    exact = logits.softmax(-1) @ v
    assert_close([out.double(), lse], [exact.detach(), logits.logsumexp(-1).detach()], EPS[dtype])
    unnormalized = (logits - lse[..., None].double()).exp() @ v
    slopes = torch.autograd.grad((unnormalized * g.double()).sum(), (q, k, v))
    gradients = operators.BACKWARD[kernel.backward.name](g, *tensors, lse[..., None])
    assert_close([x.double() for x in gradients], slopes, 2 * EPS[dtype])


@pytest.mark.parametrize("is_open", [True, False])
def test_a_gate_lets_the_memory_efficient_kernel_run_or_not(is_open):
    g, q, k, v = operands("float32")
    gate = torch.tensor(is_open)
    out, lse = operators.efficient_gated(q, k, v, gate=gate)
    gradients = operators.efficient_gated_backward(
        g, q, k, v, operators.FORWARD["efficient"](q, k, v)[1][..., None], gate=gate
    )
    if not is_open:
        assert all(torch.isnan(x).all() for x in (out, *gradients))
        return
    exact = operators.FORWARD["efficient"](q, k, v)
    assert_close([out, lse], exact, 1e-6)
    assert_close(gradients, operators.BACKWARD["efficient"](g, q, k, v, exact[1][..., None]), 1e-6)


def off_by(name, index, change):
    """The stand-in with one of its results changed."""
    right = emulated_cuda.STAND_INS[name]

    def wrong(*operands, **options):
        results = list(right(*operands, **options))
        results[index] = change(results[index])
        return tuple(results)

    return wrong


def larger(x):
    return 1.02 * x


WRONG = [
    ("_scaled_dot_product_flash_attention", 0, larger, {"engine": Attention(kernel="flash")}),
    ("_scaled_dot_product_flash_attention", 1, lambda x: x + 0.02, {"engine": Attention(kernel="flash")}),
    ("_scaled_dot_product_flash_attention_backward", 0, larger, {"engine": Attention(kernel="flash")}),
    ("_scaled_dot_product_flash_attention_backward", 1, larger, {"engine": Attention(kernel="flash")}),
    ("_scaled_dot_product_flash_attention_backward", 2, larger, {"engine": Attention(kernel="flash")}),
    ("_scaled_dot_product_efficient_attention", 0, larger, {"engine": Attention(kernel="efficient")}),
    ("_scaled_dot_product_efficient_attention", 1, lambda x: x.roll(1, -1), {"engine": Attention(kernel="efficient")}),
    ("_scaled_dot_product_efficient_attention_backward", 2, larger, {"engine": Attention(kernel="efficient")}),
    ("_scaled_dot_product_cudnn_attention", 1, lambda x: x + 0.02, {"engine": Attention(kernel="cudnn")}),
    (
        "_scaled_dot_product_efficient_attention",
        0,
        larger,
        {"engine": Attention(kernel="flash"), "far": 60.0},
    ),
    (
        "_scaled_dot_product_efficient_attention_backward",
        0,
        larger,
        {"engine": Attention(kernel="flash"), "far": 60.0},
    ),
]


@functools.cache
def compiled(engine):
    return with_gradients(functools.partial(gauss_sum, engine=engine, precision="float16"))


@pytest.mark.parametrize("name, index, change, options", WRONG)
def test_a_stand_in_that_is_wrong_is_noticed(rng, monkeypatch, name, index, change, options):
    """By the comparison that every test of CUDA makes; and so it is the operator that ran."""
    case = problem(rng, 90, 70, 8, 33, tau=1.0)
    case.queries[0] = case.keys[0] = options.get("far", 0.0)  # which the second kernel sums

    def check():
        value, gradients = compiled(options["engine"])(*map(jnp.float32, case))
        assert_close([value, *gradients[:3]], [gauss_sum64(*case.operands), *gradients64(*case)[:3]], 6e-3)

    check()
    monkeypatch.setitem(emulated_cuda.STAND_INS, name, off_by(name, index, change))
    with pytest.raises(AssertionError):
        check()


def test_the_memory_that_a_kernel_reads_is_there(rng, monkeypatch):
    """Rows of zeros W·H apart for the memory-efficient backward pass: `zeros_like`, in another order, ends too soon."""
    g, q, k, v = operands("float16")
    lse = operators.FORWARD["efficient"](q, k, v)[1][..., None]
    assert all(torch.isfinite(x).all() for x in operators.BACKWARD["efficient"](g, q, k, v, lse))
    monkeypatch.setattr(operators, "_no_out", torch.zeros_like)
    assert any(torch.isnan(x).any() for x in operators.BACKWARD["efficient"](g, q, k, v, lse))


@pytest.fixture
def tensors_on_cuda(monkeypatch):
    """`torch_backend` takes any tensors for CUDA's."""
    module = sys.modules["torch_backend.gauss_sum"]  # the package exports the function of its name
    monkeypatch.setattr(module, "select_kernel", lambda b, p, _, *rest: select_kernel(b, p, "cuda", *rest))


def assert_right_of_tensors(case, **options):
    q, k, v, t, g = (torch.from_numpy(np.asarray(x)) for x in case)
    assert relative_error(torch_backend.gauss_sum(q, k, v, t, **options), gauss_sum64(*case.operands)) < 3e-3
    assert_close(torch_backend.gauss_sum_pullback(q, k, v, t, g, **options), gradients64(*case)[:3], 5e-3)


@pytest.mark.parametrize(
    "capability, precision, dim, expected",
    [
        (TURING, "auto", 16, ("efficient", "float16", 24)),
        (TURING, "float16x2", 16, ("efficient", "float32", 24)),
        (AMPERE, "auto", 16, ("flash", "float16", 24)),
        (AMPERE, "auto", 200, ("flash", "float16", 208)),
        (ADA, "auto", 200, ("flash", "float16", 232)),
        ((12, 0), "float16x2", 64, ("flash", "float16x2", 232)),
        (HOPPER, "float16x2", 64, ("flash", "float16x2", 200)),
    ],
)
def test_every_card_has_a_kernel_that_it_runs(rng, tensors_on_cuda, capability, precision, dim, expected):
    with emulated_cuda.on(capability=capability):
        kernel = select_kernel("auto", precision, "cuda", "float32", dim)
        assert (kernel.name, kernel.precision, kernel.width(kernel.columns(dim) + 2)) == expected
        assert_right_of_tensors(problem(rng, 60, 50, dim, 9, tau=1.0, dtype="float32"), precision=precision)


@pytest.mark.parametrize("backend", ["auto", "flex"])
@pytest.mark.parametrize("tau", [1.0, 3000.0])
def test_tensors_take_the_same_kernels(rng, tensors_on_cuda, tau, backend):
    """`torch_backend` by itself, its gate in PyTorch."""
    assert_right_of_tensors(problem(rng, 60, 50, 3, 2, tau=tau, dtype="float32"), backend=backend)


@pytest.mark.parametrize(
    "options",
    [
        {"engine": Attention(kernel="flash")},
        {"engine": Attention(kernel="cudnn")},
        {"engine": Attention(kernel="flex")},
        {"engine": Attention(kernel="efficient"), "precision": "bfloat16"},
    ],
)
def test_what_a_card_cannot_run_is_refused_by_name(rng, options):
    operands = [jnp.float32(x) for x in problem(rng).operands]
    with (
        emulated_cuda.on(capability=TURING),
        pytest.raises(ValueError, match=r"needs compute capability 8\.0 \(here emulated, co"),
    ):
        gauss_sum(*operands, **options)


@pytest.mark.parametrize("cudnn, capability", [(91002, HOPPER), (91500, HOPPER), (91900, HOPPER), (92100, (10, 0))])
def test_cudnn_gets_what_it_takes(cudnn, capability):
    with emulated_cuda.on(cudnn=cudnn, capability=capability):
        for num_queries, num_keys in ((128, 256), (130, 256), (128, 250), (130, 250), (5, 1), (1, 256)):
            _, *tensors = operands("float16", 24, num_queries, num_keys)
            q, k, v = (x.double() for x in tensors)
            exact = (q @ k.mT).softmax(-1) @ v, (q @ k.mT).logsumexp(-1)
            assert_close(operators.FORWARD["cudnn"](*tensors), exact, EPS["float16"])


REFUSED = [
    (TURING, "flash", {"dtype": "float16"}),
    (TURING, "cudnn", {"dtype": "float16"}),
    (TURING, "efficient", {"dtype": "bfloat16"}),
    (AMPERE, "flash", {"dtype": "float32"}),
    (AMPERE, "flash", {"dtype": "float16", "width": 20}),
    (AMPERE, "flash", {"dtype": "float16", "width": 264}),
    (AMPERE, "cudnn", {"dtype": "float16", "width": 136}),
    (AMPERE, "efficient", {"dtype": "float64"}),
    (AMPERE, "efficient", {"dtype": "float16", "width": 12}),
    (AMPERE, "flex", {"dtype": "float16", "width": 16}),
    (AMPERE, "flex", {"dtype": "float32", "width": 24}),
]


@pytest.mark.parametrize("capability, name, options", REFUSED)
def test_operators_refuse_what_their_source_refuses(capability, name, options):
    _, *tensors = operands(**options)
    with emulated_cuda.on(capability=capability), pytest.raises(RefusedError):
        operators.FORWARD[name](*tensors)


@pytest.mark.parametrize("capability", [(8, 6), (8, 9), (12, 0)])
def test_widths_of_flash_backward(capability):
    g, q, k, v = operands("float16", width=208)
    lse = torch.zeros(*q.shape[:3], 1)
    for larger_card in (AMPERE, HOPPER):
        with emulated_cuda.on(capability=larger_card):
            operators.BACKWARD["flash"](g, q, k, v, lse)
    with emulated_cuda.on(capability=capability), pytest.raises(RefusedError, match="invalid argument"):
        operators.BACKWARD["flash"](g, q, k, v, lse)


FINE = Attention(kernel="flash", precision="float32")  # whose values another kernel averages


@pytest.mark.parametrize("function, engine", [(gauss_sum, "rescale"), (kernel_mean, FINE)], ids=["sum", "mean"])
def test_a_warning_of_earlier_sums(rng, function, engine):
    """It comes with a later call, once; an error, if that is what the filters make of it, is not the callback's."""
    far, near = ([jnp.float32(x) for x in problem(rng, tau=tau).operands] for tau in (1e12, 1.0))
    jax.block_until_ready(function(*far, engine=engine))
    with pytest.raises(UserWarning, match="lie farther from their center"):
        gauss_sum(*near, engine="rescale")
    assert relative_error(gauss_sum(*near, engine="rescale"), gauss_sum64(*near)) < 3e-3


@pytest.mark.parametrize("flags", ["", "--xla_gpu_command_buffer_scheduling_mode=CONCURRENT"])
def test_calls_may_be_recorded_where_they_run_in_turn(rng, monkeypatch, flags):
    """Graphs share the temporary memory, which is one pool for a device, and nobody else's."""
    given, pools, real = [], [], bridge.buffer_callback.buffer_callback
    monkeypatch.setenv("XLA_FLAGS", flags)
    monkeypatch.setattr(
        bridge.buffer_callback, "buffer_callback", lambda *args, **more: given.append(more) or real(*args, **more)
    )
    monkeypatch.setattr(torch.cuda, "MemPool", object)
    monkeypatch.setattr(torch.cuda, "use_mem_pool", lambda *x: pools.append(x) or contextlib.nullcontext())
    bridge._memory.cache_clear()
    jax.block_until_ready(gauss_sum(*map(jnp.float32, problem(rng, 37 + len(flags)).operands), engine="rescale"))
    bridge._memory.cache_clear()
    assert given == [{"command_buffer_compatible": not flags}] * 2  # in branches, too
    assert len(pools) == 1 and pools[0][0] is not None


@pytest.mark.parametrize("read", [float, bool])
def test_a_callback_that_tells_the_host_a_number_is_refused(rng, monkeypatch, read):
    """CUDA could not record it."""
    original = operators.FORWARD["flash"]
    monkeypatch.setitem(operators.FORWARD, "flash", lambda q, *x: original(q, *x) if read(q[0, 0, 0, 0]) else None)
    with pytest.raises(Exception, match="not permitted when stream is capturing"):
        jax.block_until_ready(gauss_sum(*map(jnp.float32, problem(rng).operands), engine=Attention(kernel="flash")))


@pytest.mark.parametrize("precision", ["float16x2", "float32"])
def test_launches_of_a_call(rng, precision):
    """Of each callback: one kernel, an array copied for each of its results, and what a backward pass reads as zeros.

    A sum comes with two operations for a bit that the host may read. Nothing else is PyTorch's.
    """
    *operands, g = (jnp.float32(x) for x in problem(rng, 30, 40, 32, 32))
    function = functools.partial(gauss_sum, engine="rescale", precision=precision)
    jax.block_until_ready(function(*operands))  # the first report of a process makes the bit
    with emulated_cuda.counting() as of_sum:
        jax.block_until_ready(function(*operands))
    with emulated_cuda.counting() as of_both:
        jax.block_until_ready(jax.jit(lambda *x: jax.vjp(function, *x)[1](g))(*operands))
    assert list(map(emulated_cuda.count, of_sum)) == [5]
    assert sorted(map(emulated_cuda.count, of_both)) == [5, 7]


def test_tiles_are_those_of_the_device():
    assert tiles.block_sizes(1, 8192, 10_000, False) == (4096, 3334)
    assert tiles.block_sizes(1, 8192, 10_000, False, tiles.TILE) == (4096, 500)


def test_kernels_are_mixtures_or_evaluated():
    """By the cheaper of both, and by XLA where a kink needs all digits; the sums themselves are in test_gpu."""
    many, few = (jax.ShapeDtypeStruct((n, 16), "float32") for n in (50000, 100))
    weights = [jax.ShapeDtypeStruct(x.shape[:1], "float32") for x in (many, few)]
    chosen = explain(many, many, weights[0], kernel="matern52")
    assert chosen.engine == jaxgauss.Mixture(Attention(kernel="cudnn", precision="float32"), precision="float32")
    assert "; 8 Gaussians, maximal error 9.6e-07" in chosen.reason
    assert explain(few, few, weights[1], kernel="matern52").name == "dense"
    assert explain(many, many, weights[0], kernel="energy").name == "blocked"
    assert "; 7 Gaussians" in explain(many, many, weights[0], kernel="imq", precision="bfloat16x2").reason


def test_the_work_of_a_trial_is_what_its_engine_is_estimated_by():
    rows, _ = costs.cuda_costs(bridge.card().name)
    found = calibrate.trials("float32", 2048, 100, 3)
    measured = {"dense", "blocked", "flash", "cudnn", "efficient", "efficient in float32"}
    assert measured | {"flex in float32"} == {*found}  # of which no card has made a row
    for row, trial in ((x, found[x]) for x in measured):
        expected = 1e6 * trial.engine.cost(Problem("cuda", "float32", GAUSS, 2048**2, 100, 3))
        assert rows[row].call + np.dot(rows[row][1:], trial.work) == pytest.approx(expected, rel=1e-6)


def test_explain_names_the_card():
    points = jax.ShapeDtypeStruct((70_000, 16), "float32")
    for options in ({}, {"engine": "rescale"}):
        assert "compute capability 9.0, cuDNN 9.19.0" in explain(points, points, points, **options).reason


def test_explain_lists_the_sums_of_a_function_by_the_cards_costs():
    many, few = (jax.ShapeDtypeStruct((n, 16), "float32") for n in (70_000, 100))
    by_kernel, in_xla = (explain(mmd_flow_velocity, x, x, 1.0) for x in (many, few))
    assert by_kernel.parts[0].engine in ("attention by cudnn", "attention by flash")
    assert in_xla.parts[0].engine == "differences"
    assert by_kernel.milliseconds > 30 * in_xla.milliseconds
    solid = jax.ShapeDtypeStruct((70_000, 3), "float32")
    by_waves = explain(lambda x: gauss_sum(x, x, x, engine="fourier"), solid)
    assert [x.engine for x in by_waves.parts] == ["fourier"]
    assert by_waves.milliseconds == pytest.approx(costs.time_of_waves_on_cuda(140_000, 3, 3, MOST[3]), rel=0.05)


FORMS = {  # of a sum and its gradients, of which near points take so many calls of PyTorch
    "sums": (1, lambda q, k, v, t: gauss_sum(q, k, v, t, engine="rescale", precision="float16")),
    "gradients": (2, lambda *x: jax.vjp(FORMS["sums"][1], *x)[1](x[2] + 1)),
    "logarithms": (1, lambda q, k, v, t: log_gauss_sum(q, k, v[:, 0], t, engine="rescale", precision="float16")),
    "by flex": (1, lambda *x: gauss_sum(*x, engine=Attention(kernel="flex"))),
    "a batch": (1, lambda q, k, v, t: jax.vmap(lambda x: FORMS["sums"][1](x * q, k, v, t))(jnp.float32([1.0, 0.9]))),
}


@pytest.mark.parametrize("name", FORMS)
def test_the_second_kernel_runs_where_the_first_is_not_accurate_enough(rng, name):
    """In a branch: a far cloud takes it, a near one does not, wherever it lies; in one program."""
    calls, form = FORMS[name]
    near = [jnp.float32(x) for x in problem(rng, 70, 70, 8, 1).operands]
    far = [near[0].at[0].add(100), near[1].at[0].add(100), *near[2:]]
    moved = [near[0] + 3000, near[1] + 3000, *near[2:]]
    program = jax.jit(form).lower(*near).compile()
    for operands, times in ((near, 1), (far, 2), (near, 1), (moved, 1 + (name == "a batch"))):  # which are then apart
        with emulated_cuda.counting() as launched:
            found = jax.block_until_ready(program(*operands))
        assert len(launched) == times * calls
        assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(found))


def test_what_stands_in_a_branch_has_run_before(rng, monkeypatch):
    """On few rows of the same widths, where the program is lowered: CUDA would load it while it records."""
    seen, names = [], [x for x in emulated_cuda.STAND_INS if x.startswith("_scaled_dot_product_efficient")]

    def noting(name, original):
        def run(*operands, **options):
            queries, _, values = operands["backward" in name :][:3]
            seen.append((name, queries.shape[-1], values.shape[-1], queries.shape[-2]))
            return original(*operands, **options)

        return run

    for name in names:
        monkeypatch.setitem(emulated_cuda.STAND_INS, name, noting(name, emulated_cuda.STAND_INS[name]))
    operands = [jnp.float32(x) for x in problem(rng, 600, 600, 8, 33).operands]
    operands[0], operands[1] = (x.at[0].add(100) for x in operands[:2])
    program = jax.jit(FORMS["gradients"][1]).lower(*operands)
    assert {name for name, *_ in seen} == {*names} and max(num for *_, num in seen) < 300
    before = {x[:3] for x in seen}
    seen.clear()
    jax.block_until_ready(program.compile()(*operands))
    assert {x[:3] for x in seen} == before and min(num for *_, num in seen) == 600


@pytest.mark.parametrize("dim, tau", [(64, 1.0), (8, 16.0)])
def test_half_precision_is_not_computed_twice_of_ordinary_points(rng, dim, tau):
    q, k = (rng.normal(size=(512, dim)) for _ in range(2))
    operands = [jnp.float32(x) for x in (q, k, rng.normal(size=(512, 1)), tau)]
    bound = gauss_sum64(*operands[:2], np.abs(operands[2]), tau)
    options = {"engine": "rescale", "precision": "float16"}
    assert explain(*operands, **options).precision == "float16"
    with emulated_cuda.counting() as launched:
        error = np.asarray(gauss_sum(*operands, **options), np.float64) - gauss_sum64(*operands)
    assert len(launched) == 1 and np.linalg.norm(error) < 5e-3 * np.linalg.norm(bound)


@pytest.mark.parametrize("channels, dear", [(1, 0), (3, 10**9)])
def test_a_sum_with_gradients_has_an_engine_of_its_own(rng, monkeypatch, channels, dear):
    """Attention, if pulls in XLA are dear: then value and gradients are its; gradients of values have none."""
    monkeypatch.setattr(costs, "PULL", dear)
    *case, g = problem(rng, 45, 37, 5, channels, dtype="float32")
    exact, gradients = gauss_sum64(*case), gradients64(*case, g)

    def found(function, *operands):
        emulated_cuda.forget()
        with emulated_cuda.counting() as launched:
            value, pullback = jax.vjp(function, *operands)
            results = jax.block_until_ready((value, *pullback(g)))
        return results, any("attention" in name for names in launched for name in names)

    results, by_attention = found(gauss_sum, *case)
    assert by_attention == (dear > 0)
    assert_close(results, [exact, *gradients], 5e-3 if by_attention else 2e-6)
    results, by_attention = found(lambda v: gauss_sum(*case[:2], v, case[3]), case[2])
    assert not by_attention
    assert_close(results, [exact, gradients[2]], 2e-6)
    emulated_cuda.forget()


@pytest.mark.parametrize("shift, reason", [(4.0, "all sums are so small"), (60.0, "points lie")])
def test_what_is_computed_twice_is_told_with_its_price(rng, shift, reason):
    q, k = (rng.normal(size=(512, 8)) for _ in range(2))
    operands = [jnp.float32(x) for x in (q + shift, k - shift * (shift > 10), rng.normal(size=(512, 1)), 2.0)]
    plan = explain(*operands, engine="rescale", precision="float16")
    assert plan.engine == Attention(kernel="efficient", precision="float32")
    assert plan.reason.startswith(reason) and plan.reason.endswith("ms more (measured on an NVIDIA H200, not here)")
    with emulated_cuda.counting() as launched:
        jax.block_until_ready(gauss_sum(*operands, engine="rescale", precision="float16"))
    assert len(launched) == 2


@pytest.mark.parametrize("kernel", [*CUDA_KERNELS, None])
@pytest.mark.parametrize("bad, channels", [(np.nan, 2), (np.inf, 33)])
def test_a_bad_value_spoils_its_channel_alone(rng, kernel, channels, bad):
    """In the precisions of the kernel, by name; without a name, by every method."""
    case = problem(rng, 40, 30, 3, channels, dtype="float32")
    exact, values = gauss_sum64(*case.operands), case.values.copy()
    values[3, 0] = bad
    for precision in ("float32", *(("float16", "bfloat16x2") if kernel != "flex" else ())):
        for method in ("rescale", "prescale", "reweight")[: 3 if kernel is None and precision == "float16" else 1]:
            engine = Attention(method, kernel, precision=precision)
            found = gauss_sum(case.queries, case.keys, values, case.tau, engine=engine)
            assert not jnp.isfinite(found[:, 0]).any()
            assert_close([found[:, 1:]], [exact[:, 1:]], 2e-2 if precision == "bfloat16x2" else 6e-3)


@pytest.mark.parametrize("name", CUDA_KERNELS)
def test_a_kernel_without_a_table_of_widths_serves_all(monkeypatch, name):
    """As a new one that "auto" considers, and that a calibration tries."""
    monkeypatch.delitem(costs.WIDTHS, name)
    costs.widths_of.cache_clear()
    emulated_cuda.forget()
    try:
        points, values = (jax.ShapeDtypeStruct((50_000, x), "float32") for x in (20, 33))
        for engine in ("auto", Attention(kernel=name)):
            assert explain(points, points, values, engine=engine, precision="float32").engine
        assert calibrate.trials("float32", 2048, 100, 3)
    finally:
        costs.widths_of.cache_clear()
        emulated_cuda.forget()
