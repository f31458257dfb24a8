"""Building and running on this machine, without a farm."""
