"""The independence test by HSIC: permutations, or a wild bootstrap whose resamplings share the exponentials."""

import functools
from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Key

from .._arrays.devices import replicated
from .._calls import check_choice
from .._checks.arguments import public
from .._checks.samples import check_estimator, check_number, check_rng_key
from .._checks.settings import MeshOptions, Points, Settings, Taus, working_dtype
from .._engines.scopes import scope
from .._engines.sliced.covariances import Pairs, forms_of_orders, groups_of_waves, paired_waves, pairs_of, squares_of
from .._engines.sliced.engine import Sliced
from .._engines.sliced.forms import check_sliced
from .._sums.display import refuse_progress_in_a_trace
from .._sums.preparation import check_plan
from .hsic import FEWEST, check_pairs
from .pair_forms import Groups, group_distances, group_pairs, groups_of, multiplicity, rows_in_groups, scan_pairs
from .resampling import (
    KernelTest,
    Resamplings,
    as_test,
    check_one_bandwidth,
    in_blocks,
    random_signs,
    side_by_side,
    soft_maximum,
)

PERMUTATIONS = 64  # at a time
OTHERS = 2**32 - 1  # folded into the random key, as the numbers of permutations are
BINS = 256  # at least, whose points move together


@public("own")
def hsic_test(
    x: Points,
    y: Points,
    tau_x: Taus,
    tau_y: Taus,
    *,
    rng_key: Key[Array, ""],
    num_permutations: int = 999,
    estimator: str = "unbiased",
    resampling: str = "permutation",
    progress: bool = False,
    **options: Unpack[MeshOptions],
) -> KernelTest:
    """Test whether y depends on x, by the HSIC of the pairs (x_i, y_i) and of random resamplings of them.

    "permutation" pairs every x_i with another y_j, in P random orders: O(P N² D_y) operations. "wild" multiplies the
    centered kernels by random signs w, wᵀ(HKH ∘ HLH)w. All its resamplings share the same exponentials: O(N² (D + P))
    operations, which take a hundredth of the time for thousands of points. XLA computes both kernels of each pair once,
    in float64. O(N (D + P)) memory, in blocks of at most 64 MiB. `engine=Sliced(rng_key=…)` pairs random waves of x and
    y: O(N P) a pair, with "bins" O(N), at exact levels; only power depends on their number.

    Args:
        x: points, (N, D_x), N ≥ 4.
        y: points that are paired with them, (N, D_y).
        tau_x: τ = 1/σ² of x, positive; or several, (T,), which are aggregated with those of y, in all pairs
            (docs/which_function.md).
        tau_y: τ of y, likewise.
        rng_key: random key for the resamplings, which are the same on every device and in every precision.
        num_permutations: P, for either kind of resampling. The p-value is at least 1/(P + 1).
        estimator: "unbiased", required for several bandwidths and better for few points; or "biased", as for `hsic`.
        resampling: "permutation", exact for every N; or "wild", valid for many points. With "biased" it rejects too
            often if bandwidths are so narrow that a point has few others near it. `Sliced` takes "bins" in its place:
            permutations of random bins of points, 256 to 511, exact.
        progress: show a bar (needs tqdm); not under `jit`.
        **options: `engine`, "auto" or a `Sliced`; `mesh`, `query_axis` and `key_axis`: both axes divide the tiles.

    Returns:
        A `KernelTest`: statistic, p-value, and the statistics of the resamplings. No gradients: `hsic` has them.

    Raises:
        ValueError: shapes do not fit, N < 4, tau or P is not positive, several bandwidths with "biased", an option has
            an unknown value, `progress` under `jit`, or a mesh with `Sliced`.
        TypeError: points are not a floating array. ImportError: `progress` without tqdm.

    Precision:
        That of float64. For more than 512 points in float32, statistics are within 1e-7 √(HSIC(x, x) HSIC(y, y)).

    Example:
        >>> import jax, jaxgauss
        >>> x, z = jax.random.normal(jax.random.key(0), (2, 100, 1))
        >>> test = jaxgauss.hsic_test(x, x**2 + z, 1.0, 1.0, rng_key=jax.random.key(1), num_permutations=99)
        >>> round(float(test.p_value), 4)
        0.01

    References:
        Gretton, Fukumizu, Teo, Song, Schölkopf & Smola, "A Kernel Statistical Test of Independence", 2008.
        Chwialkowski, Sejdinovic & Gretton, "A Wild Bootstrap for Degenerate Kernel Tests", 2014, arXiv:1408.5404.
        Schrab, Kim, Guedj & Gretton, "Efficient Aggregated Kernel Tests", 2022, arXiv:2206.09194 (HSICAgg).
    """
    function = "hsic_test"
    check_estimator(function, estimator)
    settings, (tau_x, tau_y) = check_pairs(function, x, y, tau_x, tau_y, options, FEWEST["unbiased"])
    check_rng_key(function, rng_key)
    check_number(function, "num_permutations", num_permutations)
    sliced = isinstance(settings.engine, Sliced)
    if not sliced and (not settings.automatic or settings.engine.precision):
        raise ValueError(
            f"`jaxgauss.{function}`: `engine` must be 'auto', without a precision, or a jaxgauss.Sliced; got"
            f" {settings.engine!r}. Leave it out."
        )
    check_choice(function, "resampling", resampling, ("permutation", "bins" if sliced else "wild"))
    aggregated = np.ndim(tau_x) + np.ndim(tau_y) > 0
    check_one_bandwidth(function, estimator, tau_x=tau_x, tau_y=tau_y)
    if progress:
        refuse_progress_in_a_trace(function, x, y, tau_x, tau_y, rng_key)
    if sliced:
        check_sliced(settings)
        check_plan(settings, 1.0, len(x) ** 2, x.shape[1] + y.shape[1], num_permutations + 1, x, y)
        bin_size = max(1, len(x) // BINS) if resampling == "bins" else 1
        design = Resamplings.of(len(x) // bin_size, num_permutations, estimator, "float32")._replace(dtype="float64")
        waves, how = paired_waves(settings, x.shape[1], y.shape[1]), (settings, design, bin_size, aggregated, progress)
        with jax.enable_x64(True):
            return (_test_by_waves if progress else _by_waves_at_once)(*how, waves, x, y, tau_x, tau_y, rng_key)
    largest = PERMUTATIONS if resampling == "permutation" else num_permutations + 1
    design = Resamplings.of(len(x), num_permutations, estimator, working_dtype(settings.dtype), largest=largest)
    how = settings, design, resampling == "wild", aggregated, progress
    with jax.enable_x64(True):
        return (_test if progress else _test_at_once)(*how, x, y, tau_x, tau_y, rng_key)


class _Side(NamedTuple):
    """One variable: points in groups, bandwidths (T,), and the row means and total means that center their kernels."""

    groups: Groups
    tau: Array
    rows: Array  # (T, groups, size)
    mean: Array  # (T,)


class _Forms(NamedTuple):
    """Σ_ij w_i w_j A_ij B_ij of all resamplings, Σ A² and Σ B², where A, B are the centered kernels of x and y."""

    products: Array  # (T, S, columns)
    squares_x: Array  # (T,)
    squares_y: Array  # (S,)


# HSIC is an inner product of centered kernel matrices. Biased: HKH has the entries K_ij - r_i - r_j + m with the means
# r of rows and m of all. Unbiased: of K without its diagonal A_ij = K_ij - r_i - r_j + m for i ≠ j, now with
#
#     r_i = Σ_j K_ij / (N - 2)     m = Σ_ij K_ij / (N - 1)(N - 2)     Σ_j A_ij = 0     HSIC = Σ_ij A_ij B_ij / N (N - 3)
#
# Both sum products of entries that are already centered, so they are accurate even if HSIC is small. One product of a
# tile with the signs serves all wild resamplings; a permutation only exchanges the points of y.
# Source: Székely & Rizzo, "Partial Distance Correlation with Methods for Dissimilarities", 2014, for the unbiased one.


@functools.partial(jax.jit, static_argnums=(0, 1))
def _centered(settings: Settings, design: Resamplings, x, y, tau_x, tau_y) -> tuple[_Side, _Side]:
    x, y, tau_x, tau_y = _operands(x, y, tau_x, tau_y)
    return _side(settings, design, x, tau_x.reshape(-1)), _side(settings, design, y, tau_y.reshape(-1))


def _operands(*given: Any) -> tuple[Array, ...]:
    """In float64, without a gradient."""
    return replicated(*(jnp.asarray(lax.stop_gradient(jnp.asarray(z)), "float64") for z in given))


def _side(settings: Settings, design: Resamplings, points: Array, tau: Array) -> _Side:
    groups, num = groups_of(points, tau), design.num

    def add(rows: Array, pair: Array, groups: Groups, tau: Array) -> Array:
        squared, counts = group_distances(groups, pair)

        def of_tau(tau: Array) -> tuple[Array, Array]:
            phi = jnp.where(counts, settings.kernel(tau * squared), 0)
            return phi.sum(-1), jnp.where(pair[0] == pair[1], 0, phi.sum(-2))

        first, second = lax.map(of_tau, tau)
        return rows.at[:, pair[0]].add(first).at[:, pair[1]].add(second)

    zeros = jnp.zeros((*tau.shape, *groups.there.shape))
    rows = scan_pairs(settings, add, zeros, jnp.asarray(group_pairs(len(groups.points))[0]), groups, tau)
    rows = rows + jnp.where(groups.there, settings.kernel.at_zero, 0)[None] if design.biased else rows
    of_row, of_all = (num, num**2) if design.biased else (num - 2, (num - 1) * (num - 2))
    return _Side(groups, tau, rows / of_row, rows.sum((-2, -1)) / of_all)


def _test(
    settings: Settings,
    design: Resamplings,
    wild: bool,
    aggregated: bool,
    progress: bool,
    x: Any,
    y: Any,
    tau_x: Any,
    tau_y: Any,
    rng_key: Array,
) -> KernelTest:
    sides = _centered(settings, design, x, y, tau_x, tau_y)
    make = functools.partial(_columns, design, wild, sides[0].groups.there, rng_key)
    part, chunks = functools.partial(_chunk, settings, design, sides), len(sides[0].groups.points)
    with scope("sum", "labelings", 1, design.num, len(x), x.shape[1] + y.shape[1], design.number):
        blocks: _Forms = in_blocks(settings.function, design.num_blocks, chunks, make, part, progress)
    forms = _Forms(side_by_side(blocks.products), blocks.squares_x[0], blocks.squares_y[0])
    return _result(settings, design, aggregated, forms)


_test_at_once = jax.jit(_test, static_argnums=(0, 1, 2, 3, 4))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _columns(design: Resamplings, wild: bool, there: Array, rng_key: Array, block: Array | int) -> Array:
    """A block of resamplings (groups, size, columns): signs, or permutations as indices."""
    found = random_signs(rng_key, design.indices(block), design.num) if wild else _orders(design, rng_key, block)
    return rows_in_groups(found, there)


@functools.partial(jax.jit, static_argnums=0)
def _orders(design: Resamplings, rng_key: Array, block: Array | int) -> Array:
    """A block of permutations, as indices (n, columns); column 0 is none."""
    column = design.indices(block)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(rng_key, column)
    orders = jax.vmap(lambda key: jax.random.permutation(key, jnp.arange(design.num, dtype="int32")))(keys).T
    return jnp.where((column == 0)[None], jnp.arange(design.num, dtype="int32")[:, None], orders)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _chunk(
    settings: Settings, design: Resamplings, sides: tuple[_Side, _Side], columns: Array, j: Array | int
) -> _Forms:
    """The forms of one chunk of pairs of groups."""
    wild, rounded = columns.dtype == "int8", design.dtype

    def tiles(side: _Side, pair: Array) -> Array:
        """Entries of the centered kernels, (T, size, size)."""
        squared, counts = group_distances(side.groups, pair, diagonal=design.biased)
        means = side.rows[:, pair[0]], side.rows[:, pair[1]]
        return _entries(settings, side, squared, counts, *means)

    def add(total: _Forms, pair: Array, x: _Side, y: _Side, columns: Array) -> _Forms:
        of_x, of_y, twice = tiles(x, pair), tiles(y, pair), multiplicity(pair)
        x_rounded = of_x.astype(rounded)
        squares = (twice * jnp.square(z).sum((-2, -1)) for z in (of_x, of_y))
        first, second = columns[pair[0]], columns[pair[1]]

        def by_signs(a: Array) -> Array:
            def of_y_too(b: Array) -> Array:
                products = jnp.matmul((a * b).astype(rounded), second.astype(rounded), precision="highest")
                return (first.astype(rounded) * products).sum(0, dtype="float64")

            return lax.map(of_y_too, of_y)

        def by_indices(indices: tuple[Array, Array]) -> Array:
            flat = y.groups.points.reshape(-1, y.groups.points.shape[-1])
            moved = Groups(flat[jnp.stack(indices)], y.groups.there[pair], y.groups.by_product)
            rows = y.rows.reshape(len(y.rows), -1)
            second_of_two = jnp.where(pair[0] == pair[1], 0, 1)  # indices into `moved`; (-1, -1) is padding
            here = jnp.where(pair[0] < 0, -1, jnp.stack([jnp.zeros_like(second_of_two), second_of_two]))
            squared, counts = group_distances(moved, here, diagonal=design.biased)
            y_rounded = _Side(y.groups, *(z.astype(rounded) for z in y[1:]))
            means = (rows[:, p].astype(rounded) for p in indices)
            b = _entries(settings, y_rounded, squared.astype(rounded), counts, *means)
            return jnp.tensordot(x_rounded, b, ((1, 2), (1, 2)), precision="highest").astype("float64")

        products = lax.map(by_signs, of_x) if wild else jnp.moveaxis(lax.map(by_indices, (first.T, second.T)), 0, -1)
        return _Forms(total.products + twice * products, *(s + t for s, t in zip(total[1:], squares, strict=True)))

    x, y = sides
    zeros = _Forms(
        *(jnp.zeros(shape) for shape in ((len(x.tau), len(y.tau), columns.shape[-1]), x.tau.shape, y.tau.shape))
    )
    num_groups = len(x.groups.points)
    pairs = jnp.asarray(group_pairs(num_groups, num_groups))[j]
    return scan_pairs(settings, add, zeros, pairs, x, y, columns)


def _entries(settings: Settings, side: _Side, squared: Array, counts: Array, first: Array, second: Array) -> Array:
    """K_ij - r_i - r_j + m for all bandwidths, zero for pairs that do not count."""
    phi = settings.kernel(side.tau[:, None, None] * squared[None])
    centered = phi - first[:, :, None] - second[:, None, :] + side.mean[:, None, None]
    return jnp.where(counts[None], centered, 0)


def _test_by_waves(
    settings: Settings,
    design: Resamplings,
    bin_size: int,
    aggregated: bool,
    progress: bool,
    waves: tuple[Array, Array],
    x: Any,
    y: Any,
    tau_x: Any,
    tau_y: Any,
    rng_key: Array,
) -> KernelTest:
    groups = groups_of_waves(len(waves[0]), len(x))
    pairs, squares = _pairs(groups, bin_size, waves, x, y, tau_x, tau_y, rng_key)
    make, part = functools.partial(_orders, design, rng_key), functools.partial(_group, design, bin_size, pairs)
    with scope("sum", "labelings", 1, len(x), len(x), x.shape[1] + y.shape[1], design.number):
        products = side_by_side(in_blocks(settings.function, design.num_blocks, groups, make, part, progress))
    return _result(settings, design._replace(num=len(x)), aggregated, _Forms(products, *squares))


_by_waves_at_once = jax.jit(_test_by_waves, static_argnums=(0, 1, 2, 3, 4))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _pairs(groups: int, bin_size: int, waves: tuple[Array, Array], x, y, tau_x, tau_y, rng_key: Array) -> Any:
    """Points and waves, and the squared norms of both sides; pairs are in random order if bins of them move."""
    x, y, tau_x, tau_y = _operands(x, y, tau_x, tau_y)
    *keys, key = jax.random.split(jax.random.fold_in(rng_key, OTHERS), 3)
    if bin_size > 1:
        order = jax.random.permutation(key, len(x))
        x, y = x[order], y[order]
    pairs = pairs_of(waves, groups, x, y, tau_x.reshape(-1), tau_y.reshape(-1))
    return pairs, [squares_of(side, pairs.shares, key) for side, key in zip(pairs[:2], keys, strict=True)]


@functools.partial(jax.jit, static_argnums=(0, 1))
def _group(design: Resamplings, bin_size: int, pairs: Pairs, orders: Array, j: Array | int) -> Array:
    """What a group of waves adds."""
    return forms_of_orders(pairs, design.biased, bin_size, orders, j)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _result(settings: Settings, design: Resamplings, aggregated: bool, forms: _Forms) -> KernelTest:
    num, products = design.num, forms.products[..., : design.number + 1]
    of_x, of_y = jnp.sqrt(forms.squares_x)[:, None], jnp.sqrt(forms.squares_y)[None]
    sizes, unit = of_x * of_y, 16 * float(jnp.finfo(design.dtype).eps)
    rounding = design.rounding * sizes + unit * (of_x + of_y)  # of the sums, and of the entries
    if aggregated:
        inverse = jnp.where(sizes > 0, 1 / jnp.where(sizes > 0, sizes, 1), 0)
        statistics = soft_maximum(num, (products * inverse[..., None]).reshape(sizes.size, -1))
        rounding = (rounding * inverse).max()
    else:
        factor = 1 / num**2 if design.biased else 1 / (num * (num - 3))
        statistics, rounding = factor * products[0, 0], factor * rounding[0, 0]
    return as_test(statistics, rounding, settings.dtype, working_dtype(settings.dtype))
