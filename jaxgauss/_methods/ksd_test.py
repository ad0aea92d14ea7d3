"""The goodness-of-fit test by KSD: a wild bootstrap, whose resamplings share the Stein kernel."""

import functools
from typing import NamedTuple, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Key

from .._arrays.devices import replicated
from .._arrays.points import dot
from .._checks.arguments import public
from .._checks.operands import as_operand
from .._checks.samples import (
    check_estimator,
    check_kernel,
    check_number,
    check_positive,
    check_rng_key,
    check_samples,
    check_scores,
)
from .._checks.settings import MeshOnly, MeshOptions, Points, Settings, Taus, working_dtype
from .._engines.scopes import scope
from .._kernels.kernels import Kernel
from .._sums.display import refuse_progress_in_a_trace
from .pair_forms import Groups, group_distances, group_pairs, groups_of, multiplicity, rows_in_groups, scan_pairs
from .resampling import (
    KernelTest,
    Resamplings,
    as_test,
    check_one_bandwidth,
    in_blocks,
    random_signs,
    side_by_side,
    soft_maximum,
)


@public()
def ksd_test(
    points: Points,
    scores: Points,
    tau: Taus,
    *,
    rng_key: Key[Array, ""],
    kernel: str | Kernel = "imq",
    num_bootstrap: int = 999,
    estimator: str = "unbiased",
    flip_probability: float = 0.5,
    progress: bool = False,
    **options: Unpack[MeshOnly],
) -> KernelTest:
    """Test whether points are a sample of the density that has the given scores, by KSD² and random signs.

    The wild bootstrap multiplies the Stein kernel h of `ksd_squared` by random signs w: Σ_ij w_i w_j h(x_i, x_j). XLA
    computes h once, in float64, one tile at a time; all resamplings share it. O(N² (D + P)) operations and O(N
    (D + P)) memory, in blocks of at most 64 MiB. The density need not be normalized.

    Args:
        points: x, (N, D), N ≥ 2.
        scores: s_i = ∇ log p(x_i), (N, D).
        tau: τ = 1/σ², positive; or several, (T,), which are aggregated (docs/which_function.md).
        rng_key: random key for the signs, which are the same on every device and in every precision.
        kernel: a name or a `Kernel` with second derivatives, as for `ksd_squared` (whose default is "gauss").
        num_bootstrap: P. The p-value is at least 1/(P + 1).
        estimator: "unbiased" or "biased", as for `ksd_squared`. For one bandwidth both have the same p-value; several
            need "unbiased".
        flip_probability: how likely a sign differs from the one before: 1/2 for independent points. For the states of a
            Markov chain, in order, whose correlation lasts ℓ steps, take 1/ℓ.
        progress: show a bar (needs tqdm); not under `jit`.
        **options: `mesh`, `query_axis` and `key_axis`, as for `mmd_squared`: both axes divide the tiles.

    Returns:
        A `KernelTest`: statistic, p-value, and the statistics of the bootstrap. No gradients: `ksd_squared` has them.

    Raises:
        ValueError: shapes do not fit, N < 2, tau or P is not positive, the probability is not in (0, 1), several
            bandwidths with "biased", an option has an unknown value, or `progress` under `jit`.
        TypeError: points or scores are not a floating array.
        ImportError: `progress` without tqdm.

    Precision:
        That of float64. For more than 512 points in float32, statistics are within 1e-7 of the root mean square of h.

    Example:
        >>> import jax, jaxgauss
        >>> points = jax.random.normal(jax.random.key(0), (200, 2)) + 0.5
        >>> test = jaxgauss.ksd_test(points, -points, 1.0, rng_key=jax.random.key(1), num_bootstrap=99)
        >>> round(float(test.p_value), 4)  # they are not from the standard normal density
        0.01

    References:
        Liu, Lee & Jordan, "A Kernelized Stein Discrepancy for Goodness-of-fit Tests", 2016, arXiv:1602.03253.
        Chwialkowski, Strathmann & Gretton, "A Kernel Test of Goodness of Fit", 2016, arXiv:1602.02964.
        Schrab, Guedj & Gretton, "KSD Aggregated Goodness-of-fit Test", 2022, arXiv:2202.00824.
    """
    function = "ksd_test"
    check_estimator(function, estimator)
    kernel = check_kernel(function, kernel, positive=True, smooth=True)
    samples = {"points": points, "scores": scores}
    asked = MeshOptions(**options)
    settings = check_samples(function, samples, tau, asked, min_points=2, allowed=MeshOnly, kernel=kernel)
    check_scores(function, "points", points, scores)
    check_rng_key(function, rng_key)
    check_number(function, "num_bootstrap", num_bootstrap)
    check_positive(function, "flip_probability", flip_probability, 1, "Independent points take 0.5.")
    check_one_bandwidth(function, estimator, tau=tau)
    if progress:
        refuse_progress_in_a_trace(function, points, scores, tau, rng_key)
    design = Resamplings.of(len(points), num_bootstrap, estimator, working_dtype(settings.dtype))
    chance = None if flip_probability == 0.5 else np.float32(flip_probability)
    operands = points, scores, as_operand(tau, settings.dtype), rng_key, chance
    with jax.enable_x64(True):
        return (_test if progress else _test_at_once)(settings, design, np.ndim(tau) > 0, progress, *operands)


