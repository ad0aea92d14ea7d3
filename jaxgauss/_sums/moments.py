"""What the kernel methods are made of: sums and slopes from one call, and the way out where points lie too far."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._arrays.places import vary_alike, whole
from .._arrays.points import center
from .._checks.settings import Settings, working_dtype
from .._engines.dispatch import within_reach
from .._engines.plan import takes_half
from .gauss_sum import _gauss_sum
from .reverse_only import reverse_only
from .sharded import added, alone, everywhere, first_rows, over_mesh
from .wide import STRICTER, reaching


class Moments(NamedTuple):
    """Gauss sums at M queries over N keys.

    Attributes:
        mass: Σ_n Φ w_n.
        slopes: Σ_n Φ (u_n + w_n (k_n - q_m)): with u = 0, the gradient of the mass at the query over τ.
        sums: Σ_n Φ v_n.
        spread: Σ_mn c_m w_n Φ ‖k_n - q_m‖², but for terms that vanish when the rows of a symmetric form are added up.
    """

    mass: Float[Array, "*batch m 1"]
    slopes: Float[Array, "*batch m d"]
    sums: Float[Array, "*batch m c"]
    spread: Float[Array, "*batch"] | float = 0.0


@dataclass(frozen=True)
class Reduction:
    """`Moments` from weights w (…, N, 1), values v (…, N, C), shifts u (…, N, D) and c (…, M, 1), in one call.

    C = 0 without values. Without `slopes` they have no columns; without c, `spread`, there is none.
    All about one center of the points, over the mesh of the settings if there is one.
    """

    settings: Settings
    center: Array

    def __call__(
        self,
        queries: Array,
        keys: Array,
        weights: Array,
        tau: Array,
        values: Array | None = None,
        *,
        shifts: Array | None = None,
        slopes: bool = True,
        spread: Array | None = None,
    ) -> Moments:
        """All of them."""
        whole, rows, columns = (self.center, tau), (queries, spread), (keys, weights, values, shifts)
        if self.settings.mesh is None:
            return self._moments(slopes, *whole, *rows, *columns)

        def local(*operands: Any) -> list[Any]:
            found = self._moments(slopes, *operands)
            own = None if spread is None else jnp.asarray(found.spread)[..., None, None]
            return added(self.settings, [*found[:3], own])

        *sums, own = over_mesh(self.settings, local, whole, rows, columns)
        mass, slope, others = (first_rows(self.settings, x, queries.shape[-2]) for x in sums)
        return Moments(mass, slope, others, 0.0 if own is None else own.sum((-2, -1)))

    def _moments(
        self, with_slopes: bool, c: Array, tau: Array, queries: Array, spread: Array | None, keys: Array, *columns: Any
    ) -> Moments:
        """One sum of D + 1 + C channels on each device: Σ Φ (u + w (k - c)) - (q - c) Σ Φ w."""
        weights, values, shifts = columns
        q, k = queries - c, keys - c
        dim = k.shape[-1] if with_slopes else 0
        firsts = weights * k if shifts is None else shifts + weights * k
        total = _gauss_sum(alone(self.settings), q, k, _side_by_side([firsts[..., :dim], weights, values]), tau)
        first, mass, sums = total[..., :dim], total[..., dim : dim + 1], total[..., dim + 1 :]
        found = Moments(mass, first - q[..., :dim] * mass, sums)
        if spread is None:
            return found
        # as Σ_mn c_m w_n Φ (k_n - q_m) = 0
        return found._replace(spread=-2 * (spread * q * found.slopes).sum((-2, -1)))


def prepare(settings: Settings, tau: Any, *arrays: Any) -> tuple[Array, ...]:
    """τ (*bandwidths) and the arrays in the working dtype, varying alike; with an axis for the bandwidths, if any."""
    dtype = working_dtype(settings.dtype)
    (tau,) = whole(jnp.asarray(tau, dtype))
    operands = vary_alike(tau, *(jnp.asarray(x, dtype) for x in arrays))
    tau, *given = reverse_only(settings.function, *operands)
    given = everywhere(settings, *given)
    return tau, *(jnp.expand_dims(x, range(tau.ndim)) for x in given)


def by_reach(settings: Settings, function: Callable, points: tuple[Array, ...], tau: Array, *others: Any) -> Any:
    """function(reduction, points, tau, *others), in the precision that reaches the points: see `reaching`."""

    def about_center(inside: Settings, points: tuple[Array, ...], tau: Array, *others: Any) -> Any:
        c = center(jnp.concatenate(points, -2), takes_half(inside))
        reduction = Reduction(replace(inside, guarded=False, centered=True), c)
        return function(reduction, points, tau, *others)

    every = jnp.concatenate(points, -2)
    within = within_reach(
        alone(settings), every[..., :1, :], every, every, tau * STRICTER, each_tau=tau.ndim == 1 and tau.size > 1
    )
    return reaching(settings, about_center, within, points, tau, *others)


def _side_by_side(columns: list[Array | None]) -> Array:
    """One array of all that is there."""
    there = [x for x in columns if x is not None]
    batch = jnp.broadcast_shapes(*(x.shape[:-1] for x in there))
    return jnp.concatenate([jnp.broadcast_to(x, (*batch, x.shape[-1])) for x in there], -1)
