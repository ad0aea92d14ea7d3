"""Sums over all pairs from differences, as plain JAX functions, of which derivatives of every order are formed."""

from typing import Any

from jaxtyping import Array

from ..._arrays.devices import has_cuda
from ..._arrays.points import unit_and_ratio, with_axes_of
from ..._arrays.shapes import K, Q, S, T, V
from ..request import NOTHING, Channels, Columns, PairSums, Request, Rows
from ..tiles import DIFFERENCES_TILE, tiled_sum
from .cuda_tiles import sums_on_cuda
from .tile_sums import difference_tile, subtractable


def sums_by_differences(
    request: Request, *operands: Array, forward_mode: bool = False, of_rows: Array | None = None
) -> PairSums:
    """`PairSums` of all pairs from differences of coordinates; made of plain JAX functions.

    `of_rows`: the indices (M, 1) of queries that are some of the keys, where pairs of equal index are left out.
    """
    if has_cuda() and not forward_mode:  # whose rules are those of reverse mode
        return sums_on_cuda(request, *operands)
    queries, keys, values, tau, row_weights, weights = operands
    _, scale, ratio = unit_and_ratio(tau, queries)

    def tile_sum(rows: Rows, columns: tuple[Any, ...], values: Array) -> PairSums:
        keys, weights, indices = columns
        return difference_tile(request, scale, rows, Columns(keys, values, weights, indices), ratio)

    i, j = (request.indices(x.shape[-2]) for x in (queries, keys))
    queries, keys = subtractable(queries), subtractable(keys)
    rows = Rows(with_axes_of(tau, queries), row_weights, i if of_rows is None else of_rows)  # j is None if all count
    return tiled_sum(tile_sum, rows, (keys, weights, j), values, tile=DIFFERENCES_TILE)


def difference_sums(channels: Channels, queries: Q, keys: K, values: V, tau: T, *, others: bool = False) -> S:
    """The sums of `sums_by_differences`, without pulls, for derivatives of either mode."""
    operands = queries, keys, values, tau, queries[..., :0], keys[..., :0]
    return sums_by_differences(Request(channels, NOTHING, others=others), *operands, forward_mode=True).sums
