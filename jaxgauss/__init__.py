"""Gauss sums for JAX in linear memory, by stock flash-attention kernels, with every gradient.

s_m = Σ_n exp(-τ/2 ‖q_m - k_n‖²) v_n
"""

from ._bandwidth import median_heuristic as median_heuristic
from ._bandwidth import tau_from_bandwidth as tau_from_bandwidth
from ._dense import gauss_sum_blocked as gauss_sum_blocked
from ._dense import gauss_sum_dense as gauss_sum_dense
from ._estimate_error import ErrorEstimate as ErrorEstimate
from ._estimate_error import estimate_error as estimate_error
from ._gauss_sum import gauss_sum as gauss_sum
from ._kde import BandwidthSearch as BandwidthSearch
from ._kde import kde_logpdf as kde_logpdf
from ._kde import kde_score as kde_score
from ._kde import leave_one_out_tau as leave_one_out_tau
from ._log_gauss_sum import log_gauss_sum as log_gauss_sum
from ._mmd import embedding_norm_squared as embedding_norm_squared
from ._mmd import mmd_flow_velocity as mmd_flow_velocity
from ._mmd import mmd_squared as mmd_squared
from ._mmd import mmd_witness as mmd_witness
from ._mmd_test import MMDTest as MMDTest
from ._mmd_test import mmd_test as mmd_test
from ._plan import Plan as Plan
from ._plan import explain as explain
from ._sharded import gauss_sum_sharded as gauss_sum_sharded
from ._stein import ksd_squared as ksd_squared
from ._streamed import KeyChunks as KeyChunks
from ._streamed import gauss_sum_streamed as gauss_sum_streamed
from ._svgd import SVGD as SVGD
from ._svgd import SVGDState as SVGDState
from ._svgd import svgd as svgd
from ._svgd import svgd_direction as svgd_direction
