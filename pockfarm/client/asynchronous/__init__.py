"""What is asked of a farm, from an event loop."""
