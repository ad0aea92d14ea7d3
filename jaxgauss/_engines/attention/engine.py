"""Attention: the flash-attention kernels of PyTorch, by DLPack and one callback."""

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ..._arrays.points import aligned_sizes, may_overflow, scaled_points
from ..._calls import check_choice
from ..._kernels.kernels import GAUSS, Kernel
from .. import bridge
from ..branches import one_of_two
from ..bridge import call, torch_backend
from ..clusters.engine import CLUSTERS, Clusters
from ..costs import HALVES, WORTH, columns, estimates, kernel_columns, kernel_engine, time_on_cuda, work_of_pairs
from ..engine import GRADES, HALF, Auto, Engine, Problem, Trial
from ..plan import NEAR, Plan
from ..products.gaussian import blocked_sum
from .reductions import attended_means, attended_pullback, attended_sum

if TYPE_CHECKING:
    from torch import Tensor

    from torch_backend import AttentionKernel

METHODS = ("reweight", "prescale", "rescale")
KERNELS = ("flash", "efficient", "cudnn", "flex", "cpu")
ON_CUDA = (  # kernels that are measured
    *((x, "float16") for x in ("flash", "cudnn", "efficient")),
    *((x, "float32") for x in ("efficient", "flex")),
)
PASSES = 3  # logarithms and means take so many times as long as a sum in XLA on CUDA: an estimate


