"""HSIC by pairs of random waves, for the independence test: a permutation of N points takes O(N) for each pair.

A wave ω of x has the kernel cos⟨ω, x - x'⟩ = u·u' with u = (cos, sin); one of y has v·v'. HSIC is bilinear in both
kernels, so its mean over independent pairs of waves is unbiased. That of one pair is made of 2 × 2 covariances, as with
C = Σ_i (u_i - ū)(v_i - v̄)ᵀ

    biased: N² HSIC = ‖C‖²,   unbiased: N(N - 3) HSIC = ‖C‖² - 4N/(N - 2) ūᵀC v̄ - N²/(N - 1) (1 - ‖ū‖²)(1 - ‖v̄‖²)

The second leaves out pairs of a point with itself: Σ_i d_i e_i with d_i = ‖u_i - ū‖² = 1 - ‖ū‖² - 2 ū·(u_i - ū) takes
no other sums than C.

Waves are rounded to steps of 2⁻⁹, products of two to steps of 2⁻¹⁸. So float32 holds sums of 64 products exactly, and
float64 sums of all: equal tables have equal statistics. Where bins of points move together, the products of all bins
with all bins are one product of matrices, of which a permutation takes one number for each bin.

Source: Zhang, Filippi, Gretton & Sejdinovic, "Large-Scale Kernel Methods for Independence Testing", 2018,
arXiv:1606.07892.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Key

from ..._arrays.points import dot
from ..._arrays.sine import circle
from ..._arrays.tracing import jitted, own_arrays
from ..settings import Settings
from .forms import SAMPLE, dtype_of, padded, scaled

STEP, EXACT = 2.0**-9, 64  # EXACT / STEP² is the largest number up to which float32 holds all integers
AT_ONCE, FEWEST = 2**19, 8  # points times waves at a time, and waves of many points


class Side(NamedTuple):
    """One variable: its points, its waves in groups, and the bandwidths by which waves are multiplied."""

    points: Float[Array, "n d"]
    waves: Float[Array, "groups q d"]
    ratios: Float[Array, " bandwidths"]


class Pairs(NamedTuple):
    """Both variables, and the weight of each pair of waves: zero for padding."""

    x: Side
    y: Side
    shares: Float[Array, "groups q"]


@functools.partial(jitted, num_static=3)
def paired_waves(settings: Settings, dim_x: int, dim_y: int) -> tuple[Float[Array, "q dx"], Float[Array, "q dy"]]:
    """ω/2π of x and of y, from the engine's random key; those of y in random order, so that pairs are independent."""
    *keys, order = jax.random.split(own_arrays(), 3)
    found = []
    for key, dim in zip(keys, (dim_x, dim_y), strict=True):
        of = settings.engine.drawn(key, settings.kernel, dim, dtype_of(settings))  # type: ignore[attr-defined]
        found.append((of.directions[None] * of.frequencies[..., None]).reshape(-1, dim))
    return found[0], jax.random.permutation(order, found[1])


