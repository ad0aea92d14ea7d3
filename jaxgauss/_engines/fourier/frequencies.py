"""Nodes of the Fourier series: the waves that a box needs for an error, and their weights g in a Gaussian.

`fourier` has the formulas. Source: Barnett, Greengard & Rachh 2023, arXiv:2305.11065.
"""

import functools
import math
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from ..._arrays.points import dot
from ..settings import Settings

SHARE = 2.5  # bandwidths, √2π, over which a sum has its terms
# By dimension: waves of a block, and the most blocks of a coordinate. The data decide how many blocks are used.
WAVES, MOST = {1: 32, 2: 40, 3: 20}, {1: 128, 2: 6, 3: 3}
DIMENSIONS = tuple(WAVES)
STEPS = 2**12  # positions in a period, and waves, whose products are exact in float32
LONGEST = 9.0  # bandwidths by which the period exceeds the box at most: the error is then below float64's


class Nodes(NamedTuple):
    """The waves of a box.

    Attributes:
        center: the center of the box.
        period: P in units of each coordinate.
        counts: blocks of waves of each coordinate.
        indices: the block of each coordinate for every block of coefficients, those that are used first; None where
            all are computed at once.
        numbers: j of each wave, for the most blocks: in a block those of cosines, then those of sines.
        eps: the error that fast transforms are asked for; None for products.
        by_products: whether products are used in spite of `eps`; None if that does not depend on the points.
    """

    center: Float[Array, " d"]
    period: Float[Array, " d"]
    counts: Int[Array, " d"]
    indices: Int[Array, "blocks d"] | None
    numbers: Float[Array, " waves"]
    eps: Float[Array, ""] | None = None
    by_products: Bool[Array, ""] | None = None

    @property
    def at_once(self) -> bool:
        """Whether all waves are computed, whatever the points."""
        return self.indices is None


def nodes(
    most: int,
    center: Array,
    extent: Array,
    scale: Array,
    tolerance: Any,
    ratio: Any = 1.0,
    *,
    at_once: bool = False,
) -> tuple[Nodes, Bool[Array, ""], Float[Array, ""]]:
    """Nodes of a box, with √τ as `scale` (D,), for an error of Φ; whether `most` blocks are enough; the error.

    Blocks are full: waves beyond those that the tolerance needs lengthen the period and reduce the error. The nodes
    also serve Gaussians up to `ratio` times as wide, because the period is longer by as much. `at_once`: all blocks are
    computed whatever the points, so that nothing waits for a device; if they are not enough, all sums are NaN.
    """
    dim, dtype = len(center), center.dtype
    at_once &= WAVES[dim] * most <= STEPS
    length = extent * scale
    blocks = blocks_of(jnp, length, tolerance, ratio)
    counts = jnp.minimum(blocks, most)
    beyond = (jnp.sqrt(jnp.square(length) + 8 * math.pi * ratio * WAVES[dim] * counts) - length) / (2 * ratio)
    beyond = jnp.minimum(beyond, LONGEST)
    period = (length + ratio * beyond) / scale
    fit = ((blocks <= most) & jnp.isfinite(center + period) & (period > 0)).all()
    numbers = np.repeat(np.arange(WAVES[dim] * most).reshape(most, 1, WAVES[dim]), 2, 1).ravel()
    found = Nodes(
        jnp.where(fit, center, jnp.nan if at_once else 0).astype(dtype),
        jnp.where(fit, period, 1).astype(dtype),
        jnp.where(fit, counts, 1).astype("int32"),
        None,
        jnp.asarray(numbers, dtype),
    )
    if not at_once:
        strides = jnp.where(np.tri(dim, k=-1, dtype=bool), found.counts[None], 1).prod(1, dtype="int32")
        each = np.arange(most**dim, dtype="int32")[:, None]
        every = jnp.broadcast_to(found.counts, (most**dim, dim))
        found = found._replace(indices=lax.rem(lax.div(*jnp.broadcast_arrays(each, strides[None])), every))
    return found, fit, 4 * jnp.exp(jnp.square(beyond) / -2).sum()


