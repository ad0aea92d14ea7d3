"""Sums over random waves: what the keys give to each wave, and what these give to each query.

With θ = r ⟨ξ, x⟩ of a wave, A_w = Σ_n v_n cos θ_wn and B_w = Σ_n v_n sin θ_wn, a sum is 1/PJ Σ_w A_w cos θ_wm + B_w sin
θ_wm. The two steps are each other's transposes, and both are linear in their last operand. Of points x_n with weights
g_n the gradient of Σ_n ⟨g_n, Σ_w A_w cos θ_wn + B_w sin θ_wn⟩ is Σ_w r_w ξ_w ⟨g_n, B_w cos θ_wn - A_w sin θ_wn⟩. So the
rules below hold for both, and for every order, as they are made of plain JAX. All take some points at a time.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from ..._arrays.custom_rule import with_pullback
from ..._arrays.devices import has_cuda, vary_like
from ..._arrays.points import dot
from ..._arrays.shapes import are_known
from ..._arrays.sine import circle
from .directions import Directions

NUMBERS = {False: 2**18, True: 2**24}  # of points and waves at a time, on CUDA or not
FARTHEST = 1e28  # bandwidths; points beyond it lie there: their squares and angles are finite


def _wave_sums(of: Directions, keys: Float[Array, "n d"], values: Float[Array, "n c"]) -> Float[Array, "waves c"]:
    zeros = jnp.zeros((2 * of.frequencies.size, values.shape[1]), values.dtype)

    def add(total: Array, part: tuple[Array, Array]) -> tuple[Array, None]:
        return total + jnp.concatenate([dot(x, part[1]) for x in _waves(of, part[0])]), None

    return lax.scan(jax.checkpoint(add), vary_like(zeros, [keys, values]), _in_parts(of, keys, values))[0]


def _wave_values(of: Directions, queries: Float[Array, "m d"], found: Float[Array, "waves c"]) -> Float[Array, "m c"]:
    of_cosines, of_sines = jnp.split(found.T, 2, 1)

    def at(points: Array) -> Array:
        cosines, sines = _waves(of, points)
        return (dot(of_cosines, cosines) + dot(of_sines, sines)).T

    return _of_points(of, at, queries)


def _slopes(of: Directions, points: Float[Array, "n d"], found: Float[Array, "waves c"], g: Float[Array, "n c"]):
    """Σ_w r_w ξ_w ⟨g_n, B_w cos θ_wn - A_w sin θ_wn⟩ (N, D)."""
    of_cosines, of_sines = jnp.split(found, 2)
    paired = jnp.multiply if g.shape[1] == 1 else dot

    def at(points: Array, g: Array) -> Array:
        cosines, sines = _waves(of, points)
        slopes = paired(of_sines, g.T) * cosines - paired(of_cosines, g.T) * sines
        slopes = slopes.reshape(*of.frequencies.shape, len(points))
        turns = 2 * math.pi * of.frequencies[:, None] * of.directions.T[None]
        return functools.reduce(jnp.add, map(dot, turns, slopes)).T  # XLA takes longer to add several frequencies first

    return _of_points(of, at, points, g)


def _sums_pullback(operands: tuple, g: Array) -> tuple:
    of, keys, values = operands
    return None, _slopes(of, keys, g, values), wave_values(of, keys, g)


def _values_pullback(operands: tuple, g: Array) -> tuple:
    of, queries, found = operands
    return None, _slopes(of, queries, found, g), wave_sums(of, queries, g)


wave_sums = with_pullback(_wave_sums, 0, _sums_pullback)  # A_w, then B_w, of keys in bandwidths and values
wave_values = with_pullback(_wave_values, 0, _values_pullback)  # Σ_w A_w cos θ_wm + B_w sin θ_wm of queries


def _of_points(of: Directions, function: Callable[..., Array], *arrays: Array) -> Array:
    """The function's rows of all points, some at a time."""
    parts = _in_parts(of, *arrays)
    found = lax.map(lambda part: jax.checkpoint(function)(*part), parts)
    return found.reshape(-1, found.shape[2])[: arrays[0].shape[0]]


def _waves(of: Directions, points: Float[Array, "n d"]) -> tuple[Array, Array]:
    """Cosines and sines of all waves, (waves, N): a row for each wave, which XLA sums three times as fast."""
    along = dot(of.directions, jnp.clip(points, -FARTHEST, FARTHEST).T)
    return circle((of.frequencies[:, :, None] * along[None]).reshape(of.frequencies.size, len(points)))


def _in_parts(of: Directions, *arrays: Array) -> list[Array]:
    """Rows in equal parts, padded with zeros."""
    num = arrays[0].shape[0]
    if not are_known(num):
        return [x[None] for x in arrays]
    some = max(8, NUMBERS[has_cuda()] // of.frequencies.size)
    parts = max(1, -(-num // some))
    rows = -(-num // parts)
    return [jnp.pad(x, ((0, parts * rows - num), (0, 0))).reshape(parts, rows, x.shape[1]) for x in arrays]
