"""torch_backend by itself: three reductions, every dtype, any leading axes, and the fused pullback."""

import itertools
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import torch_backend
from oracle import SIZES, assert_close, gauss_sum64, gradients64, problem, relative_error
from torch_backend import (
    METHODS,
    attention,
    devices,
    gauss_sum,
    gauss_sum_pullback,
    kernels,
    operators,
    reductions,
    select_kernel,
)

EPS = {"float64": 2e-16, "float32": 1e-7, "float16": 1e-3, "bfloat16": 8e-3, "float16x2": 1e-3, "bfloat16x2": 8e-3}


def tensors(case) -> list[torch.Tensor]:
    return [torch.as_tensor(x) for x in case]


def assert_right(case, of_sums, of_gradients, **options):
    """Sums by every method, and their pullback."""
    exact, gradients = gauss_sum64(*case[:4]), gradients64(*case)[:3]
    for method in METHODS:
        assert relative_error(gauss_sum(*tensors(case[:4]), method=method, **options), exact) < of_sums, method
    assert_close(gauss_sum_pullback(*tensors(case), **options), gradients, of_gradients)


def naive(queries, keys, values, tau, dtype):
    """Attention logits and weights of the same dtype, as the kernel rounds them: what the tolerance is relative to."""
    q, k, v = (torch.from_numpy(np.asarray(x)).to(dtype) for x in (queries, keys, values))
    scaled = (tau**0.5 * q.float()).to(dtype).float(), (tau**0.5 * k.float()).to(dtype).float()
    weights = torch.exp(-torch.cdist(*scaled).square() / 2).to(dtype).float()
    return (weights @ v.float()).to(dtype)


@pytest.mark.parametrize("precision", EPS)
def test_reductions_and_the_pullback_are_as_exact_as_their_dtype(rng, precision):
    tolerance = {"float64": 1e-13, "float32": 2e-6}.get(precision, 3 * EPS[precision])
    for size in (*SIZES, (300, 200, 16, 32)):
        case = problem(rng, *size, tau=1.0)
        exact, bound = (gauss_sum64(*case[:2], v, case.tau) for v in (case.values, np.abs(case.values)))
        same = naive(*case[:3], 1.0, getattr(torch, kernels.PRECISIONS[precision])).double().numpy()
        for method in METHODS:
            result = gauss_sum(*tensors(case.operands), method=method, precision=precision)
            assert result.dtype == torch.float64
            error = np.abs(result.numpy() - exact).max()
            assert error <= 4 * np.abs(same - exact).max() + 8 * EPS[precision] * bound.max(), (size, method)
        case = case._replace(tau=np.asarray(2.0))
        assert_close(gauss_sum_pullback(*tensors(case), precision=precision), gradients64(*case)[:3], tolerance)


def test_leading_axes_broadcast(rng):
    axes = [(), (1,), (3,), (2, 1), (2, 3), (4, 2, 3), (4, 2, 1), (2, 1, 1, 3), (2, 1, 2, 3)]
    checked = 0
    for shapes in list(itertools.product(axes, axes, axes, [(), (3,), (2, 1)]))[::14]:  # of every kind
        try:
            batch = np.broadcast_shapes(*shapes)
        except ValueError:
            continue
        checked += 1
        sizes = [(*x, *y) for x, y in zip((*shapes[:3], batch), ((5, 2), (7, 2), (7, 3), (5, 3)), strict=True)]
        q, k, v, g = (rng.normal(size=x) for x in sizes)
        assert_right((q, k, v, np.asarray(rng.uniform(0.5, 1.5, size=shapes[3])), g), 1e-13, 1e-12)
    assert checked > 60


@pytest.mark.parametrize(
    "shapes, folded",
    [
        (((4, 5, 2), (7, 2), (7, 3)), [(1, 1, 20, 2), (1, 1, 7, 2), (1, 1, 7, 3)]),  # batch of queries: rows
        (((5, 2), (7, 2), (4, 7, 3)), [(1, 1, 5, 2), (1, 1, 7, 2), (1, 1, 7, 12)]),  # batch of values: channels
        (((4, 5, 2), (4, 7, 2), (7, 3)), [(1, 4, 5, 2), (1, 4, 7, 2), (1, 1, 7, 3)]),
        (((4, 1, 5, 2), (1, 3, 7, 2), (7, 3)), [(4, 1, 5, 2), (1, 3, 7, 2), (1, 1, 7, 3)]),
    ],
)
def test_shared_operands_are_not_copied(shapes, folded):
    q, k, v = (torch.randn(shape) for shape in shapes)
    fold = reductions.Fold(q, k, v, torch.ones(1, 1))
    operands = [fold.fold(q), fold.fold(k), fold.fold(v, of_values=True)]
    assert [tuple(x.shape) for x in operands] == folded
    assert [x.data_ptr() for x in operands[:2]] == [q.data_ptr(), k.data_ptr()]


