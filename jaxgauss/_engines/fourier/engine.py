"""Fourier: the fast Gauss transform, a Fourier series of the Gaussian in up to three dimensions."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..._kernels.kernels import GAUSS
from ..costs import time_of_waves_on_cuda
from ..engine import Engine, Problem
from .frequencies import DIMENSIONS, MOST


@dataclass(frozen=True, repr=False)
class Fourier(Engine):
    """A Fourier series of the Gaussian in up to three dimensions: O(M + N) operations, by nonuniform FFTs or products.

    On a CPU "auto" takes it where it is estimated to be faster. Queries whose digits it does not promise are summed
    another way; by name all of them are summed by it.

    Args:
        tolerance: the largest error relative to Σ|v|, before rounding. None: below rounding.
        precision: float32 or float64; None: the dtype of the points.
    """

    tolerance: float | None = None

    anywhere = False  # a box of waves has to hold the points

    def __post_init__(self) -> None:
        """Raise TypeError or ValueError unless the tolerance is a number between 0 and 1."""
        super().__post_init__()
        check_tolerance("Fourier", self.tolerance)

    def refuses(self, problem: Problem) -> str | None:
        """Other kernels, logarithms, and more than three dimensions."""
        if problem.kernel != GAUSS or problem.logs:
            return "a Fourier series sums Gaussians, and no logarithms"
        if problem.dim not in (0, *DIMENSIONS):
            return f"a Fourier series has at most 3 dimensions, and the points {problem.dim}"
        return super().refuses(problem)

    def by_name(self, problem: Problem) -> tuple[Engine, ...]:
        """On CUDA, where "auto" does not look at points."""
        return (self,) if problem.platform == "cuda" else ()

    def note(self, problem: Problem) -> str:
        """The cost on CUDA is that of all waves."""
        return "if it takes all of its waves" if problem.platform == "cuda" else ""

    def cost(self, problem: Problem) -> float:
        """On CUDA the time of all waves; on a CPU it depends on the points, see `cost`."""
        if problem.platform != "cuda" or problem.dim not in DIMENSIONS:
            return math.inf
        points = 2 * math.sqrt(problem.pairs)
        return time_of_waves_on_cuda(points, problem.dim, problem.channels, MOST[problem.dim])


def check_tolerance(function: str, tolerance: Any) -> None:
    """Raise TypeError or ValueError unless the tolerance is None or a number between 0 and 1."""
    where = f"`jaxgauss.{function}`: `tolerance` must be"
    if tolerance is None:
        return
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float | np.floating):
        raise TypeError(f"{where} a number; got {type(tolerance).__name__}. Pass one such as 1e-4.")
    if not 0 < tolerance < 1:
        raise ValueError(f"{where} between 0 and 1; got {tolerance}. Pass one such as 1e-4.")
