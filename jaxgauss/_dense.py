"""The same sum in plain JAX, dense and in blocks: the tests' oracle, the comparison, and the fallback.

`gauss_sum_dense` and `gauss_sum_blocked` are ordinary JAX functions, under all transformations. `blocked_sum` and
`blocked_pullback` do the work of `gauss_sum` where no attention kernel can, or where XLA is faster; they are called
beneath its derivative rule.
"""

import functools
import math
import platform
import sys
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jaxlib.version
from jax import lax
from jaxtyping import Array, Bool, Float

from ._checks import (
    Bandwidth,
    Keys,
    Queries,
    Sums,
    Values,
    are_known,
    as_operand,
    check_operands,
    takes_tau,
    working_dtype,
)
from ._varying import vary_alike, vary_like, whole


class Tile(NamedTuple):
    """The part of the kernel matrix that is held at a time.

    Attributes:
        entries, rows: at most.
        columns: where there are so many; more until a tile has `worth` entries.
        worth: entries that are worth a step of a loop.
    """

    entries: int
    rows: int
    columns: int
    worth: int


# Measured best on CPUs, forward and back. 8 MiB in float32, nearly square: wide values are read again for every row of
# tiles. From differences there are more arrays of a tile's size, and what a program may need it is given at every call.
TILE = Tile(2**21, 1024, 1024, 2**21)
DIFFERENCES_TILE = Tile(2**17, 64, 64, 2**17)
# A product, what is done to its entries, and a reduction of them: XLA hands all of it to one pass of YNNPACK, if the
# second product is written as a reduction. Nothing of a tile's size is then read or written in between. So it is on
# Linux with x86-64, in float32, from this version on: there it was measured, and a test looks at the program.
_MEASURED = (sys.platform, platform.machine()) == ("linux", "x86_64")
FUSES = _MEASURED and jaxlib.version.__version_info__ >= (0, 10, 2)
FUSED_WIDTH = 256  # D and C up to which that is faster
WIDE = 64  # channels from which tiles are narrower, so that values stay in the cache, and a single tile is not fused
LOG_ZERO = -1e27  # the logarithm of a weight of zero: finite in float32, and below every exponent
BASE_2 = math.log2(math.e)  # exponents are formed for 2^x, which is computed faster than e^x
DIMENSIONS = 8  # coordinates whose differences are added up in one pass over a tile


@takes_tau
def gauss_sum_dense(queries: Queries, keys: Keys, values: Values, tau: Bandwidth = 1.0) -> Sums:
    """Σ_n exp(-τ/2 ‖q_m - k_n‖²) v_n with the M×N kernel matrix in memory.

    Arguments, result and errors are those of `gauss_sum`. Every JAX transformation works, forward mode included.
    O(MN) memory. Computed in float32, or in float64 for float64 arguments.

    Precision:
        Exponents are formed from products about one center, R bandwidths from the farthest point: the error, relative
        to Σ Φ|v|, is 2⁻²⁴ R² in float32 and 2⁻⁵³ R² in float64. Beyond R = 45 (in float64, beyond 4096) rows are wrong
        without a word, where `gauss_sum` is not: compare with `method="differences"` there.
    """
    return _native("gauss_sum_dense", _formula, queries, keys, values, tau)


@takes_tau
def gauss_sum_blocked(queries: Queries, keys: Keys, values: Values, tau: Bandwidth = 1.0) -> Sums:
    """Σ_n exp(-τ/2 ‖q_m - k_n‖²) v_n, a block of the kernel matrix at a time.

    Arguments, result and errors are those of `gauss_sum`. Every JAX transformation works, forward mode included.
    Linear memory, forward and backward: blocks are recomputed by `jax.checkpoint` when they are differentiated.

    Precision:
        That of `gauss_sum_dense`.
    """
    return _native("gauss_sum_blocked", _formula_by_blocks, queries, keys, values, tau)


def blocked_sum(
    queries: Float[Array, "*#batch m d"],
    keys: Float[Array, "*#batch n d"],
    values: Float[Array, "*#batch n c"],
    tau: Float[Array, "*#batch"],
) -> Float[Array, "*result m c"]:
    """The Gauss sum of operands of equal rank, a tile of the kernel matrix at a time."""
    a, b = with_norms(*scaled_points(queries, keys, tau))
    return scaled_sum(a, b, values)


