"""Random directions, and the frequencies along each, of a kernel that is a mixture of Gaussians.

By Bochner's theorem a positive definite κ is the mean of cos⟨ω, x - y⟩ over random ω. A radial law makes ω = r ξ, with
a direction ξ, uniform on the sphere, and a radius r: √s_j χ_D with probability w_j for the mixture Σ_j w_j exp(-s_j
u/2). For P directions and J radii of each, r = F⁻¹((i + shift)/J), F the distribution function of r,

    κ(‖x - y‖²) ≈ 1/PJ Σ_pi cos(r_pi ⟨ξ_p, x - y⟩)

Every ω has the right law by itself, so the mean is κ, wherever the points lie. The sum over i stands for the integral
over all radii, a one-dimensional kernel of ⟨ξ_p, x - y⟩, which slicing computes by a Fourier series in a box; random
shifts need no box. Directions are of orthogonal bases, or in few dimensions of a sequence of low discrepancy, turned at
random.

Sources: Hertrich, "Fast Kernel Summation in High Dimensions via Slicing and Fourier Transforms", 2024,
arXiv:2401.08260; Hertrich, Jahn & Quellmalz, 2024, arXiv:2410.01316, on directions; Yu et al., "Orthogonal Random
Features", 2016, arXiv:1610.09072.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import sequential_vmap
from jaxtyping import Array, Float, Key
from scipy.special import gammainc, gammaincc, ndtri

from ..._kernels.mixtures import Mixture

SOBOL = 6  # dimensions up to which a sequence of low discrepancy errs less than orthogonal bases
# Radii are a function of normal numbers, of which a table has so many a unit, up to so many standard deviations.
KNOTS, FARTHEST = 128, 8


class Directions(NamedTuple):
    """Random directions, with frequencies along each in turns per bandwidth.

    Attributes:
        directions: ξ, (P, D).
        frequencies: r/2π, (J, P).
    """

    directions: Float[Array, "p d"]
    frequencies: Float[Array, "j p"]


def random_directions(key: Key[Array, ""], of: Mixture, num: int, frequencies: int, dim: int, dtype: Any) -> Directions:
    """`num` directions of `dim` coordinates, with as many frequencies along each."""
    of_directions, of_radii = jax.random.split(key)
    if dim <= SOBOL:
        points = _sobol(num, dim + 1)
        found = jnp.asarray(points[:, :dim], dtype) @ _basis(of_directions, dim, dim, dtype).T
        shifts = (jnp.asarray(points[:, dim], dtype) + jax.random.uniform(of_radii, (), dtype)) % 1
    else:
        keys = jax.random.split(of_directions, -(-num // dim))
        bases = lax.map(lambda key: _basis(key, dim, min(num, dim), dtype), keys)
        found = jnp.moveaxis(bases, -1, -2).reshape(-1, dim)[:num]
        order, shift = jax.random.split(of_radii)
        ranks = jax.random.permutation(order, num).astype(dtype)
        shifts = (ranks + jax.random.uniform(shift, (), dtype)) / num
    parts = (jnp.arange(frequencies, dtype=dtype)[:, None] + shifts[None]) / frequencies
    return Directions(found, _radii(of, dim, parts) / (2 * math.pi))


def _basis(key: Key[Array, ""], dim: int, num: int, dtype: Any) -> Float[Array, "dim num"]:
    """Orthogonal directions, as columns, of a random basis."""
    return _orthogonal(jax.random.normal(key, (dim, num), dtype))


@sequential_vmap
def _orthogonal(columns: Float[Array, "dim num"]) -> Float[Array, "dim num"]:
    """One matrix at a time: a batch of them waits for ever on a CPU if two programs run at once (jaxlib 0.10.2)."""
    return jnp.linalg.qr(columns)[0]


@functools.lru_cache(64)
def _sobol(num: int, columns: int) -> Float[np.ndarray, "num columns"]:
    """Directions of a Sobol sequence, and its last coordinate."""
    from scipy.stats import qmc  # here, because it takes a second to import

    size = 1 << max(1, num - 1).bit_length()  # one point would be the center
    points = qmc.Sobol(columns, scramble=False).random(size)[:num] + 0.5 / size
    normal = ndtri(points[:, :-1])
    return np.concatenate([normal / np.linalg.norm(normal, axis=1, keepdims=True), points[:, -1:]], 1)


def _radii(of: Mixture, dim: int, shares: Float[Array, "*any"]) -> Float[Array, "*any"]:
    """The radii below which these shares of all lie: interpolated between those of a table."""
    log_radii = jnp.asarray(_table(of, dim), shares.dtype)
    tiny = float(jnp.finfo(shares.dtype).eps) / 2
    place = (jax.scipy.special.ndtri(jnp.clip(shares, tiny, 1 - tiny)) + FARTHEST) * KNOTS
    below = jnp.clip(jnp.floor(place), 0, len(log_radii) - 2).astype("int32")
    part = place - below.astype(shares.dtype)
    return jnp.exp((1 - part) * log_radii[below] + part * log_radii[below + 1])


@functools.lru_cache(256)
def _table(of: Mixture, dim: int) -> Float[np.ndarray, " knots"]:
    """log F⁻¹(Φ(z)), where Φ is the normal distribution function, for z from -FARTHEST to FARTHEST."""
    scales, weights = np.asarray(of.scales), np.asarray(of.weights) / sum(of.weights)
    ends = 1e-32 ** (1 / dim) * dim / 8 * scales.min(), (40 * dim + 400) * scales.max()
    log_radii = np.linspace(0.5 * np.log(ends[0]), 0.5 * np.log(ends[1]), 2**14)
    half_squares = np.exp(2 * log_radii[:, None]) / (2 * scales)
    lower, upper = (f(dim / 2, half_squares) @ weights for f in (gammainc, gammaincc))
    normal = np.where(lower < upper, ndtri(lower), -ndtri(upper))
    known = np.isfinite(normal)
    return np.interp(np.arange(-FARTHEST * KNOTS, FARTHEST * KNOTS + 1) / KNOTS, normal[known], log_radii[known])
