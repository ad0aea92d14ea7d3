"""Measurements: `python -m benchmarks`. They write JSON to outputs/benchmarks, with `--keep` to benchmarks/results."""
