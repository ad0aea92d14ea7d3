"""Gauss sums by attention kernels: the reductions of `torch_backend`, traced by JAX around one call of an operator.

XLA centers, scales, rounds and packs the points, and makes a sum of what comes back. Each function takes a plan, its
kernel, the scaled points a and b, and operands of equal rank, and gives its results and, last, the largest of the sums.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import jax.numpy as jnp
from jaxtyping import Array

from . import _bridge
from ._dense import unbroadcast
from ._plan import Plan

if TYPE_CHECKING:
    from torch_backend import Kernel

Points = tuple[Array, Array]


def attended_sum(
    chosen: Plan, kernel: "Kernel", points: Points, operands: tuple[Array, ...], *, with_log: bool = False
) -> tuple[Array, ...]:
    """Σ_n Φ v_n, of queries, keys, values and τ; `with_log` what the pullback needs of it; the largest of the sums.

    Of values of at most one, that is.
    """
    fused_sum, attend = _bridge.backend().fused_sum, _bridge.engine().attend

    def compute(kernel: "Kernel", method: str) -> tuple[Array, ...]:
        return fused_sum(method, *points, operands[2], kernel, attend, with_log=with_log)

    return _computed(chosen, kernel, points, compute)


def attended_pullback(chosen: Plan, kernel: "Kernel", points: Points, operands: tuple[Array, ...]) -> tuple[Array, ...]:
    """Gradients of Σ_m ⟨g_m, s_m⟩ in the shapes of queries, keys and values, at these, τ and g; the largest Σ_n Φ.

    A sixth operand is what the sum's own pass has left, on CUDA.
    """
    fused_pullback, engine = _bridge.backend().fused_pullback, _bridge.engine()
    *originals, tau, cotangent = operands[:5]
    saved = operands[5] if chosen.platform == "cuda" and len(operands) > 5 else None

    def compute(kernel: "Kernel", _: str) -> tuple[Array, ...]:
        exact = kernel.device == "cpu" and not kernel.half  # within reach, as points here are
        return fused_pullback(*points, originals[2], cotangent, kernel, engine, exact=exact, log_sum=saved)

    da, db, dv, largest = _computed(chosen, kernel, points, compute)
    scale = jnp.sqrt(tau)[..., None, None]
    gradients = zip((scale * da, scale * db, dv), originals, strict=True)
    return *(unbroadcast(gradient, x.shape) for gradient, x in gradients), largest


def attended_means(chosen: Plan, kernel: "Kernel", points: Points, operands: tuple[Array, ...]) -> tuple[Array, ...]:
    """Σ_n w Φ v / Σ_n w Φ and log Σ_n w Φ, of queries, keys, values, τ and log-weights; the largest Σ_n w Φ."""
    fused_means, attend = _bridge.backend().fused_means, _bridge.engine().attend

    def compute(kernel: "Kernel", _: str) -> tuple[Array, ...]:
        return fused_means(*points, operands[2], operands[4], kernel, attend)

    return _computed(chosen, kernel, points, compute)


def _computed(chosen: Plan, kernel: "Kernel", points: Points, compute: Callable) -> tuple[Array, ...]:
    """On CUDA with what half precision does not hold computed again, behind a gate."""
    if chosen.platform == "cuda":
        return _bridge.backend().trust.gated(chosen.method, kernel, points, compute)
    return compute(kernel, chosen.method)
