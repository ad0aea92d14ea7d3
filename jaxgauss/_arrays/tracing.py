"""Programs of functions: one of each by itself, or a part of the program that JAX is tracing."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

_own: ContextVar[Any] = ContextVar("own", default=None)


def jitted(function: Callable[..., Any], *, num_static: int) -> Callable[..., Any]:
    """`jax.jit` of a function whose first arguments are static; the function itself while JAX traces a program.

    A program within a program would be traced twice where it is differentiated: JAX traces what a custom rule replaces,
    and then the rule.
    """
    program = jax.jit(function, static_argnums=(*range(num_static),))

    @functools.partial(jax.jit, static_argnums=(*range(1, num_static + 1),))
    def program_with(own: Any, *arguments: Any) -> Any:
        with with_arrays(own):
            return function(*arguments)

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        static, operands, own = arguments[:num_static], arguments[num_static:], _own.get()
        if any(map(_is_staged, jax.tree.leaves((operands, own)))):
            return function(*static, *jax.tree.map(jnp.asarray, operands))
        return program(*arguments) if own is None else program_with(own, *arguments)

    return call


@contextmanager
def with_arrays(own: Any) -> Iterator[None]:
    """A context in which an engine has arrays, such as a random key, which settings cannot hold: these are static."""
    token = _own.set(own)
    try:
        yield
    finally:
        _own.reset(token)


def own_arrays() -> Any:
    """The arrays of `with_arrays`, or None; in `jitted` functions, those of the program."""
    return _own.get()


def _is_staged(x: Any) -> bool:
    """Whether x stands for a number of a program: not a tracer of an array that is differentiated or mapped at once."""
    while isinstance(x, jax.core.Tracer):
        x = getattr(x, "primal", getattr(x, "val", None))
    return not isinstance(x, jax.Array | np.ndarray | np.generic | int | float)
