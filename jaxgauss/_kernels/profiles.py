"""Profiles κ(u) of the named kernels, with derivative rules that are finite everywhere."""

import functools
import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from .._arrays.exponential import exp2

# Up to this u points count as coincident for the derivatives of a kernel with a kink: powers of 1/√u stay finite.
COINCIDENT = 2.0**-80
DECAYED = {"float32": 88.0, "float64": 709.0}  # from this x on, e^-x is below the smallest normal number


class Own:
    """Base class of profiles with derivative rules of their own."""

    def __call__(self, u: Array) -> Array:
        """κ(u)."""
        raise NotImplementedError

    def with_slope(self, u: Array) -> tuple[Array, Array]:
        """κ(u) and -2κ'(u), which share intermediate results; not to be differentiated."""
        raise NotImplementedError

    def log(self, u: Array) -> Array:
        """log κ(u), finite where κ underflows."""
        raise NotImplementedError

    def log_integral(self, dim: int) -> float:
        """log ∫ κ(‖x‖²) dx in `dim` dimensions; infinite if the integral is."""
        raise NotImplementedError

    def end(self, dtype: str) -> float:
        """The u beyond which κ and its derivatives are zero in float32 or float64."""
        return math.inf


@dataclass(frozen=True)
class Gauss(Own):
    """exp(-u/2)."""

    def __call__(self, u: Array) -> Array:
        return exp2(-math.log2(math.e) / 2 * u)

    def with_slope(self, u: Array) -> tuple[Array, Array]:
        return (phi := self(u)), phi

    def log(self, u: Array) -> Array:
        return u / -2

    def end(self, dtype: str) -> float:
        return 2 * DECAYED[dtype]

    def log_integral(self, dim: int) -> float:
        return dim / 2 * math.log(2 * math.pi)


@dataclass(frozen=True)
class RationalQuadratic(Own):
    """(1 + u rate / 2α)^-α."""

    alpha: float
    rate: float = 1.0

    def __call__(self, u: Array) -> Array:
        """By a logarithm, except for the most common α."""
        t = 1 + self.rate / (2 * self.alpha) * u
        if self.alpha in (0.5, 1.0):
            return lax.rsqrt(t) if self.alpha == 0.5 else 1 / t
        return exp2(-self.alpha / math.log(2) * jnp.log(t))

    def with_slope(self, u: Array) -> tuple[Array, Array]:
        """-2κ' is (1 + u rate / 2α)^-(α + 1) rate."""
        kappa = self(u)
        return kappa, self.rate * kappa / (1 + self.rate / (2 * self.alpha) * u)

    def log(self, u: Array) -> Array:
        return -self.alpha * jnp.log1p(self.rate / (2 * self.alpha) * u)

    def log_integral(self, dim: int) -> float:
        """That of Student's density with 2α - D degrees of freedom; finite for 2α > D."""
        if 2 * self.alpha <= dim:
            return math.inf
        gammas = math.lgamma(self.alpha - dim / 2) - math.lgamma(self.alpha)
        return dim / 2 * math.log(2 * math.pi * self.alpha / self.rate) + gammas


@dataclass(frozen=True)
class Matern(Own):
    """The Matérn kernel of smoothness ν = n + ½."""

    n: int

    def __call__(self, u: Array) -> Array:
        return _matern(self.n, 2 * self.n + 1.0, u)

    def with_slope(self, u: Array) -> tuple[Array, Array]:
        """Both from one exponential; XLA would compute it twice."""
        rate = 2 * self.n + 1.0
        z = jnp.sqrt(rate * u)
        decay = lax.optimization_barrier(_decay(z))
        if self.n == 0:
            return decay, jnp.where(u <= COINCIDENT, 0, decay / z)
        slope = rate * decay if self.n == 1 else rate / 3 * (1 + z) * decay
        return _polynomial(self.n, rate, z, u) * decay, slope

    def log(self, u: Array) -> Array:
        return _log_matern(self.n, 2 * self.n + 1.0, u)

    def end(self, dtype: str) -> float:
        """Where the exponential has decayed, with room for the polynomial."""
        return (DECAYED[dtype] + 20) ** 2 / (2 * self.n + 1)

    def log_integral(self, dim: int) -> float:
        """The spectral density at zero: Rasmussen & Williams, equation 4.15."""
        nu = self.n + 0.5
        gammas = math.lgamma(nu + dim / 2) - math.lgamma(nu)
        return dim / 2 * math.log(4 * math.pi / (2 * nu)) + gammas


