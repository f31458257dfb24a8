"""A user's documents: the sparse plan and the training spec."""
