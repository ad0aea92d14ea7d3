"""Gaussians as sums of waves: coefficients of keys and values, and values at queries, by matrix products or finufft.

On an interval of length L, in bandwidths, Φ is a Fourier series of a period P > L: by Poisson's formula

    exp(-x²/2) = Σ_j g_j e^(iωx) + error,   ω = 2πj/P,   g_j = √2π/P e^(-ω²/2),   |j| ≤ m

and a product of such series in D dimensions. The error is at most 4D e^(-b²/2) for P = L + b and 2πm/P ≥ b. In real
numbers the waves are T(x) = [cos ωx, sin ωx], and Φ(q - k) = Σ g T(q) T(k). With A = Σ_n v_n T(k_n₁) ⊗ T(k_n₂) ⊗ … the
sum

    Σ_n Φ(q_m, k_n) v_n = Σ_j g_j A_j T_j(q_m)

takes O(M + N) operations for given L. Sources: Barnett, Greengard & Rachh 2023, arXiv:2305.11065, for nodes and bound;
Potts, Steidl & Nieslony 2004, for the sum.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from ..._arrays.compensated import compensated, two_sum
from ..._arrays.custom_rule import Wanted, chosen, with_rule
from ..._arrays.devices import vary_like
from ..._arrays.points import dot
from ..._arrays.sine import sine_of
from ..tiles import blocks, scan
from . import nufft
from .frequencies import STEPS, WAVES, Nodes

POINTS = {1: 4096, 2: 4096, 3: 1024}  # points at a time, by dimension
GROUP = 128  # points that one product adds: equal terms round the same way, so errors do not average
AT_ONCE = 2**24  # numbers of points and waves at a time where all waves are computed at once
TOGETHER = 1024  # points that one product adds there


def derivative(of: Nodes, found: Float[Array, "c ..."], d: int) -> Array:
    """Coefficients of the derivative in coordinate d: A cos ωx + B sin ωx becomes ωB cos ωx - ωA sin ωx."""
    dim = len(of.period)
    return -_turned(found, WAVES[dim], d + 1) * (2 * math.pi / of.period[d] * of.numbers).reshape(_axes(dim)[d])


def _turned(x: Array, waves: int, axis: int) -> Array:
    """Cosines and sines, which alternate along an axis in blocks of so many waves, as -sines and cosines."""
    parted = x.reshape(*x.shape[:axis], -1, 2, waves, *x.shape[axis + 1 :])
    cosines, sines = jnp.split(parted, 2, axis + 1)
    return jnp.concatenate([-sines, cosines], axis + 1).reshape(x.shape)


def _axes(dim: int) -> list[list[int]]:
    return [[1, *(-1 if e == d else 1 for e in range(dim))] for d in range(dim)]


def _coefficients(of: Nodes, keys: Float[Array, "n d"], values: Float[Array, "c n"]) -> Float[Array, "c ..."]:
    """A = Σ_n v_n T(k_n₁) ⊗ T(k_n₂) ⊗ … (C, waves, waves, …); coefficients beyond the nodes' blocks are zero."""
    by_products = functools.partial(_coefficients_by_products, of, keys, values)
    return _one_of_two(
        of, by_products, functools.partial(nufft.coefficients_by_transforms, of, WAVES[keys.shape[1]], keys, values)
    )


def _values_at(of: Nodes, queries: Float[Array, "m d"], found: Float[Array, "c ..."]) -> Float[Array, "c m"]:
    """Σ_j A_j T_j(q_m) of coefficients A."""
    by_products = functools.partial(_values_by_products, of, queries, found, False)
    return _one_of_two(
        of, by_products, functools.partial(nufft.values_by_transforms, of, WAVES[queries.shape[1]], queries, found)
    )


