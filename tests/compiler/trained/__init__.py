"""What comes back from training."""
