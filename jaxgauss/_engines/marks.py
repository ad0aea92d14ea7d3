"""Marks: names of scopes, by which `explain` knows the parts of a program. They change no program."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp

PREFIX = "jaxgauss:"
_noted: ContextVar[dict[str, Any] | None] = ContextVar("_noted", default=None)


def mark(kind: str, *facts: Any) -> AbstractContextManager:
    """A scope whose operations are of a kind: "sum", "engine", "waves", "attention", or a loop of so many "steps"."""
    return jax.named_scope(PREFIX + ":".join(map(str, (kind, *facts))))


def marks_of(equation: Any) -> dict[str, list[str]]:
    """The facts of each kind in the scopes of an equation; the outermost scope of a kind counts."""
    names = [getattr(scope, "name", "") for scope in equation.source_info.name_stack.stack]
    found = [name.removeprefix(PREFIX).split(":") for name in names if name.startswith(PREFIX)]
    return {kind: facts for kind, *facts in reversed(found)}


def marked(function: Callable, *facts: Any) -> Callable:
    """The function in a scope."""

    def within(*args: Any) -> Any:
        with mark(*facts):
            return function(*args)

    return within


def facts_of(queries: jax.Array, keys: jax.Array, values: jax.Array, *others: jax.Array) -> tuple[Any, ...]:
    """The number of sums of a batch; M, N, D and C of each."""
    batch = math.prod(jnp.broadcast_shapes(*(x.shape[:-2] for x in (queries, keys, values))))
    return batch, queries.shape[-2], *keys.shape[-2:], values.shape[-1]


@contextmanager
def noting() -> Iterator[dict[str, Any]]:
    """What `note` is given in the context, by name."""
    token = _noted.set(found := {})
    try:
        yield found
    finally:
        _noted.reset(token)


def note(name: str, found: Any) -> None:
    """Tell `explain`, if it listens, what the points have shown."""
    if (noted := _noted.get()) is not None:
        noted[name] = found
