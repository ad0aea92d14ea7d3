"""gauss_sum: the public function, and the steps between its checks and the derivative rules."""

import functools
from dataclasses import replace

import jax.numpy as jnp
from jax.lax import Precision
from jaxtyping import Array

from .._arrays.devices import has_cuda, replicated, vary_alike
from .._arrays.hidden import without_hidden
from .._arrays.points import align
from .._arrays.tracing import jitted
from .._checks.arguments import public
from .._checks.names import as_engine
from .._checks.operands import as_operand, check_others
from .._checks.settings import Keys, Queries, Segments, Settings, Sums, Tau, Values, working_dtype
from .._engines.engine import Engine
from .._engines.forward_mode import radial_sum_in_both_modes, sum_in_both_modes
from .._engines.near import examined
from .._engines.plan import Plan, warn_once
from .._engines.request import Channels
from .._engines.rules import gaussian_sum, radial_sum
from .display import refuse_progress, refuse_progress_in_a_trace
from .others import sum_of_others
from .preparation import checked
from .progress import in_parts
from .segments import by_segments


@public()
def gauss_sum(
    queries: Queries,
    keys: Keys,
    values: Values,
    tau: Tau = 1.0,
    *,
    engine: str | Engine = "auto",
    precision: str | Precision | None = None,
    exclude_self: bool = False,
    forward_mode: bool = False,
    segments: Segments = None,
    progress: bool = False,
) -> Sums:
    """Sum Gaussian kernels: s_m = Σ_n exp(-τ/2 ‖q_m - k_n‖²) v_n, without forming the M×N matrix.

    O(MN(D + C)) operations and O((M + N)(D + C)) memory, by one call of a PyTorch attention kernel or by XLA, whichever
    is estimated to be faster (`explain` tells); on a CPU O((M + N) C) operations for many points in D ≤ 3 dimensions.
    Leading axes broadcast and dtypes promote as in `jnp.matmul`. Sharded arrays are gathered: see `gauss_sum_sharded`.

    Args:
        queries: points q, (…, M, D).
        keys: points k, (…, N, D).
        values: v, (…, N, C); or one weight per key, (N,).
        tau: τ = 1/σ², positive: a number, or an array that broadcasts against the leading axes. τ (T,) is a batch of T
            bandwidths, with sums (T, M, C). To learn τ, learn log τ: a negative τ under `jit` gives NaN.
        engine: "auto", another name, or an engine with options, such as `jaxgauss.Fourier(tolerance=1e-3)` or
            `jaxgauss.Attention("reweight", kernel="flash")`. docs/which_function.md compares them.
        precision: of the products: "float16", "bfloat16", "float32", "float64"; "float16x2", "bfloat16x2" for pairs of
            half-precision numbers; or as `jnp.matmul` takes it, such as "highest". None: that of the points; on CUDA
            half precision for float32 points where it is four times as fast (docs/precision.md).
        exclude_self: whether the pairs m = n are left out, where queries and keys are the same points.
        forward_mode: whether the rules are those of forward mode, which also works without (docs/scale.md).
        segments: integer labels (M,) and (N,): only pairs of equal labels are summed, group by group (docs/ragged.md).
        progress: sum some queries at a time, with a bar (needs tqdm); not under transformations or with segments.

    Returns:
        s, (…, M, C), or (…, M) for values (N,), in the promoted dtype of queries, keys and values. Without keys: zeros.

    Raises:
        ValueError: shapes do not fit, tau is not positive, or an option cannot be used there, or not for such points.
        TypeError: an argument is not a floating array, or labels are not known integers.

    Derivatives:
        Any order, both modes, with respect to all four, in linear memory; for C = 1 the value and all gradients cost
        two sums.

    Precision:
        The error relative to Σ Φ|v|, in L2 over the queries, is 2e-6 in float32 (gradients 1e-5), wherever the points
        lie, and 5e-4 in float16. Sums for which half precision is too coarse are computed again in float32.

    Example:
        >>> import jax.numpy as jnp, jaxgauss
        >>> points = jnp.array([[0.0], [1.0]])
        >>> bool(jnp.allclose(jaxgauss.gauss_sum(points, points, jnp.ones(2), tau=2.0), 1 + jnp.exp(-1)))
        True

    References:
        Rux & Neumayer, "Fast Gauss Sums via Flash Attention", 2026, arXiv:2609.04910.
    """
    asked = Settings(as_engine("gauss_sum", engine, precision), exclude_self=bool(exclude_self))
    settings, plan = checked(replace(asked, forward_mode=bool(forward_mode)), queries, keys, values, tau)
    if exclude_self:
        check_others("gauss_sum", {"queries": queries, "keys": keys})
        refuse_progress("gauss_sum", progress, "with exclude_self")
    if segments is not None:
        refuse_progress("gauss_sum", progress, "with segments")
        return by_segments(unrounded_gauss_sum, settings, segments, queries, keys, values, tau)
    settings = examined(settings, tau, queries, keys, values)
    if not progress:
        return checked_gauss_sum(settings, plan, queries, keys, values, tau)
    refuse_progress_in_a_trace("gauss_sum", queries, keys, values, tau)
    compute, axis = functools.partial(checked_gauss_sum, settings, plan), -1 if values.ndim == 1 else -2
    return in_parts(settings, lambda q: compute(q, keys, values, tau), queries, keys.shape[-2], axis)


def checked_gauss_sum(settings: Settings, plan: Plan, queries, keys, values, tau) -> Array:
    """The sum of checked arguments."""
    if plan.stands_in:
        warn_once(plan.reason)
    return _checked_sum(settings, queries, keys, values, as_operand(tau, settings.dtype))


@functools.partial(jitted, num_static=1)
def _checked_sum(settings: Settings, *operands: Array) -> Array:
    return unrounded_gauss_sum(settings, *operands).astype(settings.dtype)


def unrounded_gauss_sum(settings: Settings, queries: Array, keys: Array, values: Array, tau: Array) -> Array:
    """The sum of checked arguments in the working dtype, so that partial sums may be added to it.

    Operands get one dtype and one rank, and vary over the same axes of a mesh.
    """
    dtype = working_dtype(settings.dtype)
    queries, keys, values, tau = replicated(*(jnp.asarray(x, dtype) for x in (queries, keys, values, tau)))
    weights = values.ndim == 1
    queries, keys, values, tau = align(queries, keys, values[:, None] if weights else values, tau)
    if has_cuda():  # on a CPU the ways of far points do this
        keys = without_hidden(keys, values)
    operands = vary_alike(queries, keys, values, tau)
    total = sum_of_others(_summed, settings, *operands) if settings.exclude_self else _summed(settings, *operands)
    return total[..., 0] if weights else total


def _summed(settings: Settings, *operands: Array) -> Array:
    if settings.exclude_self:
        return summed_by_pairs(settings, *operands)
    return (sum_in_both_modes if settings.forward_mode else gaussian_sum)(settings, *operands)


def summed_by_pairs(settings: Settings, *operands: Array) -> Array:
    """The sum of any kernel, of operands of equal rank."""
    channels = Channels((settings.kernel,), (operands[2].shape[-1],))
    return (radial_sum_in_both_modes if settings.forward_mode else radial_sum)(settings, channels, *operands)
