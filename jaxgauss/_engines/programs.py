"""Functions as programs of their own: apart, in float64, or both; their derivatives and `vmap` of them, too.

Arguments and results are of the working dtype. JAX's 64-bit mode is on wherever it traces, maps or differentiates such
a program, whatever the caller's mode is: parts of it are in float64, and a loop is mapped after it was traced.
"""

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap
from jaxtyping import Array

from .._arrays.custom_rule import Wanted, of_wanted, with_rule
from .._arrays.devices import has_cuda, platforms
from .._arrays.shapes import are_known
from .apart import apart
from .settings import Settings

PAIRS = 2**17  # of points of the elements of a batch that are computed at once, as a tile may hold all of each


@dataclass(frozen=True)
class How:
    """Whether a function is computed `apart`, and in float64 in JAX's 64-bit mode, whatever the caller's mode is."""

    apart: bool
    double: bool


def _as_program(how: How, function: Callable, options: tuple[Any, ...], *operands: Any) -> Any:
    """function(*options, *operands) of trees of arrays of one dtype; the results have it, too.

    The function is made of JAX's functions. Apart, equal functions and options are one program.
    """
    leaves, tree = jax.tree.flatten(operands)
    return _of_leaves(how, function, options, tree, *leaves)


def _pullback(
    how: How, function: Callable, options: tuple[Any, ...], wanted: Wanted, operands: Any, _: Any, cotangents: Any
) -> list[Array]:
    return as_program(how, Some(Pullback(function), wanted), options, operands, cotangents)


def _tangent(
    how: How, function: Callable, options: tuple[Any, ...], wanted: Wanted, operands: Any, directions: Any
) -> Any:
    return as_program(how, Pushforward(function, wanted), options, operands, directions)


_with_rule = with_rule(_as_program, 3, _pullback, tangent=_tangent)


def as_program(how: How, function: Callable, options: tuple[Any, ...], *operands: Any) -> Any:
    """`_as_program` with rules, in JAX's 64-bit mode."""
    with jax.enable_x64(True):
        return _with_rule(how, function, options, *operands)


def _of_leaves(how: How, function: Callable, options: tuple[Any, ...], tree: Any, *leaves: Array) -> Any:
    run = functools.partial(_run, how.double, function, options, tree)

    @custom_vmap
    def computed(*leaves: Array) -> Any:
        if not how.apart:
            return run(*leaves)
        return apart(_apart, run.args, jax.eval_shape(run, *leaves), *leaves, ways=lambda: [run])

    @computed.def_vmap
    def _(axis_size: int, is_mapped: Any, *leaves: Array):
        mapped = _Mapped(function, len(options), tree, tuple(0 if x else None for x in is_mapped), axis_size)
        results = _of_leaves(how, mapped, options, jax.tree.structure(leaves), *leaves)
        return results, jax.tree.map(lambda _: True, results)

    return computed(*leaves)


def _run(double: bool, function: Callable, options: tuple[Any, ...], tree: Any, *leaves: Array) -> Any:
    if not double:
        return function(*options, *tree.unflatten(leaves))
    with jax.enable_x64(True):
        results = function(*options, *tree.unflatten([x.astype("float64") for x in leaves]))
        return jax.tree.map(lambda x: x.astype(leaves[0].dtype), results)


_program = jax.jit(_run, static_argnums=(0, 1, 2, 3))


def _apart(double: bool, function: Callable, options: tuple[Any, ...], tree: Any, *leaves: np.ndarray) -> Any:
    if not double:
        return _program(double, function, options, tree, *leaves)
    with jax.enable_x64(True):
        return _program(double, function, options, tree, *leaves)


@dataclass(frozen=True)
class Pullback:
    """The pullback of a function: gradients at its operands, from cotangents."""

    function: Callable

    def __call__(self, *given: Any) -> tuple[Any, ...]:
        *options, operands, cotangents = given
        return jax.vjp(functools.partial(self.function, *options), *operands)[1](cotangents)


