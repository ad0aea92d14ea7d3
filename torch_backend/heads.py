"""Keys in heads of one call, where queries alone leave a card's multiprocessors idle.

A kernel takes a block of queries to one multiprocessor, whatever the number of keys: 16384 queries are 128 blocks, and
an H200 has 132 multiprocessors, each of which would take several at a time. With the keys in S heads there are S times
as many blocks, and sums of fewer terms, whose rounding is less. The means o_s and log-sum-exps l_s of the heads give

    l = log Σ_s exp(l_s)        o = Σ_s exp(l_s - l) o_s.
"""

import functools
import math

from array_api_compat import array_namespace

from .dtypes import Array
from .kernels import Attend, AttentionKernel
from .layout import broadcast_shapes, cast, in_every_head

BLOCK, FULL = 128, 512  # queries of a block; blocks that fill a card
MOST, LEAST = 16, 1024  # heads; keys of a head


def attend_in_heads(
    attend: Attend, queries: Array, keys: Array, values: Array, kernel: AttentionKernel, biases: tuple[Array, ...]
) -> tuple[Array, Array]:
    """`attend`, by kernels in half precision on CUDA with keys (B, H, N, W) in as many heads as fill a card."""
    batch = broadcast_shapes(*(x.shape[:2] for x in (queries, keys, values)))
    heads = num_heads(kernel, math.prod(batch), queries.shape[2], keys.shape[2])
    if heads == 1:
        return attend(queries, keys, values, kernel, biases=biases)
    xp = array_namespace(keys)

    def in_heads(x: Array) -> Array:
        if batch[1] > 1:
            x = xp.broadcast_to(x, (x.shape[0], batch[1], *x.shape[2:]))
        return xp.reshape(x, (x.shape[0], -1, x.shape[2] // heads, x.shape[3]))

    queries = in_every_head(queries, batch[1], heads)
    found = attend(queries, in_heads(keys), in_heads(values), kernel)
    out, lse = (xp.reshape(cast(x, "float32"), (*batch, heads, *x.shape[2:])) for x in found)
    logs, means = ([x[:, :, i] for i in range(heads)] for x in (lse, out))  # without reductions XLA fuses all
    largest = functools.reduce(xp.maximum, logs)
    weights = [xp.exp(x - largest) for x in logs]
    total = sum(weights[1:], start=weights[0])
    terms = [x * y for x, y in zip(weights, means, strict=True)]
    return sum(terms[1:], start=terms[0]) / total, largest + xp.log(total)


def num_heads(kernel: AttentionKernel, batch: int, num_queries: int, num_keys: int) -> int:
    """How many heads the keys of one make: a power of two that divides their number."""
    if kernel.device != "cuda" or not kernel.half:
        return 1
    blocks, heads = batch * -(-num_queries // BLOCK), 1
    while 2 * heads <= min(MOST, FULL // blocks) and num_keys % (2 * heads) == 0 and num_keys >= 2 * heads * LEAST:
        heads *= 2
    return heads
