"""A bundle's training graph in ONNX Runtime beside what its binary is compared with."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
import torch

from examples.training_graph import Arrays, TrainingGraph
from tests.compiler.agreement.harness import (
    Built,
    Optimizer,
    StepResult,
    free_run,
    gradients_of,
    problems,
    to_checkpoint,
)
from tests.compiler.agreement.onnx_step import Fed, OnnxStep
from tests.compiler.agreement.step_binary import StepBinary


def onnx_problems(built: Built, optimizer: Optimizer, result: StepResult, t: int) -> list[str]:
    """The same of the bundle's training graph in ONNX Runtime, from the same state; see `problems`."""
    (loss,), after = OnnxStep.of(built.binary.folder).train(result.before, [result.batch], start=t - 1)
    gradients = gradients_of(built, optimizer, result.before, after)
    return problems(built, replace(result, loss=loss, gradients=gradients, after=after))


def ten_steps_on_onnx_runtime(built: Built) -> None:
    """The bundle's training graph, fed back ten times, has PyTorch's losses."""
    weights, batches = built.reference.initial(), built.case.batches(10)
    start = to_checkpoint(built, weights, Optimizer(built).fresh(weights))
    losses, _ = OnnxStep.of(built.binary.folder).train(start, batches)
    np.testing.assert_allclose(losses, free_run(built, batches, torch.float64), rtol=1e-3)


def same_on_onnx_runtime(
    binary: StepBinary, data: Sequence[object], *, seed: int = 0, steps: int = 10, noise: Collection[str] = ()
) -> None:
    """Ten steps of the training graph, fed back into one another, have the losses of the binary's and end as it does.

    `data` is what `StepBinary.write_data` gives: the binary is compared with the module elsewhere. `noise` moves by
    rounding alone, with its optimizer state: its gradient is 0, and what is left of that differs.
    """
    own = OnnxStep.of(binary.folder)
    own.graph.seed = seed
    start = binary.checkpoint()
    losses, after = binary.train(start, steps, data, batch_seed=seed)
    found, ended = own.train(start, _batches(own.graph, data, steps))
    np.testing.assert_allclose(found, losses, rtol=1e-3)
    wrong = moved_otherwise(start, after, ended, steps, noise)
    assert not wrong, wrong


def moved_otherwise(start: Arrays, after: Arrays, ended: Arrays, steps: int, noise: Collection[str] = ()) -> list[str]:
    """What does not go from `start` to `ended` as it does to `after`, each by its own change and its own rounding.

    Every step rounds what it adds to an element: the change is known to no more than that.
    """
    found = []
    for name in sorted(after.keys() & ended.keys()):
        if any(name == one or (name.startswith("optimizer.") and name.endswith(f".{one}")) for one in noise):
            continue
        begin = start.get(name, np.zeros_like(after[name])).astype(np.float64)
        change, other = (one[name].astype(np.float64) - begin for one in (after, ended))
        rounding = steps * 2.0**-24 * np.linalg.norm(np.maximum(np.abs(begin), np.abs(after[name])))
        error, own = float(np.linalg.norm(other - change)), float(np.linalg.norm(change))
        if not error <= 0.01 * own + rounding:
            found.append(f"{name}: {error:.3g} apart, of a change of {own:.3g}")
    return found


def _batches(graph: TrainingGraph, data: Sequence[object], steps: int) -> list[Fed]:
    """What the binary reads of the same files: batches in order, round after round."""
    words = list(map(str, data))
    feeds = {name: np.load(file) for name, file in _files(words, "--input").items()}
    arrays = {name: np.load(file) for name, file in _files(words, "--labels").items()}
    batch = graph.micro_batches * next(one.shape[0] for one in graph.session.get_inputs() if one.name in feeds)

    def rows(array: np.ndarray, number: int) -> np.ndarray:
        return array[np.arange(batch * number, batch * (number + 1)) % len(array)]

    made: list[Fed] = []
    for number in range(steps):
        labels = {name: rows(array, number) for name, array in arrays.items()}
        one = labels.get("", labels)
        made.append(({name: rows(array, number) for name, array in feeds.items()}, one))
    return made


def _files(words: Sequence[str], option: str) -> dict[str, str]:
    """Name -> file of each such option; the only array of labels has no name."""
    given = [words[i + 1] for i, word in enumerate(words) if word == option]
    return {name if "=" in text else "": path or text for text in given for name, _, path in [text.partition("=")]}
