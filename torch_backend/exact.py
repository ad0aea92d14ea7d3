"""Points that lie anywhere, as columns of float32 whose products keep their digits: for the second kernel.

An exponent -½|a - b|² is made of products as large as R², which round to 2⁻²⁴ R². Here a = A + A' + a', where A lies on
a grid of step COARSE and A' on one of step FINE. Products of numbers on grids, and their sums, are exact; what is left
is as large as R · FINE. In each coordinate, and in this order,

    -½(a - b)² =   A B - ½A² - ½B²
                 + A B' + A' B - A A' - B B'
                 + A' B' - ½A'² - ½B'²
                 + (A + A') b' + a' b - (A + A') a' - ½a'² - (B + B') b' - ½b'².

The memory-efficient kernel splits each number into two of 11 bits (3×TF32). In a step it adds eight columns, and four
steps make a sum, which it adds to the earlier ones. So each step has the norms of its own coordinates, and sums of near
points are small in whatever order they are added, unless a boundary of a grid lies between the points: then the groups
of the grids cancel one another. So the last group begins with a new sum.
"""

from array_api_compat import array_namespace

from .dtypes import Array

COARSE, FINE = 2.0**6, 2.0**-4
REACH = 2.0**16  # bandwidths: multiples of COARSE up to it have 11 bits, and sums of a step's products 24
STEP, NORMS = 8, 2  # columns that are added at a time, and how many of them are for norms
TILE = 4  # steps of one sum, which begins behind the first step of a tile
GROUPS = 1, 2, 1, 2  # how many columns a coordinate has in each group


def count(dim: int) -> int:
    """The number of columns of points and norms."""
    return STEP * sum(_steps(dim))


def columns(points: Array, *, of_keys: bool = False, log_weights: Array | float = 0.0) -> list[Array]:
    """Columns (…, N, ·) of each group; those of queries times those of keys are exponents, plus the keys' weights.

    Coordinates beyond REACH are moved to it, so that no exponent is large.
    """
    coarse, fine, rest = _parts(points)
    grid = coarse + fine
    groups = (
        ([coarse], coarse * coarse / 2, 0.0),
        ([fine, coarse] if of_keys else [coarse, fine], coarse * fine, 0.0),
        ([fine], fine * fine / 2, 0.0),
        ([rest, grid + rest] if of_keys else [grid, rest], (grid + rest / 2) * rest, log_weights),
    )
    steps = _steps(points.shape[-1])
    return [_group(*group, num, of_keys) for group, num in zip(groups, steps, strict=True)]


def from_columns(x: Array, dim: int, *, of_keys: bool = False) -> Array:
    """The points from their columns, for sums of columns."""
    xp, steps = array_namespace(x), _steps(dim)
    columns = xp.reshape(x[..., : STEP * sum(steps)], (*x.shape[:-1], sum(steps), STEP))

    def part(group: int, index: int = 0) -> Array:
        in_step, start = (STEP - NORMS) // GROUPS[group], sum(steps[:group])
        found = columns[..., start : start + steps[group], index * in_step : (index + 1) * in_step]
        return xp.reshape(found, (*x.shape[:-1], steps[group] * in_step))[..., :dim]

    return part(0) + (part(2) + part(3, 0 if of_keys else 1))


def _parts(points: Array) -> tuple[Array, Array, Array]:
    xp = array_namespace(points)
    points = xp.clip(points, -REACH, REACH)
    coarse = xp.round(points / COARSE) * COARSE
    left = points - coarse
    fine = xp.round(left / FINE) * FINE
    return coarse, fine, left - fine


def _group(parts: list[Array], norms: Array, log_weights: Array | float, steps: int, of_keys: bool) -> Array:
    """In each step the columns of some coordinates, minus the sum of their norms, and ones."""
    xp, in_step = array_namespace(norms), (STEP - NORMS) // len(parts)

    def in_steps(x: Array) -> Array:
        return xp.reshape(_padded(x, steps * in_step), (*x.shape[:-1], steps, in_step))

    sums = -_sum(in_steps(norms))
    if not isinstance(log_weights, float):
        sums = sums + _padded(log_weights, steps)[..., None]
    pair = [xp.ones_like(sums), sums] if of_keys else [sums, xp.ones_like(sums)]
    shape = sums.shape[:-1]
    joined = [xp.broadcast_to(x, (*shape, x.shape[-1])) for x in (*map(in_steps, parts), *pair)]
    return xp.reshape(xp.concat(joined, axis=-1), (*shape[:-1], steps * STEP))


def _steps(dim: int) -> list[int]:
    """The steps of each group; the third has more, so that the last one begins a sum."""
    found = [max(1, -(-dim * num // (STEP - NORMS))) for num in GROUPS]
    found[2] += (1 - sum(found[:3])) % TILE
    return found


def _padded(x: Array, width: int) -> Array:
    xp = array_namespace(x)
    zeros = xp.broadcast_to(xp.zeros_like(_sum(x)), (*x.shape[:-1], width - x.shape[-1]))
    return xp.concat([x, zeros], axis=-1)


def _sum(x: Array) -> Array:
    return array_namespace(x).sum(x, axis=-1, keepdims=True)
