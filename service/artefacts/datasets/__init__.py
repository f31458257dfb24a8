"""Data sets: npz files, checked once and named by digest."""
