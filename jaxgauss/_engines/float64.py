"""What float32 does not hold, in float64: by PyTorch on CPUs, without it by differences, elsewhere in XLA's blocks."""

import contextlib
import functools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

from .._checks.settings import Settings, are_known, working_dtype
from . import bridge
from .blocked import blocked_pullback, blocked_sum
from .differences import differences_pullback, differences_sum
from .means import blocked_means
from .plan import NATIVE

if TYPE_CHECKING:
    from torch import Tensor

MANY = 2**22  # pairs of points whose sum takes long enough to be spoken of


class Wide(NamedTuple):
    """How something is computed in float64, of operands of equal rank.

    Attributes:
        by_torch: its name in `torch_backend`.
        num_operands: that it takes.
        shapes: of the results, from the operands.
        by_differences, in_blocks: by XLA, where PyTorch is not to be used and where it does not run.
    """

    by_torch: str
    num_operands: int
    shapes: Callable[..., bridge.Shapes]
    by_differences: Callable[..., Any]
    in_blocks: Callable[..., Any]


def in_float64(settings: Settings, function: Callable, *operands: Any) -> Any:
    """function(settings, *operands) in float64, whatever JAX's mode; the results in the working dtype."""
    dtype = working_dtype(settings.dtype)
    with jax.enable_x64(True):
        operands = jax.tree.map(lambda x: x.astype("float64"), operands)
        results = function(replace(settings, wide=True, guarded=False), *operands)
        return jax.tree.map(lambda x: x.astype(dtype), results)


def out_of_reach(settings: Settings, wide: Wide, platform: str) -> Callable[..., tuple[jax.Array, ...]]:
    """What computes it in float64, of points out of reach.

    PyTorch takes operands as they are: what XLA holds for a branch that is seldom taken, it is given at every call.
    """
    settings = replace(settings, far=True)

    def compute(*operands: jax.Array) -> tuple[jax.Array, ...]:
        operands = operands[: wide.num_operands]
        if _serves(platform, settings, operands):
            return _in_pytorch(wide, settings, operands)
        return in_float64(settings, functools.partial(in_tiles, wide, platform), *operands)

    return compute


def in_tiles(wide: Wide, platform: str, settings: Settings, *operands: jax.Array) -> tuple[jax.Array, ...]:
    """It, of operands in float64, with the digits of the settings' dtype."""
    operands = operands[: wide.num_operands]
    if _serves(platform, settings, operands):
        return _in_pytorch(wide, settings, operands)
    by_xla = wide.by_differences if platform == "cpu" or settings.method == "differences" else wide.in_blocks
    results = by_xla(*operands)
    return results if isinstance(results, tuple) else (results,)


def _in_pytorch(wide: Wide, settings: Settings, operands: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    options = wide.by_torch, str(working_dtype(settings.dtype)), settings.far
    with jax.named_scope("float64"):
        return tuple(bridge.call(_by_torch, options, wide.shapes(*operands), operands))


def closer(platform: str, settings: Settings, points: jax.Array, tau: jax.Array) -> tuple[jax.Array]:
    """All points (P, D) of a sum, or of a set of sums, closer together by `torch_backend.closer`; or as they are."""
    if not _serves(platform, settings, (points, tau)):
        return (points,)
    (moved,) = bridge.call(_closer, (), [points.shape], [points, tau])
    return (moved,)


def _serves(platform: str, settings: Settings, operands: tuple[jax.Array, ...]) -> bool:
    """Whether PyTorch does it."""
    known = are_known(*(size for x in operands for size in x.shape))
    return platform == "cpu" and known and settings.method not in NATIVE


def _shapes_of_means(queries: jax.Array, keys: jax.Array, values: jax.Array, tau: jax.Array, *others: jax.Array):
    """Of means (…, M, C), and of their logarithms (…, M, 1)."""
    batch = jax.numpy.broadcast_shapes(tau.shape, *(x.shape[:-2] for x in (queries, keys, values, *others)))
    return [(*batch, queries.shape[-2], width) for width in (values.shape[-1], 1)]


SUM = Wide("wide_sum", 4, lambda *x: _shapes_of_means(*x)[:1], differences_sum, blocked_sum)
PULLBACK = Wide("wide_pullback", 5, lambda *x: [y.shape for y in x[:3]], differences_pullback, blocked_pullback)
MEANS = Wide("wide_means", 5, _shapes_of_means, blocked_means, blocked_means)


def _by_torch(function: str, digits: str, far: bool) -> Callable:
    def run(*operands: "Tensor") -> "Sequence[Tensor]":  # PyTorch is loaded when points are found out of reach
        if far and operands[0].shape[-2] * operands[1].shape[-2] >= MANY:
            _say_far()
        results = getattr(bridge.backend(), function)(*(x.double() for x in operands), digits=digits)
        return results if isinstance(results, tuple) else [results]

    return run


def _closer() -> Callable:
    return lambda *operands: [bridge.backend().closer(*operands)]


@functools.cache
def _say_far() -> None:
    """Warn once that sums are slow."""
    with contextlib.suppress(UserWarning):  # made an error by a filter, it would end the sum
        warnings.warn(
            "jaxgauss: points lie farther from their center, in bandwidths, than float32 has digits for (see"
            " `jaxgauss.explain`): they are summed in float64, which takes three to ten times as long.",
            stacklevel=2,
        )
