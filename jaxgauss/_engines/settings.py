"""What the caller asked for, and what is known of the arguments."""

from dataclasses import dataclass
from typing import Any, TypedDict

import jax
from jax.sharding import AbstractMesh, Mesh

from .._arrays.shapes import working_dtype as working_dtype
from .._kernels.kernels import GAUSS, Kernel
from .engine import AUTO, Auto, Engine, Problem, grade_of

MeshAxis = str | tuple[str, ...] | None


class Options(TypedDict, total=False):
    """Options of a kernel method for its Gauss sums, as for `gauss_sum`."""

    engine: str | Engine
    precision: str | jax.lax.Precision | None


@dataclass(frozen=True)
class Settings:
    """What the caller asked for, and what is known of the arguments; static under transformations."""

    engine: Engine = AUTO
    dtype: str = "float32"  # promoted from the arguments
    function: str = "gauss_sum"  # the public function, for messages
    matmul_precision: str = ""  # of `jax.default_matmul_precision`: default, high or highest
    forward_mode: bool = False  # whether the rules are those of forward mode
    mesh: Mesh | AbstractMesh | None = None  # of devices
    query_axis: MeshAxis = None
    key_axis: MeshAxis = None
    kernel: Kernel = GAUSS
    near: bool | None = None  # whether points lie near one another; None if unknown
    waves: bool | None = None  # whether a Fourier series is estimated to be faster; None if unknown
    blocks: int | None = None  # of a Fourier series on CUDA: blocks of waves in a coordinate; None if unknown
    pulls: bool = False  # whether gradients of points or τ are computed, too
    logs: bool = False  # whether logarithms or means are computed
    normalize: bool = False  # whether weights are divided by their sum
    exclude_self: bool = False  # whether queries are the keys, and pairs of equal index are left out

    @property
    def by_products(self) -> bool | None:
        """Whether sums take products about one center; None if that depends on the points."""
        if self.near is False or self.waves:
            return False
        return True if self.near and self.waves is False else None

    @property
    def options(self) -> Options:
        """The options for another function."""
        return {"engine": self.engine}

    @property
    def automatic(self) -> bool:
        """Whether the engine is chosen by its estimated time."""
        return isinstance(self.engine, Auto)

    @property
    def plain(self) -> bool:
        """Whether JAX differentiates and maps sums as they are."""
        return self.engine.plain

    @property
    def tolerance(self) -> float | None:
        """Of a Fourier series, relative to Σ|v|; None for the precision that sums promise."""
        return getattr(self.engine, "tolerance", None)

    @property
    def precision(self) -> str:
        """float64 if it is asked for, else the dtype in which XLA sums."""
        return "float64" if self.engine.precision == "float64" else working_dtype(self.dtype).name

    def problem(self, platform: str, pairs: Any, dim: Any, channels: Any) -> Problem:
        """The problem that an engine is chosen for."""
        asked = self.logs, self.pulls, self.matmul_precision or "default"
        return Problem(platform, self.dtype, self.kernel, pairs, dim, channels, *asked)


def matmul_precision() -> str:
    """The grade that `jax.default_matmul_precision` asks for."""
    return grade_of(jax.config.jax_default_matmul_precision)  # type: ignore[attr-defined]


def axis_names(axis: MeshAxis) -> tuple[str, ...]:
    """The mesh axes that divide one axis of an array."""
    if axis is None:
        return ()
    return (axis,) if isinstance(axis, str) else tuple(axis)
