"""What every engine is: one way of summing kernels over all pairs of points, as an object that users may pass."""

import dataclasses
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np

from .._arrays.shapes import are_known, working_dtype
from .._calls import check_choice
from .._kernels.kernels import GAUSS, Kernel
from .request import NOTHING, Channels, PairSums, Request

HALF = ("float16", "bfloat16", "float16x2", "bfloat16x2")  # x2: each coordinate is the sum of two numbers
GRADES = ("default", "high", "highest")  # what JAX calls the precision of matrix products
PRECISIONS = (*HALF, "float32", "float64", *GRADES)
NAMES_OF_JAX = ("fastest", "tensorfloat32", "bfloat16_3x", *(x.name for x in jax.lax.DotAlgorithmPreset))  # of grades


class Problem(NamedTuple):
    """All that the choice of an engine may know without seeing points. Static.

    Attributes:
        platform: cpu, cuda, …
        dtype: of the points.
        kernel: of the sum.
        pairs, dim, channels: M·N of a whole batch, D and C; sizes may be symbolic.
        logs: whether logarithms or means are asked for.
        gradients: whether gradients of points or τ are computed, too.
        grade: the precision of matrix products that JAX is asked for, one of `GRADES`.
    """

    platform: str
    dtype: str
    kernel: Kernel
    pairs: Any
    dim: Any
    channels: Any
    logs: bool = False
    gradients: bool = False
    grade: str = "default"

    @property
    def working(self) -> str:
        """The dtype in which sums are computed: float64 for float64, else float32."""
        return working_dtype(self.dtype).name

    @property
    def known(self) -> bool:
        """Whether all sizes are numbers."""
        return are_known(self.pairs, self.dim, self.channels)


class Trial(NamedTuple):
    """A sum that `calibrate` times.

    Attributes:
        row: of the table of costs.
        engine: that sums, in the precision that is expected of the result.
        work: what the time is in proportion to: pairs, and pairs · columns of the products, or what stands for them.
        function: of queries, keys and values, for τ = 1; None: `gauss_sum` by the engine.
    """

    row: str
    engine: "Engine"
    work: tuple[float, float]
    function: Callable[..., jax.Array] | None = None


