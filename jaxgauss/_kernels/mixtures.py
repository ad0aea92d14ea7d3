"""Mixtures of Gaussians that approximate a kernel: κ(u) ≈ Σ_j w_j exp(-s_j u/2), with positive weights.

`python -m benchmarks.tools.fit_mixtures` makes mixtures.json. The rational quadratic kernel is an integral of
Gaussians for every α; a quadrature takes a few terms of it.

Source: Schoenberg, "Metric Spaces and Completely Monotone Functions", 1938: every kernel that is positive definite in
all dimensions is such an integral.
"""

import functools
import json
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .kernels import KERNELS, Kernel, Profile
from .profiles import RationalQuadratic

TABLE = Path(__file__).with_name("mixtures.json")
FARTHEST = 100.0  # in length scales: up to this distance the errors hold; beyond, κ at this distance bounds the error


class Mixture(NamedTuple):
    """A mixture of Gaussians of bandwidths τ s_j with weights w_j.

    Attributes:
        scales: s, (J,), from the widest to the narrowest.
        weights: w, (J,), positive, so the mixture is a kernel itself.
        maximal_error: of κ, relative to κ(0), at distances of 0 and from 1e-3 to 1e2 length scales.
        constant: to be subtracted from the mixture. It is zero except for "energy", whose mixture holds for distances
            up to one.
    """

    scales: tuple[float, ...]
    weights: tuple[float, ...]
    maximal_error: float
    constant: float = 0.0

    @property
    def terms(self) -> int:
        return len(self.scales)

    def __str__(self) -> str:
        return f"{self.terms} Gaussians, maximal error {self.maximal_error:.2g}"


@functools.lru_cache(256)
def mixture(kernel: Kernel, tolerance: float) -> Mixture | None:
    """The shortest known mixture with at most this error, or None."""
    profile = kernel.profile
    for fitted, rows in _table():
        factor = _stretched(fitted, profile)
        known = [x for x in rows if x.maximal_error <= tolerance] if factor else []
        if known:
            shortest = min(known, key=lambda x: x.terms)
            return shortest._replace(scales=tuple(factor * s for s in shortest.scales))
    return _of_gammas(profile, tolerance) if isinstance(profile, RationalQuadratic) else None


@functools.cache
def _table() -> list[tuple[Profile, list[Mixture]]]:
    table = {name: rows for name, rows in json.loads(TABLE.read_text()).items() if name != "source"}
    fitted = {"rational_quadratic(2.0)": RationalQuadratic(2.0)} | {name: k.profile for name, k in KERNELS.items()}
    return [
        (
            fitted[name],
            [
                Mixture(tuple(x["scales"]), tuple(x["weights"]), x["maximal_error"], x.get("constant", 0.0))
                for x in rows.values()
            ],
        )
        for name, rows in table.items()
    ]


def _stretched(fitted: Profile, profile: Profile) -> float:
    """The factor s with profile(u) = fitted(s u); zero if there is none, or no error is known for it."""
    if isinstance(fitted, RationalQuadratic) and isinstance(profile, RationalQuadratic):
        return profile.rate / fitted.rate if profile.alpha == fitted.alpha and profile.rate <= fitted.rate else 0.0
    return float(profile == fitted)


# (1 + u/2α)^-α = ∫ p(s) exp(-su/2) ds, p the Gamma density of shape and rate α; with s = e^t the trapezoidal rule
# converges faster than any power of its step: the integrand decays doubly exponentially on the right and as e^αt on
# the left.
# Source: Trefethen & Weideman, "The Exponentially Convergent Trapezoidal Rule", SIAM Review 56, 2014.


def _of_gammas(profile: RationalQuadratic, tolerance: float) -> Mixture:
    alpha = profile.alpha
    r = np.concatenate([[0.0], np.geomspace(1e-3, FARTHEST, 2000)])
    exact = (1 + profile.rate * r**2 / (2 * alpha)) ** -alpha
    first = (math.log(tolerance / 8) + math.lgamma(alpha + 1)) / alpha - math.log(alpha)
    last = math.log(1 + (3 * math.log(1 / tolerance) + 10) / alpha)
    step = 3.0
    while True:
        t = np.arange(first, last + step, step)
        logs = alpha * (math.log(alpha) + t - np.exp(t)) - math.lgamma(alpha)
        weights, scales = step * np.exp(logs), np.exp(t)
        kept = weights > tolerance / (100 * len(t))
        weights, scales = weights[kept] / weights[kept].sum(), scales[kept] * profile.rate
        error = np.abs(np.exp(-np.outer(r**2, scales) / 2) @ weights - exact).max()
        if error <= tolerance / 1.05:
            return Mixture(tuple(scales.tolist()), tuple(weights.tolist()), float(1.05 * error))
        step *= 0.9
