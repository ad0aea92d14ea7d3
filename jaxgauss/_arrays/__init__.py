"""What every engine does with arrays: points about a center, exponents of pairs, blocks, devices. Knows no engine."""
