"""Which axes of a graph must be in one order, and in which order channels that learn lie side by side."""
