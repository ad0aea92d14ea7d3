"""Custom derivative rules in reverse mode that know which gradients are wanted."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .devices import vary_like

Wanted = tuple[bool, ...]


def with_rule(function: Callable, num_static: int, backward: Callable, forward: Callable | None = None) -> Any:
    """`function` of static arguments and trees of arrays, with a rule that forms only the gradients that are wanted.

    Args:
        function: of `num_static` static arguments and the operands.
        backward: (*static, wanted, operands, kept, cotangents) -> the gradients of the wanted leaves of the operands.
            `wanted` has a boolean for each leaf. XLA would leave out the others, but not from a program apart.
        forward: (*static, wanted, *operands) -> (results, kept). None: the function, which keeps nothing.
    """
    ruled: Any = jax.custom_vjp(function, nondiff_argnums=tuple(range(num_static)))

    def keep(*args: Any) -> tuple[Any, Any]:
        static, given = args[:num_static], args[num_static:]
        operands = jax.tree.map(lambda x: x.value, given, is_leaf=_is_primal)
        wanted = tuple(x.perturbed for x in jax.tree.leaves(given, is_leaf=_is_primal))
        results, kept = (ruled(*static, *operands), ()) if forward is None else forward(*static, wanted, *operands)
        # JAX keeps one tree of residuals, whichever gradients are wanted: the shape of an array tells them.
        return results, (operands, kept, jnp.zeros([1 + x for x in wanted], bool))

    def gradients(*args: Any) -> Any:
        *static, (operands, kept, pattern), cotangents = args
        leaves, tree = jax.tree.flatten(operands)
        if all(map(_is_zero, jax.tree.leaves(cotangents, is_leaf=_is_zero))):
            return tree.unflatten([None] * len(leaves))
        cotangents = jax.tree.map(functools.partial(_instantiated, leaves), cotangents, is_leaf=_is_zero)
        wanted = tuple(size == 2 for size in pattern.shape)
        found = iter(backward(*static, wanted, operands, kept, cotangents))
        return tree.unflatten([next(found) if is_wanted else None for is_wanted in wanted])

    ruled.defvjp(keep, gradients, symbolic_zeros=True)
    return ruled


def _instantiated(others: Sequence[Array], x: Any) -> Array:
    """A cotangent, as an array if it is a symbolic zero; it varies like the others."""
    return vary_like(jnp.zeros(x.shape, x.dtype), others) if _is_zero(x) else x


def _is_zero(x: Any) -> bool:
    return isinstance(x, jax.custom_derivatives.SymbolicZero)


def _is_primal(x: Any) -> bool:
    return isinstance(x, jax.custom_derivatives.CustomVJPPrimal)