def tolerance_of(xp: Any, dtype: str, extent: Any) -> Any:
    """The error ε of Φ, for a box in bandwidths, that in the mean over its queries is negligible beside rounding."""
    return xp.maximum(xp.minimum(1, SHARE / extent).prod(-1) * float(np.finfo(dtype).eps), 1e-30).astype(extent.dtype)


def blocks_of(xp: Any, length: Float[Array | np.ndarray, "*boxes d"], tolerance: Any, ratio: Any = 1.0) -> Any:
    """The number of blocks of waves of each coordinate, for a box in bandwidths and an error. `xp` is NumPy or JAX."""
    dim = length.shape[-1]
    beyond = xp.sqrt(2 * xp.log(4 * dim / tolerance))[..., None]
    return xp.floor((length + ratio * beyond) * beyond / (2 * math.pi) / WAVES[dim]) + 1


def with_blocks(settings: Settings, tau: Any, queries: Any, keys: Any) -> Settings:
    """The settings with the number of blocks of waves that arrays of points need on CUDA, for which the host waits.

    ValueError if they need more than there are. The number stays unknown where each coordinate has its τ, and for a
    batch whose boxes differ so much that one box of all needs more.
    """
    arrays = [jnp.asarray(x) for x in jax.tree.leaves((queries, keys))]
    if isinstance(tau, tuple):
        return settings
    lower, upper = ([np.asarray(f(x, axis=-2), "float64") for x in arrays] for f in (jnp.min, jnp.max))
    dim, most = arrays[0].shape[-1], MOST[arrays[0].shape[-1]]
    precision = settings.precision
    scales = np.sqrt(np.asarray(tau, "float64"))[..., None] * (1 + 1e-5)  # the device may round the other way

    def needed(scale: np.ndarray, lower: list[np.ndarray], upper: list[np.ndarray]) -> tuple[float, np.ndarray]:
        length = (functools.reduce(np.maximum, upper) - functools.reduce(np.minimum, lower)) * scale
        length = np.maximum(length, 1e-30)
        error = settings.tolerance or tolerance_of(np, precision, length)
        return blocks_of(np, length, error).max(), length.reshape(-1, dim).max(0)

    of_each, length = needed(scales, lower, upper)
    if most < of_each < math.inf:
        size = " × ".join(f"{x:.0f}" for x in length)
        raise ValueError(
            f"`jaxgauss.{settings.function}`: on CUDA 'fourier' has {most * WAVES[dim]} waves of a coordinate;"
            f" got points in a box of {size} bandwidths, which takes {of_each * WAVES[dim]:.0f}. Use a smaller tau or a"
            " larger tolerance, or leave the engine on 'auto'."
        )
    ends = ([f(x.reshape(-1, dim), 0) for x in y] for f, y in ((np.min, lower), (np.max, upper)))
    of_all, _ = needed(scales.max(), *ends)
    blocks = next((x for x in sorted({min(2**i, most) for i in range(8)}) if of_all <= x), None)
    return replace(settings, blocks=blocks)


def spectrum(
    of: Nodes, scale: Float[Array, "t d"], shares: Float[Array, " t"], along: int | None = None
) -> Float[Array, "..."]:
    """g of all waves (waves, …) of Gaussians with these shares, zero beyond the blocks in use; differentiable in τ.

    With `along`, g of Σ Φ v u, u of that coordinate, for ∂²S = Σ (u - 1) Φ v in bandwidths.
    """
    dim, period, numbers = len(of.period), (of.period[None] * scale)[..., None], of.numbers[None, None]
    omega = 2 * math.pi / period * numbers
    is_there = numbers < (of.counts * WAVES[dim])[None, :, None].astype(period.dtype)
    size = jnp.where(is_there, jnp.where(numbers == 0, 1, 2), 0) * (math.sqrt(2 * math.pi) / period)
    factors = size * jnp.exp(jnp.square(omega) / -2)
    if along is not None:
        factors *= jnp.where(np.arange(dim)[None, :, None] == along, 1 - jnp.square(omega), 1)
    total = shares[:, None]
    for d in range(dim - 1):
        total = (total[:, :, None] * factors[:, d, None]).reshape(len(shares), -1)
    return dot(total.T, factors[:, -1]).reshape([numbers.size] * dim)
