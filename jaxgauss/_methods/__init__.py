"""Kernel methods: MMD, tests, Stein discrepancies, densities, bandwidths. They call sums, never engines."""
