"""Bandwidths: conversions between conventions, and the median heuristic."""

import functools
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Key

from .._arrays.devices import replicated
from .._calls import check_choice
from .._checks.arguments import public
from .._checks.samples import check_number, check_rng_key, check_samples
from .._checks.settings import Samples, working_dtype

# τ as a function of the parameter p of each library's formula.
CONVENTIONS = {
    "exp(-d²/2p²)": (
        lambda p: 1 / p**2,
        (
            *("sigma", "coreax", "geomloss", "alibi-detect", "torchdrift", "mmdfuse", "gpjax"),
            *("lengthscale", "gpytorch", "pykeops kriging"),
        ),
    ),
    "exp(-pd²)": (lambda p: 2 * p, ("gamma", "scikit-learn", "sklearn", "hyppo")),
    "exp(-d²/p)": (lambda p: 2 / p, ("h", "blackjax", "numpyro", "epsilon", "ott")),
    "exp(-d²/p²)": (lambda p: 2 / p**2, ("keops",)),
    "κ(d²/p²)": (
        lambda p: 1 / p**2,
        ("Matern", "RationalQuadratic", "laplacian", "imq", "coreax RationalQuadraticKernel", "ott Euclidean"),
    ),
    "(1 + d²/2p²)^(-1/2)": (lambda p: 1 / (2 * p**2), ("coreax PCIMQKernel",)),
}
PAIRS = 2**20  # of points, of the elements of a batch that are computed at once
SHIFTS = 8  # distances for each point that a median's order is estimated from
_FORMULAS = {name: formula for formula, (_, names) in CONVENTIONS.items() for name in names}


@public(None)
def tau_from_bandwidth(bandwidth: Float[Array | np.ndarray, "*shape"] | float, convention: str = "sigma") -> Any:
    """Convert a bandwidth σ, or another library's parameter p, to the τ of exp(-τ/2 ‖x - y‖²) or of κ(τ ‖x - y‖²).

    | convention | kernel | τ |
    |---|---|---|
    | sigma, coreax, geomloss, alibi-detect, torchdrift, mmdfuse | exp(-d²/2p²) | 1/p² |
    | lengthscale, gpytorch, gpjax, pykeops kriging (its tutorial) | exp(-d²/2p²) | 1/p² |
    | gamma, scikit-learn (sklearn), hyppo | exp(-p d²) | 2p |
    | h, blackjax, numpyro, epsilon, ott | exp(-d²/p) | 2/p |
    | keops (its benchmarks) | exp(-d²/p²) | 2/p² |
    | Matern, RationalQuadratic (scikit-learn, gpjax, gpytorch) | of d/p: matern12 …, `rational_quadratic` | 1/p² |
    | laplacian (geomloss, pykeops), ott Euclidean (p = ε) | exp(-d/p): matern12 | 1/p² |
    | imq (p = c) | (p² + d²)^(-½) = "imq" / p | 1/p² |
    | coreax RationalQuadraticKernel | (1 + d²/2αp²)^-α | 1/p² |
    | coreax PCIMQKernel | (1 + d²/2p²)^(-½): imq | 1/2p² |

    scikit-learn's `KernelDensity` calls σ a bandwidth. `factor` of SciPy's `gaussian_kde` is none: it multiplies the
    standard deviation, and `kde_logpdf` has `bandwidth="scott"` for it. geomloss's "gaussian" loss is ½ MMD². The
    Laplacian kernels of scikit-learn and coreax use the distance |·|₁, and are none of these.

    Args:
        bandwidth: p, positive: a number or an array of any shape.
        convention: a name from the table.

    Returns:
        τ, of the same shape.

    Raises:
        ValueError: the convention is not in the table, or a bandwidth is not positive (not checked under `jit`).
        TypeError: a bandwidth is not a real number or array.

    Example:
        >>> import jaxgauss
        >>> jaxgauss.tau_from_bandwidth(0.5), jaxgauss.tau_from_bandwidth(0.5, "scikit-learn")
        (4.0, 1.0)
    """
    if convention == "scipy":
        raise ValueError(
            "`jaxgauss.tau_from_bandwidth`: `convention` must be that of a bandwidth; got 'scipy', whose `factor`"
            " multiplies the covariance of the samples. Use `kde_logpdf` with bandwidth='scott', or in one dimension"
            " kde.covariance**0.5 as 'sigma'."
        )
    check_choice("tau_from_bandwidth", "convention", convention, tuple(_FORMULAS))
    p = np.asarray(bandwidth) if isinstance(bandwidth, list | tuple) else bandwidth
    if not isinstance(p, jax.core.Tracer):
        seen = np.asarray(p)
        if isinstance(p, bool) or seen.dtype.kind not in "iufV":  # V: bfloat16
            raise TypeError(
                f"`jaxgauss.tau_from_bandwidth`: `bandwidth` must be a real number or array; got {bandwidth!r}. Pass"
                " 0.5, for example."
            )
        largest = float(jnp.finfo(seen.dtype).max) ** 0.5 / 2 if jnp.issubdtype(seen.dtype, jnp.floating) else 1e150
        if not np.all((seen.astype("float64") > 1 / largest) & (seen.astype("float64") < largest)):
            raise ValueError(
                f"`jaxgauss.tau_from_bandwidth`: `bandwidth` must be positive, and 1/σ² finite; got {bandwidth}. Pass"
                " its absolute value."
            )
    return CONVENTIONS[_FORMULAS[convention]][0](p)


