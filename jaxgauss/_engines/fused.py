"""Products that XLA on a CPU puts together: where it does, how they must be written, and in which tiles."""

import platform
import sys
from typing import Any

import jax.numpy as jnp
import jaxlib.version
from jaxtyping import Array

from .._arrays.logits import logits
from .tiles import Tile

# A product, what is done to its entries, and a reduction of them: XLA hands all of it to one pass of YNNPACK, if the
# second product is written as a reduction. Nothing of a tile's size is then read or written in between. So it is on
# Linux with x86-64, in float32, from this version on: there it was measured, and a test looks at the program.
_MEASURED = (sys.platform, platform.machine()) == ("linux", "x86_64")
FUSES = _MEASURED and jaxlib.version.__version_info__ >= (0, 10, 2)
FUSED_WIDTH = 256  # D and C up to which that is faster
FUSED_MEANS = 2**18  # pairs from which means are fused sums
# Channels from which tiles are narrower, so that values stay in the cache; and D or C from which a single tile is not
# fused: its two products of few points are faster without columns for the norms, and without the reduction.
WIDE = 64


def fused_tile_sum(a: Any, b: Any, v: Array) -> Array:
    """The same with the second product as a reduction; for `FUSES`, and not to be differentiated."""
    return fused_sum(jnp.exp2(logits(a, b)), v)


def fused_sum(tile: Array, v: Array) -> Array:
    """A tile times values, as a reduction."""
    if v.shape[-1] == 1:
        return (tile * v.mT).sum(-1, keepdims=True)
    return (tile[..., None] * v[..., None, :, :]).sum(-2)


def fused_tile(channels: int) -> Tile:
    """The tile of fused products."""
    if channels == 1:
        return Tile(2**21, 2048, 512, 2**20)
    return Tile(2**21, 8192, 256, 2**20) if channels < WIDE else Tile(2**21, 8192, 128, 2**17)
