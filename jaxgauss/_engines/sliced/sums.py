"""Sums over random directions: what the keys give to each wave, and what these give to each query.

Plain JAX, some points at a time, which JAX differentiates and maps. What reverse mode needs of a part is formed again.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from ..._arrays.devices import has_cuda, vary_like
from ..._arrays.points import dot
from ..._arrays.shapes import are_known
from ..._arrays.sine import circle
from .directions import Directions

NUMBERS = {False: 2**18, True: 2**24}  # of points and waves at a time, on CUDA or not
FARTHEST = 1e28  # bandwidths; points beyond it lie there: their squares and angles are finite


def wave_sums(of: Directions, keys: Float[Array, "n d"], values: Float[Array, "n c"]) -> Float[Array, "waves c"]:
    """Σ_n v_n cos θ_n, then Σ_n v_n sin θ_n, over all waves of keys in bandwidths."""
    zeros = jnp.zeros((2 * of.frequencies.size, values.shape[1]), values.dtype)

    def add(total: Array, part: tuple[Array, Array]) -> tuple[Array, None]:
        return total + dot(_waves(of, part[0]).T, part[1]), None

    return lax.scan(jax.checkpoint(add), vary_like(zeros, [keys, values]), _in_parts(of, keys, values))[0]


def wave_values(of: Directions, queries: Float[Array, "m d"], found: Float[Array, "waves c"]) -> Float[Array, "m c"]:
    """1/PJ Σ (cos θ_m A + sin θ_m B) of `wave_sums` (A, B) at queries in bandwidths."""
    found = found / of.frequencies.size
    at = jax.checkpoint(lambda x: dot(_waves(of, x), found))
    (parts,) = _in_parts(of, queries)
    return lax.map(at, parts).reshape(-1, found.shape[1])[: queries.shape[0]]


def _waves(of: Directions, points: Float[Array, "n d"]) -> Float[Array, "n waves"]:
    """Cosines, then sines, of all waves."""
    along = dot(jnp.clip(points, -FARTHEST, FARTHEST), of.directions.T)
    turns = (along[:, :, None] * of.frequencies[None]).reshape(len(points), of.frequencies.size)
    return jnp.concatenate(circle(turns), 1)


def _in_parts(of: Directions, *arrays: Array) -> list[Array]:
    """Rows in equal parts, padded with zeros."""
    num = arrays[0].shape[0]
    if not are_known(num):
        return [x[None] for x in arrays]
    some = max(8, NUMBERS[has_cuda()] // (2 * of.frequencies.size))
    parts = max(1, -(-num // some))
    rows = -(-num // parts)
    return [jnp.pad(x, ((0, parts * rows - num), (0, 0))).reshape(parts, rows, x.shape[1]) for x in arrays]
