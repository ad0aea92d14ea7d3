"""Fit short mixtures of Gaussians to other kernels: `python -m benchmarks.tools.fit_mixtures`.

    κ(u) ≈ Σ_j w_j exp(-s_j u / 2),  u = τ·|q - k|² = r²,  all w_j > 0;  for the energy kernel, -r, the same minus c

Every kernel here is completely monotone in u, -r up to its constant, hence a mixture of Gaussians with weights that are
positive (Bernstein's theorem; I. J. Schoenberg, "Metric spaces and completely monotone functions", 1938).

Terms are added until the smallest maximal error meets a tolerance. What it leaves of the tolerance is then spent on a
smaller largest scale, as narrow Gaussians are hard on float32. Errors are absolute, maximal over r = 0 and RANGES, and
in the table as a grid ten times finer shows them. Kernel and mixture both fall: so in between 0 and the smallest r they
differ by κ(0) - κ(r) more at most, and beyond the largest one, but for energy, by κ(r) and the error there.
"""

import json
import math
import re

import numpy as np
from scipy.optimize import least_squares
from tqdm import tqdm

from ..kernels import FORMULAS
from ..study import ROOT

TABLE = ROOT / "jaxgauss" / "_kernels" / "mixtures.json"
RANGES = {name: (-3, 2) for name in FORMULAS} | {"energy": (-3, 0)}  # log10 r: in length scales, or else in diameters
TOLERANCES = ("1e-3", "1e-4", "1e-6")
POINTS = 80  # of the grid, where r grows by a factor of ten
POWERS = (2, 4, 8, 16, 32, 64, 128)  # of the errors whose sum is made small: the more, the closer to their maximum
MARGIN = 0.98  # of a tolerance, on that grid: a finer one shows more
MOST = 40  # terms
DIGITS = 12  # of a number in the table


