"""Sums of Gaussians by waves, and the queries that these leave in doubt.

The error at a query is at most ε Σ|v| and rounding, but it is promised relative to Σ Φ|v|. The same waves sum that,
so it is known afterwards where the promise holds. Pulls may be small beside sums, so they are formed in float64, but
on CUDA, where few cards have it.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from ..._arrays.custom_rule import with_pullback
from ..._arrays.devices import vary_like
from ..._arrays.shapes import Numbers, are_known
from ..plan import Plan
from ..request import PairSums, Request
from ..scopes import scope
from ..tiles import scan
from . import nufft
from .boxes import Box, outside
from .cost import Doubt, Sizes, bandwidth_ratio, transforms_pay
from .frequencies import Nodes, nodes, spectrum, tolerance_of
from .series import coefficients, derivative, derivatives_at, values_at


class Promise(NamedTuple):
    """The largest errors that are promised, relative to the sizes of terms.

    Attributes:
        of_all: in L2 over the queries.
        of_one: at each query.
    """

    of_all: float
    of_one: float


# Which queries are in doubt. With coefficients c = g A, values are taken to err by r = 6 units of ‖c‖₂ (`ROUNDING`; the
# root mean square of the errors was 0.2 to 4.3 units), and by Parseval ‖c‖₂ is 2^(D/2) times the root mean square of
# the sums over the period. In float32 r is 7e-7 ‖c‖₂: up to 1.0, 1.4 and 2.0e-6 of that mean, where 1e-6 is promised in
# L2, and rows below 7e-4 ‖c‖₂ are in doubt by themselves. So float32 may doubt most places of a wide map. In float64
# finufft is asked for 1e-10, and rows of float32's sums are in doubt below 2¹⁰ · 5e-11 = 5e-8 ‖c‖₂. Logarithms, asked
# for 1e-14, are below 2²⁴ · 5e-15 = 8e-8 ‖c‖₂. ε adds 2e-16 of the mean. Such sums are far tails: Φ is 8e-8 at 5.7.
SUMS = {"float32": Promise(2.0**-20, 2.0**-10), "float64": Promise(2.0**-41, 2.0**-30)}
LOGS = {"float32": Promise(2.0**-24, 2.0**-24), "float64": Promise(2.0**-34, 2.0**-34)}  # by waves in float64
PULLS = 4  # times as large an error is promised for pulls
FARTHEST = 6  # bandwidths up to which terms of pulls count: Σ Φ|w| r is at least Σ Φ|w| r² over this, but for 1e-8
ROUNDING = 6  # error of the arithmetic, in the dtype's units times the size of all waves
# Fast transforms are asked for the promised error of a query over OF_PROMISE, or the tolerance over OF_ERROR; their
# error is OF_EPS of what they are asked for.
OF_PROMISE, OF_ERROR, OF_EPS = 1e7, 8, 0.5


class WaveGrid(NamedTuple):
    """The box of two sets of points, its nodes, whether these fit, the error ε of Φ; the nodes of pulls, in float64."""

    box: Box
    nodes: Nodes
    fits: Bool[Array, ""]
    error: Float[Array, ""]
    nodes_of_pulls: Nodes


def wave_grid(
    most: int, plan: Plan, promise: Promise | None, scale: Float[Array, "t _"], sizes: Sizes, around: Box
) -> WaveGrid:
    """The grid for the plan's tolerance, or for an error negligible beside its rounding; at most `most` blocks.

    For several Gaussians the waves are those of the narrowest, and the period is that of the widest.
    """
    scale, extent = lax.stop_gradient(scale), around.extent
    scales, dtype, ratio = jnp.broadcast_to(scale.max(0), extent.shape), extent.dtype, bandwidth_ratio(scale)
    asked = getattr(plan.engine, "tolerance", None)
    error = tolerance_of(jnp, dtype.name, extent * scales) if asked is None else jnp.asarray(asked, dtype)
    found, fits, bound = nodes(most, around.center, extent, scales, error, ratio, at_once=plan.platform == "cuda")
    if promise is None:
        eps = error / OF_ERROR
    else:  # pulls of points that are close together are as small as their squared distances
        eps = promise.of_one / OF_PROMISE * jnp.minimum(1, jnp.square(extent * scales / ratio).max())

    def of(precision: str) -> Nodes:
        """The nodes, with the error that fast transforms are asked for, if these pay in a precision."""
        if plan.platform != "cpu" or not nufft.is_installed() or not are_known(*sizes):
            return found
        does = transforms_pay(precision, sizes._replace(channels=1), most, found.counts.astype(dtype))
        asked = jnp.maximum(eps, nufft.LEAST[precision])
        if isinstance(does, bool):
            return found._replace(eps=asked) if does else found
        return found._replace(eps=jnp.where(does, asked, 0), by_products=~does)

    return WaveGrid(around, of(dtype.name), fits, bound + around.error, of("float64"))


def sums_of_sides(
    requests: Sequence[Request],
    most: int,
    plan: Plan,
    promise: Promise | None,
    operands: Sequence[Array],
    sizes: Sizes,
    around: Box,
    shares: Float[Array, "t 1"] | None = None,
) -> list[tuple[PairSums, Doubt]]:
    """`sums_by_waves` at the queries; if `requests` has two items, also at the keys, where row weights are summed."""
    of = wave_grid(most, plan, promise, operands[3], sizes, around)
    of = of if shares is None else of._replace(error=of.error * shares.sum())
    with scope("waves", plan.precision, most, len(requests), *sizes):
        each = zip(requests, sides(operands), strict=False)
        return [sums_by_waves(x, of, promise, *side, shares=shares) for x, side in each]


def sides(operands: Sequence[Numbers]) -> tuple[Sequence[Any], Sequence[Any]]:
    """The operands of sums at the queries, and of those at the keys, where the row weights are summed."""
    queries, keys, _, scale, row_weights, weights = operands
    return operands, (keys, queries, row_weights, scale, weights, row_weights)


def sums_by_waves(
    request: Request,
    of: WaveGrid,
    promise: Promise | None,
    queries: Float[Array, "m d"],
    keys: Float[Array, "n d"],
    values: Float[Array, "n c"],
    scale: Float[Array, "t _"],
    row_weights: Float[Array, "m e"],
    weights: Float[Array, "n e"],
    shares: Float[Array, "t 1"] | None = None,
) -> tuple[PairSums, Doubt]:
    """`PairSums` of a Gaussian, and the queries in doubt: all of them if the nodes do not fit.

    With `shares`, sums of the kernel Σ_t share_t Φ_t, whose own τ is one; each row of `scale` is then one √τ. Without a
    promise, no error puts a query in doubt. JAX can differentiate the sums to every order.

    Over others, the term of each query's own key is subtracted, and its error counts: beside Σ Φ|v| without that term.
    """
    known = weights.shape[1] if request.repeats and request.pulls.kernels else 0
    doubt, far = outside(of.box.of_queries, queries), outside(of.box.of_keys, keys)[:, None]
    queries = jnp.where(doubt[:, None], of.nodes.center[None], queries)
    keys = jnp.where(far, of.nodes.center[None], keys)
    values, weights = (jnp.where(far, 0, x) for x in (values, weights))
    cloud, others, nothing = (of, scale, shares, queries, keys), values[:, known:].T, queries[:, :0]
    sums, doubt = nothing, doubt | ~of.fits
    if len(others):
        sums, own = _summed(promise, *cloud, others, leaves_out=request.others)
        doubt |= own
    if not request.pulls.kernels:
        return PairSums(sums, nothing, nothing), doubt
    of = of._replace(nodes=of.nodes_of_pulls)
    given = of, *cloud[1:], row_weights, weights
    if of.nodes.at_once:
        found, own = _pulled(request, promise, *given)
    else:
        with jax.enable_x64(True):
            found, own = _pulled(request, promise, *_in("float64", given))
            found = _in(queries.dtype, found)
    sums = jnp.concatenate([found.sums, sums], 1) if known else sums
    return found._replace(sums=sums), doubt | own


def in_64_bit_mode(function: Callable) -> Callable:
    """`function`, traced in JAX's 64-bit mode, and so are its derivatives of every order."""

    def traced(*operands: Any) -> Any:
        with jax.enable_x64(True):
            return function(*operands)

    def pullback(operands: tuple[Any, ...], cotangents: Any) -> Any:
        return in_64_bit_mode(lambda g, *x: jax.vjp(function, *x)[1](g))(cotangents, *operands)

    return with_pullback(traced, 0, pullback)


