"""What raw times come to, and what may be said of them: pure functions for board, farm and client. Standard library
only. The rules are told in `docs/measurement.md`.
"""
