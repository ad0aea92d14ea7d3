"""Uniformity and alignment: losses of contrastive learning."""

import functools
from typing import Any, Unpack, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from .._arrays.batches import over_leading_axes
from .._arrays.devices import replicated
from .._arrays.tracing import jitted
from .._checks.arguments import public
from .._checks.samples import check_distinct_pairs, check_positive, check_samples, check_signs
from .._checks.settings import MeshOptions, Options, Samples, Settings, Taus, Weights, working_dtype
from .._sums.distinct import are_hidden, are_looked_at, usual_or_sparse
from .._sums.preparation import check_and_examine, is_differentiated
from .kde import log_or_zero
from .leave_one_out_sums import over_others
from .mmd import form_of_all_pairs
from .weights import normalized


@public()
def uniformity(
    x: Samples, tau: Taus = 4.0, *, weights: Weights | None = None, **options: Unpack[Options]
) -> Float[Array, "*result"]:
    """Uniformity of points on a sphere, log mean_{i ≠ j} exp(-τ/2 ‖x_i - x_j‖²): the smaller, the more uniform.

    The pairs i = i are left out, not subtracted where they would hide the others, and the logarithm is finite where all
    terms underflow. One Gauss sum, with or without the gradient: O(N² D) operations and O(N D) memory.

    Args:
        x: points, (…, N, D), N ≥ 2, of unit length for the loss of the paper; any others are taken as they are. Leading
            axes are batches.
        tau: τ = 1/σ², positive, which is 2t in the paper (t = 2); or several, (…, T), whose kernels are averaged, as
            for `mmd_squared`.
        weights: (…, N), not negative; pairs weigh as the product of their weights. None: all are equal. Or a mask.
        **options: `engine` and `precision`, as for `gauss_sum`.

    Returns:
        A scalar, or (…) for leading axes, in the promoted dtype.

    Raises:
        ValueError: shapes do not fit, N < 2, tau or weights are not positive, or an option has an unknown value.
        TypeError: points or weights are not a floating array.

    Derivatives:
        Any order, both modes, with respect to x, weights and tau.

    Precision:
        In float32 within 2e-6, plus 1e-6 of the result. On CUDA, and of more than 16384 points, each point's sum over
        the others is computed as a logarithm, which takes longer.

    Example:
        >>> import jax.numpy as jnp, jaxgauss
        >>> round(float(jaxgauss.uniformity(jnp.array([[1.0, 0.0], [-1.0, 0.0]]))), 3)
        -8.0

    References:
        Wang & Isola, "Understanding Contrastive Representation Learning through Alignment and Uniformity on the
        Hypersphere", 2020, arXiv:2005.10242.
    """
    function, given, asked = "uniformity", {"weights": weights}, cast(MeshOptions, options)
    how = {"weights": given, "min_points": 2, "allowed": Options, "batches": True}
    settings = check_samples(function, {"x": x}, tau, asked, **how)
    check_signs(function, weights)
    check_distinct_pairs(function, "unbiased", given, "Give two points a weight.")
    num, dim = x.shape[-2:]
    second_order = is_differentiated(tau)
    settings, tau = check_and_examine(
        settings, tau, num * num, dim, dim + 2, (x,), (weights,), second_order=second_order
    )
    return _uniformity(settings, x, tau, weights)


@functools.partial(jitted, num_static=1)
@over_leading_axes(2, 1, 1)
def _uniformity(settings: Settings, x: Any, tau: Any, weights: Any) -> Array:
    dtype = working_dtype(settings.dtype)
    x, tau = replicated(*(jnp.asarray(z, dtype) for z in (x, tau)))
    a = normalized(settings, weights, x)
    own, operands = jnp.square(a).sum(), (x, tau, a)
    if are_looked_at(settings, x.shape[0]):
        nobody = np.zeros((0, x.shape[1]), dtype)
        others = form_of_all_pairs(settings, "biased", True, x, nobody, tau, a, jnp.zeros(0, dtype)) - own
        is_hidden = are_hidden(settings, x.shape[0], lax.stop_gradient(others), own)
        log = usual_or_sparse(settings, is_hidden, lambda *_: jnp.log(others), _log_of_others, *operands)
    else:
        log = _log_of_others(settings, *operands)
    return (log - jnp.log1p(-own)).astype(settings.dtype)


def _log_of_others(settings: Settings, x: Array, tau: Array, a: Array) -> Array:
    """log Σ_{i ≠ j} a_i a_j Φ, the mean over the bandwidths, from the logarithm of each point's sum."""
    taus, log_weights = tau.ravel(), log_or_zero(a)
    logs, _ = over_others(settings, x, log_weights, taus, None)  # (T, N)
    return jax.nn.logsumexp(logs + log_weights[None]) - jnp.log(jnp.asarray(len(taus), logs.dtype))


@public()
def alignment(x: Samples, y: Samples, *, power: float = 2.0, weights: Weights | None = None) -> Float[Array, "*result"]:
    """Alignment of pairs of points, mean_i ‖x_i - y_i‖^p: the smaller, the nearer are the two of a pair.

    With `uniformity` of both it is the loss of Wang and Isola; O(N D).

    Args:
        x: points of unit length, (…, N, D): representations. Leading axes are batches, which broadcast.
        y: those of the positives, (…, N, D): row i of each is one pair.
        power: p, positive; α in the paper.
        weights: (…, N), not negative; they are divided by their sum. None: all are equal. Or a mask of booleans.

    Returns:
        A scalar, or (…) for leading axes, in the promoted dtype.

    Raises:
        ValueError: shapes do not fit, there are no points, or power or weights are not positive.
        TypeError: points or weights are not a floating array.

    Derivatives:
        Of every mode, with respect to x, y and weights; of pairs that coincide they are zero.

    Example:
        >>> import jax.numpy as jnp, jaxgauss
        >>> float(jaxgauss.alignment(jnp.array([[1.0, 0.0]]), jnp.array([[0.0, 1.0]])))
        2.0

    References:
        Wang & Isola, "Understanding Contrastive Representation Learning through Alignment and Uniformity on the
        Hypersphere", 2020, arXiv:2005.10242.
    """
    function, given = "alignment", {"weights": weights}
    settings = check_samples(function, {"x": x, "y": y}, {}, {}, weights=given, paired=True, batches=True)
    if x.shape[-1] != y.shape[-1]:
        raise ValueError(
            f"`jaxgauss.{function}`: `x` and `y` must be points of the same dimension; got x {tuple(x.shape)}, y"
            f" {tuple(y.shape)}. Row i of each is one pair."
        )
    check_positive(function, "power", power)
    check_signs(function, weights)
    return _alignment(settings, float(power), x, y, weights)


@functools.partial(jitted, num_static=2)
@over_leading_axes(2, 2, 1)
def _alignment(settings: Settings, power: float, x: Any, y: Any, weights: Any) -> Array:
    x, y = (jnp.asarray(z, working_dtype(settings.dtype)) for z in (x, y))
    a, shift = normalized(settings, weights, x), x - y
    largest = lax.stop_gradient(jnp.abs(shift).max(-1, keepdims=True))
    differ = largest[:, 0] > 0
    unit = jnp.where(largest > 0, largest, 1)  # so that squares neither over- nor underflow
    squared = jnp.square(shift / unit).sum(-1)
    powers = jnp.where(differ, squared, 1) ** (power / 2) * unit[:, 0] ** power
    return (a * jnp.where(differ, powers, 0)).sum().astype(settings.dtype)
