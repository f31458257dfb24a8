"""Runs a bundle's binary: checkpoints in, events and checkpoints out."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from compiler.bundle.archive import Bundle
from tests.unpacked import unpacked


def native_target() -> str:
    """The widest x86-64 target that this machine runs."""
    flags = Path("/proc/cpuinfo").read_text()
    return "x86-64-v4" if "avx512vl" in flags else "x86-64-v3"


@dataclass(frozen=True)
class StepBinary:
    """An unpacked bundle, run natively or behind a runner such as `qemu-aarch64-static`."""

    folder: Path
    runner: tuple[str, ...] = ()

    @classmethod
    def unpack(cls, bundle: Bundle, folder: Path, runner: tuple[str, ...] = ()) -> StepBinary:
        """Write the bundle's files under `folder`; an arena of a megabyte is hardly larger than what lives in it."""
        memory = bundle.manifest["memory"]
        assert memory["arena_bytes"] <= 1.02 * memory["bound_bytes"] or memory["arena_bytes"] < 1_000_000
        return cls(unpacked(bundle.data, folder), runner)

    @property
    def weights(self) -> Path:
        """The bundle's initial checkpoint."""
        return self.folder / "weights.safetensors"

    def checkpoint(self) -> dict[str, np.ndarray]:
        """The tensors of the bundle's initial checkpoint."""
        return load_file(self.weights)

    def run(self, *arguments: object) -> list[dict[str, Any]]:
        """Events of one run; an error event or exit code fails the test with the binary's words."""
        command = [*self.runner, str(self.folder / "bin/step"), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        return [json.loads(line) for line in done.stdout.splitlines()]

    def write_data(self, feeds: Mapping[str, np.ndarray], labels: np.ndarray) -> list[object]:
        """Store arrays as .npy and return the options that name them."""
        options: list[object] = []
        for position, (name, array) in enumerate(feeds.items()):
            path = self.folder / f"input{position}.npy"
            np.save(path, array)
            options += ["--input", f"{name}={path}"]
        np.save(self.folder / "labels.npy", labels)
        return [*options, "--labels", self.folder / "labels.npy"]

    def train(
        self, state: Mapping[str, np.ndarray], steps: int, data: Sequence[object], start: int = 0, **options: object
    ) -> tuple[list[float], dict[str, np.ndarray]]:
        """Losses of `steps` steps from a checkpoint, and the checkpoint after them."""
        before, after = self.folder / "before.safetensors", self.folder / "after.safetensors"
        constants = {k: v for k, v in load_file(self.weights).items() if k.startswith("constant.")}
        tensors = {name: np.array(array, order="C") for name, array in {**constants, **state}.items()}
        with safe_open(self.weights, "np") as initial:
            about = {**initial.metadata(), "step": str(start)}
        save_file(tensors, before, metadata=about)
        more = [part for key, value in options.items() for part in (f"--{key.replace('_', '-')}", value)]
        events = self.run(
            "train", "--weights", before, "--steps", steps, "--order", "sequential", "--save", after, *data, *more
        )
        losses = [event["loss"] for event in events if event["event"] == "step"]
        return losses, load_file(after)
