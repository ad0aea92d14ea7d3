"""Forms of the kernel matrix of random waves, for the two-sample test: all labelings share the waves, in O(N P).

With features Φ, the N × 2PJ cosines and sines of P directions and J radii, K = ΦΦᵀ/PJ has ones on its diagonal, so

    σᵀK'σ = ‖Φᵀσ‖²/PJ - N,   σᵀK'1 = ⟨Φᵀσ, Φᵀ1⟩/PJ - Σσ

for signs σ and K' = K without its diagonal. Φ does not depend on the labels: a test that uses these forms has its level
exactly, whatever the error of K. Where bins of points share a label, Φ is summed over each bin first.

Φ is rounded to steps of 2⁻¹⁴. So float32 holds sums of 1024 rows exactly, and float64 sums of all: equal splits have
equal forms, whatever the order of their points.

Sources: Zhao & Meng, "FastMMD: Ensemble of Circular Discrepancy for Efficient Two-Sample Test", 2015, arXiv:1405.2664;
Domingo-Enrich, Dwivedi & Mackey, "Cheap Permutation Testing", 2025, arXiv:2502.07672, on bins.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int8, Key

from ..._arrays.points import center, common_center, dot
from ..._arrays.sine import circle
from ..._arrays.tracing import jitted, own_arrays
from ..settings import Settings
from .directions import Directions
from .engine import Sliced, is_distance
from .sums import FARTHEST

ROWS, STEP = 2**10, 2.0**-14  # ROWS / STEP is the largest number up to which float32 holds all integers
NUMBERS = 2**8  # of features of a point at a time
LARGE = 64  # points of a bin, from which its features are summed before they meet the signs
LABELINGS = 2**12  # labelings in memory at a time
SAMPLE = 2**10  # points that tell the norm of the matrix


class Slices(NamedTuple):
    """Pooled points in chunks, and waves in groups of directions, those of all bandwidths along one direction together.

    A chunk has whole bins, or is a part of one. Padding is not there.
    """

    points: Float[Array, "chunks rows d"]
    there: Bool[Array, "chunks rows"]
    sizes: Float[Array, " bins"]
    directions: Float[Array, "groups p d"]
    turns: Float[Array, "groups p bandwidths j"]
    shares: Float[Array, "groups p"]  # 1/PJ; zero for padding


def check_sliced(settings: Settings) -> None:
    """Raise ValueError for distances, which have no waves, and for a mesh."""
    where = f"`jaxgauss.{settings.function}`:"
    if is_distance(settings.kernel):
        raise ValueError(
            f"{where} `kernel` must be a mixture of Gaussians for random directions, because its labelings share waves;"
            f" got {settings.kernel!r}. Use kernel='matern12', or 'imq'."
        )
    if settings.mesh is not None:
        raise ValueError(f"{where} `mesh` must be left out with engine {settings.engine!r}; got a mesh. Leave it out.")


@functools.partial(jitted, num_static=2)
def waves_of(settings: Settings, dim: int) -> Directions:
    """The directions of the engine's random key."""
    return settings.engine.drawn(own_arrays(), settings.kernel, dim, dtype_of(settings))  # type: ignore[attr-defined]


def dtype_of(settings: Settings) -> Any:
    """That of the waves."""
    return settings.engine.fitted(settings.problem("cpu", 1, 1, 1)).precision


