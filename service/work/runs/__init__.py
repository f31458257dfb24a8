"""Runs: work for devices, and what came back."""
