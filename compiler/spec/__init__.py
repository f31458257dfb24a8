"""What a user asks for: the sparse plan and the training spec."""
