"""Whether points are near: a sum then takes products about one center, otherwise tiles of sorted points or waves.

Outside of `jit` many points are `examined` beforehand, and the program has one branch; else it has both.

On CUDA, where nothing may wait for the device, the plan decides: attention takes all points as near, and a second
kernel sums again where the first is not accurate enough; XLA takes differences of coordinates.
"""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap

from .._arrays.devices import expected_platform, platforms, vary_like
from .._arrays.points import Scaled, center_indices, may_overflow
from .._arrays.shapes import are_known
from .._kernels.kernels import GAUSS, Kernel, evaluated
from .branches import but_not, by_platform
from .clusters.sorted_tiles import FEW, mean_share
from .engines import exact_plan_of, plan_there
from .fourier.boxes import boxes
from .fourier.cost import Sizes, are_for_waves, most_blocks, waves_pay
from .fourier.engine import second_time
from .fourier.frequencies import blocks_of, tolerance_of, with_blocks
from .plan import NEAR, STRICTER, Plan
from .products.pair_sums import APART, separation_of, within
from .settings import Settings, working_dtype

# A program that examines the same points finds the same. If it examines others, such as part of a batch, the answer
# here is used only if R² differs from its limit, and the separation of pairs from its own, by such a factor: about
# another center among the points, R² is up to four times as large.
SURE, SURE_APART = 4, 2
SOME = 2**15  # points whose tiles are looked at
_noted: ContextVar["list[Shown] | None"] = ContextVar("_noted", default=None)


class OfEach(NamedTuple):
    """The bandwidths of two variables, whose coordinates are those of one point."""

    first: Any
    second: Any


def are_near(
    settings: Settings, *operands: jax.Array, pulls: bool = False, second_order: bool = False, logs: bool = False
) -> jax.Array | bool:
    """Whether queries, keys, values and τ are summed as near points, by their plan; one boolean, also under `vmap`.

    `pulls`: near enough for pulls from moments; `second_order`: for moments of second order. False where waves sum the
    points; waves of `logs` are in float64.
    """
    known = known_near(settings, *operands, pulls=pulls, logs=logs)
    return _look(settings, pulls, second_order, logs)(*operands) if known is None else known


def known_near(settings: Settings, *operands: jax.Array, pulls: bool = False, logs: bool = False) -> bool | None:
    """`are_near` where the settings or the shapes alone decide it; else None."""
    if settings.by_products is not None or len(platforms()) > 1:
        return settings.by_products
    plan, precision = plan_there(settings, platforms()[0], operands), "float64" if logs else None
    reach = _reach(plan, pulls)
    if math.isinf(reach):
        return reach > 0
    return False if are_for_waves(plan, *operands, precision=precision, pulls=pulls, known=True) is True else None


def _reach(plan: Plan, pulls: bool) -> float:
    """The plan's reach. A sum in half precision has a guard; its pulls are moments, in float32 where the guard acts."""
    guarded = plan.platform == "cpu" and plan.precision not in NEAR and plan.near is None
    return NEAR["float32"] if guarded and pulls else plan.reach


@functools.cache
def _look(*options: Any) -> Callable[..., jax.Array]:
    return unbatched(functools.partial(by_platform, _are_near, options))


def _are_near(
    settings: Settings, pulls: bool, second_order: bool, logs: bool, platform: str, *operands: jax.Array
) -> jax.Array:
    queries, keys, values, tau = operands
    plan = plan_there(settings, platform, operands)
    reach, slope = _reach(plan, pulls) / (STRICTER if second_order else 1), settings.kernel.slope if pulls else None
    is_near = within(reach, queries, keys, tau, slope, jnp.abs(values).max(-1, keepdims=True, initial=0))
    is_near = but_not(is_near, are_for_waves(plan, *operands, precision="float64" if logs else None, pulls=pulls))
    return vary_like(jnp.full((), is_near), [queries, keys, tau]) if isinstance(is_near, bool) else is_near


