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
from jax.custom_batching import custom_vmap
from jaxtyping import Array

from .._arrays.devices import has_cuda, vary_like
from .._checks.settings import Settings, working_dtype
from .._engines.branches import one_of_two


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def in_float64(settings: Settings, function: Callable, *operands: Any) -> Any:
    """function(settings, *operands) in float64; the results in the working dtype."""
    dtype = working_dtype(settings.dtype)

    def computed(*operands: Any) -> Any:
        results = function(settings, *jax.tree.map(lambda x: x.astype("float64"), operands))
        return jax.tree.map(lambda x: x.astype(dtype), results)

    return _in_64_bit_mode(computed)(*operands)


def _in_64_bit_mode(function: Callable) -> Callable:
    """The function in the 64-bit mode, in which `vmap` maps it as well: a program may be mapped after it was traced."""

    @custom_vmap
    def computed(*operands: Any) -> Any:
        with jax.enable_x64(True):
            return function(*operands)

    @computed.def_vmap
    def _(axis_size: int, is_mapped: Any, *operands: Any):
        axes = jax.tree.map(lambda mapped: 0 if mapped else None, is_mapped)
        results = _in_64_bit_mode(jax.vmap(function, tuple(axes), axis_size=axis_size))(*operands)
        return results, jax.tree.map(lambda _: True, results)

    return computed


def with_all_digits(settings: Settings, function: Callable, *operands: Any) -> Any:
    """`in_float64`; on CUDA in the working dtype, in which `relative_means` keeps the digits of differences."""
    return function(settings, *operands) if has_cuda() else in_float64(settings, function, *operands)


def _backward(settings: Settings, function: Callable, operands: tuple[Any, ...], cotangents: Any) -> Any:
    return in_float64(settings, _Pullback(function), operands, cotangents)


in_float64.defvjp(lambda *args: (in_float64(*args), args[2:]), _backward)


@dataclass(frozen=True)
class Rules:
    """A function of near points, or of points anywhere, and its derivatives.

    Attributes:
        function: of settings, whether points are near, and operands.
        forward: the same, with residuals: the operands, and what is kept.
        backward: of settings, whether points are near, residuals and cotangents.
        formula: of settings and operands, from differences.
        of_any: of settings and operands, with the derivatives of the formula.
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

    def anywhere(self, settings: Settings, *operands: Array) -> Any:
        """In float64; on CUDA from differences, which keep their digits in float32."""
        if has_cuda():
            return self.of_any(settings, *operands)
        return in_float64(settings, _Anywhere(self.function), *operands)

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


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _of_either(rules: Rules, settings: Settings, for_values: Array | None, _: Array | None, *operands: Array) -> Any:
    return _either(for_values, *(functools.partial(f, settings) for f in (rules.near, rules.anywhere)), *operands)


def _either_forward(rules: Rules, settings: Settings, _: Any, for_pulls: Any, *primals: Any) -> Any:
    operands, perturbed = tuple(x.value for x in primals), [x.perturbed for x in primals]

    def zeros(like: Any) -> Any:
        return jax.tree.map(lambda x: vary_like(jnp.zeros(x.shape, x.dtype), operands), like)

    def near(*operands: Array) -> Any:
        results, kept = rules.kept(settings, True, *operands)
        return results, (kept, zeros(kept))

    def anywhere(*operands: Array) -> Any:
        in_two_parts = functools.partial(in_float64, settings, _InTwoParts(rules.kept))
        if _by_formula(rules, perturbed):
            return rules.anywhere(settings, *operands), zeros(jax.eval_shape(in_two_parts, *operands)[1])
        return in_two_parts(*operands)

    is_near = None if for_pulls is None else for_pulls.value
    results, parts = _either(is_near, near, anywhere, *operands)
    # JAX keeps one tree of residuals; the shape of an array says which gradients are wanted: see `rules`
    return results, (is_near, operands, parts, jnp.zeros([1 + x for x in perturbed], bool))


def _either_backward(rules: Rules, settings: Settings, residuals: Any, cotangents: Any) -> tuple[Any, ...]:
    is_near, operands, parts, pattern = residuals
    wanted = [size == 2 for size in pattern.shape]

    def near(operands: Any, parts: Any, cotangents: Any) -> Any:
        return [*itertools.compress(rules.backward(settings, True, (*operands, *parts[0]), cotangents), wanted)]

    def anywhere(operands: Any, parts: Any, cotangents: Any) -> Any:
        if _by_formula(rules, wanted):
            found: Any = with_all_digits(settings, _Pullback(rules.formula), operands, cotangents)
        else:
            found = in_float64(settings, _OfTwoParts(rules.backward), operands, parts, cotangents)
        return [*itertools.compress(found, wanted)]

    cotangents = jax.tree.map(functools.partial(_instantiated, operands), cotangents, is_leaf=_is_zero)
    gradients = iter(_either(is_near, near, anywhere, operands, parts, cotangents))
    return None, None, *(next(gradients) if x else None for x in wanted)


_of_either.defvjp(_either_forward, _either_backward, symbolic_zeros=True)


def _by_formula(rules: Rules, perturbed: Sequence[bool]) -> bool:
    return has_cuda() or perturbed[rules.tau]


def _is_zero(x: Any) -> bool:
    return isinstance(x, jax.custom_derivatives.SymbolicZero)


def _instantiated(others: tuple[Array, ...], x: Any) -> Array:
    return vary_like(jnp.zeros(x.shape, x.dtype), others) if _is_zero(x) else x


@dataclass(frozen=True)
class _Anywhere:
    """A function of points that are not near."""

    function: Callable

    def __call__(self, settings: Settings, *operands: Array) -> Any:
        return self.function(settings, False, *operands)


@dataclass(frozen=True)
class _Pullback:
    """The pullback of a function: gradients at its operands, from cotangents."""

    function: Callable

    def __call__(self, settings: Settings, operands: tuple[Any, ...], cotangents: Any) -> tuple[Any, ...]:
        return jax.vjp(functools.partial(self.function, settings), *operands)[1](cotangents)


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
