"""The engine of radial kernels: XLA sums κ(u), u = τ‖q - k‖², and pulls, for several kernels at once.

For near points, products about one center give u, a tile at a time. For all others, and for kernels with a kink, which
are functions of √u, each tile keeps its own digits.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from .._arrays.devices import vary_like
from .._arrays.points import (
    as_rows,
    by_point,
    for_sums,
    of_coordinates,
    scaled_points,
    shared,
    unbroadcast,
    with_norms,
    with_rank,
)
from .._arrays.shapes import G, K, Q, T, V
from .._checks.hidden import without_hidden
from .._kernels.kernels import GAUSS, Kernel
from .all_pairs import sums_by_differences
from .anywhere import anywhere_sums, share_left, sorts
from .branches import one_of_two
from .few_dimensions import Sizes, at_most, most_blocks, rows_of, waves_or_tiles, waves_pay_here
from .marks import mark
from .plan import STRICTER, Plan
from .products import product_pullback, sums_by_products, within
from .tiles import one_by_one
from .wanted import NOTHING, Channels, PairSums, Wanted, zeros_of
from .waves import SUMS, Promise, in_64_bit_mode, sides, sums_of_sides


def pair_sums_in_xla(wanted: Wanted, plan: Plan, *operands: Array) -> PairSums:
    """`PairSums` of queries, keys, values, τ, and the weights of rows and of columns, all of equal rank."""

    def near(*operands: Array) -> PairSums:
        return _varying(sums_by_products(wanted, *operands, dense=plan.method == "dense"), operands)

    def anywhere(*operands: Array) -> PairSums:
        return _varying(sums_anywhere([wanted], plan, *operands)[0], operands)

    return _near_or_anywhere(wanted, plan, near, anywhere, *operands)


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
    wanted = Wanted(channels, channels, with_tau)

    def near(*_: Array) -> Any:
        a, b = with_norms(*scaled_points(queries, keys, tau, base_2=False))
        da, db, dv, d_scale = product_pullback(
            channels, a, b, values, cotangent, dense=plan.method == "dense", with_tau=with_tau
        )
        scale = by_point(jnp.sqrt(tau), queries)
        return _in_shapes((scale * da, scale * db, dv, d_scale / (2 * tau)), operands)

    anywhere = functools.partial(pullback_anywhere, channels, plan, with_tau=with_tau)
    return _near_or_anywhere(wanted, plan, near, anywhere, *operands)


def _near_or_anywhere(wanted: Wanted, plan: Plan, near: Callable, anywhere: Callable, *operands: Array) -> Any:
    """One of two functions, by the points; for Gaussians `anywhere`, because near ones have engines of their own."""
    queries, keys, values, tau, *weights = operands
    near = mark("engine", f"{plan.method} in {plan.precision}")(near)
    if wanted.kinked or GAUSS in wanted.kernels or plan.method == "differences":
        return anywhere(*operands)
    if not wanted.pulls.kernels:
        return one_of_two(within(plan.reach, queries, keys, tau, weights=values), near, anywhere, *operands)
    slopes = [kernel.slope for kernel in wanted.pulls.kernels]
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
    wanted = Wanted(NOTHING, channels, with_tau), Wanted(channels, channels, repeats=True, at_keys=True)
    at_queries, at_keys = sums_anywhere(wanted, plan, queries, keys, keys[..., :0], tau, g, values)
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


def sums_anywhere(wanted: Sequence[Wanted], plan: Plan, *operands: Array) -> list[PairSums]:
    """`PairSums` of points anywhere; if `wanted` has two items, also at the keys, where g are the values.

    Values and weights whose sums might overflow are summed in a unit of their own. Keys without either may be NaN.
    """
    queries, keys, values, tau, g, w = operands
    sizes, keys = (queries.shape[-2], keys.shape[-2]), without_hidden(keys, values, w)
    of_values = for_sums(values, *sizes, axes=-2)
    of_g, of_w = (for_sums(x, *sizes, axes=(-2, -1)) for x in (g, w))
    found = _sums_anywhere(wanted, plan, queries, keys, values * of_values, tau, g * of_g, w * of_w)
    return [
        PairSums(x.sums / unit, x.pulls / of_g / of_w, x.spread / of_g / of_w)
        for x, unit in zip(found, (of_values, of_g), strict=False)
    ]


def _sums_anywhere(wanted: Sequence[Wanted], plan: Plan, *operands: Array) -> list[PairSums]:
    queries, keys, values, tau, row_weights, weights = operands
    scale = by_point(jnp.sqrt(tau), queries)
    as_one = shared(keys, values, scale, weights)  # the batch of the queries becomes more rows
    size = math.prod(queries.shape[:-1]) if as_one else queries.shape[-2]
    sizes = size, *keys.shape[-2:]
    pulls = any(x.pulls.kernels for x in wanted)
    if 0 in sizes or (plan.method != "fourier" and not sorts(plan, *sizes, pulls=pulls)):
        sides = operands, (keys, queries, row_weights, tau, weights, row_weights)
        with mark("engine", "differences"):
            return [sums_by_differences(x, *side) for x, side in zip(wanted, sides, strict=False)]

    summed = functools.partial(of_matrices, wanted, plan)
    if not as_one:
        return one_by_one(summed, queries, keys, values, scale, row_weights, weights)
    batch = jnp.broadcast_shapes(queries.shape[:-2], row_weights.shape[:-2])
    rows = (jnp.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (queries, row_weights))
    at_queries, *at_keys = summed(*map(as_rows, (next(rows), keys, values, scale, next(rows), weights)))
    at_queries = jax.tree.map(lambda x: x.reshape(*batch, queries.shape[-2], x.shape[-1]), at_queries)
    return [at_queries, *jax.tree.map(lambda x: with_rank(x, keys), at_keys)]


def of_matrices(
    wanted: Sequence[Wanted],
    plan: Plan,
    *operands: Array,
    shares: Float[Array, "t 1"] | None = None,
    by_tiles: Callable[..., list[PairSums]] = anywhere_sums,
) -> list[PairSums]:
    """Sums of matrices by waves, if these pay or are asked for, else `by_tiles`; of several Gaussians with `shares`."""
    queries, keys, values, scale, _, weights = operands
    most, sizes = blocks_that_may_pay(wanted, plan, queries, keys, values, weights, bandwidths=len(scale))
    by_tiles = mark("engine", "anywhere")(by_tiles)
    if not most:
        return by_tiles(wanted, *operands)
    promise = None if plan.method == "fourier" else SUMS[plan.precision]
    does, around = waves_pay_here(plan, most, plan.precision, sizes, scale, queries, keys)

    def by_waves() -> tuple[list[PairSums], list[Array]]:
        found = sums_of_sides(wanted, most, plan, promise, operands, sizes, around, shares)
        return [x for x, _ in found], [x for _, x in found]

    if plan.platform == "cuda":  # nothing may wait for the device
        return by_waves()[0]

    def of_rows(wanted: Wanted, side: Sequence[Array], some: Array) -> PairSums:
        queries, keys, values, _, row_weights, weights = side
        rows, own = (rows_of(x, some) for x in (queries, row_weights))
        if shares is None:
            tau = jnp.square(scale[0] if scale.shape[1] > 1 else scale[0, 0])
            return sums_by_differences(wanted, rows, keys, values, tau, own, weights)
        rows, keys, values, own, weights = (x[None] for x in (rows, keys, values, own, weights))
        tau = jnp.square(scale[:, 0])
        return sums_by_differences(wanted, rows, keys, values, tau, own, weights).mixed(tau, shares[:, 0])

    each = [functools.partial(of_rows, *x) for x in zip(wanted, sides(operands), strict=False)]
    zeros = [zeros_of(x, len(y), scale=scale, points=y) for x, y in zip(wanted, operands, strict=False)]
    return waves_or_tiles(does, by_waves, each, lambda: by_tiles(wanted, *operands), zeros, operands)


def blocks_that_may_pay(
    wanted: Sequence[Wanted], plan: Plan, queries: Array, keys: Array, *values: Array, bandwidths: int = 1
) -> tuple[int, Sizes]:
    """The most blocks of waves that a coordinate may have, 0 if waves never pay; and the sizes."""
    pulls, channels = any(x.pulls.kernels for x in wanted), max(x.shape[-1] for x in values)
    sizes = Sizes(queries.shape[-2], keys.shape[-2], keys.shape[-1], channels, bandwidths, pulls)
    if plan.waves is False or {GAUSS} != {y for x in wanted for y in x.kernels}:
        return 0, sizes
    by_name = plan.method == "fourier"
    return at_most(sizes.dim, plan) if by_name else most_blocks(plan.precision, sizes), sizes


def waves_pullback(
    wanted: Wanted, plan: Plan, otherwise: Callable, operands: Sequence[Array], cotangents: PairSums
) -> tuple[Array, ...]:
    """The gradients of `pair_sums` by waves, if these pay and no query is in doubt, else otherwise(*operands)."""
    most, sizes = blocks_that_may_pay([wanted], plan, *(operands[i] for i in (0, 1, 2, -1)))
    if not most:
        return otherwise(*operands)

    def with_doubt(promise: Promise | None, *operands: Array) -> tuple[PairSums, Array]:
        queries, keys, values, tau, *weights = operands

        def of_matrix(*operands: Array) -> tuple[PairSums, Array]:
            does, around = waves_pay_here(plan, most, plan.precision, sizes, operands[3], *operands[:2])
            ((sums, doubt),) = sums_of_sides([wanted], most, plan, promise, operands, sizes, around)
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
