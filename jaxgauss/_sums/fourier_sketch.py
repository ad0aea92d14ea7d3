"""fourier_sketch: Fourier coefficients of weighted points; they add up, and sums at M queries take O(M)."""

import functools
import math
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.core
import numpy as np
from jaxtyping import Array, Float

from .._calls import readable
from .._checks.arguments import center_of, minus_center, public
from .._checks.box import Bound, corners
from .._checks.names import as_engine
from .._checks.settings import Sums
from .._engines.engine import Auto, Engine
from .._engines.fourier.engine import Fourier
from .._engines.fourier.frame import (
    DIMENSIONS,
    Frame,
    check_tolerance,
    coefficients_needed,
    in_frame,
    least_tolerance,
    sums_in_frame,
)
from .._engines.sliced.engine import Sliced
from .sketch import STATIC, Sketch, check_sketched
from .sliced_sketch import empty_sliced_sketch

LARGEST = 2**24  # the most coefficients of a channel


@readable
@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False, repr=False)
class FourierSketch(Sketch):
    """Fourier coefficients of weighted points Σ_n v_n δ(k_n), as `fourier_sketch` computes them.

    `sketch(queries)` are their Gauss sums. `first + second` is the sketch of both sets of points, if τ, box and
    tolerance are equal. The number of coefficients depends on the size of the box in bandwidths, not on the number of
    points. A sketch is a pytree: `jax.lax.psum` adds the sketches of several devices. It can be pickled, and then has
    NumPy's arrays, which lose no digits in a process without JAX's 64-bit mode.

    Attributes:
        coefficients: (C, W, …), with one axis for each coordinate.
        rounding: the rounding errors of added sketches, in the same shape.
        tau: τ = 1/σ² of the Gaussian.
        lower, upper: corners of the box that must hold all keys and queries.
        tolerance: the largest error of a sum relative to Σ|v|, rounding aside.
        one_weight: whether values were (N,), so that sums are (…, M).
    """

    coefficients: Float[Array, "c ..."]
    rounding: Float[Array, "c ..."]
    tau: float = field(metadata=STATIC)
    lower: tuple[float, ...] = field(metadata=STATIC)
    upper: tuple[float, ...] = field(metadata=STATIC)
    tolerance: float = field(metadata=STATIC)
    one_weight: bool = field(metadata=STATIC)
    alike = "tau, lower, upper and tolerance"

    def __repr__(self) -> str:
        found, box = self.coefficients, zip(self.lower, self.upper, strict=True)
        waves, sides = found.shape[1] // 2, " × ".join(f"[{a:.6g}, {b:.6g}]" for a, b in box)
        return (
            f"FourierSketch({found.dtype}[{len(found)}], {' × '.join([str(waves)] * self.dim)} waves,"
            f" tau={self.tau:.6g}, {sides}, tolerance={self.tolerance:.1e})"
        )

    def __call__(self, queries: Float[Array | np.ndarray, "*batch m d"]) -> Sums:
        """Sum all keys of the sketch at the queries, Σ_n exp(-τ/2 ‖q_m - k_n‖²) v_n, in O(M).

        Args:
            queries: points of the box, (…, M, D).

        Returns:
            (…, M, C), or (…, M) if each key has one weight, in the dtype of the coefficients.

        Raises:
            ValueError: a query lies outside of the box (under `jit` its sum is NaN), or has another dimension; or the
                sketch is in float64, without JAX's 64-bit mode.
            TypeError: queries are not floating.
        """
        return super().__call__(queries)

    @property
    def dim(self) -> int:
        """The dimension D of the points."""
        return len(self.lower)

    def about(self, points: Any) -> Any:
        """Points about the origin of the waves, where those of float32 keep their digits if the box lies far away."""
        origin = self._origin()
        return points if origin is None else minus_center(origin, points)

    def _origin(self) -> np.ndarray | None:
        return None if self.coefficients.dtype == np.float64 else _origin(self.lower, self.upper)

    def _corners(self) -> tuple[np.ndarray, np.ndarray]:
        """The corners about the origin."""
        origin, dtype = self._origin(), self.coefficients.dtype
        lower, upper = (np.subtract(x, 0 if origin is None else origin).astype(dtype) for x in (self.lower, self.upper))
        return lower, upper

    @property
    def frame(self) -> Frame:
        """What the nodes depend on."""
        dtype = self.coefficients.dtype
        scale = np.full(self.dim, math.sqrt(self.tau), dtype)
        return Frame(*self._corners(), scale, np.asarray(self.tolerance, dtype))

    def check_inside(self, function: str, name: str, points: Any) -> None:
        """Raise ValueError unless all points are in the box; under `jit` they are not checked."""
        if isinstance(points, jax.core.Tracer):
            return
        rows, (lower, upper) = np.asarray(points).reshape(-1, self.dim), self._corners()
        found = self.about(rows).astype(lower.dtype)
        inside = ((found >= lower) & (found <= upper)).all(-1)
        if not inside.all():
            raise ValueError(
                f"`jaxgauss.{function}`: `{name}` must be in the box from {list(self.lower)} to {list(self.upper)}; got"
                f" {rows[~inside][0].tolist()}, and {(~inside).sum() - 1} others outside. Make the sketch with `lower`"
                " and `upper` that hold all keys and queries."
            )

    @property
    def kind(self) -> dict[str, Any]:
        return {"lower": self.lower, "upper": self.upper, "tolerance": self.tolerance}

    @property
    def margin(self) -> float:
        """Half of the distance at which the Gaussian equals the tolerance."""
        return math.sqrt(-math.log(self.tolerance) / (2 * self.tau))

    def sketched(self, keys: Any, values: Any, margin: Any = None) -> Array:
        return in_frame(self.frame, self.coefficients, self.about(keys), values, margin)

    def sums_of(self, queries: Any) -> Array:
        return sums_in_frame(self.one_weight, self.frame, self.coefficients, self.rounding, self.about(queries))


