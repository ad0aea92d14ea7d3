"""MMD² between all pairs of several sets of unequal sizes, from one pass over the pairs of points."""

import functools
from typing import Any, NamedTuple, Unpack, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from .._arrays.devices import has_cuda, vary_like, visible
from .._checks.arguments import public
from .._checks.labels import check_labels
from .._checks.samples import check_estimator, check_kernel, check_samples, is_mask
from .._checks.settings import Labels, MeshOptions, Options, Points, Settings, Taus, Weights, working_dtype
from .._kernels.kernels import Kernel
from .._sums.distinct import are_hidden, mean_kernel, sums_of_others, usual_or_sparse
from .._sums.kernel_sum import unrounded_kernel_sum
from .._sums.moments import bandwidth_mean, in_own_unit
from .._sums.preparation import check_plan

WIDTHS, OVERHEAD = (8, 16, 32, 64), 16  # points of a chunk; a chunk costs as much as so many points more
BLOCK, CUDA_BLOCK = 1024, 4096  # points: the pairs of two blocks fill a tile


@public()
def mmd_squared_matrix(
    points: Points,
    tau: Taus,
    *,
    segments: Labels,
    kernel: str | Kernel = "gauss",
    weights: Weights | None = None,
    estimator: str = "biased",
    **options: Unpack[Options],
) -> Float[Array, "b b"]:
    """Squared maximum mean discrepancies (MMD²) between all pairs of B sets of points, of unequal sizes.

    Entry (a, b) is `mmd_squared` of the points with the a-th and those with the b-th label, in sorted order. Each pair
    of points is summed once: O(N² D) operations and, with gradients, too, O(N D + B²) memory.

    Args:
        points: of all sets, (N, D), in any order.
        tau: τ = 1/σ², positive; or several, (T,), whose kernels are averaged, as for `mmd_squared`.
        segments: labels, (N,), any integers: the set of each point. They must be known outside of transformations.
        kernel: a name or a `Kernel`, as for `kernel_sum`.
        weights: (N,), of either sign, not normalized. None: 1/n for a set of n points.
        estimator: "biased" or "unbiased", as for `mmd_squared`.
        **options: `engine` and `precision`, as for `gauss_sum`.

    Returns:
        (B, B) in the promoted dtype of points and weights: symmetric, and zero on the diagonal. Sets are the distinct
        labels, `np.unique(segments)`.

    Raises:
        ValueError: shapes do not fit, there are no points, tau is not positive, an option has an unknown value, a set
            has too few points for the estimator, or the kernel needs weights with one sum in all sets.
        TypeError: points or weights are not a floating array, or labels are not known integers.

    Derivatives:
        Any order, both modes, with respect to points, weights and tau.

    Precision:
        As for `mmd_squared`: within 1e-6 of the size of the three terms in float32; sparse points likewise.

    Example:
        >>> import jax.numpy as jnp, numpy as np, jaxgauss
        >>> points = jnp.array([[0.0], [0.0], [100.0]])
        >>> jaxgauss.mmd_squared_matrix(points, 1.0, segments=np.array([7, 3, 7])).tolist()
        [[0.0, 0.5], [0.5, 0.0]]

    References:
        Gretton, Borgwardt, Rasch, Schölkopf & Smola, "A Kernel Two-Sample Test", JMLR 13, 2012.
    """
    function = "mmd_squared_matrix"
    check_estimator(function, estimator)
    kernel, given, asked = check_kernel(function, kernel), {"weights": weights}, cast(MeshOptions, options)
    settings = check_samples(function, {"points": points}, tau, asked, weights=given, kernel=kernel, allowed=Options)
    if is_mask(weights):
        raise TypeError(
            f"`jaxgauss.{function}`: `weights` must be floating; got booleans. Pass points[mask] and segments[mask]."
        )
    labels = check_labels(function, segments, "points", points.shape[0])
    _check_sets(kernel, labels, weights, estimator)
    tau = check_plan(settings, tau, points.shape[0] ** 2, points.shape[1], 1, points)
    return _matrix(
        settings, estimator, _chunk_table(labels.tobytes(), CUDA_BLOCK if has_cuda() else BLOCK), points, weights, tau
    )


def _check_sets(kernel: Kernel, labels: np.ndarray, weights: Any, estimator: str) -> None:
    """Raise ValueError if the estimate of a set is 0/0, or if sums of weights differ where they may not."""
    where = "`jaxgauss.mmd_squared_matrix`: "
    names, sets, numbers = np.unique(labels, return_inverse=True, return_counts=True)
    seen = None if weights is None else visible(weights)
    a = 1 / numbers[sets] if seen is None else seen
    sums, squares, sizes = (np.bincount(sets, x) for x in (a, np.square(a), np.abs(a)))
    alone = names[np.square(sums) - squares == 0]
    if estimator == "unbiased" and alone.size:
        raise ValueError(
            f"{where}`segments` must give each set two points with weight for the unbiased estimator; got {len(alone)}"
            f" of {len(names)} sets without, such as {alone[0]}. Use estimator='biased'."
        )
    if kernel.conditional and sums.max() - sums.min() > 1e-3 * sizes.max():
        raise ValueError(
            f"{where}`weights` must have one sum in all sets for {kernel!r}, which is only conditionally positive"
            f" definite; got sums from {sums.min():.6g} to {sums.max():.6g}. Divide those of each set by their sum."
        )


