"""MMD² with its standard error, of samples in memory or in chunks."""

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Unpack

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._arrays.batches import over_leading_axes
from .._arrays.points import padded_number
from .._calls import readable
from .._checks.arguments import as_arrays, floating_dtype, public, will_be_rounded
from .._checks.operands import Traced
from .._checks.samples import check_estimator, check_kernel, check_samples
from .._checks.settings import MeshOptions, Options, Points, Samples, Settings, Taus, working_dtype
from .._inspect.explanation import explained
from .._kernels.kernels import Kernel
from .._sums.chunks import give_back
from .._sums.display import progress_bar, refuse_progress, refuse_progress_in_a_trace, short_repr
from .._sums.distinct import are_sparse, mean_kernel, sums_of_others, usual_or_sparse
from .._sums.moments import Reduction, as_gaussians, bandwidth_mean, prepare, with_reduction
from .._sums.preparation import check_and_examine, check_plan
from .._sums.stream import gauss_sum_streamed
from .weights import weights_or_mean

WHERE = "`jaxgauss.mmd_estimate`"
# Chunks are padded to one size if that adds at most this share of pairs of points, or so few pairs that they take less
# time than the compilation of a second program.
LITTLE, FEW = 0.1, 2**26
Chunks = Iterable[Points] | Callable[[], Iterable[Points]]


@readable
class MMDEstimate(NamedTuple):
    """MMD² of two samples and its standard error, as `mmd_estimate` computes them.

    Attributes:
        mmd_squared: the estimate, a scalar or (…) for leading axes, in float32 or float64.
        standard_error: its standard deviation over samples of these sizes, if the distributions differ.
    """

    mmd_squared: Float[Array, "*batch"]
    standard_error: Float[Array, "*batch"]
    __repr__ = short_repr


