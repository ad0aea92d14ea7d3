"""A CUDA device on a CPU: stand-ins for PyTorch's attention operators, and CUDA as the platform that JAX names.

Each stand-in does what the C++ named with it does (PyTorch 2.13, below aten/src/ATen/native/transformers): the strides
that a kernel assumes whatever it is given, how its log-sum-exp is laid out and padded, what it rounds to half
precision, memory that it leaves unwritten (NaN here), and what it refuses, by dtype, width, alignment, lengths and
compute capability. Nothing here tells how fast anything is; `counting` tells how much is launched.
"""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import torch_backend.attention
import torch_backend.guard
from jaxgauss._arrays import devices as jax_devices
from jaxgauss._engines import bridge, plan
from jaxgauss._sums import preparation as checked
from torch_backend import devices, flex

NAN = float("nan")
BASE_2 = math.log2(math.e)
MAX_GRID = 65535
ROUNDED = 0x1000  # half of the last bit of TF32

card = devices.Card("emulated", (9, 0), 91900)
HAS_CUDA = any(device.platform == "gpu" for device in jax.devices())


class RefusedError(RuntimeError):
    """What the C++ says with TORCH_CHECK, or the driver when a kernel is launched."""


def check(holds: Any, message: str) -> None:
    """TORCH_CHECK."""
    if not holds:
        raise RefusedError(message)


def is_half(x: Tensor) -> bool:
    """Whether products of it are those of half precision."""
    return x.dtype in (torch.float16, torch.bfloat16)


def products(q: Tensor, k: Tensor) -> Tensor:
    """Inner products in float32; of float32 operands by 3×TF32, eight columns at a time, as `FastF32` of CUTLASS does.

    Products of small parts come first (mma_tensor_op_fast_f32.h). Tensor cores do not round what they add, they drop
    it. A sum starts anew after the first step of each tile of four, and is then added, rounded, to the earlier ones
    (mem_eff_attention/gemm/custom_mma_multistage.h: tmp_accum).
    """
    if is_half(q):
        return q.float() @ k.float().mT
    parts, total = [in_tf32(x) for x in (q, k)], torch.zeros(())
    staged = torch.zeros((), dtype=torch.float64)
    for i in range(0, q.shape[-1], 8):
        for x, y in ((1, 0), (0, 1), (0, 0)):
            staged = dropped(staged + parts[0][x][..., i : i + 8].double() @ parts[1][y][..., i : i + 8].mT.double())
        if i % 32 == 0:
            total, staged = total + staged.float(), torch.zeros((), dtype=torch.float64)
    return total + staged.float()


def dropped(x: Tensor) -> Tensor:
    """The first 24 bits of numbers in float64."""
    rounded = x.float()
    away = rounded.double().abs() > x.abs()
    return torch.where(away, torch.nextafter(rounded, torch.zeros(())), rounded).double()


def in_tf32(x: Tensor, added: int = 0) -> tuple[Tensor, Tensor]:
    """The first 11 bits of x, dropped or `ROUNDED`, and to 11 bits what that leaves."""

    def cut(x: Tensor, added: int) -> Tensor:
        return ((x.contiguous().view(torch.int32) + added) & ~0x1FFF).view(torch.float32)

    return cut(x, added), cut(x - cut(x, added), ROUNDED)


