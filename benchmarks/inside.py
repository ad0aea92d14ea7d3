"""The private modules of jaxgauss that benchmarks look into, each imported when it is first used."""

import importlib
from typing import Any

PLACES = {
    "blocked": "_engines.blocked",
    "calibrate": "_sums.calibrate",
    "costs": "_engines.costs",
    "fused": "_engines.fused",
    "labelings": "_methods.labelings",
    "nufft": "_engines.nufft",
    "timing": "_engines.timing",
}


def __getattr__(name: str) -> Any:
    if name not in PLACES:
        raise AttributeError(name)
    return importlib.import_module(f"jaxgauss.{PLACES[name]}")
