"""Kernels without reuse: maps, pools, gathers."""
