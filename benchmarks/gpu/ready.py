"""A carried step made ready to run: its binary, weights and data as files, and the command line that trains with them.

Weights are made once for a model and data once for a batch, whatever runs with them; a step needs no other file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.gpu.carried import Carried, Step, unpack, write_tensors
from benchmarks.gpu.seeded import Arrays


@dataclass
class Workshop:
    """Makes and keeps files in a folder. `runner`: what starts binaries, where that is not the system itself."""

    carried: Carried
    folder: Path
    runner: tuple[str, ...] = ()
    _weights: tuple[str, Arrays] = field(default=("", {}))
    """Of the model that was asked for last: they are large."""

    def weights(self, model: str) -> Arrays:
        """A model's parameters. Raises: NotAsBuilt."""
        if self._weights[0] != model:
            self._weights = (model, self.carried.models[model].made_weights())
        return self._weights[1]

    def weights_path(self, model: str) -> Path:
        """The same as a checkpoint. Raises: NotAsBuilt."""
        path = self.folder / f"{model}.safetensors"
        if not path.exists():
            write_tensors(path, self.weights(model))
        return path

    def data(self, model: str, batch: int) -> dict[str, Path]:
        """A batch of each input, and of `labels`, as files of NumPy's."""
        told = self.carried.models[model]
        found = {}
        for name, drawn in {**told.inputs, "labels": told.labels}.items():
            found[name] = self.folder / f"{model}-b{batch}-{name}.npy"
            if not found[name].exists():
                np.save(found[name], drawn.batch(name, batch))
        return found

    def command(self, step: Step, steps: int, more: Sequence[str] = ()) -> tuple[str, ...]:
        """Trains `steps` times on one batch. Raises: NotAsBuilt."""
        words = [*self.runner, str(self._binary(step)), "train", "--order", "sequential", "--steps", str(steps), *more]
        words += ["--weights", str(self.weights_path(step.model)), *self._constants(step)]
        data = self.data(step.model, step.batch)
        words += ["--labels", str(data.pop("labels"))]
        return (*words, *(word for name, path in data.items() for word in ("--input", f"{name}={path}")))

    def _binary(self, step: Step) -> Path:
        path = self.folder / step.name
        if not path.exists():
            path.write_bytes(unpack(self.carried.step_path(step.name)))
            path.chmod(0o755)
        return path

    def _constants(self, step: Step) -> list[str]:
        """Most steps read none."""
        path, packed = self.folder / f"{step.name}.constants", self.carried.constants_path(step.name)
        if not packed.exists():
            return []
        path.write_bytes(unpack(packed))
        return ["--weights", str(path)]
