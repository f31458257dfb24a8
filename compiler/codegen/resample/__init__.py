"""Rows mixed by tables of weights: resizing, and its gradient."""
