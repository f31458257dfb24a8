"""How operators carry the axes of their operands into their results: one table for all who follow an axis."""
