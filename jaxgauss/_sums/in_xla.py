"""gauss_sum_dense and gauss_sum_blocked: the sum by XLA alone, under all transformations."""

from jaxtyping import Array

from .._checks.arguments import public
from .._checks.settings import Keys, Queries, Settings, Sums, Tau, Values
from .._engines.engines import Blocked, Dense
from .._engines.near import examined
from .gauss_sum import checked_gauss_sum
from .preparation import checked


@public()
def gauss_sum_dense(queries: Queries, keys: Keys, values: Values, tau: Tau = 1.0) -> Sums:
    """Sum Gaussian kernels in XLA, with up to all of the M×N kernel matrix in memory: Σ_n exp(-τ/2 ‖q_m - k_n‖²) v_n.

    It is `gauss_sum` with `engine="dense"` and `forward_mode=True`: arguments, result, errors and precision are its,
    wherever the points lie. Every JAX transformation works, `jax.export` included. O(MN) memory.
    """
    return _sum_in_xla(Settings(Dense(), function="gauss_sum_dense", forward_mode=True), queries, keys, values, tau)


@public()
def gauss_sum_blocked(queries: Queries, keys: Keys, values: Values, tau: Tau = 1.0) -> Sums:
    """Sum Gaussian kernels in XLA, one tile of the kernel matrix at a time: Σ_n exp(-τ/2 ‖q_m - k_n‖²) v_n.

    It is `gauss_sum` with `engine="blocked"` and `forward_mode=True`: arguments, result, errors and precision are its,
    wherever the points lie. Every JAX transformation works, `jax.export` included. Linear memory, with gradients too.
    """
    return _sum_in_xla(Settings(Blocked(), function="gauss_sum_blocked", forward_mode=True), queries, keys, values, tau)


def _sum_in_xla(asked: Settings, queries: Queries, keys: Keys, values: Values, tau: Tau) -> Array:
    settings, plan = checked(asked, queries, keys, values, tau)
    return checked_gauss_sum(examined(settings, tau, queries, keys, values), plan, queries, keys, values, tau)
