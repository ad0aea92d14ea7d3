"""The choice of an engine: those that do not refuse, and the one that is estimated to be fastest."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from .._kernels.kernels import GAUSS
from .costs import WORTH, source_of
from .engine import Auto, Engine, Problem
from .plan import Plan


def cheapest(engines: Sequence[Engine], asked: Engine, problem: Problem) -> Plan:
    """The plan by the engine asked for, or by that which is estimated to be fastest."""
    is_open = isinstance(asked, Auto)
    given = [replace(x, precision=asked.precision) for x in engines] if is_open else [asked]
    refusals = {x: x.refuses(problem) for x in given}
    fit = [x.fitted(problem) for x in given if refusals[x] is None and (not is_open or x.automatic(problem))]
    if not fit:
        why = "; ".join(dict.fromkeys(reason for reason in refusals.values() if reason))
        if is_open:
            raise ValueError(
                f"`precision` must be one in which this is summed: {why}; got {asked.precision!r}. Leave it out."
            )
        raise ValueError(f"`engine` must be one that sums this: {why}; got {asked!r}. Use engine='auto'.")
    costs = {x: x.cost(problem) for x in fit} if problem.known else {}
    best = min(fit, key=lambda x: costs[x] * x.handicap(problem)) if len(fit) > 1 and costs else fit[0]
    obstacle = next((refusals[x] for x in given if not x.in_xla), None) if is_open and problem.kernel == GAUSS else None
    if obstacle is not None and not (problem.known and problem.platform == "cpu"):
        return Plan(problem.platform, best, obstacle, stands_in=problem.platform != "cpu")
    return Plan(problem.platform, best, _reason(given, best, costs, problem))


def _reason(given: Sequence[Engine], best: Engine, costs: dict[Any, float], problem: Problem) -> str:
    """Why an engine was chosen: all estimates, its own first; and what would be faster by name."""
    shown = [best, *(x for x in costs if x is not best)]
    estimates = [f"{costs[x]:.3g} ms by {x}" for x in shown if costs.get(x, math.inf) < math.inf]
    parts = ["asked for by name"] if len(given) == 1 else []
    if estimates:
        parts.append(f"an estimated {', '.join(estimates)} ({source_of(problem.platform)})")
    if best.note(problem):
        parts.append(best.note(problem))
    if costs and len(given) > 1:
        others = [y for x in given for y in x.by_name(problem) if y.refuses(problem) is None]
        times = {x: x.fitted(problem).cost(problem) for x in others}
        faster = {x: time for x, time in times.items() if WORTH * time < costs[best]}
        parts += [f"{time:.3g} ms by engine={x!r} {x.note(problem)}".strip() for x, time in faster.items()]
    return "; ".join(parts) or f"{best.name} takes points wherever they lie"
