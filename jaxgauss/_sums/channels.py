"""Moments as channels: the derivatives of a Gauss sum are sums of more channels, a few of them at a time."""

import math

import jax.numpy as jnp
from jaxtyping import Array

CHANNELS_IN_A_SUM = 64  # width up to which channels share one sum: narrower sums waste exponentials


def cheaper_by_channels(points: Array, values: Array) -> bool:
    """Whether C(D + 1) channels in two sums cost less than a sum and the fused backward pass, about 2.5 sums."""
    dim, channels = points.shape[-1], values.shape[-1]
    return channels == 1 or channels * (dim + 1) <= 2 * max(16, dim, channels)


def flat_channels(x: Array) -> Array:
    """(…, N, C, W) -> (…, N, C·W)."""
    return x.reshape(*x.shape[:-2], math.prod(x.shape[-2:]))


def channel_blocks(x: Array, size: int) -> Array:
    """(…, N, C) -> (blocks, …, N, size), zeros at the end."""
    blocks = -(-x.shape[-1] // size)
    padded = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, blocks * size - x.shape[-1])])
    return jnp.moveaxis(padded.reshape(*x.shape[:-1], blocks, size), -2, 0)


def unblock_channels(x: Array, channels: int) -> Array:
    """The inverse of `channel_blocks`."""
    return flat_channels(jnp.moveaxis(x, 0, -2))[..., :channels]
