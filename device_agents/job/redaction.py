"""The part of a report on a run of the board's own data that leaves the board: no words of the binary, for they may
hold what it has read.

Its log and the texts of its errors stay, and so does whatever else it can spell: codes of errors that no binary of ours
has, why training diverged, and names of kernels. Numbers leave (`docs/fleet.md`).
"""

from __future__ import annotations

from dataclasses import replace

from device_agents.errors import AttemptError
from device_agents.wire import Report

_KINDS = {
    "checkpoint": (
        "format",
        "key",
    ),
    "data": (
        "count",
        "dtype",
        "empty",
        "file",
        "format",
        "label",
        "not_finite",
        "range",
        "shape",
        "truncated",
    ),
    "limits": (
        "device",
        "disk",
        "driver",
        "memory",
        "threads",
        "tiles",
    ),
    "train": ("diverged",),
    "user": (
        "infer",
        "input",
        "labels",
        "output",
        "threads",
        "usage",
        "weights",
    ),
    "weights": (
        "channels",
        "diverged",
        "dtype",
        "file",
        "format",
        "missing",
        "not_finite",
        "shape",
        "unmatched",
    ),
}
CODES = frozenset(f"{family}.{kind}" for family, kinds in _KINDS.items() for kind in kinds)
"""Codes of the errors that the runtime reports (`compiler/runtime/`)."""
PHASES = ("forward", "backward", "update")


def redact_error(error: AttemptError) -> None:
    """Removes all words from an error and leaves its kind."""
    if error.is_said and error.code not in (*CODES, "step.output"):
        error.code = "step.error"
    error.message = f"the run ended with {error.code}; what was said of it stays on the board, as its data do"
    error.hint = "the agent's log on the board has it"


def redact(report: Report) -> Report:
    """The report without names that the binary gave."""
    kernels = tuple(
        replace(row, name=f"kernel {row.index}", phase=row.phase if row.phase in PHASES else "")
        for row in report.kernels
    )
    training = report.training
    if training is not None and training.reason:
        training = replace(training, reason="what was said of it stays on the board, as its data do")
    return replace(report, kernels=kernels, training=training)
