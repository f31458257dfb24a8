"""Depth-wise convolutions on a grid."""
