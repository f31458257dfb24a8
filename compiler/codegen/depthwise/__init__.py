"""Depth-wise convolutions."""
