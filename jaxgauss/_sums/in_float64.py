"""Functions and their derivatives of any order in float64, whatever JAX's 64-bit mode.

Logarithms and means of points that lie anywhere need float64: their weights depend on differences of exponents.
Arguments and results are of the working dtype; the 64-bit mode is on wherever JAX traces a rule.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._arrays.devices import has_cuda, vary_like
from .._checks.settings import Settings, working_dtype
from .._engines.near import one_of_two


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def in_float64(settings: Settings, function: Callable, *operands: Any) -> Any:
    """function(settings, *operands) in float64; the results in the working dtype."""
    dtype = working_dtype(settings.dtype)
    with jax.enable_x64(True):
        results = function(settings, *jax.tree.map(lambda x: x.astype("float64"), operands))
        return jax.tree.map(lambda x: x.astype(dtype), results)


def with_all_digits(settings: Settings, function: Callable, *operands: Any) -> Any:
    """`in_float64`; on CUDA in the working dtype, in which `relative_means` keeps the digits of differences."""
    return function(settings, *operands) if has_cuda() else in_float64(settings, function, *operands)


def _backward(settings: Settings, function: Callable, operands: tuple[Any, ...], cotangents: Any) -> Any:
    return in_float64(settings, _Pullback(function), operands, cotangents)


in_float64.defvjp(lambda *args: (in_float64(*args), args[2:]), _backward)


def rules_in_float64(function: Callable, forward: Callable, backward: Callable, formula: Callable, num: int) -> Any:
    """function(settings, *operands) in float64, with the rules of a `jax.custom_vjp`; residuals are float64, too.

    If operand `num`, τ, is differentiated, all gradients are those of `formula`, from differences, because moments
    about a center cancel in the gradient of τ.
    """

    def run(settings: Settings, *operands: Array) -> Any:
        return in_float64(settings, function, *operands)

    def run_forward(settings: Settings, *primals: Any) -> Any:
        operands, by_formula = tuple(x.value for x in primals), primals[num].perturbed
        both = functools.partial(in_float64, settings, _InTwoParts(forward))
        if by_formula:  # one tree of residuals, whatever has gradients: see `rules`
            nothing = jax.tree.map(lambda x: operands[0].ravel()[:0], jax.eval_shape(both, *operands)[1])
            found: Any = run(settings, *operands), nothing
        else:
            found = both(*operands)
        return found[0], (operands, found[1], jnp.zeros([1 + by_formula], bool))

    def run_backward(settings: Settings, residuals: Any, cotangents: Any) -> Any:
        operands, parts, pattern = residuals
        cotangents = jax.tree.map(functools.partial(_instantiated, operands), cotangents, is_leaf=_is_zero)
        if pattern.size == 2:
            return in_float64(settings, _Pullback(formula), operands, cotangents)
        return in_float64(settings, _OfTwoParts(backward), parts, cotangents)

    rules = jax.custom_vjp(run, nondiff_argnums=(0,))
    rules.defvjp(run_forward, run_backward, symbolic_zeros=True)
    return rules


def _is_zero(x: Any) -> bool:
    return isinstance(x, jax.custom_derivatives.SymbolicZero)


def _instantiated(others: tuple[Array, ...], x: Any) -> Array:
    return vary_like(jnp.zeros(x.shape, x.dtype), others) if _is_zero(x) else x


def near_for_each(near: Callable, anywhere: Callable, for_values: Any, for_pulls: Any, *operands: Any) -> Any:
    """`one_of_two` by `for_values`, or by `for_pulls` where it is differentiated."""
    if isinstance(for_pulls, bool):  # a custom rule would make it an array
        return one_of_two(for_pulls, near, anywhere, *operands)
    return _for_each(near, anywhere, for_values, for_pulls, *operands)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _for_each(near: Callable, anywhere: Callable, for_values: Any, _: Any, *operands: Any) -> Any:
    return one_of_two(for_values, near, anywhere, *operands)


def _each_forward(near: Callable, anywhere: Callable, _: Any, for_pulls: Any, *primals: Any) -> Any:
    perturbed = [x.perturbed for x in primals]

    def of_perturbed(*given: Array) -> Any:  # so that the rules see which operands these are
        own = iter(given)
        every = (next(own) if moves else x.value for x, moves in zip(primals, perturbed, strict=True))
        return one_of_two(for_pulls.value, near, anywhere, *every)

    results, pullback = jax.vjp(of_perturbed, *(x.value for x in primals if x.perturbed))
    return results, (pullback, results, jnp.zeros([1 + x for x in perturbed], bool))


def _each_backward(_: Callable, __: Callable, residuals: Any, cotangents: Any) -> tuple[Any, ...]:
    pullback, results, pattern = residuals
    instantiated = functools.partial(_instantiated, tuple(jax.tree.leaves(results)))
    cotangents = jax.tree.map(instantiated, cotangents, is_leaf=_is_zero)
    gradients = iter(pullback(cotangents))
    return None, None, *(next(gradients) if size == 2 else None for size in pattern.shape)


_for_each.defvjp(_each_forward, _each_backward, symbolic_zeros=True)


@dataclass(frozen=True)
class _Pullback:
    """The pullback of a function: gradients at its operands, from cotangents."""

    function: Callable

    def __call__(self, settings: Settings, operands: tuple[Any, ...], cotangents: Any) -> tuple[Any, ...]:
        return jax.vjp(functools.partial(self.function, settings), *operands)[1](cotangents)


@dataclass(frozen=True)
class _InTwoParts:
    """A forward rule with residuals in two parts: each number is a sum of two that float32 holds."""

    forward: Callable

    def __call__(self, settings: Settings, *operands: Array) -> tuple[Any, Any]:
        results, kept = self.forward(settings, *operands)
        high = jax.tree.map(lambda x: x.astype("float32").astype("float64"), kept)
        return results, (high, jax.tree.map(jnp.subtract, kept, high))


@dataclass(frozen=True)
class _OfTwoParts:
    """A backward rule for residuals in two parts."""

    backward: Callable

    def __call__(self, settings: Settings, kept: tuple[Any, Any], cotangents: Any) -> Any:
        return self.backward(settings, jax.tree.map(jnp.add, *kept), cotangents)
