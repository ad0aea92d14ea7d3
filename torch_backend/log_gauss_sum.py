"""The logarithm of a Gauss sum of positive weights, and the means under those weights: what a softmax is made for."""

import torch
from torch import Tensor

from .attention import Kernel
from .gauss_sum import in_dtype_of, prepare, without_autocast
from .layout import Fold, normalized, scaled_points
from .rescale import softmax_mean
from .trust import guarded


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
    """Σ_n w_n Φ v_n / Σ_n w_n Φ and log Σ_n w_n Φ(q_m, k_n), straight from attention and its log-sum-exp.

    Args:
        queries, keys, values, tau, precision, backend: as for `gauss_sum`.
        log_weights: log w, (…, N, 1).

    Returns:
        The means (…, M, C) and the logarithms (…, M, 1).

    Raises:
        ValueError, TypeError: as `gauss_sum` does; there must be a key and a channel.
    """
    queries, keys, values, tau, kernel, dtype = prepare(queries, keys, values, tau, precision, backend)
    if 0 in keys.shape[-2:] or 0 in values.shape[-1:]:
        raise ValueError(
            f"`torch_backend.log_gauss_sum`: there must be a key and a channel; got keys {tuple(keys.shape)}, values"
            f" {tuple(values.shape)}. The logarithm of an empty sum is -inf."
        )
    fold = Fold(queries, keys, values, tau, log_weights)
    shape = (*fold.batch, queries.shape[-2])
    if 0 in shape:
        return tuple(torch.zeros(*shape, n, dtype=dtype, device=queries.device) for n in (values.shape[-1], 1))  # type: ignore
    points = [fold.fold(x) for x in (queries, keys, tau)]
    scaled, v = scaled_points(*points), fold.fold(values, of_values=True)
    log_weights = fold.fold(log_weights.to(v.dtype))

    def compute(kernel: Kernel) -> tuple[Tensor, ...]:
        x, scale = normalized(v, kernel.dtype)
        mean, log_sum = _means_in_parts(*in_dtype_of(kernel, scaled, points), x, log_weights, kernel)
        return (mean * scale).to(v.dtype), log_sum.to(v.dtype)

    result = compute(kernel)
    if kernel.dtype.itemsize == 2:
        result = guarded("rescale", kernel, scaled, result[1].amax().exp(), result, compute)
    mean, log_sum = result
    log_sum = log_sum.expand(*mean.shape[:2], -1, -1) if not fold.channels else log_sum
    log_sum = log_sum.reshape(shape if not fold.channels else shape[-1:]).expand(shape)[..., None]
    return fold.unfold(mean, torch.Size((*shape, values.shape[-1])), of_values=True).to(dtype), log_sum.to(dtype)


def _means_in_parts(a: Tensor, b: Tensor, x: Tensor, log_weights: Tensor, kernel: Kernel) -> tuple[Tensor, Tensor]:
    """`softmax_mean`, by as few calls as the kernel can do it in."""
    points, channels = kernel.limits(a.shape[-1], x.shape[-1])
    if x.shape[-1] > channels:
        means, logs = zip(*(_means_in_parts(a, b, y, log_weights, kernel) for y in x.split(channels, -1)), strict=True)
        return torch.cat(means, -1), logs[0]
    if a.shape[-2] > points:
        parts = (_means_in_parts(y, b, x, log_weights, kernel) for y in a.split(points, -2))
        means, logs = zip(*parts, strict=True)
        return torch.cat(means, -2), torch.cat(logs, -2)
    if b.shape[-2] > points:
        keys = [slice(start, start + points) for start in range(0, b.shape[-2], points)]
        parts = [_means_in_parts(a, b[..., n, :], x[..., n, :], log_weights[..., n, :], kernel) for n in keys]
        means, logs = (torch.stack(y) for y in zip(*parts, strict=True))
        log_sum = logs.logsumexp(0)
        return (means * (logs - log_sum).exp()).sum(0), log_sum
    return softmax_mean(a, b, x, kernel, log_weights)