class _ChunkTable(NamedTuple):
    """Blocks of chunks; each chunk holds points of one set, and others of weight zero to fill its width.

    Attributes:
        sets: of each point, (N,).
        sizes: points of each set, (B,).
        chunks: indices of points, (blocks, chunks, width).
        counts: points of each chunk, (blocks, chunks).
        owners: the set of each chunk, (blocks, chunks).
        rows: indices of the points of each block, (blocks, most).
        pairs: blocks of keys and of queries, each pair once, (2, pairs).
    """

    sets: Any
    sizes: Any
    chunks: Any
    counts: Any
    owners: Any
    rows: Any
    pairs: Any


@functools.lru_cache(32)
def _chunk_table(labels: bytes, block: int) -> _ChunkTable:
    _, sets, sizes = np.unique(np.frombuffer(labels, "int64"), return_inverse=True, return_counts=True)
    width = min(WIDTHS, key=lambda x: (-(-sizes // x)).sum() * (x + OVERHEAD))
    num_blocks = -(-len(sets) // block)
    numbers = -(-sizes // width)
    owners = np.repeat(np.arange(len(sizes)), numbers)
    firsts = width * (np.arange(len(owners)) - np.repeat(numbers.cumsum() - numbers, numbers))  # within the set
    counts = np.minimum(width, sizes[owners] - firsts)
    starts = (sizes.cumsum() - sizes)[owners] + firsts
    padding = [0, -len(owners) % num_blocks]
    owners, counts, starts = (np.pad(x, padding).reshape(num_blocks, -1) for x in (owners, counts, starts))
    steps, order = np.arange(width), np.argsort(sets, kind="stable")
    own = steps < counts[..., None]
    chunks = order[starts[..., None] + np.where(own, steps, 0)]
    rows = np.zeros((num_blocks, counts.sum(1).max()), int)
    for i in range(num_blocks):
        some = chunks[i][own[i]]
        rows[i] = np.resize(some, rows.shape[1]) if some.size else 0
    pairs = np.stack(np.triu_indices(num_blocks))
    return _ChunkTable(*(x.astype("int32") for x in (sets, sizes, chunks, counts, owners, rows, pairs)))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _matrix(settings: Settings, estimator: str, layout: _ChunkTable, points: Array, weights: Any, tau: Any) -> Array:
    dtype, layout = working_dtype(settings.dtype), jax.tree.map(jnp.asarray, layout)
    tau, num_sets = jnp.asarray(tau, dtype), len(layout.sizes)
    a = (1 / layout.sizes.astype(dtype))[layout.sets] if weights is None else jnp.asarray(weights, dtype)
    unit, (points,) = in_own_unit(settings, tau, [points], [a])
    means = _forms(settings, layout, points, a, tau)
    is_own = jnp.eye(num_sets, dtype=bool)
    norms = jnp.where(is_own, means, 0).sum(1)
    if estimator == "unbiased":
        total, squares = (jax.ops.segment_sum(x, layout.sets, num_sets) for x in (a, jnp.square(a)))
        own = settings.kernel.at_zero * squares
        given = points, a, tau, layout.sets.astype(dtype)
        is_sparse = are_hidden(settings, len(points), lax.stop_gradient(norms - own), own)
        norms = usual_or_sparse(settings, is_sparse, lambda *x: norms - own, _OfEachSet(num_sets), *given)
        norms = jnp.square(total) / (jnp.square(total) - squares) * norms
    found = norms[:, None] + norms[None] - 2 * means
    return (jnp.where(is_own, 0, found) * unit).astype(settings.dtype)


class _OfEachSet(NamedTuple):
    """Σ_{i ≠ j} a_i a_j κ(x_i, x_j) over the points of each of so many sets."""

    number: int

    def __call__(self, settings: Settings, points: Array, a: Array, tau: Array, sets: Array) -> Array:
        sums = sums_of_others(mean_kernel(settings.kernel, tau, points), a[:, None], sets)
        return jax.ops.segment_sum(a * sums[:, 0], sets.astype("int32"), self.number)


def _forms(settings: Settings, layout: _ChunkTable, points: Array, weights: Array, tau: Array) -> Array:
    """Σ a_i a_j κ(x_i, x_j) over the points of each pair of sets, (B, B); one pair of blocks after the other."""

    def chunk_weights(block: Array) -> Array:
        chunks, counts = layout.chunks[block], layout.counts[block]
        own = jnp.arange(chunks.shape[-1], dtype="int32")[None] < counts[:, None]
        return jnp.where(own, weights[chunks], 0)

    @jax.checkpoint  # else derivatives would keep the pulls of every chunk at every point
    def of_pair(pair: Array) -> Array:  # (chunks of keys, chunks of queries)
        of_keys, of_queries = pair
        keys, values = points[layout.chunks[of_keys]], chunk_weights(of_keys)[..., None]
        queries = points[layout.rows[of_queries]]
        sums = unrounded_kernel_sum(settings, queries, keys, values, tau[:, None] if tau.ndim else tau)
        sums = bandwidth_mean(sums[..., 0], tau)  # (chunks, rows)
        counts = layout.counts[of_queries]
        positions = jnp.cumsum(counts, dtype="int32")[:, None] - counts[:, None]
        steps = jnp.arange(layout.chunks.shape[-1], dtype="int32")[None]
        positions = jnp.minimum(positions + steps, sums.shape[-1] - 1)
        return (sums[:, positions] * chunk_weights(of_queries)[None]).sum(-1)

    def add(total: Array, pair: Array) -> tuple[Array, None]:
        forms = of_pair(pair)
        forms = jnp.where(pair[0] == pair[1], forms / 2, forms)
        owners = layout.owners[pair[0]][:, None], layout.owners[pair[1]][None]
        return total.at[owners].add(forms), None

    total = jnp.zeros((len(layout.sizes),) * 2, weights.dtype)
    total, _ = lax.scan(add, vary_like(total, [points, weights, tau]), layout.pairs.T)
    return total + total.T