def _in(dtype: Any, of: Any) -> Any:
    """The tree with its floating arrays in a dtype."""
    return jax.tree.map(lambda x: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, of)


def _summed(
    promise: Promise | None,
    of: WaveGrid,
    scale: Array,
    shares: Array | None,
    queries: Array,
    keys: Array,
    values: Float[Array, "c n"],
    leaves_out: bool = False,
) -> tuple[Float[Array, "m c"], Doubt]:
    """Σ Φ v, and the queries in doubt. Σ Φ|v| tells these: on a CPU it is summed only for channels with both signs."""
    phi, _ = _spectra(of, scale, shares)

    def of_one(v: Array) -> tuple[Array, Array]:
        found = coefficients(of.nodes, keys, v[None]) * phi
        return values_at(of.nodes, queries, found)[0], _errors(of, found, v)[0]

    def of_none(_: Array) -> tuple[Array, Array]:
        zeros = jnp.zeros(len(queries), values.dtype), jnp.zeros((), values.dtype)
        return jax.tree.map(lambda x: vary_like(x, [scale, queries, keys, values]), zeros)

    def of_both(v: Array) -> tuple[Array, Array]:
        found = coefficients(of.nodes, keys, jnp.stack([v, jnp.abs(v)])) * phi
        return values_at(of.nodes, queries, found), _errors(of, found, v)

    if promise is None:
        return lax.map(of_one, values)[0].T, jnp.zeros_like(queries[:, 0], bool)
    in_doubt = jax.vmap(functools.partial(_are_in_doubt, promise))
    if of.nodes.at_once:
        found, errors = lax.map(of_both, values)
        return found[:, 0].T, in_doubt(errors.max(1), found[:, 1]).any(0)
    mixed = (values > 0).any(1) & (values < 0).any(1)
    needed = jnp.concatenate([jnp.ones_like(mixed), mixed])
    columns = needed, jnp.concatenate([values, jnp.abs(values)])
    found, errors = lax.map(lambda x: lax.cond(x[0], of_one, of_none, x[1]), columns)
    (sums, sizes), errors = jnp.split(found, 2), jnp.split(errors, 2)
    sizes, errors = jnp.where(mixed[:, None], sizes, jnp.abs(sums)), jnp.maximum(*errors)
    if leaves_out:
        sums, (sizes, errors) = sums - values, _without_own(sizes, errors[:, None], values)
    return sums.T, in_doubt(errors, sizes).any(0)


