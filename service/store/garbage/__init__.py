"""Stored files that nothing refers to any more are removed; what is referred to, never."""
