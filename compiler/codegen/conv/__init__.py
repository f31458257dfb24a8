"""Dense convolutions."""
