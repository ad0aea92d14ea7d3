"""The two-sample test by MMD: all random labelings share the exponentials, as columns of one sum."""

import contextlib
import functools
import math
from typing import Any, NamedTuple, Unpack

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Key

from .._arrays.devices import expected_platform, replicated
from .._calls import check_choice
from .._checks.arguments import public
from .._checks.samples import check_estimator, check_kernel, check_number, check_rng_key, check_samples
from .._checks.settings import MeshOptions, Points, Settings, Taus, working_dtype
from .._engines.fourier.forms import (
    WaveForms,
    blocks_needed,
    blocks_that_pay,
    forms_of_waves,
    num_coefficients,
    wave_forms,
)
from .._engines.scopes import scope
from .._engines.sliced.directions import Directions
from .._engines.sliced.engine import Sliced
from .._engines.sliced.forms import (
    LABELINGS,
    Slices,
    check_sliced,
    forms_of_slices,
    mean_squares,
    num_groups,
    slices,
    waves_of,
)
from .._kernels.kernels import GAUSS, Kernel
from .._sums.display import refuse_progress_in_a_trace
from .._sums.mesh import sum_over_mesh
from .._sums.preparation import check_plan
from .labelings import NORM, Design, labels, of_points, shuffled
from .pair_forms import Forms, Groups, forms_of_pairs, group_pairs, groups_of, smallest_distance
from .resampling import KernelTest, as_test, in_blocks, side_by_side, soft_maximum

BYTES = 2**26  # of signs in memory at a time
BYTES_OF_WAVES = 2**24  # of signs, or of coefficients, where waves compute the forms
COLUMNS = 2**14  # labelings in memory at a time
BINS = 500  # of the smaller sample, at least; its points share labels bin by bin if there are so many
MANY, OF_WAVES = 2**15, 3  # pooled points from which bins get the labels, and dimensions in which waves make them cheap
FEW = 1024  # labels up to which kernels are kept in float64; for more, rounding errors average out
SMALL = 4096  # pooled points up to which every platform computes the forms in float64
KERNEL_CHANNELS = 240  # columns in one call of an attention kernel
LEAST_NORM = 1024  # in units of the dtype: below it, rounding of sums with the diagonal hides ‖K‖


