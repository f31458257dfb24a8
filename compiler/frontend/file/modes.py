"""The mark by which a file says that a norm is in evaluation mode, beside `training_mode`: metadata, which runtimes
ignore.
"""

from __future__ import annotations

MODE, EVALUATION = "pockfarm.mode", "evaluation"
"""Key and value of a node's metadata: the module's own mode, in a file that computes as in evaluation throughout."""
