"""Runs a bundle's training graph in ONNX Runtime, checkpoint in and out, as `StepBinary.train` runs its binary."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from examples.training_graph import Arrays, TrainingGraph

Fed = tuple[Mapping[str, np.ndarray], Any]
"""Inputs and labels of a step."""


@dataclass(frozen=True)
class OnnxStep:
    """The training graph of an unpacked bundle, and the checkpoint that the bundle begins with."""

    graph: TrainingGraph
    layouts: Mapping[str, Mapping[str, Any]]
    """Parameter -> how its file's layout maps to the graph's."""
    state: Mapping[str, tuple[str, str]]
    """Input that reads optimizer state -> (kind, parameter)."""

    @classmethod
    @lru_cache(maxsize=1)
    def of(cls, folder: Path) -> OnnxStep:
        """That of a bundle unpacked in `folder`; a session takes longer to make than a step."""
        graph = TrainingGraph(folder / "training.onnx", state={})
        about = graph.about
        layouts = {name[7:]: json.loads(text) for name, text in about.items() if name.startswith("layout.")}
        kinds = {name: (kind, of) for name, (kind, of) in json.loads(about["state"]).items()}
        return cls(graph, layouts, kinds)

    def train(
        self, checkpoint: Mapping[str, np.ndarray], batches: Sequence[Fed], start: int = 0
    ) -> tuple[list[float], Arrays]:
        """Losses of one step for each batch, what comes out fed back in, and the checkpoint after them."""
        inputs = {one.name for one in self.graph.session.get_inputs()}
        self.graph.state = {name: self._inside(name, checkpoint) for name in self.layouts if name in inputs}
        self.graph.state |= {name: self._moment(name, checkpoint) for name in self.state}
        self.graph.steps = start
        losses = [self.graph.step(feeds, labels) for feeds, labels in batches]
        moments = {f"optimizer.{kind}.{of}": self.graph.state[name] for name, (kind, of) in self.state.items()}
        return losses, {**checkpoint, **self.graph.weights(), **moments}

    def _inside(self, name: str, checkpoint: Mapping[str, np.ndarray]) -> np.ndarray:
        layout = self.layouts[name]
        array = checkpoint[name].reshape(layout["view_shape"]).transpose(layout["perm"])
        for axis, order in enumerate(layout.get("orders", ())):
            array = array.take(order, axis=axis) if order else array
        return np.array(array, order="C")

    def _moment(self, name: str, checkpoint: Mapping[str, np.ndarray]) -> np.ndarray:
        kind, of = self.state[name]
        shape = next(one.shape for one in self.graph.session.get_inputs() if one.name == name)
        return checkpoint.get(f"optimizer.{kind}.{of}", np.zeros(shape, np.float32))
