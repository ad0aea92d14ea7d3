"""kernel_sum: the public function, and its two ways to sum a radial kernel: κ itself, or a mixture of Gaussians."""

import functools
from dataclasses import replace

import jax.numpy as jnp
from jax import lax
from jax.lax import Precision
from jaxtyping import Array

from .._arrays.custom_rule import transposable
from .._arrays.devices import replicated, vary_alike
from .._arrays.hidden import without_hidden
from .._arrays.points import align, center, for_sums, weighted_sum
from .._arrays.tracing import jitted
from .._checks.arguments import public
from .._checks.names import as_engine, as_kernel
from .._checks.operands import as_operand, check_others
from .._checks.settings import Keys, Queries, Segments, Settings, Sums, Tau, Values, working_dtype
from .._engines.engine import Engine
from .._engines.engines import mixture_of
from .._engines.near import examined
from .._kernels.kernels import GAUSS, Kernel
from .._kernels.mixtures import Mixture
from .gauss_sum import checked_gauss_sum, summed_by_pairs, unrounded_gauss_sum
from .others import sum_of_others
from .preparation import checked, is_differentiated
from .segments import by_segments


@public()
def kernel_sum(
    queries: Queries,
    keys: Keys,
    values: Values,
    tau: Tau = 1.0,
    *,
    kernel: str | Kernel = "gauss",
    engine: str | Engine = "auto",
    precision: str | Precision | None = None,
    exclude_self: bool = False,
    forward_mode: bool = False,
    segments: Segments = None,
) -> Sums:
    """Sum a radial kernel: s_m = Σ_n κ(u_mn) v_n with u_mn = τ‖q_m - k_n‖², without forming the M×N matrix.

    | kernel | κ(u), with r = √u |
    |---|---|
    | gauss | e^(-u/2): the same numbers as `gauss_sum` |
    | matern12, laplace | e^(-r) |
    | matern32 | (1 + √3 r) e^(-√3 r) |
    | matern52 | (1 + √5 r + 5u/3) e^(-√5 r) |
    | imq | (1 + u)^(-1/2), the inverse multiquadric |
    | cauchy | 1/(1 + u) |
    | rational_quadratic(α) | (1 + u/2α)^(-α) |
    | energy | -r up to 1e18, conditionally positive definite |
    | Kernel(profile) | any function of u |

    O(MN(D + C)) operations and O((M + N)(D + C)) memory. On CPUs, on TPUs and in float64 XLA evaluates κ. On CUDA a
    mixture of Gaussians may stand for a smooth kernel; `explain` tells whether, and its error (docs/kernels.md).

    Args:
        queries, keys, values, tau, exclude_self, forward_mode, segments: as for `gauss_sum`.
        kernel: a name from the table, or a `Kernel`.
        engine: "auto"; "blocked", "dense", "clusters" or "differences" for κ itself; "mixture" for Gaussians, or
            `jaxgauss.Mixture` with an engine for them. For "gauss", the engines of `gauss_sum`.
        precision: as for `gauss_sum`. κ itself takes "float32" or "float64"; half precision needs a mixture.

    Returns:
        s, (…, M, C), or (…, M) for values (N,), in the promoted dtype of queries, keys and values. Without keys: zeros.

    Raises:
        ValueError: as `gauss_sum` does; or there is no such kernel, or no mixture of it where one was asked for.
        TypeError: as `gauss_sum` does; or the kernel is neither a name nor a `Kernel`.

    Derivatives:
        As for `gauss_sum`; one more pass over the pairs gives all first gradients. At points that coincide, where
        "matern12" and "energy" have a kink, the gradient is zero. A mixture's derivatives replace those of κ.

    Precision:
        The error of κ itself, relative to Σ|κ||v| in L2 over the queries, is 1e-5 in float32 (gradients 2e-5) and 1e-13
        in float64, wherever the points lie. A mixture adds 1e-3 κ(0) in bfloat16, 1e-4 κ(0) in float16 and 1e-6 κ(0) in
        float32.

    Example:
        >>> import jax.numpy as jnp, jaxgauss
        >>> points = jnp.array([[0.0], [3.0]])
        >>> jaxgauss.kernel_sum(points, points, jnp.array([1.0, 1.0]), kernel="energy").tolist()
        [-3.0, -3.0]
    """
    kernel = as_kernel("kernel_sum", kernel)
    asked = as_engine("kernel_sum", engine, precision)
    asked = Settings(asked, function="kernel_sum", forward_mode=bool(forward_mode), kernel=kernel)
    settings, plan = checked(replace(asked, exclude_self=bool(exclude_self)), queries, keys, values, tau)
    if exclude_self:
        check_others("kernel_sum", {"queries": queries, "keys": keys})
    if segments is not None:
        return by_segments(_transposable_sum, settings, segments, queries, keys, values, tau)
    settings = examined(settings, tau, queries, keys, values)
    if kernel == GAUSS:
        return checked_gauss_sum(settings, plan, queries, keys, values, tau)
    settings = replace(settings, pulls=is_differentiated(queries, keys, tau))  # a mixture is chosen here
    return _checked_sum(settings, queries, keys, values, as_operand(tau, settings.dtype))


