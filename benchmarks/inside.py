"""The private modules of jaxgauss that benchmarks look into, each imported when it is first used."""

import importlib
from typing import Any

MODULES = {
    "calibrate": "_sums.calibrate",
    "costs": "_engines.costs",
    "exponential": "_arrays.exponential",
    "labelings": "_methods.labelings",
    "mmd_test": "_methods.mmd_test",
    "nufft": "_engines.nufft",
}


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(name)
    return importlib.import_module(f"jaxgauss.{MODULES[name]}")