def _derivatives_at(of: Nodes, queries: Float[Array, "m d"], found: Float[Array, "c ..."]) -> Float[Array, "c+d m"]:
    """Values of the first channel, its D derivatives, values of the others: one product more than `values_at`."""
    dim, derivatives = queries.shape[1], [derivative(of, found[:1], d) for d in range(queries.shape[1])]

    def by_products() -> Array:
        return _values_by_products(of, queries, jnp.concatenate([found[:1], derivatives[-1], found[1:]]), True)

    def by_transforms() -> Array:
        return nufft.values_by_transforms(
            of, WAVES[dim], queries, jnp.concatenate([found[:1], *derivatives, found[1:]])
        )

    return _one_of_two(of, by_products, by_transforms)


def _one_of_two(of: Nodes, by_products: Callable[[], Array], by_transforms: Callable[[], Array]) -> Array:
    if of.eps is None:
        return by_products()
    return by_transforms() if of.by_products is None else lax.cond(of.by_products, by_products, by_transforms)


def _coefficients_by_products(of: Nodes, keys: Float[Array, "n d"], values: Float[Array, "c n"]) -> Array:
    dim, channels = keys.shape[1], values.shape[0]
    points = _in_blocks(of, channels, keys, values.T)

    def add(total: Array, block: Array, indices: list[Array], waves: list[Array]) -> Array:
        products = _products_at_once if of.at_once else _products
        part = products(_at(points[1], block).T, waves).reshape(channels, *map(len, waves))
        before, lacking = _sliced(total, indices := [jnp.zeros_like(block), *indices], (2, *part.shape))
        after, rest = two_sum(before, part)
        return _updated(total, jnp.stack([after, lacking + rest]), indices)

    shape = 2, channels, *[len(of.numbers)] * dim  # the sums, and their rounding errors
    return compensated(*_over_waves(of, points[0], add, shape, [values]))


def _products_at_once(values: Float[Array, "c b"], waves: list[Array]) -> Float[Array, "r waves"]:
    """`_products`, all groups at once: a GPU needs many to be busy."""
    for x in waves[:-1]:
        values = (values[:, None] * x[None]).reshape(-1, values.shape[-1])
    together = min(TOGETHER, values.shape[1])
    groups = (x.reshape(len(x), -1, together) for x in (values, waves[-1]))
    return jnp.einsum("rgb,wgb->grw", *groups, precision=lax.Precision.HIGHEST).sum(0)


def _products(values: Float[Array, "c b"], waves: list[Array], in_groups: bool = True) -> Float[Array, "r waves"]:
    """Σ_n v_n T(k_n₁) ⊗ T(k_n₂) ⊗ … of a block of points, perhaps a group of them at a time."""
    if in_groups and values.shape[1] > GROUP:
        if len(values) == len(waves) == 1:
            return _summed((values * waves[0]).reshape(len(waves[0]), -1, GROUP)).sum(-1)[None]
        groups = [jnp.moveaxis(x.reshape(len(x), -1, GROUP), 1, 0) for x in (values, *waves)]
        zeros = jnp.zeros((math.prod(map(len, (values, *waves[:-1]))), len(waves[-1])), values.dtype)
        zeros = vary_like(zeros, groups)
        return lax.scan(lambda total, x: (total + _products(x[0], x[1:], False), None), zeros, groups)[0]
    for x in waves[:-1]:
        values = (values[:, None] * x[None]).reshape(-1, values.shape[-1])
    return dot(values, waves[-1].T)


