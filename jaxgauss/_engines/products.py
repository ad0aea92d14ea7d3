"""u = ‖a - b‖² of tiles by one product, and gradients of sums of kernels of it: of points near one another."""

import functools

import jax.numpy as jnp
from jaxtyping import Array

from .._arrays.logits import dot
from .._arrays.points import Scaled
from .._arrays.shapes import G, V
from .channels import Channels
from .tiles import in_groups, tiled_pullback


def squares_factors(a: Scaled, b: Scaled) -> tuple[Array, Array]:
    """[-2a, 1, ‖a‖²] and [b, ‖b‖², 1], whose product is u."""
    ones = [jnp.ones_like(x.norms) for x in (a, b)]
    return jnp.concatenate([-2 * a.points, ones[0], a.norms], -1), jnp.concatenate([b.points, b.norms, ones[1]], -1)


def squared_distances_of(first: Array, second: Array) -> Array:
    """The product of such factors."""
    return jnp.maximum(dot(first, second.mT), 0)


def product_pullback(
    channels: Channels, a: Scaled, b: Scaled, values: V, g: G, *, whole: bool, with_tau: bool
) -> tuple[Array, ...]:
    """Gradients of the whole batch: with respect to scaled points and values, and -Σ_mn S u (*batch,)."""
    dim = a.points.shape[-1]

    def pull(first: Array, second: Array, v: Array, g: Array) -> tuple[Array, ...]:
        u = squared_distances_of(first, second)
        return _pull(channels, first[..., :dim] / -2, second[..., :dim], u, v, g, with_tau)

    factors = squares_factors(a, b)
    return in_groups(functools.partial(tiled_pullback, pull, dim, whole=whole), *factors, values, g)


def _pull(channels: Channels, x: Array, y: Array, u: Array, v: Array, g: Array, with_tau: bool) -> tuple[Array, ...]:
    """Of a tile, da (…, rows, D), dbᵀ (…, D, columns), dvᵀ (…, C, columns) and -Σ S u (…).

    g and v of one channel go with the points, not with ψ: nothing else of a tile's size is made.
    """
    batch = jnp.broadcast_shapes(*(z.shape[:-2] for z in (x, y, v, g)))
    x1, y1 = (jnp.concatenate([z, jnp.ones_like(z[..., :1])], -1) for z in (x, y))  # S [b, 1]: S b and its row sums
    parts, dv = channels.pull(u, v, g)
    da = functools.reduce(jnp.add, (left * dot(s, right * y1) for s, left, right in parts))
    db = functools.reduce(jnp.add, (right.mT * dot((left * x1).mT, s) for s, left, right in parts))
    total = jnp.zeros(batch, u.dtype)
    if with_tau:
        total -= functools.reduce(jnp.add, ((s * u * left * right.mT).sum((-2, -1)) for s, left, right in parts))
    da, db = da[..., :-1] - da[..., -1:] * x, db[..., :-1, :] - db[..., -1:, :] * y.mT
    return *(jnp.broadcast_to(z, (*batch, *z.shape[-2:])) for z in (da, db, dv)), total
