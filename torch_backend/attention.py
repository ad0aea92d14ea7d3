"""PyTorch's engine: one call, (out, lse), for every attention kernel that it ships, and its backward pass.

The only file that names an aten operator. See `kernels` for what an engine takes and gives.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterable
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from .kernels import Engine, Kernel, gate_starts
from .layout import broadcast_shapes
from .trust import report

SHORT = 512  # queries or keys over which half precision adds up
MAX_GRID = 65535  # CUDA's limit on batch and on heads in one launch
MAX_POINTS = 2**16  # in one call: kernels add block after block, and millions of terms would cost them digits
MAX_ELEMENTS = 2**31 - 1  # of a matrix: some kernels count in 32 bits
Gate: TypeAlias = Tensor | tuple[Tensor, Tensor]
PUBLIC = {  # the kernels' names for the public function
    "cpu": SDPBackend.FLASH_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}


def attention(
    queries: Tensor, keys: Tensor, values: Tensor, kernel: Kernel, *, bias: Tensor | None = None, needs_lse: bool = True
) -> tuple[Tensor, Tensor]:
    """softmax(q·k + bias) v, (B, H, M, W), and the log-sum-exp of the logits, (B, H, M, 1), as the operator gives them.

    Without `needs_lse` it is the public, differentiable function, restricted to the kernel, and no log-sum-exp. With a
    `kernel.gate` that is false nothing is computed, and what is returned is arbitrary.
    """
    if kernel.alarm is not None:
        report(kernel.alarm)
    recorded = torch.is_grad_enabled() and any(x.requires_grad for x in (queries, keys, values))
    operands = _broadcast(queries, keys, values, *([] if bias is None else [bias]))
    if not needs_lse and (recorded or max(queries.shape[2], keys.shape[2]) <= _most_points(queries)):
        forward = functools.partial(_public, PUBLIC[kernel.name])
        (out,) = _over_grid(forward, operands, kernel=kernel)
        return out, out.new_empty(0)
    if recorded:
        raise ValueError(
            "`torch_backend`: the log-sum-exp of a fused kernel has no derivative in PyTorch; got tensors that require"
            " a gradient. Use method='reweight', `gauss_sum_pullback`, or torch.no_grad()."
        )
    forward = _FORWARD[kernel.name]
    if kernel.gate is not None:
        forward = functools.partial(_efficient_gated, gate=_gate(kernel.gate, *operands[:2]))
    out, lse = _forward_in_parts(functools.partial(_over_grid, forward, kernel=kernel), _most_points(queries), operands)
    return out, lse[..., None]


def attention_pullback(
    cotangent: Tensor, queries: Tensor, keys: Tensor, values: Tensor, lse: Tensor, kernel: Kernel
) -> tuple[Tensor, ...]:
    """(S k, Sᵀ q, Pᵀ g) for P = exp(q·k - lse) and S = P ∘ (g vᵀ), by the kernel's backward pass.

    A backward pass computes S = P ∘ (g vᵀ - δ) with δ = Σ g·out, the derivative of the normalization. We hand it
    out = 0: without δ, and with an lse of our choice, it is the pullback of the *unnormalized* sum P v.
    """
    operands = _broadcast(cotangent, queries, keys, values, lse)
    backward = _BACKWARD[kernel.name]
    if kernel.gate is not None:
        backward = functools.partial(_efficient_gated_backward, gate=_gate(kernel.gate, *operands[1:3]))
    elif kernel.name == "cpu" and kernel.half:
        backward = _in_short_sums
    return _backward_in_parts(functools.partial(_over_grid, backward, kernel=kernel), _most_points(queries), operands)


ENGINE = Engine(attention, attention_pullback)


def _most_points(operand: Tensor) -> int:
    """Queries, and keys, that one call may have."""
    return min(MAX_POINTS, max(1, MAX_ELEMENTS // operand.shape[-1]))


def _forward_in_parts(
    forward: Callable[[list[Tensor]], tuple[Tensor, ...]], most: int, operands: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """Parts of the queries side by side; parts of the keys by the weights that their log-sum-exps give them."""
    queries, keys, values, *bias = operands
    if queries.shape[2] > most:
        parts = (_forward_in_parts(forward, most, [x, keys, values, *bias]) for x in queries.split(most, 2))
        outs, lses = zip(*parts, strict=True)
        return torch.cat(outs, 2), torch.cat(lses, 2)
    if keys.shape[2] <= most:
        return forward(operands)  # type: ignore[return-value]
    parts = zip(keys.split(most, 2), values.split(most, 2), *(x.split(most, 3) for x in bias), strict=True)
    outs, lses = zip(*(forward([queries, *part]) for part in parts), strict=True)
    lse = functools.reduce(torch.logaddexp, (x.to(torch.promote_types(x.dtype, torch.float32)) for x in lses))
    return _total((own - lse).exp()[..., None] * out for out, own in zip(outs, lses, strict=True)), lse


def _backward_in_parts(
    backward: Callable[[list[Tensor]], tuple[Tensor, ...]], most: int, operands: list[Tensor]
) -> tuple[Tensor, ...]:
    """What is summed over parts of the queries, or of the keys, is added up in float32 or better."""
    g, queries, keys, values, lse = operands
    if queries.shape[2] > most:
        split = zip(*(x.split(most, 2) for x in (g, queries, lse)), strict=True)
        parts = (_backward_in_parts(backward, most, [g, q, keys, values, own]) for g, q, own in split)
        sk, sq, pg = zip(*parts, strict=True)
        return torch.cat(sk, 2), _total(sq), _total(pg)
    if keys.shape[2] <= most:
        return backward(operands)
    split = zip(keys.split(most, 2), values.split(most, 2), strict=True)
    sk, sq, pg = zip(*(backward([g, queries, *part, lse]) for part in split), strict=True)
    return _total(sk), torch.cat(sq, 2), torch.cat(pg, 2)


def _total(parts: Iterable[Tensor]) -> Tensor:
    return functools.reduce(torch.add, (x.to(torch.promote_types(x.dtype, torch.float32)) for x in parts))


def _public(backend: SDPBackend, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor]:
    with sdpa_kernel(backend):
        return (scaled_dot_product_attention(q, k, v, scale=1.0),)


def _cpu_backward_on_threads(*operands: Tensor) -> tuple[Tensor, ...]:
    """The CPU kernel shares out batch and heads alone: give every thread some of the queries, as heads."""
    batch, heads, num_queries, width = operands[1].shape
    parts = torch.get_num_threads() // (batch * heads)
    if parts < 2 or num_queries < 2 * parts:
        return _cpu_backward(*operands)
    size = -(-num_queries // parts)
    g, q, k, v, lse = (x.reshape(batch * heads, 1, *x.shape[2:]) for x in operands)

    def split(x: Tensor) -> Tensor:  # zero rows of g change nothing
        missing = size * parts - num_queries
        x = torch.nn.functional.pad(x, (0, 0, 0, missing)) if missing else x
        return x.unflatten(2, (parts, size))[:, 0]

    def share(x: Tensor) -> Tensor:
        return x.expand(-1, parts, -1, -1)

    sk, sq, pg = _cpu_backward(split(g), split(q), share(k), share(v), split(lse))
    sk = sk.reshape(batch, heads, parts * size, width)[..., :num_queries, :]
    return sk, sq.sum(1).reshape(batch, heads, -1, width), pg.sum(1).reshape(batch, heads, -1, width)


def _in_short_sums(g: Tensor, q: Tensor, k: Tensor, v: Tensor, lse: Tensor) -> tuple[Tensor, ...]:
    """The CPU kernel's backward pass adds blocks up in half precision: here, few at a time, and the rest in float32."""
    totals = tuple(torch.zeros(x.shape, dtype=torch.float32, device=x.device) for x in (q, k, v))
    rows, columns = (range(0, x.shape[2], SHORT) for x in (q, k))
    for i, j in itertools.product(rows, columns):
        queries, keys = slice(i, i + SHORT), slice(j, j + SHORT)
        parts = _cpu_backward(g[:, :, queries], q[:, :, queries], k[:, :, keys], v[:, :, keys], lse[:, :, queries])
        for total, part, part_of in zip(totals, parts, (queries, keys, keys), strict=True):
            total[:, :, part_of] += part
    return totals


