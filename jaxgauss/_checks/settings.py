"""What callers may say: the types of arguments, the names of options, and the settings that are made of them."""

from dataclasses import dataclass
from typing import Any, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh
from jaxtyping import Array, Float

from .._kernels.kernels import GAUSS, Kernel

METHODS = ("auto", "reweight", "prescale", "rescale", "blocked", "dense", "differences", "fourier")
KERNEL_METHODS = ("auto", "mixture", "blocked", "dense", "differences")  # of other kernels than the Gaussian
PRECISIONS = ("auto", "float16", "bfloat16", "float16x2", "bfloat16x2", "float32", "float64")
BACKENDS = ("auto", "flash", "efficient", "cudnn", "cpu")
DTYPES = ("float16", "bfloat16", "float32", "float64")
Queries = Float[Array | np.ndarray, "*#batch m d"]
Keys = Float[Array | np.ndarray, "*#batch n d"]
Values = Float[Array | np.ndarray, "*#batch n c"] | Float[Array | np.ndarray, " n"]
Tau = Float[Array | np.ndarray, "*#batch"] | float | int
Sums = Float[Array, "*result m c"] | Float[Array, "*result m"]
Points = Float[Array | np.ndarray, "n d"]
Weights = Float[Array | np.ndarray, " n"]
Taus = Float[Array | np.ndarray, "*#bandwidths"] | float | int
MeshAxis = str | tuple[str, ...] | None


class Options(TypedDict, total=False):
    """How the Gauss sums of a kernel method are computed: as for `gauss_sum`."""

    method: str
    precision: str
    backend: str


class MeshOnly(TypedDict, total=False):
    """On which devices: as for `gauss_sum_sharded`."""

    mesh: Mesh | AbstractMesh
    query_axis: MeshAxis
    key_axis: MeshAxis


class MeshOptions(Options, MeshOnly, total=False):
    """How the Gauss sums of a kernel method are computed, and on which devices."""


@dataclass(frozen=True)
class Settings:
    """What the caller asked for, and what is known of the arguments. Static under transformations."""

    method: str = "auto"
    precision: str = "auto"
    backend: str = "auto"
    dtype: str = "float32"  # that was promoted from the arguments
    function: str = "gauss_sum"  # that was called
    matmul_precision: str = ""  # of jax.default_matmul_precision: default, high or highest
    forward_mode: bool = False  # whether the sum must have tangents
    mesh: Mesh | AbstractMesh | None = None  # whose axes queries and keys are shared out over
    query_axis: MeshAxis = None
    key_axis: MeshAxis = None
    kernel: Kernel = GAUSS
    near: bool | None = None  # whether points lie near one another, where that was seen
    waves: bool | None = None  # whether a sum of waves is estimated to be cheaper, where extents were seen
    tolerance: float | None = None  # of method "fourier"

    @property
    def by_products(self) -> bool | None:
        """Whether sums take products about one center; None where that depends on the points."""
        if self.near is False or self.waves:
            return False
        return True if self.near and self.waves is False else None

    @property
    def options(self) -> Options:
        """What was asked for by name."""
        return {"method": self.method, "precision": self.precision, "backend": self.backend}

    @property
    def automatic(self) -> bool:
        """Whether everything is left to us."""
        return self.method == self.precision == self.backend == "auto"


def methods_of(kernel: Kernel) -> tuple[str, ...]:
    """Those that may be asked for."""
    return METHODS if kernel == GAUSS else KERNEL_METHODS


def are_known(*sizes: Any) -> bool:
    """Whether sizes are numbers, and not symbols of `jax.export`."""
    return all(isinstance(size, int | np.integer) for size in sizes)


def working_dtype(dtype: Any) -> np.dtype:
    """The dtype for everything that is not a kernel's operand: float32, or float64 for float64."""
    return np.dtype("float64" if jnp.dtype(dtype) == np.float64 else "float32")


def matmul_precision() -> str:
    """What `jax.default_matmul_precision` asks for: "default" (one product), "high" (three) or "highest" (float32)."""
    asked = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
    if asked in ("highest", "float32", "F32_F32_F32", "F64_F64_F64", "BF16_BF16_F32_X6", "BF16_BF16_F32_X9"):
        return "highest"
    return "high" if asked in ("high", "tensorfloat32", "bfloat16_3x") or "_X3" in str(asked) else "default"


def axis_names(axis: MeshAxis) -> tuple[str, ...]:
    """The axes of a mesh that one axis of an array is shared out over."""
    if axis is None:
        return ()
    return (axis,) if isinstance(axis, str) else tuple(axis)
