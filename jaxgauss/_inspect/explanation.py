"""What a function sums, how, and how long that takes, for `explain`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from .._arrays.devices import expected_platform
from .._checks.data import checked_data
from .._checks.operands import Traced
from .._engines.apart import inline
from .._engines.near import noting
from .dense_form import SECONDS_OF_EQUATION, DenseForm, dense_form, memory, verdict
from .program_cost import Counter

STARTED = 0.35  # share of a sum's `call` that any program takes
AGAIN = 3  # times as many equations where queries are in doubt: finer waves and tiles are programs of their own
FROM_PYTHON = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    Traced,
)


@dataclass(frozen=True)
class Part:
    """Sums of one kind, which `explain` has found in a function.

    Attributes:
        number: how many there are.
        kind: sum, mean, gradients or sum with pulls.
        queries, keys, dim, channels: M, N, D and C of each, of a batch together.
        engine: what computes them: "blocked in float32", "clusters", "fourier", …
        milliseconds: the estimated time of all.
        doubt: the share of the queries that waves leave in doubt, and that are summed again; as far as points are seen.
        backward: whether it is of a pullback.
    """

    number: int
    kind: str
    queries: int
    keys: int
    dim: int
    channels: int
    engine: str
    milliseconds: float
    doubt: float = 0.0
    backward: bool = False

    def __str__(self) -> str:
        pairs = f"{self.queries} × {self.keys} pairs of points, {self.dim} dimensions, {self.channels} channels"
        again = f", {self.doubt:.1%} of the queries are in doubt and summed again" if self.doubt else ""
        return f"{_time(self.milliseconds)}: {self.number} × {self.kind} of {pairs}: {self.engine}{again}"


@dataclass(frozen=True)
class Explanation:
    """What a function sums, and what that is estimated to take. Print it.

    Attributes:
        function: its name.
        milliseconds: the estimated time of a call, once it is compiled.
        mebibytes: the most memory that it takes at a time, besides its arguments and results.
        seconds: of tracing and compiling it, with what is compiled at the first call.
        parts: the sums, those that take longest first; a sum that gradients take again is a part of its own.
        others: milliseconds of everything else.
        basis: where the costs are from.
        dense: what it would take in plain JAX, with the full matrix of every sum; None if there are no sums.
        worth_it: whether it is faster than that, or saves a gibibyte.
        reason: why, in words.
    """

    function: str
    milliseconds: float
    mebibytes: float
    seconds: float
    parts: tuple[Part, ...]
    others: float
    basis: str
    dense: DenseForm | None
    worth_it: bool
    reason: str

    def __str__(self) -> str:
        lines = [f"{self.function}: an estimated {_all(self)} ({self.basis})", *(f"  {x}" for x in self.parts)]
        if self.dense is not None:
            lines.append(f"  {_time(self.others)}: everything else")
            lines.append(f"in plain JAX, with the full matrix: {_all(self.dense)}")
            lines.append(f"worth it: {'yes' if self.worth_it else 'no'}, because {self.reason}")
        return "\n".join(lines)

    __repr__ = __str__


def explained(function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Explanation:
    """Trace the function without running it, and count its operations.

    The function gets the arrays themselves, because it decides by the points; only bare shapes are traced.
    """
    name = getattr(function, "__name__", type(function).__name__)
    leaves, tree = jax.tree.flatten((arguments, options))
    shapes = [x for x in leaves if isinstance(x, jax.ShapeDtypeStruct)]

    def call(*arrays: Array) -> Any:
        given = iter(arrays)
        args, kwargs = tree.unflatten([next(given) if isinstance(x, jax.ShapeDtypeStruct) else x for x in leaves])
        result = function(*args, **kwargs)
        if result is getattr(function, "__self__", function):
            raise Traced(f"it returns its {type(result).__name__}")
        return [x for x in jax.tree.leaves(result) if isinstance(x, jax.Array)]

    with noting() as noted, inline(), checked_data():
        try:
            program = jax.make_jaxpr(call)(*shapes).jaxpr
        except FROM_PYTHON as error:
            raise TypeError(
                f"`jaxgauss.explain`: the function must be one that JAX can trace; got {name}, which needs the values"
                " of results. Explain what it calls: of a stream the sum of one chunk, of an estimator `kde_logpdf`,"
                " `kernel_mean` or another function."
            ) from error
    counter = Counter(expected_platform(*leaves), noted)
    found, parts = counter(program), []
    for (kind, *sizes, engine, doubt, backward), (number, time) in found.sums.items():
        batch, queries, keys, dim, channels = map(int, sizes)
        each = kind, batch * queries, keys, dim, channels
        parts.append(Part(round(number), *each, engine, time / 1e6, doubt, backward))
    parts.sort(key=lambda x: -x.milliseconds)
    others = (sum(found.engines.values()) + STARTED * counter.of["float32"].call) / 1e6
    milliseconds, mebibytes = others + sum(x.milliseconds for x in parts), found.bytes / 2**20
    equations = found.here.equations + found.apart.equations * (AGAIN if any(x.doubt for x in parts) else 1)
    seconds, dense = SECONDS_OF_EQUATION * equations, None
    does, reason = False, "it has no sums"
    if parts:
        double = any(getattr(x, "dtype", None) == np.float64 for x in leaves)
        dense = dense_form(parts, counter.gradients, counter.cost_of_dense(double), 8 if double else 4)
        does, reason = verdict(milliseconds, mebibytes, seconds, dense)
    everything = milliseconds, mebibytes, seconds, tuple(parts), others, counter.basis, dense, does, reason
    return Explanation(name, *everything)


def _all(x: Any) -> str:
    return f"{_time(x.milliseconds)} a call, {memory(x.mebibytes)}, {x.seconds:.2g} s to compile"


def _time(milliseconds: float) -> str:
    return f"{milliseconds / 1e3:.3g} s" if milliseconds >= 1e3 else f"{milliseconds:.3g} ms"
