"""Named scopes, by which `explain` knows the parts of a program. They change no program."""

from typing import Any

import jax

PREFIX = "jaxgauss:"


def scope(kind: str, *facts: Any) -> Any:
    """A scope of a kind: "sum", "engine", "waves", "attention", "near", a loop of so many "steps"; or a decorator."""
    return jax.named_scope(PREFIX + ":".join(map(str, (kind, *facts))))


def scopes_of(equation: Any) -> dict[str, list[str]]:
    """The facts of each kind in the scopes of an equation; the outermost scope of a kind counts."""
    names = [getattr(scope, "name", "") for scope in equation.source_info.name_stack.stack]
    found = [name.removeprefix(PREFIX).split(":") for name in names if name.startswith(PREFIX)]
    return {kind: facts for kind, *facts in reversed(found)}


def is_backward(equation: Any) -> bool:
    """Whether an equation is of a pullback that JAX has made."""
    return any(getattr(x, "name", "") == "transpose" for x in equation.source_info.name_stack.stack)
