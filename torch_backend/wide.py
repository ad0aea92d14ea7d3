"""Gauss sums in float64, a tile of the kernel matrix at a time: for points that no attention kernel's precision holds.

Exponents are formed by one product in float64, and where even that has not the digits, from differences of coordinates.
CPU tensors of float64 and of equal rank in, the same out.
"""

import itertools
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from .layout import half_squared_norms
from .trust import squared_reach

ROWS, COLUMNS = 512, 1024  # of a tile, which stays in the cache
GAP = 40.0  # bandwidths; a pair this far apart has a kernel of zero, in float64 too
SPREAD = 64.0  # bandwidths
LARGEST = 1e26  # an exponent, in size
# The least exponent, by the digits of results: e^x of smaller ones is zero. PyTorch takes forty times as long for what
# is no normal number, in float64 also for products of it with values.
LEAST = {"float32": -87.0, "float64": -690.0}
# R² (see `trust`) up to which a product has the digits of results in float32 and in float64.
REACH = {"float32": 2.0**33, "float64": 2.0**24}


def wide_sum(queries: Tensor, keys: Tensor, values: Tensor, tau: Tensor, *, digits: str) -> Tensor:
    """Σ_n exp(-τ/2 ‖q_m - k_n‖²) v_n.

    Args:
        queries: points (…, M, D).
        keys: points (…, N, D).
        values: (…, N, C).
        tau: (…). Leading axes broadcast.
        digits: float32 or float64, those that the result needs.

    Returns:
        (…, M, C).
    """
    (a, b, v), batch = _scaled(queries, keys, values, tau)
    total = queries.new_zeros(*batch, a.shape[-2], v.shape[-1])
    for i in _elements(a, b):
        for rows, columns, phi in _kernel_tiles(a[i], b[i], digits):
            total[i][..., rows, :] += _thin_product(phi, v[i][..., columns, :])
    return total