def num_groups(engine: Sliced, bandwidths: int) -> int:
    """The number of groups of directions."""
    some = max(1, min(engine.directions, NUMBERS // (2 * engine.frequencies * bandwidths)))
    return -(-engine.directions // some)


def slices(
    of: Directions,
    groups: int,
    points: Float[Array, "n d"],
    tau: Float[Array, "*bandwidths"],
    bin_size: int,
    num_x: int,
) -> Slices:
    """Points of two samples, of which bins share labels, and the waves of all bandwidths."""
    dtype, num = of.directions.dtype, len(of.directions)
    points, ratios = scaled(points, tau.reshape(-1), dtype)
    samples = [_in_bins(z, bin_size) for z in (points[:num_x], points[num_x:])]
    points, there = (jnp.concatenate(z) for z in zip(*samples, strict=True))  # (bins, bin_size, d)
    sizes = there.sum(1, dtype=tau.dtype)
    cuts = -(-bin_size // ROWS)
    rows = -(-bin_size // cuts) if cuts > 1 else bin_size * max(1, ROWS // bin_size)
    if cuts > 1:
        points, there = (padded(z, 1, cuts * rows) for z in (points, there))
    points, there = (z.reshape(-1, *z.shape[2:]) for z in (points, there))
    points, there = (padded(z, 0, -(-len(z) // rows) * rows).reshape(-1, rows, *z.shape[1:]) for z in (points, there))
    some = -(-num // groups)
    turns = of.frequencies.T[:, None] * ratios[None, :, None]
    shares = jnp.full(num, 1 / of.frequencies.size, tau.dtype)
    waves = (padded(z, 0, groups * some).reshape(groups, some, *z.shape[1:]) for z in (of.directions, turns, shares))
    return Slices(points, there, sizes, *waves)


def scaled(points: Array, tau: Float[Array, " t"], dtype: Any) -> tuple[Array, Float[Array, " t"]]:
    """Points about a center in units of the narrowest bandwidth, and the frequencies of all in these units."""
    scale = jnp.sqrt(tau.max())
    points = (points - common_center(points, center(points))) * scale
    return jnp.clip(points, -FARTHEST, FARTHEST).astype(dtype), (jnp.sqrt(tau) / scale).astype(dtype)


def _in_bins(x: Array, bin_size: int) -> tuple[Array, Array]:
    """Rows in bins, and which of them are there."""
    num = -(-len(x) // bin_size) * bin_size
    x, there = padded(x, 0, num), jnp.arange(num) < len(x)
    return x.reshape(-1, bin_size, x.shape[1]), there.reshape(-1, bin_size)


def padded(x: Array, axis: int, num: int) -> Array:
    """The array with zeros after it, so that an axis has a length."""
    return jnp.pad(x, [(0, (num - n) * (i == axis)) for i, n in enumerate(x.shape)])


def forms_of_slices(
    of: Slices, bin_size: int, signs: Int8[Array, "bins columns"], group: Array | int
) -> tuple[Float[Array, "bandwidths columns"], Float[Array, "bandwidths columns"]]:
    """What a group of directions adds to σᵀK'σ and σᵀK'1, for every labeling of bins."""
    directions, turns, shares = of.directions[group], of.turns[group], of.shares[group]
    chunks, rows = of.there.shape
    cuts = -(-bin_size // rows)
    together = rows // bin_size if cuts == 1 else 1
    with_ones = jnp.pad(signs, ((0, 0), (0, 1)), constant_values=1)
    of_chunks = padded(jnp.repeat(with_ones, cuts, 0), 0, chunks * together).reshape(chunks, together, -1)
    unit, dtype = of.sizes.dtype, directions.dtype

    def add(total: Array, part: tuple[Array, Array, Array]) -> tuple[Array, None]:
        points, there, signs = part
        if bin_size < LARGE:
            weights = jnp.where(there[:, None], jnp.repeat(signs, bin_size, 0), 0).astype(dtype)
            return total + dot(weights.T, _features(directions, turns, points)).astype(unit), None
        own = jnp.repeat(jnp.eye(together, dtype=dtype), rows // together, 1) * there[None].astype(dtype)
        of_bins = dot(own, _features(directions, turns, points))
        return total + dot(signs.astype(unit).T, of_bins.astype(unit)), None

    zeros = jnp.zeros((with_ones.shape[1], 2 * turns.size), unit)
    found = lax.scan(add, zeros, (of.points, of.there, of_chunks))[0] * STEP  # (columns + 1, 2 · p · T · J)
    found = found.reshape(-1, 2, *turns.shape)
    quadratic = jnp.einsum("cspti,p->tc", jnp.square(found[:-1]), shares)
    linear = jnp.einsum("cspti,spti,p->tc", found[:-1], found[-1], shares)
    share = shares.sum() * turns.shape[-1]  # of the diagonal
    return quadratic - share * of.sizes.sum(), linear - share * dot(of.sizes[None], signs.astype(unit))


def _features(directions: Array, turns: Array, points: Array) -> Float[Array, "rows features"]:
    """Cosines, then sines, in units of STEP."""
    along = dot(points, directions.T)[:, :, None] * turns.reshape(1, len(turns), -1)
    return jnp.concatenate([jnp.round(z * (1 / STEP)) for z in circle(along.reshape(len(points), -1))], 1)


def mean_squares(of: Slices, rng_key: Key[Array, ""]) -> Float[Array, " bandwidths"]:
    """The mean of K_ij², i ≠ j, of a random sample of the points, or of all few.

    It is that of the kernel which the waves make: of a narrow bandwidth their noise is most, and would look like
    evidence beside the norm of κ. It must not know the labels, so the sample is random by itself.
    """
    there, num = of.there.reshape(-1), math.prod(of.there.shape)
    points, index = of.points.reshape(num, -1), jnp.arange(num)
    if num > SAMPLE:
        order = jnp.argsort(~there, stable=True)  # padding comes last
        index = order[jax.random.randint(rng_key, (SAMPLE,), 0, there.sum())]
    points = points[index]
    counts = (index[:, None] != index[None]) & there[index][:, None] & there[index][None]

    def add(total: Array, part: tuple[Array, Array, Array]) -> tuple[Array, None]:
        directions, turns, shares = part
        phi = _features(directions, turns, points).reshape(len(index), 2, *turns.shape) * jnp.asarray(STEP, total.dtype)
        weighed = phi * shares.astype(total.dtype)[None, None, :, None, None]
        return total + jnp.einsum("nspti,mspti->tnm", weighed, phi), None

    zeros = jnp.zeros((of.turns.shape[2], len(index), len(index)), points.dtype)
    gram = lax.scan(add, zeros, (of.directions, of.turns, of.shares))[0]
    squares = jnp.where(counts, jnp.square(gram), 0).sum((1, 2), dtype=of.sizes.dtype)
    return squares / counts.sum(dtype=squares.dtype)
