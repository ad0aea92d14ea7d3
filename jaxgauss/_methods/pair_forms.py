"""Quadratic and linear forms of the kernel matrix without its diagonal, in float64, for the tests.

The diagonal is never formed: for narrow bandwidths its ones would hide all other terms. Each pair is computed once.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int

from .._arrays.devices import has_cuda, vary_alike, vary_like
from .._arrays.points import center, common_center, difference_logits, dot
from .._checks.settings import Settings, axis_names

GROUP = 512  # points; two groups make a tile of the kernel matrix
LONG = 16  # pairs of groups, from which two are computed at a time
PRODUCT_REACH = 2.0**22  # R² up to which a product gives exponents to 1e-10; beyond, differences do


class Forms(NamedTuple):
    """Forms of P columns σ with K', the kernel matrix without its diagonal.

    Attributes:
        quadratic: σᵀK'σ.
        linear: σᵀK'1.
        squares: 1ᵀ(K' ∘ K')1.
    """

    quadratic: Float[Array, "*bandwidths p"]
    linear: Float[Array, "*bandwidths p"]
    squares: Float[Array, "*bandwidths"]


class Groups(NamedTuple):
    """Centered points in groups of equal size, and which of them are not padding."""

    points: Float[Array, "groups size d"]
    there: Bool[Array, "groups size"]
    by_product: Bool[Array, ""]  # whether products give their distances accurately


def groups_of(
    points: Float[Array, "n d"], tau: Float[Array, "*bandwidths"], bin_size: int = 1, num_first: int = 0
) -> Groups:
    """Groups of whole bins of points; the first points, and the others, fill bins of their own."""
    x = points - common_center(points, center(points))
    by_product = ~(tau.max() * jnp.square(x).sum(-1).max() > PRODUCT_REACH)
    x, there = _filled(x, bin_size, num_first)
    num_groups = -(-len(x) // GROUP)
    size = bin_size * -(-len(x) // (num_groups * bin_size))
    there = jnp.pad(there, (0, num_groups * size - len(x))).reshape(num_groups, size)
    return Groups(rows_in_groups(x, there), there, by_product)


def _filled(x: Array, bin_size: int, num_first: int) -> tuple[Array, Bool[Array, " n"]]:
    """Both parts of the rows, filled with zeros to whole bins; and which rows are not filling."""
    if bin_size == 1:
        return x, jnp.ones(len(x), bool)
    parts = x[:num_first], x[num_first:]
    filling = [-len(z) % bin_size for z in parts]
    filled = [jnp.pad(z, ((0, more), (0, 0))) for z, more in zip(parts, filling, strict=True)]
    there = [jnp.arange(len(z) + more) < len(z) for z, more in zip(parts, filling, strict=True)]
    return jnp.concatenate(filled), jnp.concatenate(there)


def rows_in_groups(x: Array, there: Bool[Array, "groups size"]) -> Array:
    """Rows (n, …) in groups (groups, size, …), padded with zeros."""
    padding = (0, there.size - len(x)), *[(0, 0)] * (x.ndim - 1)
    return jnp.pad(x, padding).reshape(*there.shape, *x.shape[1:])


def group_pairs(num_groups: int, num_chunks: int = 1) -> Int[np.ndarray, "chunks each 2"]:
    """All (i, j) with i ≤ j, in chunks of equal size padded with (-1, -1)."""
    pairs = np.stack(np.triu_indices(num_groups), -1)
    each = -(-len(pairs) // num_chunks)
    return np.pad(pairs, ((0, num_chunks * each - len(pairs)), (0, 0)), constant_values=-1).reshape(-1, each, 2)


def smallest_distance(groups: Groups) -> Float[Array, ""]:
    """The smallest ‖x_i - x_j‖² of two different points."""

    def least(so_far: Array, pair: Array):
        squared, counts = group_distances(groups, pair)
        return jnp.minimum(so_far, jnp.where(counts, squared, jnp.inf).min()), None

    return lax.scan(least, jnp.asarray(jnp.inf), group_pairs(len(groups.points))[0])[0]


def scan_pairs(settings: Settings, add: Callable, zeros: Any, pairs: Array, *operands: Any) -> Any:
    """Loop over pairs of groups, total = add(total, pair, *operands), from `zeros`.

    A mesh divides the pairs over all its axes; operands are replicated.
    """

    def local(pairs: Array, *operands: Any) -> Any:
        arrays, structure = jax.tree.flatten(operands)
        pairs, *arrays = vary_alike(pairs, *arrays)
        given = jax.tree.unflatten(structure, arrays)
        total = jax.tree.map(lambda x: vary_like(x, [pairs]), zeros)
        two_at_once = 1 + (len(pairs) >= LONG)  # XLA computes them side by side; a second copy takes time to compile
        return lax.scan(lambda total, pair: (add(total, pair, *given), None), total, pairs, unroll=two_at_once)[0]

    if settings.mesh is None:
        return local(pairs, *operands)
    axes = tuple(dict.fromkeys(axis_names(settings.query_axis) + axis_names(settings.key_axis)))
    parts = math.prod(settings.mesh.shape[name] for name in axes)
    pairs = jnp.pad(pairs, ((0, -len(pairs) % parts), (0, 0)), constant_values=-1)
    specs = P(axes), *[P()] * len(operands)
    shared_out = jax.shard_map(lambda *x: lax.psum(local(*x), axes), mesh=settings.mesh, in_specs=specs, out_specs=P())
    return shared_out(pairs, *operands)


def forms_of_pairs(settings: Settings, groups: Groups, tau: Array, signs: Array, least: Array, pairs: Array) -> Forms:
    """The forms of κ(τ (‖x_i - x_j‖² - least)) over some pairs of groups, for signs (groups, bins, P).

    Kernels, or their sums over pairs of bins, are rounded to the dtype of the signs, or to float32 for integers; sums
    over groups are float64.
    """
    dtype = jnp.float32 if signs.dtype == jnp.int8 else signs.dtype

    def add(total: Forms, pair: Array, groups: Groups, tau: Array, signs: Array, least: Array) -> Forms:
        squared, counts = group_distances(groups, pair)
        first, second = signs[pair[0]].astype(tau.dtype), signs[pair[1]].astype(dtype)
        bins = signs.shape[1]
        ones = jnp.ones((bins, 1), dtype)
        twice = multiplicity(pair)

        def of_tau(tau: Array) -> Forms:
            phi = jnp.where(counts, settings.kernel(tau * (squared - least)), 0)
            of_bins = phi if bins == len(phi) else phi.reshape(bins, -1, bins, len(phi) // bins).sum((1, 3))
            rounded = of_bins.astype(dtype)
            products, rows = (jnp.matmul(rounded, x, precision="highest").astype(tau.dtype) for x in (second, ones))
            quadratic, linear = (first * products).sum(0), dot(rows[:, 0], first) + products.sum(0)
            return Forms(twice * quadratic, twice / 2 * linear, twice * jnp.square(phi).sum())

        return jax.tree.map(jnp.add, total, lax.map(of_tau, tau) if tau.ndim else of_tau(tau))

    columns = (*tau.shape, signs.shape[-1])
    zeros = Forms(jnp.zeros(columns), jnp.zeros(columns), jnp.zeros(tau.shape))
    return scan_pairs(settings, add, zeros, pairs, groups, tau, signs, least)


def multiplicity(pair: Int[Array, " 2"]) -> Array:
    """How often a pair of groups counts: (i, j) also stands for (j, i)."""
    return jnp.where(pair[0] == pair[1], 1, 2)


def group_distances(
    groups: Groups, pair: Int[Array, " 2"], diagonal: bool = False
) -> tuple[Float[Array, "m n"], Bool[Array, "m n"]]:
    """‖x_i - x_j‖² of two groups, and which pairs count: those of two different points, or all with `diagonal`."""
    x, y = groups.points[pair[0]], groups.points[pair[1]]
    index = jnp.arange(len(x))
    counts = groups.there[pair[0]][:, None] & groups.there[pair[1]][None] & (pair[0] >= 0)
    if not diagonal:
        counts &= (pair[0] != pair[1]) | (index[:, None] != index[None])

    def by_product(x: Array, y: Array) -> Array:
        return jnp.square(x).sum(-1)[:, None] + jnp.square(y).sum(-1)[None] - 2 * dot(x, y.T)

    def by_differences(x: Array, y: Array) -> Array:
        return -2 * difference_logits(jnp.ones((1, 1)), x, y)

    if has_cuda():  # a branch would wait for the device
        return by_differences(x, y), counts
    return jnp.maximum(lax.cond(groups.by_product, by_product, by_differences, x, y), 0), counts
