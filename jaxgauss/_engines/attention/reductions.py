"""The engine of attention kernels: JAX traces a reduction of `torch_backend` around one operator in one callback.

XLA centers, scales, rounds and packs the points, and rescales the result. The functions `attended_…` take a plan, its
attention kernel, the scaled points a and b, and operands of equal rank; their last result is the largest sum.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from ..._arrays.points import by_point, unbroadcast
from ..branches import as_vectors
from ..bridge import call, torch_backend
from ..costs import kernel_engine
from ..plan import Plan
from ..scopes import scope
from ..settings import working_dtype

if TYPE_CHECKING:
    from torch import Tensor

    from torch_backend import AttentionKernel, Engine

ScaledPoints = tuple[Array, Array]
PASSES = 2.5  # a pullback takes so many times as long as attention


def attended_sum(
    plan: Plan,
    kernel: "AttentionKernel",
    points: ScaledPoints,
    operands: tuple[Array, ...],
    *,
    with_log: bool = False,
) -> tuple[Array, ...]:
    """Σ_n Φ v_n; on CUDA, `with_log`, log Σ_n Φ for the pullback; the largest sum, for values scaled to at most one.

    The operands are queries, keys, values and τ.
    """
    fused_sum, attend = torch_backend().fused_sum, engine().attend

    def compute(kernel: "AttentionKernel", method: str) -> tuple[Array, ...]:
        return fused_sum(method, *points, operands[2], kernel, attend, with_log=with_log and plan.platform == "cuda")

    return _computed(plan, kernel, points, compute)


def attended_pullback(
    plan: Plan, kernel: "AttentionKernel", points: ScaledPoints, operands: tuple[Array, ...]
) -> tuple[Array, ...]:
    """Gradients of Σ_m ⟨g_m, s_m⟩ in the shapes of queries, keys and values; and the largest Σ_n Φ.

    The operands are queries, keys, values, τ, g and, on CUDA, log Σ_n Φ if the sum has saved it.
    """
    fused_pullback, by_torch = torch_backend().fused_pullback, engine()
    *originals, tau, cotangent = operands[:5]
    saved = operands[5] if plan.platform == "cuda" and len(operands) > 5 else None

    def compute(kernel: "AttentionKernel", _: str) -> tuple[Array, ...]:
        exact = kernel.device == "cpu" and not kernel.half  # points here are within reach
        return fused_pullback(*points, originals[2], cotangent, kernel, by_torch, exact=exact, log_sum=saved)

    da, db, dv, largest = _computed(plan, kernel, points, compute)
    scale = by_point(jnp.sqrt(tau), cotangent)
    gradients = zip((scale * da, scale * db, dv), originals, strict=True)
    return *(unbroadcast(gradient, x.shape) for gradient, x in gradients), largest


def attended_means(
    plan: Plan, kernel: "AttentionKernel", points: ScaledPoints, operands: tuple[Array, ...]
) -> tuple[Array, ...]:
    """Σ_n w Φ v / Σ_n w Φ and log Σ_n w Φ of queries, keys, values, τ and log-weights; and the largest Σ_n w Φ."""
    fused_means, attend = torch_backend().fused_means, engine().attend

    def compute(kernel: "AttentionKernel", _: str) -> tuple[Array, ...]:
        return fused_means(*points, operands[2], operands[4], kernel, attend)

    return _computed(plan, kernel, points, compute)


def _computed(plan: Plan, kernel: "AttentionKernel", points: ScaledPoints, compute: Callable) -> tuple[Array, ...]:
    """The results of `compute`; on CUDA by a second kernel, in a branch, where the first one's are not accurate enough.

    The last result is that of the first kernel.
    """
    if plan.platform != "cuda":
        return compute(kernel, plan.engine.method)
    backend = torch_backend()
    (*found, largest), doubted = backend.guard.judged(plan.engine.method, kernel, points, compute)
    second, shapes = backend.kernels.finest_kernel("cuda", "float32"), [x.shape for x in found]
    found = as_vectors(found)
    found = lax.cond(doubted, lambda: as_vectors(compute(second, "rescale")[:-1]), lambda: found)
    return *(x.reshape(shape) for x, shape in zip(found, shapes, strict=True)), largest


def engine() -> "Engine":
    """PyTorch's attention and its pullback for arrays of JAX: each is one operator in one callback."""
    return torch_backend().Engine(_attend, _pull_back)


def _attend(
    queries: Array,
    keys: Array,
    values: Array,
    kernel: "AttentionKernel",
    *,
    biases: tuple[Array, ...] = (),
    needs_lse: bool = True,
) -> tuple[Array, Array]:
    tensors = queries, keys, values, *biases
    batch = jnp.broadcast_shapes(*(x.shape[:2] for x in tensors))
    own, reported = replace(kernel, reported=None), [] if kernel.reported is None else [kernel.reported]
    options, operands = (own, len(biases)), (*tensors, *reported)
    shapes = [(*batch, queries.shape[2], width) for width in (values.shape[3], 1)]
    prepare = _preparation(own, tensors) if kernel.is_flex or kernel.exact else None
    with _mark_of(kernel, 1, *tensors[:3]):
        out, lse = call(torch_attention, options, shapes, operands, working_dtype(kernel.dtype), prepare=prepare)
    return out, lse


def _pull_back(*operands: Any) -> tuple[Array, ...]:
    *tensors, kernel = operands
    batch = jnp.broadcast_shapes(*(x.shape[:2] for x in tensors))
    own = replace(kernel, reported=None)
    shapes: Any = [(*batch, *x.shape[2:]) for x in tensors[1:4]]
    prepare = _preparation(own, tensors, backward=True) if kernel.exact else None
    with _mark_of(kernel, PASSES, *tensors[1:4]):
        return call(torch_pullback, (own,), shapes, tensors, working_dtype(kernel.dtype), prepare=prepare)


def _preparation(kernel: "AttentionKernel", operands: Sequence[Array], **options: bool) -> Callable[[], None]:
    """What runs before a program is recorded."""
    return functools.partial(torch_backend().attention.prepare, kernel, *(x.shape for x in operands), **options)


def _mark_of(kernel: "AttentionKernel", passes: float, queries: Array, keys: Array, values: Array) -> Any:
    """A scope that tells `explain` the kernel's row of costs, its pairs and columns, and how many passes it takes."""
    row = f"kernel in {kernel.dtype}" if kernel.device == "cpu" else kernel_engine(kernel)
    batch = jnp.broadcast_shapes(*(x.shape[:2] for x in (queries, keys, values)))
    pairs, columns = math.prod((*batch, queries.shape[2], keys.shape[2])), queries.shape[3] + values.shape[3]
    return scope("attention", row, pairs, columns, passes)


def torch_attention(kernel: "AttentionKernel", num_biases: int) -> Callable:
    """The attention that a callback runs, as a function of tensors."""
    attend = torch_backend().ENGINE.attend

    def run(queries: "Tensor", keys: "Tensor", values: "Tensor", *given: "Tensor") -> "Sequence[Tensor]":
        biases, reported = given[:num_biases], given[num_biases:]
        own = replace(kernel, reported=reported[0]) if reported else kernel
        return attend(queries, keys, values, own, biases=biases)

    return run


def torch_pullback(kernel: "AttentionKernel") -> Callable:
    """The pullback that a callback runs, as a function of tensors."""
    pullback = torch_backend().ENGINE.pullback
    return lambda *operands: pullback(*operands, kernel)
