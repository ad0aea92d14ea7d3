"""All suites: those of grids and applications, and the files that have one each, its STUDY."""

import importlib

from . import applications, grids, plots
from .rivals import OURS
from .study import BOTH, Study

SUMS = ("few_dimensions", "kernels", "clouds", "precision", "scaling")
METHODS = ("neighbours", "resampling", "groups", "million", "plane")
MACHINE = ("calls", "first_calls", "load", "many_machines")
SUITES = {
    "quick": Study(grids.quick, grids.report, grids.draw, tuple(OURS), grids.all_rates, BOTH),
    "paper": Study(grids.paper, grids.report, grids.draw, tuple(OURS), grids.all_rates, BOTH),
    "jax": Study(grids.jax, grids.grid, grids.draw_ratios, tuple(OURS), grids.all_rates, BOTH),
    "mmd": Study(applications.steps, applications.report, applications.draw, plots.METHODS, devices=BOTH),
}
for name in (*SUMS, *METHODS, *MACHINE):
    SUITES[name] = importlib.import_module(f"{__package__}.{name}").STUDY
