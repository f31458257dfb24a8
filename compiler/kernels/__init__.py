"""Descriptions of what kernels compute, as our own data: specs, scalar expressions and affine accesses."""
