"""Tiles of sorted points: clusters, each about a center of its own, wherever the points lie."""
