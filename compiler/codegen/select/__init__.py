"""Kernels that look for the largest or smallest elements along an axis."""