def wide_pullback(
    queries: Tensor, keys: Tensor, values: Tensor, tau: Tensor, cotangent: Tensor, *, digits: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of Σ_m ⟨g_m, s_m⟩ in the shapes of queries, keys and values; see `gauss_sum_pullback`."""
    (a, b, v, g), batch = _scaled(queries, keys, values, tau, cotangent)
    a1, b1 = (torch.cat([x, torch.ones_like(x[..., :1])], -1) for x in (a, b))
    sb, sa, dv = (queries.new_zeros(*batch, *x.shape[-2:]) for x in (a1, b1, v))
    products, one_channel = _Buffers(a.dtype), v.shape[-1] == 1
    if one_channel:  # S = g Φ v is not formed
        a1, b1 = g * a1, v * b1
    for i in _elements(a, b):
        for rows, columns, s in _kernel_tiles(a[i], b[i], digits):
            if not one_channel:
                gradient = g[i][..., rows, :]
                dv[i][..., columns, :] += _thin_product(s.mT, gradient)
                s = products.product(gradient, v[i][..., columns, :]).mul_(s)
            sb[i][..., rows, :] += _thin_product(s, b1[i][..., columns, :])
            sa[i][..., columns, :] += _thin_product(s.mT, a1[i][..., rows, :])
    if one_channel:
        sb, sa, dv = g * sb, v * sa, sa[..., -1:]
    scale = tau.sqrt()[..., None, None]
    dq, dk = (scale * (s[..., :-1] - s[..., -1:] * x) for s, x in ((sb, a), (sa, b)))
    return dq.sum_to_size(queries.shape), dk.sum_to_size(keys.shape), dv.sum_to_size(values.shape)


def wide_means(
    queries: Tensor, keys: Tensor, values: Tensor, tau: Tensor, log_weights: Tensor, *, digits: str
) -> tuple[Tensor, Tensor]:
    """Σ_n w_n Φ v_n / Σ_n w_n Φ (…, M, C) and log Σ_n w_n Φ (…, M, 1), of finite log-weights (…, N, 1)."""
    (a, b, v, log_w), batch = _scaled(queries, keys, values, tau, log_weights)
    v1 = torch.cat([v, torch.ones_like(log_w)], -1)  # means, and the sum of the weights
    sums = queries.new_zeros(*batch, a.shape[-2], v1.shape[-1])
    logs, exponential_ = queries.new_zeros(*batch, a.shape[-2], 1), _Exponential(digits)
    for i in _elements(a, b):
        for rows, tiles in itertools.groupby(_tiles(a[i], b[i], digits), lambda tile: tile[0]):
            largest = torch.full_like(logs[i][..., rows, :], -math.inf)
            for _, columns, logits in tiles:
                logits += log_w[i][..., columns, :].mT
                before, largest = largest, torch.maximum(largest, logits.amax(-1, keepdim=True))
                weights = exponential_(logits.sub_(largest))
                sums[i][..., rows, :] *= (before - largest).clamp_(min=LEAST["float64"]).exp_()
                sums[i][..., rows, :] += _thin_product(weights, v1[i][..., columns, :])
            logs[i][..., rows, :] = largest + sums[i][..., rows, -1:].log()
    return sums[..., :-1] / sums[..., -1:], logs


def closer(points: Tensor, tau: Tensor) -> Tensor:
    """The points (…, P, D) with wide gaps between their coordinates made narrow, if they are far from one another.

    Who is on one side of a gap does not see who is on the other, before or after; all other differences stay. Moments
    of the points then have their digits, up to those of fourth order that second derivatives in τ are made of.
    """
    x = points.reshape(-1, points.shape[-1])
    if not (x.amax(0) - x.amin(0)).amax() * tau.amax().sqrt() > SPREAD:
        return points
    x, order = x.sort(0)
    steps = x.diff(dim=0, prepend=x[:1]).clamp_(max=(GAP / tau.amin().sqrt()).item())
    return torch.empty_like(x).scatter_(0, order, steps.cumsum(0)).reshape(points.shape)


def _scaled(queries: Tensor, keys: Tensor, values: Tensor, tau: Tensor, *others: Tensor):
    """a, b about one center, with Φ = exp(-½|a - b|²), the values and the others, all of the whole batch; and that."""
    center = torch.nan_to_num(keys.nanmean(tuple(range(keys.ndim - 1))), 0.0, 0.0, 0.0)
    scale = tau.sqrt()[..., None, None]
    operands = (queries - center) * scale, (keys - center) * scale, values, *others
    batch = torch.broadcast_shapes(*(x.shape[:-2] for x in operands))
    return [x.expand(*batch, *x.shape[-2:]) for x in operands], batch


def _elements(a: Tensor, b: Tensor) -> Iterator[tuple[int | slice, ...]]:
    """Indices of a batch: one element at a time, or as many in a row as fill a tile."""
    if a.ndim == 2:
        yield ()
        return
    *outer, last = a.shape[:-2]
    group = max(1, ROWS * COLUMNS // (a.shape[-2] * b.shape[-2]))
    for index in itertools.product(*(range(size) for size in outer), range(0, last, group)):
        yield *index[:-1], slice(index[-1], index[-1] + group)


def _kernel_tiles(a: Tensor, b: Tensor, digits: str) -> Iterator[tuple[slice, slice, Tensor]]:
    """Rows, columns, and Φ of each tile."""
    exponential_ = _Exponential(digits)
    for rows, columns, logits in _tiles(a, b, digits):
        yield rows, columns, exponential_(logits)


def _tiles(a: Tensor, b: Tensor, digits: str) -> Iterator[tuple[slice, slice, Tensor]]:
    """Rows, columns, and -½|a - b|² of each tile, in memory that the next one takes over."""
    by_product, products = squared_reach(a, b) <= REACH[digits], _Buffers(a.dtype)
    norms = [half_squared_norms(x).neg_() for x in (a, b)]
    ones = [torch.ones_like(x) for x in norms]
    a1, b1 = torch.cat([a, ones[0], norms[0]], -1), torch.cat([b, norms[1], ones[1]], -1)
    for rows, columns in itertools.product(_slices(a, ROWS), _slices(b, COLUMNS)):
        if by_product:
            logits = products.product(a1[..., rows, :], b1[..., columns, :])
        else:
            apart = torch.cdist(a[..., rows, :], b[..., columns, :], compute_mode="donot_use_mm_for_euclid_dist")
            logits = apart.square_().mul_(-0.5).clamp_(min=-LARGEST)
        yield rows, columns, logits


def _thin_product(x: Tensor, y: Tensor) -> Tensor:
    """X Y of a thin Y as (Yᵀ Xᵀ)ᵀ, which takes a half to a fifth of the time."""
    return (y.mT.contiguous() @ x.mT).mT


class _Exponential:
    """e^x in place of x: from float32 and in it, in half the time, where results need no more digits."""

    def __init__(self, digits: str):
        self._digits, self._low = digits, _Buffers(torch.float32)

    def __call__(self, logits: Tensor) -> Tensor:
        least = LEAST[self._digits]
        if self._digits == "float64":
            return torch.threshold_(logits.clamp_(min=least).exp_(), 2 * math.exp(least), 0.0)
        low = self._low.empty(logits.shape).copy_(logits).clamp_(min=least).exp_()
        return logits.copy_(torch.threshold_(low, 2 * math.exp(least), 0.0))


class _Buffers:
    """Memory for tiles: what is new to the process costs more than a product."""

    def __init__(self, dtype: torch.dtype):
        self._dtype, self._buffers = dtype, {}

    def empty(self, shape: tuple[int, ...]) -> Tensor:
        """The tensor of a shape, with whatever it was left with."""
        if shape not in self._buffers:
            self._buffers[shape] = torch.empty(shape, dtype=self._dtype)
        return self._buffers[shape]

    def product(self, x: Tensor, y: Tensor) -> Tensor:
        """X Yᵀ."""
        return torch.matmul(x, y.mT, out=self.empty((*x.shape[:-1], y.shape[-2])))


def _slices(x: Tensor, size: int) -> list[slice]:
    return [slice(start, start + size) for start in range(0, x.shape[-2], size)]
