"""Types of arguments, names of options, and the settings that are made of them."""

from dataclasses import dataclass
from typing import Any, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh
from jaxtyping import Array, Bool, Float, Int

from .._kernels.kernels import GAUSS, Kernel

METHODS = ("auto", "reweight", "prescale", "rescale", "blocked", "dense", "differences", "fourier")
KERNEL_METHODS = ("auto", "mixture", "blocked", "dense", "differences")  # for kernels other than the Gaussian
PRECISIONS = ("auto", "float16", "bfloat16", "float16x2", "bfloat16x2", "float32", "float64")
BACKENDS = ("auto", "flash", "efficient", "cudnn", "cpu")
DTYPES = ("float16", "bfloat16", "float32", "float64")
TAU_RANGE = (1e-37, 1e38)  # of τ: normal in float32 and float64
Queries = Float[Array | np.ndarray, "*#batch m d"]
Keys = Float[Array | np.ndarray, "*#batch n d"]
Values = Float[Array | np.ndarray, "*#batch n c"] | Float[Array | np.ndarray, " n"]
Tau = Float[Array | np.ndarray, "*#batch"] | float | int
Labels = Int[Array | np.ndarray, " _"]
Segments = tuple[Labels, Labels] | None
Sums = Float[Array, "*result m c"] | Float[Array, "*result m"]
Points = Float[Array | np.ndarray, "n d"]
Weights = Float[Array | np.ndarray, " n"] | Bool[Array | np.ndarray, " n"]
Taus = Float[Array | np.ndarray, "*#bandwidths"] | float | int
MeshAxis = str | tuple[str, ...] | None


class Options(TypedDict, total=False):
    """Options of a kernel method for its Gauss sums, as for `gauss_sum`."""

    method: str
    precision: str
    backend: str


class MeshOnly(TypedDict, total=False):
    """Options for the devices, as for `gauss_sum_sharded`."""

    mesh: Mesh | AbstractMesh
    query_axis: MeshAxis
    key_axis: MeshAxis


class MeshOptions(Options, MeshOnly, total=False):
    """Options of a kernel method for its Gauss sums and their devices."""


class WeightOptions(MeshOptions, total=False):
    """Options of a kernel method whose points have weights: `normalize` divides these by their sum."""

    normalize: bool


@dataclass(frozen=True)
class Settings:
    """What the caller asked for, and what is known of the arguments; static under transformations."""

    method: str = "auto"
    precision: str = "auto"
    backend: str = "auto"
    dtype: str = "float32"  # promoted from the arguments
    function: str = "gauss_sum"  # the public function, for messages
    matmul_precision: str = ""  # of `jax.default_matmul_precision`: default, high or highest
    forward_mode: bool = False  # whether the sum must have tangents
    mesh: Mesh | AbstractMesh | None = None  # of devices
    query_axis: MeshAxis = None
    key_axis: MeshAxis = None
    kernel: Kernel = GAUSS
    near: bool | None = None  # whether points lie near one another; None if unknown
    waves: bool | None = None  # whether a Fourier series is estimated to be faster; None if unknown
    tolerance: float | None = None  # of method "fourier"
    blocks: int | None = None  # of method "fourier" on CUDA: blocks of waves in a coordinate; None if unknown
    pulls: bool = False  # whether gradients of points or τ are computed, too
    normalize: bool = False  # whether weights are divided by their sum

    @property
    def by_products(self) -> bool | None:
        """Whether sums take products about one center; None if that depends on the points."""
        if self.near is False or self.waves:
            return False
        return True if self.near and self.waves is False else None

    @property
    def options(self) -> Options:
        """The options for another function."""
        return {"method": self.method, "precision": self.precision, "backend": self.backend}

    @property
    def automatic(self) -> bool:
        """Whether method, precision and backend are all "auto"."""
        return self.method == self.precision == self.backend == "auto"


def methods_of(kernel: Kernel) -> tuple[str, ...]:
    """The methods that a caller may name for the kernel."""
    return METHODS if kernel == GAUSS else KERNEL_METHODS


def working_dtype(dtype: Any) -> np.dtype:
    """The dtype in which sums are computed: float64 for float64, else float32."""
    return np.dtype("float64" if jnp.dtype(dtype) == np.float64 else "float32")


def matmul_precision() -> str:
    """What `jax.default_matmul_precision` asks for: "default" (one product), "high" (three) or "highest" (float32)."""
    asked = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
    if asked in ("highest", "float32", "F32_F32_F32", "F64_F64_F64", "BF16_BF16_F32_X6", "BF16_BF16_F32_X9"):
        return "highest"
    return "high" if asked in ("high", "tensorfloat32", "bfloat16_3x") or "_X3" in str(asked) else "default"


def axis_names(axis: MeshAxis) -> tuple[str, ...]:
    """The mesh axes that divide one axis of an array."""
    if axis is None:
        return ()
    return (axis,) if isinstance(axis, str) else tuple(axis)