def _broadcast(*operands: Tensor) -> list[Tensor]:
    """Operands with a common batch and number of heads, as views, and with rows in one piece."""
    operands = tuple(x if x.stride(-1) == 1 else x.contiguous() for x in operands)
    axes = broadcast_shapes(*(x.shape[:2] for x in operands))
    return [x if x.shape[:2] == axes else x.expand(*axes, -1, -1) for x in operands]


def _over_grid(function: Callable[..., tuple], operands: list[Tensor], *, kernel: Kernel) -> tuple[Tensor, ...]:
    """`function` over parts of batch and heads that CUDA's grid can hold."""
    for axis in (0, 1):
        if kernel.device == "cuda" and operands[0].shape[axis] > MAX_GRID:
            parts = zip(*(x.split(MAX_GRID, axis) for x in operands), strict=True)
            results = zip(*(_over_grid(function, list(part), kernel=kernel) for part in parts), strict=True)
            return tuple(torch.cat(result, axis) for result in results)
    return function(*operands)


@functools.cache
def _aten(name: str) -> Callable[..., tuple]:
    try:
        return getattr(torch.ops.aten, "_scaled_dot_product_" + name).default
    except AttributeError as error:
        raise ImportError(
            f"torch {torch.__version__} has no _scaled_dot_product_{name}. Install torch>=2.11,<2.14, or use"
            " method='reweight'."
        ) from error