@functools.lru_cache(64)
def _origin(lower: tuple[float, ...], upper: tuple[float, ...]) -> np.ndarray | None:
    """A point of the box, if it lies far from zero."""
    return center_of(np.asarray([lower, upper]))


@public("none")
def fourier_sketch(
    keys: Float[Array | np.ndarray, "n d"],
    values: Float[Array | np.ndarray, "n c"] | Float[Array | np.ndarray, " n"],
    tau: float = 1.0,
    *,
    lower: Bound = None,
    upper: Bound = None,
    tolerance: float | None = None,
    engine: str | Engine = "fourier",
) -> Sketch:
    """Reduce weighted points to Fourier coefficients: `sketch(queries)` is then Σ_n exp(-τ/2 ‖q_m - k_n‖²) v_n.

    For D ≤ 3; with `Sliced` for any D, with its errors. The coefficients take O(N) operations once; a sum at M queries
    then takes O(M), whatever N is. Sketches with the same τ and box add up, so keys may come in parts and from several
    machines (docs/few_dimensions.md, docs/any_dimension.md).

    Args:
        keys: points k, (N, D).
        values: v, (N, C); or one weight per key, (N,).
        tau: τ = 1/σ², a positive number.
        lower, upper: corners of the box that holds all keys and queries: numbers, or (D,). None: the corners of these
            keys.
        tolerance: the largest error of a sum relative to Σ|v|, rounding aside. None: below rounding.

        engine: "fourier", or `jaxgauss.Sliced(rng_key=…)`, which needs no box and no tolerance (docs/any_dimension.md).

    Returns:
        A `FourierSketch`, or a `SlicedSketch`, in float32, or in float64 for float64 keys or values.

    Raises:
        ValueError: shapes do not fit, a key lies outside of the box (under `jit` all sums are NaN), the box is so many
            bandwidths wide that a channel has more than 2²⁴ coefficients, or tau or tolerance is not positive.
        TypeError: keys or values are not floating, tau is not a number, or the box must be found under `jit`.

    Derivatives:
        Sums have derivatives of any order, both modes, with respect to queries, keys and values, in O(M + N).

    Precision:
        Errors are relative to Σ|v|, not to Σ Φ|v| as in `gauss_sum`: at most the tolerance, plus about 1e-7 of rounding
        in float32. A small sum in a far tail therefore has no accurate digits. A second channel with values |v| shows
        where.

    Example:
        >>> import jax, jax.numpy as jnp, jaxgauss
        >>> keys, weights = jax.random.uniform(jax.random.key(0), (1000, 2)), jnp.ones(1000)
        >>> first = jaxgauss.fourier_sketch(keys[:400], weights[:400], 50.0, lower=0, upper=1)
        >>> sketch = first + jaxgauss.fourier_sketch(keys[400:], weights[400:], 50.0, lower=0, upper=1)
        >>> bool(jnp.allclose(sketch(keys), jaxgauss.gauss_sum(keys, keys, weights, 50.0), rtol=1e-4))
        True

    References:
        Barnett, Greengard & Rachh, "Uniform approximation of common Gaussian process kernels using equispaced Fourier
        grids", 2023, arXiv:2305.11065.
    """
    of = as_engine("fourier_sketch", engine)
    empty = empty_sketch("fourier_sketch", of, keys, values, tau, (lower, upper), tolerance)
    empty.check_inside("fourier_sketch", "keys", keys)
    return replace(empty, coefficients=empty.sketched(keys, values))


def empty_sketch(
    function: str,
    engine: Engine,
    keys: Any,
    values: Any,
    tau: Any,
    ends: tuple[Bound, Bound],
    tolerance: float | None = None,
) -> Sketch:
    """The sketch of no keys, for keys and values like these; everything is checked but whether keys are in the box."""
    where = f"`jaxgauss.{function}`"
    check_tolerance(function, tolerance)
    if isinstance(engine, Sliced):
        return empty_sliced_sketch(function, engine, keys, values, tau, (*ends, tolerance))
    if not isinstance(engine, Fourier | Auto):
        raise ValueError(
            f"{where}: `engine` must be one of sketches, 'fourier' or jaxgauss.Sliced(rng_key=…); got {engine!r}."
            " Leave it out for points of up to three dimensions."
        )
    dtype, dim = check_sketched(function, keys, values, tau, DIMENSIONS), keys.shape[-1]
    lower, upper = corners(where, ends, keys, dtype)
    length = (np.float64(upper) - lower) * math.sqrt(tau)
    tolerance = least_tolerance(dtype, length) if tolerance is None else tolerance
    num = coefficients_needed(length, tolerance)
    if not num**dim <= LARGEST:
        size, most = " × ".join(f"{x:.3g}" for x in length), LARGEST ** (1 / dim)
        raise ValueError(
            f"{where}: `tau`, `lower` and `upper` must make a box of at most {most:.0f} coefficients a coordinate; got"
            f" {num:.0f} for {size} bandwidths. Use `gauss_sum`, or a smaller tau or box."
        )
    channels = values.shape[1] if len(values.shape) > 1 else 1
    zeros = jax.device_put(np.zeros((channels, *[int(num)] * dim), dtype))
    box = tuple(map(float, lower)), tuple(map(float, upper))
    return FourierSketch(zeros, zeros, float(tau), box[0], box[1], tolerance, len(values.shape) == 1)
