"""How far apart the pairs of a sum are: whether moments about a center make slopes.

Moments err by 2⁻²⁴ R Σ W, where W are the weights of the pairs and R² is ‖a‖² + ‖b‖². Slopes have the size Σ W ‖k - q‖.
Where near pairs carry the weight, in clusters or between points and themselves, that is less than 1e-5 of what is left.
"""

from typing import Any

from .._arrays.points import Scaled

SPREAD = 2**-4  # the least mean of u over ‖a‖² + ‖b‖², weighted as in the sum, for moments to make slopes


def powers(xp: Any, b: Scaled, weights: Any, each: bool) -> Any:
    """The columns w [b, 1, ‖b‖²], or of `each` coordinate its square; `xp` is NumPy or JAX."""
    squares = b.points * b.points if each else b.norms
    return xp.concatenate([b.points, xp.ones_like(b.norms), squares], -1) * weights


def about(a: Scaled, sums: Any) -> tuple[Any, Any, Any]:
    """Σ W (b - a), Σ W ‖b - a‖² and Σ W (‖a‖² + ‖b‖²) of Σ_n ψ `powers` at the rows; of each coordinate its parts."""
    dim = a.points.shape[-1]
    first, mass, second = sums[..., :dim], sums[..., dim : dim + 1], sums[..., dim + 1 :]
    cross, norms = a.points * first, a.points * a.points
    if second.shape[-1] < dim:
        cross, norms = cross.sum(-1, keepdims=True), a.norms
    size = mass * norms + second
    return first - mass * a.points, size - 2 * cross, size


def spread(xp: Any, a: Scaled, sums: Any, groups: int = 1) -> Any:
    """The mean of u over that of ‖a‖² + ‖b‖² for each group of rows (*batch, groups), of Σ_n |ψ w| [b, 1, ‖b‖²].

    Of all pairs of a group, or of a row's in the mean if that is less; of several coordinates the least.
    """
    moment, size = (z.reshape(*z.shape[:-2], groups, -1, z.shape[-1]) for z in about(a, sums)[1:])
    seen = size > 0  # not of NaN, nor of a query that is far from all keys
    own = xp.where(seen, moment / xp.where(seen, size, 1), 1).mean(-2)
    moment, size = (xp.where(seen, z, 0).sum(-2) for z in (moment, size))
    return xp.minimum(xp.where(size > 0, moment / xp.where(size > 0, size, 1), 1), own).min(-1)
