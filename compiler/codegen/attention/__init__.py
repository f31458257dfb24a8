"""Attention, forward and backward, without its scores in memory."""
