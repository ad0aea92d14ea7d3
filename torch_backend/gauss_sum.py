"""Gauss sums of tensors, their pullback and logarithms: arguments are checked, inaccurate sums computed again."""

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from .attention import ENGINE
from .guard import guarded
from .kernels import DTYPES, AttentionKernel, select_kernel
from .layout import broadcast_shapes, dtype_of, scaled_points
from .reductions import METHODS, are_exact, fused_means, fused_pullback, fused_sum


def without_autocast(function: Callable) -> Callable:
    """Run `function` without the caller's `torch.autocast`, in the precision that it was asked for."""

    @functools.wraps(function)
    def wrapped(queries: Tensor, *args, **options):
        device = queries.device.type if isinstance(queries, Tensor) else ""
        if device not in ("cpu", "cuda") or not torch.is_autocast_enabled(device):
            return function(queries, *args, **options)
        with torch.autocast(device, enabled=False):
            return function(queries, *args, **options)

    return wrapped


@without_autocast
def gauss_sum(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    tau: Tensor | float = 1.0,
    *,
    method: str = "rescale",
    precision: str = "auto",
    backend: str = "auto",
    guard: bool = True,
) -> Tensor:
    """Sum Gaussian kernels of tensors, Σ_n exp(-τ/2 ‖q_m - k_n‖²) v_n, by a flash-attention kernel.

    One call per block of channels: O(MN(D + C)) operations and O((M + N)(D + C)) memory.

    Args:
        queries: points (…, M, D), floating.
        keys: points (…, N, D).
        values: (…, N, C). Leading axes broadcast.
        tau: τ = 1/σ², positive: a number, or a tensor that broadcasts against the leading axes. Its sign is not
            checked.
        method: "rescale", "prescale" or "reweight". Autograd differentiates only "reweight".
        precision: "auto", "float16", "bfloat16", "float16x2", "bfloat16x2", "float32" or "float64"; see
            `select_kernel`.
        backend: "auto", "cpu", "flash", "efficient", "cudnn" or "flex", which is in float32.
        guard: whether to compute the sum again if the precision is too coarse for the data. It is off where autograd
            records.

    Returns:
        (…, M, C) in the promoted dtype of queries, keys and values.

    Raises:
        ValueError: shapes do not match, or no such kernel can run there.
        TypeError: an operand is not of a floating dtype.
    """
    if method not in METHODS:
        raise ValueError(f"`torch_backend.gauss_sum`: method must be one of {', '.join(METHODS)}; got {method!r}.")
    *points, values, kernel, batch, dtype = _prepared(queries, keys, values, tau, precision, backend)
    shape = (*batch, queries.shape[-2], values.shape[-1])
    if 0 in shape or 0 in keys.shape[-2:]:
        return torch.zeros(shape, dtype=dtype, device=queries.device)  # the CPU operator crashes on empty operands
    scaled = scaled_points(*points)

    def compute(kernel: AttentionKernel, method: str) -> tuple[Tensor, Tensor]:
        return fused_sum(method, *_in_dtype_of(kernel, scaled, points), values, kernel, ENGINE.attend)

    recorded = torch.is_grad_enabled() and any(x.requires_grad for x in (*points, values))
    sums, _ = guarded(method, kernel, scaled, compute) if guard and not recorded else compute(kernel, method)
    return sums.to(dtype)


