"""Common to all tests: their result, p-values, aggregated bandwidths, and resamplings in blocks."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int8

from .._calls import readable
from .._sums.display import progress_bar, short_repr

BYTES = 2**26  # of signs or indices in memory at a time
FEW = 512  # points up to which terms are kept in float64; for more points, rounding errors average out


@readable
@jax.tree_util.register_dataclass
@dataclass(frozen=True, repr=False)
class KernelTest:
    """The result of a test by resampling: `mmd_test`, `hsic_test` or `ksd_test`.

    It unpacks as SciPy's results do: `statistic, p_value = mmd_test(…)`; and it is a pytree of its three arrays.

    Attributes:
        statistic: of the samples.
        p_value: (1 + #{null ≥ observed}) / (1 + P) of P resamplings. If the hypothesis holds, it is at most α with
            probability at most α (of a wild bootstrap, for many points). It is rounded down, so that `float(p_value) <=
            0.05` holds at exactly 0.05.
        null_statistics: of the P resamplings, in no particular order.

    References:
        Phipson & Smyth, "Permutation P-values Should Never Be Zero", 2010, arXiv:1603.05766.
    """

    statistic: Float[Array, ""]
    p_value: Float[Array, ""]
    null_statistics: Float[Array, " p"]
    __repr__ = short_repr

    def __iter__(self) -> Iterator[Array]:
        """The statistic and the p-value."""
        return iter((self.statistic, self.p_value))

    def __getitem__(self, index: int) -> Array:
        """The statistic, or the p-value."""
        return (self.statistic, self.p_value)[index]

    @property
    def pvalue(self) -> Array:
        """`p_value`, by SciPy's name."""
        return self.p_value


class Resamplings(NamedTuple):
    """The number of points, and how the resamplings are divided into blocks. The first column is the sample itself.

    `dtype` is the dtype to which signs, and the terms that they multiply, are rounded.
    """

    num: int
    number: int
    estimator: str
    dtype: str
    num_blocks: int
    columns: int

    @classmethod
    def of(cls, num: int, number: int, estimator: str, dtype: Any, *, largest=BYTES):
        """Divide the resamplings into blocks of at most `largest` columns and 64 MiB."""
        rounded = np.dtype("float64" if num <= FEW else dtype)
        largest = min(largest, max(1, BYTES // (rounded.itemsize * num)))
        num_blocks = -(-(number + 1) // largest)
        return cls(num, number, estimator, rounded.name, num_blocks, -(-(number + 1) // num_blocks))

    @property
    def biased(self) -> bool:
        """Whether pairs of a point with itself count."""
        return self.estimator == "biased"

    @property
    def rounding(self) -> float:
        """By how much rounding may separate equal statistics, relative to the root mean square of N² terms."""
        unit = float(jnp.finfo(self.dtype).eps)
        return 16 * (unit if self.dtype == "float64" else 4 / self.num * unit)

    def indices(self, block: Array | int) -> Array:
        """Indices of a block's columns among all columns."""
        return block * self.columns + jnp.arange(self.columns)


def check_one_bandwidth(function: str, estimator: str, **taus: Any) -> None:
    """Raise ValueError if the estimator is biased and there are several bandwidths to aggregate."""
    if estimator == "biased" and any(np.ndim(tau) for tau in taus.values()):
        given = ", ".join(f"{name} {np.shape(tau)}" for name, tau in taus.items())
        raise ValueError(
            f"`jaxgauss.{function}`: `estimator` must be 'unbiased' for several bandwidths; got {estimator!r}, {given}."
            " Leave it out: the pairs of a point with itself would hide the narrow ones."
        )


def as_test(statistics: Float[Array, " p1"], rounding: Array, dtype: Any, working: Any) -> KernelTest:
    """The test from its statistics, of which the first is observed; ties within rounding raise the p-value."""
    observed, null = statistics[0], statistics[1:]
    p_value = _shares(len(null), working)[(null >= observed - rounding).sum()]
    p_value = jnp.where(jnp.isnan(observed), jnp.nan, p_value)  # NaN in the points gives no p-value
    return KernelTest(observed.astype(dtype), p_value, null.astype(dtype))


def _shares(num: int, dtype: np.dtype) -> Array:
    """(1 + i) / (1 + P) for i from 0 to P, rounded down."""
    exact = np.arange(1, num + 2) / (num + 1)
    rounded = exact.astype(dtype)
    return jnp.asarray(np.where(rounded > exact, np.nextafter(rounded, np.zeros((), dtype)), rounded))


def soft_maximum(num: int, statistics: Float[Array, "t p"]) -> Float[Array, " p"]:
    """(1/λ) log mean_t exp(λ u_t) of normalized statistics u_t, with λ = √(n(n - 1)) for n points."""
    sharpness = math.sqrt(num * (num - 1))
    return jax.nn.logsumexp(sharpness * statistics, 0, b=1 / len(statistics)) / sharpness


def in_blocks(function: str, blocks: int, chunks: int, make: Callable, part: Callable, progress: bool) -> Any:
    """Σ_j part(make(i), j) for every block i, stacked; with `progress` in a Python loop with a bar."""
    if not progress:

        def block(_: None, i: Array):
            columns = make(i)
            zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(part, columns, 0))
            add = lambda total, j: (jax.tree.map(jnp.add, total, part(columns, j)), None)  # noqa: E731
            return None, lax.scan(add, zeros, jnp.arange(chunks))[0]

        return lax.scan(block, None, jnp.arange(blocks))[1]
    found = []
    with progress_bar(function, blocks * chunks, "block") as bar:
        for i in range(blocks):
            columns, total = make(i), None
            for j in range(chunks):
                more = part(columns, j)
                total = jax.block_until_ready(more if total is None else jax.tree.map(jnp.add, total, more))
                bar.update()
            found.append(total)
    return jax.tree.map(lambda *x: jnp.stack(x), *found)


def side_by_side(blocks: Float[Array, "blocks *leading columns"]) -> Float[Array, "*leading p"]:
    """The columns of all blocks in one array."""
    columns = jnp.moveaxis(blocks, 0, -2)
    return columns.reshape(*columns.shape[:-2], -1)


def random_signs(
    rng_key: Array, columns: Array, num: int, flip_probability: Float[Array, ""] | None = None
) -> Int8[Array, "n columns"]:
    """Random signs (n, columns); column 0, the sample itself, is all plus.

    In each column a sign differs from the one before with `flip_probability`; without one they are independent.
    """
    keys = jax.vmap(jax.random.fold_in, (None, 0))(rng_key, columns)  # signs do not depend on the blocks
    if flip_probability is None:
        words = jax.vmap(lambda key: jax.random.bits(key, (-(-num // 32),), "uint32"), out_axes=1)(keys)
        bits = (words[:, None] >> jnp.arange(32, dtype="uint32")[None, :, None]) & 1
        minus = bits.reshape(-1, len(columns))[:num]
    else:

        def chain(key: Array) -> Array:  # the dtype of the probability decides that of the random numbers
            return jnp.cumsum(jax.random.bernoulli(key, flip_probability, (num,)), dtype="uint8") & 1

        minus = lax.map(chain, keys, batch_size=32).T
    return jnp.where((columns == 0)[None], 1, 1 - 2 * minus.astype("int8"))