def scaled_points(
    queries: Float[Array, "*#batch m d"],
    keys: Float[Array, "*#batch n d"],
    tau: Float[Array, "*#batch"],
    centered: bool = False,
    base_2: bool = True,
) -> tuple[Float[Array, "*#batch m d"], Float[Array, "*#batch n d"]]:
    """a, b about a center, with Φ = 2^(-½‖a - b‖²), or e to that power: small norms keep the digits.

    It is that of the keys, or of queries that are shared where keys are not: so they stay shared. `centered` points lie
    about the origin, and none is taken once more.
    """
    of_queries = shared(queries) and not shared(keys)
    c, scale = (
        0 if centered else center(queries if of_queries else keys),
        jnp.sqrt(tau * (BASE_2 if base_2 else 1))[..., None, None],
    )
    return (queries - c) * scale, (keys - c) * scale


class Points(NamedTuple):
    """Scaled points (…, N, D), and their squared norms (…, N, 1)."""

    points: Array
    norms: Array


def with_norms(*points: Array) -> tuple[Points, ...]:
    """Both of each."""
    return tuple(Points(x, jnp.square(x).sum(-1, keepdims=True)) for x in points)


def squared_reach(a: Points, b: Points) -> Float[Array, ""]:
    """R², how far in squared bandwidths the farthest of the points lies from the center; points to the base of 2.

    Rounding moves the exponents of everything but `differences_sum` by its unit times R².
    """
    norms = jnp.concatenate(whole(a.norms.ravel(), b.norms.ravel()))
    return jnp.where(jnp.isnan(norms), 0, norms).max(initial=0) / BASE_2


def are_within(reach: float, a: Points, b: Points, each_tau: bool = False) -> Bool[Array, "*taus"]:
    """Whether R² is at most `reach`, in a step less than by R² itself: see `center`; or so for each τ of the last axis.

    NaN, which spoils a row whatever is done, does not count.
    """
    if each_tau:
        beyond = [(x > reach * BASE_2).any((*range(x.ndim - 3), -2, -1)) for x in whole(a.norms, b.norms)]
        return ~(beyond[0] | beyond[1])
    norms = jnp.concatenate(whole(a.norms.ravel(), b.norms.ravel()))
    return ~(norms > reach * BASE_2).any()


def scaled_sum(
    a: Points, b: Points, values: Float[Array, "*#batch n c"], *, whole: bool = False, fused: bool = False
) -> Float[Array, "*result m c"]:
    """Σ_n 2^(-½‖a - b‖²) v of points within reach.

    `whole` takes one tile, which is the dense sum. `fused` writes products as XLA on a CPU can put them together.
    """
    channels = values.shape[-1]
    fused = fused and max(a.points.shape[-1], channels) <= FUSED_WIDTH
    if fused and not (whole and channels >= WIDE):
        operands, tile_sum, tile = _logit_factors(a, b), _fused_tile_sum, fused_tile(channels)
    elif whole:
        operands, tile_sum, tile = (a.points, b.points), _whole_sum, TILE
    else:
        operands, tile_sum, tile = _logit_factors(a, b), _tile_sum, TILE
    blocked = functools.partial(_blocked, tile_sum, whole=whole, tile=tile)
    batch, rows = jnp.broadcast_shapes(*(x.shape[:-2] for x in (*operands, values))), a.points.shape[:-1]
    if shared(operands[1], values):  # the batch of the queries is more rows
        total = blocked(*(_as_rows(x) for x in (*operands, values)))
        total = total.reshape(*rows, channels)
        return jnp.broadcast_to(total, (*batch, *total.shape[-2:]))
    return _in_groups(blocked, *operands, values)


