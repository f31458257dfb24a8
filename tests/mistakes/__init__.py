"""Mistakes that people make in requests, and what they are told. Those of other surfaces: tests/thorough/mistakes."""
