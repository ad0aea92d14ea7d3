"""PyTorch's attention operators: every kernel, forward and backward, and the arguments that each of them needs.

The only file that names an aten operator. Operands are (B, H, N, W); (out, lse) are as the operator returns them.
"""

import functools
import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from . import devices

SHORT = 512  # queries or keys in one half-precision sum
IN_ORDER = 512  # terms that a gradient may add one after the other


@functools.cache
def _aten(name: str) -> Callable[..., tuple]:
    try:
        return getattr(torch.ops.aten, "_scaled_dot_product_" + name).default
    except AttributeError as error:
        raise ImportError(
            f"torch {torch.__version__} has no _scaled_dot_product_{name}, or not as this version of jaxgauss knows it:"
            " pip install --upgrade jaxgauss, which brings a torch that fits."
        ) from error


def _flex(*operands: Tensor) -> tuple[Tensor, Tensor]:
    from . import flex

    return flex.attend(*operands)


def _cpu(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The CPU kernel, with rows filled up to fours: products of fewer rows add their terms one after the other."""
    num = q.shape[2]
    out, lse = _aten("flash_attention_for_cpu")(_filled(q), k, v, 0.0, False, attn_mask=bias, scale=1.0)
    return out[:, :, :num], lse[:, :, :num]


def _filled(x: Tensor, multiple: int = 4) -> Tensor:
    """Rows filled up with zeros to a multiple."""
    missing = -x.shape[2] % multiple
    return torch.nn.functional.pad(x, (0, 0, 0, missing)) if missing else x


def _flash(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return _aten("flash_attention")(q, k, v, 0.0, False, False, scale=1.0)[:2]


def _efficient(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    out, lse = _aten("efficient_attention")(q, k, v, None, True, 0.0, False, scale=1.0)[:2]
    return out, lse[..., : q.shape[-2]]  # the kernel rounds M up to 32


def _cudnn(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    if not devices.card().cudnn_takes(q.shape[2], k.shape[2]):
        return _flash(q, k, v)  # takes the same dtypes and widths, and lengths that cuDNN does not
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()  # cuDNN refuses strides of zero
    out, lse = _aten("cudnn_attention")(q, k, v, None, True, 0.0, False, False, scale=1.0)[:2]
    return out, lse.reshape(q.shape[:-1])


# If half precision is too coarse, the sum is computed again in float32. The device decides; the host does not wait.
# PyTorch has no conditional for that, as XLA has. But the memory-efficient kernel reads the lengths of its sequences
# from the device, and skips queries beyond them: of a length of zero it computes nothing. Its operands are packed, (1,
# B·M, H, W), with the B + 1 starts of sequences.


def efficient_gated(q: Tensor, k: Tensor, v: Tensor, *, gate: Tensor) -> tuple[Tensor, Tensor]:
    """The memory-efficient kernel behind a gate; where the gate is shut, the result is arbitrary."""
    starts = _starts(q, k, gate)
    packed, sizes = [_packed(x) for x in (q, k, v)], (q.shape[2], k.shape[2])
    forward = torch.ops.aten._efficient_attention_forward.default
    out, lse = forward(*packed, None, *starts, *sizes, 0.0, 0, True, scale=1.0)[:2]
    return _unpacked(out, q), lse[..., : q.shape[2]]


def _cpu_backward(g: Tensor, q: Tensor, k: Tensor, v: Tensor, lse: Tensor) -> tuple:
    """The CPU kernel's backward pass, with rows filled up to fours, too, where they add many terms.

    Keys are filled up by the last one, because exponents of a key of zeros may overflow. Its values of zero, and
    cotangents of zero, change nothing.
    """
    num_queries, num_keys = q.shape[2], k.shape[2]
    if num_keys > IN_ORDER:
        g, q, lse = (_filled(x) for x in (g, q, lse))
    if num_queries > IN_ORDER and num_keys % 4:
        k, v = torch.cat([k, k[:, :, -1:].expand(-1, -1, -num_keys % 4, -1)], 2), _filled(v)
    sk, sq, pg = _aten("flash_attention_for_cpu_backward")(
        g, q, k, v, torch.zeros_like(g), lse[..., 0].contiguous(), 0.0, False, scale=1.0
    )
    return sk[:, :, :num_queries], sq[:, :, :num_keys], pg[:, :, :num_keys]


def _flash_backward(g: Tensor, q: Tensor, k: Tensor, v: Tensor, lse: Tensor) -> tuple:
    seed = torch.empty(2, dtype=torch.uint64, device=q.device)  # of the dropout, which is off: it is not read
    return _aten("flash_attention_backward")(
        g, q, k, v, torch.zeros_like(g), lse[..., 0].contiguous(), None, None, q.shape[2], k.shape[2], 0.0, False, seed,
        torch.empty((), dtype=torch.uint64, device=q.device), scale=1.0,
    )  # fmt: skip


def _efficient_backward(g: Tensor, q: Tensor, k: Tensor, v: Tensor, lse: Tensor) -> tuple:
    seed, wanted = torch.empty((), dtype=torch.int64), [True, True, True, False]
    return _aten("efficient_attention_backward")(
        g, q, k, v, None, _no_out(g), _padded_lse(lse), seed, seed, 0.0, wanted, False, scale=1.0
    )[:3]


def efficient_gated_backward(g: Tensor, q: Tensor, k: Tensor, v: Tensor, lse: Tensor, *, gate: Tensor) -> tuple:
    """The backward pass of the memory-efficient kernel behind a gate; where it is shut, the result is arbitrary."""
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


def _cpu_backward_on_threads(*operands: Tensor) -> tuple[Tensor, ...]:
    """The CPU kernel's backward pass, with queries divided into more heads: it uses one thread per head."""
    batch, heads, num_queries, width = operands[1].shape
    parts = torch.get_num_threads() // (batch * heads)
    if parts < 2 or num_queries < 2 * parts:
        return _cpu_backward(*operands)
    multiple = parts * (4 if operands[2].shape[2] > IN_ORDER else 1)
    g, q, k, v, lse = (x.reshape(batch * heads, 1, *x.shape[2:]) for x in operands)

    def split(x: Tensor) -> Tensor:  # zero rows of g change nothing
        return _filled(x, multiple).unflatten(2, (parts, -1))[:, 0]

    def share(x: Tensor) -> Tensor:
        return x.expand(-1, parts, -1, -1)

    sk, sq, pg = _cpu_backward(split(g), split(q), share(k), share(v), split(lse))
    sk = sk.reshape(batch, heads, -1, width)[..., :num_queries, :]
    return sk, sq.sum(1).reshape(batch, heads, -1, width), pg.sum(1).reshape(batch, heads, -1, width)


def in_short_sums(g: Tensor, q: Tensor, k: Tensor, v: Tensor, lse: Tensor) -> tuple[Tensor, ...]:
    """The CPU kernel's backward pass in blocks that float32 adds: the kernel itself adds blocks in half precision."""
    totals = tuple(torch.zeros(x.shape, dtype=torch.float32, device=x.device) for x in (q, k, v))
    rows, columns = (range(0, x.shape[2], SHORT) for x in (q, k))
    for i, j in itertools.product(rows, columns):
        queries, keys = slice(i, i + SHORT), slice(j, j + SHORT)
        parts = _cpu_backward(g[:, :, queries], q[:, :, queries], k[:, :, keys], v[:, :, keys], lse[:, :, queries])
        for total, part, part_of in zip(totals, parts, (queries, keys, keys), strict=True):
            total[:, :, part_of] += part
    return totals


def _starts(q: Tensor, k: Tensor, gate: Tensor) -> tuple[Tensor, Tensor]:
    """Starts of the sequences of queries and keys in a batch; at a shut gate all are 0, so that sequences are empty."""
    starts = gate.int() * torch.arange(q.shape[0] + 1, dtype=torch.int32, device=gate.device)
    return starts * q.shape[2], starts * k.shape[2]


def _packed(x: Tensor) -> Tensor:
    return x.transpose(1, 2).reshape(1, -1, x.shape[1], x.shape[3])


def _unpacked(x: Tensor, like: Tensor) -> Tensor:
    return x.reshape(like.shape[0], like.shape[2], like.shape[1], -1).transpose(1, 2)


def _no_out(g: Tensor) -> Tensor:
    """Zeros (B, H, M, W) in memory order (B, M, H, W), which the kernel assumes whatever the strides are."""
    batch, heads, num, width = g.shape
    return g.new_zeros(batch, num, heads, width).transpose(1, 2)


def _padded_lse(lse: Tensor) -> Tensor:
    """(B, H, M, 1) -> (B, H, M rounded up to 32), as the memory-efficient kernel returns it."""
    missing = -lse.shape[2] % 32
    return torch.nn.functional.pad(lse[..., 0], (0, missing), value=math.inf) if missing else lse[..., 0].contiguous()


FORWARD = {"cpu": _cpu, "flash": _flash, "efficient": _efficient, "cudnn": _cudnn, "flex": _flex}
BACKWARD = {
    "cpu": _cpu_backward_on_threads,
    "flash": _flash_backward,
    "efficient": _efficient_backward,
    "cudnn": _flash_backward,  # takes the same dtypes and widths
}
