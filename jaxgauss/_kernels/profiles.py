"""The profiles κ(u) of the kernels that have names, by rules of their own: their derivatives are finite everywhere."""

import functools
import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

# u up to which points coincide for the derivatives of a kernel with a kink: powers of 1/√u stay finite in float32.
COINCIDENT = 2.0**-80
DECAYED = {"float32": 88.0, "float64": 709.0}  # e^-x is below the smallest normal number from here on


class Own:
    """A profile whose derivatives are finite everywhere, by its own rules."""

    def __call__(self, u: Array) -> Array:
        """κ."""
        raise NotImplementedError

    def with_slope(self, u: Array) -> tuple[Array, Array]:
        """κ and -2κ', of which neither is to be differentiated: what both are made of is computed once."""
        raise NotImplementedError

    def log(self, u: Array) -> Array:
        """log κ, finite where κ underflows."""
        raise NotImplementedError

    def log_integral(self, dim: int) -> float:
        """log ∫ κ(‖x‖²) dx in so many dimensions; infinite where there is none."""
        raise NotImplementedError

    def end(self, dtype: str) -> float:
        """The u from which κ and its derivatives are zero in float32 or float64."""
        return math.inf


@dataclass(frozen=True)
class Gauss(Own):
    """exp(-u/2)."""

    def __call__(self, u: Array) -> Array:
        """κ."""
        return jnp.exp2(-math.log2(math.e) / 2 * u)

    def with_slope(self, u: Array) -> tuple[Array, Array]:
        """Twice the same."""
        return (phi := self(u)), phi

    def log(self, u: Array) -> Array:
        """-u/2."""
        return u / -2

    def end(self, dtype: str) -> float:
        """Twice the exponent."""
        return 2 * DECAYED[dtype]

    def log_integral(self, dim: int) -> float:
        """Of the normal density."""
        return dim / 2 * math.log(2 * math.pi)


@dataclass(frozen=True)
class RationalQuadratic(Own):
    """(1 + u rate / 2α)^-α."""

    alpha: float
    rate: float = 1.0

    def __call__(self, u: Array) -> Array:
        """By a logarithm, but for the most used α."""
        t = 1 + self.rate / (2 * self.alpha) * u
        if self.alpha in (0.5, 1.0):
            return lax.rsqrt(t) if self.alpha == 0.5 else 1 / t
        return jnp.exp(-self.alpha * jnp.log(t))

    def with_slope(self, u: Array) -> tuple[Array, Array]:
        """The slope is (1 + u rate / 2α)^-(α + 1) rate."""
        kappa = self(u)
        return kappa, self.rate * kappa / (1 + self.rate / (2 * self.alpha) * u)

    def log(self, u: Array) -> Array:
        """That of the power."""
        return -self.alpha * jnp.log1p(self.rate / (2 * self.alpha) * u)

    def log_integral(self, dim: int) -> float:
        """Of Student's density of 2α - D degrees of freedom: there is one for 2α > D."""
        if 2 * self.alpha <= dim:
            return math.inf
        gammas = math.lgamma(self.alpha - dim / 2) - math.lgamma(self.alpha)
        return dim / 2 * math.log(2 * math.pi * self.alpha / self.rate) + gammas


@dataclass(frozen=True)
class Matern(Own):
    """The Matérn kernel of smoothness ν = n + ½."""

    n: int

    def __call__(self, u: Array) -> Array:
        """By the rule below."""
        return _matern(self.n, 2 * self.n + 1.0, u)

    def with_slope(self, u: Array) -> tuple[Array, Array]:
        """The exponential is computed once; XLA would do it for each."""
        rate = 2 * self.n + 1.0
        z = jnp.sqrt(rate * u)
        decay = lax.optimization_barrier(_decay(z))
        if self.n == 0:
            return decay, jnp.where(u <= COINCIDENT, 0, decay / z)
        slope = rate * decay if self.n == 1 else rate / 3 * (1 + z) * decay
        return _polynomial(self.n, rate, z, u) * decay, slope

    def log(self, u: Array) -> Array:
        """By a rule of its own."""
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
        """By the rule below."""
        return _negative_distance(u)

    def with_slope(self, u: Array) -> tuple[Array, Array]:
        """By one root."""
        distance = jnp.sqrt(u)
        return -distance, jnp.where(u <= COINCIDENT, 0, 1 / distance)


# Matérn kernels of ν = n + ½ are polynomials times a decay, with z = √(2ν u):
#
#     n = 0: e^-z    n = 1: (1 + z) e^-z    n = 2: (1 + z + z²/3) e^-z
#
# and the slope -2 d/du of n is 2ν times n - 1, for n = 2 a third of it; of n = 0 it is e^-z / z, here zero at z = 0.
# So no derivative subtracts what it has added.
# Source: Rasmussen & Williams, "Gaussian Processes for Machine Learning", 2006, section 4.2.


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _matern(n: int, rate: float, u: Array) -> Array:
    z = jnp.sqrt(rate * u)
    return _polynomial(n, rate, z, u) * _decay(z) if n else _decay(z)


def _polynomial(n: int, rate: float, z: Array, u: Array) -> Array:
    return 1 + z if n == 1 else 1 + z + rate / 3 * u


def _decay(z: Array) -> Array:
    """e^-z as a power of two, which is computed faster."""
    return jnp.exp2(-math.log2(math.e) * z)


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
    apart, distance = _apart(u)  # as below: in a loop that is differentiated again, the rule is not asked
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
    """Whether points do not coincide, and their distance, or one."""
    apart = ~(u <= COINCIDENT)  # NaN is to be seen
    return apart, jnp.sqrt(jnp.where(apart, u, 1))
