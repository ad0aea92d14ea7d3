"""Radial kernels κ(u), u = τ‖x - y‖², by name, and their derivatives, which are radial again."""

import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._arrays.points import LOG_ZERO
from .._calls import readable
from .profiles import COINCIDENT, Energy, Gauss, Matern, Own, RationalQuadratic

STEEP = 1e6  # a kernel with a larger derivative at u = 0 or 1e-20 has a kink
Profile = Callable[[Float[Array, "..."]], Float[Array, "..."]]


@readable
@dataclass(frozen=True)
class Kernel:
    """A radial kernel k(x, y) = κ(u), u = τ‖x - y‖², for `kernel_sum` and the kernel methods.

    Define a kernel once, not in a loop: every new function is compiled anew. If κ has a kink at u = 0, such as
    exp(-√u), the gradient at points that coincide is zero.

    Args:
        profile: κ, a JAX function of an array u ≥ 0 of any shape that acts on each number.
        name: shown when printed.
        conditional: whether κ is positive definite only for weights that add up to zero, such as -√u. Kernel methods
            that need it look at matrices of 64 points once for each kernel and dimension, and warn if one is not.
            Sums do not need it.

    Raises:
        TypeError: profile is no JAX function of one array, or returns no array, or one of another dtype, or uses a
            value that JAX traces.
        ValueError: profile changes the shape, or κ(0) is not finite.

    Derivatives:
        Of any order, by those of the profile. Numbers inside the profile are constants, without gradients.

    Example:
        >>> import jax.numpy as jnp, jaxgauss
        >>> student = jaxgauss.Kernel(lambda u: (1 + u / 3) ** -2)
        >>> points = jnp.array([[0.0], [3.0]])
        >>> jaxgauss.kernel_sum(points, points, jnp.array([1.0, 0.0]), kernel=student).tolist()
        [1.0, 0.0625]
    """

    profile: Profile
    name: str = ""
    conditional: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.profile, Own | Slope | Trace):
            _check(self.profile)

    def __repr__(self) -> str:
        return f"Kernel({self.name or getattr(self.profile, '__name__', self.profile)})"

    def __call__(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        """κ(u); all its derivatives are finite."""
        if isinstance(self.profile, Own):
            return self.profile(u)
        profile = _in_mode_of(u)(self.profile)
        if not self.kinked:
            return profile(u)
        apart = ~(u <= COINCIDENT)  # so that NaN stays NaN
        return jnp.where(apart, profile(jnp.where(apart, u, 1)), self.at_zero)

    def with_slope(self, u: Float[Array, "..."]) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
        """κ(u) and ψ(u) = -2κ'(u), which share intermediate results."""
        return _with_slope(self, u)

    def log(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        """log κ(u); for named kernels also where κ underflows."""
        if isinstance(self.profile, Own):
            return self.profile.log(u)
        kappa = self(u)
        return jnp.where(kappa > 0, jnp.log(jnp.where(kappa > 0, kappa, 1)), LOG_ZERO)

    def log_integral(self, dim: int) -> float:
        """log ∫ κ(‖x‖²) dx in `dim` dimensions; infinite if the integral is, NaN if it is unknown."""
        if not isinstance(self.profile, Own) or self.conditional:
            return math.nan
        return self.profile.log_integral(dim)

    @property
    def slope(self) -> "Kernel":
        """ψ = -2κ' as a kernel; the gradient of k with respect to x is τ ψ(u) (y - x)."""
        return self if self == GAUSS else Kernel(Slope(self), f"slope of {self.name}", self.conditional)

    def trace(self, dim: int) -> "Kernel":
        """D ψ(u) - u χ(u) as a kernel, where χ = -2ψ'."""
        return Kernel(Trace(self, dim), f"trace of {self.name}")

    @property
    def kinked(self) -> bool:
        """Whether κ' is infinite at u = 0: κ then depends on √u."""
        return self != GAUSS and _kinked(self.profile)

    @property
    def decays(self) -> bool:
        """Whether κ is known to be positive and decreasing."""
        return isinstance(self.profile, Own) and not self.conditional

    def end(self, dtype: str) -> float:
        """The u beyond which κ and its derivatives are zero in float32 or float64; infinite if unknown."""
        if isinstance(self.profile, Slope | Trace):
            return self.profile.kernel.end(dtype)
        return self.profile.end(dtype) if isinstance(self.profile, Own) else math.inf

    @property
    def at_zero(self) -> float:
        """κ(0)."""
        return _at_zero(self.profile)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _with_slope(kernel: Kernel, u: Array) -> tuple[Array, Array]:
    if isinstance(kernel.profile, Own):
        return kernel.profile.with_slope(u)
    kappa, tangent = jax.jvp(kernel, (u,), (jnp.ones_like(u),))
    return kappa, -2 * tangent


@_with_slope.defjvp
def _with_slope_tangent(kernel: Kernel, primals: tuple[Array], tangents: tuple[Array]):
    """Tangents of κ and ψ by their own rules, which are finite everywhere."""
    (u,), (d_u,) = primals, tangents
    (kappa, d_kappa), (psi, d_psi) = (jax.jvp(x, (u,), (d_u,)) for x in (kernel, kernel.slope))
    return (kappa, psi), (d_kappa, d_psi)


@dataclass(frozen=True)
class Slope:
    """The profile ψ = -2κ'."""

    kernel: Kernel

    def __call__(self, u: Array) -> Array:
        """ψ(u), by the kernel's own rule if it has one."""
        return -2 * jax.jvp(self.kernel, (u,), (jnp.ones_like(u),))[1]


@dataclass(frozen=True)
class Trace:
    """The profile D ψ - u χ, where χ = -2ψ': the trace of ∂²k/∂x∂y over τ in D dimensions."""

    kernel: Kernel
    dim: int

    def __call__(self, u: Array) -> Array:
        """D ψ(u) - u χ(u); D ψ(0) where points coincide."""
        slope = self.kernel.slope
        return self.dim * slope(u) - u * slope.slope(u)


GAUSS = Kernel(Gauss(), "gauss")
KERNELS = {
    "gauss": GAUSS,
    "laplace": Kernel(Matern(0), "matern12"),
    "matern12": Kernel(Matern(0), "matern12"),
    "matern32": Kernel(Matern(1), "matern32"),
    "matern52": Kernel(Matern(2), "matern52"),
    "imq": Kernel(RationalQuadratic(0.5), "imq"),
    "cauchy": Kernel(RationalQuadratic(1.0, 2.0), "cauchy"),
    "energy": Kernel(Energy(), "energy", conditional=True),
}


def rational_quadratic(alpha: float) -> Kernel:
    """The rational quadratic kernel (1 + u/2α)^-α, u = τ‖x - y‖²; scikit-learn's has τ = 1/length_scale².

    It is a mixture of Gaussians of all bandwidths, and tends to the Gaussian for α → ∞. α = ½ is "imq"; α = 1 is
    "cauchy" with τ/2.

    Args:
        alpha: α, a positive number.

    Returns:
        A `Kernel`; kernels with equal α are equal.

    Raises:
        ValueError: alpha is not a positive finite number.

    Example:
        >>> import jax.numpy as jnp, jaxgauss
        >>> points = jnp.array([[0.0], [2.0]])
        >>> kernel = jaxgauss.rational_quadratic(1.0)
        >>> jaxgauss.kernel_sum(points, points, jnp.array([3.0, 0.0]), kernel=kernel).tolist()
        [3.0, 1.0]

    References:
        Rasmussen & Williams, "Gaussian Processes for Machine Learning", 2006, section 4.2.
    """
    given = alpha
    if isinstance(alpha, bool) or not isinstance(alpha, int | float | np.integer | np.floating):
        alpha = math.nan
    if not 0 < alpha < math.inf:
        raise ValueError(
            f"`jaxgauss.rational_quadratic`: `alpha` must be a positive finite number; got {given!r}. α = 1 is a start."
        )
    return Kernel(RationalQuadratic(float(alpha)), f"rational_quadratic({float(alpha)})")


def _check(profile: Any) -> None:
    where = "`jaxgauss.Kernel`: `profile` must"
    if not callable(profile):
        raise TypeError(f"{where} be a function of u = τ‖x - y‖²; got {type(profile).__name__}. Pass lambda u: ….")
    u = jax.ShapeDtypeStruct((2, 3), jnp.float32)
    try:
        program, found = jax.make_jaxpr(profile, return_shape=True)(u)
    except (TypeError, ValueError) as error:  # what JAX and Python raise for a function of something else
        name = getattr(profile, "__name__", profile)
        given, fix = f"{name}, which raises {type(error).__name__}", "Use jax.numpy for numpy, and jnp.where for if."
        if not _takes_one(profile):
            given, fix = f"{name}{inspect.signature(profile)}", "Write k(x, y) as a function of u alone."
        raise TypeError(f"{where} be a JAX function of one array, u = τ‖x - y‖²; got {given}. {fix}") from error
    if traced := [jax.typeof(x).str_short() for x in program.consts if isinstance(x, jax.core.Tracer)]:
        given, fix = (
            f"a traced {traced[0]} in it",
            "Make the kernel outside of jit, grad and vmap; `tau` can be learned.",
        )
        raise TypeError(f"{where} be a function of u and of numbers; got {given}. {fix}")
    dtype = getattr(found, "dtype", type(found).__name__)
    if dtype != u.dtype:
        raise TypeError(f"{where} return an array of the dtype of u; got {dtype} for {u.dtype}. Use jax.numpy.")
    if found.shape != u.shape:
        raise ValueError(f"{where} keep the shape of u; got {found.shape} for u {u.shape}. It takes all pairs at once.")
    if not math.isfinite(value := _at_zero(profile)):
        raise ValueError(f"{where} be finite at u = 0; got {value}. Add a positive number to u.")


def _takes_one(profile: Any) -> bool:
    """Whether a function can be called with one argument."""
    try:
        inspect.signature(profile).bind(None)
    except TypeError:
        return False
    except ValueError:  # a function in C, which has no signature
        return True
    return True


@functools.lru_cache(1024)
def _at_zero(profile: Profile) -> float:
    return float(evaluated(profile, np.zeros(1))[0])


@functools.lru_cache(1024)
def _kinked(profile: Profile) -> bool:
    u = np.asarray([0, 1e-20], "float32")
    slopes = evaluated(lambda u: jax.jvp(profile, (u,), (jnp.ones_like(u),))[1], u)
    return not (np.abs(slopes) < STEEP).all()


def evaluated(function: Callable[[Array], Array], u: np.ndarray) -> np.ndarray:
    """Evaluate a function of an array by a compiled program, in its mode, even while JAX traces another.

    NaN and inf are what is looked for, so JAX's search for them does not apply, nor its guard of transfers.
    """
    with (
        jax.debug_nans(False),
        jax.debug_infs(False),
        jax.transfer_guard("allow"),
        jax.disable_jit(False),
        _in_mode_of(u),
    ):
        return np.asarray(_program(function, u.shape, u.dtype)(u))


@functools.lru_cache(256)
def _program(function: Callable[[Array], Array], shape: tuple[int, ...], dtype: np.dtype) -> Callable:
    return jax.jit(lambda u: function(u)).lower(np.zeros(shape, dtype)).compile()


def _in_mode_of(u: Any) -> Any:
    """The context, or decorator, of JAX's mode for u: there what a profile makes of numbers has the dtype of u."""
    return jax.enable_x64(u.dtype == np.float64)