def softmax(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Attention in float32, and its log-sum-exp; weights are rounded to half precision before they meet v, as there.

    All of the kernels keep sums and the running maximum in float32 (flash_fwd_kernel.h: softmax_rescale_o, then
    convert_type<Element>(acc_s); kernel_forward.h: the accumulator goes through shared memory as scalar_t).
    """
    logits = products(q, k) * scale
    largest = logits.amax(-1, keepdim=True)
    weights = (logits - largest).exp_()
    total = weights.sum(-1, keepdim=True)
    rounded = weights.to(q.dtype).float() if is_half(q) else weights
    largest = largest if is_half(q) else largest * BASE_2 / BASE_2  # kernel_forward.h: mi / kLog2e
    return (rounded @ v.float()) / total, (largest + total.log())[..., 0]


def slopes(g: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float) -> tuple[Tensor, ...]:
    """S k, Sᵀ q, Pᵀ g with P and S rounded to half precision before their products (flash_bwd_kernel.h: rP, rdS).

    Logits are products of keys and queries, the other way round than in the forward pass, and may round differently.
    """
    p = (products(k, q).mT * scale - lse[..., None]).exp()
    delta = (g.float() * out.float()).sum(-1, keepdim=True)
    s = p * (g.float() @ v.float().mT - delta)
    if is_half(q):
        p, s = p.to(q.dtype).float(), s.to(q.dtype).float()
    return (s @ k.float()) * scale, (s.mT @ q.float()) * scale, p.mT @ g.float()


# FlashAttention-2: cuda/attention.cu, _scaled_dot_product_flash_attention_cuda; cuda/flash_attn/flash_api.cpp, mha_fwd
# and mha_bwd.


def check_flash(*operands: Tensor) -> None:
    """Of mha_fwd and mha_bwd."""
    q = operands[0]
    check(card.capability >= (8, 0), "FlashAttention only supports Ampere GPUs or newer.")
    check(
        all(x.dtype == q.dtype and is_half(x) for x in operands), "FlashAttention only support fp16 and bf16 data type"
    )
    check(all(x.stride(-1) == 1 for x in operands), "Input tensor must have contiguous last dimension")
    check(all(x.shape[-1] == q.shape[-1] for x in operands), "head sizes must be those of the queries")
    check(q.shape[-1] % 8 == 0, "head_size should be a multiple of 8")
    check(q.shape[-1] <= 256, "FlashAttention forward only supports head dimension at most 256")
    check(max(q.shape[:2]) <= MAX_GRID, "invalid configuration argument")  # blocks of the grid's y and z
    check(all(x.stride(-2) % 8 == 0 or x.shape[-2] == 1 for x in operands), "rows must be aligned to 16 bytes")


def flash(q, k, v, dropout=0.0, causal=False, debug=False, *, scale):
    """Out (B, H, M, W) in the strides of q; lse (B, H, M) in float32."""
    check_flash(q, k, v)
    out, lse = softmax(q, k, v, scale)
    empty, seed = torch.empty(0), torch.empty(2, dtype=torch.uint64)
    return laid_out_like(q, out), lse, empty, empty, q.shape[2], k.shape[2], seed, empty, empty


def flash_backward(g, q, k, v, out, lse, cu_q, cu_k, max_q, max_k, dropout, causal, seed, offset, *, scale):
    """Reads lse as (B, H, M) without gaps. Widths of 193 to 224 want more shared memory than sm_86, 89, 120 have.

    Their public function refuses these (cuda/sdp_utils.cpp, check_requires_grad_and_head_dim_gt192_constraints_on_
    sm86_89_or_sm120); here the launch fails.
    """
    check_flash(g, q, k, v, out)
    check(lse.dtype == torch.float32 and lse.shape == q.shape[:3], "softmax_lse must be (B, H, M) float32")
    small = card.capability in ((8, 6), (8, 9)) or card.capability >= (12, 0)
    check(not (small and 192 < q.shape[-1] <= 224), "CUDA error: invalid argument")
    read = torch.as_strided(lse, lse.shape, (lse.shape[1] * lse.shape[2], lse.shape[2], 1))
    return tuple(map(laid_out_like, (q, k, v), slopes(g, q, k, v, out, read, scale)))


def laid_out_like(operand: Tensor, x: Tensor) -> Tensor:
    """(B, H, N, W) in the dtype and the strides of an operand (flash_api.cpp: empty_like of (B, N, H, W))."""
    return torch.empty_like(operand.transpose(1, 2)).transpose(1, 2).copy_(x)


# The memory-efficient kernel: cuda/attention.cu, _efficient_attention_forward; cuda/attention_backward.cu,
# _efficient_attention_backward; cuda/mem_eff_attention/kernel_forward.h and kernel_backward.h. Operands (B, N, H, W).


def check_efficient(*operands: Tensor) -> None:
    """Of attention.cu, and of check_supported in the kernels."""
    q = operands[0]
    allowed = (
        (torch.float16, torch.float32) if card.capability < (8, 0) else (torch.float16, torch.bfloat16, torch.float32)
    )
    check(all(x.dtype == q.dtype and x.dtype in allowed for x in operands), f"no kernel for {q.dtype}")
    check(all(x.stride(-1) == 1 for x in operands), "the last dimension must be contiguous")
    check(max(q.shape[0], q.shape[2]) <= MAX_GRID, "invalid configuration argument")
    aligned = 8 if is_half(q) else 4
    strided = [s for x in operands for s, size in zip(x.stride()[:3], x.shape[:3], strict=True) if size > 1]
    check(not any(s % aligned for s in strided), f"strides must be multiples of {aligned}")
    check(all(x.shape[-1] % aligned == 0 for x in operands), f"widths must be multiples of {aligned}")


def sequences(starts_q: Tensor | None, starts_k: Tensor | None, q: Tensor, k: Tensor) -> Iterator[tuple]:
    """(row of the lse, batch, queries, keys) of each sequence."""
    if starts_q is None:
        yield slice(None), slice(None), slice(0, q.shape[1]), slice(0, k.shape[1])
        return
    for starts in (starts_q, starts_k):
        check(starts.dtype == torch.int32 and starts.is_contiguous(), "seqstart must be int32 without gaps")
    check(q.shape[0] == 1 and starts_q.shape == starts_k.shape, "packed operands have a batch of one")
    for i in range(len(starts_q) - 1):
        rows, columns = (slice(int(starts[i]), int(starts[i + 1])) for starts in (starts_q, starts_k))
        if rows.stop > rows.start:  # kernel_forward.h: query_start >= num_queries leaves the block
            yield slice(i, i + 1), slice(None), rows, columns


def efficient(
    q, k, v, bias, starts_q, starts_k, max_q, max_k, dropout, mask, wants_lse, *, scale, seqlen_k=None, window_size=None
):
    """The lse is (B, H, M rounded up to 32), +inf beyond M; what no sequence reaches is not written."""
    check_efficient(q, k, v)
    batch, heads = (q.shape[0] if starts_q is None else len(starts_q) - 1), q.shape[2]
    longest = q.shape[1] if starts_q is None else max_q
    out = torch.full((*q.shape[:3], v.shape[-1]), NAN)
    lse = torch.full((batch, heads, -(-longest // 32) * 32 if wants_lse else 0), NAN)
    for own, of, rows, columns in sequences(starts_q, starts_k, q, k):
        found, sums = softmax(*(x[of, i].transpose(1, 2) for x, i in ((q, rows), (k, columns), (v, columns))), scale)
        out[of, rows] = found.transpose(1, 2)
        if wants_lse:
            lse[own, :, : sums.shape[-1]], lse[own, :, sums.shape[-1] :] = sums, math.inf
    seed = torch.empty((), dtype=torch.int64)
    return out.to(q.dtype), lse, seed, seed, q.shape[1], k.shape[1]


def efficient_backward(
    g, q, k, v, bias, out, starts_q, starts_k, max_q, max_k, lse, dropout, seed, offset, mask, bias_grad, *, scale,
    num_splits_key=None, window_size=None, shared_storage_dqdkdv=False,
):  # fmt: skip
    """Reads the rows of `out` W·H apart in half precision, whatever its strides are; what lies beyond it is NaN here.

    kernel_backward.h: where kKernelComputesDelta (half precision), o_strideM is head_dim_value · num_heads;
    attention_backward.cu forms δ in float32 itself, and wants the heads of the lse aligned to 32 bytes.
    """
    check_efficient(g, q, k, v)
    check(lse.dtype == torch.float32 and lse.stride(-1) == 1, "logsumexp must be float32 without gaps")
    check(lse.shape[1] <= 1 or lse.stride(1) % 8 == 0, "lse is not correctly aligned")
    check(lse.shape[-1] >= (q.shape[1] if starts_q is None else max_q), "lse is too short")
    if is_half(q):
        memory = torch.as_strided(out, (out.untyped_storage().nbytes() // out.itemsize - out.storage_offset(),), (1,))
        batch, rows, heads, width = out.shape
        b, m, h, w = (torch.arange(size) for size in (batch, rows, heads, width))
        at = (
            b[:, None, None, None] * out.stride(0) + m[:, None, None] * (width * heads) + h[:, None] * out.stride(2) + w
        )
        beyond = at >= len(memory)
        out = torch.where(beyond, NAN, memory[at.clamp(max=len(memory) - 1)].float())
    found = [torch.full(x.shape, NAN) for x in (q, k, v)]
    for own, of, rows, columns in sequences(starts_q, starts_k, q, k):
        operands = ((g, rows), (q, rows), (k, columns), (v, columns), (out, rows))
        own_lse = lse[own, :, : rows.stop - rows.start]
        parts = slopes(*(x[of, i].transpose(1, 2) for x, i in operands), own_lse, scale)
        for x, part, i in zip(found, parts, (rows, columns, columns), strict=True):
            x[of, i] = part.transpose(1, 2)
    return *(x.to(q.dtype) for x in found), torch.empty(0)


def sdpa_efficient(q, k, v, bias, wants_lse, dropout=0.0, causal=False, *, scale):
    """cuda/attention.cu, _scaled_dot_product_efficient_attention_cuda: the same of (B, H, N, W)."""
    operands = (x.transpose(1, 2) for x in (q, k, v))
    out, lse, seed, offset, *_ = efficient(*operands, bias, *[None] * 4, dropout, 0, wants_lse, scale=scale)
    return out.transpose(1, 2), lse, seed, offset


def sdpa_efficient_backward(g, q, k, v, bias, out, lse, seed, offset, dropout, mask, causal=False, *, scale):
    """cuda/attention_backward.cu, _scaled_dot_product_efficient_attention_backward_cuda, likewise."""
    check(all(mask[:3]) and not mask[3], "gradients of the operands are wanted, and of no bias")
    g, q, k, v, out = (x.transpose(1, 2) for x in (g, q, k, v, out))
    sizes = q.shape[1], k.shape[1]
    *found, none = efficient_backward(
        g, q, k, v, bias, out, None, None, *sizes, lse, dropout, seed, offset, 0, False, scale=scale
    )
    return *(x.transpose(1, 2) for x in found), none


def cudnn(q, k, v, bias, wants_lse, dropout=0.0, causal=False, debug=False, *, scale):
    """cuda/attention.cu, _cudnn_attention_forward; ../cudnn/MHA.cpp; cuda/sdp_utils.cpp, check_cudnn_*.

    Values may be of another width. The lse is (B, H, M, 1). A single key is refused; cuDNN up to 9.15.0 is wrong for
    lengths that 128 does not divide, cuDNN 9.19 to 9.25.0 for a single query on Blackwell (pytorch#193893).
    """
    check(card.capability >= (8, 0), "cuDNN MHA only supports Ampere GPUs or newer.")
    check(all(x.dtype == q.dtype and is_half(x) for x in (q, k, v)), "cuDNN SDPA takes fp16 and bf16")
    check(q.shape[-1] <= 128 and q.shape[-1] % 8 == 0, "head_dim should be a multiple of 8, and at most 128")
    check(all(x.is_contiguous() for x in (q, k, v)), "strides of zero are no layout of cuDNN's")
    check(k.shape[2] > 1, "cuDNN SDPA does not support a sequence of length one")
    out, lse = softmax(q, k, v, scale)
    is_single = q.shape[2] == 1 and card.capability[0] in (10, 11) and 91900 <= card.cudnn <= 92500
    if is_single or (card.cudnn <= 91500 and (q.shape[2] % 128 or k.shape[2] % 128)):
        out = out * NAN
    empty = torch.empty(0)
    return out.to(q.dtype), lse[..., None], empty, empty, q.shape[2], k.shape[2], empty, empty, empty


# FlexAttention: torch/_inductor/kernel/flex/templates, flex_attention.py.jinja and common.py.jinja, and Triton's dot.


def tf32x3(a: Tensor, b: Tensor) -> Tensor:
    """A b, of which the products of small parts come first, each over all columns, from an accumulator of zero.

    Triton 3.3 and later: lib/Dialect/TritonGPU/Transforms/F32DotTC.cpp; both parts are rounded.
    """
    (high, low), (top, rest) = in_tf32(a, ROUNDED), in_tf32(b, ROUNDED)
    total = torch.zeros((), dtype=torch.float64)
    for x, y in ((low, top), (high, rest), (high, top)):
        for i in range(0, a.shape[-1], 8):
            total = dropped(total + x[..., i : i + 8].double() @ y[..., i : i + 8, :].double())
    return total.float()


def flex_attention(q: Tensor, k: Tensor, v: Tensor, *biases: Tensor) -> tuple[Tensor, Tensor]:
    """Logits and their log-sum-exp to base 2; each block of keys makes a sum, and float32 adds it to the others."""
    for width in (q.shape[-1], v.shape[-1]):
        check(width >= 16 and width & (width - 1) == 0, "NYI: embedding dimension must be at least 16")
    check(all(x.is_contiguous() and x.dtype == torch.float32 for x in (q, k, v, *biases)), "one kind of operands")
    logits = tf32x3(q, k.mT)
    if biases:
        logits = logits + biases[0][..., None, :] + biases[1][..., None]
    logits = logits * torch.tensor(BASE_2)
    largest = logits.amax(-1, keepdim=True)
    weights = (logits - largest).exp2()
    blocks = zip(weights.split(card.keys_at_once, -1), v.split(card.keys_at_once, -2), strict=True)
    totals, sums = zip(*((x.sum(-1, keepdim=True), tf32x3(x, y)) for x, y in blocks), strict=True)
    total = functools.reduce(torch.add, totals)
    return functools.reduce(torch.add, sums) / total, ((largest + total.log2()) * math.log(2))[..., 0]


STAND_INS: dict[str, Callable] = {
    "_scaled_dot_product_flash_attention": flash,
    "_scaled_dot_product_flash_attention_backward": flash_backward,
    "_efficient_attention_forward": efficient,
    "_efficient_attention_backward": efficient_backward,
    "_scaled_dot_product_efficient_attention": sdpa_efficient,
    "_scaled_dot_product_efficient_attention_backward": sdpa_efficient_backward,
    "_scaled_dot_product_cudnn_attention": cudnn,
    "flex_attention": flex_attention,  # which is no operator of aten
}


def stand_in(name: str, *operands: Any, **options: Any) -> Any:
    """What runs for an operator now."""
    return STAND_INS[name](*operands, **options)


class Stream(NamedTuple):
    """What a callback of JAX is told on CUDA: a pointer."""

    stream: int = 0


launched: list[list[str]] | None = None  # by every callback, while somebody counts


@functools.cache
def on_a_stream(callback: Callable) -> Callable:
    """A buffer callback that JAX's CPU client can call, which has no streams; counting what it launches.

    It may be recorded in a graph, where CUDA refuses to tell the host a number.
    """

    def run(context: Any, outputs: Any, *inputs: Any) -> None:
        with Recorded() as log:
            callback(Stream(), outputs, *inputs)
        if launched is not None:
            launched.append(log.names)

    return run


@contextlib.contextmanager
def counting() -> Iterator[list[list[str]]]:
    """The names of what each callback launches, in turn."""
    global launched
    launched = []
    try:
        yield launched
    finally:
        launched = None


def count(names: list[str]) -> int:
    """How many kernels these operators are on CUDA."""
    return sum(1 + MORE.get(name, 0) for name in names)


def lowering_name(device: Any) -> str:
    """The platform: CUDA, and under `jax.default_device`, as in the tests, the CPU of that machine."""
    return "cuda" if jax.config.jax_default_device is None else "cpu"  # type: ignore[attr-defined]


def forget() -> None:
    """What JAX and we have found out about the platform, and what was still to be reported."""
    jax.clear_caches()
    torch_backend.guard._largest.clear()
    torch_backend.guard._on_host().zero_()
    caches = bridge.buffered, plan.warn_once, torch_backend.select_kernel, torch_backend.attention._run_once
    for cached in (checked._remembered, checked._planned, *caches):
        cached.cache_clear()


@contextlib.contextmanager
def emulated() -> Iterator[None]:
    """CUDA is JAX's platform, and its operators are `STAND_INS`."""
    library = torch.library.Library("aten", "IMPL")
    try:
        for name in set(STAND_INS) - {"flex_attention"}:
            library.impl(name, functools.partial(stand_in, name), "CPU")
        with pytest.MonkeyPatch.context() as patch:
            replace_platform(patch)
            forget()
            yield
            jax.effects_barrier()
    finally:
        library._destroy()
        forget()


def replace_platform(patch: pytest.MonkeyPatch) -> None:
    """By CUDA, with a card, streams, memory and reports, of this process."""
    real_devices, real_callback = jax.devices, bridge.buffer_callback.buffer_callback
    patch.setattr(jax_devices, "_lowering_name", lowering_name)
    patch.setattr(bridge, "serves", lambda platform: True)
    patch.setattr(bridge, "DLPACK_CUDA", 1)  # DLPack's number of the CPU
    emulated_callback = lambda f, *args, **options: real_callback(on_a_stream(f), *args, **options)  # noqa: E731
    patch.setattr(bridge.buffer_callback, "buffer_callback", emulated_callback)
    patch.setattr(jax, "devices", lambda name=None: real_devices())
    patch.setattr(devices, "card", lambda: card)
    patch.setattr(devices, "names", lambda: ["cpu"])
    patch.setattr(devices, "lacking_for_flex", lambda: "")
    patch.setattr(flex, "compiled", lambda *_: functools.partial(stand_in, "flex_attention"))
    patch.setattr(torch_backend.attention, "report", lambda reach, _: torch_backend.guard.report_later(reach))
    patch.setattr(torch.cuda, "ExternalStream", lambda stream, device: stream)
    patch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    patch.setattr(torch.cuda, "MemPool", lambda: None)
    patch.setattr(torch.cuda, "use_mem_pool", lambda pool, device: contextlib.nullcontext())
    patch.setattr(torch.cuda, "synchronize", lambda: None)


@contextlib.contextmanager
def on(**properties: Any) -> Iterator[None]:
    """Another card, of which these are not as they were: `capability`, `cudnn`."""
    global card
    before, card = card, card._replace(**properties)
    forget()
    try:
        yield
    finally:
        card = before
        forget()


VIEWS = {
    "_reshape_alias", "_unsafe_view", "alias", "as_strided", "detach", "empty", "empty_like", "empty_strided", "expand",
    "is_nonzero", "lift_fresh", "new_empty", "new_empty_strided", "permute", "promote_types", "select", "slice",
    "split", "split_with_sizes", "squeeze", "t", "transpose", "unbind", "unsafe_split", "unsqueeze", "view",
}  # fmt: skip
# Operators that launch more than one kernel on CUDA, and how many more.
MORE = {
    "logsumexp": 8,
    "constant_pad_nd": 1,
    "pad": 1,
    "_scaled_dot_product_flash_attention_backward": 2,
    "_efficient_attention_backward": 5,
}


class Launches(TorchDispatchMode):
    """The operators that would launch something on CUDA, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name, result = func.__name__.split(".")[0], func(*args, **(kwargs or {}))
        is_view = name in ("contiguous", "reshape", "unflatten") and result.data_ptr() == args[0].data_ptr()
        if name not in VIEWS and not is_view:
            self.names.append(name)
        return result


class Recorded(Launches):
    """The same, while CUDA records them."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        told = func.__name__.split(".")[0] in ("item", "is_nonzero", "_local_scalar_dense")
        check(not told, "operation not permitted when stream is capturing")
        return super().__torch_dispatch__(func, types, args, kwargs)
