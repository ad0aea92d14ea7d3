"""What every public function begins with: its arguments checked, and what was asked for by name planned."""

from dataclasses import replace
from typing import Any

from .._arrays.places import expected_platform
from .._checks.operands import as_operand, check_names, check_operands
from .._checks.settings import METHODS, Settings, matmul_grade
from .._engines.plan import Plan, plan, sizes


def checked(
    asked: Settings, queries: Any, keys: Any, values: Any, tau: Any, *, methods: tuple[str, ...] = METHODS
) -> tuple[Settings, Plan]:
    """What was asked for, with the promoted dtype, and the plan of it; ValueError or TypeError if it cannot be done."""
    check_names(asked.function, asked.method, asked.precision, asked.backend, methods)
    dtype = check_operands(asked.function, queries, keys, values, tau)
    settings = replace(asked, dtype=dtype, grade=asked.grade or matmul_grade())
    return settings, plan(settings, expected_platform(queries, keys, values), *sizes(queries, keys, values, tau))


def check_plan(settings: Settings, tau: Any, pairs: int, dim: int, channels: int, *arrays: Any) -> Any:
    """Raise ValueError if what was asked for by name cannot run there; return τ as JAX may take it."""
    plan(settings, expected_platform(*arrays), pairs, dim, channels)
    return as_operand(tau, settings.dtype)