@public()
def median_tau(
    points: Samples, *, rng_key: Key[Array, ""] | None = None, max_points: int = 1000
) -> Float[Array, "*result"]:
    """Median heuristic: τ = 1/σ², where σ² is the median of ‖x_i - x_j‖² over i < j.

    At most `max_points` points are compared, so no N×N matrix is formed. For a two-sample test pool the samples:
    `median_tau(jnp.concatenate([x, y]))`. Liu & Wang's rule for SVGD is 2 log N times this τ; Gretton's is this τ.
    The median distance is σ = τ^-½.

    Args:
        points: x, (…, N, D), N ≥ 2. Leading axes are batches.
        rng_key: random key that chooses the points if there are more than `max_points`. None: evenly spaced ones.
        max_points: at least 2; `max_points`² / 2 pairs are compared.

    Returns:
        τ without a gradient, in float32, or in float64 for float64 points: a scalar, or (…) for leading axes, which
        kernel methods take as `tau[..., None]`. If the median is zero, that of the distances above zero replaces it; if
        all points are equal, τ is 1. NaN if a point is not finite.

    Raises:
        ValueError: shapes do not fit, or N < 2.
        TypeError: the points are not a floating array.

    Example:
        >>> import jax.numpy as jnp, jaxgauss
        >>> float(jaxgauss.median_tau(jnp.array([[0.0], [2.0]])))
        0.25

    References:
        Garreau, Jitkrittum & Kanagawa, "Large sample analysis of the median heuristic", 2017, arXiv:1707.07269.
    """
    settings = check_samples("median_tau", {"points": points}, 1.0, {}, min_points=2, batches=True)
    check_number("median_tau", "max_points", max_points, 2)
    if rng_key is not None:
        check_rng_key("median_tau", rng_key)
    num = points.shape[-2]
    if num <= max_points:
        chosen = jnp.arange(num)
    elif rng_key is None:
        chosen = np.linspace(0, num - 1, max_points).astype(int)
    else:
        chosen = jax.random.choice(rng_key, num, (max_points,), replace=False)
    return _of_median(settings.dtype, lax.stop_gradient(points), chosen)


@functools.partial(jax.jit, static_argnums=0)
def _of_median(dtype: str, points: Array, chosen: Array) -> Array:
    (points,) = replicated(jnp.asarray(points, working_dtype(dtype)))
    if points.ndim == 2:
        return _median_tau_of(points[chosen])
    some = points[..., chosen, :].reshape(-1, len(chosen), points.shape[-1])
    at_once = max(1, min(len(some), PAIRS // len(chosen) ** 2))
    return lax.map(_median_tau_of, some, batch_size=at_once).reshape(points.shape[:-2])


def _median_tau_of(x: Array) -> Array:
    scale = 1 / jnp.maximum(_usual_distance(x), jnp.finfo(x.dtype).tiny)
    squared = jnp.square((x[:, None] - x[None]) * scale).sum(-1)
    squared = jnp.sort(squared[np.triu_indices(len(x), 1)])

    def median(first: Array | int) -> Array:  # of the sorted distances from `first` on
        middle = first + len(squared) - 1
        return (squared[middle // 2] + squared[(middle + 1) // 2]) / 2

    half = jnp.where(median(0) > 0, median(0), median(jnp.searchsorted(squared, 0, side="right")))
    limits = jnp.finfo(x.dtype)
    tau = jnp.where(squared[-1] > 0, jnp.clip(1 / half * scale * scale, limits.tiny, limits.max), 1)
    return jnp.where(jnp.isfinite(x).all(), tau, jnp.nan)


def _usual_distance(x: Array) -> Array:
    """The median of some distances above zero, by the largest coordinate: an outlier does not change its order.

    Squares of distances in its units neither over- nor underflow where the median of all is.
    """
    num = len(x)
    others = [jnp.roll(x, -(1 + i * (num - 1) // SHIFTS), 0) for i in range(min(SHIFTS, num - 1))]
    found = jnp.sort(jnp.concatenate([jnp.abs(x - y).max(-1) for y in others]))
    first = jnp.minimum(jnp.searchsorted(found, 0, side="right"), len(found) - 1)
    return found[(first + len(found) - 1) // 2]
