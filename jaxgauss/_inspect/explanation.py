"""What a function sums, how, and how long that takes, for `explain`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from jaxtyping import Array

from .._arrays.devices import expected_platform
from .._checks.data import checked_data
from .._checks.operands import Traced
from .._engines.apart import inline
from .._engines.near import noting, shown
from .program_cost import Counter

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
    """

    number: int
    kind: str
    queries: int
    keys: int
    dim: int
    channels: int
    engine: str
    milliseconds: float

    def __str__(self) -> str:
        pairs = f"{self.queries} × {self.keys} pairs of points, {self.dim} dimensions, {self.channels} channels"
        return f"{_time(self.milliseconds)}: {self.number} × {self.kind} of {pairs}: {self.engine}"


@dataclass(frozen=True)
class Explanation:
    """What a function sums, and how long that is estimated to take.

    Attributes:
        function: its name.
        milliseconds: the estimated time of a call, once it is compiled.
        parts: the sums, those that take longest first; a sum that gradients take again is a part of its own.
        others: milliseconds of everything else.
        basis: where the costs are from.
    """

    function: str
    milliseconds: float
    parts: tuple[Part, ...]
    others: float
    basis: str

    def __str__(self) -> str:
        lines = [f"{self.function}: an estimated {_time(self.milliseconds)} ({self.basis})", *map(str, self.parts)]
        others = [f"{_time(self.others)}: everything else"] if self.parts else []
        return "\n  ".join([*lines, *others])

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
    counter = Counter(expected_platform(*leaves), *shown(**noted))
    found, parts = counter(program), []
    for (kind, batch, queries, keys, dim, channels, engine), (number, time) in found.sums.items():
        each = int(batch) * int(queries), int(keys), int(dim), int(channels)
        parts.append(Part(round(number), kind, *each, engine, time / 1e6))
    parts.sort(key=lambda x: -x.milliseconds)
    others = sum(found.engines.values()) / 1e6
    return Explanation(name, found.nanoseconds / 1e6, tuple(parts), others, counter.basis)


def _time(milliseconds: float) -> str:
    return f"{milliseconds / 1e3:.3g} s" if milliseconds >= 1e3 else f"{milliseconds:.3g} ms"
