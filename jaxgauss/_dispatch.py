"""Where a sum is computed: PyTorch's attention kernel or XLA, by platform. Beneath the derivative rules.

Mapped axes of `vmap` become leading axes here, of length 1 where an operand is not mapped: the reductions see the
whole batch, and share what is shared.
"""

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from . import _bridge
from ._checks import Settings
from ._dense import blocked_pullback, blocked_sum
from ._plan import Plan, plan, platforms, sizes
from ._shards import vary_like


def kernel_sum(settings: Settings, queries: jax.Array, keys: jax.Array, values: jax.Array, tau: jax.Array) -> jax.Array:
    """Σ_n Φ_τ(q_m, k_n) v_n of operands of equal rank in float32 or float64."""
    (total,) = _kernel_sum(settings)(queries, keys, values, tau)
    return total


def kernel_pullback(settings: Settings, *operands: jax.Array) -> tuple[jax.Array, ...]:
    """Gradients of Σ_m ⟨g_m, s_m⟩ in the shapes of queries, keys and values, at these, tau and g; all of equal rank."""
    return _kernel_pullback(settings)(*operands)


@functools.cache
def _kernel_sum(settings: Settings) -> Callable:
    return _mapped(lambda *operands: (_by_platform(settings, blocked_sum, _bridge.torch_sum, operands),), 0)


@functools.cache
def _kernel_pullback(settings: Settings) -> Callable:
    return _mapped(lambda *operands: _by_platform(settings, blocked_pullback, _bridge.torch_pullback, operands), 3)


def _mapped(function: Callable, num_own: int) -> Callable:
    """`function`, vmapped by one more leading axis, of length 1 where an operand is not mapped.

    The first `num_own` operands, in whose shapes the results are, get the whole axis: each element has its own result.
    """

    @custom_vmap
    def mapped(*operands: jax.Array) -> tuple[jax.Array, ...]:
        return tuple(function(*operands))

    @mapped.def_vmap
    def _(axis_size: int, is_mapped: Sequence[bool], *operands: jax.Array):
        sizes = (axis_size if i < num_own else 1 for i in range(len(operands)))
        batched = (
            x if has_axis else jnp.broadcast_to(x, (size, *x.shape))
            for x, has_axis, size in zip(operands, is_mapped, sizes, strict=True)
        )
        results = mapped(*batched)
        return results, (True,) * len(results)

    return mapped


def _by_platform(settings: Settings, native: Callable, torch: Callable, operands: tuple[jax.Array, ...]):
    """Run on the platform that the computation is lowered for, as `plan` says for it."""
    dtype = operands[0].dtype
    if any(0 in x.shape for x in operands):  # nothing to sum, or nothing to sum it for
        results = jax.eval_shape(native, *operands)
        return jax.tree.map(lambda x: vary_like(jnp.zeros(x.shape, x.dtype), operands), results)

    def compute(platform: str) -> Callable:
        try:
            chosen = plan(settings, platform, *sizes(*operands[:4]))
        except ValueError:  # not the platform that was checked: let PyTorch refuse if it is run there after all
            method = "rescale" if settings.method == "auto" else settings.method
            chosen = Plan(platform, method, settings.precision, settings.backend, "asked for by name")
        if not chosen.native:
            return functools.partial(torch, chosen)
        work, whole = jnp.dtype(chosen.precision), chosen.method == "dense"
        return lambda *xs: jax.tree.map(lambda y: y.astype(dtype), native(*(x.astype(work) for x in xs), whole=whole))

    known = platforms()
    if len(known) == 1:
        return compute(known[0])(*operands)
    return lax.platform_dependent(*operands, **{name: compute(name) for name in known}, default=native)
