"""Waves by nonuniform fast Fourier transforms, on CPUs where finufft is installed.

The blocks of cosines and sines of `fourier` become complex modes here, and two channels share a transform as real and
imaginary part. All is float64: in float32 finufft takes as long, and rounds the points. Source: Barnett, Magland & af
Klinteberg 2019, arXiv:1808.06736.
"""

import functools
import importlib
import importlib.util
import math
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ..bridge import call_numpy

LEAST = {"float32": 1e-6, "float64": 1e-14}  # the least error that finufft is asked for, relative to all waves in L2
WIDTH = {"float32": 7, "float64": 15}  # numbers of its grid that a point touches in each coordinate
# A thread gets at least so many points, and an eighth as many as the grid has numbers, so that memory stays linear.
POINTS, SHARE = 8192, 8


@functools.cache
def is_installed() -> bool:
    """Whether finufft is installed; it is imported at the first use."""
    return importlib.util.find_spec("finufft") is not None


def coefficients_by_transforms(of: Any, waves: int, keys: Float[Array, "n d"], values: Float[Array, "c n"]) -> Array:
    """`fourier.coefficients` by transforms; `waves` are those of a block."""
    angles, known = _angles(of, keys)
    shape = values.shape[0], *[len(of.numbers)] * keys.shape[1]
    values = jnp.where(known[None], values, jnp.nan)
    return call_numpy(_write_coefficients, (waves,), shape, [of.eps, of.counts, angles, values])


def values_by_transforms(
    of: Any, waves: int, queries: Float[Array, "m d"], found: Float[Array, "c ..."]
) -> Float[Array, "c m"]:
    """`fourier.values_at` by transforms; `waves` are those of a block."""
    angles, known = _angles(of, queries)
    shape = found.shape[0], queries.shape[0]
    values = call_numpy(_write_values, (waves,), shape, [of.eps, of.counts, angles, found])
    return jnp.where(known[None], values, jnp.nan)


def _angles(of: Any, points: Float[Array, "n d"]) -> tuple[Array, Array]:
    """Angles of the waves j = 1, from -π to π, (D, N), zero for points that are not finite; and which are, (N,)."""
    with jax.enable_x64(True):
        x, center, period = (y.astype("float64") for y in (points.T, of.center, of.period))
        turns = (x - center[:, None]) / period[:, None]
        known = jnp.isfinite(turns).all(0)
        return 2 * math.pi * jnp.where(known[None], turns - jnp.round(turns), 0), known


def _write_coefficients(waves: int, out: Any, eps: Any, counts: Any, angles: Any, values: Any) -> None:
    scale, pairs = _paired(values)
    found = _transform(1, counts * waves, eps, angles, pairs)
    for _ in counts:
        found = _in_blocks(waves, found)
    out[...] = 0
    _write(out[_inside(waves, counts)], scale, found)


def _write_values(waves: int, out: Any, eps: Any, counts: Any, angles: Any, found: Any) -> None:
    scale, modes = _paired(found[_inside(waves, counts)])
    for _ in counts:
        modes = _modes_of(waves, modes)
    _write(out, scale, _transform(2, counts * waves, eps, angles, modes))


def _inside(waves: int, counts: Int[np.ndarray, " d"]) -> tuple[slice, ...]:
    """The slices of the coefficients that are used."""
    return (slice(None), *(slice(2 * waves * x) for x in counts))


def _paired(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The largest size of each channel, and pairs of channels, divided by it, as complex numbers.

    Otherwise a channel would get the rounding of the other, or its NaN. A channel that is not finite is zero in its
    pair, and its largest size is NaN.
    """
    scale = np.abs(x).max(tuple(range(1, x.ndim)), initial=0, keepdims=True).astype("float64")
    x = np.divide(x, scale, out=np.zeros(x.shape), where=np.isfinite(scale) & (scale > 0))
    pairs: Any = np.zeros((-(-len(x) // 2), *x.shape[1:]), complex)
    pairs.real, pairs.imag[: len(x) // 2] = x[::2], x[1::2]
    return np.where(np.isfinite(scale), scale, np.nan), pairs


def _write(out: np.ndarray, scale: np.ndarray, pairs: Any) -> None:
    """Write the two channels of each pair, multiplied by their sizes."""
    scale = scale.reshape(-1, *[1] * (out.ndim - 1))
    out[::2] = pairs.real * scale[::2]
    out[1::2] = pairs.imag[: len(out) // 2] * scale[1::2]


def _in_blocks(waves: int, modes: np.ndarray) -> np.ndarray:
    """Blocks of cosines and sines from the modes -n < j < n of the last axis, which becomes the second."""
    num = modes.shape[-1] // 2
    ahead, back = modes[..., num:], modes[..., num::-1]
    parts = [x.reshape(*x.shape[:-1], -1, 1, waves) for x in ((ahead + back) / 2, (ahead - back) / 2j)]
    found = np.concatenate(parts, -2)
    return np.moveaxis(found.reshape(*modes.shape[:-1], -1), -1, 1)


def _modes_of(waves: int, found: np.ndarray) -> np.ndarray:
    """Modes from the blocks of cosines and sines of the last axis, which becomes the second."""
    num = found.shape[-1] // 2
    parts = found.reshape(*found.shape[:-1], -1, 2, waves)
    cosines, sines = (parts[..., i, :].reshape(*found.shape[:-1], num) / 2 for i in range(2))
    modes = np.zeros((*found.shape[:-1], 2 * num - 1), complex)
    modes[..., num - 1 :] += cosines - 1j * sines
    modes[..., num - 1 :: -1] += cosines + 1j * sines
    return np.moveaxis(modes, -1, 1)


def _transform(kind: int, nums: Int[np.ndarray, " d"], eps: Any, angles: np.ndarray, data: np.ndarray) -> np.ndarray:
    """Transform points to the modes -n < j < n of each coordinate (type 1), or these to points (type 2).

    Each thread takes some of the points. finufft's own threads wait for each other, 8 ms at a time if a core is busy.
    """
    finufft: Any = importlib.import_module("finufft")
    options = {"isign": 1, "nthreads": 1, "showwarn": 0}
    number = angles.shape[1]
    parts = min(os.cpu_count() or 1, number // POINTS, SHARE * number // int((4 * nums).prod()))
    ends = np.linspace(0, number, max(1, parts) + 1, dtype=int)
    data = np.ascontiguousarray(data)

    def of_part(start: int, end: int) -> np.ndarray:
        plan = finufft.Plan(kind, tuple((2 * nums - 1).tolist()), len(data), float(eps), **options)
        plan.setpts(*angles[:, start:end])
        return plan.execute(np.ascontiguousarray(data[:, start:end]) if kind == 1 else data)

    if len(ends) == 2:
        return of_part(0, number)
    found = list(_threads().map(of_part, ends[:-1], ends[1:]))
    return functools.reduce(np.add, found) if kind == 1 else np.concatenate(found, 1)


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), "jaxgauss")