def _values_by_products(of: Nodes, queries: Array, found: Array, derivatives: bool) -> Array:
    """`values_at` by matrix products.

    With `derivatives`, the second channel is the derivative of the first in the last coordinate. The others are
    inserted before it, from derivatives of a point's waves.
    """
    dim, channels = queries.shape[1], found.shape[0]
    (points,) = _in_blocks(of, channels, queries)

    def add(total: Array, block: Array, indices: list[Array], waves: list[Array]) -> Array:
        shape = list(map(len, waves))
        part = dot(_sliced(found, indices, (channels, *shape)).reshape(-1, shape[0]), waves[-1])
        for d, x in list(enumerate(waves))[-2::-1]:
            parts = part.reshape(-1, *shape[: d + 1], part.shape[-1])
            part = summed(parts.reshape(-1, *x.shape) * x[None])
            if derivatives:
                ahead = _sliced(of.numbers, indices[d + 1 : d + 2], shape[:1])[:, None] * (2 * math.pi / of.period[d])
                own = summed(parts[0].reshape(-1, *x.shape) * (ahead * _turned(x, WAVES[dim], 0))[None])
                part = jnp.concatenate([part[: len(own)], own, part[len(own) :]])
        place = block, *[jnp.zeros_like(block)] * 2
        return _updated(total, _sliced(total, place, (1, *part.shape)) + part[None], place)

    summed = functools.partial(jnp.sum, axis=1) if of.at_once else _summed
    rows = channels + dim - 1 if derivatives else channels
    total = _over_waves(of, points, add, (len(points), rows, points.shape[1]), [found])
    return jnp.moveaxis(total, 0, 1).reshape(rows, -1)[:, : len(queries)]


# Derivatives. `coefficients` and `values_at` are each other's transposes, and `derivative` differentiates waves. The
# rules are made of these three, so they hold for every order.


def _coefficients_backward(residuals: tuple[Nodes, Array, Array], g: Array) -> tuple[Any, ...]:
    of, keys, values = residuals
    derivatives = [(values * values_at(of, keys, derivative(of, g, d))).sum(0) for d in range(keys.shape[1])]
    return _no_gradient(of), jnp.stack(derivatives, 1), values_at(of, keys, g)


def _values_backward(residuals: tuple[Nodes, Array, Array], g: Array) -> tuple[Any, ...]:
    of, queries, found = residuals
    derivatives = [(g * values_at(of, queries, derivative(of, found, d))).sum(0) for d in range(queries.shape[1])]
    return _no_gradient(of), jnp.stack(derivatives, 1), coefficients(of, queries, g)


def _derivatives_backward(residuals: tuple[Nodes, Array, Array], g: Array) -> tuple[Any, ...]:
    of, queries, found = residuals

    def each(queries: Array, found: Array) -> Array:
        derivatives = [derivative(of, found[:1], d) for d in range(queries.shape[1])]
        return values_at(of, queries, jnp.concatenate([found[:1], *derivatives, found[1:]]))

    return _no_gradient(of), *jax.vjp(each, queries, found)[1](g)


def _no_gradient(of: Nodes) -> Nodes:
    return Nodes(*[None] * len(of))  # type: ignore[arg-type]


# Residuals are behind a barrier: JAX 0.10.2 confuses those that are arguments with constants, where the rule is
# differentiated again in a loop.
def _with_pullback(function: Callable, pullback: Callable) -> Any:
    def forward(_: Wanted, *operands: Any) -> tuple[Any, Any]:
        return ruled(*operands), lax.optimization_barrier(operands)

    def backward(wanted: Wanted, operands: Any, kept: Any, g: Array) -> list[Array]:
        return chosen(wanted, operands, pullback(kept, g))

    ruled = with_rule(function, 0, backward, forward)
    return ruled


coefficients = _with_pullback(_coefficients, _coefficients_backward)
values_at = _with_pullback(_values_at, _values_backward)
derivatives_at = _with_pullback(_derivatives_at, _derivatives_backward)


def _in_blocks(of: Nodes, channels: int, points: Array, *others: Array) -> list[Array]:
    num, dim = points.shape
    most = AT_ONCE // (channels * len(of.numbers) ** max(1, dim - 1)) if of.at_once else POINTS[dim]
    group = TOGETHER if of.at_once else GROUP
    size = min(max(1, most), max(1, num))
    if size > group:  # all groups are full
        size = min(most - most % group, size + -size % group)
    return [blocks(x, size) for x in (points, *others)]


