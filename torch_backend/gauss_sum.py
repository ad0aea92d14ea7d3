"""Gauss sums of tensors, and their pullback: from any leading axes to one attention call and back."""

import functools
import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from .attention import DTYPES, HALF, PROBES, Kernel, attention, attention_pullback, select_kernel
from .layout import (
    Fold,
    accumulation_dtype,
    broadcast_shapes,
    from_columns,
    normalized,
    normalized_for_sums,
    pack,
    point_columns,
    scaled_points,
)
from .prescale import prescale
from .rescale import bias_columns, rescale
from .reweight import reweight
from .trust import guarded

EXACT = 1e-2  # exponents with a rounding error below this are taken for exact in the pullback
METHODS = {"reweight": reweight, "prescale": prescale, "rescale": rescale}


def without_autocast(function: Callable) -> Callable:
    """`function` in the precision that it was asked for, whatever the caller's `torch.autocast` says."""

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
    """Σ_n exp(-τ/2 ‖q_m - k_n‖²) v_n by one call of a flash-attention kernel (a block of channels).

    Args:
        queries: points (…, M, D), floating.
        keys: points (…, N, D).
        values: (…, N, C). Leading axes broadcast.
        tau: 1/σ², positive: a number, or a tensor that broadcasts against the leading axes. Its value is not checked.
        method: reweight, prescale or rescale; only reweight is differentiable by autograd.
        precision: auto, float16, bfloat16, float16x2, bfloat16x2, float32 or float64; see `select_kernel`.
        backend: auto, cpu, flash, efficient or cudnn.
        guard: compute again what the precision does not hold; see `trust`. False: take what comes, as where autograd
            records `reweight`.

    Returns:
        (…, M, C) in the promoted dtype of queries, keys and values.

    Raises:
        ValueError: shapes do not match, or no such kernel can run there.
        TypeError: an operand is not of a floating dtype.
    """
    reduction = METHODS.get(method)
    if reduction is None:
        raise ValueError(f"`torch_backend.gauss_sum`: method must be one of {', '.join(METHODS)}; got {method!r}.")
    queries, keys, values, tau, kernel, dtype = prepare(queries, keys, values, tau, precision, backend)
    fold = Fold(queries, keys, values, tau)
    shape = torch.Size((*fold.batch, queries.shape[-2], values.shape[-1]))
    if 0 in shape or 0 in keys.shape[-2:]:
        return torch.zeros(shape, dtype=dtype, device=queries.device)  # the raw CPU kernel dies on these

    points = [fold.fold(x) for x in (queries, keys, tau)]
    scaled, v = scaled_points(*points), fold.fold(values, of_values=True)

    def compute(kernel: Kernel, reduction: Callable[..., Tensor] = rescale) -> tuple[Tensor]:
        return (_sum_in_parts(reduction, *in_dtype_of(kernel, scaled, points), v, kernel).to(v.dtype),)

    (sums,) = compute(kernel, reduction)
    if guard and not (torch.is_grad_enabled() and sums.requires_grad):
        sizes = v.abs().amax((0, 1, 2)), sums.abs().amax((0, 1, 2))
        largest = (sizes[1] / torch.where(sizes[0] == 0, torch.ones_like(sizes[0]), sizes[0])).amax()
        (sums,) = guarded(method, kernel, scaled, largest, (sums,), compute)
    return fold.unfold(sums, shape, of_values=True).to(dtype)


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
    """Gradients of Σ_m ⟨g_m, s_m⟩ with respect to queries, keys and values, by the kernel's fused backward pass.

    With Φ = exp(-½|a - b|²) at scaled points, P_mn = Φ and S_mn = Φ ⟨g_m, v_n⟩,

        dv = Pᵀ g      da = S b - (S 1) a      db = Sᵀ a - (Sᵀ 1) b      dq = √τ da      dk = √τ db.

    Where rounded exponents or half precision would over- or underflow in a whole row, P is the softmax instead, and g
    carries the row sums of Φ.

    Args:
        queries, keys, values, tau, precision, backend, guard: as for `gauss_sum`.
        cotangent: g (…, M, C).

    Returns:
        Tensors of the shapes of queries, keys and values: axes along which one is shared are summed.
    """
    queries, keys, values, tau, kernel, dtype = prepare(queries, keys, values, tau, precision, backend)
    fold = Fold(queries, keys, values, tau)
    expected = (*fold.batch, queries.shape[-2], values.shape[-1])
    if cotangent.shape != expected or not cotangent.dtype.is_floating_point or cotangent.device != queries.device:
        raise ValueError(
            f"`torch_backend.gauss_sum_pullback`: cotangent must be like the sum, floating {expected} on"
            f" {queries.device}; got {cotangent.dtype} {tuple(cotangent.shape)} on {cotangent.device}."
        )
    shapes = (queries.shape, keys.shape, values.shape)
    if 0 in (*fold.batch, queries.shape[-2], *keys.shape[-2:], values.shape[-1]):
        return tuple(torch.zeros(shape, dtype=dtype, device=queries.device) for shape in shapes)  # type: ignore

    points = [fold.fold(x) for x in (queries, keys, tau)]
    scaled = scaled_points(*points)
    v, g = fold.fold(values, of_values=True), fold.fold(cotangent.to(values.dtype), of_values=True)

    def compute(kernel: Kernel) -> tuple[Tensor, ...]:
        return _pullback_in_parts(*in_dtype_of(kernel, scaled, points), v, g, kernel)

    *gradients, largest = results = compute(kernel)
    if guard:
        *gradients, _ = guarded("rescale", kernel, scaled, largest, results, compute)
    scale = points[2].sqrt()
    gradients = (scale * gradients[0], scale * gradients[1], gradients[2])
    return tuple(  # type: ignore
        fold.unfold(gradient, shape, of_values=i == 2).to(dtype)
        for i, (gradient, shape) in enumerate(zip(gradients, shapes, strict=True))
    )


