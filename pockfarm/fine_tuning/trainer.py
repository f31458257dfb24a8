"""Who compiles and trains: this machine (`pockfarm.fine_tuning.here`) or a farm (`pockfarm.fine_tuning.on_farm`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from device_agents.wire import RunSettings
from pockfarm.values import CompileWarning

Say = Callable[[str], None]
"""Hears of progress, a line at a time."""


@dataclass(frozen=True, slots=True)
class Step:
    """A bundle that was built, and where it is."""

    bundle: bytes
    digest: str
    warnings: tuple[CompileWarning, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """What a run of mode train left: trained parameters (safetensors) and its report."""

    checkpoint: bytes
    report: Mapping[str, Any]


class Trainer(Protocol):
    """Builds a step and runs it. Raises: `PockfarmError`."""

    def build(self, model: bytes, plan: str, spec: str, say: Say) -> Step:
        """Compile; `plan` and `spec` are JSON."""

    def train(self, step: Step, data: Path, settings: RunSettings, say: Say) -> Run:
        """Train on an npz."""
