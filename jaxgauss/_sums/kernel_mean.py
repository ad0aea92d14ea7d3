"""kernel_mean: the ratio of two Gauss sums, which is what attention computes."""

import functools
from dataclasses import replace
from typing import Any, Unpack

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from .._arrays.custom_rule import transposable
from .._arrays.devices import replicated, vary_alike, visible
from .._arrays.points import LOG_ZERO, align, for_sums
from .._arrays.tracing import jitted
from .._checks.arguments import public
from .._checks.names import with_engine
from .._checks.operands import as_operand, check_others, check_weights
from .._checks.samples import check_kernel, check_options
from .._checks.settings import (
    Keys,
    MeshOptions,
    Queries,
    Settings,
    Sums,
    Tau,
    Values,
    axis_names,
    working_dtype,
)
from .._engines.log_rules import as_weights, softmax_means
from .._engines.near import examined
from .._kernels.kernels import Kernel
from .log_gauss_sum import LogWeights
from .mesh import added_over_devices, first_rows, over_mesh, without_mesh
from .others import softmax_means_of_others
from .preparation import checked, none_are_zero


@public()
def kernel_mean(
    queries: Queries,
    keys: Keys,
    values: Values,
    tau: Tau = 1.0,
    *,
    kernel: str | Kernel = "gauss",
    log_weights: LogWeights = None,
    exclude_self: bool = False,
    **options: Unpack[MeshOptions],
) -> Sums:
    """Weighted mean of values, Σ_n w_n Φ_mn v_n / Σ_n w_n Φ_mn: kernel regression (Nadaraya-Watson).

    One attention call computes it, since it is a softmax mean. Where all Φ underflow, the result is the value of the
    nearest keys. O(MN(D + C)) operations and O((M + N)(D + C)) memory.

    Args:
        queries: points q where to predict, (…, M, D).
        keys: points k where values are known, (…, N, D), N ≥ 1.
        values: v, (…, N, C); or one number per key, (N,).
        tau: τ = 1/σ², as for `gauss_sum`. `leave_one_out_tau(keys, values=values)` finds one.
        kernel: a name or a `Kernel`, as for `log_gauss_sum`: not "energy".
        log_weights: log w of the keys, (…, N); -inf leaves a key out. None: all weights are equal. If all are -inf,
            the result under `jit` is the plain mean.
        exclude_self: as for `gauss_sum`, with N ≥ 2: predictions by the other points. Not over a mesh.
        **options: `engine` and `precision`, as for `log_gauss_sum`; and `mesh`, `query_axis` and `key_axis`,
            as for `gauss_sum_sharded`, except that the mesh need not divide the numbers of points.

    Returns:
        (…, M, C), or (…, M) for values (N,), in the promoted dtype, within the range of the values.

    Raises:
        ValueError: shapes do not fit, there are no keys or all weights are zero, tau is not positive, or an option has
            an unknown value.
        TypeError: an argument is not a floating array.

    Derivatives:
        Any order, both modes, with respect to queries, keys, values, tau and log-weights.

    Precision:
        Within 1e-5 of the largest |v| in float32, wherever the points lie. On CUDA exponents err by 2⁻²⁴ τ‖q‖‖k‖, with
        distances from the center.

    Example:
        >>> import jax.numpy as jnp, jaxgauss
        >>> keys, values = jnp.array([[0.0], [1.0]]), jnp.array([3.0, 5.0])
        >>> jaxgauss.kernel_mean(jnp.array([[-100.0], [0.5], [100.0]]), keys, values).tolist()
        [3.0, 4.0, 5.0]

    References:
        Nadaraya, "On Estimating Regression", 1964; Watson, "Smooth Regression Analysis", 1964.
    """
    how = {"exclude_self": bool(exclude_self)}
    return means_and_logs("kernel_mean", queries, keys, values, log_weights, tau, kernel, options, **how)[0]