@without_autocast
def gauss_sum_pullback(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    tau: Tensor | float,
    cotangent: Tensor,
    *,
    precision: str = "auto",
    backend: str = "auto",
    guard: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of Σ_m ⟨g_m, s_m⟩ with respect to queries, keys and values, by the kernel's backward pass.

    Args:
        queries, keys, values, tau, precision, backend, guard: as for `gauss_sum`.
        cotangent: g (…, M, C).

    Returns:
        Tensors of the shapes of queries, keys and values, summed over the axes along which they were broadcast.
    """
    shapes = [tuple(x.shape) for x in (queries, keys, values)]
    *points, values, kernel, batch, dtype = _prepared(queries, keys, values, tau, precision, backend)
    expected = (*batch, queries.shape[-2], values.shape[-1])
    if cotangent.shape != expected or not cotangent.dtype.is_floating_point or cotangent.device != queries.device:
        raise ValueError(
            f"`torch_backend.gauss_sum_pullback`: cotangent must be like the sum, floating {expected} on"
            f" {queries.device}; got {cotangent.dtype} {tuple(cotangent.shape)} on {cotangent.device}."
        )
    if 0 in (*expected, *keys.shape[-2:]):
        return tuple(torch.zeros(shape, dtype=dtype, device=queries.device) for shape in shapes)  # type: ignore
    scaled, g = scaled_points(*points), cotangent.to(values.dtype)

    def compute(kernel: AttentionKernel, _: str = "rescale") -> tuple[Tensor, ...]:
        a, b = _in_dtype_of(kernel, scaled, points)
        return fused_pullback(a, b, values, g, kernel, ENGINE, exact=bool(are_exact(a, b, kernel)))

    da, db, dv, _ = guarded("rescale", kernel, scaled, compute) if guard else compute(kernel)
    scale = points[2].sqrt()
    gradients = (scale * da, scale * db, dv)
    return tuple(x.sum_to_size(shape).to(dtype) for x, shape in zip(gradients, shapes, strict=True))  # type: ignore


@without_autocast
def log_gauss_sum(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    tau: Tensor | float,
    log_weights: Tensor,
    *,
    precision: str = "auto",
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Means Σ_n w_n Φ v_n / Σ_n w_n Φ and logarithms log Σ_n w_n Φ(q_m, k_n), from attention and its log-sum-exp.

    Args:
        queries, keys, values, tau, precision, backend: as for `gauss_sum`.
        log_weights: log w, (…, N, 1).

    Returns:
        The means (…, M, C) and the logarithms (…, M, 1).

    Raises:
        ValueError, TypeError: as `gauss_sum` does; or there is no key or no channel.
    """
    *points, values, kernel, batch, dtype = _prepared(queries, keys, values, tau, precision, backend)
    if 0 in keys.shape[-2:] or 0 in values.shape[-1:]:
        raise ValueError(
            f"`torch_backend.log_gauss_sum`: there must be a key and a channel; got keys {tuple(keys.shape)}, values"
            f" {tuple(values.shape)}. The logarithm of an empty sum is -inf."
        )
    log_weights = log_weights[(None,) * (len(batch) + 2 - log_weights.ndim)].to(values.dtype)
    shape = (*broadcast_shapes(batch, log_weights.shape[:-2]), queries.shape[-2])
    if 0 in shape:
        return tuple(torch.zeros(*shape, n, dtype=dtype, device=queries.device) for n in (values.shape[-1], 1))  # type: ignore
    scaled = scaled_points(*points)

    def compute(kernel: AttentionKernel, _: str = "rescale") -> tuple[Tensor, ...]:
        return fused_means(*_in_dtype_of(kernel, scaled, points), values, log_weights, kernel, ENGINE.attend)

    means, logs, _ = guarded("rescale", kernel, scaled, compute) if kernel.half else compute(kernel)
    return means.to(dtype), logs.to(dtype)


def _in_dtype_of(kernel: AttentionKernel, scaled: tuple[Tensor, Tensor], points: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The scaled points; centered again if the kernel's dtype is more precise than theirs."""
    if kernel.dtype != "float64" or scaled[0].dtype == torch.float64:
        return scaled
    return scaled_points(*(x.double() for x in points))


def _prepared(queries: Tensor, keys: Tensor, values: Tensor, tau: Tensor | float, precision: str, backend: str):
    """Check operands; return them with equal rank in the working dtype, kernel, batch and the result's dtype."""
    name, operands = "`torch_backend.gauss_sum`", {"queries": queries, "keys": keys, "values": values}
    for label, x in operands.items():
        if not isinstance(x, Tensor):
            raise TypeError(f"{name}: {label} must be a tensor; got {type(x).__name__}. Convert with torch.as_tensor.")
        if dtype_of(x) not in DTYPES:
            has = ", ".join(DTYPES)
            raise TypeError(f"{name}: {label} must be {has}; got {x.dtype}. Convert with .to(torch.float32).")
        if x.ndim < 2:
            raise ValueError(f"{name}: {label} must have at least two axes; got {tuple(x.shape)}. Add one axis.")
        if x.device != queries.device:
            raise ValueError(
                f"{name}: {label} must be on the queries' device; got {x.device}, {queries.device}. Move it."
            )
    shapes = ", ".join(f"{label} {tuple(x.shape)}" for label, x in operands.items())
    if queries.shape[-1] != keys.shape[-1]:
        raise ValueError(f"{name}: queries and keys must be points of the same dimension; got {shapes}.")
    if keys.shape[-1] == 0:
        raise ValueError(f"{name}: points must have at least one dimension; got {shapes}. Add a column of zeros.")
    if keys.shape[-2] != values.shape[-2]:
        raise ValueError(f"{name}: every key must have one value; got {shapes}.")

    dtype = torch.promote_types(torch.promote_types(queries.dtype, keys.dtype), values.dtype)
    kernel = select_kernel(backend, precision, queries.device.type, dtype, queries.shape[-1])
    work = torch.float64 if dtype == torch.float64 or kernel.dtype == "float64" else torch.float32
    if not isinstance(tau, Tensor):  # without it, the host would wait until a number is copied to the GPU
        tau = torch.full((), tau, dtype=work, device=queries.device)
    tau = tau.to(queries.device, work)[..., None, None]
    try:
        batch = broadcast_shapes(*(x.shape[:-2] for x in (queries, keys, values, tau)))
    except RuntimeError as error:
        raise ValueError(f"{name}: leading axes must broadcast; got {shapes}, tau {tuple(tau.shape[:-2])}.") from error
    rank = len(batch) + 2
    aligned = [x.to(work)[(None,) * (rank - x.ndim)] for x in (queries, keys, tau, values)]
    return *aligned, kernel, batch, dtype