def groups_of_waves(waves: int, num: int) -> int:
    """The number of groups of waves of so many points."""
    return -(-waves // min(waves, max(FEWEST, AT_ONCE // num)))


def pairs_of(waves: tuple[Array, Array], groups: int, x: Array, y: Array, tau_x: Array, tau_y: Array) -> Pairs:
    """Points (N, D) with waves (Q, D), for bandwidths (T,) of x and of y."""
    num = len(waves[0])
    some = -(-num // groups)

    def in_groups(z: Array) -> Array:
        return padded(z, 0, groups * some).reshape(groups, some, *z.shape[1:])

    def side(points: Array, waves: Array, tau: Array) -> Side:
        points, ratios = scaled(points, tau, waves.dtype)
        return Side(points, in_groups(waves), ratios)

    shares = in_groups(jnp.full(num, 1 / num, tau_x.dtype))
    return Pairs(side(x, waves[0], tau_x), side(y, waves[1], tau_y), shares)


def forms_of_orders(
    of: Pairs, biased: bool, bin_size: int, orders: Int[Array, "bins columns"], group: Array | int
) -> Float[Array, "t s columns"]:
    """What a group of waves adds to N² HSIC, or N(N - 3) HSIC, of y with its bins in every order.

    Points after the last whole bin stay.
    """
    shares, num = of.shares[group], len(of.x.points)

    def of_bandwidths(ratios: tuple[Array, Array]) -> Array:
        x, y = (_features(z, ratio, group) for z, ratio in zip(of[:2], ratios, strict=True))  # (2, q, N)
        products = _by_bins if bin_size > 1 else _by_points
        products = products(x, y, bin_size, orders).astype(shares.dtype) * STEP**2  # (2, 2, q, columns)
        u, v = (z.sum(-1, dtype=shares.dtype) * (STEP / num) for z in (x, y))  # means, (2, q)
        c = products - num * (u[:, None] * v[None])[..., None]
        found = jnp.square(c).sum((0, 1))
        if not biased:
            d, e = (1 - jnp.square(z).sum(0) for z in (u, v))
            of_means = (u[:, None, :, None] * c * v[None, :, :, None]).sum((0, 1))
            found -= 4 * num / (num - 2) * of_means + (num**2 / (num - 1) * d * e)[:, None]
        return dot(shares[None], found)[0]

    each = jnp.meshgrid(of.x.ratios, of.y.ratios, indexing="ij")
    found = lax.map(of_bandwidths, tuple(z.reshape(-1) for z in each))
    return found.reshape(len(of.x.ratios), len(of.y.ratios), -1)


def _features(side: Side, ratio: Array, group: Array | int) -> Float[Array, "2 q n"]:
    """Cosines and sines, in units of STEP."""
    turns = dot(side.waves[group] * ratio, side.points.T)
    return jnp.stack([jnp.round(z * (1 / STEP)) for z in circle(turns)])


def _by_points(x: Array, y: Array, bin_size: int, orders: Array) -> Float[Array, "2 2 q columns"]:
    """Σ_i u_i v_j of every order j(i)."""
    x, y = (jnp.moveaxis(z, -1, 0) for z in (x, y))  # (N, 2, q)

    def of_order(order: Array) -> Array:
        return (x[:, :, None] * y[order][:, None]).sum(0, dtype="float64")

    return jnp.moveaxis(lax.map(of_order, orders.T), 0, -1)


def _by_bins(x: Array, y: Array, bin_size: int, orders: Array) -> Float[Array, "2 2 q columns"]:
    """The same, where points of a bin move together."""
    bins, parts = len(orders), -(-bin_size // EXACT)
    whole, size = bins * bin_size, -(-bin_size // parts)
    rest = (x[:, None, :, whole:] * y[None, :, :, whole:]).sum(-1, dtype="float64")

    def in_parts(z: Array) -> Array:
        z = padded(z[..., :whole].reshape(*z.shape[:2], bins, bin_size), 3, parts * size)
        return jnp.moveaxis(z.reshape(2, -1, bins, parts, size), (1, 3), (0, 1))  # (q, parts, 2, bins, size)

    def of_wave(wave: tuple[Array, Array]) -> Array:
        def add(total: Array, part: tuple[Array, Array]) -> tuple[Array, None]:
            a, b = (z.reshape(2 * bins, size) for z in part)
            return total + dot(a, b.T).astype("float64"), None

        found = lax.scan(add, jnp.zeros((2 * bins, 2 * bins)), wave)[0].reshape(2, bins, 2, bins)
        found = jnp.moveaxis(found, 2, 3)  # (2, bins, bins, 2)
        return found[:, jnp.arange(bins)[:, None], orders].sum(1)  # (2, columns, 2)

    found = lax.map(of_wave, (in_parts(x), in_parts(y)))  # (q, 2, columns, 2)
    return jnp.moveaxis(found, (1, 3), (0, 1)) + rest[..., None]


def squares_of(side: Side, shares: Array, rng_key: Key[Array, ""]) -> Float[Array, " bandwidths"]:
    """Σ_ij A_ij² of the centered kernel of the waves, from a random sample of the points, or all few.

    The sample must not know the other variable: each has one by itself.
    """
    num = len(side.points)
    index = jax.random.randint(rng_key, (SAMPLE,), 0, num) if num > SAMPLE else jnp.arange(num)
    few = side._replace(points=side.points[index])
    counts = index[:, None] != index[None]

    def of_bandwidth(ratio: Array) -> Array:
        def add(total: Array, group: Array) -> tuple[Array, None]:
            phi = _features(few, ratio, group) * jnp.asarray(STEP, few.points.dtype)
            weighed = phi * shares[group].astype(phi.dtype)[None, :, None]
            return total + jnp.einsum("sqn,sqm->nm", weighed, phi), None

        size = len(index)
        zeros = jnp.zeros((size, size), few.points.dtype)
        gram = lax.scan(add, zeros, jnp.arange(len(shares)))[0].astype(shares.dtype)
        gram = jnp.where(counts, gram, 0)
        rows, others = gram.sum(0) / (size - 2), (size - 1) * (size - 2)
        centered = gram - rows[:, None] - rows[None] + gram.sum() / others
        return jnp.where(counts, jnp.square(centered), 0).mean() * num**2

    return lax.map(of_bandwidth, side.ratios)
