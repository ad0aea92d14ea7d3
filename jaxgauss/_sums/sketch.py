"""fourier_sketch: Fourier coefficients of weighted points in few dimensions; they add up, and queries take O(M)."""

import functools
import math
import os
import zipfile
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._arrays.compensated import two_sum
from .._calls import readable
from .._checks.arguments import as_arrays, center_of, floating_dtype, minus_center, public
from .._checks.box import Bound, corners
from .._checks.operands import check_operands, check_tau
from .._checks.settings import Sums, working_dtype
from .._engines.fourier.frame import (
    DIMENSIONS,
    Frame,
    check_tolerance,
    coefficients_needed,
    in_frame,
    least_tolerance,
    sums_in_frame,
)

LARGEST = 2**24  # the most coefficients of a channel
STATIC = {"static": True}  # fields that programs are compiled for


@readable
@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False, repr=False)
class FourierSketch:
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
        _check_mode(self.coefficients.dtype)
        queries = as_arrays("FourierSketch", {"queries": queries})["queries"]
        keys, values = (jax.ShapeDtypeStruct((0, x), getattr(queries, "dtype", "float32")) for x in (self.dim, 1))
        check_operands("FourierSketch", queries, keys, values, self.tau)
        self._check_inside("FourierSketch", "queries", queries)
        return sums_of(self, queries)

    def __add__(self, other: "FourierSketch") -> "FourierSketch":
        """Return the sketch of both sets of points; ValueError if τ, box, tolerance or shapes differ."""
        if not isinstance(other, FourierSketch):
            return NotImplemented
        kinds = [
            {x.name: getattr(sketch, x.name) for x in fields(sketch) if x.metadata}
            | {"dtype": sketch.coefficients.dtype.name, "channels": sketch.coefficients.shape[0]}
            for sketch in (self, other)
        ]
        differing = ", ".join(f"{x} {kinds[0][x]} and {kinds[1][x]}" for x in kinds[0] if kinds[0][x] != kinds[1][x])
        if differing:
            raise ValueError(
                f"`jaxgauss.FourierSketch`: `other` must be a sketch of the same kind to be added; got {differing}."
                " Give `fourier_sketch` the same tau, lower, upper and tolerance."
            )
        total, lacking = two_sum(self.coefficients, other.coefficients)
        return replace(self, coefficients=total, rounding=self.rounding + other.rounding + lacking)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {x.name: np.asarray(getattr(self, x.name)) for x in fields(self) if not x.metadata}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the sketch to a file (.npz): all of it, or nothing if the process ends before."""
        part = Path(f"{os.fspath(path)}.part")
        arrays: dict[str, Any] = {x.name: np.asarray(getattr(self, x.name)) for x in fields(self)}
        with part.open("wb") as file:
            np.savez(file, **arrays)
        part.replace(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "FourierSketch":
        """Read a file that `save` wrote; ValueError if it holds something else."""
        try:
            with Path(path).open("rb") as file, np.load(file) as arrays:
                found: dict[str, Any] = {x.name: arrays[x.name] for x in fields(cls)}
        except (KeyError, ValueError, EOFError, zipfile.BadZipFile):
            raise ValueError(
                f"`jaxgauss.FourierSketch`: `path` must be a file that `save` has written; got {str(path)!r}."
                " Write it again."
            ) from None
        _check_mode(found["coefficients"].dtype)
        for x in fields(cls):
            number = found[x.name].tolist() if x.metadata else jnp.asarray(found[x.name])
            found[x.name] = tuple(number) if isinstance(number, list) else number
        return cls(**found)

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

    def _check_inside(self, function: str, name: str, points: Any) -> None:
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


@functools.lru_cache(64)
def _origin(lower: tuple[float, ...], upper: tuple[float, ...]) -> np.ndarray | None:
    """A point of the box, if it lies far from zero."""
    return center_of(np.asarray([lower, upper]))


def _check_mode(dtype: np.dtype) -> None:
    """Raise ValueError if JAX would round a sketch of this dtype."""
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise ValueError(
            f"`jaxgauss.FourierSketch`: a sketch in {dtype} needs JAX's 64-bit mode; got it switched off. Use"
            " jax.config.update('jax_enable_x64', True)."
        )


@public("none")
def fourier_sketch(
    keys: Float[Array | np.ndarray, "n d"],
    values: Float[Array | np.ndarray, "n c"] | Float[Array | np.ndarray, " n"],
    tau: float = 1.0,
    *,
    lower: Bound = None,
    upper: Bound = None,
    tolerance: float | None = None,
) -> FourierSketch:
    """Reduce weighted points to Fourier coefficients: `sketch(queries)` is then Σ_n exp(-τ/2 ‖q_m - k_n‖²) v_n.

    For D ≤ 3. The coefficients take O(N) operations once; a sum at M queries then takes O(M), whatever N is. Sketches
    with the same τ and box add up, so keys may come in parts and from several machines (docs/few_dimensions.md).

    Args:
        keys: points k, (N, D).
        values: v, (N, C); or one weight per key, (N,).
        tau: τ = 1/σ², a positive number.
        lower, upper: corners of the box that holds all keys and queries: numbers, or (D,). None: the corners of these
            keys.
        tolerance: the largest error of a sum relative to Σ|v|, rounding aside. None: below rounding.

    Returns:
        A `FourierSketch`, in float32, or in float64 for float64 keys or values.

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
    empty = empty_sketch("fourier_sketch", keys, values, tau, (lower, upper), tolerance)
    empty._check_inside("fourier_sketch", "keys", keys)
    return replace(empty, coefficients=sketched(empty, keys, values))


