"""Where the search for length scales begins: at distances of neighbors, of which outliers change few."""

import numpy as np
from jaxtyping import Float

ROWS = 64  # points whose neighbors are looked at
SHARES = (1 / 2, 1 / 8, 1 / 32, 0)  # of all points, that lie nearer than a start
LOW = 1 / 8  # the share of a coordinate's differences that are smaller than its unit: those within a cluster


def units_of(points: Float[np.ndarray, "n d"], shared: bool) -> Float[np.ndarray, " d"]:
    """A typical difference of near points in each coordinate, or the largest of these in all if `shared`."""
    found = np.zeros(points.shape[1])
    for d, x in enumerate(points.T):
        apart = _differences(x)
        apart = np.sort(apart[apart > 0])
        found[d] = apart[int(LOW * len(apart))] if len(apart) else 0
    largest = found.max() or 1.0
    return np.where((found == 0) | shared, largest, found)


def starts_of(points: Float[np.ndarray, "n d"], units: Float[np.ndarray, " d"]) -> Float[np.ndarray, "s d"]:
    """Length scales from long to short: the median distances of near and far neighbors, in these units."""
    apart = np.zeros_like(_differences(points[:, 0]))
    with np.errstate(over="ignore"):
        for x, unit in zip(points.T, units, strict=True):
            apart = np.hypot(apart, _differences(x) / unit)
    rows = [np.sort(x[x > 0]) for x in apart]
    ranked = [[x[int(share * (len(x) - 1))] for share in SHARES] for x in rows if len(x)]
    medians = np.quantile(ranked, 0.5, axis=0, method="lower") if ranked else np.ones(1)
    return np.unique(medians)[::-1, None] * units


def _differences(coordinate: Float[np.ndarray, " n"]) -> Float[np.ndarray, "r n"]:
    """Distances in one coordinate from some of the points to all."""
    rows = np.linspace(0, len(coordinate) - 1, min(len(coordinate), ROWS)).astype(int)
    with np.errstate(over="ignore"):
        return np.abs(coordinate[rows, None] - coordinate)
