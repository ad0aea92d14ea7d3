"""The time of a program, counted from its operations: products, and what is computed of each pair of points.

XLA takes `column` nanoseconds for each term of a product: see `costs`. What it does to each number of a tile takes a
share of `pair`. Waves and attention kernels have costs of their own.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .._engines.bridge import card
from .._engines.costs import Cost, cpu_costs, cuda_costs
from .._engines.fourier.cost import OF_SIGNS, Sizes, estimated
from .._engines.scopes import scopes_of

# `pair` is the time of so many operations, functions, or passes of a product over the numbers of a tile; a root takes
# as long as a pass. It is that of two products, and an exponential: one function, or half of the operations.
OPERATIONS, FUNCTIONS, PASSES = 48, 2, 4
ROOTS = {"sqrt", "rsqrt"}
UNMEASURED = Cost(math.inf, 0.0, 0.0)  # kernels that no card has timed
POSITION, PLACE = 20.0, 2.0  # nanoseconds of a number that is sorted, and of one that is gathered or scattered
FASTER = 20  # times as fast a card does both: an estimate
TRANSCENDENTAL = {"exp", "exp2", "expm1", "log", "log1p", "pow", "sin", "cos", "tanh", "logistic", "erf", "lgamma"}
FREE = {"broadcast_in_dim", "reshape", "squeeze", "transpose", "slice", "convert_element_type", "iota", "copy", "pvary"}
CALLS = {"jit", "pjit", "closed_call", "remat2", "checkpoint", "custom_jvp_call", "custom_vmap_call"}
CALLS |= {"custom_vjp_call", "jaxgauss_function"}


@dataclass
class Counted:
    """What a program computes, in nanoseconds.

    Attributes:
        engines: the time by engine, "" for what belongs to none.
        sums: the number of sums and their time, by kind, batch, M, N, D, C and engine.
        mark: of the sum that is being counted.
    """

    engines: dict[str, float] = field(default_factory=dict)
    sums: dict[tuple[str, ...], tuple[float, float]] = field(default_factory=dict)
    mark: tuple[str, ...] | None = None

    @property
    def nanoseconds(self) -> float:
        """The time of everything."""
        return sum(self.engines.values()) + sum(time for _, time in self.sums.values())

    def add(self, engine: str, nanoseconds: float) -> None:
        """Add an operation."""
        self.engines[engine] = self.engines.get(engine, 0.0) + nanoseconds

    def add_all(self, other: "Counted", times: float, engine: str) -> None:
        """Add all of a part that runs so many times; `engine`, if there is one, is that of the part."""
        for name, time in other.engines.items():
            self.add(engine or name, times * time)
        for which, (number, time) in other.sums.items():
            before = self.sums.get(which, (0.0, 0.0))
            self.sums[which] = before[0] + times * number, before[1] + times * time
        self.mark = self.mark or other.mark

    def as_sum(self, call: float) -> "Counted":
        """The whole as one sum, if it is one."""
        if self.mark is None:
            return self
        engine = max((x for x in self.engines if x), key=self.engines.__getitem__, default="xla")
        time = sum(self.engines.values()) + call
        return Counted({}, {(*self.mark, engine): (1.0, time), **self.sums})


class Counter:
    """Counts programs by the costs of a platform.

    Examined points give the number of `blocks` of waves of each coordinate, and the `share` of the tiles of sorted
    points that are not skipped.
    """

    def __init__(self, platform: str, blocks: Sequence[float] | None = None, share: float = 1.0):
        if platform == "cuda":
            self.rows, measured = cuda_costs(card().name)
            self.basis = "measured" if measured else "measured on another card"
            self.of = {"float32": self.rows["blocked"]}
        else:
            self.rows, self.basis = cpu_costs()
            self.of = {name: self.rows[f"xla in {name}"] for name in ("float32", "float64")}
        self.platform, self.blocks, self.share = platform, blocks, share

    def __call__(self, jaxpr: Any, is_live: Iterable[bool] | None = None) -> Counted:
        """Count the operations of a jaxpr on which its results, or those that are live, depend."""
        same = _same(jaxpr)
        results = zip(jaxpr.outvars, is_live or [True] * len(jaxpr.outvars), strict=True)
        live = {same.get(x, x) for x, y in results if y and not hasattr(x, "val")}
        found, seen = Counted(), set()
        for equation in reversed(jaxpr.eqns):
            used = [x in live for x in equation.outvars]
            if not (any(used) or equation.effects):
                continue
            live |= {same.get(x, x) for x in equation.invars if not hasattr(x, "val")}
            scopes = scopes_of(equation)
            found.mark = found.mark or (tuple(scopes["sum"]) if "sum" in scopes else None)
            (engine,) = scopes.get("engine", [""])
            for kind in {"waves", "attention"} & scopes.keys():
                if (fact := (kind, *scopes[kind])) not in seen:
                    seen.add(fact)
                    name, time = self._of_waves(*fact[1:]) if kind == "waves" else self._of_attention(*fact[1:])
                    found.add(name, time)
                break
            else:
                times = max(1.0, self.share * float(scopes["steps"][0])) if "steps" in scopes else 1.0
                self._add(found, equation, used, engine, times)
        return found

    def _add(self, found: Counted, equation: Any, used: list[bool], engine: str, steps: float) -> None:
        name, params = equation.primitive.name, equation.params
        parts = list(_parts(params))
        if name == "cond":
            parts = [x for x in parts if any("near" in scopes_of(y) for y in x.eqns)] or parts
            parts = [x for x in parts if not x.eqns or _computes(x)] or parts
            found.add_all(min(map(self, parts), key=lambda x: x.nanoseconds), 1, engine)
        elif parts:
            times = params["length"] if name == "scan" else steps if name == "while" else 1
            for part in parts:
                of_part = self(part, used if name in CALLS else None)
                of_part = of_part.as_sum(self.of["float32"].call) if name == "custom_vmap_call" else of_part
                found.add_all(of_part, times, engine)
        else:
            found.add(engine, self._of_operation(name, params, equation))

    def _of_operation(self, name: str, params: Any, equation: Any) -> float:
        sizes = [math.prod(getattr(x.aval, "shape", ())) for x in (*equation.invars, *equation.outvars)]
        is_double = any(getattr(x.aval, "dtype", None) == np.float64 for x in equation.outvars)
        cost: Cost = self.of.get("float64" if is_double else "float32", self.of["float32"])
        if name == "dot_general":
            (contracted, _), _ = params["dimension_numbers"]
            terms = sizes[-1] * math.prod(equation.invars[0].aval.shape[i] for i in contracted)
            return cost.column * terms + cost.pair * max(sizes) / PASSES
        if name in FREE:
            return 0.0
        times = FASTER if self.platform == "cuda" else 1
        if name in ("sort", "top_k"):
            return POSITION * sizes[-1] / times
        if name.startswith(("gather", "scatter", "dynamic")):  # what is written elsewhere stays where it is
            written = {"gather": -1, "dynamic_slice": -1, "dynamic_update_slice": 1}.get(name, 2)
            return PLACE * sizes[written] / times
        share = FUNCTIONS if name in TRANSCENDENTAL else PASSES if name in ROOTS else OPERATIONS
        return cost.pair * max(sizes, default=0) / share

    def _of_waves(self, precision: str, most: str, sides: str, *sizes: str) -> tuple[str, float]:
        *numbers, pulls, on_cuda = sizes
        given = Sizes(*map(int, numbers), pulls=pulls == "True", on_cuda=on_cuda == "True")
        if given.on_cuda:
            return "fourier", int(sides) * float(estimated(precision, given, [int(most)])[0])
        if not given.queries:  # coefficients alone: of known blocks, two channels at a time, without those of |v|
            time = estimated(precision, given, [float(most)] * given.dim)[0] / (2 * OF_SIGNS)
            return "fourier", int(sides) * float(time)
        blocks = [int(most) / (given.dim + 1) ** (1 / given.dim)] * given.dim  # as many as on average from 0 to most
        blocks = blocks if self.blocks is None else [*map(float, self.blocks)]
        return "fourier", int(sides) * float(estimated(precision, given, blocks)[0])

    def _of_attention(self, row: str, pairs: str, columns: str, passes: str) -> tuple[str, float]:
        name = row.replace("kernel", "attention") if self.platform != "cuda" else f"attention by {row}"
        cost = self.rows.get(row, UNMEASURED)
        return name, float(passes) * cost.nanoseconds(int(pairs), int(columns))


def _same(jaxpr: Any) -> dict[Any, Any]:
    """For results of an operation that XLA computes only once, as it has the same operands as another: the other's."""
    first, same = {}, {}
    for equation in jaxpr.eqns:
        operands = (repr(x.val) if hasattr(x, "val") else id(same.get(x, x)) for x in equation.invars)
        name = equation.params.get("name", "") if list(_parts(equation.params)) else str(equation.params)
        known = first.setdefault(
            (equation.primitive.name, name, *operands, *(str(x.aval) for x in equation.outvars)), equation
        )
        if known is not equation and (not name or equation.primitive.name not in ("scan", "while", "cond")):
            same |= dict(zip(equation.outvars, known.outvars, strict=True))
    return same


def _parts(params: dict[str, Any]) -> Iterable[Any]:
    """The jaxprs among the parameters of an equation."""
    for given in params.values():
        for x in given if isinstance(given, tuple | list) else [given]:
            x = getattr(x, "jaxpr", x)
            if hasattr(x, "eqns"):
                yield x


def _computes(jaxpr: Any) -> bool:
    """Whether a jaxpr does more than make zeros."""
    return any(list(_parts(x.params)) or x.primitive.name not in FREE for x in jaxpr.eqns)