def blocked_pullback(
    queries: Float[Array, "*#batch m d"],
    keys: Float[Array, "*#batch n d"],
    values: Float[Array, "*#batch n c"],
    tau: Float[Array, "*#batch"],
    cotangent: Float[Array, "*#batch m c"],
    *,
    whole: bool = False,
    tile: Float[Array, "m n"] | None = None,
) -> tuple[Float[Array, "*#batch m d"], Float[Array, "*#batch n d"], Float[Array, "*#batch n c"]]:
    """Gradients of Σ_m ⟨g_m, s_m⟩ in the shapes of queries, keys and values, each tile of Φ computed once or given.

    With S_mn = Φ ⟨g_m, v_n⟩: dv = Φᵀ g, da = S b - (S 1) a, db = Sᵀ a - (Sᵀ 1) b at scaled points. The transposed
    products are formed as (gᵀ Φ)ᵀ and (aᵀ S)ᵀ: no tile is transposed, which on a CPU costs more than the tile.
    """
    shapes = queries.shape, keys.shape, values.shape
    a, b = scaled_points(queries, keys, tau)
    scale = jnp.sqrt(tau / BASE_2)[..., None, None]
    v, g = values, cotangent
    if shared(keys, values, scale):
        a, b, v, g, scale = _as_rows(a), _as_rows(b), _as_rows(v), _as_rows(g), scale.reshape(1, 1)
    da, db, dv = _in_groups(functools.partial(_scaled_pullback, whole=whole, tile=tile), a, b, v, g)
    gradients = scale * da, scale * db, dv
    return tuple(  # type: ignore[return-value]
        unbroadcast(gradient, shape) if gradient.size != math.prod(shape) else gradient.reshape(shape)
        for gradient, shape in zip(gradients, shapes, strict=True)
    )


