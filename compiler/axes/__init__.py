"""Rules for how operators carry the axes of their operands into their results: one table for everything that follows an
axis.
"""
