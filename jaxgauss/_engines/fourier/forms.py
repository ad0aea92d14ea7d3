"""Forms of the Gaussian kernel matrix of many points in few dimensions: σᵀKσ is a sum over waves, in O(N).

With the coefficients A_σ = Σ_n σ_n T(x_n) of a labeling, and those of ones, A_1 (see `fourier`),

    σᵀKσ = Σ_j g_j A_σ,j²,   σᵀK1 = Σ_j g_j A_σ,j A_1,j

The coefficients do not depend on τ, so one set serves all bandwidths. All is float64, because MMD² is a small
difference of such forms. It is a form of one matrix, that of the series: the statistics err by no more than the series.
"""

import functools
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from ..._arrays.points import dot
from ..._arrays.shapes import are_known
from ..costs import cpu_costs
from ..scopes import scope
from . import nufft
from .boxes import box
from .cost import OF_SIGNS, WORTH, Sizes, at_most, estimated, transforms_pay
from .frequencies import DIMENSIONS, WAVES, Nodes, blocks_of, nodes, spectrum, tolerance_of
from .series import POINTS, coefficients

# The error of Φ, relative to its mean over all pairs and to 1/N. Tests take statistics as equal if they differ by eight
# times as much.
ERROR = 1e-6
DENSE = 4  # the least N times the mean of Φ: of fewer points, the diagonal might hide all other pairs
AT_ONCE = 2**22  # numbers of points, waves and labelings at a time, in products


class WaveForms(NamedTuple):
    """The nodes of all points, and the coefficients of ones."""

    nodes: Nodes
    of_ones: Float[Array, "1 ..."]


def blocks_that_pay(num: Any, dim: int, labelings: int, bandwidths: int, passes: int) -> int:
    """The most blocks of waves of a coordinate that are estimated to take less time than all pairs on a CPU; or 0.

    Pairs form their exponentials in so many passes, in float64, each pair once; labels are float32.
    """
    if dim not in DIMENSIONS or not are_known(num):
        return 0
    in_float64, in_float32 = (cpu_costs()[0][f"xla in {x}"] for x in ("float64", "float32"))
    of_pair = passes * (in_float64.pair + (dim + 2) * in_float64.column) + labelings * in_float32.column
    of_pairs, sizes = bandwidths * num**2 / 2 * of_pair, Sizes(0, num, dim, labelings)
    enough = WORTH * OF_SIGNS * of_pairs  # no labeling needs Σ Φ|v|
    paying = (x for x in range(at_most(dim), 0, -1) if estimated("float64", sizes, [float(x)] * dim)[0] < enough)
    return next(paying, 0)


def num_coefficients(dim: int, most: int) -> int:
    """The number of coefficients of a labeling."""
    return (2 * WAVES[dim] * most) ** dim


def blocks_needed(points: Float[Array, "n d"], tau: Float[Array, "*bandwidths"]) -> Float[Array, ""]:
    """The number of blocks of waves that a coordinate needs; infinite where points are too sparse for waves."""
    extent = box(points).extent
    scale, ratio = _scales(tau, extent)
    length = extent * scale
    is_dense = len(points) * tolerance_of(jnp, "float64", length) >= DENSE * float(jnp.finfo("float64").eps)
    return jnp.where(is_dense, blocks_of(jnp, length, _error(length, len(points)), ratio).max(), jnp.inf)


def wave_forms(points: Float[Array, "n d"], tau: Float[Array, "*bandwidths"], most: int, labelings: int) -> WaveForms:
    """What all labelings of float64 points share, with `most` blocks of waves."""
    (num, dim), around = points.shape, box(points)
    scale, ratio = _scales(tau, around.extent)
    error = _error(around.extent * scale, num)
    found, _, _ = nodes(most, around.center, around.extent, scale, error, ratio)
    if nufft.is_installed():
        pay = transforms_pay("float64", Sizes(0, num, dim, labelings), most, found.counts.astype(points.dtype))
        least = jnp.asarray(max(nufft.LEAST["float64"], ERROR / num), points.dtype)
        if not isinstance(pay, bool):
            found = found._replace(eps=jnp.where(pay, least, 0), by_products=~pay)
        elif pay:
            found = found._replace(eps=least)
    return WaveForms(found, coefficients(found, points, jnp.ones((1, num), points.dtype)))


def forms_of_waves(
    of: WaveForms, points: Float[Array, "n d"], tau: Float[Array, "*bandwidths"], signs: Float[Array, "n p"]
) -> tuple[Array, Array, Array]:
    """σᵀK'σ and σᵀK'1 (*bandwidths, P), and 1ᵀ(K' ∘ K')1 (*bandwidths), of K' = K - 1 without its diagonal."""
    found = _coefficients(of.nodes, points, signs.T).reshape(signs.shape[1], -1)
    ones, num = of.of_ones.reshape(-1), len(points)

    def of_tau(tau: Array) -> tuple[Array, Array, Array]:
        g, of_squares = (_spectrum(of.nodes, x).reshape(-1) for x in (tau, 2 * tau))
        quadratic = dot(jnp.square(found), g) - jnp.square(signs).sum(0)
        return quadratic, dot(found, g * ones) - signs.sum(0), dot(jnp.square(ones), of_squares) - num

    return lax.map(of_tau, tau) if tau.ndim else of_tau(tau)


def _coefficients(of: Nodes, points: Float[Array, "n d"], values: Float[Array, "c n"]) -> Array:
    """`coefficients`, of few channels at a time where matrix products may form them."""
    (channels, num), dim = values.shape, points.shape[1]
    numbers = min(num, POINTS[dim]) * len(of.numbers) ** (dim - 1)
    some = min(channels, max(1, AT_ONCE // numbers))
    if of.eps is not None and of.by_products is None:
        some = channels
    parts = jnp.pad(values, ((0, -channels % some), (0, 0))).reshape(-1, some, num)
    most = len(of.numbers) // (2 * WAVES[dim])
    with scope("waves", "float64", most, 1, *Sizes(0, num, dim, channels)):
        found = lax.map(functools.partial(coefficients, of, points), parts)
    return found.reshape(-1, *found.shape[2:])[:channels]


def _spectrum(of: Nodes, tau: Float[Array, ""]) -> Array:
    return spectrum(of, jnp.broadcast_to(jnp.sqrt(tau), (1, len(of.period))), jnp.ones(1, tau.dtype))


def _scales(tau: Float[Array, "*bandwidths"], extent: Float[Array, " d"]) -> tuple[Float[Array, " d"], Any]:
    """√τ of the narrowest Gaussian, and how many times as wide the widest is; of several also of their squares."""
    narrowest = tau.max() * (2 if tau.ndim else 1)
    return jnp.broadcast_to(jnp.sqrt(narrowest), extent.shape), jnp.sqrt(narrowest / tau.min())


def _error(length: Float[Array, " d"], num: int) -> Float[Array, ""]:
    """The error of Φ, for a box in bandwidths."""
    return tolerance_of(jnp, "float64", length) * (ERROR / num / float(jnp.finfo("float64").eps))
