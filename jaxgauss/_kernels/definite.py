"""Whether a kernel of one's own is positive definite, judged by its matrices of a few points."""

import functools
from typing import NamedTuple

import jax
import numpy as np

from .kernels import Kernel, evaluated
from .profiles import Own

NUM = 64  # points of a matrix
SPACINGS = 2.0 ** np.arange(-7, 8)  # of the points, in length scales
NOISE = 1e-6  # relative to the largest eigenvalue: what rounding may make of zero


class Indefinite(NamedTuple):
    """The least eigenvalue over the largest, and whether none is negative for weights that add up to zero."""

    eigenvalue: float
    is_conditional: bool


@functools.lru_cache(1024)
def indefinite(kernel: Kernel, dim: int) -> Indefinite | None:
    """What shows that a kernel is not positive definite in so many dimensions; None, which proves nothing, if nothing.

    The points are those of a line, of a grid and random. A conditional kernel gets weights that add up to zero.
    """
    if isinstance(kernel.profile, Own):
        return None
    axes = min(dim, NUM.bit_length() - 1)
    side = int(np.ceil(NUM ** (1 / axes) - 1e-9))
    grid = np.stack(np.unravel_index(np.arange(NUM), (side,) * axes), -1)
    clouds = np.arange(NUM)[:, None], grid, np.random.default_rng(0).normal(size=(NUM, dim))
    squares = np.stack([np.square(x[:, None] - x[None]).sum(-1) for x in clouds])
    with jax.enable_x64(True):
        matrices = evaluated(kernel, SPACINGS[:, None, None, None] ** 2 * squares).reshape(-1, NUM, NUM)
    matrices = matrices[np.isfinite(matrices).all((1, 2)) & matrices.any((1, 2))]
    centered = matrices - matrices.mean(1, keepdims=True)
    centered -= centered.mean(2, keepdims=True)
    sizes = np.linalg.norm(matrices, 2, (1, 2))
    least, of_sum_zero = (float((np.linalg.eigvalsh(x)[:, 0] / sizes).min(initial=0)) for x in (matrices, centered))
    found = of_sum_zero if kernel.conditional else least
    return None if found >= -NOISE else Indefinite(found, of_sum_zero >= -NOISE)
