"""Runs on devices: requests, lanes in which they queue, attempts, groups."""
