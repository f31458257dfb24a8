"""Sums and maxima over any axes."""
