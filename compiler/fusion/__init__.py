"""Fusion of kernel specs: index algebra, expression rewriting, and the rules of what merges with what."""
