"""Stein variational gradient descent: the direction in one Gauss sum, and a sampler over pytrees of particles."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from .._arrays.batches import over_leading_axes
from .._arrays.tracing import jitted
from .._calls import readable
from .._checks.arguments import floating_dtype, public
from .._checks.operands import check_tau
from .._checks.samples import check_kernel, check_options, check_samples, check_scores
from .._checks.settings import MeshOptions, Samples, Settings, Taus, working_dtype
from .._kernels.kernels import Kernel
from .._sums.display import short_repr
from .._sums.moments import Reduction, as_gaussians, prepare, shares_of, with_reduction
from .._sums.preparation import check_and_examine
from .bandwidth import median_tau


@public()
def svgd_direction(
    particles: Samples,
    scores: Samples,
    tau: Taus,
    *,
    kernel: str | Kernel = "gauss",
    **options: Unpack[MeshOptions],
) -> Float[Array, "*result n d"]:
    """Direction of Stein variational gradient descent, φ(x_i) = (1/N) Σ_j [k(x_j, x_i) s_j + ∇_{x_j} k(x_j, x_i)].

    The first term moves particles up the density; the second, τ Σ_j k(x_j, x_i)(x_i - x_j) / N for k = exp(-τ/2 ‖x -
    y‖²), keeps them apart. One Gauss sum of D + 1 channels: O(N² D) operations and O(N D) memory.

    Args:
        particles: x, (…, N, D). Leading axes are batches, which broadcast: each has its own particles.
        scores: s_j = ∇ log p(x_j), (…, N, D): `jax.vmap(jax.grad(log_density))(particles)`.
        tau: τ = 1/σ², positive; or several, (…, T), whose kernels are averaged, as for `mmd_squared`.
        kernel: a name or a positive definite `Kernel`, as for `mmd_squared`: not "energy".
        **options: `engine` and `precision`, as for `gauss_sum`; and `mesh`, `query_axis` and `key_axis`, as
            for `gauss_sum_sharded`, except that the mesh need not divide the numbers of points.

    Returns:
        φ, (…, N, D): particles move to x + step_size · φ. An Optax optimizer descends, so give it the negative:
        `updates, state = optimizer.update(-direction, state)`.

    Raises:
        ValueError: shapes do not fit, there are no particles, tau is not positive, or an option has an unknown value.
        TypeError: particles or scores are not a floating array.

    Derivatives:
        Any order, both modes, with respect to particles, scores and tau.

    Precision:
        That of a gradient of `gauss_sum`.

    Example:
        >>> import jax.numpy as jnp, jaxgauss
        >>> particles = jnp.array([[0.0], [1.0]])
        >>> direction = jaxgauss.svgd_direction(particles, -particles, 1.0)
        >>> [round(float(x), 4) for x in direction[:, 0]]
        [-0.6065, -0.1967]

    References:
        Liu & Wang, "Stein Variational Gradient Descent", 2016, arXiv:1608.04471.
    """
    kernel = check_kernel("svgd_direction", kernel, positive=True)
    samples = {"particles": particles, "scores": scores}
    settings = check_samples("svgd_direction", samples, tau, options, kernel=kernel, batches=True)
    check_scores("svgd_direction", "particles", particles, scores)
    num, dim = particles.shape[-2:]
    settings, tau = check_and_examine(settings, tau, num * num, dim, dim + 1, (particles,), pulls=True)
    return _direction(settings, particles, scores, tau)


@functools.partial(jitted, num_static=1)
@over_leading_axes(2, 2, 1)
def _direction(settings: Settings, particles: Array, scores: Array, tau: Array) -> Array:
    settings, tau, shares = as_gaussians(settings, tau, particles)
    tau, x, s = prepare(settings, tau, particles, scores)

    def function(reduction: Reduction, points: tuple[Array], tau: Array, s: Array) -> Array:
        (x,) = points
        num = x.shape[-2]
        weights = jnp.full((*x.shape[:-1], 1), -1 / num, x.dtype) * tau[..., None, None]
        return reduction(x, x, weights, tau, shifts=s / num).pulls  # Σ Φ (s_j - τ (x_j - x_i)) / N

    found = with_reduction(settings, function, (x,), tau, s, shares=shares_of(tau, shares), one_sign=True)
    return found.reshape(particles.shape).astype(settings.dtype)


@readable
class SVGDState(NamedTuple):
    """The state of `svgd`.

    Attributes:
        particles: a pytree of arrays (N, …).
        kernel_parameters: {"tau": τ}.
        opt_state: the state of the Optax optimizer.
    """

    particles: Any
    kernel_parameters: dict[str, Any]
    opt_state: Any
    __repr__ = short_repr


@readable
class SVGD(NamedTuple):
    """A sampler as `svgd` makes it: `state = init(particles)`, `state = step(state)`."""

    init: Callable[..., SVGDState]
    step: Callable[..., SVGDState]


@public(None)
def svgd(
    grad_logdensity_fn: Callable[..., Any],
    optimizer: Any,
    tau: Taus | None = None,
    *,
    kernel: str | Kernel = "gauss",
    **options: Unpack[MeshOptions],
) -> SVGD:
    """Stein variational gradient descent over pytrees of particles, with the interface of `blackjax.svgd`.

    It takes linear memory. For a NumPyro model take `jax.grad(lambda position: -potential_fn(position))`, with
    `potential_fn` and the unconstrained positions from `numpyro.infer.util.initialize_model`.

    Args:
        grad_logdensity_fn: the score of one particle (a pytree); it also gets the keyword arguments of `step`.
        optimizer: an Optax `GradientTransformation`, which gets minus the direction.
        tau: τ, or several. None: 2 log N / med² at every step (1 for one particle), where med is the median distance:
            the rule of Liu & Wang for the Gaussian.
        kernel: as for `svgd_direction`.
        **options: as for `svgd_direction`.

    Returns:
        An `SVGD`: `init(particles)` takes a pytree of arrays (N, …), and `step(state, **grad_params)` a state.

    Raises:
        ValueError, TypeError: an argument or the particles are wrong; and at a step, as `svgd_direction` does.

    Example:
        >>> import jax, jax.numpy as jnp, jaxgauss, optax
        >>> sampler = jaxgauss.svgd(jax.grad(lambda x: -jnp.square(x["a"] - 3) / 2), optax.adam(0.1))
        >>> state = sampler.init({"a": jax.random.normal(jax.random.key(0), (100,))})
        >>> for _ in range(100):
        ...     state = sampler.step(state)
        >>> bool(abs(state.particles["a"].mean() - 3) < 0.1)
        True

    References:
        Liu & Wang, "Stein Variational Gradient Descent", 2016, arXiv:1608.04471.
    """
    kernel, where = check_kernel("svgd", kernel, positive=True), "`jaxgauss.svgd`"
    check_options("svgd", options)
    if tau is not None:
        check_tau(where, tau, np.dtype("float32"))
    if not callable(grad_logdensity_fn):
        raise TypeError(
            f"{where}: `grad_logdensity_fn` must be a function of one particle; got"
            f" {type(grad_logdensity_fn).__name__}. Pass jax.grad(log_density)."
        )
    if not hasattr(optimizer, "update"):
        raise TypeError(
            f"{where}: `optimizer` must be one of Optax; got {type(optimizer).__name__}. Pass optax.adam(0.1), for"
            " example."
        )

    def init(particles: Any, kernel_parameters: dict[str, Any] | None = None) -> SVGDState:
        check_particles("svgd", "particles", particles)
        flat = _flat(particles)
        parameters = kernel_parameters or {"tau": _liu_wang(flat) if tau is None else jnp.asarray(tau, flat.dtype)}
        return SVGDState(particles, parameters, optimizer.init(particles))

    @jax.jit
    def step(state: SVGDState, **grad_params: Any) -> SVGDState:
        particles = state.particles
        scores = jax.vmap(lambda x: grad_logdensity_fn(x, **grad_params))(particles)
        tau_now = state.kernel_parameters["tau"]
        direction = svgd_direction(_flat(particles), _flat(scores), tau_now, kernel=kernel, **options)
        one = ravel_pytree(jax.tree.map(lambda x: jnp.zeros(x.shape[1:], x.dtype), particles))[1]
        descent = jax.vmap(one)(-direction)
        updates, opt_state = optimizer.update(descent, state.opt_state, particles)
        particles = jax.tree.map(lambda x, update: x + update.astype(x.dtype), particles, updates)
        parameters = {"tau": _liu_wang(_flat(particles))} if tau is None else state.kernel_parameters
        return SVGDState(particles, parameters, opt_state)

    return SVGD(init, step)


def check_particles(
    function: str, name: str, particles: Any, fix: str = "Make them by jax.vmap of what makes one."
) -> None:
    """Raise ValueError or TypeError unless it is a pytree of floating arrays with the particles on their first axes."""
    shapes = [np.shape(x) for x in jax.tree.leaves(particles)]
    if not shapes or () in shapes or len({shape[0] for shape in shapes}) > 1:
        given = jax.tree.map(np.shape, particles)
        raise ValueError(
            f"`jaxgauss.{function}`: `{name}` must be a pytree of arrays (N, …), the particles on the first axis of"
            f" each; got {given}. {fix}"
        )
    for leaf in jax.tree.leaves(particles):
        floating_dtype(f"`jaxgauss.{function}`", name, leaf)


def _flat(particles: Any) -> Float[Array, "n d"]:
    return jax.vmap(lambda x: ravel_pytree(x)[0])(particles)


def _liu_wang(points: Array) -> Array:
    if len(points) < 2:
        return jnp.ones((), working_dtype(points.dtype))  # for one particle, τ does not matter
    tau = median_tau(points)
    return 2 * jnp.log(len(points)).astype(tau.dtype) * tau
