"""Stein variational gradient descent as an Optax gradient transformation."""

from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from ._checks.arguments import public
from ._checks.operands import check_tau
from ._checks.optional import needed
from ._checks.samples import check_kernel, check_options
from ._checks.settings import MeshOptions, Taus, working_dtype
from ._kernels.kernels import Kernel
from ._methods.bandwidth import median_tau
from ._methods.svgd import _flat, check_particles, svgd_direction

with needed("jaxgauss.optax", "optax"):
    from optax import EmptyState, GradientTransformation

FUNCTION = "optax.scale_by_svgd"
WHERE = f"`jaxgauss.{FUNCTION}`"
MAX_POINTS = 300  # their distances are sorted at every step


@public(None)
def scale_by_svgd(
    tau: Taus | str = "median", *, kernel: str | Kernel = "gauss", **options: Unpack[MeshOptions]
) -> GradientTransformation:
    """Turn the gradients of all particles' losses into Stein variational gradient descent: minus `svgd_direction`.

    With loss = -log p, the update is -φ(x_i) = (1/N) Σ_j [k(x_j, x_i) ∇loss(x_j) - ∇_{x_j} k(x_j, x_i)]. In front of an
    optimizer, `optax.chain(scale_by_svgd(1.0), optax.adam(1e-2))`, it turns the training of an ensemble into sampling:
    the second term keeps particles apart. O(N² D) operations and O(N D) memory for N particles of D numbers.

    Args:
        tau: τ = 1/σ², positive; or several, (T,), as for `svgd_direction`; or "median": 2 log N / med² at every step (1
            for one particle), where med is the median distance between 300 particles. In many dimensions "median" is
            narrow, and variances come out too small.
        kernel: a name or a `Kernel`, as for `svgd_direction`.
        **options: as for `svgd_direction`.

    Returns:
        A stateless Optax `GradientTransformation`. Its `update(gradients, state, params)` takes the particles as
        `params`, a pytree of arrays (N, …), and returns updates of the same shapes and dtypes. `gradients` must be
        those of the *sum* of all losses, `jax.grad(lambda x: jax.vmap(loss)(x).sum())(params)`; those of the mean are N
        times too small.

    Raises:
        ValueError: tau is neither positive nor "median", there is no such kernel, or no such axis of the mesh; in
            `update`: params are None or empty, their leaves have different first axes, or gradients have other shapes.
        TypeError: there is no such option; in `update`: a leaf is not a floating array.

    Precision:
        As for `svgd_direction`. Leaves are promoted to one dtype, and updates are rounded to that of each leaf.

    Example:
        >>> import jax, jax.numpy as jnp, optax
        >>> from jaxgauss.optax import scale_by_svgd
        >>> optimizer = optax.chain(scale_by_svgd(1.0), optax.adam(0.1))
        >>> particles = {"mean": jnp.linspace(-1, 1, 50)}
        >>> state = optimizer.init(particles)
        >>> loss = lambda particle: jnp.square(particle["mean"] - 3) / 2  # of a normal density about 3
        >>> for _ in range(100):
        ...     gradients = jax.grad(lambda x: jax.vmap(loss)(x).sum())(particles)
        ...     updates, state = optimizer.update(gradients, state, particles)
        ...     particles = optax.apply_updates(particles, updates)
        >>> bool(abs(particles["mean"].mean() - 3) < 0.1), bool(abs(particles["mean"].std() - 1) < 0.1)
        (True, True)

    References:
        D'Angelo, Fortuin & Wenzel, "On Stein Variational Neural Network Ensembles", 2021, arXiv:2106.10760.
    """
    kernel = check_kernel(FUNCTION, kernel, positive=True)
    check_options(FUNCTION, options)
    if not isinstance(tau, str):
        check_tau(WHERE, tau, np.dtype("float32"))
    elif tau != "median":
        raise ValueError(f"{WHERE}: `tau` must be a positive number or 'median'; got {tau!r}. Pass 1 / sigma**2.")

    def init(params: Any) -> EmptyState:
        return EmptyState()

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        check_particles(FUNCTION, "params", params, "Call update(gradients, state, params).")
        _check_updates(updates, params)
        particles = _flat(params)
        of_step = _liu_wang(particles) if isinstance(tau, str) else tau
        direction = svgd_direction(particles, -_flat(updates), of_step, kernel=kernel, **options)
        one = ravel_pytree(jax.tree.map(lambda x: jnp.zeros(x.shape[1:], x.dtype), params))[1]
        return jax.vmap(one)(-direction), state

    return GradientTransformation(init, update)


def _liu_wang(particles: Array) -> Array:
    if len(particles) < 2:
        return jnp.ones((), working_dtype(particles.dtype))  # for one particle, τ does not matter
    tau = median_tau(particles, max_points=MAX_POINTS)
    return jnp.log(len(particles)).astype(tau.dtype) * 2 * tau


def _check_updates(updates: Any, params: Any) -> None:
    shapes, others = (jax.tree.map(np.shape, tree) for tree in (params, updates))
    if shapes != others:
        raise ValueError(
            f"{WHERE}: `updates` must be gradients of the shapes of `params`; got updates {others}, params {shapes}."
            " Take them of the sum of all losses."
        )
