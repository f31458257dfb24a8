"""What every framework's process does: train on one batch and print each step as a JSON line, like our binary.

These files run inside each framework's own environment: NumPy is all they may share.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOMENTUM = 0.9
MANY_STEPS = 1_000_000
"""The harness ends a process when it has seen enough."""


@dataclass(frozen=True)
class Task:
    """Arguments of a side's process: folder of the workload, plan, threads, and what is particular to the framework."""

    folder: Path
    plan: str
    threads: int
    options: Mapping[str, Any]

    @classmethod
    def from_arguments(cls) -> Task:
        """Read `FOLDER PLAN THREADS OPTIONS_JSON` from the command line."""
        folder, plan, threads, options = sys.argv[1:5]
        return cls(Path(folder), plan, int(threads), json.loads(options))

    @property
    def learning_rate(self) -> float:
        """Step size of SGD."""
        return float(self.options["learning_rate"])

    def learned(self, kind: str) -> list[str]:
        """Names of what learns: `kind` is module (PyTorch) or file (ONNX initializers)."""
        names: list[str] = json.loads((self.folder / f"learned-{self.plan}.json").read_text())[kind]
        return names

    def labels(self) -> NDArray[np.int64]:
        """Class indices of the batch."""
        labels: NDArray[np.int64] = np.load(self.folder / "labels.npy")
        return labels

    def feed(self, name: str) -> NDArray[Any]:
        """One input of the batch."""
        array: NDArray[Any] = np.load(self.folder / f"{name}.npy")
        return array


def train(step: Callable[[], float]) -> None:
    """Call `step`, which returns the loss, for ever."""
    for number in range(1, MANY_STEPS + 1):
        started = time.perf_counter()
        loss = step()
        us = (time.perf_counter() - started) * 1e6
        print(json.dumps({"event": "step", "step": number, "loss": float(loss), "us": us}), flush=True)
