"""Engines, one folder each; the choice among them, the programs in which they run, and the derivatives of sums."""
