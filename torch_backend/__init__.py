"""Gauss sums of PyTorch tensors by one call of a stock flash-attention kernel.

    s_m = Σ_n exp(-τ/2 ‖q_m - k_n‖²) v_n

Tensors in, tensors out; only PyTorch is needed. `jaxgauss` calls the same functions from JAX.
"""

from .attention import ENGINE as ENGINE
from .gauss_sum import gauss_sum as gauss_sum
from .gauss_sum import gauss_sum_pullback as gauss_sum_pullback
from .gauss_sum import log_gauss_sum as log_gauss_sum
from .guard import REACH as REACH
from .kernels import KERNELS as KERNELS
from .kernels import AttentionKernel as AttentionKernel
from .kernels import Engine as Engine
from .kernels import select_kernel as select_kernel
from .prescale import prescale as prescale
from .reductions import METHODS as METHODS
from .reductions import fused_means as fused_means
from .reductions import fused_pullback as fused_pullback
from .reductions import fused_sum as fused_sum
from .rescale import rescale as rescale
from .reweight import reweight as reweight

Kernel = AttentionKernel  # its older name
