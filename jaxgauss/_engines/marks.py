"""Marks: names of scopes, by which `explain` knows the parts of a program. They change no program."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

import jax

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
