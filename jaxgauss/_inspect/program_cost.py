"""The time of a program, counted from its operations: products, and what is computed of each pair of points.

XLA takes `column` nanoseconds for each term of a product: see `costs`. What it does to each number of a tile takes a
share of `pair`. Waves and attention kernels have costs of their own.
"""

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np

from .._engines.bridge import card
from .._engines.costs import Cost, cpu_costs, cuda_costs
from .._engines.forward_mode import gauss_sum_p
from .._engines.fourier.cost import OF_SIGNS, Sizes, estimated
from .._engines.near import Shown
from .._engines.scopes import is_backward, scopes_of

# `pair` is the time of so many operations, functions, or passes of a product over the numbers of a tile; a root takes
# as long as a pass. It is that of two products and of our exponential, half of the operations. One of XLA's takes twice
# as long. Terms of a batch of products take BATCHED times as long as those of one.
OPERATIONS, FUNCTIONS, PASSES, BATCHED = 48, 1, 4, 2
ROOTS = {"sqrt", "rsqrt"}
UNMEASURED = Cost(math.inf, 0.0, 0.0)  # kernels that no card has timed
POSITION, PLACE = 20.0, 2.0  # nanoseconds of a number that is sorted, and of one that is gathered or scattered
FASTER = 20  # times as fast a card does both: an estimate
TRANSCENDENTAL = {"exp", "exp2", "expm1", "log", "log1p", "pow", "sin", "cos", "tanh", "logistic", "erf", "lgamma"}
LOOPS = {"scan", "while", "cond"}
WRITTEN = LOOPS | {"dot_general", "sort", "top_k", "gather", "scatter", "scatter-add", "dynamic_update_slice", "cumsum"}
FREE = {"broadcast_in_dim", "reshape", "squeeze", "transpose", "slice", "convert_element_type", "iota", "copy", "pvary"}
CALLS = {"jit", "pjit", "closed_call", "remat2", "checkpoint", "custom_jvp_call", "custom_vmap_call"}
CALLS |= {"custom_vjp_call", "jaxgauss_function"}


class Size(NamedTuple):
    """Equations of a program, each of which takes time to compile, and the most bytes of its arrays at a time."""

    equations: int = 0
    bytes: int = 0

    def plus(self, other: "Size") -> "Size":
        """Of one program after the other."""
        return Size(self.equations + other.equations, max(self.bytes, other.bytes))


NOTHING = Size()


@dataclass
class Counted:
    """What a program computes, in nanoseconds; how large its arrays are, and how long it is.

    Attributes:
        engines: the time by engine, "" for what belongs to none.
        sums: the number of sums and their time, by kind, batch, M, N, D, C, engine, doubt and whether it is backward.
        mark: of the sum that is being counted.
        doubt: the largest share of its queries that waves leave in doubt.
        here, apart: equations and bytes of the program, and of those that it calls.
    """

    engines: dict[str, float] = field(default_factory=dict)
    sums: dict[tuple[Any, ...], tuple[float, float]] = field(default_factory=dict)
    mark: tuple[str, ...] | None = None
    doubt: float = 0.0
    here: Size = NOTHING
    apart: Size = NOTHING

    @property
    def bytes(self) -> int:
        """The most at a time."""
        return self.here.bytes + self.apart.bytes

    @property
    def nanoseconds(self) -> float:
        """The time of everything."""
        return sum(self.engines.values()) + sum(time for _, time in self.sums.values())

    def add(self, engine: str, nanoseconds: float) -> None:
        """Add an operation."""
        self.engines[engine] = self.engines.get(engine, 0.0) + nanoseconds

    def add_all(self, other: "Counted", times: float, engine: str) -> None:
        """Add all of a part that runs so many times, but its size; `engine`, if there is one, is that of the part."""
        for name, time in other.engines.items():
            self.add(engine or name, times * time)
        for which, (number, time) in other.sums.items():
            before = self.sums.get(which, (0.0, 0.0))
            self.sums[which] = before[0] + times * number, before[1] + times * time
        self.mark, self.doubt = self.mark or other.mark, max(self.doubt, other.doubt)

    def as_sum(self, backward: bool, call: float) -> "Counted":
        """The whole as one sum, if it is one; `call` is what that takes by itself."""
        if self.mark is None:
            return self
        engine = max((x for x in self.engines if x), key=self.engines.__getitem__, default="xla")
        which = *self.mark, engine, self.doubt, backward
        sums = {which: (1.0, sum(self.engines.values()) + call), **self.sums}
        return Counted({}, sums, here=self.here, apart=self.apart)


