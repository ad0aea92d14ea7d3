"""The engine of radial kernels: XLA sums κ(u), u = τ‖q - k‖², and pulls, for several kernels at once.

For near points, products about one center give u, a tile at a time. For all others, and for kernels with a kink, which
are functions of √u, each tile keeps its own digits.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from .._arrays.devices import vary_like
from .._arrays.points import (
    by_point,
    of_coordinates,
    scaled_points,
    unbroadcast,
    with_norms,
)
from .._arrays.shapes import G, K, Q, T, V
from .._kernels.kernels import GAUSS, Kernel
from .branches import one_of_two
from .clusters.sorted_tiles import share_left, sorts
from .far import blocks_that_may_pay, sums_anywhere
from .fourier.cost import waves_pay_here
from .fourier.sums import SUMS, Promise, in_64_bit_mode, sums_of_sides
from .plan import STRICTER, Plan
from .products.pair_sums import product_pullback, sums_by_products, within
from .request import NOTHING, Channels, PairSums, Request
from .scopes import scope
from .tiles import one_by_one


def pair_sums_in_xla(request: Request, plan: Plan, *operands: Array) -> PairSums:
    """`PairSums` of queries, keys, values, τ, and the weights of rows and of columns, all of equal rank."""

    def near(*operands: Array) -> PairSums:
        return _varying(sums_by_products(request, *operands, dense=plan.method == "dense"), operands)

    def anywhere(*operands: Array) -> PairSums:
        return _varying(sums_anywhere([request], plan, *operands)[0], operands)

    return _near_or_anywhere(request, plan, near, anywhere, *operands)


def _varying(sums: PairSums, operands: Sequence[Array]) -> PairSums:
    """The sums as both branches must have them over a mesh: those without columns, too."""
    return jax.tree.map(lambda x: vary_like(x, operands), sums)


def radial_pullback_in_xla(
    channels: Channels, plan: Plan, queries: Q, keys: K, values: V, tau: T, cotangent: G, *, with_tau: bool = True
) -> tuple[Q, K, V, T]:
    """Gradients of Σ_m ⟨g_m, s_m⟩ in the shapes of the operands; that of τ is valid only `with_tau`.

    With S_mn = Σ_κ ψ(u) ⟨g_m, v_n⟩, ψ = -2κ': dq = τ Σ_n S (k - q), dk = τ Σ_m S (q - k), dτ = -½ Σ S ‖q - k‖², and
    dv = Σ_m κ g_m: all from one pass.
    """
    operands = queries, keys, values, tau, cotangent
    request = Request(channels, channels, with_tau)

    def near(*_: Array) -> Any:
        a, b = with_norms(*scaled_points(queries, keys, tau, base_2=False))
        da, db, dv, d_scale = product_pullback(
            channels, a, b, values, cotangent, dense=plan.method == "dense", with_tau=with_tau
        )
        scale = by_point(jnp.sqrt(tau), queries)
        return _in_shapes((scale * da, scale * db, dv, d_scale / (2 * tau)), operands)

    anywhere = functools.partial(pullback_anywhere, channels, plan, with_tau=with_tau)
    return _near_or_anywhere(request, plan, near, anywhere, *operands)


def _near_or_anywhere(request: Request, plan: Plan, near: Callable, anywhere: Callable, *operands: Array) -> Any:
    """One of two functions, by the points; for Gaussians `anywhere`, because near ones have engines of their own."""
    queries, keys, values, tau, *weights = operands
    near = scope("engine", f"{plan.method} in {plan.precision}")(near)
    if request.kinked or GAUSS in request.kernels or plan.method == "differences":
        return anywhere(*operands)
    if not request.pulls.kernels:
        return one_of_two(within(plan.reach, queries, keys, tau, weights=values), near, anywhere, *operands)
    slopes = [kernel.slope for kernel in request.pulls.kernels]
    pulling = jnp.abs(weights[1] if len(weights) > 1 else values).max(-1, keepdims=True, initial=0)
    is_near = within(
        plan.reach / STRICTER,
        queries,
        keys,
        tau,
        lambda u: functools.reduce(jnp.add, [f(u) for f in slopes]),
        pulling,
    )
    return one_of_two(is_near, near, anywhere, *operands)


def pullback_anywhere(
    channels: Channels, plan: Plan, queries: Q, keys: K, values: V, tau: T, g: G, *, with_tau: bool = True
) -> tuple[Q, K, V, T]:
    """`radial_pullback_in_xla` of points that lie anywhere."""
    request = Request(NOTHING, channels, with_tau), Request(channels, channels, repeats=True, at_keys=True)
    at_queries, at_keys = sums_anywhere(request, plan, queries, keys, keys[..., :0], tau, g, values)
    return gradients_of(at_queries, at_keys, queries, keys, values, tau)


def gradients_of(
    about_queries: PairSums, about_keys: PairSums, queries: Q, keys: K, values: V, tau: T
) -> tuple[Q, K, V, T]:
    """The gradients of the operands, from `PairSums` at the queries and at the keys; the latter hold Σ_m κ g_m."""
    scale = by_point(tau, queries)
    found = scale * about_queries.pulls, scale * about_keys.pulls, about_keys.sums, of_tau(about_queries.spread, tau)
    return _in_shapes(found, (queries, keys, values, tau))


def of_tau(spread: Float[Array, "*batch m s"], tau: T) -> T:
    """The gradient of τ, one or one for each coordinate; zero without a spread."""
    if not spread.shape[-1]:
        return jnp.zeros_like(tau)
    return (spread.sum(-2) if of_coordinates(tau, spread) else spread.sum((-2, -1))) / -2


def waves_pullback(
    request: Request, plan: Plan, otherwise: Callable, operands: Sequence[Array], cotangents: PairSums
) -> tuple[Array, ...]:
    """The gradients of `pair_sums` by waves, if these pay and no query is in doubt, else otherwise(*operands)."""
    most, sizes = blocks_that_may_pay([request], plan, *(operands[i] for i in (0, 1, 2, -1)))
    if not most:
        return otherwise(*operands)

    def with_doubt(promise: Promise | None, *operands: Array) -> tuple[PairSums, Array]:
        queries, keys, values, tau, *weights = operands

        def of_matrix(*operands: Array) -> tuple[PairSums, Array]:
            does, around = waves_pay_here(plan, most, plan.precision, sizes, operands[3], *operands[:2])
            ((sums, doubt),) = sums_of_sides([request], most, plan, promise, operands, sizes, around)
            return sums, doubt.any() | jnp.logical_not(does)

        return one_by_one(of_matrix, queries, keys, values, by_point(jnp.sqrt(tau), queries), *weights)

    def of_waves(cotangents: PairSums, *operands: Array) -> tuple[Array, ...]:
        return jax.vjp(lambda *x: with_doubt(None, *x)[0], *operands)[1](cotangents)

    if plan.platform == "cuda":
        return of_waves(cotangents, *operands)
    promise = None if plan.method == "fourier" else SUMS[plan.precision]
    with jax.enable_x64(True):
        doubt = with_doubt(promise, *map(lax.stop_gradient, operands))[1]
        return lax.cond(doubt.any(), lambda _, *x: otherwise(*x), in_64_bit_mode(of_waves), cotangents, *operands)


def share_of_tiles(kernel: Kernel, plan: Plan, queries: Q, keys: K, tau: T) -> float:
    """The share of tiles that are summed for points that lie anywhere, or the mean share of a batch."""
    if not sorts(plan, queries.shape[-2], *keys.shape[-2:], pulls=False):
        return 1.0
    return float(mean_share(kernel, queries, keys, tau))


@functools.partial(jax.jit, static_argnums=0)
def mean_share(kernel: Kernel, queries: Q, keys: K, tau: T) -> Array:
    share = functools.partial(share_left, kernel)
    return one_by_one(share, queries, keys, by_point(jnp.sqrt(tau), queries)).mean()


def _in_shapes(gradients: tuple[Array, ...], operands: tuple[Array, ...]) -> Any:
    return tuple(unbroadcast(d, x.shape) for d, x in zip(gradients, operands, strict=False))
