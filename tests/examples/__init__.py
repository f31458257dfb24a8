"""Tests of the example models and plans."""