def _pulled(
    request: Request,
    promise: Promise | None,
    of: WaveGrid,
    scale: Array,
    shares: Array | None,
    queries: Array,
    keys: Array,
    row_weights: Array,
    weights: Float[Array, "n e"],
) -> tuple[PairSums, Doubt]:
    """Σ Φ w for each channel of the weights, the pulls and spread of all channels, and the queries in doubt.

    With a promise, Σ Φ|w| u and Σ Φ|w| are summed as well: they tell which queries are in doubt.
    """
    (num, dim), dtype, operands = queries.shape, queries.dtype, [scale, queries, keys, row_weights, weights]
    phi, parts = _spectra(of, scale, shares)
    all_parts = parts.sum(0, keepdims=True)
    squares = (parts if scale.shape[1] > 1 else all_parts) if request.spread else parts[:0]
    of_terms = jnp.concatenate([all_parts, phi]) if request.repeats else all_parts
    unit = scale if shares is None else jnp.ones_like(scale[:1])
    farthest = jnp.minimum(FARTHEST, jnp.linalg.norm(of.box.extent.astype(dtype) * scale.max(0)))

    def add(state: tuple[Array, ...], item: tuple[Any, ...]) -> tuple[tuple[Array, ...], Array]:
        pulls, spread, doubt = state
        rows, v = item
        columns = v[None] if promise is None else jnp.stack([v, jnp.abs(v)])
        found = coefficients(of.nodes, keys, columns)
        waves = [found[:1] * jnp.concatenate([phi, squares]), *(x[None] * of_terms for x in found[1:])]
        total, *values = derivatives_at(of.nodes, queries, jnp.concatenate(waves))
        pulls += rows[None] * jnp.stack(values[:dim])
        if request.spread:
            spread += rows[None] * jnp.stack(values[dim : dim + len(squares)])
        if promise is not None:
            (error,), terms = _errors(of, waves[0][:1], v), values[-len(of_terms) :]
            terms = [x - y for x, y in zip(terms, _errors(of, waves[1], v), strict=True)]
            size, of_pulls = jnp.abs(rows), promise._replace(of_all=PULLS * promise.of_all)
            own = _error_of_pulls(of, scale, waves[0][:1], phi, v) if of.nodes.at_once else error
            doubt |= _are_in_doubt(of_pulls, bandwidth_ratio(scale) * size * own, size * terms[0] / farthest)
            if request.repeats:
                size, errors = (terms[1], error) if not request.others else _without_own(terms[1], error, v)
                doubt |= _are_in_doubt(promise, errors, size)
        return (pulls, spread, doubt), total - v if request.others else total

    zeros = [vary_like(jnp.zeros((x, num), dtype), operands) for x in (dim, len(squares))]
    state = *zeros, vary_like(jnp.zeros(num, bool), operands)
    (pulls, spread, doubt), sums = scan(add, state, (row_weights.T, weights.T))
    return PairSums(sums.T, pulls.T / jnp.square(unit), spread.T / jnp.square(unit)), doubt