@dataclass(frozen=True, repr=False)
class Engine:
    """A way of summing kernels over all pairs of points. Immutable and hashable; static under transformations.

    An engine of your own is a subclass with `sums`; what it leaves out, `Clusters` does (CONTRIBUTING.md).

    Attributes:
        precision: of the products. None: what the engine's documentation says; `explain` returns the engine that runs,
            with the precision that it has.
    """

    precision: str | None = field(default=None, kw_only=True)
    name: ClassVar[str] = "engine"
    in_xla: ClassVar[bool] = True  # without PyTorch
    alone: ClassVar[bool] = False  # in one program of XLA, without callbacks: what `jax.export` takes
    anywhere: ClassVar[bool] = True  # takes all points, and need not look at them
    plain: ClassVar[bool] = False  # in plain JAX, which JAX differentiates and maps itself: no rule of ours applies
    only_for: ClassVar[tuple[str, ...]] = ()  # the public functions that take it; none stands for all
    rest: ClassVar[Any]  # the engine that does what another leaves out: `Clusters`

    def __init_subclass__(cls) -> None:
        """An engine's name is that of its class."""
        cls.name = cls.__name__.lower()

    def __post_init__(self) -> None:
        """Raise ValueError unless the precision exists."""
        object.__setattr__(self, "precision", as_precision(type(self).__name__, self.precision))

    def __repr__(self) -> str:
        """The call that makes the engine, without defaults."""
        fields = sorted((x for x in dataclasses.fields(self) if x.repr), key=lambda x: bool(x.kw_only))
        given = [(x.name, getattr(self, x.name), x.default) for x in fields]
        return f"{type(self).__name__}({', '.join(f'{name}={x!r}' for name, x, default in given if x != default)})"

    def __str__(self) -> str:
        """The name and the precision."""
        return self.name if self.precision is None else f"{self.name} in {self.precision}"

    def without_arrays(self) -> tuple["Engine", Any]:
        """The engine as settings hold it, and the arrays that it has besides, such as a random key; None if none."""
        return self, None

    def refuses(self, problem: Problem) -> str | None:
        """Why the engine cannot sum this, in words for an error; None if it can."""
        if not self.in_xla:
            return None
        if self.precision in HALF:
            return "XLA sums in float32 or float64"
        if self.fitted(problem).precision == "float64" and not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
            return "float64 in XLA needs jax.config.update('jax_enable_x64', True)"
        return None

    def automatic(self, problem: Problem) -> bool:
        """Whether "auto" may take the engine without seeing points."""
        return False

    def fitted(self, problem: Problem) -> Any:
        """The engine with everything that it chooses itself for a problem that it does not refuse."""
        if self.precision in ("float32", "float64"):
            return self
        return dataclasses.replace(self, precision=problem.working)

    def cost(self, problem: Problem) -> float:
        """Estimated milliseconds of a sum by a fitted engine; infinite if they depend on the points."""
        return math.inf

    def trials(self, problem: Problem) -> Iterable[Trial]:
        """What `calibrate` measures, so that `cost` knows this machine; on CUDA for many points waves alone."""
        return ()

    def handicap(self, problem: Problem) -> float:
        """The factor by which the cost must be less than that of another engine."""
        return 1.0

    def by_name(self, problem: Problem) -> "tuple[Engine, ...]":
        """Engines that "auto" does not take, because they lose digits or may not be accurate, but may be faster."""
        return ()

    def note(self, problem: Problem) -> str:
        """What else `explain` is to say of a fitted engine."""
        return ""

    def reach(self, platform: str, near: bool | None) -> float:
        """The largest R² at which the engine is accurate; points beyond it are handed on. `near`: if that is known."""
        return -math.inf

    def seen(self, plan: Any, kernel: Kernel, *operands: jax.Array) -> Any:
        """The plan of this engine for points that are seen, for `explain`: far ones are handed on to clusters.

        Operands are queries, keys, values and τ, of equal rank in the working dtype.
        """
        if self.anywhere or plan.platform != "cpu":
            return plan
        reach, far = plan.distance(*operands)
        if not kernel.kinked and reach <= plan.reach:
            return plan
        return self.rest.seen_far(plan, kernel, "distances need all digits" if kernel.kinked else far, *operands)

    def error_of(self, kernel: Kernel, *operands: jax.Array) -> tuple[jax.Array, ...] | None:
        """What an approximation knows of its error: as in `ErrorEstimate`; None of others."""
        return None

    def sums(self, plan: Any, near: bool | None, *operands: jax.Array, moments: int = 0, with_log: bool = False) -> Any:
        """Σ_n Φ v_n (…, M, C) of queries (…, M, D), keys (…, N, D), values (…, N, C) and τ (…), which broadcast.

        Operands are in the working dtype, and so are results. `near`: whether the points are known to lie within
        `reach`; None if that is unknown. The first `moments` channels are for gradients; on CUDA `with_log` asks for
        (sums, log Σ_n Φ).
        """
        return self.rest.sums(plan, near, *operands)

    def pullback(self, plan: Any, near: bool | None, *operands: jax.Array) -> Any:
        """Gradients of Σ_m ⟨g_m, s_m⟩ with respect to queries, keys and values; the fifth operand is g."""
        return self.rest.pullback(plan, near, *operands)

    def log_means(self, plan: Any, near: bool | None, *operands: jax.Array, kernel: Kernel = GAUSS) -> Any:
        """Σ_n w κ v / Σ_n w κ and log Σ_n w κ; the fifth operand are log-weights."""
        return self.rest.log_means(plan, near, *operands, kernel=kernel)

    def pair_sums(self, plan: Any, request: Request, *operands: jax.Array) -> PairSums:
        """`PairSums` of any kernels, from queries, keys, values, τ, and the weights of both.

        If the engine has `sums` of its own, those of Gaussians are by them.
        """
        if request.others or request.sums.kernels != (GAUSS,) or type(self).sums is Engine.sums:
            return self.rest.pair_sums(plan, request, *operands)
        queries, keys, values, *others = operands
        own = as_sums(self, self.sums(plan, None, *operands[:4]), *operands)
        request = request._replace(sums=NOTHING, repeats=False)
        return self.rest.pair_sums(plan, request, queries, keys, values[..., :0], *others)._replace(sums=own[0])

    def pair_pullback(
        self, plan: Any, channels: Channels, *operands: jax.Array, with_tau: bool = True, others: bool = False
    ) -> Any:
        """Gradients of Σ_m ⟨g_m, s_m⟩ of any kernels with respect to queries, keys, values and τ.

        With `others`, pairs of equal index are left out.
        """
        return self.rest.pair_pullback(plan, channels, *operands, with_tau=with_tau, others=others)


@dataclass(frozen=True, repr=False)
class Auto(Engine):
    """The engine that is estimated to be fastest, in a precision."""

    anywhere = False


def as_precision(function: str, precision: Any) -> str | None:
    """The name of a precision, also of a dtype or as `jnp.matmul` takes it; ValueError if there is none."""
    if isinstance(precision, jax.lax.Precision):
        return precision.name.lower()
    if isinstance(precision, np.dtype | jax.lax.DotAlgorithmPreset):
        precision = precision.name
    if isinstance(precision, str) and precision not in PRECISIONS and precision in NAMES_OF_JAX:
        return grade_of(precision)
    if precision is not None:
        check_choice(function, "precision", precision, PRECISIONS)
    return precision


def grade_of(name: str | None) -> str:
    """The grade that JAX means: "default" (one product), "high" (three) or "highest" (float32)."""
    if name in ("highest", "float32", "F32_F32_F32", "F64_F64_F64", "BF16_BF16_F32_X6", "BF16_BF16_F32_X9"):
        return "highest"
    return "high" if name in ("high", "tensorfloat32", "bfloat16_3x") or "_X3" in str(name) else "default"


AUTO = Auto()


def as_sums(engine: Engine, results: Any, queries: jax.Array, _: jax.Array, values: jax.Array, *__: Any) -> tuple:
    """What an engine's `sums` returned, as a tuple; ValueError unless the first has a row for each query."""
    found = results if isinstance(results, tuple) else (results,)
    if np.shape(found[0])[-2:] != (queries.shape[-2], values.shape[-1]):
        shapes = f"got {np.shape(found[0])} for queries {queries.shape}, values {values.shape}"
        raise ValueError(f"`{type(engine).__name__}.sums` must return sums (…, M, C); {shapes}.")
    return found