@functools.partial(jitted, num_static=1)
def _checked_sum(settings: Settings, *operands: Array) -> Array:
    return _transposable_sum(settings, *operands).astype(settings.dtype)


def unrounded_kernel_sum(settings: Settings, queries: Array, keys: Array, values: Array, tau: Array) -> Array:
    """`unrounded_gauss_sum` for the settings' kernel."""
    if settings.kernel == GAUSS:
        return unrounded_gauss_sum(settings, queries, keys, values, tau)
    dtype = working_dtype(settings.dtype)
    queries, keys, values, tau = replicated(*(jnp.asarray(x, dtype) for x in (queries, keys, values, tau)))
    weights = values.ndim == 1
    queries, keys, values, tau = align(queries, keys, values[:, None] if weights else values, tau)
    operands = vary_alike(queries, without_hidden(keys, values), values, tau)
    total = sum_of_others(_summed, settings, *operands) if settings.exclude_self else _summed(settings, *operands)
    return total[..., 0] if weights else total


_transposable_sum = transposable(unrounded_kernel_sum, 1, 2)


def _summed(settings: Settings, *operands: Array) -> Array:
    """The sum of operands of equal rank, by κ itself or by a mixture."""
    if not settings.exclude_self and (found := mixture_of(settings, *operands)) is not None:
        return _sum_of_gaussians(*found, *operands)
    return summed_by_pairs(settings, *operands)


def _sum_of_gaussians(
    found: Mixture, settings: Settings, queries: Array, keys: Array, values: Array, tau: Array
) -> Array:
    """Σ_j w_j Σ_n exp(-τ s_j/2 ‖q_m - k_n‖²) v_n: one batch of Gauss sums over shared points."""
    taus, weights, factor, constant = as_bandwidths(found, tau, queries, keys)
    unit = for_sums(values, keys.shape[-2], axes=-2)
    values = unit * values
    sums = unrounded_gauss_sum(settings, queries[None], keys[None], values[None], taus)
    total = weighted_sum(weights, sums) - constant * values.sum(-2, keepdims=True)
    return factor[..., None, None] * total / unit


def as_bandwidths(found: Mixture, tau: Array, *points: Array) -> tuple[Array, Array, Array, float]:
    """τ s_j (J, …) and weights w (J,) of a mixture, a factor (…) and a constant: κ = factor · (Σ_j w_j Φ_j - constant).

    The mixture for "energy" holds up to a distance of one, so its unit is a diameter that all points fit into.
    """
    scales, weights = (jnp.asarray(x, tau.dtype) for x in (found.scales, found.weights))
    unit = jnp.ones_like(tau)
    if found.constant:
        c = center(points[0])
        radius = jnp.stack([jnp.square(lax.stop_gradient(x) - c).sum(-1).max() for x in points if x.size]).max()
        unit = 4 * jnp.maximum(radius, jnp.finfo(tau.dtype).tiny / jnp.finfo(tau.dtype).eps) * tau
    taus = jnp.expand_dims(scales, range(1, tau.ndim + 1)) * (tau / unit)[None]
    factor = jnp.sqrt(unit) if found.constant else unit
    return taus, weights, factor, found.constant