def in_dtype_of(kernel: Kernel, scaled: tuple[Tensor, Tensor], points: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The scaled points, centered anew where the kernel holds more digits than they have."""
    if kernel.dtype != torch.float64 or scaled[0].dtype == torch.float64:
        return scaled
    return scaled_points(*(x.double() for x in points))


def _sum_in_parts(reduction: Callable[..., Tensor], a: Tensor, b: Tensor, v: Tensor, kernel: Kernel) -> Tensor:
    """The sums by as few calls as the kernel can do them in."""
    points, channels = kernel.limits(a.shape[-1], v.shape[-1])
    channels -= reduction is reweight and channels == kernel.max_width  # which has one of its own
    again = functools.partial(_sum_in_parts, reduction)
    if v.shape[-1] > channels:
        return torch.cat([again(a, b, x, kernel) for x in v.split(channels, -1)], -1)
    if a.shape[-2] > points:
        return torch.cat([again(x, b, v, kernel) for x in a.split(points, -2)], -2)
    if b.shape[-2] > points:
        return _total(again(a, *part, kernel) for part in zip(b.split(points, -2), v.split(points, -2), strict=True))
    return reduction(a, b, v, kernel)


def _pullback_in_parts(a: Tensor, b: Tensor, v: Tensor, g: Tensor, kernel: Kernel) -> tuple[Tensor, ...]:
    """`_pullback`, likewise."""
    points, channels = kernel.limits(a.shape[-1], v.shape[-1])
    if v.shape[-1] > channels:
        parts = zip(v.split(channels, -1), g.split(channels, -1), strict=True)
        da, db, dv, largest = zip(*(_pullback_in_parts(a, b, *part, kernel) for part in parts), strict=True)
        return _total(da), _total(db), torch.cat(dv, -1), torch.stack(largest).amax()
    if a.shape[-2] > points:
        parts = zip(a.split(points, -2), g.split(points, -2), strict=True)
        da, db, dv, largest = zip(*(_pullback_in_parts(x, b, v, g, kernel) for x, g in parts), strict=True)
        return torch.cat(da, -2), _total(db), _total(dv), torch.stack(largest).amax()
    if b.shape[-2] > points:
        parts = zip(b.split(points, -2), v.split(points, -2), strict=True)
        da, db, dv, largest = zip(*(_pullback_in_parts(a, *part, g, kernel) for part in parts), strict=True)
        return _total(da), torch.cat(db, -2), torch.cat(dv, -2), torch.stack(largest).amax()
    return _pullback(a, b, v, g, kernel)


def _total(parts: Iterable[Tensor]) -> Tensor:
    return functools.reduce(torch.add, parts)


def _pullback(a: Tensor, b: Tensor, v: Tensor, g: Tensor, kernel: Kernel) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """da, db, dv, and the largest Σ_n Φ (1 where it is not known)."""
    dim, channels = a.shape[-1], v.shape[-1]
    query_columns, half_norms = point_columns(a, kernel)
    key_columns, key_norms = point_columns(b, kernel, of_keys=True)
    scale, norm_columns = bias_columns(-key_norms, kernel)
    v, v_scale = normalized(v, kernel.dtype)
    # Two columns more, [0, 1] against [1, 0], add nothing to the inner products and leave S 1 and Sᵀ 1 in the pullback.
    ones = kernel.columns(dim)
    width = kernel.width(max(ones + PROBES, channels))
    padded_a = pack(*query_columns, *(scale for _ in norm_columns), 0.0, 1.0, width=width)
    padded_b = pack(*key_columns, *norm_columns, 1.0, 0.0, width=width)
    padded_v = pack(v, width=width)

    is_half = kernel.dtype in HALF
    if kernel.device == "cpu" and not is_half and half_norms.amax() * torch.finfo(kernel.dtype).eps < EXACT:
        lse, largest = half_norms, torch.ones_like(half_norms.amax())  # P = Φ
    else:  # P = softmax, which is never above 1
        _, lse = attention(padded_a, padded_b, padded_v, kernel)
        sums = (lse - half_norms).clamp(max=math.log(b.shape[-2])).exp()
        g, largest = g * sums, sums.amax()
    # The channels of v were divided by v_scale: g takes it for S, and dv gives it back.
    g, g_scale = normalized_for_sums(g * v_scale, (a, b), kernel.dtype)
    gradients = attention_pullback(pack(g, width=width), padded_a, padded_b, padded_v, lse, kernel)

    sb, sa, pg = (gradient.to(half_norms.dtype) for gradient in gradients)
    da = g_scale * (from_columns(sb, dim, kernel, of_keys=True) - sb[..., ones : ones + 1] * a)
    db = g_scale * (from_columns(sa, dim, kernel) - sa[..., ones + 1 : ones + 2] * b)
    dv = g_scale * pg[..., :channels] / v_scale
    return da, db, dv, largest


def prepare(queries: Tensor, keys: Tensor, values: Tensor, tau: Tensor | float, precision: str, backend: str):
    """Checked operands in the dtype that the layout computes in, tau as (…, 1, 1), the kernel, the result's dtype."""
    name, operands = "`torch_backend.gauss_sum`", {"queries": queries, "keys": keys, "values": values}
    for label, x in operands.items():
        if not isinstance(x, Tensor):
            raise TypeError(f"{name}: {label} must be a tensor; got {type(x).__name__}. Convert with torch.as_tensor.")
        if x.dtype not in DTYPES.values():
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
    work = torch.promote_types(accumulation_dtype(kernel.dtype), accumulation_dtype(dtype))
    tau = torch.as_tensor(tau, dtype=work, device=queries.device)[..., None, None]
    try:
        broadcast_shapes(*(x.shape[:-2] for x in (queries, keys, values, tau)))
    except RuntimeError as error:
        raise ValueError(f"{name}: leading axes must broadcast; got {shapes}, tau {tuple(tau.shape[:-2])}.") from error
    return queries.to(work), keys.to(work), values.to(work), tau, kernel, dtype
