"""kernel_sum: the public function, and what every radial kernel is summed by: κ itself, or a mixture of Gaussians."""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from .._arrays.devices import replicated, vary_alike
from .._arrays.points import align, center
from .._checks.operands import as_operand, takes_tau
from .._checks.settings import Keys, Queries, Settings, Sums, Tau, Values, working_dtype
from .._engines.dispatch import uses_mixture
from .._engines.near import examined
from .._engines.plan import of_gaussians
from .._engines.wanted import Channels
from .._kernels.kernels import GAUSS, Kernel, as_kernel
from .._kernels.mixtures import Mixture
from .checked import checked
from .forward_mode import radial_sum_in_both_modes
from .gauss_sum import checked_gauss_sum, unrounded_gauss_sum
from .reverse_only import reverse_only
from .rules import radial_sum


@takes_tau
def kernel_sum(
    queries: Queries,
    keys: Keys,
    values: Values,
    tau: Tau = 1.0,
    *,
    kernel: str | Kernel = "gauss",
    method: str = "auto",
    precision: str = "auto",
    backend: str = "auto",
    forward_mode: bool = False,
) -> Sums:
    """Sum a radial kernel: s_m = Σ_n κ(u_mn) v_n, u = τ‖q_m - k_n‖², without the M×N kernel matrix.

    | kernel | κ(u), u = (r/σ)² for τ = 1/σ² |
    |---|---|
    | gauss | e^(-u/2): `gauss_sum`, to the last bit |
    | matern12, laplace | e^(-√u) |
    | matern32 | (1 + √(3u)) e^(-√(3u)) |
    | matern52 | (1 + √(5u) + 5u/3) e^(-√(5u)) |
    | imq | (1 + u)^(-½), the inverse multiquadric |
    | cauchy | 1/(1 + u) |
    | rational_quadratic(α) | (1 + u/2α)^(-α) |
    | energy | -√u, conditionally positive definite |
    | Kernel(profile) | any function of u |

    O(MN(D + C)) operations and O((M + N)(D + C)) memory. On CPUs, TPUs and in float64 XLA evaluates κ itself, a block
    of pairs at a time. On CUDA a smooth kernel is a mixture of Gaussians with positive weights, fitted once, and
    `gauss_sum` of as many bandwidths, where that is estimated to be faster; `explain` tells which, the number of terms
    and the maximal error.

    Args:
        queries, keys, values, tau: as for `gauss_sum`.
        kernel: a name from the table, or a `Kernel`.
        method: "auto"; "blocked", "dense" or "differences" (of coordinates: slow, and right anywhere) for κ itself in
            XLA; "mixture" for Gaussians, anywhere. For "gauss", those of `gauss_sum`.
        precision: as for `gauss_sum`; XLA takes "float32" and "float64", and half precision is by a mixture.
        backend: the attention kernel, for a mixture, as for `gauss_sum`.
        forward_mode: whether `jax.jvp`, `jax.jacfwd`, `jax.linearize` and `jax.hessian` must work, too.

    Returns:
        s, (…, M, C), or (…, M) for values (N,), in the promoted dtype of queries, keys and values. No keys give zeros.

    Raises:
        ValueError: shapes do not fit, tau is not positive, there is no such kernel, it has no mixture where one was
            asked for, or what was asked for by name cannot run there.
        TypeError: an argument is not a floating array, or the kernel is neither a name nor a `Kernel`.

    Derivatives:
        Reverse mode of any order with respect to queries, keys, values and tau, in linear memory: ∂κ/∂q = 2τ κ'(u)
        (q - k) is radial again, and one pass over the pairs makes all gradients. At points that coincide, where
        matern12 and energy have a kink, the gradient is zero, which is a subgradient. Second and higher derivatives of
        points that are not near, and tangents, are formed from differences of coordinates, which takes several times as
        long for wide points.
        Forward mode is refused unless asked for by `forward_mode`. Of a mixture they are those of the mixture, whose
        relative error is larger than that of κ near u = 0.

    Precision:
        Error relative to Σ |κ||v|, in L2 over the queries, of κ itself: 1e-5 in float32, gradients 2e-5, wherever the
        points lie, and 1e-13 in float64. Beyond 11 length scales from the center (gradients 6), and of matern12 and
        energy everywhere, points are sorted, and tiles of near ones look after their own digits, which takes up to
        five times as long. A term e^-z errs by 2⁻²⁴ z. Distances count up to 1e18 length scales.
        Of a mixture on top of the error of `gauss_sum`: 1e-3 for bfloat16, 1e-4 for float16, 1e-6 for float32, relative
        to κ(0) (for energy to the diameter of the points), at r = 0 and from 1e-3 to 1e2 length scales; imq and cauchy
        err by up to their value there beyond 1e2.

    Example:
        >>> import jax.numpy as jnp, jaxgauss
        >>> points = jnp.array([[0.0], [3.0]])
        >>> jaxgauss.kernel_sum(points, points, jnp.array([1.0, 1.0]), kernel="energy").tolist()
        [-3.0, -3.0]

    References:
        Rasmussen & Williams, "Gaussian Processes for Machine Learning", 2006, chapter 4.
        Schoenberg, "Metric Spaces and Completely Monotone Functions", 1938, for the mixtures.
    """
    kernel = as_kernel("kernel_sum", kernel)
    function = "kernel_sum" if kernel != GAUSS else "gauss_sum"
    asked = Settings(method, precision, backend, function=function, forward_mode=bool(forward_mode), kernel=kernel)
    settings, chosen = checked(asked, queries, keys, values, tau)
    settings = examined(settings, tau, queries, keys, values)
    if kernel == GAUSS:
        return checked_gauss_sum(settings, chosen, queries, keys, values, tau)
    return _checked_sum(settings, queries, keys, values, as_operand(tau, settings.dtype))


