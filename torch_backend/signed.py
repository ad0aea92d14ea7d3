"""Sums of one channel from log-sum-exps alone, which kernels in half precision return in float32.

With s = Σ_{v > 0} Φ |v| - Σ_{v < 0} Φ |v|, each of the two is the exponential of a log-sum-exp, with weights |v| in its
logits. So neither weights nor results are rounded to half precision: points in two parts give float32's digits.

Keys are put in the order of signs and divided into chunks. All but one have one sign, and that one is taken twice. So
this takes 1 + 1/CHUNKS of the time of one call. Chunks are heads, which also fill a card that one head leaves idle.
"""

import math
from collections.abc import Callable

from array_api_compat import array_namespace

from .dtypes import Array
from .layout import LOG_ZERO, broadcast_shapes, cast, dtype_of, in_every_head, nonzero

CHUNKS, LEAST = 8, 1024  # of the keys, if each chunk has at least so many


def chunked_by_sign(keys: Array, values: Array) -> tuple[Array, Array, Array]:
    """Keys (B, H, S + 1, n, D) and values (B, H, S + 1, n, 1) in chunks, and the sign that counts in each."""
    xp, num = array_namespace(values), keys.shape[-2]
    num_chunks = max(1, min(CHUNKS, num // LEAST))
    size = -(-num // num_chunks)
    batch = broadcast_shapes(keys.shape[:-2], values.shape[:-2])
    keys, values = (xp.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (keys, values))
    if num_chunks > 1:
        order = xp.argsort(cast(values < 0, "int8"), axis=-2, stable=True)
        keys, values = (xp.take_along_axis(x, order, axis=-2) for x in (keys, values))
    positive = xp.sum(cast(~(values < 0), "int32"), axis=(-2, -1), keepdims=True, dtype=xp.int32)[..., None]
    mixed = xp.clip(positive // size, None, num_chunks - 1)  # the chunk in which the sign changes

    def with_mixed(x: Array) -> Array:
        missing = num_chunks * size - num
        x = xp.concat([x, xp.zeros_like(x[..., :missing, :])], axis=-2) if missing else x
        chunks = xp.reshape(x, (*batch, num_chunks, size, x.shape[-1]))
        again = xp.take_along_axis(chunks, mixed, axis=-3) if num_chunks > 1 else chunks
        return xp.concat([chunks, again], axis=-3)

    index = xp.reshape(xp.arange(num_chunks + 1, dtype=xp.int32), (*(1 for _ in batch), -1, 1, 1))
    signs = xp.where((index <= mixed) & (index < num_chunks), 1.0, -1.0)
    return with_mixed(keys), with_mixed(values), cast(signs, dtype_of(values))


def signed_sum(queries: Array, keys: Array, values: Array, log_sum: Callable[..., Array]) -> Array:
    """Σ_n exp(-½‖a_m - b_n‖²) v_n for scaled points a (B, H, M, D), b (B, H, N, D) and v (B, H, N, 1).

    `log_sum` of queries, keys and log-weights (B, H, N, 1) is log Σ_n w_n Φ (B, H, M, 1).
    """
    xp = array_namespace(values)
    largest = nonzero(xp.max(xp.abs(values), axis=-2, keepdims=True))
    keys, values, signs = chunked_by_sign(keys, values / largest)
    *batch, heads, size, _ = keys.shape
    logs = xp.where(signs * values <= 0, LOG_ZERO, xp.clip(xp.log(xp.abs(values)), LOG_ZERO, None))

    def as_heads(x: Array) -> Array:
        return xp.reshape(x, (batch[0], batch[1] * heads, *x.shape[-2:]))

    queries = in_every_head(queries, batch[1], heads)
    found = log_sum(queries, as_heads(keys), as_heads(logs))
    found = xp.clip(found, None, math.log(size))
    half = xp.exp(xp.reshape(found, (*found.shape[:1], -1, heads, *found.shape[-2:])) / 2)  # may be finite alone
    return xp.sum(signs * largest[..., None, :, :] * half * half, axis=-3)
