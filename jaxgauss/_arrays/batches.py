"""Leading axes: a function of single arrays, mapped over batches that broadcast."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def over_leading_axes(*ranks: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a function whose last arguments are arrays of these ranks, or of less, or None.

    Their further leading axes broadcast, and the results have them. An array without one is shared, as by `vmap`.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*given: Any) -> Any:
            static, arrays = given[: -len(ranks)], given[-len(ranks) :]
            leading = [np.shape(x)[: max(0, np.ndim(x) - rank)] for x, rank in zip(arrays, ranks, strict=True)]
            of_one = functools.partial(function, *static)
            return _mapped(of_one, leading, arrays) if any(leading) else of_one(*arrays)

        return call

    return decorate


def _mapped(function: Callable[..., Any], leading: list[tuple[int, ...]], arrays: tuple[Any, ...]) -> Any:
    batch = jnp.broadcast_shapes(*leading)
    apart: list[Any] = [None] * len(batch)  # for each axis of the batch: 0 for an array that has it, else None
    squeezed = list(arrays)
    for i, size in enumerate(batch):
        places = [len(axes) - len(batch) + i for axes in leading]
        has = [place >= 0 and axes[place] == size for place, axes in zip(places, leading, strict=True)]
        apart[i] = tuple(0 if x else None for x in has)
    for n, axes in enumerate(leading):
        shared = [j for j in range(len(axes)) if apart[len(batch) - len(axes) + j][n] is None]
        squeezed[n] = jnp.squeeze(arrays[n], shared) if shared else arrays[n]
    for axes in reversed(apart):
        function = jax.vmap(function, axes)
    return function(*squeezed)
