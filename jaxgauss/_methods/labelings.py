"""Random labelings of pooled points: which of them are in the first sample, one block of columns at a time."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Key

from .pair_forms import GROUP

ROWS = 8192  # rows of the kernel matrix in one call of an attention kernel
SHUFFLE, NORM = 2**32 - 1, 2**32 - 2  # folded into the random key, as the numbers of labelings are


class Design(NamedTuple):
    """The numbers of points and of labelings: column 0 is all ones, column 1 the actual labels, the others are random.

    If waves compute the forms, `most` is their number of blocks for a coordinate, else 0; `slices` is the number of
    groups of random directions. The points of a bin share a label; the last bin of a sample, if it has fewer points
    than the others, keeps its own.
    """

    num_x: int
    num_y: int
    resampling: str
    num_blocks: int
    columns: int
    estimator: str = "unbiased"
    exact: bool = True
    most: int = 0
    bin_size: int = 1
    slices: int = 0

    @property
    def bins(self) -> tuple[int, int]:
        """The numbers of bins of x and y."""
        return -(-self.num_x // self.bin_size), -(-self.num_y // self.bin_size)

    @property
    def num_bins(self) -> int:
        """The number of labels."""
        return sum(self.bins)

    @property
    def num(self) -> int:
        """The number of pooled points."""
        return self.num_x + self.num_y

    @property
    def rows(self) -> int:
        """Rows of the kernel matrix in one chunk; by waves, all points."""
        if self.most:
            return self.num
        return -(-self.num // -(-self.num // (GROUP if self.exact else ROWS)))

    @property
    def num_chunks(self) -> int:
        return self.slices or -(-self.num // self.rows)


def labels(design: Design, rng_key: Key[Array, ""], block: Array | int) -> Bool[Array, "bins columns"]:
    """Which bins of points are in x, for every labeling of a block."""
    column = block * design.columns + jnp.arange(design.columns)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(rng_key, column)  # labelings do not depend on the blocks
    if design.resampling == "wild":
        half = jnp.float32(0.5)  # its dtype decides that of the random numbers
        swapped = jax.vmap(lambda key: jax.random.bernoulli(key, half, (design.num_x,)), out_axes=1)(keys)
        in_x = jnp.concatenate([~swapped, swapped])
    else:
        full_x, full_y = design.num_x // design.bin_size, design.num_y // design.bin_size
        in_x = _random_subsets(keys, full_x + full_y, full_x)
        own = [(0, num - full) for num, full in zip(design.bins, (full_x, full_y), strict=True)]
        in_x = jnp.concatenate(
            [
                jnp.pad(in_x[:full_x], (own[0], (0, 0)), constant_values=True),
                jnp.pad(in_x[full_x:], (own[1], (0, 0)), constant_values=False),
            ]
        )
    observed = (jnp.arange(design.num_bins) < design.bins[0])[:, None]
    return (column == 0)[None] | jnp.where((column == 1)[None], observed, in_x)


def of_points(design: Design, of_bins: Array) -> Array:
    """A row for each point, from one for each bin."""
    if design.bin_size == 1:
        return of_bins
    x, y = (jnp.repeat(z, design.bin_size, axis=0) for z in jnp.split(of_bins, design.bins[:1]))
    return jnp.concatenate([x[: design.num_x], y[: design.num_y]])


def shuffled(design: Design, rng_key: Key[Array, ""], points: Array) -> Array:
    """Pooled points, of which those of x and those of y are in random order, if bins of them share a label.

    So a bin is a random part of a sample, whatever order its points came in.
    """
    if design.bin_size == 1:
        return points
    keys = jax.random.split(jax.random.fold_in(rng_key, SHUFFLE))
    x, y = jnp.split(points, [design.num_x])
    return jnp.concatenate([jax.random.permutation(key, z) for key, z in zip(keys, (x, y), strict=True)])


def _random_subsets(keys: Key[Array, " columns"], num: int, size: int) -> Bool[Array, "num columns"]:
    """Uniform random subsets of a given size, one per column, by selection sampling; ten times as fast here as sorting.

    Source: Knuth, "The Art of Computer Programming", volume 2, section 3.4.2, algorithm S.
    """

    def select(missing: Array, point: tuple[Array, Array]) -> tuple[Array, Array]:
        uniform, left = point
        taken = uniform * left < missing
        return missing - taken.astype(missing.dtype), taken

    uniform = jax.vmap(lambda key: jax.random.uniform(key, (num,), jnp.float32), out_axes=1)(keys)
    left = jnp.arange(num, 0, -1, dtype=jnp.float32)
    return lax.scan(select, jnp.full(len(keys), size, jnp.float32), (uniform, left))[1]