@public()
def mmd_estimate(
    x: Samples | Chunks,
    y: Samples | Chunks,
    tau: Taus,
    *,
    kernel: str | Kernel = "gauss",
    estimator: str = "unbiased",
    progress: bool = False,
    **options: Unpack[MeshOptions],
) -> MMDEstimate:
    """Squared maximum mean discrepancy of two samples with its standard error, in memory or in chunks.

    MMD² = mean_i f(x_i) - mean_j f(y_j), where f(t) = mean_i k(x_i, t) - mean_j k(y_j, t) is the witness function. Its
    standard error is √(4 Var_i f(x_i) / M + 4 Var_j f(y_j) / N), the asymptotic one of a U-statistic. O((M + N)² D)
    operations; O((M + N) D) memory, or a few chunks and one number per point. CMMD, a metric of image generators, is
    1000 times the biased estimate of CLIP embeddings of unit length with τ = 0.01.

    Args:
        x: points, (…, M, D), with batches as for `mmd_squared`; or chunks of them, (n, D): a list, another iterable
            that can be read several times, or a function that returns one, such as `lambda: np.array_split(x, 100)`.
            All chunks are read again for each chunk; a few MiB each are best.
        y: points, (…, N, D), or chunks, likewise.
        tau: τ = 1/σ², positive; or several, (…, T), whose kernels are averaged.
        kernel: a name or a `Kernel`, as for `mmd_squared`.
        estimator: "unbiased", without the pairs i = i, may be negative; "biased", with them, is larger by about
            (1/M + 1/N)(k(0) - mean k).
        progress: show a bar (needs tqdm); arrays are then divided into chunks. Not under transformations.
        **options: `engine` and `precision`, as for `gauss_sum`; for arrays also `mesh`, `query_axis` and
            `key_axis`, as for `mmd_squared`.

    Returns:
        An `MMDEstimate`, with derivatives of both modes if x and y are arrays (`mmd_squared` is cheaper to train with).
        Where the standard error is zero, so is its gradient.

    Raises:
        ValueError: shapes do not fit, a sample has fewer than two points, an option has an unknown value, chunks change
            when they are read again, or `progress` under a transformation or with a mesh.
        TypeError: a sample is neither a floating array nor chunks; or chunks are given under `jit` or with a mesh.
        ImportError: `progress` without tqdm.

    Precision:
        Within 1e-6 of k(0) in float32, and 1e-7 where all k are nearly one, as in CMMD; sparse points in memory as for
        `mmd_squared`. The standard error is right for independent points and an MMD² well above it; for equal
        distributions it is √2 times too large (see `mmd_test`).

    Example:
        >>> import jax, jaxgauss
        >>> x, y = jax.random.normal(jax.random.key(0), (2, 500, 3))
        >>> estimate = jaxgauss.mmd_estimate([x[:300], x[300:]], y + 1, 0.5)
        >>> bool(0.2 < estimate.mmd_squared < 0.25), bool(0.01 < estimate.standard_error < 0.02)
        (True, True)

    References:
        Jayasumana et al., "Rethinking FID", 2024, arXiv:2401.09603 (CMMD).
        Sutherland et al., "Generative Models and Model Criticism", 2017, arXiv:1611.04488.
    """
    check_estimator("mmd_estimate", estimator)
    kernel = check_kernel("mmd_estimate", kernel)
    samples: dict[str, Any] = {"x": x, "y": y}
    allowed, in_chunks = MeshOptions, not all(hasattr(z, "shape") and hasattr(z, "dtype") for z in (x, y))
    if progress and not in_chunks:
        refuse_progress_in_a_trace("mmd_estimate", x, y, tau)
        refuse_progress("mmd_estimate", options.get("mesh") is not None, "with a mesh")
        refuse_progress("mmd_estimate", any(np.ndim(z) > 2 for z in samples.values()), "in batches")
        shapes = (jax.eval_shape(jnp.asarray, z) for z in (x, y))  # of points, rows in doubt would be estimated as well
        expected = explained(mmd_estimate, *shapes, tau, kernel=kernel, estimator=estimator, **options)
        samples, in_chunks = {name: _divided(z, expected.milliseconds) for name, z in samples.items()}, True
    if in_chunks:
        _refuse_tracers(tau, jnp.zeros(()))
        samples, allowed = {name: _Sample.of(name, z) for name, z in samples.items()}, Options
    how = {"min_points": 2, "allowed": allowed, "kernel": kernel, "batches": not in_chunks}
    settings = check_samples("mmd_estimate", samples, tau, options, **how)
    size = sum(z.shape[-2] for z in samples.values()) ** 2, samples["x"].shape[-1], 1
    if in_chunks:
        tau = check_plan(settings, tau, *size)
        return _in_chunks(settings, estimator, samples["x"], samples["y"], tau, progress)
    settings, tau = check_and_examine(settings, tau, *size, (x, y))
    return _in_memory(settings, estimator, x, y, tau)


# With the rows f_i = Σ_{j≠i} k(x_i, x_j) / (M - 1) - Σ_j k(x_i, y_j) / N of x, and g_j of y likewise, the U-statistic
# is mean f + mean g; with the pairs i = i, and M for M - 1, the V-statistic. Hoeffding's projection of either is
# MMD² + 2/M Σ_i (f(x_i) - E f(X)) - 2/N Σ_j (f(y_j) - E f(Y)), where f is the witness of the distributions. f_i and
# -g_j estimate it; hence the variance 4 Var f_i / M + 4 Var g_j / N.
# Source: Bounliphone et al., "A Test of Relative Similarity For Model Selection in Generative Models", 2016.


@functools.partial(jax.jit, static_argnums=(0, 1))
@over_leading_axes(2, 2, 1)
def _in_memory(settings: Settings, estimator: str, x, y, tau) -> MMDEstimate:
    dtype, samples = working_dtype(settings.dtype), (x, y)
    weights = tuple(weights_or_mean(None, z.shape[0], settings) for z in samples)
    is_sparse = estimator == "unbiased" and are_sparse(settings, samples, weights, tau, alike=True)
    ways = functools.partial(_rows, settings, estimator), _rows_of_distinct
    return _of_rows(dtype, *usual_or_sparse(settings, is_sparse, *ways, x, y, tau))


def _rows_of_distinct(settings: Settings, x: Array, y: Array, tau: Array) -> list[Array]:
    """The rows of x and of y, each without its own point."""
    m, n = len(x), len(y)
    columns = (jnp.arange(m + n) < m)[:, None] == jnp.array([[True, False]])
    sums = mean_kernel(settings.kernel, tau, jnp.concatenate([x, y]))
    of_x, of_y = sums_of_others(sums, columns.astype(x.dtype)).T
    return [of_x[:m] / (m - 1) - of_y[:m] / n, of_y[m:] / (n - 1) - of_x[m:] / m]


