"""Measurements: `python -m benchmarks`. They write JSON to benchmarks/results."""