@dataclass(frozen=True, repr=False)
class Attention(Engine):
    """Flash attention: PyTorch's kernels sum exp(⟨q, k⟩) v, from which a method makes the Gauss sum.

    Sums for which the precision is too coarse are computed again: on a CPU by "rescale" in the dtype of the points, on
    CUDA by a second kernel in float32. Points beyond the reach of that are summed by clusters.

    Args:
        method: "reweight" or "prescale", the paper's algorithms; "rescale", ours, which never overflows.
        kernel: "flash", "efficient", "cudnn" or "flex" on CUDA, "cpu" on a CPU; None: the fastest that takes the
            points. "flex" is FlexAttention, in float32 by tensor cores: PyTorch compiles it by Triton and a C compiler
            where a program first has it, for some seconds.
        precision: "float16", "bfloat16", "float32", "float64"; "float16x2", "bfloat16x2" for coordinates that are sums
            of two numbers. None: the dtype of the points; on CUDA half precision for float32 points if it is estimated
            to be four times as fast.

    References:
        Rux & Neumayer, "Fast Gauss Sums via Flash Attention", 2026, arXiv:2609.04910: Algorithms 1 and 2.
    """

    method: str = "rescale"
    kernel: str | None = None

    in_xla = False
    anywhere = False

    def __post_init__(self) -> None:
        """Raise ValueError unless method and kernel exist."""
        super().__post_init__()
        if self.kernel == "flex" and self.precision in (None, *GRADES):  # computes in nothing else
            object.__setattr__(self, "precision", "float32")
        check_choice("Attention", "method", self.method, METHODS)
        if self.kernel is not None:
            check_choice("Attention", "kernel", self.kernel, KERNELS)

    def refuses(self, problem: Problem) -> str | None:
        """What no kernel of PyTorch takes: other kernels, symbolic shapes, some widths and precisions."""
        if problem.kernel != GAUSS:
            return "attention sums Gaussians"
        if problem.logs and self.method != "rescale":
            return "logarithms need the method 'rescale'"
        if not problem.known:
            return "PyTorch's kernels take no symbolic shapes"
        if not bridge.serves(problem.platform):
            return f"the PyTorch installed here does not run on JAX's platform {problem.platform!r}"
        if problem.platform == "cpu":  # whose kernel takes everything: PyTorch is not imported to say so
            return None if self.kernel in (None, "cpu") else f"the kernel {self.kernel!r} is one for CUDA"
        asked = self._asked(problem)
        if problem.platform == "cuda" and (problem.dtype if asked is None else asked) == "float64":
            return "PyTorch has no fused attention in float64 on CUDA"
        found = self._kernel(replace(self, precision=asked), problem)
        if not isinstance(found, str):
            needs = found.fine and self.method != "rescale"
            return "flash attention and cuDNN have float32's digits by the method 'rescale' alone" if needs else None
        required, _, here = found.rpartition(". ")[0].partition("; got ")
        return f"{required} (here {here})"

    def automatic(self, problem: Problem) -> bool:
        """Always: its cost tells."""
        return True

    def fitted(self, problem: Problem) -> "Attention":
        """With the kernel that is estimated to be fastest, and its precision."""
        asked = self._asked(problem)
        if problem.platform == "cpu":
            return replace(self, kernel="cpu", precision=asked or problem.working)
        best = min(
            self._kernels(asked, problem),
            key=lambda x: (self._loss(x.precision, problem) * self._time(x, problem), -x.parts),
        )
        return replace(self, kernel=best.name, precision=best.precision)

    def _kernels(self, asked: str | None, problem: Problem) -> list[Any]:
        """The kernels in the precision asked for; for float32 points without one in three."""
        is_open = asked is None and problem.dtype == "float32" and self.method == "rescale"
        precisions = (None, "float16x2", "float32") if is_open else (asked,)
        own = [self._kernel(replace(self, precision=x), problem) for x in precisions]
        if self.kernel is None:
            others = [*["cudnn"] * bridge.card().prefers_cudnn, "flash", "flex"]
            precisions = [x.precision for x in own if not isinstance(x, str)]
            named = [Attention(self.method, name, precision=x) for x in precisions for name in others]
            own += [self._kernel(x, problem) for x in named]
        found = [x for x in own if not isinstance(x, str)]
        return [x for x in found if not x.fine or self._is_fine(problem)] or found

    def _is_fine(self, problem: Problem) -> bool:
        """Whether log-sum-exps alone are enough: for logarithms, and for a sum of one channel without gradients."""
        enough = problem.channels == 0 if problem.logs else problem.channels == 1 and not problem.gradients
        return enough and self.method == "rescale"

    def _loss(self, precision: str | None, problem: Problem) -> float:
        """By how much half precision must be faster than what keeps the digits of float32 points, if none is asked."""
        return HALVES if (problem.dtype, problem.grade) == ("float32", "default") and precision in HALF else 1.0

    def cost(self, problem: Problem) -> float:
        """By the columns of both products, and on CUDA the width that the kernel is compiled for."""
        if problem.platform == "cuda":
            return self._time(self._kernel(self, problem), problem)
        size = problem.pairs, problem.dim, problem.channels
        found, _ = estimates((f"kernel in {self.precision}",), *size)
        return found[0] if found else math.inf

    def handicap(self, problem: Problem) -> float:
        """More if it loses digits; less for logarithms on CUDA, for which XLA needs another pass."""
        if problem.platform != "cuda":
            return WORTH
        return 1 / PASSES if problem.logs else self._loss(self.precision, problem)

    def by_name(self, problem: Problem) -> tuple[Engine, ...]:
        """Float32 points in half precision: on a CPU in bfloat16, which is fast where there is AMX."""
        if problem.dtype != "float32" or self.precision is not None or problem.logs:
            return ()
        return (replace(self, precision="bfloat16" if problem.platform == "cpu" else "float16"),)

    def note(self, problem: Problem) -> str:
        """What half precision loses on CUDA, and what its digits would cost."""
        if problem.platform != "cuda" or problem.dtype != "float32" or self.precision not in HALF:
            return ""
        exact = replace(self, kernel=None, precision="float32").fitted(problem)
        return f"which errs by 4e-4 of Σ Φ|v|: {exact.cost(problem):.3g} ms by precision='float32'"

    def trials(self, problem: Problem) -> Iterable[Trial]:
        """On a CPU in the dtype of the points and in bfloat16, on CUDA every kernel that takes such points."""
        if problem.platform == "cpu":
            for own in (problem.dtype, *(["bfloat16"] if problem.dtype == "float32" else [])):
                row = f"kernel in {own}"
                work = work_of_pairs(problem.pairs, columns(row, problem.dim, problem.channels))
                yield Trial(row, Attention(precision=own), work)
            return
        for name, precision in ON_CUDA:
            engine = Attention(kernel=name, precision=precision)
            kernel = self._kernel(engine, problem)
            if not isinstance(kernel, str):  # else too wide, or not on this card
                work = work_of_pairs(problem.pairs, kernel_columns(kernel, problem.dim, problem.channels))
                yield Trial(kernel_engine(kernel), engine, work)

    def reach(self, platform: str, near: bool | None) -> float:
        """Half precision has a guard of its own, and CUDA's kernels a second one behind them."""
        return math.inf if near or platform == "cuda" else NEAR.get(self.precision or "", math.inf)

    def seen(self, plan: Plan, kernel: Kernel, *operands: Array) -> Plan:
        """The plan, or that of what sums again if the kernel's precision is too coarse for the points."""
        queries, keys, _, tau = operands
        guard, dtype = torch_backend().guard, queries.dtype.name
        own = kernel_of(self, plan.platform, dtype, queries.shape[-1])
        if isinstance(own, str):
            return plan
        points = _points(plan, own, queries, keys, tau)
        reach = guard.squared_radius(*points)
        is_far = reach > min(plan.reach, guard.reach_of(self.method, own))
        if not is_far and not (own.half and guard.doubtful(self.method, own, points, _largest_sum(*operands))):
            return plan
        coarse = f"all sums are so small that {plan.precision} has lost their digits"
        reason = plan.distance(*operands)[1] if is_far else coarse
        if plan.platform != "cuda":
            again = Attention(kernel="cpu", precision=dtype) if reach <= NEAR[dtype] else Clusters(precision=dtype)
            return replace(plan, engine=again, reason=reason)
        milliseconds, basis = time_on_cuda(guard.finest_kernel("cuda", "float32"), *aligned_sizes(*operands))
        reason += f": a second kernel computes them again, in {milliseconds:.3g} ms more ({basis})"
        return replace(plan, engine=Attention(kernel="efficient", precision="float32"), reason=reason)

    def sums(
        self, plan: Plan, near: bool | None, *operands: Array, moments: int = 0, with_log: bool = False
    ) -> tuple[Array, ...]:
        """Σ_n Φ v_n; on CUDA with log Σ_n Φ, which spares the pullback one pass."""
        attended = functools.partial(attended_sum, with_log=with_log)
        return by_attention(plan, attended, CLUSTERS.sums, operands, near is None)

    def pullback(self, plan: Plan, near: bool | None, *operands: Array) -> tuple[Array, ...]:
        """By a second sum for one channel, by the kernel's backward pass for many."""
        return by_attention(plan, attended_pullback, CLUSTERS.pullback, operands, near is None)

    def log_means(self, plan: Plan, near: bool | None, *operands: Array, kernel: Kernel = GAUSS) -> tuple[Array, ...]:
        """The kernel's own result, and its log-sum-exp."""
        anywhere = functools.partial(CLUSTERS.log_means, kernel=kernel)
        return by_attention(plan, attended_means, anywhere, operands, near is None)

    def _asked(self, problem: Problem) -> str | None:
        """The precision that is asked for by name, or by a grade: on CUDA two-part points are "high"."""
        grade = problem.grade if self.precision is None else self.precision
        if grade not in GRADES or problem.platform != "cuda":
            return self.precision if grade not in GRADES else None
        two_parts = "bfloat16x2" if problem.dtype == "bfloat16" else "float16x2"
        return {"default": None, "high": two_parts, "highest": "float32"}[grade]

    def _kernel(self, asked: "Attention", problem: Problem) -> Any:
        return kernel_of(asked, problem.platform, problem.dtype, problem.dim)

    def _time(self, kernel: "AttentionKernel", problem: Problem) -> float:
        return time_on_cuda(kernel, problem.pairs, problem.dim, problem.channels, problem.gradients)[0]