def _over_waves(
    of: Nodes,
    points: Float[Array, "blocks b d"],
    add: Callable[[Array, Array, list[Array], list[Array]], Array],
    shape: tuple[int, ...],
    operands: Sequence[Array],
) -> Array:
    """What `add` makes of zeros, for all blocks of points and of waves; it also gets the index of the coefficients."""
    others = jax.tree.leaves((of, points, operands))
    zero, zeros = (vary_like(jnp.zeros(x, y), others) for x, y in (((), "int32"), (shape, points.dtype)))
    if of.indices is None:
        start = [jnp.zeros_like(zero)] * (1 + points.shape[-1])

        def add_all(total: Array, block: tuple[Array, Array]) -> tuple[Array, None]:
            return add(total, block[0], start, _all_waves(of, block[1])), None

        return scan(add_all, zeros, (np.arange(len(points), dtype="int32"), points))[0]
    indices, num = of.indices, of.counts.prod(dtype="int32")

    def step(state: tuple[Array, Array]) -> tuple[Array, Array]:
        number, total = state
        block, place = lax.div(number, num), _at(indices, lax.rem(number, num))
        starts = [jnp.zeros_like(number), *(2 * WAVES[points.shape[-1]] * place)]
        return number + 1, add(total, block, starts, list(_waves(of, _at(points, block), place)))

    return lax.while_loop(lambda state: state[0] < len(points) * num, step, (zero, zeros))[1]


def _summed(x: Float[Array, "r waves b"]) -> Float[Array, "r b"]:
    """`x.sum(1)` by halves, which takes XLA on a CPU a third of the time."""
    while (num := x.shape[1]) > 1:
        half = num // 2
        both = x[:, :half] + x[:, half : 2 * half]
        x = jnp.concatenate([both, x[:, 2 * half :]], 1) if num % 2 else both
    return x[:, 0]


# Indices are never negative: to say so spares XLA a program for each, which takes 10 ms to compile.
_sliced = functools.partial(lax.dynamic_slice, allow_negative_indices=False)
_updated = functools.partial(lax.dynamic_update_slice, allow_negative_indices=False)
_at = functools.partial(lax.dynamic_index_in_dim, keepdims=False, allow_negative_indices=False)


def _waves(of: Nodes, points: Float[Array, "b d"], place: Int[Array, " d"]) -> Float[Array, "d waves b"]:
    """The waves of a block of coefficients, by a loop: otherwise XLA would form them again for each of their products.

    Phases are in turns and in float64, whatever the dtype of the points, so that whole turns are removed exactly.
    """
    num = WAVES[points.shape[1]]
    ahead = np.repeat([0.25, 0.0], num)[:, None]  # cosines are sines, a quarter of a turn ahead

    def of_coordinate(given: tuple[Array, ...]) -> Array:
        i, *rest = given
        number = (num * i + np.tile(np.arange(num, dtype="int32"), 2))[:, None]
        with jax.enable_x64(True):
            x, center, period = (y.astype("float64") for y in rest)
            phase = number.astype("float64") * ((x - center) / period)[None] + ahead
            turns = (phase - jnp.round(phase)).astype(points.dtype)
        return sine_of(turns)

    return lax.map(of_coordinate, (place, points.T, of.center, of.period))


def _all_waves(of: Nodes, points: Float[Array, "b d"]) -> list[Array]:
    """All waves of each coordinate (waves, b), without float64.

    A phase is a wave's number times a point's place in the period. That is a multiple of 2⁻¹², whose products with the
    number and with the first bits of the period are exact, and a small rest.
    """
    ahead = np.tile(np.repeat([0.25, 0.0], num := WAVES[points.shape[1]]), len(of.numbers) // (2 * num))[:, None]

    def of_coordinate(x: Float[Array, " b"], center: Array, period: Array) -> Array:
        apart, rest = two_sum(x, -center)
        place = jnp.round(apart / period * STEPS) / STEPS
        first = lax.reduce_precision(period, jnp.finfo(period.dtype).nexp, 10)
        rest = ((apart - place * first) - place * (period - first) + rest) / period
        numbers, phase = of.numbers[:, None], of.numbers[:, None] * place[None]
        turns = (phase - jnp.round(phase)) + (numbers * rest[None] + ahead.astype(x.dtype))
        return sine_of(turns - jnp.round(turns))

    return [of_coordinate(*x) for x in zip(points.T, of.center, of.period, strict=True)]
