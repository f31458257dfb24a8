"""Attention for a grid, forward and backward: blocks of scores in registers, never in memory."""
