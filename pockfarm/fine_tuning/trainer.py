"""Trainers, which compile and train: this machine (`pockfarm.fine_tuning.local`) or a farm
(`pockfarm.client.fine_tuning`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from device_agents.wire import RunSettings
from pockfarm.files.model_files import ModelFiles
from pockfarm.values import CompileWarning, Dataset

ANSWERS, BUNDLE, TRAINED = "answers.npy", "step.pfb", "trained.safetensors"
"""Files of a trainer."""
Say = Callable[[str], None]
"""Hears of progress, a line at a time."""


@dataclass(frozen=True)
class Step:
    """A bundle that was built: its file, and how it is called."""

    bundle: Path
    digest: str
    warnings: tuple[CompileWarning, ...]


@dataclass(frozen=True)
class Run:
    """The results of a run of mode train: a file of trained parameters (safetensors), and its report."""

    checkpoint: Path
    """Not there if training diverged and nothing was kept."""
    report: Mapping[str, Any]
    warnings: tuple[CompileWarning, ...] = ()
    """Warnings of a farm about the run's data."""


@dataclass(frozen=True)
class RunData:
    """The data that a run learns from, and that it is validated on if these are not a share of it: npz files, or names
    of data that a farm already has.
    """

    training: Path | Dataset
    validation: Path | Dataset | None = None


class Trainer(Protocol):
    """Builds a step and runs it; what it makes are files in `folder`. Raises: `PockfarmError`."""

    def build(self, model: ModelFiles, plan: str, spec: str, folder: Path, say: Say) -> Step:
        """Compile; `plan` and `spec` are JSON."""

    def answers(self, step: Step, data: Path, folder: Path, *, is_loss: bool) -> Any:
        """Returns the forward pass's output for a data set (an array, samples first); None where it cannot run
        beforehand.

        `is_loss`: the output is the loss itself, which is asked for a batch at a time.
        """

    def train(self, step: Step, data: RunData, settings: RunSettings, folder: Path, say: Say) -> Run:
        """Train on data sets."""
