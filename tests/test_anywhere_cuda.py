"""Wherever few points lie, sums on CUDA have their digits as well: the tests of `test_anywhere`, there."""

import pytest
from test_anywhere import (  # noqa: F401
    test_batches,
    test_densities_scores_modes_and_herds,
    test_independence_criterion,
    test_logarithms_and_means,
    test_mmd_witness_and_flow,
    test_outliers_whose_squares_overflow,
    test_stein_discrepancy_and_direction,
    test_sums_and_all_gradients,
)

pytestmark = pytest.mark.usefixtures("cuda")