def empty_sketch(
    function: str, keys: Any, values: Any, tau: Any, ends: tuple[Bound, Bound], tolerance: float | None
) -> FourierSketch:
    """The sketch of no keys, for keys and values like these; everything is checked but whether keys are in the box."""
    where = f"`jaxgauss.{function}`"
    floating_dtype(where, "keys", keys)  # which are queries, too, in the check of all
    floating_dtype(where, "values", values)
    if keys.shape[:1] != values.shape[:1]:
        raise ValueError(
            f"{where}: `values` must hold one row for each key; got keys {tuple(keys.shape)}, values"
            f" {tuple(values.shape)}. Row i belongs to key i."
        )
    dtype = working_dtype(check_operands(function, keys, keys, values, tau))
    check_tolerance(function, tolerance)
    dim = keys.shape[-1]
    if len(keys.shape) != 2 or len(values.shape) > 2 or dim not in DIMENSIONS:
        raise ValueError(
            f"{where}: `keys` must be points (N, D) of 1, 2 or 3 dimensions, `values` (N, C) or (N,); got keys"
            f" {tuple(keys.shape)}, values {tuple(values.shape)}. `gauss_sum_streamed` takes more dimensions."
        )
    if isinstance(tau, jax.core.Tracer):
        raise TypeError(
            f"{where}: `tau` must be known before a transformation such as jit; got a tracer. Close over it."
        )
    if shape := check_tau(where, tau, dtype):
        raise ValueError(f"{where}: `tau` must be one number; got tau {shape}. Make a sketch for each.")
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


def sketched(empty: FourierSketch, keys: Any, values: Any, margin: Any = None) -> Array:
    """Coefficients of keys and values, in the layout of a sketch.

    A key outside of its box has the value NaN; with a margin, a key outside of that has the value zero.
    """
    return in_frame(empty.frame, empty.coefficients, empty.about(keys), values, margin)


def sums_of(sketch: FourierSketch, queries: Any) -> Array:
    """The sums at queries (…, M, D); NaN outside of the box."""
    return sums_in_frame(sketch.one_weight, sketch.frame, sketch.coefficients, sketch.rounding, sketch.about(queries))
