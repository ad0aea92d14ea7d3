"""Engines, one folder each, the choice among them, and the programs in which they run."""
