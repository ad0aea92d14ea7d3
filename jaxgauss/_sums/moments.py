"""Moments, of which the kernel methods are made: sums and pulls from one call, for near points or anywhere."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from .._arrays.devices import replicated, vary_alike
from .._arrays.points import align, center, side_by_side, weighted_sum
from .._checks.settings import Settings, working_dtype
from .._engines.engines import mixture_of
from .._engines.near import are_near
from .._engines.plan import takes_half
from .._engines.request import NOTHING, Channels, Request
from .._engines.rules import mixed_sums, near_or_anywhere, pair_sums
from .._engines.run import near_mixed_sums, near_sum
from .._kernels.kernels import GAUSS
from .._kernels.profiles import Energy
from .kernel_sum import as_bandwidths
from .mesh import added_over_devices, first_rows, over_mesh, replicated_over_mesh, without_mesh

# Of points in their own unit, bandwidths from the origin: u stays below 2¹²⁰, which kernels take.
LARGEST, FARTHEST = 2.0**50, 2.0**60


class Moments(NamedTuple):
    """Sums of a kernel κ at M queries over N keys, with ψ = -2κ' and χ = -2ψ': of a Gaussian all three are Φ.

    Attributes:
        mass: Σ_n κ w_n.
        pulls: Σ_n κ u_n + ψ w_n (k_n - q_m); for u = 0, the gradient of the mass at the query, divided by τ.
        sums: Σ_n κ v_n.
        spread: Σ_mn c_m w_n ψ ‖k_n - q_m‖², but for terms that cancel when the rows of a symmetric form are added up.
        trace: Σ_mn c_m w_n (D ψ - τ χ ‖k_n - q_m‖²), but for such terms.
    """

    mass: Float[Array, "*batch m 1"]
    pulls: Float[Array, "*batch m d"]
    sums: Float[Array, "*batch m c"]
    spread: Float[Array, "*batch"] | float = 0.0
    trace: Float[Array, "*batch"] | float = 0.0


@dataclass(frozen=True)
class Reduction:
    """`Moments` from weights w (…, N, 1), values v (…, N, C), shifts u (…, N, D) and c (…, M, 1), in one call.

    Without values C = 0. Unless `pulls` are wanted, these have no columns. c is given as `spread` or as `trace`,
    whichever is wanted. The mesh of the settings, if any, divides the points.

    Attributes:
        settings: the kernel, the options and the mesh.
        center: of near points, whose kernel is Gaussian; None for points that lie anywhere.
        one_sign: whether the weights are known to have one sign.
        gaussians: τ and shares, (T,), of several Gaussians that are one kernel, whose own τ is one.
    """

    settings: Settings
    center: Array | None = None
    one_sign: bool = False
    gaussians: tuple[Array, Array] | None = None

    def __call__(
        self,
        queries: Array,
        keys: Array,
        weights: Array,
        tau: Array,
        values: Array | None = None,
        *,
        shifts: Array | None = None,
        pulls: bool = True,
        spread: Array | None = None,
        trace: Array | None = None,
    ) -> Moments:
        """Compute the moments that are wanted."""
        form, c = ("trace", trace) if spread is None else ("spread", spread)
        copies: Any = self.center, *((tau, None) if self.gaussians is None else self.gaussians)
        rows, columns = (queries, c), (keys, weights, values, shifts)
        of_kernel = self._of_any if self.center is None else self._of_gaussian
        moments = functools.partial(of_kernel, pulls, form)
        if self.settings.mesh is None:
            return moments(*copies, *rows, *columns)

        def local(*operands: Any) -> list[Any]:
            found = moments(*operands)
            own = None if c is None else jnp.asarray(getattr(found, form))[..., None, None]
            return added_over_devices(self.settings, [*found[:3], own])

        *sums, own = over_mesh(self.settings, local, copies, rows, columns)
        found = Moments(*(first_rows(self.settings, x, queries.shape[-2]) for x in sums))
        return found if own is None else found._replace(**{form: own.sum((-2, -1))})

    def _of_gaussian(self, with_pulls: bool, form: str, *operands: Any) -> Moments:
        """One sum of D + 1 + C channels on each device: Σ Φ (u + w (k - c)) - (q - c) Σ Φ w."""
        c, tau, shares, queries, rows, keys, weights, values, shifts = operands
        q, k, own = queries - c, keys - c, without_mesh(self.settings)
        dim = k.shape[-1] if with_pulls else 0
        if shares is None:
            firsts = weights * k if shifts is None else shifts + weights * k
            columns = side_by_side([firsts[..., :dim], weights, values])
            total = near_sum(own, *vary_alike(*align(queries, keys, columns, tau)), moments=dim)
            first, mass, sums = jnp.split(total, [dim, dim + 1], -1)
            found = Moments(mass, first - q[..., :dim] * mass, sums)
        else:
            columns = side_by_side([weights, values, shifts if with_pulls else None])
            sums, pulls = near_mixed_sums(own, with_pulls, *vary_alike(q, k, columns, tau, shares))
            mass, sums, moved = jnp.split(sums, [1, 1 + (0 if values is None else values.shape[-1])], -1)
            found = Moments(mass, pulls + moved if moved.size else pulls, sums)
        if rows is None:
            return found
        # as Σ_mn c_m w_n Φ (k_n - q_m) = 0
        spread = -2 * (rows * q * found.pulls).sum((-2, -1))
        if form == "spread":
            return found._replace(spread=spread)
        return found._replace(trace=queries.shape[-1] * (rows * mass).sum((-2, -1)) - tau * spread)

    def _of_any(self, with_pulls: bool, form: str, *operands: Any) -> Moments:
        """One pass over the pairs on each device: sums of κ, sums of the form, and pulls."""
        _, tau, shares, queries, rows, keys, weights, values, shifts = operands
        kernel, settings = self.settings.kernel, without_mesh(self.settings)
        traces = rows is not None and form == "trace" and kernel != GAUSS  # a Gaussian's is made of mass and spread
        spreads = rows is not None and not traces
        columns, kernels = [side_by_side([weights, values, shifts if with_pulls else None])], [kernel]
        if traces:
            kernels.append(kernel.trace(queries.shape[-1]))
            columns.append(weights)
        channels = Channels(tuple(kernels), tuple(x.shape[-1] for x in columns))
        pulls = Channels((kernel,), (1,)) if with_pulls or spreads else NOTHING
        ones, values_of_all = jnp.ones_like(queries[..., :1]), side_by_side(list(columns))
        request = Request(channels, pulls, spreads, self.one_sign, repeats=True)
        given = (tau,) if shares is None else (tau, shares)
        summed = pair_sums if shares is None else mixed_sums
        found = summed(settings, request, queries, keys, values_of_all, *given, ones, weights)
        of_kappa, *others = channels.parts(found.sums)
        num = 0 if values is None else values.shape[-1]
        mass, sums, moved = of_kappa[..., :1], of_kappa[..., 1 : 1 + num], of_kappa[..., 1 + num :]
        pulled = found.pulls + moved if moved.size else found.pulls
        moments = Moments(mass, pulled if with_pulls else pulled[..., :0], sums)
        if rows is None:
            return moments
        if traces:
            return moments._replace(trace=(rows * others[0]).sum((-2, -1)))
        spread = (rows * found.spread).sum((-2, -1))
        if form == "spread":
            return moments._replace(spread=spread)
        return moments._replace(trace=queries.shape[-1] * (rows * mass).sum((-2, -1)) - tau * spread)


def prepare(settings: Settings, tau: Any, *arrays: Any) -> tuple[Array, ...]:
    """τ and the arrays in the working dtype, varying alike over a mesh; the arrays get an axis for each axis of τ."""
    dtype = working_dtype(settings.dtype)
    (tau,) = replicated(jnp.asarray(tau, dtype))
    tau, *given = vary_alike(tau, *(jnp.asarray(x, dtype) for x in arrays))
    given = replicated(*given) if settings.mesh is None else replicated_over_mesh(settings, *given)
    return tau, *(jnp.expand_dims(x, range(tau.ndim)) for x in given)


def in_own_unit(settings: Settings, tau: Any, points: Sequence[Array], weights: Sequence[Array]) -> Any:
    """A unit, and the points in that unit: for "energy" a power of two, else 1.

    -‖x - y‖ is homogeneous, so the sum is that of the scaled points times the unit. In it the farthest point that has
    weight lies at about LARGEST bandwidths, so that squares of distances 2⁹⁰ times as small do not underflow; points
    without weight may lie farther, and are cut off. NaN if a coordinate of a point with weight is infinite.
    """
    dtype = working_dtype(settings.dtype)
    points = tuple(jnp.asarray(x, dtype) for x in points)
    if not isinstance(settings.kernel.profile, Energy):
        return jnp.ones((), dtype), points
    rows = [lax.stop_gradient(jnp.where(a[:, None] == 0, 0, x)) for x, a in zip(points, weights, strict=True) if x.size]
    largest = jnp.stack([jnp.abs(x).max() for x in replicated(*rows)]).max()
    tau = lax.stop_gradient(jnp.asarray(tau, dtype)).max(initial=0)
    exponent = jnp.log2(jnp.where(largest > 0, largest, 1)) + jnp.log2(tau) / 2 - math.log2(LARGEST)
    exponent = jnp.maximum(jnp.round(exponent), jnp.finfo(dtype).minexp + 26).astype("int32")  # for gradients
    unit = jnp.where(jnp.isfinite(largest), jnp.ldexp(jnp.ones((), dtype), exponent), jnp.nan)
    return unit, tuple(jnp.clip(x / unit, -FARTHEST, FARTHEST) for x in points)


def as_gaussians(settings: Settings, tau: Array, *points: Array) -> tuple[Settings, Array, Array | None]:
    """Settings, τ and shares of the Gaussians of the mixture that stands for the kernel; τ is one or several (T,).

    If no mixture stands for it, the arguments and None. The Gaussians give all that is linear in the kernel; for
    "energy" up to a constant, which cancels if the weights add up to zero.
    """
    if settings.kernel == GAUSS:
        return settings, tau, None
    num, dtype = sum(x.shape[0] for x in points), working_dtype(settings.dtype)
    every, tau = jax.ShapeDtypeStruct((num, points[0].shape[1]), dtype), jnp.asarray(tau, dtype)
    if (found := mixture_of(settings, every, every, jax.ShapeDtypeStruct((num, 1), dtype), tau)) is None:
        return settings, tau, None
    taus, weights, factor, _ = as_bandwidths(found[0], tau, *replicated(*(jnp.asarray(x, dtype) for x in points)))
    shares = jnp.expand_dims(weights, range(1, taus.ndim)) * factor[None] / max(1, tau.size)
    return found[1], taus.ravel(), jnp.broadcast_to(shares, taus.shape).ravel()


def shares_of(tau: Array, shares: Array | None) -> Array | None:
    """The shares of the Gaussians of τ (T,) in one kernel: equal unless they are given; None for a single τ."""
    return jnp.full(tau.shape, 1 / max(1, tau.size), tau.dtype) if shares is None and tau.ndim else shares


def bandwidth_mean(x: Array, tau: Array, shares: Array | None = None) -> Array:
    """The mean over the axis of τ, if there is one; with shares, the sum that they weight."""
    if shares is not None:
        return weighted_sum(shares.astype(x.dtype), x)
    return x.mean(0) if tau.ndim else x


def with_reduction(
    settings: Settings,
    function: Callable,
    points: tuple[Array, ...],
    tau: Array,
    *others: Any,
    shares: Array | None = None,
    weights: tuple[Array, ...] = (),
    pulls: bool = True,
    second_order: bool = False,
    one_sign: bool = False,
) -> Any:
    """function(reduction, points, tau, *others), with a `Reduction` for near points of Gaussians, or for any points.

    For `pulls`, pairs of points with these weights must be far enough apart; for `second_order`, points must be
    nearer. `one_sign`: whether the weights that the function gives to the reduction are known to have one sign. With
    `shares` (T,) the Gaussians of τ (T,) are one kernel, and the function gets its τ, which is one.
    """

    def near(points: tuple[Array, ...], *operands: Any) -> Any:
        c = center(jnp.concatenate(points, -2), takes_half(settings))
        return of_kernel(Reduction(settings, c), points, *operands)

    def anywhere(*operands: Any) -> Any:
        return of_kernel(Reduction(settings, one_sign=one_sign), *operands)

    def of_kernel(reduction: Reduction, points: tuple[Array, ...], tau: Array, shares: Array | None, *others: Any):
        if shares is None:
            return function(reduction, points, tau, *others)
        return function(replace(reduction, gaussians=(tau, shares)), points, jnp.ones_like(tau[:1]), *others)

    if settings.kernel != GAUSS:
        return anywhere(points, tau, shares, *others)
    every = jnp.concatenate(points, -2)
    values = jnp.concatenate(weights, -2) if weights else jnp.ones_like(every[..., :1])
    is_near = are_near(without_mesh(settings), every, every, values, tau, pulls=pulls, second_order=second_order)
    return near_or_anywhere(is_near, near, anywhere, points, tau, shares, *others)
