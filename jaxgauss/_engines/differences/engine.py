"""Differences: every pair of points from differences of their coordinates. The reference of all engines."""

from dataclasses import dataclass

from ..engine import Engine


@dataclass(frozen=True, repr=False)
class Differences(Engine):
    """Sums from differences of coordinates, without a center: accurate for any points and any kernel, in XLA alone.

    It takes D subtractions and multiplications for each pair of points, where products take the same operations several
    times as fast. The other engines are tested against it.

    Args:
        precision: float32 or float64; None: the dtype of the points.
    """

    alone = True
