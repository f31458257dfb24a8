"""Element-wise kernels."""