class Counter:
    """Counts programs by the costs of a platform.

    Points that were seen give the number of blocks of waves, the queries that these leave in doubt, and the share of
    the tiles of sorted points that are not skipped: those of as many points as a sum has, else the last.
    """

    def __init__(self, platform: str, seen: Sequence[Shown]):
        if platform == "cuda":
            self.rows, measured = cuda_costs(card().name)
            self.basis = "measured" if measured else "measured on another card"
            self.of = {"float32": self.rows["blocked"]}
        else:
            self.rows, self.basis = cpu_costs()
            self.of = {name: self.rows[f"xla in {name}"] for name in ("float32", "float64")}
        self.platform, self.seen = platform, seen
        self.call = self.rows["blocked"].call if platform == "cuda" else 0.0  # a card launches kernels for each sum
        self.backward = self.gradients = self.is_part = False

    def cost_of_dense(self, double: bool) -> Cost:
        """That of XLA for a sum with the full matrix."""
        if self.platform == "cuda":
            return self.rows["dense"]
        return self.of["float64" if double else "float32"]

    def __call__(self, jaxpr: Any, is_live: Iterable[bool] | None = None) -> Counted:
        """Count the operations of a jaxpr on which its results, or those that are live, depend.

        From the last to the first: so the arrays that are live at an operation are those that later ones take.
        """
        same, held = _same(jaxpr), _held(jaxpr)
        results = zip(jaxpr.outvars, is_live or [True] * len(jaxpr.outvars), strict=True)
        live = {same.get(x, x) for x, y in results if y and not hasattr(x, "val")}
        found, seen, marked = Counted(), set(), {}
        for equation in reversed(jaxpr.eqns):
            used = [x in live for x in equation.outvars]
            if not (any(used) or equation.effects):
                continue
            there = sum(held.get(x, 0) for x in live | set(equation.outvars))
            live = (live - set(equation.outvars)) | {same.get(x, x) for x in equation.invars if not hasattr(x, "val")}
            scopes = scopes_of(equation)
            self.gradients |= is_backward(equation)
            mark, to = tuple(scopes["sum"]) if "sum" in scopes else None, found
            if mark and not self.is_part:
                which = mark, self.backward or is_backward(equation)
                to = marked.setdefault(which, Counted(mark=mark))
            found.mark = found.mark or (mark if self.is_part else None)
            for kind in {"waves", "attention"} & scopes.keys():
                own = Counted(here=Size(_number(equation)))
                if (fact := (kind, *scopes[kind])) not in seen:
                    seen.add(fact)
                    self._add_by_facts(own, kind, *scopes[kind])
                break
            else:
                own = self._of_equation(equation, used, scopes)
            to.add_all(own, 1, "")
            here, apart = own.here._replace(bytes=own.here.bytes + there), own.apart
            if "apart" in scopes:
                here, apart = Size(0, there), here.plus(apart)
            found.here, found.apart = found.here.plus(here), found.apart.plus(apart)
        for (_, backward), of_sum in marked.items():
            found.add_all(of_sum.as_sum(backward, self.call), 1, "")
        return found

    def _of_equation(self, equation: Any, used: list[bool], scopes: dict[str, list[str]]) -> Counted:
        name, params, found = equation.primitive.name, equation.params, Counted(here=Size(1))
        parts, (engine,) = list(_parts(equation)), scopes.get("engine", [""])
        if name == "cond":
            counted = [self(x) for x in parts]
            every = [*zip(parts, counted, strict=True)]
            some = [x for x in every if any("near" in scopes_of(y) for y in x[0].eqns)] or every
            some = [x for x in some if not x[0].eqns or _computes(x[0])] or some
            chosen = min((x for _, x in some), key=lambda x: x.nanoseconds)
            found.add_all(chosen, 1, engine)
            there = [chosen] if "apart" in scopes else counted  # XLA compiles all branches
            found.here = functools.reduce(Size.plus, (x.here for x in there), found.here)
            found.apart = chosen.apart
        elif parts:
            steps = float(scopes["steps"][0]) if "steps" in scopes else 1.0
            steps = max(1.0, steps * self.seen[-1].share) if self.seen and steps > 1 else max(1.0, steps)
            times = params["length"] if name == "scan" else steps if name == "while" else 1
            for part in parts:
                of_part = self._of_part(equation, part, used if name in CALLS else None)
                found.add_all(of_part, times, engine)
                found.here, found.apart = found.here.plus(of_part.here), found.apart.plus(of_part.apart)
        else:
            found.add(engine, self._of_operation(name, params, equation))
        return found

    def _of_part(self, equation: Any, part: Any, used: list[bool] | None) -> Counted:
        """A jaxpr of an equation: as one sum, if it is one and no part of another."""
        before, is_sum = (self.backward, self.is_part), equation.primitive.name == "custom_vmap_call"
        self.backward |= is_backward(equation)
        self.is_part |= is_sum
        found = self(part, used)
        found = found.as_sum(self.backward, self.call) if is_sum else found
        self.backward, self.is_part = before
        return found

    def _of_operation(self, name: str, params: Any, equation: Any) -> float:
        sizes = [math.prod(getattr(x.aval, "shape", ())) for x in (*equation.invars, *equation.outvars)]
        is_double = any(getattr(x.aval, "dtype", None) == np.float64 for x in equation.outvars)
        cost: Cost = self.of.get("float64" if is_double else "float32", self.of["float32"])
        if name == "dot_general":
            (contracted, _), (batch, _) = params["dimension_numbers"]
            terms = sizes[-1] * math.prod(equation.invars[0].aval.shape[i] for i in contracted)
            return (BATCHED if batch else 1) * cost.column * terms + cost.pair * max(sizes) / PASSES
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

    def _add_by_facts(self, found: Counted, kind: str, *facts: str) -> None:
        if kind == "attention":
            found.add(*self._of_attention(*facts))
            return
        precision, most, sides, *sizes = facts
        *numbers, pulls, on_cuda = sizes
        given = Sizes(*map(int, numbers), pulls=pulls == "True", on_cuda=on_cuda == "True")
        shown = next((x for x in self.seen if x.are(given)), self.seen[-1] if self.seen else None)
        found.add("fourier", int(sides) * self._of_waves(precision, int(most), given, shown and shown.blocks))
        if shown and given.queries and not given.on_cuda:
            found.doubt, again = shown.again(given)
            found.add("fourier", int(sides) * again)

    def _of_waves(self, precision: str, most: int, given: Sizes, known: Any) -> float:
        if given.on_cuda:
            return float(estimated(precision, given, [most])[0])
        if not given.queries:  # coefficients alone: of known blocks, two channels at a time, without those of |v|
            return float(estimated(precision, given, [float(most)] * given.dim)[0] / (2 * OF_SIGNS))
        blocks = [most / (given.dim + 1) ** (1 / given.dim)] * given.dim  # as many as on average from 0 to most
        blocks = blocks if known is None else [*map(float, known)]
        return float(estimated(precision, given, blocks)[0])

    def _of_attention(self, row: str, pairs: str, columns: str, passes: str) -> tuple[str, float]:
        name = row.replace("kernel", "attention") if self.platform != "cuda" else f"attention by {row}"
        cost = self.rows.get(row, UNMEASURED)
        return name, float(passes) * cost.nanoseconds(int(pairs), int(columns))


