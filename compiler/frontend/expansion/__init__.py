"""Nodes that others stand in for: bodies of branches, loops and functions, the standard's definitions, sequences."""
