"""Kernels that reduce: rows, norms, sums."""
