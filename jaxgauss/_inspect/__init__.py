"""Telling what sums do: explain, estimate_error, and calibrate."""