def test_pullback_does_not_depend_on_the_number_of_threads(rng):
    case, before, found = problem(rng, 50, 21, 3, 2), torch.get_num_threads(), []
    try:
        for threads in (before, 1, 3):
            torch.set_num_threads(threads)
            found.append(gauss_sum_pullback(*tensors(case)))
    finally:
        torch.set_num_threads(before)
    for gradients in found[1:]:
        assert_close(gradients, found[0], 1e-14)


def test_half_precision_pullback_reaches_rows_far_below_its_range(rng):
    case = problem(rng, 40, 60, 4, 2, tau=1.0)
    case = case._replace(queries=case.queries + 5.0)  # Φ near exp(-50): zero in float16
    assert_close(gauss_sum_pullback(*tensors(case), precision="float16"), gradients64(*case)[:3], 2e-2)


@pytest.mark.parametrize("shape", [(4, 2), (1, 2), (5, 1), (3, 5, 2), (5,)])
def test_cotangents_of_another_shape_are_refused(shape):
    with pytest.raises(ValueError, match=r"floating \(5, 2\) on cpu; got torch.float32"):
        gauss_sum_pullback(torch.ones(5, 3), torch.ones(7, 3), torch.ones(7, 2), 1.0, torch.ones(shape))
    with pytest.raises(ValueError, match=r"got torch\.int64"):
        gauss_sum_pullback(torch.ones(5, 3), torch.ones(7, 3), torch.ones(7, 2), 1.0, torch.ones(5, 2).long())


def test_autocast_around_the_call_changes_nothing(rng):
    case = problem(rng, 20, 30, 5, 3, dtype="float32")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_right(case, 1e-6, 1e-6)
        gradients = gauss_sum_pullback(*tensors(case))
    assert_close(gradients, gauss_sum_pullback(*tensors(case)), 1e-7)


@pytest.mark.parametrize("precision", ["float16", "bfloat16", "float16x2", "bfloat16x2", "float32"])
@pytest.mark.parametrize("far", [370.0, 1e5])
def test_an_outlier_changes_nothing_else(rng, precision, far):
    """It moves the center, and every other point away from it: what half precision does not hold is computed again."""
    case = problem(rng, 50, 60, 3, 2, tau=1.0, dtype="float32")
    case.keys[0, 0] = case.queries[0, 0] = far
    assert_right(case, 1e-5, 1e-4, precision=precision)


@pytest.mark.parametrize("precision", ["float16", "float32", "float64"])
@pytest.mark.parametrize("far", [1e9, 1e30])
def test_points_beyond_every_precision_are_reported(rng, precision, far):
    case = problem(rng, 50, 60, 3, 2, tau=1.0, dtype="float32")
    case.keys[0, 0] = case.queries[0, 0] = far
    with pytest.warns(UserWarning, match="lie farther from their center"):
        assert torch.isfinite(gauss_sum(*tensors(case.operands), precision=precision)).all()
    with pytest.warns(UserWarning, match="lie farther from their center"):
        assert all(torch.isfinite(x).all() for x in gauss_sum_pullback(*tensors(case), precision=precision))


@pytest.mark.parametrize("keys", [1, 3])
def test_half_precision_sums_over_many_queries_do_not_overflow(rng, keys):
    """dv and dk sum 100000 terms of one sign, in a kernel whose results end at 65504."""
    q, k, v, tau, g = tensors(problem(rng, 100_000, keys, 2, 3, positive=True))
    q, g = 0.1 * q + 1.0, torch.full_like(g, 1e4)
    exact = gradients64(q, k, v, tau, g)[:3]
    assert_close(gauss_sum_pullback(q, k, v, tau, g, precision="float16"), exact, 1e-3)


def test_autograd_differentiates_reweight_and_is_refused_where_it_would_be_wrong(rng):
    case = problem(rng, 20, 30, 5, 3)
    *operands, g = (x.requires_grad_() for x in tensors(case))
    ours = torch.autograd.grad((gauss_sum(*operands, method="reweight") * g).sum(), operands)
    assert_close(ours, gradients64(*case), 1e-12)
    for method in ("rescale", "prescale"):
        with pytest.raises(ValueError, match="got tensors that require a gradient"):
            gauss_sum(*operands, method=method)
        with torch.no_grad():
            gauss_sum(*operands, method=method)