def _rows(settings: Settings, estimator: str, x: Array, y: Array, tau: Array) -> list[Array]:
    """The rows from sums over all pairs."""
    dtype = working_dtype(settings.dtype)
    settings, tau, shares = as_gaussians(settings, tau, x, y)
    tau, x, y, a, b = prepare(settings, tau, x, y, *(jnp.ones((len(z), 1), dtype) for z in (x, y)))

    def rows(reduction: Reduction, samples: tuple[Array, ...], tau: Array, a: Array, b: Array) -> list[Array]:
        def row(own: Array, ones: Array, other: Array, others: Array) -> Array:
            inside, across, themselves = _shares(settings, estimator, own.shape[-2], other.shape[-2])
            keys, weights = jnp.concatenate([own, other], -2), jnp.concatenate([inside * ones, across * others], -2)
            return reduction(own, keys, weights, tau, pulls=False).mass[..., 0] - themselves

        x, y = samples
        return [row(x, a, y, b), row(y, b, x, a)]

    found = with_reduction(settings, rows, (x, y), tau, a, b, pulls=False)
    return [bandwidth_mean(row, tau, shares) for row in found]


def _shares(settings: Settings, estimator: str, num: int, num_others: int) -> tuple[float, float, float]:
    """The weights of a point of the row's own sample and of the other one, and the row's own term to subtract."""
    inside = 1 / (num - 1 if estimator == "unbiased" else num)
    return inside, -1 / num_others, inside * settings.kernel.at_zero if estimator == "unbiased" else 0.0


def _of_rows(dtype: Any, *rows: Any) -> MMDEstimate:
    """The estimate from the rows of x and of y."""
    value, variance = sum(row.mean() for row in rows), sum(4 * row.var(ddof=1) / row.size for row in rows)
    where = jnp.where if isinstance(variance, jax.Array) else np.where
    error = where(variance == 0, 0, where(variance == 0, 1, variance) ** 0.5)  # whose gradient at zero is zero
    return MMDEstimate(*(jnp.asarray(z, dtype) for z in (value, error)))


