"""Sums from differences of coordinates: no center, no cancellation, any points."""
