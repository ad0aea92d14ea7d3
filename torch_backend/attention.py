"""Attention by every kernel that PyTorch ships: (out, lse) of one call, and its backward pass.

`kernels` specifies both functions; `operators` has the kernels.
"""

import functools
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from . import devices
from .guard import REACH_AGAIN, report
from .kernels import AttentionKernel, Engine
from .layout import broadcast_shapes
from .operators import BACKWARD, FORWARD, efficient_gated, efficient_gated_backward, in_short_sums

MAX_GRID = 65535  # CUDA's limit on batch and on heads in one launch
MAX_POINTS = 2**16  # in one call: kernels add blocks one after another, and millions of terms would lose accuracy
MAX_ELEMENTS = 2**31 - 1  # of a matrix: some kernels index with 32 bits
FEW = 256  # rows by which a kernel is loaded, in several blocks


def attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    kernel: AttentionKernel,
    *,
    biases: tuple[Tensor, ...] = (),
    needs_lse: bool = True,
    most: int | None = None,
) -> tuple[Tensor, Tensor]:
    """softmax(q·k + biases) v, (B, H, M, W), and the logits' log-sum-exp, (B, H, M, 1), as the operator gives them.

    Where autograd records, `needs_lse` raises an error: PyTorch differentiates only the means. If a `kernel.gate` is
    false, nothing is computed and the result is arbitrary. One call takes at most so many points.
    """
    if kernel.reported is not None:
        report(kernel.reported, REACH_AGAIN["cuda"])
    recorded = torch.is_grad_enabled() and any(x.requires_grad for x in (queries, keys, values))
    operands = _broadcast(queries, keys, values, *biases)
    if recorded and needs_lse:
        raise ValueError(
            "`torch_backend`: the log-sum-exp of a fused kernel has no derivative in PyTorch; got tensors that require"
            " a gradient. Use method='reweight', `gauss_sum_pullback`, or torch.no_grad()."
        )
    forward = FORWARD[kernel.name]
    if kernel.gate is not None:
        forward = functools.partial(efficient_gated, gate=kernel.gate)
    over_grid = functools.partial(_over_grid, forward, kernel=kernel)
    out, lse = over_grid(operands) if recorded else _forward_in_parts(over_grid, _most_points(queries, most), operands)
    return out, lse.unsqueeze(-1)


def attention_pullback(
    cotangent: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    lse: Tensor,
    kernel: AttentionKernel,
    *,
    most: int | None = None,
) -> tuple[Tensor, ...]:
    """(S k, Sᵀ q, Pᵀ g) for P = exp(q·k - lse) and S = P ∘ (g vᵀ), by the kernel's backward pass.

    The backward pass computes S = P ∘ (g vᵀ - δ), where δ = Σ g·out is the derivative of the normalization. Given out =
    0 and our own lse, it returns the pullback of the *unnormalized* sum P v.
    """
    operands = _broadcast(cotangent, queries, keys, values, lse)
    backward = BACKWARD[kernel.name]
    if kernel.gate is not None:
        backward = functools.partial(efficient_gated_backward, gate=kernel.gate)
    elif kernel.name == "cpu" and kernel.half:
        backward = in_short_sums
    over_grid = functools.partial(_over_grid, backward, kernel=kernel)
    return _backward_in_parts(over_grid, _most_points(queries, most), operands)


ENGINE = Engine(attention, attention_pullback)


def prepare(kernel: AttentionKernel, *shapes: tuple[int, ...], backward: bool = False) -> None:
    """Run `attention` of operands in float32 of these shapes, or its pullback, on every device before XLA records it.

    FlexAttention is compiled by that: see `flex`. What stands in a branch may be recorded before it has ever run, so
    that CUDA had to load it meanwhile: for that few rows are enough, in parts as many are.
    """
    if not kernel.is_flex:
        shapes = tuple((min(b, 2), min(h, 2), n if n <= FEW else FEW + n % 32, width) for b, h, n, width in shapes)
    _run_once(kernel, backward, *shapes)


@functools.cache
def _run_once(kernel: AttentionKernel, backward: bool, *shapes: tuple[int, ...]) -> None:
    most = None if kernel.is_flex else FEW // 2
    for device in devices.names():
        with torch.inference_mode():
            operands = [torch.zeros(shape, device=device) for shape in shapes]
            if backward:
                attention_pullback(*operands, kernel, most=most)  # type: ignore[call-arg]
            else:
                attention(*operands[:3], kernel, biases=tuple(operands[3:]), most=most)  # type: ignore[call-arg]
    torch.cuda.empty_cache()


def _most_points(operand: Tensor, most: int | None = None) -> int:
    """The largest number of queries, and of keys, in one call."""
    return min(most or MAX_POINTS, max(1, MAX_ELEMENTS // operand.shape[-1]))


def _forward_in_parts(
    forward: Callable[[list[Tensor]], tuple[Tensor, ...]], most: int, operands: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """Attention in parts of the queries (concatenated) and of the keys (weighted by their log-sum-exps)."""
    queries, keys, values, *biases = operands
    of_keys, of_queries = biases[:1], biases[1:]
    if queries.shape[2] > most:
        split = zip(*(x.split(most, 2) for x in (queries, *of_queries)), strict=True)
        parts = (_forward_in_parts(forward, most, [x, keys, values, *of_keys, *own]) for x, *own in split)
        outs, lses = zip(*parts, strict=True)
        return torch.cat(outs, 2), torch.cat(lses, 2)
    if keys.shape[2] <= most:
        return forward(operands)  # type: ignore[return-value]
    parts = zip(keys.split(most, 2), values.split(most, 2), *(x.split(most, 3) for x in of_keys), strict=True)
    outs, lses = zip(*(forward([queries, *part, *of_queries]) for part in parts), strict=True)
    lse = functools.reduce(torch.logaddexp, (x.to(torch.promote_types(x.dtype, torch.float32)) for x in lses))
    return _total((own - lse).exp()[..., None] * out for out, own in zip(outs, lses, strict=True)), lse


def _backward_in_parts(
    backward: Callable[[list[Tensor]], tuple[Tensor, ...]], most: int, operands: list[Tensor]
) -> tuple[Tensor, ...]:
    """The backward pass in parts of the queries and keys, whose sums are added in float32 or better."""
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


def _broadcast(*operands: Tensor) -> list[Tensor]:
    """Operands with a common batch and number of heads, as views with contiguous rows."""
    axes = operands[0].shape[:2]
    if all(x.shape[:2] == axes and x.stride(-1) == 1 for x in operands):
        return list(operands)
    operands = tuple(x if x.stride(-1) == 1 else x.contiguous() for x in operands)
    axes = broadcast_shapes(*(x.shape[:2] for x in operands))
    return [x if x.shape[:2] == axes else x.expand(*axes, -1, -1) for x in operands]


def _over_grid(
    function: Callable[..., tuple], operands: list[Tensor], *, kernel: AttentionKernel
) -> tuple[Tensor, ...]:
    """Apply `function` to parts of batch and heads that fit CUDA's grid."""
    for axis in (0, 1):
        if kernel.device == "cuda" and operands[0].shape[axis] > MAX_GRID:
            parts = zip(*(x.split(MAX_GRID, axis) for x in operands), strict=True)
            results = zip(*(_over_grid(function, list(part), kernel=kernel) for part in parts), strict=True)
            return tuple(torch.cat(result, axis) for result in results)
    return function(*operands)