@dataclass(frozen=True)
class Pushforward:
    """The tangents of a function's results, from tangents of the leaves of its operands that are wanted."""

    function: Callable
    wanted: Wanted

    def __call__(self, *given: Any) -> Any:
        *options, operands, directions = given
        of_moving, moving = of_wanted(functools.partial(self.function, *options), self.wanted, operands)
        return jax.jvp(of_moving, moving, [*directions])[1]


@dataclass(frozen=True)
class Some:
    """Those results of a function that are wanted."""

    function: Callable
    wanted: Wanted

    def __call__(self, *given: Any) -> list[Array]:
        return [*itertools.compress(jax.tree.leaves(self.function(*given)), self.wanted)]


@dataclass(frozen=True)
class _Mapped:
    """A function that is mapped over an axis of leaves of its operands."""

    function: Callable
    num_options: int
    tree: Any
    axes: tuple[int | None, ...]
    axis_size: int

    def __call__(self, *given: Any) -> Any:
        options, leaves = given[: self.num_options], given[self.num_options :]

        def of_one(*leaves: Array) -> Any:
            return self.function(*options, *self.tree.unflatten(leaves))

        if (some := self._at_a_time(leaves)) == self.axis_size:
            return jax.vmap(of_one, self.axes)(*leaves)
        mapped = [
            x.reshape(self.axis_size // some, some, *x.shape[1:])
            for x, axis in zip(leaves, self.axes, strict=True)
            if axis == 0
        ]

        def of_turn(own: list[Array]) -> Any:
            given = iter(own)
            return of_one(*(x if axis is None else next(given) for x, axis in zip(leaves, self.axes, strict=True)))

        found = lax.map(jax.checkpoint(jax.vmap(of_turn)), mapped)
        return jax.tree.map(lambda x: x.reshape(self.axis_size, *x.shape[2:]), found)

    def _at_a_time(self, leaves: tuple[Array, ...]) -> int:
        """How many elements are computed at once: a divisor of their number, of not many pairs in all."""
        rows = max(math.prod(x.shape[slice(axis == 0, -1)]) for x, axis in zip(leaves, self.axes, strict=True))
        if not are_known(rows, self.axis_size):
            return self.axis_size
        return next(
            n for n in range(self.axis_size, 0, -1) if self.axis_size % n == 0 and (n == 1 or n * rows**2 <= PAIRS)
        )


def in_float64(settings: Settings, function: Callable, *operands: Any, far: bool = False) -> Any:
    """function(settings, *operands) in float64; the results in the working dtype.

    `far`: whether it is only for points that are far, and so computed `apart`. Equal functions are then one program.
    """
    is_known = are_known(*(x.size for x in jax.tree.leaves(operands)))
    is_apart = far and is_known and platforms() == ["cpu"] and not settings.engine.alone
    return as_program(How(is_apart, double=True), function, (settings,), *operands)


def _differentiated(settings: Settings, function: Callable, far: bool, *operands: Array) -> Any:
    """function(settings, *operands), which has all digits, and its derivatives `in_float64`; on CUDA as they are."""
    return function(settings, *operands)


def _pullback_in_float64(
    settings: Settings, function: Callable, far: bool, wanted: Wanted, operands: Any, _: Any, cotangents: Any
) -> Any:
    return with_all_digits(settings, Some(Pullback(function), wanted), operands, cotangents, far=far)


def _tangent_in_float64(
    settings: Settings, function: Callable, far: bool, wanted: Wanted, operands: Any, directions: Any
) -> Any:
    return with_all_digits(settings, Pushforward(function, wanted), operands, directions, far=far)


differentiated_in_float64 = with_rule(_differentiated, 3, _pullback_in_float64, tangent=_tangent_in_float64)


def with_all_digits(settings: Settings, function: Callable, *operands: Any, far: bool = False) -> Any:
    """`in_float64`; on CUDA in the working dtype, in which `relative_means` keeps the digits of differences."""
    return function(settings, *operands) if has_cuda() else in_float64(settings, function, *operands, far=far)
