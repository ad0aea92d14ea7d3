"""Mixture: kernels that are mixtures of Gaussians, each of which another engine sums."""

from dataclasses import dataclass, replace
from typing import Any

from .._kernels.kernels import GAUSS
from .._kernels.mixtures import Mixture as Gaussians
from .._kernels.mixtures import mixture
from .attention.engine import Attention
from .choose import cheapest
from .engine import AUTO, HALF, Auto, Engine, Problem
from .products.engine import Blocked, Dense
from .settings import Settings

# Errors of a mixture, relative to κ(0): below the error of each precision.
TOLERANCES = {"float16": 1e-4, "float16x2": 1e-4, "bfloat16": 1e-3, "bfloat16x2": 1e-3}
FINEST = 1e-6  # in float32 and float64
OF_GAUSSIANS = (Dense(), Blocked(), Attention())  # that "auto" may take for them


@dataclass(frozen=True, repr=False)
class Mixture(Engine):
    """Kernels as mixtures of Gaussians, each of which another engine sums: other kernels at attention's speed.

    Args:
        gaussians: the engine of the Gaussians.
        precision: of the products, as for that engine; the mixture has as many Gaussians as it needs.
    """

    gaussians: Engine = AUTO

    in_xla = False
    anywhere = False

    def __post_init__(self) -> None:
        """Raise TypeError or ValueError unless an engine of Gaussians sums them, in the mixture's precision."""
        super().__post_init__()
        if not isinstance(self.gaussians, Engine) or isinstance(self.gaussians, Mixture):
            given = f"got {type(self.gaussians).__name__}. Pass jaxgauss.Attention(), for example."
            raise TypeError(f"`jaxgauss.Mixture`: `gaussians` must be an engine that sums Gaussians; {given}")
        own = self.gaussians.precision
        if self.precision is None:
            object.__setattr__(self, "precision", own)
        elif own not in (None, self.precision):
            given = f"got {self.precision!r} and {self.gaussians!r}. Leave it out."
            raise ValueError(f"`jaxgauss.Mixture`: `precision` must be that of the engine; {given}")

    def refuses(self, problem: Problem) -> str | None:
        """Gaussians themselves, logarithms, kernels without a mixture, and what the engine of the Gaussians refuses."""
        if problem.kernel == GAUSS or problem.logs:
            return "a mixture stands for kernels other than the Gaussian, and for no logarithms"
        if mixture(problem.kernel, FINEST) is None:
            return f"there is no mixture of Gaussians for {problem.kernel!r}"
        return self.of_one.refuses(problem._replace(kernel=GAUSS)) if not isinstance(self.of_one, Auto) else None

    def automatic(self, problem: Problem) -> bool:
        """Where attention sums the Gaussians: in half precision, or on CUDA; distances need all digits."""
        if self.precision in HALF:
            return True
        smooth_on_cuda = problem.platform == "cuda" and problem.known and not problem.kernel.kinked
        return smooth_on_cuda and problem.dtype != "float64" and isinstance(self.fitted(problem).gaussians, Attention)

    def fitted(self, problem: Problem) -> "Mixture":
        """With the engine that is fastest for as many Gaussians."""
        inner = cheapest(OF_GAUSSIANS, self.of_one, problem._replace(kernel=GAUSS))
        terms = gaussians_of(problem.kernel, inner.engine.precision).terms
        inner = cheapest(OF_GAUSSIANS, self.of_one, problem._replace(kernel=GAUSS, pairs=problem.pairs * terms))
        return replace(self, gaussians=inner.engine, precision=inner.precision)

    def cost(self, problem: Problem) -> float:
        """That of as many Gaussians."""
        terms = gaussians_of(problem.kernel, self.precision).terms
        return self.gaussians.cost(problem._replace(kernel=GAUSS, pairs=problem.pairs * terms))

    def handicap(self, problem: Problem) -> float:
        """That of the engine of the Gaussians."""
        return self.gaussians.handicap(problem._replace(kernel=GAUSS))

    def note(self, problem: Problem) -> str:
        """How many Gaussians there are, and their error."""
        return str(gaussians_of(problem.kernel, self.precision))

    def reach(self, platform: str, near: bool | None) -> float:
        """As far as the engine of the Gaussians."""
        return self.gaussians.reach(platform, near)

    def seen(self, plan: Any, kernel: Any, *operands: Any) -> Any:
        """The same plan, whose reason tells of the mixture."""
        return plan

    @property
    def of_one(self) -> Engine:
        """The engine of one Gaussian, in the mixture's precision."""
        return self.gaussians if self.precision is None else replace(self.gaussians, precision=self.precision)


def gaussians_of(kernel: Any, precision: str | None) -> Gaussians:
    """The mixture that stands for a kernel in a precision; ValueError if it has none."""
    found = mixture(kernel, TOLERANCES.get(precision or "", FINEST))
    if found is None:
        raise ValueError(f"`engine` must be another: {kernel!r} is no mixture of Gaussians; got {precision}.")
    return found


def of_gaussians(settings: Settings) -> Settings:
    """The settings of the Gauss sums that a mixture is made of."""
    engine = settings.engine.of_one if isinstance(settings.engine, Mixture) else settings.engine
    return replace(settings, kernel=GAUSS, engine=engine, near=None, waves=None)  # found for another τ
