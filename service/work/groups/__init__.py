"""Groups: one request for many devices, a run for each."""
