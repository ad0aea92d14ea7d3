"""Sliced: kernel sums in any dimension in O(M + N), as a named approximation by random directions."""

import functools
import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from ..._arrays.batches import over_leading_axes
from ..._arrays.hidden import without_hidden
from ..._arrays.points import by_point, for_sums, scaled_points
from ..._arrays.tracing import own_arrays
from ..._calls import readable
from ..._kernels.kernels import GAUSS, Kernel
from ..._kernels.mixtures import Mixture, mixture
from ..._kernels.profiles import Energy
from ..engine import Engine, Problem
from ..request import PairSums, Request, joined
from ..scopes import scope
from .directions import Directions, random_directions
from .distances import distance_sums
from .sums import wave_sums, wave_values

FINEST = 1e-6  # the error of a mixture of Gaussians, relative to κ(0)
OF_GAUSS = Mixture((1.0,), (1.0,), 0.0)
NANOSECONDS = 1.4  # of a point and a wave, on two cores
GROUPS = 8  # of directions, whose sums tell the error


@readable
@dataclass(frozen=True, repr=False)
class Sliced(Engine):
    """Kernel sums in any dimension in O((M + N) P), P the directions: an approximation, which "auto" never takes.

    κ(‖x - y‖²) is the mean of one-dimensional kernels of ⟨ξ, x - y⟩ over random directions ξ, each a wave or a few. The
    result is the exact sum of another kernel, whose mean over random keys is κ: losses and gradients are unbiased. Its
    error is at most about Σ|v| / √P in L2, in every dimension and wherever points lie; often it is a third of that, for
    "energy" it is relative to Σ‖q - k‖|v|. So it serves where an error of a few percent does: flows and training with a
    fresh key a step, tests, sketches. Small sums of many terms have no digits. docs/any_dimension.md shows errors.

    It takes the kernels that are mixtures of Gaussians, and "energy", by sorting. Functions that take it: `gauss_sum`,
    `kernel_sum`, `gauss_sum_sharded`, `mmd_squared`, `embedding_norm_squared`, `mmd_witness`, `mmd_flow_velocity`,
    `svgd_direction`, `energy_distance`, `mmd_test`, `hsic_test`, `fourier_sketch`, `explain` and `estimate_error`,
    which tells the error without an exact sum.

    Args:
        directions: P.
        frequencies: waves along each direction. Several err less, but for the same time not less than as many times the
            directions do, except in hundreds of dimensions for kernels with heavy tails.
        rng_key: random key of the directions. The same key gives the same sums.
        precision: float32 or float64; None: the dtype of the points.

    Raises:
        ValueError, TypeError: a number is not a positive integer, or there is no random key.

    Example:
        >>> import jax, jax.numpy as jnp, jaxgauss
        >>> points = jax.random.normal(jax.random.key(0), (1000, 20)) / 20**0.5
        >>> engine = jaxgauss.Sliced(directions=1024, rng_key=jax.random.key(1))
        >>> sliced, exact = (jaxgauss.gauss_sum(points, points, points[:, 0] ** 2, engine=x) for x in (engine, "auto"))
        >>> bool(jnp.linalg.norm(sliced - exact) < 0.02 * jnp.linalg.norm(exact))
        True

    References:
        Hertrich, "Fast Kernel Summation in High Dimensions via Slicing and Fourier Transforms", 2024, arXiv:2401.08260.
        Hertrich, Jahn & Quellmalz, "Fast Summation of Radial Kernels via QMC Slicing", 2024, arXiv:2410.01316.
    """

    directions: int = 256
    frequencies: int = 1
    rng_key: Key[Array, ""] | None = field(default=None, kw_only=True, compare=False, repr=False)

    plain: ClassVar[bool] = True
    only_for: ClassVar[tuple[str, ...]] = (
        *("gauss_sum", "kernel_sum", "gauss_sum_sharded", "kernel_sum_sharded", "mmd_squared"),
        *("embedding_norm_squared", "mmd_witness", "mmd_flow_velocity", "svgd_direction", "energy_distance"),
        *("mmd_test", "hsic_test", "explain", "estimate_error", "fourier_sketch", "dask.fourier_sketch"),
        "gauss_sum_streamed",
    )

    def __post_init__(self) -> None:
        """Raise ValueError unless the numbers are positive integers."""
        super().__post_init__()
        for name in ("directions", "frequencies"):
            given = getattr(self, name)
            if isinstance(given, bool) or not isinstance(given, int | np.integer) or given < 1:
                fix = f"Leave it out, for {type(self).__dataclass_fields__[name].default}."
                raise ValueError(f"`jaxgauss.Sliced`: `{name}` must be a positive integer; got {given!r}. {fix}")

    def __hash__(self) -> int:
        """TypeError with a random key: as a static argument it would be a constant of the program."""
        if self.rng_key is not None:
            fix = "Pass it, or the engine, as an argument of the jitted function that is not static."
            raise TypeError(f"`jaxgauss.Sliced`: `rng_key` must not be hashed; got {self.rng_key}. {fix}")
        return hash((self.directions, self.frequencies, self.precision))

    def without_arrays(self) -> tuple[Engine, Any]:
        """The engine without its random key, and that; TypeError without one."""
        if self.rng_key is None:
            if own_arrays() is None:
                fix = "Pass rng_key=jax.random.key(0), for example; in training a new one for each step."
                raise TypeError(f"`jaxgauss.Sliced`: `rng_key` must be a random key; got None. {fix}")
            return self, None
        dtype, shape = getattr(self.rng_key, "dtype", None), np.shape(self.rng_key)
        is_key = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key) and shape == ()
        if not is_key and not (dtype == np.uint32 and len(shape) == 1):
            given = type(self.rng_key).__name__ if dtype is None else f"{dtype} {shape}"
            fix = "Pass jax.random.key(0), for example, and several by jax.vmap."
            raise TypeError(f"`jaxgauss.Sliced`: `rng_key` must be one random key; got {given}. {fix}")
        return replace(self, rng_key=None), self.rng_key

    def refuses(self, problem: Problem) -> str | None:
        """Logarithms, and kernels that are neither mixtures of Gaussians nor distances."""
        if problem.logs:
            return "sums over random directions have no logarithms: small ones have no digits"
        if self.mixture_of(problem.kernel) is None and not is_distance(problem.kernel):
            return f"{problem.kernel!r} is no known mixture of Gaussians"
        return super().refuses(problem)

    def cost(self, problem: Problem) -> float:
        """That of all waves at as many queries as keys."""
        return 2e-6 * NANOSECONDS * math.sqrt(problem.pairs) * self.directions * self.frequencies

    def note(self, problem: Problem) -> str:
        """The bound of the error."""
        return f"an error of at most about {1 / math.sqrt(self.directions):.2g} Σ|v|"

    @staticmethod
    def mixture_of(kernel: Kernel) -> Mixture | None:
        """The Gaussians that stand for a kernel."""
        return OF_GAUSS if kernel == GAUSS else None if is_distance(kernel) else mixture(kernel, FINEST)

    def drawn(self, rng_key: Any, kernel: Kernel, dim: int, dtype: Any) -> Directions:
        """The directions of a random key."""
        of = self.mixture_of(kernel) or OF_GAUSS
        return random_directions(rng_key, of, self.directions, self.frequencies, dim, dtype)

    def seen(self, plan: Any, kernel: Kernel, *operands: Array) -> Any:
        """The plan, with what the directions tell of the error."""
        error, _, _ = self.error_of(kernel, *operands)
        return replace(plan, reason=f"{plan.reason}; the directions differ by {float(error):.2g} of the sums, in L2")

    def sums(self, plan: Any, near: bool | None, *operands: Array, moments: int = 0, with_log: bool = False) -> Any:
        """Gauss sums."""
        return self._sums(GAUSS, *operands)

    def pair_sums(self, plan: Any, request: Request, *operands: Array) -> PairSums:
        """Sums, and derivatives of sums as pulls and spread: those of the kernel that the directions make."""
        queries, keys, values, tau, g, w = operands
        batch = jnp.broadcast_shapes(*(x.shape[:-2] for x in (by_point(tau, queries), queries, keys, values, g, w)))
        queries = jnp.broadcast_to(queries, (*batch, *queries.shape[-2:]))
        sums = [self._sums(kernel, queries, keys, v, tau) for kernel, v in request.sums.by_kernel(values)]
        if request.others:
            sums = [s - k.at_zero * v for s, (k, v) in zip(sums, request.sums.by_kernel(values), strict=True)]
        pulls, spread = jnp.zeros_like(queries), queries[..., :0]
        if not request.pulls.kernels:
            return PairSums(joined(sums, queries), queries[..., :0], spread)
        weights = jnp.broadcast_to(g, (*batch, *g.shape[-2:]))
        for kernel, own, of_rows in request.pulls.by_kernel(w, weights):
            of_kernel = functools.partial(self._sums, kernel, keys=keys, values=own)
            pulls += jax.vjp(functools.partial(of_kernel, tau=tau), queries)[1](of_rows)[0]
            if request.spread:
                part = _spread(functools.partial(of_kernel, queries), tau, of_rows)
                spread = spread + part if spread.size else part
        pulls /= by_point(tau, queries)
        return PairSums(joined(sums, queries), pulls, spread)

    def _sums(self, kernel: Kernel, queries: Array, keys: Array, values: Array, tau: Array) -> Array:
        """Σ_n κ v_n of operands of equal rank."""
        if not values.shape[-1]:
            batch = jnp.broadcast_shapes(*(x.shape[:-2] for x in (by_point(tau, queries), queries, keys, values)))
            return jnp.zeros((*batch, queries.shape[-2], 0), values.dtype)
        keys, unit = without_hidden(keys, values), for_sums(values, keys.shape[-2])
        of = self.drawn(own_arrays(), kernel, queries.shape[-1], queries.dtype)
        points = *scaled_points(queries, keys, tau, base_2=False), unit * values
        with scope("engine", self.name):
            return _of_distances(of, *points) / -unit if is_distance(kernel) else _of_waves(of, *points) / unit

    def error_of(self, kernel: Kernel, *operands: Array) -> tuple[Array, ...]:
        """The relative error of the sums in L2, its standard error, and the largest error relative to Σ|v|.

        From the sums of groups of directions. Groups of one orthogonal basis differ more than independent ones.
        """
        (queries, keys, values, tau), groups = operands, min(GROUPS, self.directions)
        if groups < 2:
            raise ValueError(
                "`jaxgauss.Sliced`: `directions` must be at least 2 to tell an error; got 1. 256 is a start."
            )
        of = self.drawn(own_arrays(), kernel, queries.shape[-1], queries.dtype)
        num = self.directions // groups
        parts = (x[: groups * num].reshape(groups, num, -1) for x in (of.directions, of.frequencies.T))
        of = Directions(next(parts), jnp.moveaxis(next(parts), 1, 2))
        points = *scaled_points(queries, keys, tau, base_2=False), values
        summed = _of_distances if is_distance(kernel) else _of_waves
        found = jax.vmap(lambda of: summed(of, *points))(of)
        squared = jnp.square(found - found.mean(0, keepdims=True)).sum(0) / (groups * (groups - 1))
        tiny = jnp.finfo(found.dtype).tiny
        relative = jnp.sqrt(squared.sum() / jnp.maximum(jnp.square(found.mean(0)).sum(), tiny))
        sizes = jnp.maximum(jnp.abs(values).sum(-2, keepdims=True), tiny)
        return relative, relative / math.sqrt(2 * (groups - 1)), (jnp.sqrt(squared) / sizes).max()


