"""Shapes, strides and dtypes of results: PyTorch's own meta functions, on fake CUDA tensors, against the stand-ins."""

import itertools

import pytest
import torch
import torch._meta_registrations as meta
from torch._subclasses import fake_impls, fake_tensor

from torch_backend import operators

pytestmark = [pytest.mark.usefixtures("cuda"), pytest.mark.emulated]

LAYOUTS = {
    "rows one after another": lambda make, b, h, n, w: make(b, h, n, w),
    "heads inside": lambda make, b, h, n, w: make(b, n, h, w).transpose(1, 2),
    "shared": lambda make, b, h, n, w: make(1, 1, n, w).expand(b, h, n, w),
}
CASES = [
    *itertools.product(("flash",), ("float16", "bfloat16"), (8, 64, 256)),
    *itertools.product(("cudnn",), ("float16", "bfloat16"), (8, 128)),
    *itertools.product(("efficient",), ("float16", "float32"), (8, 64, 264)),
]
SIZES = [(2, 3, 37, 41), (1, 1, 1, 50), (1, 2, 64, 1)]


@fake_impls.register_op_impl(torch.ops.aten._efficient_attention_backward.default)
def _(mode, _, g, q, k, v, bias, out, *rest, scale=None, **options):
    """PyTorch's own meta function has no argument for `out`, which the operator has: a TypeError."""
    with mode:
        return meta.meta__efficient_attention_backward(g, q, k, v, bias, *rest, scale=scale)


@pytest.fixture
def fake(monkeypatch):
    """Tensors of a CUDA device of which only shapes, strides and dtypes are computed."""

    def item(x, index):  # a PyTorch without CUDA refuses x[...] of such a tensor, not the operators beneath it
        index = index if isinstance(index, tuple) else (index,)
        if index[0] is Ellipsis:
            index = (*[slice(None)] * (x.ndim - len(index) + 1), *index[1:])
        axis = 0
        for i in index:
            if isinstance(i, int):
                x = torch.ops.aten.select.int(x, axis, i)
                continue
            x = torch.ops.aten.slice.Tensor(x, axis, i.start, i.stop) if i != slice(None) else x
            axis += 1
        return x

    monkeypatch.setattr(fake_tensor.FakeTensor, "__getitem__", item)
    with torch.no_grad(), fake_tensor.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        yield mode


def described(results, dense):
    """Shapes, dtypes and strides, but those of an axis of length one, of which nobody can tell.

    Of expanded operands the meta functions tell other strides than `empty_like` has, which C++ calls.
    """
    strides = ([s for s, size in zip(x.stride(), x.shape, strict=True) if size > 1 and dense] for x in results)
    return [(tuple(x.shape), x.dtype, own) for x, own in zip(results, strides, strict=True)]


def results(make, name, layout, sizes, width, gated):
    """Of the forward and of the backward pass, by one of our functions around an operator."""
    batch, heads, num_queries, num_keys = sizes
    made = {n: LAYOUTS[layout](make, batch, heads, n, width) for n in (num_queries, num_keys)}
    g, q, k, v = (made[n] for n in (num_queries, num_queries, num_keys, num_keys))
    lse = make(batch, heads, num_queries, 1, dtype=torch.float32)
    if not gated:
        forward, backward = operators.FORWARD[name](q, k, v), operators.BACKWARD[name](g, q, k, v, lse)
        return described(forward, layout != "shared"), described(backward, layout != "shared")
    gate = make(dtype=torch.bool)
    forward = operators.efficient_gated(q, k, v, gate=gate)
    backward = operators.efficient_gated_backward(g, q, k, v, lse, gate=gate)
    # its meta function has `empty_like` for gradients, C++ (attention_backward.cu) rows one after another
    return described(forward, True), described(backward, False)


# cuDNN gets copies of other layouts, which a PyTorch without CUDA cannot make.
ALL = [(*case, layout) for case in CASES for layout in list(LAYOUTS)[: 1 if case[0] == "cudnn" else None]]


@pytest.mark.parametrize("name, dtype, width, layout", ALL)
def test_results_are_laid_out_as_cuda_lays_them_out(fake, name, dtype, width, layout):
    own = getattr(torch, dtype)

    def maker(device):
        return lambda *shape, dtype=own: torch.zeros(shape, dtype=dtype, device=device)

    for sizes, gated in itertools.product(SIZES, (False, True) if name == "efficient" else (False,)):
        case = name, layout, sizes, width, gated
        expected = results(maker("cuda"), *case)
        with fake_tensor.unset_fake_temporarily():
            assert results(maker("cpu"), *case) == expected
