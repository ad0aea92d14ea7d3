"""The private modules of jaxgauss that benchmarks look into."""

from importlib import import_module

calibrate = import_module("jaxgauss._inspect.calibrate")
costs = import_module("jaxgauss._engines.costs")
exponential = import_module("jaxgauss._arrays.exponential")
mmd_test = import_module("jaxgauss._methods.mmd_test")
nufft = import_module("jaxgauss._engines.fourier.nufft")