def is_distance(kernel: Kernel) -> bool:
    """Whether the kernel is -r."""
    return isinstance(kernel.profile, Energy)


def _spread(of_tau: Any, tau: Array, g: Array) -> Array:
    """Σ_n W ‖k_n - q_m‖² = -2 ∂s_m/∂τ, or its part from each coordinate that has its own τ."""

    def along(direction: Array) -> Array:
        return jax.jvp(lambda t: of_tau(tau=t), (tau,), (direction,))[1]

    if tau.ndim < g.ndim - 1:
        return -2 * (g * along(jnp.ones_like(tau))).sum(-1, keepdims=True)
    directions = jnp.broadcast_to(
        jnp.expand_dims(jnp.eye(tau.shape[-1], dtype=tau.dtype), range(1, tau.ndim)), (tau.shape[-1], *tau.shape)
    )
    return -2 * jnp.moveaxis((g[None] * jax.vmap(along)(directions)).sum(-1), 0, -1)


@over_leading_axes(2, 2, 2)
def _of_waves(of: Directions, queries: Array, keys: Array, values: Array) -> Array:
    return wave_values(of, queries, wave_sums(of, keys, values) / of.frequencies.size)


@over_leading_axes(2, 2, 2)
def _of_distances(of: Directions, queries: Array, keys: Array, values: Array) -> Array:
    return distance_sums(of.directions, queries, keys, values)


jax.tree_util.register_dataclass(Sliced, ["rng_key"], ["directions", "frequencies", "precision"])
