"""Programs of functions: one of each by itself, or a part of the program that JAX is tracing."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np


def jitted(function: Callable[..., Any], *, num_static: int) -> Callable[..., Any]:
    """`jax.jit` of a function whose first arguments are static; the function itself while JAX traces a program.

    A program within a program would be traced twice where it is differentiated: JAX traces what a custom rule replaces,
    and then the rule.
    """
    program = jax.jit(function, static_argnums=(*range(num_static),))

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        static, operands = arguments[:num_static], arguments[num_static:]
        if any(map(_is_staged, jax.tree.leaves(operands))):
            return function(*static, *jax.tree.map(jnp.asarray, operands))
        return program(*arguments)

    return call


def _is_staged(x: Any) -> bool:
    """Whether x stands for a number of a program: not a tracer of an array that is differentiated or mapped at once."""
    while isinstance(x, jax.core.Tracer):
        x = getattr(x, "primal", getattr(x, "val", None))
    return not isinstance(x, jax.Array | np.ndarray | np.generic | int | float)
