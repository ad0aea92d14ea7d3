"""Array functions for all engines: points about a center, exponents of pairs, blocks, devices."""
