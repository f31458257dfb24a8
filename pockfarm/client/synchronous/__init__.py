# Made from pockfarm/client/asynchronous/__init__.py by scripts/synchronous.py: change that one, then `make golden`.
"""What is asked of a farm, from an event loop."""
