"""A training step in an engine that only infers: `python -m examples.training_graph`.

`pockfarm export-training-graph` wrote the step as ONNX; ONNX Runtime runs it, and what comes out is fed back in. The
class is all that a program of your own needs: NumPy, onnxruntime, and something that reads safetensors.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from safetensors.numpy import load_file

Arrays = dict[str, NDArray[Any]]


class TrainingGraph:
    """One training step, and the state that goes from step to step."""

    def __init__(self, model: Path, state: Arrays | None = None, *, seed: int = 0) -> None:
        """`state` stands for the file beside the model."""
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self.about: Mapping[str, str] = self.session.get_modelmeta().custom_metadata_map
        self.accumulators: Mapping[str, str] = json.loads(self.about.get("accumulators", "{}"))
        asked = json.loads(self.about["spec"]).get("accumulate", 1)
        self.micro_batches: int = asked["steps"] if isinstance(asked, dict) else asked
        self.runs = [self.session]
        if self.accumulators:  # every micro-batch but the last is a run of the file beside
            before = model.with_name(f"{model.stem}.accumulate.onnx")
            session = onnxruntime.InferenceSession(before, options, providers=["CPUExecutionProvider"])
            self.runs = [session] * (self.micro_batches - 1) + self.runs
        beside = model.with_name(f"{model.stem}.state.safetensors")
        self.state: Arrays = load_file(beside) if state is None else state
        self.steps = 0
        self.learning_rate: float = json.loads(self.about["spec"])["optimizer"]["learning_rate"]
        """Of the steps to come: a schedule, also that of the spec, is followed by setting it before each."""
        self.seed = seed

    def step(self, inputs: Mapping[str, NDArray[Any]], labels: Mapping[str, NDArray[Any]] | NDArray[Any]) -> float:
        """The loss of a batch (of all micro-batches); the state is the next one then.

        Several arrays of labels go by their names.
        """
        self.steps += 1
        shapes = {one.name: one.shape for one in self.session.get_inputs()}
        self.state |= {name: np.zeros(shapes[name], np.float32) for name in self.accumulators}
        fed = {**inputs, **self._labels(labels)}
        losses = []
        for number, session in enumerate(self.runs):
            part = {name: np.split(array, len(self.runs))[number] for name, array in fed.items()}
            losses.append(self._run(session, {**part, **self._hyper(number)}))
        self.state = {name: array for name, array in self.state.items() if name not in self.accumulators}
        return losses[-1] if self.about.get("mean") == "labels" else float(np.mean(losses))

    def _run(self, session: onnxruntime.InferenceSession, fed: Arrays) -> float:
        """One micro-batch; what it updates is in the state then."""
        about, given = session.get_modelmeta().custom_metadata_map, {**fed, **self.state}
        updates: Mapping[str, str] = json.loads(about["updates"])
        asked = {one.name: given[one.name] for one in session.get_inputs()}
        loss, *new = session.run([about["loss"], *updates.values()], asked)
        self.state |= zip(updates, new, strict=True)
        return float(loss)

    def weights(self) -> Arrays:
        """What learned, under the model's names and in its layout: what a `state_dict` or an ONNX file holds."""
        kept = {name: json.loads(self.about[f"layout.{name}"]) for name in self.state if f"layout.{name}" in self.about}
        return {
            name: _in_order(self.state[name], layout)
            .transpose(np.argsort(layout["perm"]))
            .reshape(layout["file_shape"])
            for name, layout in kept.items()
        }

    def _labels(self, labels: Mapping[str, NDArray[Any]] | NDArray[Any]) -> Arrays:
        if not isinstance(labels, Mapping):
            return {self.about["labels"]: labels}
        names = json.loads(self.about["labels"])
        return {names[array]: held for array, held in labels.items()}

    def _hyper(self, micro_batch: int) -> Arrays:
        """The numbers of this step, counted from 1."""
        chosen, t = json.loads(self.about["spec"])["optimizer"], self.steps
        formulas: Mapping[str, Callable[[], float]] = {
            "learning_rate": lambda: self.learning_rate,
            "bias_correction_1": lambda: 1 - chosen["beta1"] ** t,
            "bias_correction_2_sqrt": lambda: math.sqrt(1 - chosen["beta2"] ** t),
            "fresh_share": lambda: t ** chosen["beta2_decay"],
            "inverse_root_step": lambda: t**-0.5,
            "random_seed": lambda: self.seed,
            "random_step": lambda: (t - 1) * len(self.runs) + micro_batch + 1,
        }
        types = {one.name: np.int64 if "int64" in one.type else np.float32 for one in self.session.get_inputs()}
        asked = json.loads(self.about["hyper"])
        return {name: np.asarray(formulas[kind](), types[name]) for kind, name in asked.items() if name in types}


def _in_order(array: NDArray[Any], layout: Mapping[str, Any]) -> NDArray[Any]:
    """The elements where the author has them along axes whose channels the step keeps in another order."""
    for axis, order in enumerate(layout.get("orders", ())):
        array = array.take(np.argsort(order), axis=axis) if order else array
    return array


def run(module: str, *arguments: object) -> None:
    """A command of ours, as a shell runs it."""
    subprocess.run([sys.executable, "-m", module, *map(str, arguments)], check=True)


def main() -> None:
    """Export a small net's training step, and train it on handwritten digits."""
    parser = argparse.ArgumentParser(prog="python -m examples.training_graph", description=__doc__)
    parser.add_argument("--steps", type=int, default=50, help="how long to train (default: 50)")
    steps = parser.parse_args().steps
    with tempfile.TemporaryDirectory() as name:
        net, file, digits = (Path(name) / made for made in ("net.onnx", "step.onnx", "digits.npz"))
        spec = "batch: 16\noptimizer: {kind: adamw, learning_rate: 0.003}"
        run("examples.models", "small_cnn", "--out", net)
        run("pockfarm.cli", "export-training-graph", net, "--spec", spec, "--out", file)
        run("examples.digits", "--out", digits)
        graph, data = TrainingGraph(file), dict(np.load(digits))
    for number in range(steps):
        rows = np.arange(16 * number, 16 * (number + 1)) % len(data["y"])
        loss = graph.step({"input": data["x"][rows]}, data["y"][rows])
        if number % 10 == 0 or number == steps - 1:
            print(f"step {number + 1:3}  loss {loss:.4f}")
    print(f"learned: {', '.join(graph.weights())}")


if __name__ == "__main__":
    main()