def unbatched(look: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """`look`, which under `vmap` gets the whole batch, so that what depends on its boolean stays one conditional."""

    @custom_vmap
    def looked(*operands: jax.Array) -> jax.Array:
        return look(*operands)

    @looked.def_vmap
    def _(axis_size: int, is_mapped: Sequence[bool], *operands: jax.Array):
        return looked(*(x if mapped else x[None] for x, mapped in zip(operands, is_mapped, strict=True))), False

    return lambda *operands: looked(*(lax.stop_gradient(x) for x in operands))


@unbatched
def tiles_are_near(queries: jax.Array, keys: jax.Array, tau: jax.Array) -> Any:
    """Whether points are near enough for derivatives of tiles from products, in their own dtype."""
    return within(NEAR[queries.dtype.name] / STRICTER, queries, keys, tau, GAUSS.slope)


def examined(
    settings: Settings,
    tau: Any,
    queries: Any,
    keys: Any = None,
    values: Any = None,
    *,
    pulls: bool = False,
    second_order: bool | None = None,
    logs: bool = False,
) -> Settings:
    """The settings, with `near` and `waves` found from arrays of points on a CPU, outside of `jit` and `vmap`.

    Several arrays are one set of points or, if τ is `OfEach`, coordinates of the same points. Without keys, the queries
    are the keys. `pulls`: whether the call forms pulls, as it does when differentiated. `second_order`: whether it
    forms moments of second order; None: if τ is differentiated. `logs`: whether it forms logarithms, in float64. Few
    points are not examined: that would take as long as their sum, and both ways compile quickly. On CUDA points are
    examined for "fourier" alone, see `with_blocks`.
    """
    small = settings.engine.name != "fourier" and not isinstance(queries, tuple) and _are_few(queries, keys)
    is_gauss, kinked = settings.kernel == GAUSS, settings.kernel.kinked
    if settings.engine.anywhere or (kinked and not logs) or small:
        return settings
    given = tau, queries, keys, values
    primals: Any = jax.tree.map(_differentiated, given)
    arrays = jax.tree.leaves(primals)
    if not all(map(_is_here, arrays)):
        return settings
    if (platform := expected_platform(*arrays)) != "cpu":
        return (
            with_blocks(settings, *primals[:3])
            if platform == "cuda" and settings.engine.name == "fourier"
            else settings
        )
    pulls = not kinked and (pulls or is_differentiated(*given))
    if second_order is None:
        second_order = settings.forward_mode or is_differentiated(tau)
    tau, queries, keys, values = primals
    if each := isinstance(tau, OfEach):
        if any(np.size(t) > 1 for t in tau):
            return settings
        tau = np.concatenate([np.full(x.shape[-1], t, "float32") for t, x in zip(tau, queries, strict=True)])
        queries = np.concatenate([np.asarray(x, "float32") for x in queries], -1)
    queries, values = _as_one(queries), None if values is None else _as_one(values)
    keys = queries if keys is None else _as_one(keys)
    if _are_few(queries, keys):
        return settings
    is_same = (is_gauss or logs) and settings.mesh is None and queries.ndim == keys.ndim == 2
    strict = (second_order and not logs) if is_gauss else (logs and not kinked)
    strictly = STRICTER if is_same and strict else 1
    limit, seen = NEAR[working_dtype(settings.dtype).name] / strictly, math.inf
    sure_near = 1 if is_same else SURE
    sure_far, sure_apart = (1, 1) if is_same and not each else (SURE, SURE_APART)
    with np.errstate(all="ignore"):
        a, b = _about_a_center(np.sqrt(tau)[..., None, :] if each else np.sqrt(tau)[..., None, None], queries, keys)
        if (noted := _noted.get()) is not None:
            noted.append(Shown(settings, logs, a.points, b.points))
        squared = max(np.fmax.reduce(x.norms, None) for x in (a, b))
        if pulls and squared <= limit * sure_far:
            if values is not None:
                values = np.abs(values[:, None] if values.ndim == 1 else values).max(-1, keepdims=True, initial=0)
            slope = functools.partial(_slope_of, settings.kernel)
            seen = separation_of(np, slope, a, b, values, each) / APART
        waves = _summed_by_waves(settings, logs, pulls, primals, values, a, b)
        large = values is not None and may_overflow(np, values, queries.shape[-2], keys.shape[-2])
        large = large or np.isnan(b.norms).any()
    if squared > limit * sure_far or seen < 1 / sure_apart or large:
        return _with(settings, False, waves)
    return _with(settings, True if squared <= limit / sure_near and seen >= sure_apart else None, waves)


def _are_few(queries: Any, keys: Any) -> bool:
    """Whether all points have so few pairs that a program with both ways compiles quickly."""
    shapes = [x.shape for x in (queries, queries if keys is None else keys)]
    return are_known(*sum(shapes, ())) and sum(math.prod(x[:-1]) for x in shapes) ** 2 * shapes[0][-1] <= 4 * FEW[True]


def _summed_by_waves(
    settings: Settings, logs: bool, pulls: bool, primals: Any, values: Any, a: Scaled, b: Scaled
) -> bool | None:
    """Whether waves sum Gaussians of these points, even of the smallest of several arrays; None if unknown."""
    if settings.kernel != GAUSS or not settings.automatic:
        return False
    own = working_dtype(settings.dtype).name
    if isinstance(primals[0], OfEach):  # two variables have sums of their own, and one of both
        parts, channels = np.split(a.points, [primals[1][0].shape[-1]], -1), 1 if values is None else 2
        found = {_pay(own, pulls, channels, x, x) for x in (a.points, *parts)}
        return found.pop() if len(found) == 1 else None
    if np.size(primals[0]) > 1:
        return None
    channels = values.shape[-1] if np.ndim(values) > 1 else 1
    nums = (min(map(len, x)) if isinstance(x, tuple) else None for x in primals[1:3])
    return _pay("float64" if logs else own, pulls, channels, a.points, b.points, *nums)


def _pay(
    precision: str, pulls: bool, channels: int, a: Any, b: Any, num_queries: Any = None, num_keys: Any = None
) -> bool:
    """Whether waves sum scaled points, or the smallest of several arrays of them."""
    sizes = Sizes(num_queries or a.shape[-2], num_keys or b.shape[-2], a.shape[-1], channels, pulls=pulls)
    most = most_blocks(precision, sizes)
    if not most:
        return False
    ends = boxes(np, *(x.reshape(-1, sizes.dim) for x in (a, b)))
    does, around = waves_pay(np, most, precision, NEAR[precision], sizes, ends, np.ones_like(ends[0, 0]))
    if noted := _noted.get():
        noted[-1].extent = around.extent
    return bool(does)


@functools.lru_cache(4096)
def _with(settings: Settings, near: bool | None, waves: bool | None) -> Settings:
    return replace(settings, near=near, waves=waves)


def _slope_of(kernel: Kernel, u: np.ndarray) -> np.ndarray:
    if kernel == GAUSS:
        return np.exp(u / -2)
    flat = np.ravel(u)
    size = 1 << (flat.size - 1).bit_length()  # few sizes are compiled
    return evaluated(kernel.slope, np.resize(flat, size))[: flat.size].reshape(u.shape)


def is_differentiated(*arrays: Any) -> bool:
    """Whether one of the arrays, or of trees of them, is differentiated outside of `jit`."""
    return any(x is not _differentiated(x) for x in jax.tree.leaves(arrays))


def _differentiated(x: Any) -> Any:
    """The array that is differentiated outside of `jit`, or x itself."""
    while isinstance(x, jax.core.Tracer) and hasattr(x, "primal"):
        x = x.primal
    return x


def _is_here(x: Any) -> bool:
    is_traced = isinstance(x, jax.core.Tracer) or not getattr(x, "is_fully_addressable", True)
    return not is_traced and 0 not in np.shape(x)


def _as_one(x: Any) -> Any:
    """One array, or several concatenated, as a NumPy array of at least float32."""
    arrays = [np.asarray(y) for y in (x if isinstance(x, tuple) else (x,))]
    arrays = [y.astype("float32") if y.dtype.itemsize <= 2 else y for y in arrays]
    return np.concatenate(arrays) if len(arrays) > 1 else arrays[0]


def _about_a_center(scale: Any, queries: Any, keys: Any) -> list[Scaled]:
    """Queries and keys about a center, in bandwidths, with their squared norms."""
    some = keys.reshape(-1, keys.shape[-1])
    some = some[list(center_indices(len(some)))]
    center = np.add.reduce(some) / np.float32(len(some))
    points = [((x - center) * scale).astype(keys.dtype) for x in ((queries, keys) if queries is not keys else (keys,))]
    found = [Scaled(x, np.einsum("...d,...d->...", x, x)[..., None]) for x in points]
    return found if len(found) > 1 else found * 2


@dataclass
class Shown:
    """What points that are examined show, for `explain`; they are in bandwidths, and of a batch the first are taken.

    Attributes:
        settings: of the call.
        logs: whether it forms logarithms.
        queries, keys: the points.
        extent: of the box in which waves may sum them.
    """

    settings: Settings
    logs: bool
    queries: Any
    keys: Any
    extent: Any = None

    def are(self, sizes: Sizes) -> bool:
        """Whether there are as many points of as many dimensions."""
        return (*(len(x) for x in self._points), self.keys.shape[-1]) == sizes[:3]

    @functools.cached_property
    def blocks(self) -> Any:
        """Of waves of each coordinate, if they may sum the points."""
        extent = self.extent
        if self.settings.engine.name == "fourier":
            extent = np.maximum(np.ptp(np.concatenate(self._points), 0), 1e-30)
        if extent is None:
            return None
        return blocks_of(np, extent, self.settings.tolerance or tolerance_of(np, self.settings.precision, extent))

    @functools.cached_property
    def share(self) -> float:
        """Of the tiles of sorted points, those that are not skipped."""
        q, k = (jnp.asarray(x[:: -(-len(x) // SOME)]) for x in self._points)
        return float(mean_share(self.settings.kernel, q, k, jnp.ones((), q.dtype)))

    def again(self, sizes: Sizes) -> tuple[float, float]:
        """The share of the queries that waves leave in doubt, and nanoseconds in which these are summed again."""
        if self.extent is None or self.settings.engine.name == "fourier":
            return 0.0, 0.0
        q, k = map(jnp.asarray, self._points)
        plan = exact_plan_of(self.settings, "cpu", (q, k, k, jnp.ones((), q.dtype)))
        return second_time(plan, self.logs, sizes, *self._points)

    @property
    def _points(self) -> list[np.ndarray]:
        return [x.reshape(-1, *x.shape[-2:])[0] for x in (self.queries, self.keys)]


@contextmanager
def noting() -> Iterator[list[Shown]]:
    """What is found of points that are examined in the context, for `explain`."""
    token = _noted.set(found := [])
    try:
        yield found
    finally:
        _noted.reset(token)
