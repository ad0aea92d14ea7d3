"""FlexAttention: a kernel of float32 that PyTorch writes and compiles, with norms of points added to the logits.

Products are three in TF32. Sums of blocks of keys are added in float32, and so is the log-sum-exp. Not every PyTorch
has what is imported here, so this file is imported at the first use: see `devices.lacking_for_flex`.

The first call of a form compiles, for 5 to 20 seconds. This must not happen while XLA records what a callback launches.
So `attention.prepare` calls it before, when a program is lowered: on the same device, in the same mode of PyTorch, with
empty tensors of the same shapes, which pass through the same code. The callback then finds what was compiled.
"""

import functools
import types
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, flex_attention

from . import devices

# Compiled for an H100, blocks of 64 queries and 32 keys stay in registers at every width. PyTorch's own
# spill up to 8792 bytes of a thread: for 128 columns of points and 16 of values. BACKEND: few queries
# take the same kernel as many.
BLOCKS = {"BLOCK_M": 64, "BLOCK_N": devices.card().keys_at_once, "num_warps": 4, "num_stages": 2}
OPTIONS = {"cuda": {"FLOAT32_PRECISION": "'tf32x3'", "BACKEND": "TRITON", **BLOCKS}}


def flex(q: Tensor, k: Tensor, v: Tensor, *biases: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax(q·k + biases) v (B, H, M, C), and the log-sum-exp (B, H, M); biases of keys (B, H, N) and queries."""

    def score(s: Tensor, b: Tensor, h: Tensor, m: Tensor, n: Tensor) -> Tensor:
        return s + biases[0][b, h, n] + biases[1][b, h, m] if biases else s

    options: Any = OPTIONS.get(q.device.type)
    out, also = flex_attention(
        q, k, v, score_mod=score, scale=1.0, kernel_options=options, return_aux=AuxRequest(lse=True)
    )
    return out, cast(Tensor, also.lse)


@functools.cache
def compiled(*form: int | None) -> Callable[..., tuple[Tensor, Tensor]]:
    """`flex`, compiled once for a form, of which the numbers of points vary.

    PyTorch keeps what it compiles with the code of a function, and at most eight versions. So each form has a code of
    its own.
    """
    code = flex.__code__.replace(co_name="_".join(map(str, ("flex", *form))))
    return torch.compile(types.FunctionType(code, flex.__globals__, code.co_name), fullgraph=True, dynamic=True)


def attend(q: Tensor, k: Tensor, v: Tensor, *biases: Tensor) -> tuple[Tensor, Tensor]:
    """`flex` as compiled for these operands, with biases (B, H, 1, N) and (B, H, M, 1).

    PyTorch compiles anew for another width, device or number of heads, for axes of length one, and for other strides:
    of those there is one kind.
    """
    ones = (size == 1 for size in (q.shape[0], q.shape[2], k.shape[2]))
    form = q.shape[3], v.shape[3], q.shape[1], len(biases), *ones, q.device.index
    return compiled(*form)(*map(_packed, (q, k, v)), *(_packed(x.flatten(2)) for x in biases))


def _packed(x: Tensor) -> Tensor:
    """With the strides of a new tensor, for axes of length one as well."""
    return x.flatten().view(x.shape)
