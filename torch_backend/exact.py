"""Points that lie anywhere, as columns of float32 whose products keep their digits: for the kernel behind a gate.

An exponent -½|a - b|² is made of products as large as R², which round to 2⁻²⁴ R². Here a = A + A' + a', where A lies on
a grid of step COARSE and A' on one of step FINE. Products of numbers on grids, and their sums, are exact; they come
first, in groups that leave little of themselves for near points. Only the last group, as large as R · FINE, is rounded:

    -½|a - b|² =   ⟨A, B⟩ - ½|A|² - ½|B|²
                 + ⟨A, B'⟩ + ⟨A', B⟩ - ⟨A, A'⟩ - ⟨B, B'⟩
                 + ⟨A', B'⟩ - ½|A'|² - ½|B'|²
                 + ⟨A + A', b'⟩ + ⟨a', b⟩ - ⟨A + A', a'⟩ - ½|a'|² - ⟨B + B', b'⟩ - ½|b'|².

The memory-efficient kernel adds eight columns at a time, in this order, and splits each number into two of 11 bits
(3×TF32). Norms of queries are here as well, so that no exponent of a near point is large.
"""

from array_api_compat import array_namespace

from .arrays import Array

COARSE, FINE = 2.0**5, 2.0**-3
REACH = 2.0**16  # bandwidths: the largest R at which multiples of COARSE have 11 bits, and their products 24
STEP = 8  # columns that are added at a time
GROUPS = 1, 2, 1, 2  # how many columns a coordinate has in each group
FARTHEST = 2.0**40  # so that squares are finite


def count(dim: int) -> int:
    """The number of columns of points and norms."""
    return sum(_width(num, dim) for num in GROUPS)


def columns(points: Array, *, of_keys: bool = False, log_weights: Array | float = 0.0) -> list[Array | float]:
    """Columns (…, N, 1 or D); those of queries times those of keys are exponents, plus the keys' `log_weights`."""
    coarse, fine, rest = _parts(points)
    grid = coarse + fine
    norms = (
        -_dot(coarse, coarse) / 2,
        -_dot(coarse, fine),
        -_dot(fine, fine) / 2,
        log_weights - _dot(grid, rest) - _dot(rest, rest) / 2,
    )
    groups = (coarse,), (coarse, fine), (fine,), (grid, rest)
    if of_keys:
        groups = (coarse,), (fine, coarse), (fine,), (rest, grid + rest)
    found: list[Array | float] = []
    for group, norm in zip(groups, norms, strict=True):
        found += [*group, *((1.0, norm) if of_keys else (norm, 1.0))]
        found += [0.0] * (-(len(group) * points.shape[-1] + 2) % STEP)
    return found


def from_columns(x: Array, dim: int, *, of_keys: bool = False) -> Array:
    """The points from their columns, for sums of columns."""
    fine, last = (sum(_width(num, dim) for num in GROUPS[:i]) for i in (2, 3))
    starts = 0, fine, last + (0 if of_keys else dim)
    coarse, fine, rest = (x[..., i : i + dim] for i in starts)
    return coarse + (fine + rest)


def _parts(points: Array) -> tuple[Array, Array, Array]:
    xp = array_namespace(points)
    points = xp.clip(points, -FARTHEST, FARTHEST)
    coarse = xp.round(points / COARSE) * COARSE
    left = points - coarse
    fine = xp.round(left / FINE) * FINE
    return coarse, fine, left - fine


def _width(num: int, dim: int) -> int:
    return -(-(num * dim + 2) // STEP) * STEP


def _dot(x: Array, y: Array) -> Array:
    return array_namespace(x).sum(x * y, axis=-1, keepdims=True)
