"""Trigonometric sums of weighted points, and values of trigonometric polynomials, in float64, with NumPy arrays."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Complex, Float, Int

from ..._arrays.points import padded
from . import nufft
from .frequencies import WAVES, Nodes
from .series import coefficients, values_at

EPS = 1e-13  # the error that fast transforms are asked for, relative to all modes in L2


class Modes(NamedTuple):
    """The functions exp(2πi Σ_d j_d (x_d - center_d) / period_d) for integers |j_d| ≤ most_d.

    Attributes:
        center: (D,).
        period: (D,).
        most: (D,).
    """

    center: Float[np.ndarray, " d"]
    period: Float[np.ndarray, " d"]
    most: Int[np.ndarray, " d"]

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of modes of each coordinate."""
        return tuple((2 * self.most + 1).tolist())

    @property
    def doubled(self) -> "Modes":
        """Sums and differences of these modes."""
        return self._replace(most=2 * self.most)

    def _nodes(self) -> Nodes:
        """Blocks of cosines and sines of `turns` that hold these modes."""
        dim = len(self.most)
        counts = self.most // WAVES[dim] + 1
        largest = int(counts.max())
        numbers = np.repeat(np.arange(WAVES[dim] * largest, dtype=float).reshape(largest, 1, -1), 2, 1).ravel()
        indices = np.zeros((largest**dim, dim), "int32")
        indices[: counts.prod()] = np.stack(np.unravel_index(np.arange(counts.prod()), counts), 1)
        eps = np.float64(EPS) if nufft.is_installed() else None
        given: Any = (np.zeros(dim), np.ones(dim), counts.astype("int32"), indices, numbers, eps)
        return Nodes(*jax.tree.map(jnp.asarray, given))

    def turns(self, points: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        """Places of points in the period, from the center, by NumPy: XLA takes subnormal numbers for zero."""
        return (points - self.center) / self.period


def trigonometric_sums(
    modes: Modes, points: Float[np.ndarray, "n d"], values: Float[np.ndarray, "c n"]
) -> Complex[np.ndarray, "c ..."]:
    """Σ_n v_n exp(-2πi j·(x_n - center)/period) for all modes."""
    with jax.enable_x64(True):
        found = np.asarray(_coefficients(modes._nodes(), padded(modes.turns(points)), padded(values.T, "constant").T))
    for most in modes.most:  # the second axis becomes the last
        cosines, sines = _cosines_and_sines(np.moveaxis(found, 1, -1), len(modes.most), most)
        found = np.concatenate([(cosines + 1j * sines)[..., :0:-1], cosines - 1j * sines], -1)
    return found


def trigonometric_values(
    modes: Modes, points: Float[np.ndarray, "m d"], found: Complex[np.ndarray, "c ..."]
) -> Float[np.ndarray, "c m"]:
    """The real functions Σ_j c_j exp(2πi j·(x - center)/period) at points, for c_-j the conjugate of c_j."""
    dim = len(modes.most)
    num = WAVES[dim] * int((modes.most // WAVES[dim] + 1).max())
    for most in modes.most:
        found = np.moveaxis(found, 1, -1)
        ahead, back = found[..., most:], found[..., most::-1]
        cosines, sines = ahead + back, 1j * (ahead - back)
        cosines[..., 0] /= 2
        both = np.zeros((*found.shape[:-1], num // WAVES[dim], 2, WAVES[dim]), complex)
        for i, x in enumerate((cosines, sines)):
            full = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, num - x.shape[-1])])
            both[..., i, :] = full.reshape(both[..., i, :].shape)
        found = both.reshape(*both.shape[:-3], -1)
    with jax.enable_x64(True):
        values = _values(modes._nodes(), padded(modes.turns(points)), np.real(found))
        return np.asarray(values)[:, : len(points)]


_coefficients, _values = jax.jit(coefficients), jax.jit(values_at)


def _cosines_and_sines(found: np.ndarray, dim: int, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines 0, …, most from blocks of both along the last axis."""
    blocks = found.reshape(*found.shape[:-1], -1, 2, WAVES[dim])
    cosines, sines = (blocks[..., i, :].reshape(*found.shape[:-1], -1)[..., : most + 1] for i in range(2))
    return cosines, sines
