"""Points and values in the form that one attention call takes: batch axes folded, centered, scaled, padded."""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

if TYPE_CHECKING:
    from .attention import Kernel

LOG_ZERO = -1e4  # the logarithm of a weight of zero: its exponential is zero in every dtype, its product with S finite


def half_squared_norms(points: Tensor) -> Tensor:
    """½|x|² of every point (…, N, D) -> (…, N, 1), in float32 or better."""
    points = points.to(accumulation_dtype(points.dtype))
    return torch.linalg.vecdot(points, points)[..., None] / 2


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype for everything that is not a kernel's operand: float32, or float64 for float64."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def broadcast_shapes(*shapes: torch.Size) -> torch.Size:
    """`torch.broadcast_shapes`, at once where all are equal: PyTorch's own takes as long as a small kernel."""
    return shapes[0] if all(shape == shapes[0] for shape in shapes) else torch.broadcast_shapes(*shapes)


def scaled_points(queries: Tensor, keys: Tensor, tau: Tensor) -> tuple[Tensor, Tensor]:
    """a = √τ (q - c), b = √τ (k - c): the sum does not depend on the center c, the rounding of its exponents does.

    c is the mean of the points that are shared (else of the keys), so that shared points stay shared. NaN is left out
    of the mean: a NaN spoils its own row, not every row.
    """
    shared = queries if queries.shape[:-2].numel() < keys.shape[:-2].numel() else keys
    center = torch.nan_to_num(shared.nanmean(-2, keepdim=True), 0.0, 0.0, 0.0)
    scale = tau.sqrt()
    return (queries - center) * scale, (keys - center) * scale


def normalized(values: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor | float]:
    """Values in `dtype`, and the factor that undoes their scaling: for half precision, the largest |v| of a channel."""
    if dtype.itemsize > 2:
        return values.to(dtype), 1.0
    return _divided(values, values.abs().amax(-2, keepdim=True), dtype)