@public()
def mmd_test(
    x: Points,
    y: Points,
    tau: Taus,
    *,
    rng_key: Key[Array, ""],
    kernel: str | Kernel = "gauss",
    num_permutations: int = 999,
    estimator: str = "unbiased",
    resampling: str = "auto",
    progress: bool = False,
    **options: Unpack[MeshOptions],
) -> KernelTest:
    """Test whether x and y come from one distribution, by MMD² and random labelings of the pooled points.

    With the kernel matrix K of the pooled points and a labeling σ (1 in x, -1 in y), MMD² is made of σᵀKσ, σᵀK1 and
    1ᵀK1. On CPUs, and elsewhere for several bandwidths or up to 4096 points, "auto" computes K once in float64:
    O((M + N)² (D + P)) operations, with bins O((M + N)² D). On CPUs a Fourier series replaces K for many points in D ≤
    3: O((M + N) P). Otherwise labelings are channels of a `gauss_sum`. At most 64 MiB for labelings. With
    `engine=Sliced(rng_key=…)`, bins take O(M + N) a wave in any D. Levels are exact; waves decide on power.

    Args:
        x: points, (M, D).
        y: points, (N, D).
        tau: τ = 1/σ², positive; or several, (T,), which are aggregated as in MMD-FUSE (docs/which_function.md).
        rng_key: random key for the labelings, which are the same on every device and in every precision.
        kernel: a name or a `Kernel`, as for `mmd_squared`. "energy" gives the energy test, which does not depend on τ.
        num_permutations: P. The p-value is at least 1/(P + 1).
        estimator: "unbiased" or "biased", as for `mmd_squared` (which is biased by default).
        resampling: "permutation" of all labels; "bins": of those of random bins of points (docs/which_function.md);
            "wild": x_i and y_i swap at random, which needs M = N, and is also valid for paired samples; "auto": "bins"
            if M + N ≥ 32768 and D > 3, else "permutation".
        progress: show a bar (needs tqdm); not under `jit`.
        **options: `engine`, `precision`, `mesh`, `query_axis` and `key_axis`, as for `mmd_squared`.

    Returns:
        A `KernelTest`: statistic, p-value, and the statistics of the labelings.

    Raises:
        ValueError: shapes do not fit, a sample has fewer than two points, tau or P is not positive, "wild" with M ≠ N,
            an option has an unknown value, `progress` under `jit`, or "energy" or a mesh with `Sliced`.
        TypeError: a sample is not a floating array. ImportError: `progress` without tqdm.

    Precision:
        P-values are right for any bandwidth in float64. In float32, beyond 1024 points, within 1e-7; by sums, 1e-6.

    Example:
        >>> import jax, jaxgauss
        >>> x, y = jax.random.normal(jax.random.key(0), (2, 200, 3))
        >>> test = jaxgauss.mmd_test(x, y + 0.5, 0.5, rng_key=jax.random.key(1), num_permutations=99)
        >>> round(float(test.p_value), 4)
        0.01

    References:
        Gretton, Borgwardt, Rasch, Schölkopf & Smola, "A Kernel Two-Sample Test", JMLR 13, 2012.
        Biggs, Schrab & Gretton, "MMD-FUSE", 2023, arXiv:2306.08777.
        Schrab et al., "MMD Aggregated Two-Sample Test", 2023, arXiv:2110.15073 (the wild bootstrap).
        Domingo-Enrich, Dwivedi & Mackey, "Cheap Permutation Testing", 2025, arXiv:2502.07672 (bins).
    """
    where = "`jaxgauss.mmd_test`"
    check_estimator("mmd_test", estimator)
    kernel = check_kernel("mmd_test", kernel)
    settings = check_samples("mmd_test", {"x": x, "y": y}, tau, options, min_points=2, kernel=kernel)
    check_rng_key("mmd_test", rng_key)
    check_number("mmd_test", "num_permutations", num_permutations)
    check_choice("mmd_test", "resampling", resampling, ("permutation", "bins", "wild", "auto"))
    if resampling == "wild" and len(x) != len(y):
        raise ValueError(
            f"{where}: `x` and `y` must be of one size for resampling 'wild', which swaps x_i and y_i; got x {x.shape},"
            f" y {y.shape}. Use resampling='permutation'."
        )
    if progress:
        refuse_progress_in_a_trace("mmd_test", x, y, tau, rng_key)

    num, bandwidths = len(x) + len(y), max(1, math.prod(np.shape(tau)))
    if resampling == "auto":
        resampling = "bins" if num >= MANY and x.shape[1] > OF_WAVES else "permutation"
    bin_size = max(1, min(len(x), len(y)) // BINS) if resampling == "bins" else 1
    on_cpu = expected_platform(x, y) == "cpu"
    groups, of = 0, None
    if isinstance(settings.engine, Sliced):
        check_sliced(settings)
        groups = num_groups(settings.engine, bandwidths)
    exact = groups > 0 or (settings.automatic and (on_cpu or bandwidths > 1 or num <= SMALL))
    rows = sum(-(-len(z) // bin_size) for z in (x, y))
    largest = LABELINGS if groups else COLUMNS
    largest = max(1, min(largest, BYTES // ((8 if rows <= FEW else 1) * rows))) if exact else KERNEL_CHANNELS
    design = _design(len(x), len(y), resampling, num_permutations, largest, estimator, exact, 0, bin_size, groups)
    tau = check_plan(settings, tau, num * num * bandwidths, x.shape[1], design.columns, x, y)
    if groups:
        of = waves_of(settings, x.shape[1])

    def test(design: Design) -> KernelTest:
        test = _test if progress else _test_at_once
        return test(settings, design, num_permutations, progress, of, x, y, tau, rng_key)

    with jax.enable_x64(True) if exact else contextlib.nullcontext():
        most, dim = 0, x.shape[1]
        if exact and on_cpu and kernel == GAUSS and settings.mesh is None:
            most = blocks_that_pay(num, dim, num_permutations + 2, bandwidths, design.num_blocks)
        if not most:
            return test(design)
        with jax.ensure_compile_time_eval():  # also where `explain` only traces the rest
            needed = _blocks_needed(x, y, tau)
            needed = needed if isinstance(needed, jax.core.Tracer) else float(needed)
        if isinstance(needed, float):
            if not needed <= most:
                return test(design)
            most = int(needed)
        largest = max(1, BYTES_OF_WAVES // (8 * max(num, num_coefficients(dim, most))))
        by_waves = _design(len(x), len(y), resampling, num_permutations, largest, estimator, exact, most, bin_size)
        if isinstance(needed, float):
            return test(by_waves)
        return lax.cond(needed <= most, lambda: test(by_waves), lambda: test(design))


def _design(m: int, n: int, resampling: str, num_permutations: int, largest: int, *others: Any) -> Design:
    """The design with blocks of at most so many columns, and of equal size."""
    num_blocks = -(-(num_permutations + 2) // largest)
    return Design(m, n, resampling, num_blocks, -(-(num_permutations + 2) // num_blocks), *others)


class _Pool(NamedTuple):
    """The pooled points and τ; for an exact test also their waves, or groups and the smallest squared distance.

    With random waves also ‖K‖² of every bandwidth.
    """

    points: Array
    tau: Array
    groups: Groups | None
    least: Array | None
    waves: WaveForms | None = None
    slices: Slices | None = None
    squares: Array | None = None


@functools.partial(jax.jit, static_argnums=(0, 1))
def _pooled(settings: Settings, design: Design, of: Directions | None, x, y, tau, rng_key: Array) -> _Pool:
    dtype = np.dtype("float64") if design.exact else working_dtype(settings.dtype)
    points, tau = _as_pool(dtype, x, y, tau)
    points = shuffled(design, rng_key, points)
    if of is not None:
        found = slices(of, design.slices, points, tau, design.bin_size, design.num_x)
        pairs = design.num * (design.num - 1)
        squares = pairs * mean_squares(found, jax.random.fold_in(rng_key, NORM)) if tau.ndim else None
        return _Pool(points, tau, None, None, None, found, squares)
    if design.most:
        return _Pool(points, tau, None, None, wave_forms(points, tau, design.most, design.columns))
    if not design.exact:
        return _Pool(points, tau, None, None)
    groups = groups_of(points, tau, design.bin_size, design.num_x)
    # a common factor of all kernels cancels in MMD²/‖K‖; this one keeps them from underflowing
    can_vanish = tau.ndim and settings.kernel == GAUSS
    return _Pool(points, tau, groups, smallest_distance(groups) if can_vanish else jnp.zeros(()))


def _as_pool(dtype: np.dtype, x: Any, y: Any, tau: Any) -> tuple[Array, Array]:
    """The pooled points and τ, in a dtype and without a gradient."""
    x, y, tau = replicated(*(jnp.asarray(lax.stop_gradient(jnp.asarray(z)), dtype) for z in (x, y, tau)))
    return jnp.concatenate([x, y]), tau


@jax.jit
def _blocks_needed(x: Array, y: Array, tau: Array) -> Array:
    """`blocks_needed` of the pooled points."""
    return blocks_needed(*_as_pool(np.dtype("float64"), x, y, tau))


def _test(
    settings: Settings,
    design: Design,
    num_permutations: int,
    progress: bool,
    of: Directions | None,
    x: Any,
    y: Any,
    tau: Any,
    rng_key: Array,
) -> KernelTest:
    pool = _pooled(settings, design, of, x, y, tau, rng_key)
    make = functools.partial(_signs, design, pool, rng_key)
    part = functools.partial(_chunk, settings, design, pool)
    with scope("sum", "labelings", 1, design.num, *pool.points.shape, num_permutations):
        forms = _joined(in_blocks(settings.function, design.num_blocks, design.num_chunks, make, part, progress))
    return _result(settings, design, num_permutations, pool, forms)


_test_at_once = jax.jit(_test, static_argnums=(0, 1, 2, 3))


def _joined(blocks: Forms) -> Forms:
    """The forms of all blocks side by side."""
    return Forms(side_by_side(blocks.quadratic), side_by_side(blocks.linear), blocks.squares[0])


@functools.partial(jax.jit, static_argnums=0)
def _signs(design: Design, pool: _Pool, rng_key: Array, block: Array | int) -> Array:
    """The labelings of a block as ±1, of bins in groups, or of points; padded with zeros to whole groups or chunks."""
    groups = pool.groups
    rounded = design.slices > 0 or (groups is not None and design.num_bins > FEW)
    signs = jnp.where(labels(design, rng_key, block), 1, -1).astype("int8" if rounded else pool.points.dtype)
    if design.slices:
        return signs
    if groups is None:
        return jnp.pad(of_points(design, signs), ((0, design.num_chunks * design.rows - design.num), (0, 0)))
    num_groups, size = groups.there.shape
    bins = size // design.bin_size
    return jnp.pad(signs, ((0, num_groups * bins - design.num_bins), (0, 0))).reshape(num_groups, bins, -1)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _chunk(settings: Settings, design: Design, pool: _Pool, signs: Array, j: Array | int) -> Forms:
    """The forms of one chunk of rows, or of pairs of groups, (*bandwidths, columns)."""
    points, tau, groups, least, waves, of, _ = pool
    if of is not None:
        quadratic, linear = (z.reshape(*tau.shape, -1) for z in forms_of_slices(of, design.bin_size, signs, j))
        return Forms(quadratic, linear, jnp.zeros(tau.shape))
    if waves is not None:
        return Forms(*forms_of_waves(waves, points, tau, signs))
    if groups is not None and least is not None:
        pairs = jnp.asarray(group_pairs(len(groups.points), design.num_chunks))[j]
        return forms_of_pairs(settings, groups, tau, signs, least, pairs)
    start, num_rows = j * design.rows, design.rows
    own = lax.dynamic_slice_in_dim(signs, start, num_rows)  # (rows, columns)
    padded = jnp.pad(points, ((0, len(signs) - len(points)), (0, 0)), mode="edge")  # padding adds no far points
    rows = lax.dynamic_slice_in_dim(padded, start, num_rows)
    products = sum_over_mesh(settings, rows, points, signs[: len(points)], tau)  # (*bandwidths, rows, columns)
    there = (start + jnp.arange(num_rows) < len(points))[:, None]
    own, there = (jnp.expand_dims(x, range(tau.ndim)) for x in (own, there))
    products = products - settings.kernel.at_zero * own
    return Forms((own * products).sum(-2), jnp.where(there, products, 0).sum(-2), jnp.zeros(tau.shape))


# With h = (1 + σ)/2 the labels of x and e = 1 - h those of y, s = σᵀK'σ, r = σᵀK'1 and t = 1ᵀK'1:
#
#     hᵀK'h = (t + 2r + s)/4      eᵀK'e = (t - 2r + s)/4      hᵀK'e = (t - s)/4
#
# and the diagonal, κ(0), adds M and N times that to the first two: nothing in the unbiased statistic.


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _result(settings: Settings, design: Design, num_permutations: int, pool: _Pool, forms: Forms) -> KernelTest:
    m, n, biased = design.num_x, design.num_y, design.estimator == "biased"
    s, r, squares = forms
    t, s, r = s[..., :1], s[..., 1 : num_permutations + 2], r[..., 1 : num_permutations + 2]
    in_x, in_y = (1 / m**2, 1 / n**2) if biased else (1 / (m * (m - 1)), 1 / (n * (n - 1)))
    cross, diagonal = 1 / (m * n), (1 / m + 1 / n) * settings.kernel.at_zero if biased and not pool.tau.ndim else 0.0
    statistics = ((in_x + in_y - 2 * cross) * t + 2 * (in_x - in_y) * r + (in_x + in_y + 2 * cross) * s) / 4 + diagonal
    sizes = jnp.abs((in_x + in_y + 2 * cross) / 4 * t[..., 0] + diagonal) if design.exact else 1 / m + 1 / n
    unit = float(jnp.finfo(statistics.dtype).eps)
    if design.exact and design.num_bins > FEW and not design.slices:
        unit = 4 / design.num_bins * float(jnp.finfo("float32").eps)
    rounding = 16 * unit * jnp.broadcast_to(sizes, pool.tau.shape)
    if pool.tau.ndim:
        statistics, rounding = _aggregated(design, _norms(settings, design, pool, squares), statistics, rounding)
    return as_test(statistics, rounding, settings.dtype, working_dtype(settings.dtype))


def _norms(settings: Settings, design: Design, pool: _Pool, squares: Array) -> Array:
    """‖K‖ of every bandwidth (T,), up to the factor of the kernels; infinite if rounding hides it."""
    num, dtype = design.num, pool.points.dtype
    squares = squares if pool.squares is None else pool.squares
    if not design.exact:
        with jax.enable_x64(True):
            points, tau = pool.points.astype("float64"), pool.tau.astype("float64")
            groups = groups_of(points, tau)
            none, pairs = jnp.zeros((*groups.there.shape, 0)), jnp.asarray(group_pairs(len(groups.points))[0])
            squares = forms_of_pairs(settings, groups, tau, none, jnp.zeros(()), pairs).squares.astype(dtype)
    norms = jnp.sqrt(squares / (num * (num - 1)))
    return jnp.where(norms > (0 if design.exact else LEAST_NORM * jnp.finfo(dtype).eps), norms, jnp.inf)


def _aggregated(design: Design, norms: Array, statistics: Array, rounding: Array) -> tuple[Array, Array]:
    """The soft maximum of MMD²/‖K‖ over the bandwidths for every labeling, and its rounding error."""
    statistics = soft_maximum(min(design.num_x, design.num_y), statistics / norms[:, None])
    return statistics, (rounding / norms).max()
