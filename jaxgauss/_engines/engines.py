"""All engines, and the plan of a sum: which of them sums it."""

from typing import Any

import jax

from .._arrays.devices import platforms
from .._arrays.points import aligned_sizes
from .._kernels.kernels import GAUSS
from .._kernels.mixtures import Mixture as Gaussians
from .attention.engine import METHODS, Attention
from .choose import cheapest
from .clusters.engine import CLUSTERS
from .differences.engine import Differences
from .engine import AUTO
from .fourier.engine import Fourier
from .mixture import Mixture, gaussians_of, of_gaussians
from .plan import Plan
from .products.engine import Blocked, Dense
from .settings import Settings
from .sliced.engine import Sliced

ENGINES = (Dense(), Blocked(), Attention(), CLUSTERS, Fourier(), Differences(), Mixture(), Sliced())
NAMES = {x.name: x for x in (AUTO, *ENGINES)} | {name: Attention(name) for name in METHODS}


def plan_of(settings: Settings, platform: str, pairs: Any, dim: Any, channels: Any) -> Plan:
    """The plan of a sum of the settings' kernel. ValueError if no engine that is asked for sums it."""
    problem = settings.problem(platform, pairs, dim, channels)
    try:
        return cheapest(ENGINES, settings.engine, problem)
    except ValueError as error:
        raise ValueError(f"`jaxgauss.{settings.function}`: {error}") from None


def exact_plan_of(settings: Settings, platform: str, operands: tuple[jax.Array, ...]) -> Plan:
    """The plan that evaluates κ itself in XLA, whatever the kernel. ValueError if its precision cannot run.

    For Gaussians it is in the working dtype, since the precision asked for may be an attention kernel's.
    """
    engine, pairs = settings.engine, aligned_sizes(*operands[:4])[0]
    problem = settings.problem(platform, pairs, 0, 0)._replace(logs=False)  # in XLA D and C do not matter
    if not engine.in_xla or settings.automatic:
        precision = None if settings.kernel == GAUSS else engine.precision
        engine = (Dense if Dense().automatic(problem) else Blocked)(precision=precision)
    if (reason := engine.refuses(problem._replace(kernel=GAUSS))) is not None:
        raise ValueError(f"`jaxgauss.{settings.function}`: `engine` must be one of XLA that can sum this: {reason}.")
    plan = Plan(platform, engine.fitted(problem), "XLA evaluates the kernel itself")
    return plan.with_findings(settings)


def plan_there(settings: Settings, platform: str, operands: tuple[jax.Array, ...]) -> Plan:
    """The plan on a platform, even if the arguments were checked for another."""
    try:
        return plan_of(settings, platform, *aligned_sizes(*operands[:4])).with_findings(settings)
    except ValueError:  # the arguments were checked for another platform: PyTorch refuses if the sum runs on this one
        engine = Attention(precision=settings.engine.precision) if settings.automatic else settings.engine
        return Plan(platform, engine, "asked for by name", waves=False)


def mixture_of(settings: Settings, *operands: Any) -> tuple[Gaussians, Settings] | None:
    """The mixture that stands for the kernel on a platform of JAX, for operands of such shapes; and its sums' settings.

    None if no mixture stands for the kernel.
    """
    plans = [plan_there(settings, platform, operands) for platform in platforms()]
    plan = next((x for x in plans if x.name == "mixture"), None)
    return None if plan is None else (gaussians_of(settings.kernel, plan.precision), of_gaussians(settings))