def test_reweight_is_the_public_function(rng):
    """To the bit, and for autograd; no setting of the process is touched on the way, which other threads might see."""
    operands = [
        torch.from_numpy(x)[None, None] for x in problem(rng, 52, 70, 4, 4)[:3]
    ]  # rows by fours: others are filled up
    kernel, results = select_kernel("cpu", "float64", "cpu", torch.float64, 4), []

    def attend(*tensors, **options):
        results.append(attention.attention(*tensors, **options)[0])
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            results.append(torch.nn.functional.scaled_dot_product_attention(*tensors[:3], scale=1.0))
        return results[0], None

    METHODS["reweight"](*operands, kernel, attend)
    assert torch.equal(*results)
    source = "".join(Path(module.__file__).read_text() for module in (operators, attention))
    assert "sdpa_kernel" not in source and "torch.backends" not in source


@pytest.mark.parametrize("shape", [(0, 5, 2, 3), (4, 0, 2, 3), (4, 5, 2, 0), (0, 0, 2, 3)])
def test_empty_operands_give_zeros_and_never_reach_the_kernel(shape):
    m, n, d, c = shape
    q, k, v = torch.ones(m, d), torch.ones(n, d), torch.ones(n, c)
    for method in METHODS:
        result = gauss_sum(q, k, v, method=method)
        assert result.shape == (m, c) and not result.any()
        assert gauss_sum(q.expand(0, m, d), k, v, method=method).shape == (0, m, c)
    assert [x.shape for x in gauss_sum_pullback(q, k, v, 1.0, torch.ones(m, c))] == [q.shape, k.shape, v.shape]


def test_strided_operands_are_packed(rng):
    *operands, tau, g = tensors(problem(rng, 20, 30, 16, 16))
    strided = [x.T.contiguous().T for x in operands]
    assert not strided[0].is_contiguous()
    for layout_ in (strided, [torch.stack([x, -x], -1).flatten(-2)[:, ::2] for x in operands]):
        assert_right((*layout_, tau, g), 1e-13, 1e-13)


@pytest.mark.parametrize("channels", [1, 40, 300])
def test_channels_are_summed_in_blocks_where_the_kernel_is_narrow(rng, channels, monkeypatch):
    module = sys.modules["torch_backend.gauss_sum"]  # the package exports the function of its name
    monkeypatch.setattr(module, "select_kernel", lambda *args: replace(select_kernel(*args), max_width=16))
    assert_right(problem(rng, 9, 11, 4, channels), 1e-13, 1e-13)


@pytest.mark.parametrize("precision, tolerance", [("float64", 1e-12), ("float16", 5e-3)])
def test_many_points_take_several_calls(rng, precision, tolerance, monkeypatch):
    """Chunks of 16 queries and of 16 keys of 40 and 50; keys and queries are shared by a batch of values."""
    queries, keys, values, tau, _ = problem(rng, 40, 50, 3, 2)
    case = queries, keys, np.stack([values, 2 * values]), tau, rng.normal(size=(2, 40, 2))
    weighted = *tensors(case[:4]), torch.from_numpy(values).abs().log()[..., :1]
    whole_means, calls, attend = torch_backend.log_gauss_sum(*weighted), [], operators._cpu
    monkeypatch.setitem(operators.FORWARD, "cpu", lambda *x: (calls.append(1), attend(*x))[1])
    monkeypatch.setattr(attention, "MAX_POINTS", 16)
    assert_right(case, tolerance, tolerance, precision=precision)
    assert len(calls) >= 3 * 4
    assert_close(torch_backend.log_gauss_sum(*weighted, precision=precision), whole_means, tolerance)


@pytest.mark.parametrize(("dim", "channels"), [(257, 1), (300, 700), (1024, 257), (16, 4096)])
def test_wide_points_and_values(rng, dim, channels):
    case = problem(rng, 70, 50, dim, channels, dtype="float32")
    assert relative_error(gauss_sum(*tensors(case.operands)), gauss_sum64(*case.operands)) < 5e-6
    assert_close(gauss_sum_pullback(*tensors(case)), gradients64(*case)[:3], 5e-6)


def test_a_million_keys_keep_their_digits(rng):
    """Where one call would lose three: all terms alike."""
    keys, values = torch.from_numpy(rng.uniform(-1, 1, size=(2**20, 1))), torch.from_numpy(rng.uniform(size=(2**20, 3)))
    exact = gauss_sum(keys[:2], keys, values)
    result = gauss_sum(*(x.float() for x in (keys[:2], keys, values)))
    assert relative_error(result, exact) < 2e-6


