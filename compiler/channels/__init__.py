"""The axes of a graph that must be in the same order, and the order that puts channels that learn side by side."""