def signs_and_log_rows(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """v = scale · exp(log_rows) · x, with |x| ≤ 1: x (B, H, N, C), log_rows (B, H, N, 1) and scale (B, H, 1, C).

    Half precision holds no sizes below 1e-7 of the largest. Sizes of channels are factored out; sizes of rows become
    weights that enter the logits, where 1e-30 is as good as 1.
    """
    scale = values.abs().amax(-2, keepdim=True)
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    logs = values.abs().log() - scale.log()
    log_rows = logs.amax(-1, keepdim=True).clamp(min=LOG_ZERO)
    return (logs - log_rows).exp().copysign(values), log_rows, scale


def normalized_for_sums(
    cotangent: Tensor, points: tuple[Tensor, ...], dtype: torch.dtype
) -> tuple[Tensor, Tensor | float]:
    """The same for what is summed over queries, times these points, into a result in half precision."""
    if dtype.itemsize > 2:
        return cotangent.to(dtype), 1.0
    sizes = torch.nan_to_num(cotangent.abs(), 0.0, 0.0, 0.0)  # NaN spoils its own row alone
    reach = sum(torch.nan_to_num(x.float(), 0.0).abs().amax() for x in points) + 1
    bound = sizes.sum((-2, -1), keepdim=True) * reach * (2 / torch.finfo(dtype).max)
    return _divided(cotangent, torch.maximum(sizes.amax((-2, -1), keepdim=True), bound), dtype)


def _divided(x: Tensor, scale: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    return (x / scale).to(dtype), scale


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor in `dtype`, without infinities: beyond the range of half precision it is cut off."""
    limit = torch.finfo(dtype).max
    return x.to(dtype) if dtype.itemsize > 2 else x.clamp(-limit, limit).to(dtype)


def split(x: Tensor, dtype: torch.dtype, parts: int) -> list[Tensor]:
    """Tensors of `dtype` whose sum is x: each is the rounding of what those before it leave."""
    found = []
    for _ in range(parts):
        found.append(rounded(x, dtype))
        x = x - found[-1]
    return found


def point_columns(points: Tensor, kernel: "Kernel", *, of_keys: bool = False) -> tuple[list[Tensor], Tensor]:
    """Columns of the points as the kernel's dtype holds them, and ½|x|² of what it holds.

    Columns of queries times columns of keys is a·b. Split points take three: a = a_h + a_l meets b as
    a_h·b_h + a_l·b_h + a_h·b_l; what is left out, a_l·b_l, is below the rounding of the split itself.
    """
    parts = split(points, kernel.dtype, kernel.parts)
    if len(parts) == 1:
        return parts, half_squared_norms(parts[0])
    high, low = parts
    columns = [high, high, low] if of_keys else [high, low, high]
    return columns, half_squared_norms(high.to(points.dtype) + low)


def from_columns(x: Tensor, dim: int, kernel: "Kernel", *, of_keys: bool = False) -> Tensor:
    """The points (…, N, D) whose columns x has: what the high parts carry, and the low."""
    if kernel.parts == 1:
        return x[..., :dim]
    low = 2 * dim if of_keys else dim
    return x[..., :dim] + x[..., low : low + dim]


def pack(*columns: Tensor | float, width: int, dummy: dict[int, float] | None = None) -> Tensor:
    """[*columns, 0, …]: (…, N, D), (…, N, 1), numbers, … -> (…, N, width), in the dtype of the first.

    `dummy` = {i: x, …} adds the point Σ x e_i at the end.
    """
    first = columns[0]
    assert isinstance(first, Tensor)
    *batch, num, dim = first.shape
    if len(columns) > 1:
        batch = broadcast_shapes(*(x.shape[:-2] for x in columns if isinstance(x, Tensor)))
    if len(columns) == 1 and dummy is None:
        return first.contiguous() if dim == width else pad(first, (0, width - dim))
    padded = first.new_zeros(*batch, num + (dummy is not None), width)
    start = 0
    for column in columns:
        end = start + (column.shape[-1] if isinstance(column, Tensor) else 1)
        padded[..., :num, start:end] = column
        start = end
    for i, x in (dummy or {}).items():
        padded[..., num, i] = x
    return padded


class Fold:
    """How leading axes become the kernel's two, (batch, heads), with nothing copied that is shared.

    Shared keys and values: the queries' batch becomes rows. Shared points: the values' batch becomes channels, so that
    all of it shares the exponentials. Otherwise two axes, of length 1 where an operand is shared.
    """

    def __init__(self, queries: Tensor, keys: Tensor, values: Tensor, *others: Tensor):
        leading = [x.shape[:-2] for x in (queries, keys, values, *others)]
        self.batch = tuple(broadcast_shapes(*leading))
        varies = [math.prod(axes) > 1 for axes in leading]
        self.rows = not any(varies[1:])
        self.channels = not self.rows and not (varies[0] or varies[1] or any(varies[3:]))

    def fold(self, operand: Tensor, *, of_values: bool = False) -> Tensor:
        """(…, N, W) -> (batch, heads, N, W). `of_values`: the last axis is the values' channels."""
        if self.rows:
            return operand.reshape(1, 1, -1, operand.shape[-1])
        if self.channels:
            operand = operand.reshape(-1, *operand.shape[-2:])  # (B or 1, N, W)
            return (operand.movedim(0, 1).flatten(1) if of_values else operand[0])[None, None]
        operand = operand[(None,) * (len(self.batch) + 2 - operand.ndim)]
        axes = [i for i, size in enumerate(self.batch) if size != 1]
        matrix = operand.shape[-2:]
        if len(axes) > 2:  # more than two axes: the rest is merged, and copied where shared
            rest = [self.batch[i] for i in axes[1:]]
            sizes = [operand.shape[i] for i in axes]
            operand = operand.reshape(*sizes, *matrix).expand(sizes[0], *rest, *matrix)
            return operand.reshape(sizes[0], math.prod(rest), *matrix)
        sizes = [operand.shape[i] for i in axes]
        return operand.reshape(*[1] * (2 - len(axes)), *sizes, *matrix)

    def unfold(self, result: Tensor, shape: torch.Size, *, of_values: bool = False) -> Tensor:
        """The inverse of `fold`; axes along which an operand of this shape is shared are summed."""
        if self.channels and of_values:
            return result[0, 0].unflatten(1, (-1, shape[-1])).movedim(1, 0).reshape(shape)
        if self.rows or self.channels:
            return result.reshape(shape)
        full = result.reshape(*self.batch, *shape[-2:])
        return full.sum_to_size(shape)