def _scaled_pullback(
    a: Array, b: Array, v: Array, g: Array, *, whole: bool, tile: Array | None
) -> tuple[Array, Array, Array]:
    """`blocked_pullback` with respect to the scaled points and the values, for all of a batch."""
    batch = jnp.broadcast_shapes(*(x.shape[:-2] for x in (a, b, v, g)))
    num_queries, num_keys, dim = a.shape[-2], b.shape[-2], a.shape[-1]
    rows, columns = _block_sizes(math.prod(batch), num_queries, num_keys, whole, TILE)

    kernel = _kernel if whole else lambda a, b: jnp.exp2(_logits(a, b))
    a1, b1 = (jnp.concatenate([x, jnp.ones_like(x[..., :1])], -1) for x in (a, b))  # S [b, 1]: S b and its row sums
    a0, b0 = (a, b) if whole else _logit_factors(*with_norms(a, b))
    key_blocks = _blocks(b0, columns), _blocks(b1, columns), _blocks(v, columns)

    def add_rows(total: tuple[Array, Array], block: tuple[Array, Array, Array]):
        a0, a1, g = block

        def add_columns(sb: Array, block: tuple[Array, Array, Array]):
            b0, b1, v = block
            phi = kernel(a0, b0) if tile is None else tile  # (*batch, rows, columns)
            s = phi * _dot(g, v.mT)
            return sb + _dot(s, b1), (_dot(a1.mT, s), _dot(g.mT, phi))

        zero = vary_like(jnp.zeros((*batch, rows, dim + 1), a.dtype), [a, b, v, g])
        sb, parts = _scan(add_columns, zero, key_blocks)
        return jax.tree.map(jnp.add, total, parts), sb[..., :dim] - sb[..., dim:] * a1[..., :dim]

    num_blocks = -(-num_keys // columns)
    zeros = tuple(
        vary_like(jnp.zeros((num_blocks, *batch, width, columns), a.dtype), [a, b, v, g])
        for width in (dim + 1, v.shape[-1])
    )
    (sa, pg), da = _scan(add_rows, zeros, (_blocks(a0, rows), _blocks(a1, rows), _blocks(g, rows)))
    sa, dv = _unblocks(sa.mT, num_keys), _unblocks(pg.mT, num_keys)  # (*batch, N, D+1), (*batch, N, C)
    db = sa[..., :dim] - sa[..., dim:] * b
    return _unblocks(da, num_queries), db, dv


def sum_and_tile(
    queries: Float[Array, "m d"], keys: Float[Array, "n d"], values: Float[Array, "n c"], tau: Float[Array, ""]
) -> tuple[Float[Array, "m c"], Float[Array, "m n"]]:
    """The Gauss sum and Φ, for `blocked_pullback`; of ordinary JAX functions."""
    phi = _kernel(*scaled_points(queries, keys, tau))
    return _dot(phi, values), phi


def differences_sum(
    queries: Float[Array, "*#batch m d"],
    keys: Float[Array, "*#batch n d"],
    values: Float[Array, "*#batch n c"],
    tau: Float[Array, "*#batch"],
) -> Float[Array, "*result m c"]:
    """The Gauss sum of operands of equal rank from the differences of coordinates, at any distance from any center."""
    tile_sum = functools.partial(_difference_tile, jnp.sqrt(tau)[..., None, None])
    queries = _with_axes_of(tau, queries)
    return _blocked(tile_sum, queries, keys, values, tile=DIFFERENCES_TILE)


def differences_pullback(
    queries: Float[Array, "*#batch m d"],
    keys: Float[Array, "*#batch n d"],
    values: Float[Array, "*#batch n c"],
    tau: Float[Array, "*#batch"],
    cotangent: Float[Array, "*#batch m c"],
) -> tuple[Float[Array, "*#batch m d"], Float[Array, "*#batch n d"], Float[Array, "*#batch n c"]]:
    """`blocked_pullback` likewise."""
    total, pullback = jax.vjp(lambda q, k, v: differences_sum(q, k, v, tau), queries, keys, values)
    return pullback(jnp.broadcast_to(cotangent, total.shape))


def _with_axes_of(tau: Array, points: Array) -> Array:
    """The points, stretched along the batch of τ, which is not in them where nothing is scaled."""
    return jnp.broadcast_to(points, (*jnp.broadcast_shapes(points.shape[:-2], tau.shape), *points.shape[-2:]))


def blocked_means(
    queries: Float[Array, "*#batch m d"],
    keys: Float[Array, "*#batch n d"],
    values: Float[Array, "*#batch n c"],
    tau: Float[Array, "*#batch"],
    log_weights: Float[Array, "*#batch n 1"],
    *,
    whole: bool = False,
) -> tuple[Float[Array, "*result m c"], Float[Array, "*result m 1"]]:
    """Σ_n w Φ v / Σ_n w Φ and log Σ_n w Φ, with the largest term so far taken out."""
    a, b = _logit_factors(*with_norms(*scaled_points(queries, keys, tau, base_2=False)))
    return _in_groups(functools.partial(_log_blocked, _logits, whole=whole), a, b, values, log_weights)


def differences_log_sum(
    queries: Float[Array, "*#batch m d"],
    keys: Float[Array, "*#batch n d"],
    tau: Float[Array, "*#batch"],
    log_weights: Float[Array, "*#batch n 1"],
) -> Float[Array, "*result m 1"]:
    """log Σ_n w Φ of operands of equal rank from the differences of coordinates, under all transformations."""
    logits = functools.partial(difference_logits, jnp.sqrt(tau)[..., None, None])
    nothing = jnp.zeros_like(log_weights)
    return _log_blocked(logits, _with_axes_of(tau, queries), keys, nothing, log_weights, tile=DIFFERENCES_TILE)[1]


def unbroadcast(array: Array, shape: tuple[int, ...]) -> Array:
    """The sum over the axes that broadcasting `shape` to the array's shape has stretched."""
    extra = array.ndim - len(shape)
    stretched = [i + extra for i, n in enumerate(shape) if n == 1 and array.shape[i + extra] != 1]
    return array.sum((*range(extra), *stretched)).reshape(shape) if array.shape != shape else array


def center(points: Float[Array, "*#batch n d"]) -> Float[Array, "*#batch 1 d"]:
    """The mean of eight of the points, or zero where that is not finite; no gradient flows through it.

    Any place among the points keeps the digits. A reduction over all of them would be a ninth step of the program for a
    few points, and XLA runs eight at most on one thread: a call of 64 points would wait for others.
    """
    num, points = points.shape[-2], lax.stop_gradient(points)
    if num == 0:
        return jnp.zeros((*points.shape[:-2], 1, points.shape[-1]), points.dtype)
    places = range(0, num, -(-num // 8)) if are_known(num) else [i * num // 8 for i in range(8)]
    chosen = [points[..., i : i + 1, :] for i in places]
    mean = functools.reduce(jnp.add, chosen) / len(chosen)
    return jnp.where(jnp.isfinite(mean), mean, 0)


def _native(function: str, reduction: Callable, queries: Queries, keys: Keys, values: Values, tau: Bandwidth) -> Array:
    """Check and promote the public arguments, reduce, and return what was promoted."""
    dtype = check_operands(function, queries, keys, values, tau)
    return _checked_native(reduction, dtype, queries, keys, values, as_operand(tau, dtype))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _checked_native(reduction: Callable, dtype: str, *operands: Array) -> Array:
    q, k, v, t = whole(*(jnp.asarray(x, working_dtype(dtype)) for x in operands))
    weights = v.ndim == 1
    q, k, v, t = align(*vary_alike(q, k, v[:, None] if weights else v, t))
    total = reduction(*scaled_points(q, k, t, base_2=False), v).astype(dtype)
    return total[..., 0] if weights else total


def align(queries: Array, keys: Array, values: Array, tau: Array) -> tuple[Array, Array, Array, Array]:
    """The operands with the same number of leading axes."""
    rank = max(queries.ndim - 2, keys.ndim - 2, values.ndim - 2, tau.ndim)
    queries, keys, values = (lax.expand_dims(x, range(rank + 2 - x.ndim)) for x in (queries, keys, values))
    return queries, keys, values, lax.expand_dims(tau, range(rank - tau.ndim))


def _logit_factors(a: Points, b: Points) -> tuple[Array, Array]:
    """[a, 1, -½‖a‖²] and [b, -½‖b‖², 1]: one product makes the logits, nothing is left to be added to them."""
    one_a, one_b = (jnp.ones_like(x.norms) for x in (a, b))
    factors = (a.points, one_a, a.norms / -2), (b.points, b.norms / -2, one_b)
    return tuple(jnp.concatenate(x, -1) for x in factors)  # type: ignore[return-value]


def _tile_sum(a: Array, b: Array, v: Array) -> Array:
    return _dot(jnp.exp2(_logits(a, b)), v)


def _fused_tile_sum(a: Array, b: Array, v: Array) -> Array:
    """The same with the second product as a reduction; for `FUSES`, and not to be differentiated."""
    phi = jnp.exp2(_logits(a, b))
    if v.shape[-1] == 1:
        return (phi * v.mT).sum(-1, keepdims=True)
    return (phi[..., None] * v[..., None, :, :]).sum(-2)


def fused_tile(channels: int) -> Tile:
    """The tile of fused products."""
    if channels == 1:
        return Tile(2**21, 2048, 512, 2**20)
    return Tile(2**21, 8192, 256, 2**20) if channels < WIDE else Tile(2**21, 8192, 128, 2**17)


def _whole_sum(a: Array, b: Array, v: Array) -> Array:
    return _dot(_kernel(a, b), v)


def _kernel(a: Array, b: Array) -> Array:
    """Φ of points scaled to the base of 2, all of it: there, the factors are not worth putting together."""
    squared = jnp.square(a).sum(-1)[..., :, None] + jnp.square(b).sum(-1)[..., None, :] - 2 * _dot(a, b.mT)
    return jnp.exp2(-squared / 2)


def _formula(a: Array, b: Array, v: Array) -> Array:
    """The sum as one writes it. Rounding may leave exponents above zero, which would be multiplied without bound."""
    logits = _dot(a, b.mT) - jnp.square(a).sum(-1)[..., :, None] / 2 - jnp.square(b).sum(-1)[..., None, :] / 2
    return _dot(jnp.exp(logits - lax.stop_gradient(jnp.maximum(logits, 0))), v)


def _formula_by_blocks(a: Array, b: Array, v: Array) -> Array:
    return _blocked(_formula, a, b, v)


def _difference_tile(scale: Array, queries: Array, keys: Array, v: Array) -> Array:
    return _dot(jnp.exp(difference_logits(scale, queries, keys)), v)


def difference_logits(scale: Array, queries: Array, keys: Array) -> Array:
    """-½ Σ_d (scale (q_md - k_nd))², eight dimensions at a time; cut off where its square would overflow."""

    @jax.checkpoint  # or derivatives would hold the differences of every dimension, each of a tile's size
    def add(total: Array, columns: tuple[Array, Array]) -> tuple[Array, None]:
        for q, k in zip(*columns, strict=True):
            total = total + jnp.square(_scaled_difference(scale, q, k))
        return total, None

    batch = jnp.broadcast_shapes(scale.shape[:-2], queries.shape[:-2], keys.shape[:-2])
    zero = jnp.zeros((*batch, queries.shape[-2], keys.shape[-2]), queries.dtype)
    columns = _dimensions(queries), _dimensions(keys)
    return _scan(add, vary_like(zero, [queries, keys, scale]), columns)[0] / -2


def _scaled_difference(scale: Array, q: Array, k: Array) -> Array:
    """scale (q_m - k_n) of one coordinate (*batch, number)."""
    far = math.sqrt(float(jnp.finfo(q.dtype).max)) / 1e6
    return jnp.clip(scale * (q[..., :, None] - k[..., None, :]), -far, far)


def _dimensions(points: Array) -> Array:
    """(*batch, N, D) -> (steps, 8 or D, *batch, N), zeros at the end."""
    step = min(points.shape[-1], DIMENSIONS)
    padding = [(0, 0)] * (points.ndim - 1) + [(0, -points.shape[-1] % step)]
    x = jnp.moveaxis(jnp.pad(points, padding), -1, 0)
    return x.reshape(x.shape[0] // step, step, *x.shape[1:])


def _logits(a: Array, b: Array) -> Array:
    """Q Kᵀ. Rounding may leave it above zero, by no more than it moves it anywhere: points are within reach."""
    return _dot(a, b.mT)


_dot = functools.partial(jnp.matmul, precision=lax.Precision.HIGHEST)


def shared(*operands: Array) -> bool:
    """Whether every operand is the same for all of the batch."""
    return all(math.prod(x.shape[:-2]) == 1 for x in operands)


def _as_rows(x: Array) -> Array:
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _block_sizes(batch: int, num_queries: int, num_keys: int, whole: bool, tile: Tile) -> tuple[int, int]:
    """Rows and columns of a tile, for the whole batch at once; or of one tile for all. Full ones of symbolic sizes."""
    if not are_known(batch, num_queries, num_keys):
        return (num_queries, num_keys) if whole else (tile.rows, tile.columns)
    if whole:
        return max(1, num_queries), max(1, num_keys)
    rows = max(1, min(num_queries, tile.rows))
    columns = max(1, min(num_keys, max(tile.columns, tile.worth // max(1, batch * rows))))
    rows = max(1, min(rows, tile.entries // max(1, batch * columns)))
    return _evened(num_queries, rows), _evened(num_keys, columns)


def _evened(num: int, largest: int) -> int:
    """The size of the fewest blocks of nearly equal size, so that the last one is full."""
    return -(-max(1, num) // -(-max(1, num) // largest))


def _blocks(x: Array, size: int, fill: float = 0.0) -> Array:
    """(*batch, N, W) -> (blocks, *batch, size, W), zeros (or `fill`) at the end."""
    num_blocks = -(-x.shape[-2] // size)
    padding = [(0, 0)] * (x.ndim - 2) + [(0, num_blocks * size - x.shape[-2]), (0, 0)]
    return jnp.moveaxis(
        jnp.pad(x, padding, constant_values=fill).reshape(*x.shape[:-2], num_blocks, size, x.shape[-1]), -3, 0
    )


def _unblocks(x: Array, num: int) -> Array:
    """The inverse of `_blocks`."""
    x = jnp.moveaxis(x, 0, -3)
    return x.reshape(*x.shape[:-3], x.shape[-3] * x.shape[-2], x.shape[-1])[..., :num, :]


def _scan(body: Callable, carry, blocks):
    """`lax.scan`, without a loop for a single block."""
    if jax.tree.leaves(blocks)[0].shape[0] != 1:
        return lax.scan(body, carry, blocks)
    carry, out = body(carry, jax.tree.map(lambda x: x[0], blocks))
    return carry, jax.tree.map(lambda x: x[None], out)


def _in_groups(function: Callable, a: Array, b: Array, *rest: Array):
    """`function` of operands that share a batch, by as many of its elements at a time as fill a tile together.

    A tile of all elements would take too little of each: products of many small tiles are slow on a CPU. Operands have
    all of the batch or nothing of it; those that have a part are not repeated, and go in such tiles.
    """
    operands = a, b, *rest
    batch = jnp.broadcast_shapes(*(x.shape[:-2] for x in operands))
    size, entries = math.prod(batch), a.shape[-2] * b.shape[-2]
    known = are_known(size, entries)
    group = max(1, TILE.entries // max(1, entries)) if known else 1
    together = size <= group if known else size == 1
    is_mapped = [x.shape[:-2] == batch for x in operands]
    if together or not all(has_batch or shared(x) for has_batch, x in zip(is_mapped, operands, strict=True)):
        return function(*operands)

    def of_element(elements: list[Array]):
        own = iter(elements)
        return function(*(next(own) if m else _as_rows(x) for m, x in zip(is_mapped, operands, strict=True)))

    elements = [x.reshape(size, *x.shape[-2:]) for m, x in zip(is_mapped, operands, strict=True) if m]
    results = lax.map(of_element, elements, batch_size=group if group > 1 else None)
    return jax.tree.map(lambda x: x.reshape(*batch, *x.shape[1:]), results)


def _blocked(
    tile_sum: Callable, a: Array, b: Array, v: Array, *, whole: bool = False, tile: Tile | None = None
) -> Array:
    """Σ over blocks of queries and of keys. Keys that fill the last block have value 0."""
    batch = jnp.broadcast_shapes(*(x.shape[:-2] for x in (a, b, v)))
    sizes = a.shape[-2], b.shape[-2]
    rows, columns = _block_sizes(math.prod(batch), *sizes, whole, tile or TILE)
    key_blocks = _blocks(b, columns), _blocks(v, columns)
    tile_sum = tile_sum if (rows, columns) == sizes else jax.checkpoint(tile_sum)  # derivatives keep one tile at most

    def add_rows(_: None, a: Array):
        zero = vary_like(jnp.zeros((*batch, rows, v.shape[-1]), a.dtype), [a, b, v])
        return None, _scan(lambda total, block: (total + tile_sum(a, *block), None), zero, key_blocks)[0]

    return _unblocks(_scan(add_rows, None, _blocks(a, rows))[1], a.shape[-2])


def _log_blocked(
    tile_logits: Callable, a: Array, b: Array, v: Array, log_weights: Array, whole=False, tile: Tile | None = None
) -> tuple[Array, Array]:
    """Means and logarithm of the sum over blocks of queries and of keys."""
    batch = jnp.broadcast_shapes(*(x.shape[:-2] for x in (a, b, v, log_weights)))
    num_queries, _ = sizes = a.shape[-2], b.shape[-2]
    rows, columns = _block_sizes(math.prod(batch), *sizes, whole, tile or TILE)
    key_blocks = _blocks(b, columns), _blocks(v, columns), _blocks(log_weights, columns, LOG_ZERO)
    operands = [a, b, v, log_weights]

    def add_rows(_: None, a: Array):
        def add_columns(carry: tuple[Array, Array, Array], block: tuple[Array, Array, Array]):
            largest, total, sums = carry
            b, v, log_weights = block
            logits = tile_logits(a, b) + log_weights.mT
            new = lax.stop_gradient(jnp.maximum(largest, logits.max(-1, keepdims=True)))
            weights, before = jnp.exp(logits - new), jnp.exp(largest - new)
            total = total * before + weights.sum(-1, keepdims=True)
            return (new, total, sums * before + _dot(weights, v)), None

        def full(width: int, value: float) -> Array:
            return vary_like(jnp.full((*batch, rows, width), value, a.dtype), operands)

        carry = full(1, LOG_ZERO), full(1, 0.0), full(v.shape[-1], 0.0)
        many = (rows, columns) != sizes
        largest, total, sums = _scan(jax.checkpoint(add_columns) if many else add_columns, carry, key_blocks)[0]
        return None, (sums / total, largest + jnp.log(total))

    means, logs = _scan(add_rows, None, _blocks(a, rows))[1]
    return _unblocks(means, num_queries), _unblocks(logs, num_queries)