@functools.partial(jax.jit, static_argnums=0)
def _checked_sum(settings: Settings, *operands: Array) -> Array:
    return unrounded_kernel_sum(settings, *operands).astype(settings.dtype)


def unrounded_kernel_sum(settings: Settings, queries: Array, keys: Array, values: Array, tau: Array) -> Array:
    """`unrounded_gauss_sum`, of the settings' kernel."""
    if settings.kernel == GAUSS:
        return unrounded_gauss_sum(settings, queries, keys, values, tau)
    dtype = working_dtype(settings.dtype)
    queries, keys, values, tau = replicated(*(jnp.asarray(x, dtype) for x in (queries, keys, values, tau)))
    weights = values.ndim == 1
    operands = vary_alike(*align(queries, keys, values[:, None] if weights else values, tau))
    found = uses_mixture(settings, *operands)
    if found is not None:
        total = _sum_of_gaussians(settings, found, *operands)
    else:
        channels = Channels((settings.kernel,), (operands[2].shape[-1],))
        if settings.forward_mode:
            total = radial_sum_in_both_modes(settings, channels, *operands)
        else:
            total = radial_sum(settings, channels, *reverse_only(settings.function, *operands))
    return total[..., 0] if weights else total


def _sum_of_gaussians(
    settings: Settings, found: Mixture, queries: Array, keys: Array, values: Array, tau: Array
) -> Array:
    """Σ_j w_j Σ_n exp(-τ s_j/2 ‖q_m - k_n‖²) v_n: one batch of Gauss sums over shared points."""
    taus, weights, factor, constant = as_bandwidths(found, tau, queries, keys)
    sums = unrounded_gauss_sum(of_gaussians(settings), queries[None], keys[None], values[None], taus)
    total = jnp.tensordot(weights, sums, 1) - constant * values.sum(-2, keepdims=True)
    return factor[..., None, None] * total


def as_bandwidths(found: Mixture, tau: Array, *points: Array) -> tuple[Array, Array, Array, float]:
    """The bandwidths τ s_j (J, …) and weights w (J,) of a mixture, a factor (…) and a constant of all kernels.

    κ = factor · (Σ_j w_j Φ_j - constant): that of "energy" holds up to a distance of one, so its unit is a diameter
    that all points fit into.
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
