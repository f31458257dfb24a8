"""Computing a chain of calls strip by strip of its hidden channels, so that they are never in memory all at once."""
