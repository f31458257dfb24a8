"""Kernel calls in execution order: lowering, scheduling, cost and memory."""
