"""gauss_sum: the public function, and everything between its checks and the derivative rules."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._arrays.devices import replicated, vary_alike
from .._arrays.points import align
from .._checks.operands import as_operand, check_tolerance, takes_tau
from .._checks.settings import Keys, Queries, Settings, Sums, Tau, Values, working_dtype
from .._engines.near import examined
from .._engines.plan import Plan, warn_once
from .checked import checked
from .forward_mode import sum_in_both_modes
from .reverse_only import reverse_only
from .rules import gaussian_sum


@takes_tau
def gauss_sum(
    queries: Queries,
    keys: Keys,
    values: Values,
    tau: Tau = 1.0,
    *,
    method: str = "auto",
    precision: str = "auto",
    backend: str = "auto",
    tolerance: float | None = None,
    forward_mode: bool = False,
) -> Sums:
    """Sum Gaussian kernels: s_m = Σ_n exp(-τ/2 ‖q_m - k_n‖²) v_n, without the M×N kernel matrix.

    O(MN(D + C)) operations and O((M + N)(D + C)) memory, by one call of a stock flash-attention kernel of PyTorch, or
    by XLA a block at a time where that is faster. Of many points in one, two or three dimensions on a CPU O((M + N) C),
    by waves (docs/few_dimensions.md), to the same digits. `explain` tells which. Mixed floating dtypes promote, and
    leading axes broadcast, as in `jnp.matmul`; what is shared by a batch is not copied. Arrays that are shared out over
    devices give the right sum, but XLA gathers them on every device, and each computes all of it: `gauss_sum_sharded`
    does not.
    `jax.export` takes XLA's methods, "blocked" always, with symbolic shapes too, for which "auto" is "blocked"; but no
    program that calls PyTorch, as "auto" does where `explain` says so: by platform, CPU, sizes and precision.

    Args:
        queries: points q, (…, M, D).
        keys: points k, (…, N, D).
        values: v, (…, N, C); or one weight a key, (N,).
        tau: τ = 1/σ², positive: a number, or an array that broadcasts against the leading axes, and only against them:
            τ (T,) is a batch of T bandwidths, the sum (T, M, C), also where T happens to be D or N. (In `mmd_squared`
            and its like, which have no batches, it is a mixture.) For one bandwidth in each dimension scale the points.
            To learn it, learn log τ: under `jit` it cannot be looked at, and a negative one gives NaN.
        method: "auto"; "rescale" (ours), "prescale" or "reweight" (the paper's Algorithms 1 and 2) for the attention
            kernel; "blocked", "dense" or "differences" (of coordinates: slow, and right anywhere) for XLA; "fourier"
            for waves wherever points of D ≤ 3 lie, unless there would be too many.
        precision: of the products: "float16", "bfloat16", "float32", "float64", or with points split into two numbers
            "float16x2", "bfloat16x2". "auto" is the arguments' own on a CPU (float32 for half-precision arguments); on
            CUDA float16 for float16 and float32 arguments and bfloat16 for bfloat16 ones, and under
            `jax.default_matmul_precision` "high" split points, "highest" float32; but float32 of few points, which XLA
            sums there. Sums, exponents and the result's
            scale are float32 or better in all of them.
        backend: the attention kernel, "cpu", "flash", "efficient" (memory-efficient) or "cudnn"; or "auto".
        tolerance: of method "fourier": the largest error of a sum relative to Σ|v|, without rounding. None for one that
            does not count beside rounding.
        forward_mode: whether `jax.jvp`, `jax.jacfwd`, `jax.linearize` and `jax.hessian` must work, too.

    Returns:
        s, (…, M, C), or (…, M) for values (N,), in the promoted dtype of queries, keys and values. No keys give zeros.

    Raises:
        ValueError: shapes do not fit, tau is not positive, or what was asked for by name cannot run there.
        TypeError: an argument is not a floating array.

    Derivatives:
        Reverse mode of any order with respect to queries, keys, values and tau, in linear memory. The rules are Gauss
        sums themselves: for C = 1, value and all gradients cost two of them. Gradients run in the same precision, and
        by the kernel's fused backward pass where there are many channels (this is `rescale` whatever the method). Where
        XLA forms the kernel matrix of a few points, and it has at most eight times the numbers of the arguments, it is
        kept for the gradients.
        Forward mode is refused, with an error that names the ways around it (a Hessian is `jax.jacrev(jax.grad(f))`),
        unless asked for by `forward_mode`: the sum is then a primitive with a tangent and a transpose, and forward over
        reverse and reverse over forward work, too. The tangent for C = 1 is two Gauss sums; for many channels, as in a
        Hessian, it is formed in XLA's blocks. Gradients cost the same as by default for C = 1, up to three times as
        much for many channels.

    Precision:
        Error of sums relative to Σ Φ|v|, in L2 over the queries, of gradients relative to the sizes of their terms:

        - float32: 2e-6, gradients 1e-5, wherever the points lie (twice to five times that for a handful of terms).
        - float16x2, bfloat16x2: 4e-4, 4e-3.
        - float16, bfloat16: 5e-4, 4e-3, growing to 5e-3, 4e-2 with the distance of points from their center.

        Points far from one another, in bandwidths, take two to five times as long. What half precision does not hold is
        found from the points and the sums, and computed again in float32. On CUDA nothing waits for that finding: a
        second kernel is launched behind a gate that the device opens, points beyond its reach (256 bandwidths; 45 where
        float32 was asked for) are reported by a warning at a later call, and what XLA sums of few points errs by 2⁻²⁴ R
        r, R the distance from the center and r from each other. Terms below 2⁻²⁵ of the largest of a row are lost in
        float16. Values of any size may meet in one channel; in half precision, channels whose sizes differ from key to
        key share the range of the largest. Terms with Φ below the smallest number of float32 are zero (see
        `log_gauss_sum`), a sum beyond its range is infinite. NaN in a query spoils its row alone. See
        docs/precision.md.

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
    return checked_gauss_sum(examined(settings, tau, queries, keys, values), chosen, queries, keys, values, tau)


def checked_gauss_sum(settings: Settings, chosen: Plan, queries, keys, values, tau) -> Array:
    """The sum of checked arguments."""
    if chosen.stands_in:
        warn_once(chosen.reason)
    return _checked_sum(settings, queries, keys, values, as_operand(tau, settings.dtype))


@functools.partial(jax.jit, static_argnums=0)
def _checked_sum(settings: Settings, *operands: Array) -> Array:
    return unrounded_gauss_sum(settings, *operands).astype(settings.dtype)


def unrounded_gauss_sum(settings: Settings, queries: Array, keys: Array, values: Array, tau: Array) -> Array:
    """Everything between the checks and the custom rule: one dtype, one rank, one way of varying over a mesh.

    The sum is in the working dtype: partial sums may be added to it.
    """
    dtype = working_dtype(settings.dtype)
    queries, keys, values, tau = replicated(*(jnp.asarray(x, dtype) for x in (queries, keys, values, tau)))
    weights = values.ndim == 1
    operands = vary_alike(*align(queries, keys, values[:, None] if weights else values, tau))
    if settings.forward_mode:
        total = sum_in_both_modes(settings, *operands)
    else:
        total = gaussian_sum(settings, *reverse_only(settings.function, *operands))
    return total[..., 0] if weights else total