def means_and_logs(
    function: str,
    queries: Any,
    keys: Any,
    values: Any,
    log_weights: Any,
    tau: Any,
    kernel: str | Kernel,
    options: MeshOptions,
    *,
    exclude_self: bool = False,
) -> tuple[Array, Array]:
    """`kernel_mean`, and the logarithms of its denominators (…, M), from one sum."""
    check_options(function, options)
    of_weights = check_weights(function, "log_weights", log_weights, keys)
    kernel = check_kernel(function, kernel, positive=True)
    how = {"logs": True, "exclude_self": exclude_self, **with_engine(function, options)}
    settings, _ = checked(Settings(function=function, kernel=kernel, **how), queries, keys, values, tau)
    checked(settings, queries, keys, of_weights, tau)
    if exclude_self:
        check_others(function, {"queries": queries, "keys": keys}, mesh=settings.mesh)
    least = ("one point", "two points")[exclude_self]
    if keys.shape[-2] <= exclude_self:
        raise ValueError(
            f"`jaxgauss.{function}`: `keys` must hold at least {least}; got queries {queries.shape}, keys"
            f" {keys.shape}. There is no mean of nothing."
        )
    seen = None if log_weights is None else visible(log_weights)
    if seen is not None and ((seen > -np.inf).sum(-1) <= exclude_self).any():
        raise ValueError(
            f"`jaxgauss.{function}`: `log_weights` must be above -inf for at least {least}; got log_weights"
            f" {seen.shape}. There is no mean of nothing."
        )
    given = None if log_weights is None else as_weights(log_weights)
    settings = examined(as_logs(settings), tau, queries, keys, given, logs=True)
    return _checked_mean(settings, queries, keys, values, log_weights, as_operand(tau, settings.dtype))


def as_logs(settings: Settings) -> Settings:
    """The settings for logarithms: float32, unless another precision is asked for."""
    return replace(settings, matmul_precision="highest")


@functools.partial(jitted, num_static=1)
def _checked_mean(settings: Settings, queries, keys, values, log_weights, tau) -> tuple[Array, Array]:
    of_one, log_weights = values.ndim == 1, none_are_zero(log_weights, keys, settings)
    operands = map(jnp.asarray, (queries, keys, values[:, None] if of_one else values, log_weights, tau))
    found, logs = _transposable_means(settings, *operands)
    return (found[..., 0] if of_one else found).astype(settings.dtype), logs[..., 0].astype(settings.dtype)


def means_over_mesh(
    settings: Settings, queries: Array, keys: Array, values: Array, log_weights: Array, tau: Array
) -> tuple[Array, Array]:
    """Σ_n P_mn v_n (…, M, C) and log Σ_n w_n Φ (…, M, 1) in the working dtype, over the mesh if there is one."""
    dtype = working_dtype(settings.dtype)
    operands = replicated(*(jnp.asarray(x, dtype) for x in (queries, keys, values, log_weights[..., None], tau)))
    queries, keys, values, log_weights, tau = vary_alike(*operands)
    rank = max(queries.ndim, keys.ndim, values.ndim, log_weights.ndim, tau.ndim + 2)
    log_weights = jnp.maximum(lax.expand_dims(log_weights, range(rank - log_weights.ndim)), LOG_ZERO)
    queries, keys, values, tau = align(queries, keys, lax.expand_dims(values, range(rank - values.ndim)), tau)
    if settings.mesh is None:
        return _means(settings, queries, keys, values, tau, log_weights)
    axes = axis_names(settings.key_axis)

    def local(tau: Array, queries: Array, keys: Array, values: Array, log_weights: Array) -> Array:
        found, logs = _means(without_mesh(settings), queries, keys, values, tau, log_weights)
        largest = lax.stop_gradient(logs)
        largest = lax.pmax(largest, axes) if axes else largest
        shares = jnp.exp(logs - largest)
        parts = added_over_devices(settings, jnp.concatenate([shares * found, shares], -1))
        return jnp.concatenate([parts[..., :-1] / parts[..., -1:], largest + jnp.log(parts[..., -1:])], -1)

    both = over_mesh(settings, local, (tau,), (queries,), (keys, values, log_weights), fill=LOG_ZERO)
    both = first_rows(settings, both, queries.shape[-2])
    return both[..., :-1], both[..., -1:]


_transposable_means = transposable(means_over_mesh, 1, 2)


def _means(
    settings: Settings, queries: Array, keys: Array, values: Array, tau: Array, log_weights: Array
) -> tuple[Array, Array]:
    """Means and logarithms of operands of equal rank; sums of values do not overflow."""
    unit = for_sums(values, keys.shape[-2], axes=-2)
    operands = queries, keys, values * unit, tau, log_weights
    means_of = softmax_means_of_others if settings.exclude_self else softmax_means
    found, logs = means_of(settings, *operands)
    return found / unit, logs
