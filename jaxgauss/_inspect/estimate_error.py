"""estimate_error: how wrong a sum is, from a few of its queries."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.lax import Precision
from jaxtyping import Array, Float, Key

from .._arrays.devices import replicated
from .._arrays.points import align
from .._arrays.tracing import jitted
from .._calls import readable
from .._checks.arguments import public
from .._checks.names import as_engine
from .._checks.operands import as_operand, check_operands
from .._checks.samples import check_number, check_rng_key
from .._checks.settings import Keys, Queries, Settings, Tau, Values, working_dtype
from .._engines.differences.all_pairs import difference_sums
from .._engines.engine import Engine
from .._engines.near import examined
from .._engines.plan import warn_once
from .._engines.programs import in_float64
from .._engines.request import Channels
from .._kernels.kernels import GAUSS
from .._sums.display import short_repr
from .._sums.gauss_sum import unrounded_gauss_sum
from .._sums.preparation import checked


@readable
class ErrorEstimate(NamedTuple):
    """The error of a sum, as `estimate_error` estimates it.

    Attributes:
        relative_error: ‖s - ŝ‖₂ / ‖ŝ‖₂ over all queries, where ŝ is the exact sum.
        standard_error: the standard error of this estimate.
        largest_ratio: the largest |s - ŝ| / Σ_n Φ|v_n| among the sampled queries. Cancellation between values does not
            affect it.
    """

    relative_error: Float[Array, ""]
    standard_error: Float[Array, ""]
    largest_ratio: Float[Array, ""]
    __repr__ = short_repr

    @property
    def interval(self) -> tuple[Array, Array]:
        """Relative errors within three standard errors, and at least zero."""
        reach = 3 * self.standard_error
        return jnp.maximum(self.relative_error - reach, 0), self.relative_error + reach


@public()
def estimate_error(
    queries: Queries,
    keys: Keys,
    values: Values,
    tau: Tau = 1.0,
    *,
    rng_key: Key[Array, ""],
    num_queries: int = 128,
    sums: Float[Array | np.ndarray, "..."] | None = None,
    engine: str | Engine = "auto",
    precision: str | Precision | None = None,
) -> ErrorEstimate:
    """Estimate the error of a Gauss sum: a random sample of its queries is computed again in float64.

    The cost is that of the whole sum, unless `sums` are given, and O(num_queries · N · (D + C)) operations. All queries
    are summed, because a sum of few may be computed in another way, with other errors. It works under `jit`. With
    leading axes the same queries are taken from every batch element. `Sliced` needs no exact sum: the spread of the
    sums of its directions tells the error, and `largest_ratio` is then relative to Σ|v|.

    Args:
        queries, keys, values, tau: as for `gauss_sum`.
        rng_key: random key that chooses the queries.
        num_queries: how many queries to sample, at least 2; all of them if there are fewer.
        sums: the result of `gauss_sum` for these arguments, if there is one. None: `gauss_sum` of all queries is
            computed here, with the options below.
        engine, precision: as for `gauss_sum`.

    Returns:
        An `ErrorEstimate`: the relative L2 error, its standard error (zero if all queries were taken), and the largest
        error relative to Σ Φ|v|.

    Raises:
        ValueError: as `gauss_sum` does; or `num_queries` is below 2, or `sums` does not have the shape of the sums.
        TypeError: as `gauss_sum` does.

    Precision:
        The reference is computed in float64 from differences of coordinates, whatever JAX's 64-bit mode. A sample can
        miss large errors of few queries.

    Example:
        >>> import jax, jaxgauss
        >>> points = jax.random.normal(jax.random.key(0), (500, 3))
        >>> estimate = jaxgauss.estimate_error(
        ...     points, points, points[:, 0], precision="float16", rng_key=jax.random.key(1)
        ... )
        >>> bool(estimate.relative_error < 1e-3)
        True
    """
    where = "`jaxgauss.estimate_error`"
    dtype = check_operands("estimate_error", queries, keys, values, tau)
    check_rng_key("estimate_error", rng_key)
    check_number("estimate_error", "num_queries", num_queries, 2)
    weights = len(values.shape) == 1
    leading = np.broadcast_shapes(
        queries.shape[:-2], keys.shape[:-2], () if weights else values.shape[:-2], np.shape(tau)
    )
    expected = (*leading, queries.shape[-2]) if weights else (*leading, queries.shape[-2], values.shape[-1])
    if sums is not None and np.shape(sums) != expected:
        raise ValueError(
            f"{where}: `sums` must be of shape {expected}; got sums {np.shape(sums)}. Pass what `gauss_sum` returned."
        )
    if 0 in (*expected, keys.shape[-2]):
        raise ValueError(
            f"{where}: `queries`, `keys` and `values` must not be empty; got queries {queries.shape}, keys"
            f" {keys.shape}, values {values.shape}. An empty sum is exact."
        )

    settings = Settings(as_engine("estimate_error", engine, precision), dtype, "estimate_error")
    operands = queries, keys, values, as_operand(tau, dtype)
    if sums is None:
        settings, plan = checked(settings, queries, keys, values, tau)
        if plan.stands_in:
            warn_once(plan.reason)
        settings = examined(settings, tau, queries, keys, values)
    if sums is None and settings.plain and (own := _by_engine(settings, *operands)) is not None:
        return ErrorEstimate(*own)
    queries, sums = _sampled(settings, num_queries, rng_key, sums, *operands)
    return _estimate(dtype, expected[-1 if weights else -2], queries, *operands[1:], sums)


@functools.partial(jitted, num_static=1)
def _by_engine(settings: Settings, *operands: Any) -> Any:
    """What the engine tells of its own error, or None."""
    queries, keys, values, tau = (lax.stop_gradient(jnp.asarray(x, working_dtype(settings.dtype))) for x in operands)
    aligned = align(*replicated(queries, keys, values[:, None] if values.ndim == 1 else values, tau))
    return settings.engine.error_of(GAUSS, *aligned)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _sampled(settings: Settings, num: int, rng_key: Array, sums: Any, *operands: Any) -> tuple[Array, Array]:
    """A random sample of the queries, or all if there are no more, and their sums, which are computed if not given."""
    operands = tuple(lax.stop_gradient(jnp.asarray(x)) for x in operands)
    if sums is None:
        sums = unrounded_gauss_sum(settings, *operands).astype(settings.dtype)
    total, weights = operands[0].shape[-2], operands[2].ndim == 1
    chosen = jnp.arange(total)
    if num < total:
        chosen = jax.random.choice(rng_key, total, (num,), replace=False)
    queries, sums = replicated(operands[0], lax.stop_gradient(jnp.asarray(sums)))
    return jnp.take(queries, chosen, axis=-2), jnp.take(sums, chosen, axis=-1 if weights else -2)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _estimate(dtype: str, total: int, *operands: Any) -> ErrorEstimate:
    work = working_dtype(dtype)
    queries, keys, values, tau, sums = replicated(*(lax.stop_gradient(jnp.asarray(x, work)) for x in operands))
    if values.ndim == 1:
        values, sums = values[:, None], sums[..., None]
    aligned = align(queries, keys, values, tau)
    sums = lax.expand_dims(sums, range(aligned[0].ndim - sums.ndim))
    found: Any = in_float64(Settings(dtype=dtype), _errors, *aligned, sums)
    errors, sizes, ratios = found
    # A ratio estimator, with the correction for a finite population: Cochran, "Sampling Techniques", 1977, chapter 6.
    num = errors.shape[0]
    scale = jnp.maximum(sizes.mean(), jnp.finfo(sizes.dtype).tiny)
    squared = errors.mean() / scale
    residuals = (errors - squared * sizes) / scale
    variance = (1 - num / total) * jnp.square(residuals).sum() / (num * max(1, num - 1))
    relative = jnp.sqrt(squared)
    slope = 1 / jnp.maximum(2 * relative, jnp.finfo(sizes.dtype).tiny)
    return ErrorEstimate(relative, slope * jnp.sqrt(variance), ratios.max())


def _errors(_: Settings, queries: Array, keys: Array, values: Array, tau: Array, sums: Array) -> tuple[Array, ...]:
    """|s - ŝ|², |ŝ|² and the largest |s - ŝ| / Σ_n Φ|v_n| at each query (M,), over batch and channels."""
    both = jnp.concatenate([values, jnp.abs(values)], -1)
    both = difference_sums(Channels((GAUSS,), both.shape[-1:]), queries, keys, both, tau)
    exact, bound = jnp.split(both, 2, -1)
    error = jnp.abs(sums - exact)
    ratio = jnp.where(error > 0, error / bound, 0)
    axes = tuple(i for i in range(error.ndim) if i != error.ndim - 2)
    return jnp.square(error).sum(axes), jnp.square(exact).sum(axes), ratio.max(axes)
