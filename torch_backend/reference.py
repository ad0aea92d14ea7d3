"""The Gauss sum in float64 from differences of coordinates: slow, and what everything else is measured against."""

import torch
from torch import Tensor

ENTRIES = 2**20  # of the kernel matrix held at a time


def squared_errors(
    queries: Tensor, keys: Tensor, values: Tensor, tau: Tensor, sums: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """For each query, of batch and channels together: |s - ŝ|², |ŝ|², and the largest |s - ŝ| / Σ_n Φ|v_n|.

    Args:
        queries, keys, values, tau: as for `gauss_sum`, with queries (…, M, D).
        sums: s, (…, M, C), what is measured.

    Returns:
        Three float64 tensors (M,), against ŝ in float64. A ratio of zero to zero is zero.
    """
    scale = tau.double().sqrt()[..., None, None]
    v, s = values.double(), sums.double()
    batch = max(1, sums.shape[:-2].numel())
    results = []
    for start in range(0, queries.shape[-2], max(1, ENTRIES // (batch * keys.shape[-2]))):
        rows = slice(start, start + max(1, ENTRIES // (batch * keys.shape[-2])))
        a, b = scale * queries[..., rows, :].double(), scale * keys.double()
        distances = torch.cdist(*_alike(a, b), compute_mode="donot_use_mm_for_euclid_dist")
        phi = (distances.square() / -2).exp()
        exact, bound = phi @ v, phi @ v.abs()
        error = (s[..., rows, :] - exact).abs()
        ratio = torch.where(error > 0, error / bound, 0.0)
        axes = [i for i in range(error.ndim) if i != error.ndim - 2]
        results.append((error.square().sum(axes), exact.square().sum(axes), ratio.amax(axes)))
    return tuple(torch.cat(parts) for parts in zip(*results, strict=True))  # type: ignore


def _alike(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return a.expand(*batch, -1, -1), b.expand(*batch, -1, -1)
