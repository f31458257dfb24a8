"""Agents that the farm publishes, offers to its devices in stages, and halts when they fail."""
