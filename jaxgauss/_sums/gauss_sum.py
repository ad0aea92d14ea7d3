"""gauss_sum: the public function, and the derivative rules that make its gradients Gauss sums again."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._arrays.places import vary_alike, vary_like, whole
from .._arrays.points import align, by_point, center, shared, unbroadcast
from .._checks.operands import as_operand, check_tolerance, takes_tau
from .._checks.settings import Bandwidth, Keys, Queries, Settings, Sums, Values, working_dtype
from .._engines.blocked import sum_and_tile, tile_pullback
from .._engines.channels import Channels
from .._engines.dispatch import gaussian_sum, keeps_tile, near_pullback, near_sum, near_sum_and_log, saves_log
from .._engines.plan import Plan, takes_half, warn_once
from .._engines.reach import are_near, known_near, looked_at, near_or_anywhere
from .._engines.wanted import Wanted
from .._kernels.kernels import GAUSS
from .channels import cheaper_by_channels, flat_channels
from .checked import checked
from .forward_mode import sum_in_both_modes
from .radial import Which, pair_sums, radial_sum, wanted_gradients
from .reverse_only import reverse_only


@takes_tau
def gauss_sum(
    queries: Queries,
    keys: Keys,
    values: Values,
    tau: Bandwidth = 1.0,
    *,
    method: str = "auto",
    precision: str = "auto",
    backend: str = "auto",
    tolerance: float | None = None,
    forward_mode: bool = False,
) -> Sums:
    """Sum Gaussian kernels: s_m = Σ_n exp(-τ/2 ‖q_m - k_n‖²) v_n, without forming the M×N matrix.

    O(MN(D + C)) operations and O((M + N)(D + C)) memory, by one call of a PyTorch attention kernel or by XLA, whichever
    is estimated to be faster; on a CPU O((M + N) C) operations for many points in D ≤ 3 dimensions
    (docs/few_dimensions.md). `explain` tells which. Leading axes broadcast and dtypes promote as in `jnp.matmul`.
    Sharded arrays are gathered, and every device computes the whole sum; `gauss_sum_sharded` divides the work.

    Args:
        queries: points q, (…, M, D).
        keys: points k, (…, N, D).
        values: v, (…, N, C); or one weight per key, (N,).
        tau: τ = 1/σ², positive: a number, or an array that broadcasts against the leading axes. τ (T,) is a batch of T
            bandwidths, with sums (T, M, C). To learn τ, learn log τ: a negative τ under `jit` gives NaN.
        method: "auto"; "rescale", "prescale", "reweight" (attention kernel); "blocked", "dense", "differences" (XLA);
            or "fourier" (D ≤ 3). docs/which_function.md compares them.
        precision: of the products: "float16", "bfloat16", "float32", "float64", or "float16x2", "bfloat16x2" for
            two-part points. "auto" is float32 or float64 on a CPU, half precision on CUDA (docs/precision.md).
        backend: the attention kernel: "auto", "cpu", "flash", "efficient" or "cudnn".
        tolerance: the largest error of "fourier", relative to Σ|v|, before rounding. None: below rounding.
        forward_mode: whether forward mode, such as `jax.jvp` or `jax.hessian`, must work, too (docs/scale.md).

    Returns:
        s, (…, M, C), or (…, M) for values (N,), in the promoted dtype of queries, keys and values. Without keys: zeros.

    Raises:
        ValueError: shapes do not fit, tau is not positive, or a named option cannot run there.
        TypeError: an argument is not a floating array.

    Derivatives:
        Reverse mode of any order with respect to queries, keys, values and tau, in linear memory. For C = 1 the value
        and all gradients cost two sums. Without `forward_mode`, forward mode is an error.

    Precision:
        The error relative to Σ Φ|v|, in L2 over the queries, is 2e-6 in float32 (gradients 1e-5), wherever the points
        lie, and 5e-4 in float16. Sums for which half precision is too coarse are computed again in float32.

    Example:
        >>> import jax.numpy as jnp, jaxgauss
        >>> points = jnp.array([[0.0], [1.0]])
        >>> sums = jaxgauss.gauss_sum(points, points, jnp.array([1.0, 1.0]), tau=2.0)
        >>> bool(jnp.allclose(sums, 1 + jnp.exp(-1)))
        True

    References:
        Rux & Neumayer, "Fast Gauss Sums via Flash Attention", 2026, arXiv:2609.04910.
    """
    check_tolerance("gauss_sum", method, tolerance)
    asked = Settings(method, precision, backend, forward_mode=bool(forward_mode), tolerance=tolerance)
    settings, chosen = checked(asked, queries, keys, values, tau)
    return checked_gauss_sum(looked_at(settings, tau, queries, keys, values), chosen, queries, keys, values, tau)


def checked_gauss_sum(settings: Settings, chosen: Plan, queries, keys, values, tau) -> Array:
    """The sum of checked arguments."""
    if chosen.stands_in:
        warn_once(chosen.reason)
    return _checked_sum(settings, queries, keys, values, as_operand(tau, settings.dtype))


@functools.partial(jax.jit, static_argnums=0)
def _checked_sum(settings: Settings, *operands: Array) -> Array:
    return wide_sum(settings, *operands).astype(settings.dtype)


def wide_sum(settings: Settings, queries: Array, keys: Array, values: Array, tau: Array) -> Array:
    """Everything between the checks and the custom rule: one dtype, one rank, one way of varying over a mesh.

    The sum is in the working dtype: partial sums may be added to it.
    """
    dtype = working_dtype(settings.dtype)
    queries, keys, values, tau = whole(*(jnp.asarray(x, dtype) for x in (queries, keys, values, tau)))
    weights = values.ndim == 1
    operands = vary_alike(*align(queries, keys, values[:, None] if weights else values, tau))
    if settings.forward_mode:
        total = sum_in_both_modes(settings, *operands)
    else:
        total = aligned_sum(settings, *reverse_only(settings.function, *operands))
    return total[..., 0] if weights else total


# Derivatives. For a cotangent g and w_mn = Φ(q_m, k_n) ⟨g_m, v_n⟩, from ∂Φ/∂q = τ Φ (k - q):
#
#     dv_n = Σ_m Φ g_m        dq_m = τ Σ_n w_mn (k_n - q_m)        dk_n = τ Σ_m w_mn (q_m - k_n)
#     dτ   = -½ Σ_mn w_mn ‖q_m - k_n‖² = (Σ_m q_m·dq_m + Σ_n k_n·dk_n) / 2τ, at any origin, since Σ dq + Σ dk = 0
#
# By channels: W = K [v_c k, v_c] holds the sum s and Σ_n Φ v_c k, so that dq = τ Σ_c g_c (W_k,c - q s_c), and
# U = Kᵀ [g_c q, g_c] likewise holds dv and dk: C(D + 1) channels each. For C = 1 (MMD, flows, densities) W comes with
# the value: two sums in all. For many channels: the fused backward pass (`gaussian_pullback`), whose own rule is
# written by channels. Where Φ is dense and hardly larger than the operands (few points of many dimensions) it is kept
# from the sum. Everything here is made of these two functions, or else of ordinary ones of JAX: the rules hold for
# every order.
# Moments are taken about a center, c: Σ Φ v (k - c) - (q - c) s loses fewer digits.
# Source: Rux & Neumayer 2026, section 3, for the sum as attention; the rules are the product rule.


aligned_sum: Any = jax.custom_vjp(gaussian_sum, nondiff_argnums=(0,))


def _forward(settings: Settings, queries, keys, values, tau):
    wanted = Which(*(x.perturbed for x in (queries, keys, values, tau)))
    operands = tuple(x.value for x in (queries, keys, values, tau))
    is_near = are_near(settings, *operands, slopes=wanted.queries or wanted.keys or wanted.tau, second_order=wanted.tau)
    ways = (functools.partial(f, wanted.queries or wanted.tau, settings) for f in (_near_and_saved, _far_and_saved))
    found: Any = near_or_anywhere(is_near, *ways, *operands)
    total, saved = found
    # JAX keeps one tree of residuals for all patterns of wanted gradients (that of its last trace): the tree must not
    # depend on the pattern, so the pattern travels as the shape of an array.
    looked = None if isinstance(is_near, bool) else is_near
    return total, (operands, looked, saved, jnp.zeros([1 + x for x in wanted], bool))


def _backward(settings: Settings, residuals, g):
    operands, looked, saved, pattern = residuals
    is_near: Any = known_near(settings, *operands) if looked is None else looked
    wanted = Which(*(size == 2 for size in pattern.shape))
    if isinstance(g, jax.custom_derivatives.SymbolicZero):
        return None, None, None, None
    queries, keys, values, tau = operands
    if not any(wanted[i] for i in (0, 1, 3)) and not keeps_tile(settings, *operands):
        return None, None, unbroadcast(aligned_sum(settings, keys, queries, g, tau), values.shape), None
    ways = (functools.partial(f, wanted, settings) for f in (_near_gradients, _far_gradients))
    rest = iter(near_or_anywhere(is_near, *ways, *operands, g, saved))
    return tuple(next(rest) if is_wanted else None for is_wanted in wanted)


def _near_and_saved(with_slopes: bool, settings: Settings, queries: Array, keys: Array, values: Array, tau: Array):
    """The sum, and what is kept of it for the gradients: a tile, the slopes, or nothing."""
    operands = queries, keys, values, tau
    if keeps_tile(settings, *operands):
        return sum_and_tile(*operands)
    if with_slopes and cheaper_by_channels(queries, values):
        return _sum_and_slopes(settings, *operands)
    if with_slopes and saves_log(settings, *operands):
        return near_sum_and_log(settings, *operands)
    total = near_sum(settings, *operands)
    return total, vary_like(jnp.zeros(0, total.dtype), [total])


def _far_and_saved(with_slopes: bool, settings: Settings, queries: Array, keys: Array, values: Array, tau: Array):
    """The same wherever points lie: the slopes of one channel; of more, zeros like what is kept near."""
    operands = queries, keys, values, tau
    channels = Channels((GAUSS,), values.shape[-1:])
    if with_slopes and _keeps_slopes(settings, *operands):
        ones = jnp.ones_like(queries[..., :1])
        found = pair_sums(settings, Wanted(channels, channels, repeats=True), *operands, ones, values)
        return found.sums, found.pulls[..., None, :]
    saved = jax.eval_shape(functools.partial(_near_and_saved, with_slopes, settings), *operands)[1]
    total = radial_sum(settings, channels, *operands)
    return total, jax.tree.map(lambda x: vary_like(jnp.zeros(x.shape, x.dtype), [total]), saved)


def _keeps_slopes(settings: Settings, queries: Array, keys: Array, values: Array, tau: Array) -> bool:
    return values.shape[-1] == 1 and not keeps_tile(settings, queries, keys, values, tau)


def _near_gradients(
    wanted: Which, settings: Settings, queries: Array, keys: Array, values: Array, tau: Array, g: Array, saved: Any
):
    """The wanted gradients by the rules above."""
    operands = queries, keys, values, tau
    d_queries = d_keys = d_values = d_tau = jnp.zeros(0)
    want_keys = wanted.keys or wanted.tau
    if keeps_tile(settings, *operands):
        d_queries, d_keys, d_values = tile_pullback(saved, values, tau, g)
    elif cheaper_by_channels(queries, values):
        if wanted.queries or wanted.tau:
            d_queries = _along(saved, g, tau)
        if want_keys:
            d_values, key_slopes = _sum_and_slopes(settings, keys, queries, g, tau)
            d_keys = _along(key_slopes, values, tau)
        elif wanted.values:
            d_values = near_sum(settings, keys, queries, g, tau)
    else:
        points = _own_points(queries, keys, tau) if wanted.tau else (queries, keys)
        of_sum = [saved] if saves_log(settings, *operands) and saved.size else []
        d_queries, d_keys, d_values = near_pullback(settings, *points, values, tau, g, *of_sum)
    if wanted.tau:
        c = center(queries if shared(queries) else keys, takes_half(settings))
        moments = (((x - c) * d_x).sum(-2, keepdims=True) for x, d_x in ((queries, d_queries), (keys, d_keys)))
        of_queries, of_keys = (unbroadcast(x, by_point(tau, x).shape) for x in moments)
        d_tau = (of_queries + of_keys).reshape(tau.shape) / (2 * tau)
    gradients = zip((d_queries, d_keys, d_values, d_tau), wanted, operands, strict=True)
    return tuple(unbroadcast(gradient, x.shape) for gradient, is_wanted, x in gradients if is_wanted)


def _far_gradients(which: Which, settings: Settings, *operands: Any):
    """The same wherever points lie."""
    queries, keys, values, tau, g, saved = operands
    channels, nothing = Channels((GAUSS,), values.shape[-1:]), queries[..., :0]
    pulls = saved[..., 0, :] if (which.queries or which.tau) and _keeps_slopes(settings, *operands[:4]) else nothing
    gradients = wanted_gradients(settings, channels, which, queries, keys, values, tau, g, pulls, nothing)
    return tuple(d for d in gradients if d is not None)


aligned_sum.defvjp(_forward, _backward, symbolic_zeros=True)


def _sum_and_slopes(settings: Settings, queries: Array, keys: Array, values: Array, tau: Array) -> tuple[Array, Array]:
    """s = Σ Φ v (…, M, C) and Σ Φ v (k - q) (…, M, C, D), from one sum of C(D + 1) channels."""
    c = center(keys, takes_half(settings))
    moments = values[..., :, None] * (keys - c)[..., None, :]  # (…, N, C, D)
    columns = jnp.concatenate([flat_channels(moments), _full(values, moments)], -1)
    total = near_sum(settings, queries, keys, columns, tau)
    channels, dim = moments.shape[-2:]
    first, s = total[..., : channels * dim], total[..., channels * dim :]
    first = first.reshape(*first.shape[:-1], channels, dim)
    return s, first - s[..., None] * (queries - c)[..., None, :]


def _along(slopes: Array, weights: Array, tau: Array) -> Array:
    """τ Σ_c g_c (W_k,c - q s_c): the gradient (…, M, D) from slopes (…, M, C, D) and weights (…, M, C)."""
    return by_point(tau, weights) * (slopes * weights[..., None]).sum(-2)


def _full(values: Array, moments: Array) -> Array:
    return jnp.broadcast_to(values, (*moments.shape[:-2], values.shape[-1]))


def _own_points(queries: Array, keys: Array, tau: Array) -> tuple[Array, Array]:
    """Points whose gradients are summed over no more of the batch than τ's gradient and its origin c can bear."""
    batch = by_point(tau, queries).shape[:-2]
    if not (shared(queries) or shared(keys)):
        batch = jnp.broadcast_shapes(queries.shape[:-2], keys.shape[:-2], batch)
    queries, keys = (
        jnp.broadcast_to(x, (*jnp.broadcast_shapes(x.shape[:-2], batch), *x.shape[-2:])) for x in (queries, keys)
    )
    return queries, keys
