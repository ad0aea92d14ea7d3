"""Functions and their derivatives of any order in float64, whatever JAX's 64-bit mode.

Logarithms and means of points that lie anywhere need float64: their weights depend on differences of exponents.
Those of near points do not; `by_rules` takes either way. Arguments and results are of the working dtype; the 64-bit
mode is on wherever JAX traces a rule.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._arrays.custom_rule import Wanted, with_rule
from .._arrays.devices import has_cuda, platforms, vary_like
from .._arrays.shapes import are_known
from .._checks.settings import Settings
from .._engines.branches import one_of_two
from .._engines.programs import How, Pullback, Some, as_program


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


def _pullback(
    settings: Settings, function: Callable, far: bool, wanted: Wanted, operands: Any, _: Any, cotangents: Any
) -> Any:
    return with_all_digits(settings, Some(Pullback(function), wanted), operands, cotangents, far=far)


differentiated_in_float64 = with_rule(_differentiated, 3, _pullback)


def with_all_digits(settings: Settings, function: Callable, *operands: Any, far: bool = False) -> Any:
    """`in_float64`; on CUDA in the working dtype, in which `relative_means` keeps the digits of differences."""
    return function(settings, *operands) if has_cuda() else in_float64(settings, function, *operands, far=far)


@dataclass(frozen=True)
class Rules:
    """A function of near points, or of points anywhere, and its derivatives.

    Attributes:
        function: of settings, whether points are near, and operands.
        forward: the same, with residuals: the operands, and what is kept.
        backward: of settings, whether points are near, residuals and cotangents.
        formula: of settings and operands, from differences.
        of_any: of settings and operands, wherever points lie, with the derivatives of the formula.
        tau: the number of the operand τ.
    """

    function: Callable
    forward: Callable
    backward: Callable
    formula: Callable
    of_any: Callable
    tau: int

    def near(self, settings: Settings, *operands: Array) -> Any:
        """By products."""
        return self.function(settings, True, *operands)

    def kept(self, settings: Settings, near: bool, *operands: Array) -> tuple[Any, tuple[Array, ...]]:
        """The results, and what is kept."""
        results, residuals = self.forward(settings, near, *operands)
        return results, residuals[len(operands) :]


def by_rules(rules: Rules, settings: Settings, for_values: Any, for_pulls: Any, *operands: Array) -> Any:
    """The function by its rules, as for near points if `for_values`; where it is differentiated, if `for_pulls`.

    If τ is differentiated, all gradients of points anywhere are those of the formula, because moments about a center
    cancel in the gradient of τ.
    """
    if for_pulls is True:
        return rules.near(settings, *operands)
    if for_pulls is False:  # a custom rule would make it an array
        for_values = for_pulls = None
    return _of_either(rules, settings, for_values, for_pulls, *operands)


def _either(is_near: Array | None, near: Callable, anywhere: Callable, *operands: Any) -> Any:
    return one_of_two(False if is_near is None else is_near, near, anywhere, *operands)


def _by_points(rules: Rules, settings: Settings, for_values: Array | None, _: Array | None, *operands: Array) -> Any:
    return _either(for_values, *(functools.partial(f, settings) for f in (rules.near, rules.of_any)), *operands)


def _forward(rules: Rules, settings: Settings, wanted: Wanted, _: Any, is_near: Array | None, *operands: Array) -> Any:
    far, wanted = is_near is not None, wanted[-len(operands) :]

    def zeros(like: Any) -> Any:
        return jax.tree.map(lambda x: vary_like(jnp.zeros(x.shape, x.dtype), operands), like)

    def near(*operands: Array) -> Any:
        results, kept = rules.kept(settings, True, *operands)
        return results, (kept, zeros(kept))

    def anywhere(*operands: Array) -> Any:
        in_two_parts = functools.partial(in_float64, settings, _InTwoParts(rules.kept), far=far)
        if _by_formula(rules, wanted):
            return rules.of_any(settings, *operands), zeros(jax.eval_shape(in_two_parts, *operands)[1])
        return in_two_parts(*operands)

    return _either(is_near, near, anywhere, *operands)


def _backward(rules: Rules, settings: Settings, wanted: Wanted, given: Any, parts: Any, cotangents: Any) -> Any:
    _, is_near, *operands = given
    far, wanted = is_near is not None, wanted[-len(operands) :]

    def near(operands: Any, parts: Any, cotangents: Any) -> Any:
        return [*itertools.compress(rules.backward(settings, True, (*operands, *parts[0]), cotangents), wanted)]

    def anywhere(operands: Any, parts: Any, cotangents: Any) -> Any:
        if _by_formula(rules, wanted):
            return with_all_digits(settings, Some(Pullback(rules.formula), wanted), operands, cotangents, far=far)
        return in_float64(settings, Some(_OfTwoParts(rules.backward), wanted), operands, parts, cotangents, far=far)

    return _either(is_near, near, anywhere, tuple(operands), parts, cotangents)


_of_either = with_rule(_by_points, 2, _backward, _forward)


def _by_formula(rules: Rules, perturbed: Sequence[bool]) -> bool:
    return has_cuda() or perturbed[rules.tau]


@dataclass(frozen=True)
class _InTwoParts:
    """What `kept` gives of points that are not near, in two parts: each number is a sum of two that float32 holds."""

    kept: Callable

    def __call__(self, settings: Settings, *operands: Array) -> tuple[Any, Any]:
        results, kept = self.kept(settings, False, *operands)
        high = jax.tree.map(lambda x: x.astype("float32").astype("float64"), kept)
        return results, (high, jax.tree.map(jnp.subtract, kept, high))


@dataclass(frozen=True)
class _OfTwoParts:
    """A backward rule for points that are not near, from what is kept in two parts."""

    backward: Callable

    def __call__(self, settings: Settings, operands: tuple[Array, ...], parts: tuple[Any, Any], cotangents: Any) -> Any:
        return self.backward(settings, False, (*operands, *map(jnp.add, *parts)), cotangents)
