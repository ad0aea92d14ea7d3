"""The frame of a Fourier sketch: what its nodes depend on; its coefficients, and the sums that these give."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from ..._arrays.compensated import compensated
from ..._arrays.devices import has_cuda, vary_alike
from .frequencies import DIMENSIONS as DIMENSIONS
from .frequencies import WAVES, Nodes, blocks_of, nodes, spectrum, tolerance_of
from .series import coefficients, values_at


class Frame(NamedTuple):
    """What the nodes of a sketch depend on, as arrays: another τ or box compiles nothing.

    Attributes:
        lower, upper: corners of the box, about the origin of the waves (D,).
        scale: √τ of each coordinate (D,).
        tolerance: of the sketch, ().
    """

    lower: Float[Array | np.ndarray, " d"]
    upper: Float[Array | np.ndarray, " d"]
    scale: Float[Array | np.ndarray, " d"]
    tolerance: Float[Array | np.ndarray, ""]

    def nodes(self, coefficients: Float[Array, "c ..."]) -> Nodes:
        """The nodes of coefficients in the layout of a sketch; rounded alike in every program, even where known."""
        lower, upper, scale, tolerance = lax.optimization_barrier(tuple(map(jnp.asarray, self)))
        most, extent = coefficients.shape[1] // (2 * WAVES[len(lower)]), upper - lower
        return nodes(most, lower + extent / 2, extent, scale, tolerance, at_once=has_cuda())[0]

    def holds(self, points: Float[Array, "n d"], margin: float | Array = 0.0) -> Bool[Array, " n"]:
        """Whether points about the origin are in the box, or at most a margin outside of it; NaN is not."""
        lower, upper = (jnp.asarray(x)[None] for x in self[:2])
        return ((points >= lower - margin) & (points <= upper + margin)).all(-1)


def check_tolerance(function: str, tolerance: Any) -> None:
    """Raise TypeError or ValueError unless the tolerance is None or a number between 0 and 1."""
    where = f"`jaxgauss.{function}`: `tolerance` must be"
    if tolerance is None:
        return
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float | np.floating):
        raise TypeError(f"{where} a number; got {type(tolerance).__name__}. Pass one such as 1e-4.")
    if not 0 < tolerance < 1:
        raise ValueError(f"{where} between 0 and 1; got {tolerance}. Pass one such as 1e-4.")


def least_tolerance(dtype: np.dtype, length: Float[np.ndarray, " d"]) -> float:
    """A tolerance below rounding, for a box in bandwidths."""
    return float(tolerance_of(np, dtype.name, np.maximum(length, 1e-30)))


def coefficients_needed(length: Float[np.ndarray, " d"], tolerance: float) -> float:
    """The number of coefficients of a coordinate, for a box in bandwidths; it may be infinite."""
    with np.errstate(over="ignore"):
        return 2 * WAVES[len(length)] * blocks_of(np, length, tolerance).max()


@jax.jit
def in_frame(frame: Frame, empty: Array, keys: Any, values: Any, margin: Any) -> Array:
    """Coefficients of keys about the origin, in the layout of a sketch.

    A key outside of the box has the value NaN; with a margin, a key outside of that has the value zero.
    """
    dtype = empty.dtype
    if not len(keys):
        return jnp.zeros_like(empty)
    keys, values = vary_alike(*(jnp.asarray(x, dtype) for x in (keys, values)))
    inside = frame.holds(keys, jnp.asarray(0 if margin is None else margin, dtype))
    elsewhere = jnp.where(jnp.isnan(keys).any(-1) | (margin is None), jnp.nan, 0)
    values = values[:, None] if values.ndim == 1 else values
    values = jnp.where(inside[:, None], values, elsewhere[:, None].astype(dtype))
    of = frame.nodes(empty)
    return coefficients(of, jnp.where(inside[:, None], keys, of.center[None]), values.T)


@functools.partial(jax.jit, static_argnums=0)
def sums_in_frame(one_weight: bool, frame: Frame, found: Array, rounding: Array, queries: Array) -> Array:
    """The sums at queries (…, M, D) about the origin; NaN outside of the box."""
    points = jnp.asarray(queries, found.dtype).reshape(-1, len(frame.lower))
    of, inside = frame.nodes(found), frame.holds(points)[:, None]
    g = spectrum(of, jnp.asarray(frame.scale)[None], jnp.ones(1, found.dtype))
    found = compensated(found, rounding) * g[None]
    sums = jnp.zeros((0, len(found)), found.dtype)
    if len(points):
        sums = values_at(of, *vary_alike(jnp.where(inside, points, of.center[None]), found)).T
    sums = jnp.where(inside, sums, jnp.nan).reshape(*queries.shape[:-1], len(found))
    return sums[..., 0] if one_weight else sums
