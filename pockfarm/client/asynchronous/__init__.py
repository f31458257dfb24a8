"""Requests to a farm from an event loop."""
