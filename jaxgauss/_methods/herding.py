"""Kernel herding: few points whose mean embedding follows that of many."""

import functools
import math
from dataclasses import replace
from typing import NamedTuple, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from .._arrays.devices import replicated, vary_alike
from .._arrays.points import difference_logits
from .._calls import readable
from .._checks.arguments import public
from .._checks.samples import check_kernel, check_number, check_samples, check_signs
from .._checks.settings import MeshOptions, Points, Settings, Taus, Weights, working_dtype
from .._kernels.kernels import Kernel
from .._sums.display import short_repr
from .._sums.mesh import sum_over_mesh
from .._sums.preparation import check_and_examine
from .weights import normalized

# Added to the diagonal of the matrix that is solved, in units of the embedding's dtype. Without it, rounding errors of
# the embedding would give huge weights if the matrix is nearly singular.
RIDGE = 4


@readable
class Herding(NamedTuple):
    """The points that `kernel_herding` chose.

    Attributes:
        indices: of the chosen points, (num,), in the order in which they were chosen.
        mmd: MMD between the first 1, 2, … of them, equally weighted, and all points, (num,).
        weights: the weights of the chosen points that minimize the MMD, (num,), of either sign. Their sum need not be
            one.
        weighted_mmd: the MMD with these weights.
    """

    indices: Int[Array, " num"]
    mmd: Float[Array, " num"]
    weights: Float[Array, " num"]
    weighted_mmd: Float[Array, ""]
    __repr__ = short_repr


@public()
def kernel_herding(
    points: Points,
    tau: Taus,
    num: int,
    *,
    kernel: str | Kernel = "gauss",
    weights: Weights | None = None,
    unique: bool = True,
    **options: Unpack[MeshOptions],
) -> Herding:
    """Choose a few points, one by one, so that their mean embedding approximates that of all points.

    With μ_i = Σ_j w_j k(x_i, x_j), the point chosen after t points x_s maximizes μ_i - Σ_s k(x_i, x_s) / (t + 1). The
    MMD falls like 1/t at best, that of random points like 1/√t. One Gauss sum, in O(N² D) operations, gives μ. Each
    point then takes O(N D), and the optimal weights O(num³). O(N D) memory.

    Args:
        points: x, (N, D).
        tau: τ = 1/σ², positive; or several, (T,), whose kernels are averaged.
        num: how many points to choose.
        kernel: a name or a `Kernel`, as for `mmd_squared`: not "energy".
        weights: w, (N,), not negative; they are divided by their sum. None: all are equal.
        unique: whether a point is chosen at most once; num is then at most N.
        **options: of the Gauss sum: `engine` and `precision`, as for `gauss_sum`, except that None is
            float32 on CUDA; and `mesh`, `query_axis` and `key_axis`, as for `mmd_squared`.

    Returns:
        A `Herding`: indices, the MMD after each step, and optimal weights with their MMD. It has no gradients;
        `mmd_squared(points[indices], points, …)` has them.

    Raises:
        ValueError: shapes do not fit, tau, weights or num is not positive, num exceeds N, or an option has an unknown
            value.
        TypeError: points or weights are not a floating array.

    Precision:
        Everything but μ is float64. In float32 μ errs by 1e-7, so an MMD below 1e-3 needs precision="float64". An MMD²
        that rounds below zero is zero.

    Example:
        >>> import jax.numpy as jnp, jaxgauss
        >>> points = jnp.array([[0.0], [0.1], [0.2], [9.0]])
        >>> chosen = jaxgauss.kernel_herding(points, 1.0, 2)
        >>> chosen.indices.tolist()
        [1, 3]

    References:
        Chen, Welling & Smola, "Super-Samples from Kernel Herding", 2010, arXiv:1203.3472.
        Bach, Lacoste-Julien & Obozinski, "On the Equivalence between Herding and Conditional Gradient Algorithms",
        2012, arXiv:1203.4523 (also for the optimal weights).
    """
    function = "kernel_herding"
    kernel = check_kernel(function, kernel, positive=True)
    settings = check_samples(function, {"points": points}, tau, options, weights={"weights": weights}, kernel=kernel)
    check_signs(function, weights)
    check_number(function, "num", num)
    if unique and num > len(points):
        raise ValueError(
            f"`jaxgauss.{function}`: `num` must be at most the number of points; got num {num}, points {points.shape}."
            " With unique=False a point may be chosen again."
        )
    pairs, dim = len(points) ** 2 * max(1, math.prod(np.shape(tau))), points.shape[1]
    seen, tau = check_and_examine(settings, tau, pairs, dim, 1, (points,), (weights,))
    embedding, w = _embedding(replace(seen, matmul_precision="highest"), points, tau, weights)
    with jax.enable_x64(True):
        return _herding(settings, int(num), bool(unique), points, tau, w, embedding)


@functools.partial(jax.jit, static_argnums=0)
def _embedding(settings: Settings, points, tau, weights) -> tuple[Array, Array]:
    """The mean embedding μ at the points, (N,), and the normalized weights."""
    dtype = working_dtype(settings.dtype)
    x, tau = replicated(*(lax.stop_gradient(jnp.asarray(z, dtype)) for z in (points, tau)))
    w = lax.stop_gradient(normalized(settings, weights, x))
    x, tau, w = vary_alike(x, tau, w)
    sums = sum_over_mesh(settings, x, x, w[:, None], tau)
    return sums.reshape(-1, len(x)).mean(0), w


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _herding(settings: Settings, num: int, unique: bool, points, tau, w, embedding) -> Herding:
    operands = (lax.stop_gradient(jnp.asarray(z).astype("float64")) for z in (points, tau, w, embedding))
    x, tau, w, embedding = vary_alike(*replicated(*operands))
    norm, indices = w @ embedding, jnp.arange(len(x), dtype="int32")

    def kernel(x: Array, y: Array) -> Array:
        squared = -2 * difference_logits(jnp.ones((1, 1)), x, y)
        return settings.kernel(tau.reshape(-1, 1, 1) * squared[None]).mean(0)

    def choose(state: tuple[Array, ...], step: Array):
        penalty, taken, cross, own = state
        scores = jnp.where(taken, -jnp.inf, embedding - penalty / (step + 1))
        i = jnp.where(scores == scores.max(), indices, len(indices)).min()  # `argmax` has no float64 in a float32 `jit`
        row = kernel(x, x[i][None])[:, 0]
        own = own + 2 * penalty[i] + row[i]  # Σ k of the chosen points
        cross = cross + embedding[i]
        count = step + 1.0
        mmd = norm - 2 * cross / count + own / count**2
        taken = taken.at[i].set(True) if unique else taken
        return (penalty + row, taken, cross, own), (i, mmd)

    zero = jnp.zeros_like(norm)
    state = jnp.zeros_like(embedding), w == 0, zero, zero
    _, (indices, squared) = lax.scan(choose, state, jnp.arange(num, dtype="float64"))
    chosen, target = x[indices], embedding[indices]
    units = (float(jnp.finfo(z).eps) for z in (working_dtype(settings.dtype), "float64"))
    ridge = RIDGE * max(next(units), num * next(units))  # the second is the rounding error of solving in float64
    matrix, dtype = kernel(chosen, chosen), settings.dtype
    weights = jax.scipy.linalg.solve(matrix + ridge * jnp.eye(num), target, assume_a="pos")
    best = norm - 2 * weights @ target + weights @ matrix @ weights
    mmd, weighted_mmd = (jnp.sqrt(jnp.maximum(z, 0)).astype(dtype) for z in (squared, best))
    return Herding(indices.astype("int32"), mmd, weights.astype(dtype), weighted_mmd)
