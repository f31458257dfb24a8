"""A module out and back: what `pockfarm.fine_tune` gives is the module's own state, trained as PyTorch would have."""
