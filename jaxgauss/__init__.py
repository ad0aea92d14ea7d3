"""Gauss sums for JAX in linear memory, by stock flash-attention kernels, with every gradient.

s_m = Σ_n exp(-τ/2 ‖q_m - k_n‖²) v_n
"""

from importlib import import_module as _import_module
from types import ModuleType as _ModuleType

from ._engines.attention.engine import Attention as Attention
from ._engines.clusters.engine import Clusters as Clusters
from ._engines.differences.engine import Differences as Differences
from ._engines.engine import Engine as Engine
from ._engines.fourier.engine import Fourier as Fourier
from ._engines.mixture import Mixture as Mixture
from ._engines.plan import Plan as Plan
from ._engines.products.engine import Blocked as Blocked
from ._engines.products.engine import Dense as Dense
from ._engines.sliced.engine import Sliced as Sliced
from ._inspect.calibrate import Calibration as Calibration
from ._inspect.calibrate import calibrate as calibrate
from ._inspect.estimate_error import ErrorEstimate as ErrorEstimate
from ._inspect.estimate_error import estimate_error as estimate_error
from ._inspect.explain import explain as explain
from ._inspect.explanation import Explanation as Explanation
from ._kernels.kernels import Kernel as Kernel
from ._kernels.kernels import rational_quadratic as rational_quadratic
from ._methods.bandwidth import median_tau as median_tau
from ._methods.bandwidth import tau_from_bandwidth as tau_from_bandwidth
from ._methods.drift import drift as drift
from ._methods.energy import energy_distance as energy_distance
from ._methods.herding import Herding as Herding
from ._methods.herding import kernel_herding as kernel_herding
from ._methods.hsic import hsic as hsic
from ._methods.hsic_test import hsic_test as hsic_test
from ._methods.kde import kde_logpdf as kde_logpdf
from ._methods.kde import kde_score as kde_score
from ._methods.ksd_test import ksd_test as ksd_test
from ._methods.leave_one_out import BandwidthSearch as BandwidthSearch
from ._methods.leave_one_out import leave_one_out_tau as leave_one_out_tau
from ._methods.mean_shift import MeanShift as MeanShift
from ._methods.mean_shift import mean_shift as mean_shift
from ._methods.mmd import embedding_norm_squared as embedding_norm_squared
from ._methods.mmd import mmd_squared as mmd_squared
from ._methods.mmd_estimate import MMDEstimate as MMDEstimate
from ._methods.mmd_estimate import mmd_estimate as mmd_estimate
from ._methods.mmd_matrix import mmd_squared_matrix as mmd_squared_matrix
from ._methods.mmd_test import mmd_test as mmd_test
from ._methods.normality import mmd_squared_to_normal as mmd_squared_to_normal
from ._methods.resampling import KernelTest as KernelTest
from ._methods.stein import ksd_squared as ksd_squared
from ._methods.svgd import SVGD as SVGD
from ._methods.svgd import SVGDState as SVGDState
from ._methods.svgd import svgd as svgd
from ._methods.svgd import svgd_direction as svgd_direction
from ._methods.uniformity import alignment as alignment
from ._methods.uniformity import uniformity as uniformity
from ._methods.witness import mmd_flow_velocity as mmd_flow_velocity
from ._methods.witness import mmd_witness as mmd_witness
from ._sums.chunks import KeyChunks as KeyChunks
from ._sums.fourier_sketch import FourierSketch as FourierSketch
from ._sums.fourier_sketch import fourier_sketch as fourier_sketch
from ._sums.gauss_sum import gauss_sum as gauss_sum
from ._sums.in_xla import gauss_sum_blocked as gauss_sum_blocked
from ._sums.in_xla import gauss_sum_dense as gauss_sum_dense
from ._sums.kernel_mean import kernel_mean as kernel_mean
from ._sums.kernel_sum import kernel_sum as kernel_sum
from ._sums.log_gauss_sum import log_gauss_sum as log_gauss_sum
from ._sums.log_gauss_sum import log_kernel_sum as log_kernel_sum
from ._sums.mesh import gauss_sum_sharded as gauss_sum_sharded
from ._sums.mesh import kernel_sum_sharded as kernel_sum_sharded
from ._sums.sliced_sketch import SlicedSketch as SlicedSketch
from ._sums.stream import gauss_sum_streamed as gauss_sum_streamed
from ._sums.stream import kernel_sum_streamed as kernel_sum_streamed

__version__ = "0.1.0"

_WITH_OTHERS = ("dask", "lineax", "optax", "ott", "sklearn")  # modules that need other libraries


def __getattr__(name: str) -> _ModuleType:
    """Import `jaxgauss.ott` and the other modules for optional libraries when they are first used."""
    if name in _WITH_OTHERS:
        return _import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
