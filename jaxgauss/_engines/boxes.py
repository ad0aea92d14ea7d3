"""Boxes of points, and boxes of nearly all of them: a few points that lie far away make no box wide.

Of a box of nearly all, queries outside are in doubt; keys that no query within sees are left out.
"""

import functools
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

# Points go in turn to groups, whose ends are sorted: the points beyond an end of a box are of that many groups.
GROUPS, BEYOND = 512, (0, 4, 32, 256)
LEAST = 8 * GROUPS  # points, of which a few may be left out


class Box(NamedTuple):
    """Ends (2, D) of queries whose sums are made, and of the keys that these see.

    Attributes:
        error: which a key outside makes, in units of Φ.
    """

    of_queries: Float[Array, "2 d"]
    of_keys: Float[Array, "2 d"]
    error: Float[Array, ""]

    @property
    def extent(self) -> Float[Array, " d"]:
        """Of all that is summed."""
        return self.of_keys[1] - self.of_keys[0]

    @property
    def center(self) -> Float[Array, " d"]:
        """Likewise."""
        return self.of_keys[0] + self.extent / 2


def box(*points: Float[Array, "_ d"], axes: tuple[str, ...] = ()) -> Box:
    """That of all points, and of those along axes of a mesh; without NaN."""
    least = functools.reduce(jnp.minimum, [_ends(jnp, x) for x in points])
    ends = _signed(lax.pmin(least, axes) if axes else least)
    return Box(ends, ends, jnp.zeros((), ends.dtype))


def boxes(xp: Any, *points: Float[Array | np.ndarray, "_ d"]) -> Any:
    """Ends of the box of all points, and of ever smaller ones of nearly all (boxes, 2, D). `xp` is NumPy or JAX."""
    return _signed(functools.reduce(xp.minimum, [_ranked(xp, x) for x in points]))


def points_beyond(num: int) -> np.ndarray:
    """How many points are beyond an end of each of so many boxes, if they come in any order."""
    return -GROUPS * np.log1p(-np.array(BEYOND[:num]) / GROUPS)


def outside(ends: Float[Array, "2 d"], points: Float[Array, "n d"]) -> Bool[Array, " n"]:
    """Which of the points; what is no number is not."""
    return ((points < ends[:1]) | (points > ends[1:])).any(1)


def _ranked(xp: Any, x: Any) -> Any:
    """The least, and minus the largest, of each coordinate: of all, and without the ends of a few groups."""
    if len(x) < LEAST:
        return _ends(xp, x)[None]
    num = len(x) // GROUPS * GROUPS
    parts = x[:num].reshape(-1, GROUPS, x.shape[1]), x[num:][None]
    groups = xp.concatenate([_ends(xp, part).swapaxes(0, 1) for part in parts])
    return xp.sort(groups, axis=0)[np.array(BEYOND)]


def _ends(xp: Any, x: Any) -> Any:
    """The least, and minus the largest, along the first axis, by one pass; without NaN."""
    if xp is np:
        return np.stack([np.fmin.reduce(x), -np.fmax.reduce(x)])

    def both(x: tuple[Array, Array], y: tuple[Array, Array]) -> tuple[Array, Array]:
        return jnp.minimum(x[0], y[0]), jnp.minimum(x[1], y[1])

    x = lax.optimization_barrier(x)  # or XLA would reduce a constant when it compiles, and take seconds
    known, inf = ~jnp.isnan(x), jnp.asarray(jnp.inf, x.dtype)
    return jnp.stack(lax.reduce((jnp.where(known, x, inf), jnp.where(known, -x, inf)), (inf, inf), both, (0,)))


def _signed(least: Any) -> Any:
    return least * np.array([[1], [-1]], least.dtype).reshape(*[1] * (least.ndim - 2), 2, 1)
