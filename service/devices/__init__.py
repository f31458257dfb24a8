"""Boards (and this computer, and emulators) with their agents."""