@dataclass(frozen=True)
class Energy(Own):
    """-√u."""

    def __call__(self, u: Array) -> Array:
        return _negative_distance(u)

    def with_slope(self, u: Array) -> tuple[Array, Array]:
        distance = jnp.sqrt(u)
        return -distance, jnp.where(u <= COINCIDENT, 0, 1 / distance)


# Matérn kernels of ν = n + ½ are polynomials times a decay, with z = √(2ν u):
#
#     n = 0: e^-z    n = 1: (1 + z) e^-z    n = 2: (1 + z + z²/3) e^-z
#
# and the slope -2 d/du of n is 2ν times n - 1, for n = 2 a third of it; of n = 0 it is e^-z / z, here zero at z = 0.
# So no derivative has cancellation.
# Source: Rasmussen & Williams, "Gaussian Processes for Machine Learning", 2006, section 4.2.


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _matern(n: int, rate: float, u: Array) -> Array:
    z = jnp.sqrt(rate * u)
    return _polynomial(n, rate, z, u) * _decay(z) if n else _decay(z)


def _polynomial(n: int, rate: float, z: Array, u: Array) -> Array:
    return 1 + z if n == 1 else 1 + z + rate / 3 * u


def _decay(z: Array) -> Array:
    """e^-z."""
    return exp2(-math.log2(math.e) * z)


@_matern.defjvp
def _matern_tangent(n: int, rate: float, primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (u,), (d_u,) = primals, tangents
    if n:
        return _matern(n, rate, u), -rate / (6 if n == 2 else 2) * _matern(n - 1, rate, u) * d_u
    apart, distance = _apart(u)
    z = math.sqrt(rate) * distance
    return _matern(n, rate, u), -rate / 2 * jnp.where(apart, _decay(z) / z, 0) * d_u


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _log_matern(n: int, rate: float, u: Array) -> Array:
    apart, distance = _apart(u)  # as below, because a loop that is differentiated twice bypasses the rule
    z = math.sqrt(rate) * jnp.where(apart, distance, 0)
    return jnp.log(_polynomial(n, rate, z, u)) - z if n else -z


@_log_matern.defjvp
def _log_matern_tangent(n: int, rate: float, primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (u,), (d_u,) = primals, tangents
    apart, distance = _apart(u)
    z = math.sqrt(rate) * jnp.where(apart, distance, 0)
    if n == 0:
        slope = jnp.where(apart, 1 / (math.sqrt(rate) * distance), 0)
    else:
        slope = 1 / (1 + z) if n == 1 else (1 + z) / (3 + z * (3 + z))
    return _log_matern(n, rate, u), -rate / 2 * slope * d_u


@jax.custom_jvp
def _negative_distance(u: Array) -> Array:
    return -jnp.sqrt(u)


@_negative_distance.defjvp
def _negative_distance_tangent(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (u,), (d_u,) = primals, tangents
    apart, distance = _apart(u)
    return _negative_distance(u), jnp.where(apart, -0.5 / distance, 0) * d_u


def _apart(u: Array) -> tuple[Array, Array]:
    """Whether points are distinct, and their distance, or one if they coincide."""
    apart = ~(u <= COINCIDENT)  # so that NaN stays NaN
    return apart, jnp.sqrt(jnp.where(apart, u, 1))
