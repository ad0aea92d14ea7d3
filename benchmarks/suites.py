"""All suites: those of grids and applications, and the files that have one each, its STUDY."""

import importlib

from . import applications, calls, grids
from .rivals import OURS
from .study import BOTH, Study

OWN = ("compiling", "foretold", "few_dimensions", "kernels", "clouds", "precision", "scaling", "resampling", "million")
OWN += ("sliced", "sliced_tests")
SUITES = {
    "quick": Study(grids.quick, grids.report, grids.draw, tuple(OURS), grids.all_rates, BOTH),
    "paper": Study(grids.paper, grids.report, grids.draw, tuple(OURS), grids.all_rates, BOTH),
    "jax": Study(grids.jax, grids.grid, grids.draw_ratios, tuple(OURS), grids.all_rates, BOTH),
    "mmd": Study(applications.steps, applications.report, applications.draw, applications.OURS, devices=BOTH),
    "first_calls": calls.FIRST,
    "calls": calls.LATER,
}
SUITES |= {name: importlib.import_module(f"{__package__}.{name}").STUDY for name in OWN}