class _Sample(NamedTuple):
    """Points and their scores in groups, and bandwidths (T,)."""

    groups: Groups
    scores: Array
    tau: Array


class _Forms(NamedTuple):
    """Σ_ij w_i w_j h_ij of all resamplings, and Σ h²."""

    products: Array  # (T, columns)
    squares: Array  # (T,)


@jax.jit
def _sample(points, scores, tau) -> _Sample:
    operands = (jnp.asarray(lax.stop_gradient(jnp.asarray(z)), "float64") for z in (points, scores, tau))
    points, scores, tau = replicated(*operands)
    groups = groups_of(points, tau.reshape(-1))
    return _Sample(groups, rows_in_groups(scores, groups.there), tau.reshape(-1))


def _test(
    settings: Settings, design: Resamplings, aggregated: bool, progress: bool, points, scores, tau, rng_key, chance
) -> KernelTest:
    sample = _sample(points, scores, tau)
    make = functools.partial(_signs, design, sample.groups.there, rng_key, chance)
    part, chunks = functools.partial(_chunk, settings, design, sample), len(sample.groups.points)
    with scope("sum", "labelings", 1, design.num, *points.shape, design.number):
        blocks: _Forms = in_blocks(settings.function, design.num_blocks, chunks, make, part, progress)
    return _result(settings, design, aggregated, _Forms(side_by_side(blocks.products), blocks.squares[0]))


_test_at_once = jax.jit(_test, static_argnums=(0, 1, 2, 3))


@functools.partial(jax.jit, static_argnums=0)
def _signs(design: Resamplings, there: Array, rng_key: Array, chance: Array | None, block: Array | int) -> Array:
    """A block of signs (groups, size, columns)."""
    signs = random_signs(rng_key, design.indices(block), design.num, chance)
    return rows_in_groups(signs, there)


# h(x, y) = κ ⟨s, t⟩ + τ ψ ⟨s - t, x - y⟩ + τ (D ψ - u χ) of scores s at x and t at y: four products of two groups.


@functools.partial(jax.jit, static_argnums=(0, 1))
def _chunk(settings: Settings, design: Resamplings, sample: _Sample, signs: Array, j: Array | int) -> _Forms:
    """The forms of one chunk of pairs of groups."""

    def add(total: _Forms, pair: Array, sample: _Sample, signs: Array) -> _Forms:
        squared, counts = group_distances(sample.groups, pair, diagonal=design.biased)
        (x, y), (s, t) = (z[pair] for z in (sample.groups.points, sample.scores))
        slopes = (s * x).sum(-1)[:, None] + (t * y).sum(-1)[None] - dot(s, y.T) - dot(x, t.T)
        between, trace, twice = dot(s, t.T), settings.kernel.trace(x.shape[-1]), multiplicity(pair)
        first, second = (signs[i].astype(design.dtype) for i in pair)

        def of_tau(tau: Array) -> tuple[Array, Array]:
            u = tau * squared
            kappa, psi = settings.kernel.with_slope(u)
            h = jnp.where(counts, kappa * between + tau * (psi * slopes + trace(u)), 0)
            products = jnp.matmul(h.astype(design.dtype), second, precision="highest")
            return (first * products).sum(0, dtype=h.dtype), jnp.square(h).sum()

        more = _Forms(*lax.map(of_tau, sample.tau))
        return jax.tree.map(lambda x, y: x + twice * y, total, more)

    num = len(sample.tau)
    zeros = _Forms(jnp.zeros((num, signs.shape[-1])), jnp.zeros(num))
    num_groups = len(sample.groups.points)
    pairs = jnp.asarray(group_pairs(num_groups, num_groups))[j]
    return scan_pairs(settings, add, zeros, pairs, sample, signs)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _result(settings: Settings, design: Resamplings, aggregated: bool, forms: _Forms) -> KernelTest:
    num = design.num
    products, pairs = forms.products[:, : design.number + 1], num**2 if design.biased else num * (num - 1)
    sizes = jnp.sqrt(forms.squares / pairs)
    if aggregated:
        statistics = soft_maximum(num, products / pairs / jnp.where(sizes > 0, sizes, jnp.inf)[:, None])
        rounding = jnp.asarray(design.rounding)
    else:
        statistics, rounding = products[0] / pairs, design.rounding * sizes[0]
    return as_test(statistics, rounding, settings.dtype, working_dtype(settings.dtype))