def _same(jaxpr: Any) -> dict[Any, Any]:
    """For results of an operation that XLA computes only once, as it has the same operands as another: the other's."""
    first, same = {}, {}
    for equation in jaxpr.eqns:
        operands = (repr(x.val) if hasattr(x, "val") else id(same.get(x, x)) for x in equation.invars)
        name = equation.params.get("name", "") if list(_parts(equation)) else str(equation.params)
        known = first.setdefault(
            (equation.primitive.name, name, *operands, *(str(x.aval) for x in equation.outvars)), equation
        )
        if known is not equation and (not name or equation.primitive.name not in ("scan", "while", "cond")):
            same |= dict(zip(equation.outvars, known.outvars, strict=True))
    return same


def _parts(equation: Any) -> Iterable[Any]:
    """The jaxprs among the parameters of an equation; or that of a sum in forward mode."""
    if equation.primitive is gauss_sum_p:
        shapes = [jax.ShapeDtypeStruct(x.aval.shape, x.aval.dtype) for x in equation.invars]
        yield jax.make_jaxpr(functools.partial(gauss_sum_p.impl, **equation.params))(*shapes).jaxpr
    for given in equation.params.values():
        for x in given if isinstance(given, tuple | list) else [given]:
            x = getattr(x, "jaxpr", x)
            if hasattr(x, "eqns"):
                yield x


def _number(equation: Any) -> int:
    """The number of equations, with those of the jaxprs among the parameters."""
    return 1 + sum(_number(y) for x in _parts(equation) for y in x.eqns)


def _computes(jaxpr: Any) -> bool:
    """Whether a jaxpr does more than make zeros."""
    return any(list(_parts(x)) or x.primitive.name not in FREE for x in jaxpr.eqns)


def _held(jaxpr: Any) -> dict[Any, int]:
    """The bytes of arrays that XLA writes to memory; others are parts of a loop over the numbers of what takes them.

    It writes what other operations than those on each number make and take. Results belong to the caller.
    """
    held, source = {}, {}

    def hold(x: Any) -> None:
        x = source.get(x, x)
        held[x] = math.prod(x.aval.shape) * x.aval.dtype.itemsize if hasattr(x.aval, "shape") else 0

    for equation in jaxpr.eqns:
        if equation.primitive.name in FREE:
            of = [x for x in equation.invars if not hasattr(x, "val")]
            source |= {x: source.get(of[0], of[0]) for x in equation.outvars if of}
        elif _writes(equation):
            for x in (*equation.invars, *equation.outvars):
                if not hasattr(x, "val"):
                    hold(x)
    own = {*jaxpr.invars, *jaxpr.constvars, *(x for x in jaxpr.outvars if not hasattr(x, "val"))}
    return {x: size for x, size in held.items() if x not in own}


def _writes(equation: Any) -> bool:
    """Whether an operation, or one of its parts, is no loop over the numbers of its operands."""
    return equation.primitive.name in WRITTEN or any(_writes(y) for x in _parts(equation) for y in x.eqns)
