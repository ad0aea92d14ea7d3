"""Sums of Gaussians by waves, and which of the queries these leave in doubt.

The error of a query is at most ε Σ|v|, and rounding; what a sum promises is relative to Σ Φ|v|. That comes from the
same waves: so it is known afterwards where the promise holds. Pulls may be small beside sums: they take float64.
"""

import contextlib
import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from .._arrays.blocks import scan
from .._arrays.places import vary_like
from .._checks.settings import are_known
from . import nufft
from .few_dimensions import Sizes, tolerance_of, transforms_pay
from .fourier import Nodes, box, coefficients, nodes, slope, spectrum, values_at
from .plan import Plan
from .wanted import Sums, Wanted


class Promise(NamedTuple):
    """What errors may be, relative to the sizes of terms.

    Attributes:
        of_all: in L2 over the queries.
        of_one: of each of them.
    """

    of_all: float
    of_one: float


SUMS = {"float32": Promise(2.0**-20, 2.0**-10), "float64": Promise(2.0**-41, 2.0**-30)}
LOGS = {"float32": Promise(2.0**-24, 2.0**-24), "float64": Promise(2.0**-41, 2.0**-41)}  # by waves in float64
PULLS = 4  # times as much, of pulls
FARTHEST = 6  # bandwidths from which pulls count: Σ Φ|w| r is at least Σ Φ|w| r² over that, but for 1e-8
ROUNDING = 6  # units of the size of all waves that arithmetic errs by
# Fast transforms are asked for so many times less than what each query may err by, or less than a tolerance; and err by
# half of what they are asked for.
OF_PROMISE, OF_ERROR, OF_EPS = 1e7, 8, 0.5


class Layout(NamedTuple):
    """Of two clouds: nodes, whether these do, and the error ε of Φ."""

    nodes: Nodes
    fits: Bool[Array, ""]
    error: Float[Array, ""]


def layout(
    most: int, chosen: Plan, promise: Promise | None, scale: Float[Array, "1 _"], queries: Array, keys: Array
) -> Layout:
    """That of the plan's tolerance, or of one that does not count beside rounding to its digits, in so many blocks."""
    queries, keys, scale = map(lax.stop_gradient, (queries, keys, scale))
    center, extent = box(queries, keys)
    scales, dtype = jnp.broadcast_to(scale[0], extent.shape), keys.dtype
    if chosen.tolerance is None:
        error = tolerance_of(jnp, chosen.precision, extent * scales)
    else:
        error = jnp.asarray(chosen.tolerance, dtype)
    found, fits, bound = nodes(most, center, extent, scales, error)
    sizes = Sizes(queries.shape[0], keys.shape[0], len(center), 1)
    if chosen.platform == "cpu" and nufft.is_installed() and are_known(*sizes):
        found = found._replace(eps=_eps(sizes, found, error, promise, extent * scales))
    return Layout(found, fits, bound)


def _eps(sizes: Sizes, of: Nodes, error: Array, promise: Promise | None, length: Array) -> Array:
    """The error that fast transforms are asked for, zero where they do not pay."""
    dtype = length.dtype
    if promise is None:
        eps = error / OF_ERROR
    else:  # pulls of points that are close together are as small as their squares
        eps = promise.of_one / OF_PROMISE * jnp.minimum(1, jnp.square(length).max())
    does = transforms_pay(dtype.name, sizes, of.counts.astype(dtype))
    return jnp.where(does, jnp.maximum(eps, nufft.LEAST[dtype.name]), 0)


def sums_of_sides(
    wanted: Sequence[Wanted], most: int, chosen: Plan, promise: Promise | None, operands: Sequence[Array]
) -> list[tuple[Sums, Bool[Array, " m"]]]:
    """`sums_by_waves` at the queries; if two are wanted also at the keys, there of the weights."""
    dtype, wide = operands[0].dtype, any(x.pulls.kernels for x in wanted)
    with jax.enable_x64(True) if wide else contextlib.nullcontext():
        given = [x.astype("float64" if wide else dtype) for x in operands]
        of = layout(most, chosen, promise, given[3], *given[:2])
        found = [sums_by_waves(x, of, promise, *side) for x, side in zip(wanted, sides(given), strict=False)]
        return [(jax.tree.map(lambda x: x.astype(dtype), sums), doubt) for sums, doubt in found]


def sides(operands: Sequence[Array]) -> tuple[Sequence[Array], Sequence[Array]]:
    """The operands of sums at the queries, and at the keys: there of the weights."""
    queries, keys, _, scale, row_weights, weights = operands
    return operands, (keys, queries, row_weights, scale, weights, row_weights)


