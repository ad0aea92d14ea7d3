"""Boxes of all points, and of nearly all, which a few distant points do not widen.

Queries outside of the box are in doubt. Keys beyond a margin around it are left out, because Φ between them and the
queries inside is negligible.
"""

import functools
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

# Points are dealt out to groups, whose ends are sorted. Each end of a box leaves out the ends of BEYOND groups.
GROUPS, BEYOND = 512, (0, 4, 32, 256)
LEAST = 8 * GROUPS  # number of points from which a few may be left out
TAIL, SOME = 5.0, 2**14  # bandwidths from all keys beyond which waves leave queries in doubt; points that are looked at


class Box(NamedTuple):
    """A box in which points are summed.

    Attributes:
        of_queries: the ends of the box that holds the queries.
        of_keys: the ends of the wider box that holds the keys.
        error: the error of leaving out a key, relative to its value.
    """

    of_queries: Float[Array, "2 d"]
    of_keys: Float[Array, "2 d"]
    error: Float[Array, ""]

    @property
    def extent(self) -> Float[Array, " d"]:
        """The size of the keys' box."""
        return self.of_keys[1] - self.of_keys[0]

    @property
    def center(self) -> Float[Array, " d"]:
        """The center of the keys' box."""
        return self.of_keys[0] + self.extent / 2


def box(*points: Float[Array | np.ndarray, "_ d"], axes: tuple[str, ...] = ()) -> Box:
    """The box of all points, also over the axes of a mesh; NaN is ignored. NumPy's if the points are."""
    xp: Any = np if isinstance(points[0], np.ndarray) else jnp
    least = functools.reduce(xp.minimum, [_ends(xp, x) for x in points])
    ends = _signed(lax.pmin(least, axes) if axes else least)
    return Box(ends, ends, xp.zeros((), ends.dtype))


def boxes(xp: Any, *points: Float[Array | np.ndarray, "_ d"]) -> Any:
    """Ends of the box of all points, and of smaller ones of nearly all, (boxes, 2, D). `xp` is NumPy or JAX."""
    return _signed(functools.reduce(xp.minimum, [_ranked(xp, x) for x in points]))


def points_beyond(num: int) -> np.ndarray:
    """The expected number of points beyond an end of each of the first `num` boxes, for points in random order."""
    return -GROUPS * np.log1p(-np.array(BEYOND[:num]) / GROUPS)


def share_in_tails(scale: Any, ends: Any, queries: np.ndarray, keys: np.ndarray) -> float:
    """The share of the queries in a box that have no key within TAIL bandwidths, or half as many again; of samples.

    Keys mark the cells of a grid, and those around them. `scale` is √τ.
    """
    side = TAIL / 2 / scale
    shape = np.floor((ends[1] - ends[0]) / side).astype(int) + 1

    def cells(x: np.ndarray) -> tuple[np.ndarray, ...]:
        places = np.floor((x[:: -(-len(x) // SOME)] - ends[0]) / side)
        inside = ((places >= 0) & (places < shape)).all(1)  # false for NaN
        return tuple(places[inside].astype(int).T)

    marked, own = np.zeros(shape, bool), cells(queries)
    marked[cells(keys)] = True
    for axis, num in enumerate(shape):
        before = np.moveaxis(marked.copy(), axis, 0)
        after = np.moveaxis(marked, axis, 0)
        for step in range(1, min(3, num)):
            after[step:] |= before[:-step]
            after[:-step] |= before[step:]
    return 1 - float(marked[own].mean()) if own[0].size else 0.0


def outside(ends: Float[Array, "2 d"], points: Float[Array, "n d"]) -> Bool[Array, " n"]:
    """Whether each point is outside; NaN is not."""
    return ((points < ends[:1]) | (points > ends[1:])).any(1)


def _ranked(xp: Any, x: Any) -> Any:
    """`_ends` of all points, and those that remain without the outermost ends of a few groups."""
    if len(x) < LEAST:
        return _ends(xp, x)[None]
    num = len(x) // GROUPS * GROUPS
    parts = x[:num].reshape(-1, GROUPS, x.shape[1]), x[num:][None]
    groups = xp.concatenate([_ends(xp, part).swapaxes(0, 1) for part in parts])
    return xp.sort(groups, axis=0)[np.array(BEYOND)]


def _ends(xp: Any, x: Any) -> Any:
    """The minimum, and minus the maximum, along the first axis, from one pass; NaN is ignored."""
    if xp is np:
        return np.stack([np.fmin.reduce(x), -np.fmax.reduce(x)])

    def both(x: tuple[Array, Array], y: tuple[Array, Array]) -> tuple[Array, Array]:
        return jnp.minimum(x[0], y[0]), jnp.minimum(x[1], y[1])

    x = lax.optimization_barrier(x)  # else XLA reduces a constant while it compiles, for seconds
    known, inf = ~jnp.isnan(x), jnp.asarray(jnp.inf, x.dtype)
    return jnp.stack(lax.reduce((jnp.where(known, x, inf), jnp.where(known, -x, inf)), (inf, inf), both, (0,)))


def _signed(least: Any) -> Any:
    return least * np.array([[1], [-1]], least.dtype).reshape(*[1] * (least.ndim - 2), 2, 1)
