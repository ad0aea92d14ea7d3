"""Sums over all other points, for each point and many τ."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from .._arrays.devices import has_cuda
from .._arrays.exponential import exp
from .._arrays.points import LOG_ZERO, difference_logits, dot
from .._checks.settings import Settings, working_dtype
from .._engines.programs import in_float64
from .._kernels.kernels import GAUSS
from .._sums.kernel_mean import as_logs, means_over_mesh
from .._sums.log_gauss_sum import log_gauss_sum

PAIRS, LEAST_ROWS = 2**16, 8  # pairs of points at a time, in at least so many rows
LEFT_OUT = 1e38  # stands for the distance of a point that is left out
GROUP = 1024  # points in a group


def over_others(
    settings: Settings, points: Array, log_weights: Array, taus: Array, values: Array | None
) -> tuple[Array, Array | None]:
    """log Σ_{j ≠ i} w_j Φ(x_i, x_j), (T, N), and the means of the values if given, (T, N, C)."""
    operands = points, log_weights, taus, values
    if has_cuda() or not settings.automatic:
        return _of_groups(settings, *operands)
    return in_float64(settings, _of_rows, *operands)


def _of_rows(
    settings: Settings, points: Array, log_weights: Array, taus: Array, values: Array | None
) -> tuple[Array, Array | None]:
    """The same from float64 points: blocks of rows against all points, with distances computed once for all τ.

    Exponents are computed relative to the largest of their row, and then rounded to the working dtype.
    """
    num, dtype = len(points), working_dtype(settings.dtype)
    rows = min(num, max(LEAST_ROWS, PAIRS // num))
    w = jnp.exp(log_weights)
    w = jnp.where(w > float(jnp.finfo(dtype).tiny), w, 0)
    has_others = (w > 0).sum() > 1
    w = jnp.where(has_others, w, 1 / num)  # if a single point has all the weight, all points count equally
    if values is None:
        center, columns = None, w[:, None]
    else:
        center = lax.stop_gradient(w @ values)[None]
        columns = jnp.concatenate([w[:, None] * (values - center), w[:, None]], -1)
    scale = lax.stop_gradient(jnp.maximum(taus.max(), 1e-300))

    def of_some(indices: Array) -> tuple[Array, Array | None]:  # (T, rows), (T, rows, C)
        u = -2 * difference_logits(jnp.sqrt(scale)[None, None], points[indices], points)
        others = (indices[:, None] != jnp.arange(num, dtype="int32")[None]) & (w > 0)[None]
        of_gauss = _least_and_beyond(u / 2, others, dtype)

        @jax.checkpoint
        def of_tau(ratio: Array) -> tuple[Array, Array | None]:
            (least, beyond), factor = of_gauss, ratio
            if settings.kernel != GAUSS:
                logs = settings.kernel.log(ratio * u)
                (least, beyond), factor = _least_and_beyond(-logs, others, dtype), jnp.ones_like(ratio)
            terms = jnp.where(beyond < LEFT_OUT, exp(-factor.astype(dtype) * beyond), 0)
            sums = dot(terms, columns.astype(dtype)).astype("float64")
            logs = jnp.where(has_others, jnp.log(sums[:, -1]) - factor * least, LOG_ZERO)
            return logs, None if center is None else center + sums[:, :-1] / sums[:, -1:]

        return lax.map(of_tau, taus / scale)

    steps = -(-num // rows)
    indices = jnp.minimum(jnp.arange(steps * rows, dtype="int32"), num - 1).reshape(steps, rows)
    found = lax.map(jax.checkpoint(of_some), indices)  # (steps, T, rows, …)
    return jax.tree.map(lambda z: jnp.moveaxis(z, 0, 1).reshape(len(taus), -1, *z.shape[3:])[:, :num], found)


def _least_and_beyond(x: Array, others: Array, dtype: np.dtype) -> tuple[Array, Array]:
    """The smallest x of the others in each row, in float64, and the differences of the others from it.

    In derivatives the smallest x cancels with its own term, which at a large τ would hide all others.
    """
    least = jnp.where(others, x, jnp.inf).min(-1, keepdims=True)
    return least[:, 0], jnp.where(others, jnp.minimum(x - least, LEFT_OUT), LEFT_OUT).astype(dtype)


def _of_groups(
    settings: Settings, points: Array, log_weights: Array, taus: Array, values: Array | None
) -> tuple[Array, Array | None]:
    """The same: a dense matrix without its diagonal sums within each group; other groups are added one by one."""
    settings = replace(settings, dtype=points.dtype.name)
    num, dim = points.shape
    num_groups = -(-num // GROUP)
    size = -(-num // num_groups)
    padding = (0, num_groups * size - num)
    x = jnp.pad(points, (padding, (0, 0)), mode="edge").reshape(num_groups, size, dim)  # padding adds no far points
    w = jnp.pad(log_weights, padding, constant_values=LOG_ZERO).reshape(num_groups, size)
    v = None if values is None else jnp.pad(values, (padding, (0, 0))).reshape(num_groups, size, -1)

    def within(group: tuple[Array, Array, Array | None]) -> tuple[Array, Array | None]:  # (T, size), (T, size, C)
        x, w, v = group
        squared = jnp.square(x[:, None] - x[None]).sum(-1)
        themselves = jnp.where(jnp.eye(size, dtype=bool), LOG_ZERO, 0)

        @jax.checkpoint
        def of_tau(tau: Array) -> tuple[Array, Array | None]:
            logits = settings.kernel.log(tau * squared) + w[None] + themselves
            return jax.nn.logsumexp(logits, -1), None if v is None else dot(jax.nn.softmax(logits, -1), v)

        return lax.map(of_tau, taus)

    def add(found: tuple[Array, Array | None], turn: Array):
        logs, means = found
        others = jnp.roll(x, turn, 0), jnp.roll(w, turn, 0)
        if v is None or means is None:
            more = log_gauss_sum(x, *others, taus[:, None], kernel=settings.kernel, **settings.options)
            return (jnp.logaddexp(logs, jnp.maximum(more, LOG_ZERO)), None), None
        theirs, more = means_over_mesh(as_logs(settings), x, others[0], jnp.roll(v, turn, 0), others[1], taus[:, None])
        total = jnp.logaddexp(logs, more[..., 0])
        means = means * jnp.exp(logs - total)[..., None] + theirs * jnp.exp(more - total[..., None])
        return (total, means), None

    found = jax.tree.map(
        lambda z: jnp.moveaxis(z, 0, 1), lax.map(jax.checkpoint(within), (x, w, v))
    )  # (T, groups, size, …)
    if num_groups > 1:
        found = lax.scan(jax.checkpoint(add), found, jnp.arange(1, num_groups))[0]
    return jax.tree.map(lambda z: z.reshape(len(taus), -1, *z.shape[3:])[:, :num], found)
