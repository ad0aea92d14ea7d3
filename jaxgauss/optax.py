"""Stein variational gradient descent as a link in a chain of Optax gradient transformations."""

from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from ._checks.operands import check_tau
from ._checks.optional import needed
from ._checks.samples import check_kernel, check_options
from ._checks.settings import MeshOptions, Taus, working_dtype
from ._kernels.kernels import Kernel
from ._methods.bandwidth import median_heuristic
from ._methods.svgd import _flat, svgd_direction

with needed("jaxgauss.optax", "optax"):
    from optax import EmptyState, GradientTransformation

FUNCTION = "optax.scale_by_svgd"
WHERE = f"`jaxgauss.{FUNCTION}`"
MAX_POINTS = 300  # whose distances are sorted at every step


def scale_by_svgd(
    tau: Taus | str = "median", *, kernel: str | Kernel = "gauss", **options: Unpack[MeshOptions]
) -> GradientTransformation:
    """Turn gradients of every particle's loss into Stein variational gradient descent: minus `svgd_direction`.

    With loss = -log p of one particle, -φ(x_i) = (1/N) Σ_j [k(x_j, x_i) ∇loss(x_j) - ∇_{x_j} k(x_j, x_i)]. In front of
    an optimizer, `optax.chain(scale_by_svgd(1.0), optax.adam(1e-2))`, it makes a training loop of an ensemble, which
    minimizes, one of a sample, which stays apart. O(N² D) operations and O(N D) memory for N particles of D numbers.

    Args:
        tau: τ = 1/σ², positive; or several, (T,), as for `svgd_direction`; "median": 2 log N / med² of the particles at
            every step, med the median distance between 300 of them, the rule of Liu & Wang for the Gaussian (1 for a
            single particle). In more than a few dimensions that kernel is narrow, and variances come out too small.
        kernel: a name or a `Kernel`, as for `svgd_direction`.
        **options: `method`, `precision` and `backend`, and `mesh`, `query_axis` and `key_axis`, as for
            `svgd_direction`.

    Returns:
        An Optax `GradientTransformation` without state. Its `update(gradients, state, params)` takes the particles as
        `params`: a pytree whose leaves are arrays (N, …), a particle is their rows of one index; and as `gradients`, of
        the same shapes, those of the sum of all losses: `jax.grad(lambda x: jax.vmap(loss)(x).sum())(params)`. (Of
        their mean they are N times too small against what keeps the particles apart.) It returns updates of the same
        shapes and dtypes, to descend by.

    Raises:
        ValueError: tau is neither positive nor "median", there is no such kernel, an axis is none of the mesh's; in
            `update`: params are None, or have no leaves, or leaves of different first axes, or the gradients are of
            other shapes.
        TypeError: there is no such option; in `update`: a leaf is not a floating array.

    Precision:
        That of `svgd_direction`. Leaves of several dtypes are promoted to one, and the updates rounded to theirs.

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
        Liu & Wang, "Stein Variational Gradient Descent", 2016, arXiv:1608.04471.
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
        _check_particles(updates, params)
        particles = _flat(params)
        of_step = _liu_wang(particles) if isinstance(tau, str) else tau
        direction = svgd_direction(particles, -_flat(updates), of_step, kernel=kernel, **options)
        one = ravel_pytree(jax.tree.map(lambda x: jnp.zeros(x.shape[1:], x.dtype), params))[1]
        return jax.vmap(one)(-direction), state

    return GradientTransformation(init, update)


def _liu_wang(particles: Array) -> Array:
    if len(particles) < 2:
        return jnp.ones((), working_dtype(particles.dtype))  # one particle descends, whatever τ is
    tau = median_heuristic(particles, max_points=MAX_POINTS)
    return jnp.log(len(particles)).astype(tau.dtype) * 2 * tau


def _check_particles(updates: Any, params: Any) -> None:
    """Raise ValueError unless both have the same shapes, of one first axis."""
    shapes, others = (jax.tree.map(np.shape, tree) for tree in (params, updates))
    of_leaves = [np.shape(x) for x in jax.tree.leaves(params)]
    if not of_leaves:
        raise ValueError(
            f"{WHERE}: `params` must be the particles, a pytree of arrays (N, …); got {params!r}. Call"
            " update(gradients, state, params)."
        )
    if () in of_leaves or len({shape[0] for shape in of_leaves}) > 1:
        raise ValueError(
            f"{WHERE}: every leaf of `params` must have the particles on its first axis; got {shapes}. Make them by"
            " jax.vmap of what makes one."
        )
    if shapes != others:
        raise ValueError(
            f"{WHERE}: `updates` must be gradients of the shapes of `params`; got updates {others}, params {shapes}."
            " Take them of the sum of all losses."
        )
