"""Types of arguments and of options."""

from typing import TypedDict

import numpy as np
from jax.sharding import AbstractMesh, Mesh
from jaxtyping import Array, Bool, Float, Int

from .._engines.settings import MeshAxis as MeshAxis
from .._engines.settings import Options as Options
from .._engines.settings import Settings as Settings
from .._engines.settings import axis_names as axis_names
from .._engines.settings import matmul_precision as matmul_precision
from .._engines.settings import working_dtype as working_dtype

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
Samples = Float[Array | np.ndarray, "*#batch n d"]  # points in batches
Weights = Float[Array | np.ndarray, "*#batch n"] | Bool[Array | np.ndarray, "*#batch n"]
Taus = Float[Array | np.ndarray, "*#bandwidths"] | float | int


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