def sums_by_waves(
    wanted: Wanted,
    of: Layout,
    promise: Promise | None,
    queries: Float[Array, "m d"],
    keys: Float[Array, "n d"],
    values: Float[Array, "n c"],
    scale: Float[Array, "1 _"],
    row_weights: Float[Array, "m e"],
    weights: Float[Array, "n e"],
) -> tuple[Sums, Bool[Array, " m"]]:
    """`Sums` of Gaussians, and the queries in doubt; all of them where the layout does not do.

    Without a promise none is in doubt, and sums are functions of JAX with derivatives of every order.
    """
    (num, dim), dtype = queries.shape, queries.dtype
    scales, each = jnp.broadcast_to(scale[0], (dim,)), scale.shape[1] > 1
    pulling, channels = weights.shape[1], jnp.concatenate([weights, values], 1).T
    of_keys = functools.partial(_of_channel, wanted, of.nodes, scales, each, queries, keys)
    operands = [scale, queries, keys, channels, row_weights]
    rounding = jnp.asarray(ROUNDING * float(jnp.finfo(dtype).eps), dtype)
    if of.nodes.eps is not None:
        rounding = jnp.maximum(rounding, OF_EPS * of.nodes.eps)

    def zeros(*shape: int) -> Array:
        return vary_like(jnp.zeros(shape, dtype), operands)

    def checked(number: Array, v: Array, first: Array) -> tuple[Array, Array, Array]:
        """Of a channel also the sizes of terms, and the error.

        One that is the first once more, which pulls and is summed, is not computed again; one of both signs is, of its
        sizes.
        """
        known = (number >= pulling) & (v == channels[0]).all() if pulling == 1 else jnp.zeros((), bool)
        mixed = (v > 0).any() & (v < 0).any()
        nothing = jax.tree.map(lambda x: zeros(*x.shape), jax.eval_shape(of_keys, v))

        def if_needed(given: tuple[Array, Array]) -> tuple[Array, Array]:
            return lax.cond(given[1], of_keys, lambda _: nothing, given[0])

        needed = jnp.stack([~known, mixed & ~known])
        (found, terms), sizes = lax.map(if_needed, (jnp.stack([v, jnp.abs(v)]), needed))
        error = rounding * sizes.max() + of.error * jnp.abs(v).sum()
        found, terms = jnp.where(known, first, found), jnp.where(mixed, terms, jnp.abs(found))
        return found, terms, jnp.where(known, 0, error)

    def add(state: tuple[Array, ...], item: tuple[Array, Array, Array]) -> tuple[tuple[Array, ...], Array]:
        pulls, spread, doubt, first = state
        number, v, g = item  # g is zero of channels that are summed alone
        if promise is None:
            found, _ = of_keys(v)
        else:
            found, terms, error = checked(number, v, first)
            doubt |= _are_in_doubt(promise, error, terms[0])
            if pulling:
                of_pulls, size = promise._replace(of_all=PULLS * promise.of_all), jnp.abs(g)
                doubt |= _are_in_doubt(of_pulls, size * error, size * terms[1] / FARTHEST)
        if pulling:
            pulls += g[None] * found[2 : 2 + dim]
            spread += g[None] * (found[2 + dim :] if each else found[1:2])
        return (pulls, spread, doubt, jnp.where(number == 0, found, first)), found[0]

    g = jnp.concatenate([row_weights, jnp.zeros((num, values.shape[1]), dtype)], 1).T
    rows = 1 if not pulling else 2 + dim + (dim if each else 0)  # of what `_of_channel` finds
    state = zeros(dim, num), zeros(dim if each else 1, num), zeros(num) > 0, zeros(rows, num)
    (pulls, spread, doubt, _), sums = scan(add, state, (jnp.arange(len(channels), dtype="int32"), channels, g))
    pulls = (pulls.T / jnp.square(scales)[None])[:, : dim if pulling else 0]
    spread = (spread.T / jnp.square(scale))[:, : None if wanted.spread else 0]
    return Sums(sums[pulling:].T, pulls, spread), doubt | ~of.fits


def _of_channel(
    wanted: Wanted, of: Nodes, scales: Array, each: bool, queries: Array, keys: Array, v: Float[Array, " n"]
) -> tuple[Float[Array, "s m"], Float[Array, ""]]:
    """Of one channel S = Σ Φ v; if it pulls Σ Φ v u, the slopes ∂S and, of `each` coordinate, its part of the second.

    And the size of all waves. From ∂²S = Σ (u - 1) Φ v, in bandwidths and one coordinate.
    """
    found = coefficients(of, keys, v[None])
    for g in spectrum(of, scales):
        found = found * g
    all_found = [found]
    if wanted.pulls.kernels:
        slopes = [slope(of, found, d) for d in range(len(scales))]
        seconds = [slope(of, x, d) / jnp.square(scales[d]) + found for d, x in enumerate(slopes)]
        all_found += [functools.reduce(jnp.add, seconds), *slopes, *(seconds if each else [])]
    return values_at(of, queries, jnp.concatenate(all_found)), jnp.sqrt(jnp.square(found).sum())


def _are_in_doubt(promise: Promise, error: Array, terms: Float[Array, " m"]) -> Bool[Array, " m"]:
    """Whether errors may be more than the promise allows beside sums of terms; NaN may."""
    size = jnp.where(jnp.isfinite(terms), jnp.abs(terms), 0)
    largest = size.max()
    mean = largest * jnp.sqrt(jnp.square(size / jnp.where(largest > 0, largest, 1)).mean())
    return ~(error <= jnp.minimum(promise.of_one * terms, promise.of_all * jnp.maximum(terms, mean)))
