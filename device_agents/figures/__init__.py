"""Statistics of raw times, and the statements that they allow: pure functions for board, farm and client. Standard
library only. The rules are told in `docs/measurement.md`.
"""
