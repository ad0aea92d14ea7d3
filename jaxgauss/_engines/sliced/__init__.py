"""Sliced: any dimension in O(M + N), as sums over random directions."""