def _cpu(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    return _aten("flash_attention_for_cpu")(q, k, v, 0.0, False, attn_mask=bias, scale=1.0)


def _flash(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return _aten("flash_attention")(q, k, v, 0.0, False, False, scale=1.0)[:2]


def _efficient(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    out, lse = _aten("efficient_attention")(q, k, v, None, True, 0.0, False, scale=1.0)[:2]
    return out, lse[..., : q.shape[-2]]  # the kernel rounds M up to 32


# What half precision does not hold is computed again in float32, if the device finds that there is any; the host does
# not wait to hear. The memory-efficient kernel reads the lengths of its sequences from the device, and leaves a block
# of queries beyond them at once. Its operands are packed: (1, B·M, H, W), and the B + 1 places where sequences start.


def _efficient_gated(q: Tensor, k: Tensor, v: Tensor, *, gate: Gate) -> tuple[Tensor, Tensor]:
    starts = _starts(q, k, gate)
    packed, sizes = [_packed(x) for x in (q, k, v)], (q.shape[2], k.shape[2])
    forward = torch.ops.aten._efficient_attention_forward.default
    out, lse = forward(*packed, None, *starts, *sizes, 0.0, 0, True, scale=1.0)[:2]
    return _unpacked(out, q), lse[..., : q.shape[2]]


def _efficient_gated_backward(g: Tensor, q: Tensor, k: Tensor, v: Tensor, lse: Tensor, *, gate: Gate) -> tuple:
    starts = _starts(q, k, gate)
    packed, sizes = [_packed(x) for x in (g, q, k, v)], (q.shape[2], k.shape[2])
    backward, seed = torch.ops.aten._efficient_attention_backward.default, torch.empty((), dtype=torch.int64)
    gradients = backward(
        *packed,
        None,
        packed[0].new_zeros(packed[0].shape),
        *starts,
        *sizes,
        _padded_lse(lse),
        0.0,
        seed,
        seed,
        0,
        False,
        scale=1.0,
    )
    return tuple(_unpacked(x, like) for x, like in zip(gradients, (q, k, v), strict=False))


def _no_out(g: Tensor) -> Tensor:
    """Zeros (B, H, M, W) in memory ordered as (B, M, H, W): the kernel reads it so, whatever its strides are."""
    batch, heads, num, width = g.shape
    return g.new_zeros(batch, num, heads, width).transpose(1, 2)


def _gate(gate: Gate, q: Tensor, k: Tensor) -> Gate:
    """The gate, as one boolean if the operands are more than one launch holds: then its starts do not fit the parts."""
    is_whole = max(q.shape[2], k.shape[2]) <= _most_points(q) and q.shape[0] <= MAX_GRID
    return gate if is_whole or isinstance(gate, Tensor) else gate[0][1] > 0


def _starts(q: Tensor, k: Tensor, gate: Gate) -> tuple[Tensor, Tensor]:
    """Where the sequences of queries and of keys start, given as they are or made of one boolean."""
    return gate if isinstance(gate, tuple) else gate_starts(gate, q.shape[0], q.shape[2], k.shape[2])


def _packed(x: Tensor) -> Tensor:
    return x.transpose(1, 2).reshape(1, -1, x.shape[1], x.shape[3])


def _unpacked(x: Tensor, like: Tensor) -> Tensor:
    return x.reshape(like.shape[0], like.shape[2], like.shape[1], -1).transpose(1, 2)


def _padded_lse(lse: Tensor) -> Tensor:
    """(B, H, M, 1) -> (B, H, M rounded up to 32), as the memory-efficient kernel leaves it."""
    missing = -lse.shape[2] % 32
    return torch.nn.functional.pad(lse[..., 0], (0, missing), value=math.inf) if missing else lse[..., 0].contiguous()


def _cudnn(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()  # cuDNN refuses strides of zero
    out, lse = _aten("cudnn_attention")(q, k, v, None, True, 0.0, False, False, scale=1.0)[:2]
    return out, lse.reshape(q.shape[:-1])


def _cpu_backward(g: Tensor, q: Tensor, k: Tensor, v: Tensor, lse: Tensor) -> tuple:
    return _aten("flash_attention_for_cpu_backward")(
        g, q, k, v, torch.zeros_like(g), lse[..., 0].contiguous(), 0.0, False, scale=1.0
    )


def _flash_backward(g: Tensor, q: Tensor, k: Tensor, v: Tensor, lse: Tensor) -> tuple:
    seed = torch.empty(2, dtype=torch.uint64, device=q.device)  # of the dropout that we do not use: it is not read
    return _aten("flash_attention_backward")(
        g, q, k, v, torch.zeros_like(g), lse[..., 0].contiguous(), None, None, q.shape[2], k.shape[2], 0.0, False, seed,
        torch.empty((), dtype=torch.uint64, device=q.device), scale=1.0,
    )  # fmt: skip


def _efficient_backward(g: Tensor, q: Tensor, k: Tensor, v: Tensor, lse: Tensor) -> tuple:
    seed, wanted = torch.empty((), dtype=torch.int64), [True, True, True, False]
    return _aten("efficient_attention_backward")(
        g, q, k, v, None, _no_out(g), _padded_lse(lse), seed, seed, 0.0, wanted, False, scale=1.0
    )[:3]


_FORWARD = {"cpu": _cpu, "flash": _flash, "efficient": _efficient, "cudnn": _cudnn}
_BACKWARD = {
    "cpu": _cpu_backward_on_threads,
    "flash": _flash_backward,
    "efficient": _efficient_backward,
    "cudnn": _flash_backward,  # serves the same dtypes and widths
}