def _spectra(of: WaveGrid, scale: Array, shares: Array | None) -> tuple[Float[Array, "1 ..."], Float[Array, "d ..."]]:
    """g of Σ Φ v, and of each coordinate's part of Σ Φ v u."""
    scales = jnp.broadcast_to(scale, (len(scale), len(of.nodes.period)))
    every = jnp.ones_like(scale[:, 0]) if shares is None else shares[:, 0]
    found = [spectrum(of.nodes, scales, every, d) for d in (None, *range(scales.shape[1]))]
    return found[0][None], jnp.stack(found[1:])


def _errors(of: WaveGrid, found: Float[Array, "s ..."], v: Float[Array, " n"]) -> Float[Array, " s"]:
    """The errors of values at queries from such coefficients: rounding of the size of all waves, and ε Σ|v|."""
    size = jnp.sqrt(jnp.square(found).sum((*range(1, found.ndim),)))
    rounding = jnp.asarray(ROUNDING * float(jnp.finfo(found.dtype).eps), found.dtype)
    if of.nodes.eps is not None:
        rounding = jnp.maximum(rounding, OF_EPS * of.nodes.eps)
    return rounding * size + of.error * jnp.abs(v).sum()


def _error_of_pulls(of: WaveGrid, scale: Array, found: Array, phi: Array, v: Float[Array, " n"]) -> Float[Array, ""]:
    """The error of pulls in bandwidths that are formed in float32: the largest wave, the constant one, is not in them.

    The coefficients, sums over keys, have errors as if these were independent.
    """
    both = jnp.concatenate([found, jnp.sqrt(jnp.square(v).sum()) * phi])
    scales = jnp.broadcast_to(scale.max(0), of.nodes.period.shape)
    each = jnp.concatenate([derivative(of.nodes, both, d) / scales[d] for d in range(len(scales))])
    unit = jnp.asarray(ROUNDING * float(jnp.finfo(v.dtype).eps), v.dtype)
    return unit * jnp.sqrt(jnp.square(each).sum()) + of.error * jnp.abs(v).sum()


def _without_own(size: Array, error: Array, values: Array) -> tuple[Array, Array]:
    """Σ Φ|v| without the own term of each query, and the error of a sum from which that is subtracted."""
    return size - jnp.abs(values), error + float(jnp.finfo(values.dtype).eps) * jnp.abs(values)


def _are_in_doubt(promise: Promise, error: Float[Array, "*m"], terms: Float[Array, " m"]) -> Doubt:
    """Whether errors may exceed the promise, relative to sums of terms; true for NaN. One error, or one of each."""
    size = jnp.where(jnp.isfinite(terms), jnp.maximum(terms, 0), 0)
    largest = size.max()
    mean = largest * jnp.sqrt(jnp.square(size / jnp.where(largest > 0, largest, 1)).mean())
    return ~(error <= jnp.minimum(promise.of_one * terms, promise.of_all * jnp.maximum(terms, mean)))