def test_no_operand_has_more_elements_than_32_bits_count():
    for name, dim, channels in (("flash", 254, 1), ("flash", 3, 4096), ("efficient", 2000, 1), ("efficient", 3, 5000)):
        kernel = torch_backend.KERNELS[name]
        at_once = kernel.channels(channels)
        operand = torch.empty(0, kernel.width(max(kernel.columns(dim), at_once)))
        points = attention._most_points(operand)
        assert points * operand.shape[1] < 2**31 and at_once == min(channels, 256 if name == "flash" else channels)
        assert points < 2**28  # κ of Algorithm 2


def test_large_batches(rng):
    """More than CUDA's grid holds; heads likewise."""
    case = problem(rng, 70_000, 3, 2, 1)
    queries, keys = case.queries.reshape(70_000, 1, 2), rng.normal(size=(70_000, 3, 2))
    exact = gauss_sum64(queries, keys, case.values, case.tau)
    for method, batch in itertools.product(METHODS, ((70_000,), (1, 70_000))):
        operands = tensors((queries.reshape(*batch, 1, 2), keys.reshape(*batch, 3, 2), case.values, case.tau))
        assert relative_error(gauss_sum(*operands, method=method), exact.reshape(*batch, 1, 1)) < 1e-13


def test_padding_costs_nothing_beside_the_rounding_of_the_width():
    """The widths that the reductions run at for D = 3, 16, 30, 64 and one channel."""
    half = select_kernel("cpu", "float16", "cpu", torch.float32, 3)
    flash = torch_backend.KERNELS["flash"]
    assert [half.width(d + half.norm_columns) for d in (3, 16, 30, 64)] == [16, 18, 32, 66]
    assert [flash.width(d + 2) for d in (3, 16, 30, 64)] == [8, 24, 32, 72]
    assert [half.width(w) for w in (1, 2, 15, 16, 17)] == [1, 16, 16, 16, 17]


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"method": "softmax"}, ValueError, "got 'softmax'"),
        ({"precision": "float8"}, ValueError, "got 'float8'"),
        ({"backend": "triton"}, ValueError, "got 'triton'"),
        ({"backend": "flash"}, ValueError, "must be one for cpu, .*; got 'flash'"),
        ({"queries": torch.ones(4, 2, dtype=torch.int32)}, TypeError, "got torch.int32"),
        ({"queries": torch.ones(4, 2).to(torch.float8_e5m2)}, TypeError, "got torch.float8_e5m2"),
        ({"queries": [[1.0, 2.0]]}, TypeError, "got list"),
        ({"queries": torch.ones(2)}, ValueError, r"got \(2,\)"),
        ({"queries": torch.ones(4, 3)}, ValueError, r"got queries \(4, 3\), keys \(5, 2\)"),
        ({"queries": torch.ones(4, 0), "keys": torch.ones(5, 0)}, ValueError, r"got queries \(4, 0\)"),
        ({"values": torch.ones(4, 1)}, ValueError, r"got queries .*, values \(4, 1\)"),
        ({"tau": torch.ones(3), "keys": torch.ones(2, 5, 2)}, ValueError, r"tau \(3,\)"),
        ({"queries": torch.ones(4, 2, device="meta")}, ValueError, "got cpu, meta"),
    ],
)
def test_wrong_arguments_are_named(change, error, message):
    call = {"queries": torch.ones(4, 2), "keys": torch.ones(5, 2), "values": torch.ones(5, 1), "tau": 1.0} | change
    with pytest.raises(error, match=message):
        gauss_sum(**call)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("auto", "auto", "meta", torch.float32, 3), "got device meta"),
        (("cpu", "auto", "cuda", torch.float32, 3), "must be one for cuda, .*; got 'cpu'"),
        (("flash", "float64", "cuda", torch.float32, 3), "got float64"),
        (("flex", "auto", "cpu", torch.float32, 3), "must be one for cpu, .*; got 'flex'"),
        (("auto", "auto", "cuda", torch.float64, 3), "got float64"),
        (("cudnn", "auto", "cuda", torch.float16, 200), "got points of dimension 200"),
    ],
)
def test_kernels_that_cannot_run_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        select_kernel(*arguments)


