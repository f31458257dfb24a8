"""What is asked of a farm, one call after the other."""
