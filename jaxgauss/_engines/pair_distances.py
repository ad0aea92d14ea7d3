"""Squared distances of tiles of pairs, with the digits that kernels of all scales need, also where points coincide."""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from .._arrays.devices import has_cuda
from .._arrays.points import difference_logits, dot
from .._kernels.kernels import Kernel
from .near import unbatched
from .programs import in_float64
from .settings import Settings

ERRORS = {"float32": 1e-6, "float64": 3e-13}  # of exponents
ROUNDING = 8 * float(jnp.finfo("float64").eps)  # of a squared distance by a product, relative to norms about a center


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def squared_distances(
    kernel: Kernel, rows: Array, columns: Array, c: Array, tau: Array, left_out: Bool[Array, "m n"]
) -> Float[Array, "*batch m n"]:
    """‖x_m - y_n‖² of rows (…, M, D) and columns (…, N, D), for kernels of the largest τ (); zero where left out.

    On a CPU by float64 products about the center c (…, 1, D); by differences of coordinates if kernel exponents would
    have errors above `ERRORS`, as for points that nearly coincide beside others far away.
    """

    def by_differences(rows: Array, columns: Array) -> Array:
        return -2 * difference_logits(jnp.ones_like(rows[..., :1, :1]), rows, columns)

    if has_cuda():
        return jnp.where(left_out, 0, by_differences(rows, columns))
    u, extent = in_float64(Settings(dtype=rows.dtype.name), _products, rows - c, columns - c)
    nearest = jnp.where(left_out, jnp.inf, u).min((-2, -1))
    are_accurate = _look(kernel.kinked, ERRORS[u.dtype.name])(nearest, extent, tau)
    u = lax.cond(are_accurate, lambda u, *_: u, lambda _, *points: by_differences(*points), u, rows, columns)
    return jnp.where(left_out, 0, u)


def _products(_: Settings, a: Array, b: Array) -> tuple[Array, Array]:
    """‖a - b‖² of all pairs (…, M, N); and the largest sum of two squared norms (…)."""
    first, second = (jnp.square(x).sum(-1) for x in (a, b))
    u = first[..., :, None] + second[..., None, :] - 2 * dot(a, b.mT)
    return jnp.maximum(u, 0), first.max(-1) + second.max(-1)


@squared_distances.defjvp
def _tangent(kernel: Kernel, primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> tuple[Array, Array]:
    """Of plain functions, so that derivatives of every order and mode are right, however JAX inlines them.

    With x₀ = x and y₀ = y that are not differentiated, ‖x - y‖² - ‖x₀ - y₀‖² = ⟨x + x₀ - y - y₀, (x - x₀) - (y - y₀)⟩:
    zero, with the derivatives of the first term.
    """
    rows, columns, c, _, left_out = primals
    u, c = squared_distances(kernel, *map(lax.stop_gradient, primals)), lax.stop_gradient(c)

    def plain(rows: Array, columns: Array) -> Array:
        x, y = rows - c, columns - c
        (sum_x, d_x), (sum_y, d_y) = ((z + lax.stop_gradient(z), z - lax.stop_gradient(z)) for z in (x, y))
        own = (sum_x * d_x).sum(-1)[..., :, None] + (sum_y * d_y).sum(-1)[..., None, :]
        crossed = dot(jnp.concatenate([sum_x, d_x], -1), jnp.concatenate([d_y, sum_y], -1).mT)
        return u + jnp.where(left_out, 0, own - crossed)

    return jax.jvp(plain, (rows, columns), tangents[:2])


@functools.cache
def _look(kinked: bool, error: float):
    """Whether products are accurate enough; one boolean, also under `vmap`."""

    def are_accurate(nearest: Array, extent: Array, tau: Array) -> Bool[Array, ""]:
        roots = jnp.sqrt(ROUNDING * tau) * jnp.sqrt(extent)  # of errors of τ ‖x - y‖²
        if not kinked:
            return (roots <= error**0.5).all()
        return ((roots <= error) | (roots * jnp.sqrt(ROUNDING * extent) <= 2 * error * jnp.sqrt(nearest))).all()

    return unbatched(are_accurate)