@dataclass(frozen=True)
class _Sample:
    """A sample in chunks that are read several times; the number of points must stay the same."""

    name: str
    chunks: Callable[[], Iterable[Any]]
    sizes: list[int]
    dim: int
    dtype: np.dtype
    is_rounded: bool  # whether JAX would round the points to float32 unless they are centered first

    @classmethod
    def of(cls, name: str, given: Any) -> "_Sample":
        """Read the sample once; TypeError or ValueError unless it is chunks of points that can be read again."""
        source: Any = [given] if hasattr(given, "shape") and hasattr(given, "dtype") else given
        chunks: Callable[[], Any] = source if callable(source) else lambda: iter(source)
        if isinstance(source, Iterator) or not isinstance(first := source() if callable(source) else source, Iterable):
            raise TypeError(
                f"{WHERE}: `{name}` must be points (number, dimension), or chunks of them that can be read again and"
                f" again; got {type(given).__name__}. Pass a list, or a function that returns what is iterated over."
            )
        sizes, dims, dtypes, is_rounded = [], set(), set(), False
        for number, chunk in enumerate(_as_chunk(name, x) for x in first):
            which = f"{name}[{number}]"
            _check_chunk(which, chunk)
            sizes.append(chunk.shape[0])
            dims.add(chunk.shape[1])
            dtypes.add(floating_dtype(WHERE, which, chunk))
            is_rounded |= will_be_rounded(chunk)
        if len(dims) != 1:
            raise ValueError(
                f"{WHERE}: `{name}` must be chunks of one dimension, at least one; got dimensions {sorted(dims)}."
                " Pass chunks (number, D)."
            )
        dtype = dtypes.pop() if len(dtypes) == 1 else jnp.result_type(*dtypes)
        return cls(name, chunks, sizes, dims.pop(), dtype, is_rounded)

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of all chunks together."""
        return sum(self.sizes), self.dim

    def __iter__(self) -> Iterator[Any]:
        """The chunks; ValueError if they differ from those read before."""
        number = 0
        for chunk in (_as_chunk(self.name, x) for x in self.chunks()):
            if chunk.shape != (*self.sizes[number : number + 1], self.dim):
                break
            number += 1
            yield chunk
        else:
            if number == len(self.sizes):
                return
        raise ValueError(
            f"{WHERE}: `{self.name}` must have the same chunks each time; got others, or fewer, from chunk {number} on."
            " A function must return a new iterator each time."
        )


def _as_chunk(name: str, x: Any) -> Any:
    return x if isinstance(x, tuple) else as_arrays("mmd_estimate", {name: x})[name]


def _check_chunk(name: str, chunk: Any) -> None:
    """Raise TypeError or ValueError unless the chunk is an array of points."""
    if isinstance(chunk, tuple):
        raise TypeError(
            f"{WHERE}: `{name}` must be an array of points (number, dimension); got a tuple. Pass the points alone,"
            " lambda: (keys for keys, _ in chunks)."
        )
    floating_dtype(WHERE, name, chunk)
    _refuse_tracers(chunk)
    if len(chunk.shape) != 2:
        raise ValueError(
            f"{WHERE}: `{name}` must be points (number, dimension); got {name} {tuple(chunk.shape)}. One point is"
            " point[None]."
        )


def _divided(points: Points, milliseconds: float) -> list[Points]:
    """Chunks of a sample, such that a pair of chunks takes about a second."""
    number = max(1, math.ceil(math.sqrt(milliseconds / 1e3) / 2))
    size = max(1, -(-len(points) // number))
    return [points[i : i + size] for i in range(0, len(points), size)]


def _refuse_tracers(*arrays: Any) -> None:
    if any(isinstance(x, jax.core.Tracer) for x in arrays):
        raise Traced(
            f"{WHERE}: `x`, `y` and `tau` must be known outside of transformations such as jit or vmap if there are"
            " chunks; got a tracer. Pass arrays."
        )


def _in_chunks(settings: Settings, estimator: str, x: _Sample, y: _Sample, tau: Any, progress: bool) -> MMDEstimate:
    """The estimate from chunks of rows, each summed over all chunks; rows are kept in float64."""
    dtype, sizes = working_dtype(settings.dtype), [size for size in (*x.sizes, *y.sizes) if size]
    of_points = np.float64 if x.is_rounded or y.is_rounded else dtype  # `gauss_sum_streamed` centers float64
    largest = padded_number(max(sizes))
    more = (len(sizes) * largest) ** 2 - sum(sizes) ** 2  # pairs, if all chunks are padded to one size
    as_one = more <= max(LITTLE * sum(sizes) ** 2, FEW)  # few shapes are compiled

    with progress_bar("mmd_estimate", len(sizes) ** 2, "chunk") if progress else contextlib.nullcontext() as bar:

        def weighted(*samples: tuple[_Sample, float]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
            for sample, weight in samples:
                for chunk in filter(len, sample):
                    size = largest if as_one else padded_number(len(chunk))
                    weights = np.pad(np.full(len(chunk), weight, dtype), (0, size - len(chunk)))
                    yield _padded(chunk, of_points, size), weights
                    give_back(chunk)
                    if bar is not None:
                        bar.update()

        def rows(own: _Sample, other: _Sample) -> Iterator[np.ndarray]:
            inside, across, themselves = _shares(settings, estimator, own.shape[0], other.shape[0])
            for chunk in filter(len, own):
                num = len(chunk)
                size = largest if as_one or 2 * num > largest else 2 ** (num - 1).bit_length()
                queries = _padded(chunk, of_points, size)
                give_back(chunk)
                keys = weighted((own, inside), (other, across))
                sums = gauss_sum_streamed(queries, keys, tau, kernel=settings.kernel, **settings.options)
                each = np.asarray(sums, np.float64)[..., :num] - themselves
                yield each.mean(0) if each.ndim > 1 else each

        return _of_rows(dtype, *(np.concatenate([*rows(*sides)]) for sides in ((x, y), (y, x))))


def _padded(chunk: Any, dtype: Any, size: int) -> np.ndarray:
    """The points of a chunk, its last one repeated."""
    return np.pad(np.asarray(chunk, dtype), ((0, size - len(chunk)), (0, 0)), mode="edge")