@pytest.mark.parametrize(
    "arguments, name, dtype",
    [
        (("auto", "auto", "cpu", torch.float16, 3), "cpu", "float32"),
        (("auto", "auto", "cpu", torch.float64, 3), "cpu", "float64"),
        (("auto", "auto", "cuda", torch.float32, 252), "flash", "float16"),
        (("auto", "auto", "cuda", torch.bfloat16, 3), "flash", "bfloat16"),
        (("auto", "auto", "cuda", torch.float32, 253), "efficient", "float16"),
        (("auto", "float32", "cuda", torch.float16, 3), "efficient", "float32"),
    ],
)
def test_auto_selects_a_kernel_that_fits(arguments, name, dtype):
    kernel = select_kernel(*arguments)
    assert (kernel.name, kernel.dtype) == (name, dtype)


@pytest.mark.parametrize("cudnn, version", [(lambda: 91900, 91900), (lambda: None, 0), (lambda: 1 / 0, 0)])
def test_the_card_is_the_least_of_several(monkeypatch, cudnn, version):
    found = [SimpleNamespace(name=name, major=major, minor=0) for name, major in (("H", 9), ("A", 8), ("B", 10))]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(found))
    monkeypatch.setattr(torch.cuda, "get_device_properties", found.__getitem__)

    def asked():
        try:
            return cudnn()
        except ZeroDivisionError as error:
            raise RuntimeError("cuDNN version incompatibility") from error

    monkeypatch.setattr(torch.backends.cudnn, "version", asked)
    assert devices.card.__wrapped__() == ("A", (8, 0), version)
    found.clear()
    assert devices.card.__wrapped__() == ("no CUDA device", (8, 0), 0)
    assert str(devices.Card("A", (8, 0), 91504)) == "A, compute capability 8.0, cuDNN 9.15.4"


def test_a_missing_operator_says_how_to_get_a_torch_that_has_it():
    with pytest.raises(ImportError, match="pip install --upgrade jaxgauss"):
        operators._aten("flash_attention_of_the_future")


@pytest.mark.slow
def test_torch_backend_does_not_import_jax():
    code = "import sys; sys.modules['jax'] = None; import torch_backend"  # importing jax would be an ImportError
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("precision", ["float16", "float16x2", "float32"])
@pytest.mark.parametrize("rows", [1.0, 0.0, 1e-20])
def test_the_pullback_takes_what_the_sum_has_left(rng, precision, rows):
    """Without a pass of its own; or knows that it cannot, where half precision has left rows out of it."""
    q, k, v, _, g = (x.float() for x in tensors(problem(rng, 50, 60, 4, 3)))
    v[:20] *= rows
    kernel, shape = select_kernel("cpu", precision, "cpu", "float32", 4), (50, 3)
    total, log_sum, _ = torch_backend.fused_sum("rescale", q, k, v, kernel, attention.attention, with_log=True)
    assert relative_error(total, gauss_sum64(q, k, v, 1.0)) < 1e-3 and total.shape == shape
    passes = []

    def attend(*operands, **options):
        passes.append(1)
        return attention.attention(*operands, **options)

    engine = torch_backend.ENGINE._replace(attend=attend)
    own = torch_backend.fused_pullback(q, k, v, g, kernel, engine, exact=False)
    assert len(passes) == 1
    *ours, largest = torch_backend.fused_pullback(q, k, v, g, kernel, engine, exact=False, log_sum=log_sum)
    assert len(passes) == 1
    assert_close(ours, own[:3], 1e-5 if precision == "float32" else 5e-3)
    assert (largest == 0) == (precision != "float32" and rows == 1e-20)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_that_fill_up_a_backward_pass_change_nothing(dtype):
    """Of so many queries that keys are filled up; exp of a logit of zero, minus this log-sum-exp, would overflow."""
    num, keys, log = 601 * torch.get_num_threads(), 5, -2000.0
    rows = torch.linspace(0.5, 1, num, dtype=dtype)[None, None, :, None].expand(1, 1, num, 16)
    queries, k = torch.zeros_like(rows), torch.zeros(1, 1, keys, 16, dtype=dtype)
    queries[..., 0], k[..., 0] = 1, log
    v, kernel = torch.ones_like(k), select_kernel("auto", "auto", "cpu", dtype, 3)
    found = torch_backend.ENGINE.pullback(rows, queries, k, v, torch.full_like(rows[..., :1], log), kernel)
    total = rows.sum(2, keepdim=True)
    for ours, exact in zip(found, (keys * 16 * rows * k[:, :, :1], 16 * total * queries[:, :, :1], total), strict=True):
        torch.testing.assert_close(ours, exact.expand_as(ours), rtol=1e-5, atol=0)
