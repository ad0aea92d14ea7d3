"""Fourier series in up to three dimensions: the fast Gauss transform, by nonuniform FFTs or by products."""