class Problem:
    """A kernel on a grid of P points, for parameters log s, log w and c: (2J + 1,)."""

    def __init__(self, kernel: str, points: int = POINTS):
        low, high = RANGES[kernel]
        self.squared = np.append(0, np.logspace(low, high, (high - low) * points + 1)) ** 2  # u
        self.values = FORMULAS[kernel](self.squared)
        self.constant = kernel == "energy"

    def terms(self, x: np.ndarray) -> np.ndarray:
        """Gaussians times weights: (P, J)."""
        log_s, log_w = x[:-1].reshape(2, -1)
        return np.exp(log_w - np.exp(log_s) * self.squared[:, None] / 2)

    def errors(self, x: np.ndarray) -> np.ndarray:
        """Mixture minus constant minus kernel: (P,)."""
        return self.terms(x).sum(1) - x[-1] - self.values

    def derivatives(self, x: np.ndarray) -> np.ndarray:
        """Jacobian of the errors: (P, 2J + 1)."""
        terms = self.terms(x)
        d_log_s = -np.exp(x[: len(x) // 2]) * self.squared[:, None] / 2 * terms
        return np.column_stack([d_log_s, terms, np.full(len(terms), -1.0)])

    def worst(self, x: np.ndarray) -> float:
        """The maximal error."""
        return float(np.abs(self.errors(x)).max())


def leveled(problem: Problem, start: np.ndarray, free: np.ndarray, power: int) -> np.ndarray:
    """Parameters of the smallest sum of this power of the errors, by least squares; only those that are free move."""
    unit, more = problem.worst(start), power / 2 - 1

    def whole(part: np.ndarray) -> np.ndarray:
        x = start.copy()
        x[free] = part
        return x

    def residuals(part: np.ndarray) -> np.ndarray:
        errors = problem.errors(whole(part)) / unit
        return errors * np.abs(errors) ** more

    def jacobian(part: np.ndarray) -> np.ndarray:
        x = whole(part)
        slopes = (more + 1) * np.abs(problem.errors(x) / unit) ** more
        return slopes[:, None] * problem.derivatives(x)[:, free] / unit

    options: dict = {"jac": jacobian, "ftol": 1e-10, "xtol": 1e-10, "gtol": 1e-14, "max_nfev": 150}
    with np.errstate(over="ignore"):  # in a step that is too long, and therefore refused
        return whole(least_squares(residuals, start[free], **options).x)


def fitted(problem: Problem, x: np.ndarray, held: int | None = None) -> np.ndarray:
    """Parameters of about the smallest maximal error; one of them may be held, as is the constant where none is due."""
    free = np.arange(len(x)) != held
    free[-1] = problem.constant
    for power in POWERS:
        x = leveled(problem, x, free, power)
    return x


def longer(x: np.ndarray) -> np.ndarray:
    """A start with one more term, in between those that there are."""
    logs = x[:-1].reshape(2, -1)
    count = logs.shape[1]
    places = np.linspace(0, count - 1, count + 1)
    log_s, log_w = (np.interp(places, range(count), row) for row in logs[:, np.argsort(logs[0])])
    return np.concatenate([log_s, log_w + math.log(count / (count + 1)), x[-1:]])


def narrowed(problem: Problem, x: np.ndarray, tolerance: float) -> np.ndarray:
    """The same number of terms with the smallest largest scale that meets the tolerance, by bisection."""
    count = len(x) // 2
    held = int(np.argmax(x[:count]))
    low, high = x[held] - 3, x[held]
    for _ in range(8):
        start = x.copy()
        start[held] = middle = (low + high) / 2
        found = fitted(problem, start, held)
        if problem.worst(found) <= tolerance and found[:count].max() <= middle:
            x, high = found, middle
        else:
            low = middle
    return x


def entry(kernel: str, x: np.ndarray) -> dict:
    """A mixture's row of the table: rounded, in the order of the scales, with the error that remains."""
    fine = Problem(kernel, 10 * POINTS)
    logs = x[:-1].reshape(2, -1)
    scales, weights = ([float(f"{y:.{DIGITS}g}") for y in np.exp(row)] for row in logs[:, np.argsort(logs[0])])
    constant = float(f"{x[-1]:.{DIGITS}g}")
    error = fine.worst(np.array([*np.log(scales), *np.log(weights), constant]))
    unit = 10.0 ** (math.floor(math.log10(error)) - 1)
    row = {"scales": scales, "weights": weights} | ({"constant": constant} if fine.constant else {})
    return row | {"maximal_error": float(f"{math.ceil(error / unit) * unit:.1e}")}


def mixtures(kernel: str, bar: tqdm) -> dict[str, dict]:
    """A kernel's part of the table."""
    problem, rows = Problem(kernel), {}
    x = fitted(problem, np.array([-1, 1, -0.7, -0.7, float(problem.constant)]))
    for tolerance in TOLERANCES:
        allowed = MARGIN * float(tolerance)
        while problem.worst(x) > allowed:
            if len(x) // 2 == MOST:
                raise AssertionError(f"{kernel}: {MOST} terms miss {tolerance}")
            x = fitted(problem, longer(x))
        row = rows[tolerance] = entry(kernel, narrowed(problem, x, allowed))
        error, scales = row["maximal_error"], row["scales"]
        if not error <= float(tolerance):
            raise AssertionError(f"{kernel}: {error} misses {tolerance}")
        bar.write(f"{kernel}, {tolerance}: {len(scales)} terms, {error}, scales {scales[0]:.3g} to {scales[-1]:.3g}")
        bar.update()
    return rows


if __name__ == "__main__":
    table: dict = {"source": "python -m benchmarks.tools.fit_mixtures"}
    with tqdm(total=len(FORMULAS) * len(TOLERANCES), unit="mixture") as bar:
        table |= {name: mixtures(name, bar) for name in FORMULAS}
    text = re.sub(r"(?<=\[)\n {4}|\n {3}(?=\])", "", json.dumps(table, indent=1))  # each array in a line of its own
    TABLE.write_text(text.replace("\n    ", " ") + "\n")
