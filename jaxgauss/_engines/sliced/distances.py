"""Sums of distances by sorting: ‖x‖ is a multiple of the mean of |⟨ξ, x⟩| over directions ξ, and exact along each.

With keys t_n in order along a line, Σ_n |t - t_n| v_n takes the sums of v and of v t below t alone: O(N log N) in all.

Source: Hertrich, Wald, Altekrüger & Hagemann, "Generative Sliced MMD Flows with Riesz Kernels", 2024,
arXiv:2305.11463.
"""

import math

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from ..._arrays.devices import vary_like
from ..._arrays.points import dot

PASSES = 2**21  # numbers of points and directions at a time
FARTHEST = 1e17  # from the center; coordinates beyond it lie there, so that sums are finite


def distance_sums(
    directions: Float[Array, "p d"],
    queries: Float[Array, "m d"],
    keys: Float[Array, "n d"],
    values: Float[Array, "n c"],
) -> Float[Array, "m c"]:
    """Σ_n ‖q_m - k_n‖ v_n, the mean over the directions of what each gives."""
    queries, keys = (jnp.clip(x, -FARTHEST, FARTHEST) for x in (queries, keys))
    (num, dim), size = directions.shape, queries.shape[0] + keys.shape[0]
    some = max(1, min(num, PASSES // size))
    parts = jnp.pad(directions, ((0, -num % some), (0, 0))).reshape(-1, some, dim)  # zeros add nothing
    along = jax.vmap(_along, (0, None, None, None))

    def add(total: Array, part: Array) -> tuple[Array, None]:
        return total + along(part, queries, keys, values).sum(0), None

    zeros = vary_like(jnp.zeros((queries.shape[0], values.shape[1]), values.dtype), [queries, keys, values])
    factor = math.sqrt(math.pi) * math.exp(math.lgamma((dim + 1) / 2) - math.lgamma(dim / 2)) / num
    return factor * lax.scan(jax.checkpoint(add), zeros, parts)[0]


def _along(direction: Float[Array, " d"], queries: Array, keys: Array, values: Array) -> Float[Array, "m c"]:
    """Σ_n |⟨ξ, q_m - k_n⟩| v_n."""
    q, k = dot(queries, direction), dot(keys, direction)
    order = jnp.argsort(k)
    k, v = k[order], values[order]
    sums = jnp.pad(jnp.cumsum(jnp.concatenate([v, k[:, None] * v], 1), 0), ((1, 0), (0, 0)))
    below = sum(sums[jnp.searchsorted(k, q, side=side)] for side in ("left", "right")) / 2  # of equals one half
    (mass, moment), (all_mass, all_moment) = (jnp.split(x, 2, -1) for x in (below, sums[-1:]))
    return q[:, None] * (2 * mass - all_mass) - (2 * moment - all_moment)
