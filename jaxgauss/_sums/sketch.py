"""Sketch: what weighted points leave behind, which adds up; sums at queries then take O(M)."""

import os
import zipfile
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._arrays.compensated import two_sum
from .._checks.arguments import as_arrays, floating_dtype
from .._checks.operands import check_operands, check_tau
from .._checks.settings import Sums, working_dtype

_Sketch = TypeVar("_Sketch", bound="Sketch")
STATIC = {"static": True}  # fields that programs are compiled for


class Sketch:
    """What sketches have in common: they add up, and are saved. Subclasses are dataclasses."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    coefficients: Array
    rounding: Array
    tau: float
    dim: Any  # an integer
    alike: ClassVar[str]  # the arguments that sketches to be added have in common
    margin: Any = None  # a number, from which on keys outside of a box count for nothing at those within

    def __call__(self, queries: Float[Array | np.ndarray, "*batch m d"]) -> Sums:
        """The sums at queries."""
        where = type(self).__name__
        _check_mode(type(self), self.coefficients.dtype)
        queries = as_arrays(where, {"queries": queries})["queries"]
        keys, values = (jax.ShapeDtypeStruct((0, x), getattr(queries, "dtype", "float32")) for x in (self.dim, 1))
        check_operands(where, queries, keys, values, self.tau)
        with np.errstate(all="ignore"), jax.transfer_guard_host_to_device("allow"):
            self.check_inside(where, "queries", queries)
            return self.sums_of(queries)

    @property
    def kind(self) -> dict[str, Any]:
        """The options that `fourier_sketch` makes such sketches with."""
        raise NotImplementedError

    def sketched(self, keys: Any, values: Any, margin: Any = None) -> Array:
        """Coefficients of keys and values, in the layout of the sketch.

        A key outside of its box, if it has one, has the value NaN; with a margin, one outside of that the value zero.
        """
        raise NotImplementedError

    def sums_of(self, queries: Any) -> Array:
        """The sums at queries (…, M, D); NaN outside of the box."""
        raise NotImplementedError

    def check_inside(self, function: str, name: str, points: Any) -> None:
        """Raise ValueError unless all points are in the box, if there is one; under `jit` they are not checked."""

    def __add__(self: _Sketch, other: _Sketch) -> _Sketch:
        """Return the sketch of both sets of points; ValueError if they are not of one kind."""
        if type(other) is not type(self):
            return NotImplemented
        kinds = [
            {x.name: getattr(sketch, x.name) for x in fields(sketch) if x.metadata}
            | {"dtype": sketch.coefficients.dtype.name, "channels": sketch.coefficients.shape[0]}
            for sketch in (self, other)
        ]
        differing = ", ".join(f"{x} {kinds[0][x]} and {kinds[1][x]}" for x in kinds[0] if kinds[0][x] != kinds[1][x])
        if differing:
            raise ValueError(
                f"`jaxgauss.{type(self).__name__}`: `other` must be a sketch of the same kind to be added; got"
                f" {differing}. Give `fourier_sketch` the same {self.alike}."
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
    def load(cls: type[_Sketch], path: str | os.PathLike[str]) -> _Sketch:
        """Read a file that `save` wrote; ValueError if it holds something else."""
        try:
            with Path(path).open("rb") as file, np.load(file) as arrays:
                found: dict[str, Any] = {x.name: arrays[x.name] for x in fields(cls)}
        except (KeyError, ValueError, EOFError, zipfile.BadZipFile):
            raise ValueError(
                f"`jaxgauss.{cls.__name__}`: `path` must be a file that `save` has written; got {str(path)!r}."
                " Write it again."
            ) from None
        _check_mode(cls, found["coefficients"].dtype)
        for x in fields(cls):
            number = found[x.name].tolist() if x.metadata else jnp.asarray(found[x.name])
            found[x.name] = tuple(number) if isinstance(number, list) else number
        return cls(**found)


def _check_mode(of: type, dtype: np.dtype) -> None:
    """Raise ValueError if JAX would round a sketch of this dtype."""
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise ValueError(
            f"`jaxgauss.{of.__name__}`: a sketch in {dtype} needs JAX's 64-bit mode; got it switched off. Use"
            " jax.config.update('jax_enable_x64', True)."
        )


def check_sketched(function: str, keys: Any, values: Any, tau: Any, few: tuple[int, ...] = ()) -> np.dtype:
    """The working dtype; ValueError or TypeError unless keys, values and τ are those of a sketch.

    `few`: the dimensions that the points may have; none stands for any.
    """
    where = f"`jaxgauss.{function}`"
    floating_dtype(where, "keys", keys)  # which are queries, too, in the check of all
    floating_dtype(where, "values", values)
    if keys.shape[:1] != values.shape[:1]:
        raise ValueError(
            f"{where}: `values` must hold one row for each key; got keys {tuple(keys.shape)}, values"
            f" {tuple(values.shape)}. Row i belongs to key i."
        )
    dtype = working_dtype(check_operands(function, keys, keys, values, tau))
    if len(keys.shape) != 2 or len(values.shape) > 2 or (few and keys.shape[-1] not in few):
        raise ValueError(
            f"{where}: `keys` must be points (N, D){' of 1, 2 or 3 dimensions' * bool(few)}, `values` (N, C) or (N,);"
            f" got keys {tuple(keys.shape)}, values {tuple(values.shape)}. More dimensions take"
            " engine=jaxgauss.Sliced(rng_key=…), or `gauss_sum_streamed`."
        )
    if isinstance(tau, jax.core.Tracer):
        raise TypeError(
            f"{where}: `tau` must be known before a transformation such as jit; got a tracer. Close over it."
        )
    if shape := check_tau(where, tau, dtype):
        raise ValueError(f"{where}: `tau` must be one number; got tau {shape}. Make a sketch for each.")
    return dtype
