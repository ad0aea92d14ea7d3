"""Sums over the pairs of different index among few points, which are their own keys; their derivatives are JAX's."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._arrays.devices import has_cuda
from .._kernels.kernels import Kernel
from .branches import one_of_two
from .differences.all_pairs import sums_by_differences
from .far import without_overflow
from .near import unbatched
from .plan import NEAR
from .products.pair_sums import sums_by_products, within
from .request import NOTHING, Channels, PairSums, Request
from .settings import Settings


def sums_of_others(settings: Settings, queries: Array, keys: Array, values: Array, tau: Array) -> Array:
    """Σ_{n ≠ m} κ v_n (…, M, C) of operands of equal rank: by products where these are accurate, else differences."""
    kernel, nothing = settings.kernel, queries[..., :0]
    request = Request(Channels((kernel,), values.shape[-1:]), NOTHING, others=True)
    by_differences = functools.partial(sums_by_differences, request, forward_mode=settings.forward_mode)

    def by_pairs(*operands: Array) -> list[PairSums]:
        if kernel.kinked or has_cuda():
            return [by_differences(*operands)]
        are_near = _look(kernel.slope)(*operands[:4])
        return [one_of_two(are_near, functools.partial(sums_by_products, request), by_differences, *operands)]

    return without_overflow(by_pairs, queries, keys, values, tau, nothing, keys[..., :0])[0].sums


@functools.cache
def _look(slope: Kernel) -> Callable[..., jax.Array]:
    """Whether products give values and pulls of a kernel of this slope; one boolean, also under `vmap`."""

    def are_near(queries: Array, keys: Array, values: Array, tau: Array) -> jax.Array | bool:
        weights = jnp.abs(values).max(-1, keepdims=True, initial=0)
        return within(NEAR[queries.dtype.name], queries, keys, tau, slope, weights)

    return unbatched(are_near)
