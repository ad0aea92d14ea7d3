"""Arrays in blocks of rows, and loops over them."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array


def blocks(x: Array, size: int, fill: float | None = 0.0) -> Array:
    """(*batch, N, W) -> (blocks, *batch, size, W), padded with `fill`, or with the last row if `fill` is None."""
    num_blocks = -(-x.shape[-2] // size)
    padding = [(0, 0)] * (x.ndim - 2) + [(0, num_blocks * size - x.shape[-2]), (0, 0)]
    padded = jnp.pad(x, padding, mode="edge") if fill is None else jnp.pad(x, padding, constant_values=fill)
    return jnp.moveaxis(padded.reshape(*x.shape[:-2], num_blocks, size, x.shape[-1]), -3, 0)


def unblocks(x: Array, num: int) -> Array:
    """The inverse of `blocks`."""
    x = jnp.moveaxis(x, 0, -3)
    return x.reshape(*x.shape[:-3], x.shape[-3] * x.shape[-2], x.shape[-1])[..., :num, :]


def scan(body: Callable, carry, blocks):
    """`lax.scan`, without a loop for a single block."""
    if jax.tree.leaves(blocks)[0].shape[0] != 1:
        return lax.scan(body, carry, blocks)
    carry, out = body(carry, jax.tree.map(lambda x: x[0], blocks))
    return carry, jax.tree.map(lambda x: x[None], out)
