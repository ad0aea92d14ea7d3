"""Whether points are near: a sum then takes products about one center, otherwise tiles of sorted points or waves.

Outside of `jit` many points are examined beforehand, and the program has only the way that they need; else it has both.
On CUDA, where nothing may wait for the device, the plan decides: attention takes all points as near, and sums again
behind a gate where half precision is not enough; XLA takes differences of coordinates.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap

from .._arrays.devices import expected_platform, platforms, vary_like
from .._arrays.points import BASE_2, Scaled, are_within, center_indices, of_coordinates, scaled_points, with_norms
from .._arrays.shapes import are_known
from .._checks.settings import Settings, working_dtype
from .._kernels.kernels import GAUSS, Kernel
from .anywhere import are_few
from .boxes import boxes
from .few_dimensions import Sizes, by_waves, most_blocks, pays
from .lowering import by_platform, plan_there
from .marks import note
from .nodes import with_blocks
from .plan import NEAR, STRICTER
from .products import APART, powers, separation

# The answer is sure if R² differs from its limit, and the separation of pairs from its own, by such a factor. About
# another center among the points, R² is up to four times as large; below a quarter of the limit all moments are
# accurate.
SURE, SURE_APART = 4, 2
LEAST_ROWS, MOST_ROWS = 8, 64  # queries from which the separation is estimated


def examined(
    settings: Settings,
    tau: Any,
    queries: Any,
    keys: Any = None,
    values: Any = None,
    *,
    pulls: bool = False,
    logs: bool = False,
) -> Settings:
    """The settings, with `near` and `waves` found from arrays of points on a CPU, outside of `jit` and `vmap`.

    Several arrays are one set of points or, if τ is a tuple, coordinates of the same points. Without keys, the queries
    are the keys. `pulls`: whether the call forms pulls, as it does when differentiated. `logs`: whether it forms
    logarithms, in float64. Few points are not examined: that would take as long as their sum, and both ways compile
    quickly. On CUDA points are examined for "fourier" alone, see `with_blocks`.
    """
    small = settings.method != "fourier" and not isinstance(queries, tuple) and are_few(queries, keys)
    if settings.method == "differences" or settings.kernel.kinked or small:
        return settings
    given = tau, queries, keys, values
    primals: Any = jax.tree.map(_differentiated, given)
    arrays = jax.tree.leaves(primals)
    if not all(map(_is_here, arrays)):
        return settings
    if (platform := expected_platform(*arrays)) != "cpu":
        return with_blocks(settings, *primals[:3]) if platform == "cuda" and settings.method == "fourier" else settings
    pulls = pulls or any(x is not y for x, y in zip(jax.tree.leaves(given), arrays, strict=True))
    tau, queries, keys, values = primals
    if each := isinstance(tau, tuple):
        if any(np.size(t) > 1 for t in tau):
            return settings
        tau = np.concatenate([np.full(x.shape[-1], t, "float32") for t, x in zip(tau, queries, strict=True)])
        queries = np.concatenate([np.asarray(x, "float32") for x in queries], -1)
    queries, values = _as_one(queries), None if values is None else _as_one(values)
    keys = queries if keys is None else _as_one(keys)
    if are_few(queries, keys):
        return settings
    limit, seen = NEAR[working_dtype(settings.dtype).name], math.inf
    with np.errstate(all="ignore"):
        a, b = _about_a_center(np.sqrt(tau)[..., None, :] if each else np.sqrt(tau)[..., None, None], queries, keys)
        note("points", (settings, a.points, b.points))
        squared = max(np.fmax.reduce(x.norms, None) for x in (a, b))
        if pulls and squared <= limit * SURE:
            if values is not None:
                values = np.abs(values[:, None] if values.ndim == 1 else values).max(-1, keepdims=True, initial=0)
            slope = functools.partial(_slope_of, settings.kernel)
            seen = separation_of(np, slope, a, b, values, each) / APART
        waves = _are_for_waves(settings, logs, pulls, primals, values, a, b)
    is_near, is_far = squared <= limit / SURE and seen > SURE_APART, squared > limit * SURE or seen < 1 / SURE_APART
    return _with(settings, True if is_near else False if is_far else None, waves)


def _are_for_waves(
    settings: Settings, logs: bool, pulls: bool, primals: Any, values: Any, a: Scaled, b: Scaled
) -> bool | None:
    """Whether waves sum Gaussians of these points, even of the smallest of several arrays; None if that is open."""
    if settings.kernel != GAUSS or settings.method != "auto":
        return False
    if isinstance(primals[0], tuple) or np.size(primals[0]) > 1:
        return None
    precision = "float64" if logs else working_dtype(settings.dtype).name
    channels = values.shape[-1] if np.ndim(values) > 1 else 1
    num_queries, num_keys = (
        min(map(len, x)) if isinstance(x, tuple) else y.points.shape[-2]
        for x, y in zip(primals[1:3], (a, b), strict=True)
    )
    sizes = Sizes(num_queries, num_keys, a.points.shape[-1], channels, pulls=pulls)
    most = most_blocks(precision, sizes)
    if not most:
        return False
    ends = boxes(np, *(x.points.reshape(-1, sizes.dim) for x in (a, b)))
    does, around = pays(np, most, precision, NEAR[precision], sizes, ends, np.ones_like(ends[0, 0]))
    note("extent", around.extent)
    return bool(does)


@functools.lru_cache(4096)
def _with(settings: Settings, near: bool | None, waves: bool | None) -> Settings:
    return replace(settings, near=near, waves=waves)


def _slope_of(kernel: Kernel, u: np.ndarray) -> np.ndarray:
    if kernel == GAUSS:
        return np.exp(u / -2)
    with jax.ensure_compile_time_eval():
        return np.asarray(_evaluated(kernel.slope, u))


_evaluated = jax.jit(lambda kernel, u: kernel(u), static_argnums=0)


def _differentiated(x: Any) -> Any:
    """The array that is differentiated outside of `jit`, or x itself."""
    while isinstance(x, jax.core.Tracer) and hasattr(x, "primal"):
        x = x.primal
    return x


def _is_here(x: Any) -> bool:
    return not isinstance(x, jax.core.Tracer) and getattr(x, "is_fully_addressable", True) and 0 not in np.shape(x)


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


def separation_of(xp: Any, slope: Callable[..., Any], a: Scaled, b: Scaled, weights: Any, each: bool) -> Any:
    """The `separation` of pairs, estimated from some queries: the least of a batch. `xp` is NumPy or JAX."""
    num = a.points.shape[-2]
    if are_known(num):
        rows = min(num, MOST_ROWS, max(LEAST_ROWS, num // MOST_ROWS))
        indices: Any = np.int32(num * (0.618034 * np.arange(1, rows + 1) % 1))  # golden ratio: avoids any period
    else:
        indices = (num * (0.618034 * jnp.arange(1, LEAST_ROWS + 1, dtype="float32") % 1)).astype("int32")
    a = Scaled(a.points[..., indices, :], a.norms[..., indices, :])
    psi = xp.abs(slope(xp.maximum(a.norms + b.norms.mT - 2 * a.points @ b.points.mT, 0)))
    ones = xp.ones_like(b.norms)
    return separation(xp, a, psi @ powers(xp, b, ones if weights is None else xp.abs(weights), each)).min()


def within(
    reach: float,
    queries: jax.Array,
    keys: jax.Array,
    tau: jax.Array,
    slope: Callable[..., Any] | None = None,
    weights: jax.Array | None = None,
) -> jax.Array | bool:
    """Whether R² of the whole batch is at most `reach`: one boolean.

    With a slope ψ, also whether pairs, weighted by ψ and weights of keys (…, N, 1), are far enough apart.
    """
    if math.isinf(reach):
        return reach > 0
    a, b = with_norms(*scaled_points(queries, keys, tau, base_2=False))
    is_near = are_within(reach / BASE_2, a, b)
    if slope is None or 0 in (*queries.shape, *keys.shape):
        return is_near
    return is_near & (separation_of(jnp, slope, a, b, weights, of_coordinates(tau, keys)) >= APART)


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
    chosen, precision = plan_there(settings, platforms()[0], operands), "float64" if logs else None
    if math.isinf(chosen.reach):
        return chosen.reach > 0
    return False if by_waves(chosen, *operands, precision=precision, pulls=pulls, known=True) is True else None


@functools.cache
def _look(*options: Any) -> Callable[..., jax.Array]:
    return _unbatched(functools.partial(by_platform, _are_near, options))


def _are_near(
    settings: Settings, pulls: bool, second_order: bool, logs: bool, platform: str, *operands: jax.Array
) -> jax.Array:
    queries, keys, values, tau = operands
    chosen = plan_there(settings, platform, operands)
    reach, slope = chosen.reach / (STRICTER if second_order else 1), settings.kernel.slope if pulls else None
    is_near = within(reach, queries, keys, tau, slope, jnp.abs(values).max(-1, keepdims=True, initial=0))
    is_near = but_not(is_near, by_waves(chosen, *operands, precision="float64" if logs else None, pulls=pulls))
    return vary_like(jnp.full((), is_near), [queries, keys, tau]) if isinstance(is_near, bool) else is_near


def but_not(is_near: jax.Array | bool, waves: jax.Array | bool) -> jax.Array | bool:
    """Whether points are near and not summed by waves."""
    return (False if waves else is_near) if isinstance(waves, bool) else is_near & ~waves


def _unbatched(look: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """`look`, which under `vmap` gets the whole batch, so that what depends on its boolean stays one conditional."""

    @custom_vmap
    def looked(*operands: jax.Array) -> jax.Array:
        return look(*operands)

    @looked.def_vmap
    def _(axis_size: int, is_mapped: Sequence[bool], *operands: jax.Array):
        return looked(*(x if mapped else x[None] for x, mapped in zip(operands, is_mapped, strict=True))), False

    return lambda *operands: looked(*(lax.stop_gradient(x) for x in operands))


@_unbatched
def tiles_are_near(queries: jax.Array, keys: jax.Array, tau: jax.Array) -> Any:
    """Whether points are near enough for derivatives of tiles from products, in their own dtype."""
    return within(NEAR[queries.dtype.name] / STRICTER, queries, keys, tau, GAUSS.slope)


def one_of_two(is_near: jax.Array | bool, near: Callable, anywhere: Callable, *operands: Any) -> Any:
    """`near(*operands)` if they are near, else `anywhere(*operands)`; each has its own derivatives."""
    if isinstance(is_near, bool):
        return (near if is_near else anywhere)(*operands)
    return lax.cond(is_near, near, anywhere, *operands)


def near_or_anywhere(is_near: jax.Array | bool, near: Callable, anywhere: Callable, *operands: Any) -> Any:
    """`one_of_two`, with the derivatives of `anywhere` for both."""
    if is_near is False:
        return anywhere(*operands)
    return _with_derivatives(near, anywhere, None if is_near is True else is_near, *operands)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _with_derivatives(near: Callable, anywhere: Callable, is_near: jax.Array | None, *operands: Any) -> Any:
    return near(*operands) if is_near is None else one_of_two(is_near, near, anywhere, *operands)


def _backward(near: Callable, anywhere: Callable, operands: tuple[Any, ...], cotangents: Any) -> tuple[Any, ...]:
    return None, *jax.vjp(anywhere, *operands)[1](cotangents)


_with_derivatives.defvjp(lambda near, anywhere, *args: (_with_derivatives(near, anywhere, *args), args[1:]), _backward)
