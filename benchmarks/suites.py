"""All suites."""

from . import (
    applications,
    calls,
    clouds,
    few_dimensions,
    grids,
    kernels,
    limits,
    load,
    neighbours,
    plots,
    precision,
    resampling,
    scaling,
)
from .rivals import OURS
from .study import BOTH, Study

SUITES = {
    "quick": Study(grids.quick, grids.report, grids.draw, tuple(OURS), grids.all_rates, BOTH),
    "paper": Study(grids.paper, grids.report, grids.draw, tuple(OURS), grids.all_rates, BOTH),
    "jax": Study(grids.jax, grids.grid, grids.draw_ratios, tuple(OURS), grids.all_rates, BOTH),
    "mmd": Study(applications.steps, applications.report, applications.draw, plots.METHODS, devices=BOTH),
    "few_dimensions": Study(
        few_dimensions.steps, few_dimensions.report, few_dimensions.draw, ("auto", "products", "all pairs")
    ),
    "kernels": Study(kernels.steps, kernels.report, ours=("gauss_sum", "kernel_sum")),
    "clouds": Study(clouds.steps, clouds.report, ours=("near", "outlier", "clusters", "wide", "copies")),
    "precision": Study(precision.steps, precision.report, precision.draw, devices=BOTH),
    "scaling": Study(scaling.steps, scaling.report, ours=scaling.OURS, devices=BOTH),
    "neighbours": Study(neighbours.steps, neighbours.report, ours=("jaxgauss",)),
    "resampling": Study(resampling.steps, resampling.report, ours=("debiased",)),
    "limits": Study(limits.steps, limits.report, ours=("whole",), info=grids.all_rates),
    "calls": Study(calls.steps, calls.report),
    "load": Study(load.steps, load.report),
}