def kernel_of(engine: Attention, platform: str, dtype: str, dim: int) -> "AttentionKernel | str":
    """The attention kernel for points of a dtype and dimension; or the message that says why there is none."""
    try:
        names = engine.kernel or "auto", engine.precision or "auto"
        return torch_backend().select_kernel(*names, platform, dtype, dim)
    except ValueError as error:
        return str(error).partition("`: ")[2].replace("`backend`", "`kernel`").replace("backend", "kernel")


def _largest_sum(queries: Array, keys: Array, values: Array, tau: Array) -> Array:
    """The largest sum at 256 queries, for values scaled to at most one."""
    sums = blocked_sum(queries[..., :: -(-queries.shape[-2] // 256), :], keys, values, tau)
    largest = [jnp.abs(x).max((*range(x.ndim - 1),)) for x in (sums, values)]
    return (largest[0] / jnp.where(largest[1] == 0, 1, largest[1])).max()


def _points(plan: Plan, kernel: "AttentionKernel", queries: Array, keys: Array, tau: Array) -> tuple[Array, Array]:
    """Scaled points; on CUDA the gradients by a second sum, the other way round, have the same center.

    Not in half precision of one part, whose errors are smaller about the center of the keys.
    """
    of_both = plan.platform == "cuda" and (kernel.parts == 2 or not kernel.half)
    return scaled_points(queries, keys, tau, base_2=False, many=kernel.half, of_both=of_both)


def by_attention(
    plan: Plan, attended: Callable, anywhere: Callable, operands: tuple[Array, ...], examines: bool
) -> tuple[Array, ...]:
    """`attended` of the operands; on a CPU, `rescale` in their own dtype if the plan is not accurate enough for them.

    If that is not accurate enough either, `anywhere` sums them; this is checked only with `examines`.
    """
    dtype = operands[0].dtype
    kernel = kernel_of(plan.engine, plan.platform, dtype.name, operands[0].shape[-1])
    far = functools.partial(anywhere, replace(plan, engine=Auto(precision=dtype.name)), None)
    logs_alone = attended is attended_means and operands[2].shape[-1] == 0
    if any(0 in x.shape for x in (*operands[:2], *operands[2 + logs_alone :])):
        return far(*operands)  # only its shapes matter
    if isinstance(kernel, str):
        shapes = [x.shape for x in jax.eval_shape(far, *operands)]
        return tuple(call(refusal, (kernel,), shapes, operands))
    if kernel.dtype == "float64" and dtype != jnp.float64:
        with jax.enable_x64(True):
            results = by_attention(plan, attended, anywhere, tuple(x.astype("float64") for x in operands), examines)
            return tuple(x.astype(dtype) for x in results)

    queries, keys, values, tau, *_ = operands
    points = _points(plan, kernel, queries, keys, tau)

    def run(*_: Array) -> tuple[Array, ...]:
        return attended(plan, kernel, points, operands)[:-1]

    is_last = plan.engine.method == "rescale" and not kernel.half
    if plan.platform != "cpu" or (is_last and not examines):
        return run()
    guard, finite = torch_backend().guard, ~may_overflow(jnp, values, queries.shape[-2], keys.shape[-2])
    finite = finite & ~jnp.isnan(keys).any()
    if is_last:
        is_near = guard.squared_radius(*points) <= plan.reach if plan.near is None else plan.near
        return one_of_two(is_near & finite, run, far, *operands)
    own = replace(plan, engine=replace(plan.engine, method="rescale", precision=dtype.name))

    def again(*operands: Array) -> tuple[Array, ...]:
        return by_attention(own, attended, anywhere, operands, True)

    def unless_doubted(*operands: Array) -> tuple[Array, ...]:
        *results, largest = attended(plan, kernel, points, operands)
        doubted = guard.doubtful(plan.engine.method, kernel, points, largest)
        return one_of_two(~doubted, lambda *_: tuple(results), again, *operands)

    within = guard.squared_radius(*points) <= guard.reach_of(plan.engine.method, kernel)
    return one_of_two(within & finite, unless_doubted if kernel.half else run, again, *operands)


def refusal(message: str) -> Callable:
    """A function of tensors that raises ValueError with a message."""

    def run(*operands: "Tensor") -> "Sequence[Tensor]":
        raise ValueError(message)

    return run
