"""The model zoo: what users bring, with random weights in small configurations."""
