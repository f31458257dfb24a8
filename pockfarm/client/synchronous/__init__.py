# Made from pockfarm/client/asynchronous/__init__.py by scripts/synchronous.py: change that one, then `make golden`.
"""Requests to a farm from an event loop."""
