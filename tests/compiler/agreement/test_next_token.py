"""Each position against the next one's label: the loss of transformers' causal language models on the model itself."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.numpy import load_file
from torch import Tensor, nn

from compiler.passes import FORWARD_PASSES, run_passes
from compiler.spec.documents import TrainingSpec
from compiler.step.loss import attach_loss
from tests.compiler.agreement.losses import Arrays, Wanted, agree, compiled, found, onnx_found, wanted
from tests.compiler.agreement.step_binary import StepBinary
from tests.compiler.frontend.onnx_graphs import imported
from tests.models import Logits, export, transformers_model

BATCH, PLACES, WORDS = 2, 8, 100
IDS, MASK = "input_ids", "attention_mask"


@cache
def language_model(name: str) -> tuple[Logits, bytes]:
    torch.manual_seed(3)
    module, inputs, names = transformers_model(name)
    assert isinstance(module, Logits)
    return module, export(module, inputs(BATCH), input_names=names, exporter="dynamo-unoptimized")


def drawn(samples: int = BATCH) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(9)
    mask = (np.arange(PLACES)[None] < rng.integers(4, PLACES + 1, (samples, 1))).astype(np.int64)
    return {IDS: rng.integers(1, WORDS, (samples, PLACES)) * mask, MASK: mask}


def spec_of(**loss: Any) -> TrainingSpec:
    optimizer = {"kind": "sgd", "learning_rate": 0.5}
    return TrainingSpec.parse(
        {"batch": BATCH, "loss": {"kind": "next_token", **loss}, "optimizer": optimizer, "threads": 2}
    )


def shifted(ignored: int) -> Wanted:
    """The library's loss without its rounding of logits to float32."""
    return lambda logits, labels: F.cross_entropy(
        logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=ignored
    )


def of_library(module: Logits, feeds: Arrays, labels: np.ndarray, ignored: int) -> float:
    """What the model itself says of its loss."""
    given = {name: torch.from_numpy(array) for name, array in feeds.items()}
    with torch.no_grad():
        return float(module.model(**given, labels=torch.from_numpy(labels), ignore_index=ignored).loss)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "loss"),
    [
        ("gpt2", {"labels": IDS}),
        pytest.param("llama", {"labels": IDS, "ignore_index": 0}, marks=pytest.mark.thorough),
        pytest.param("llama", {}, marks=pytest.mark.thorough),
    ],
)
def test_the_loss_is_the_librarys(name: str, loss: dict[str, Any]) -> None:
    """Labels are the model's own input, or an array with padding; of the step and of its ONNX file."""
    module, model = language_model(name)
    ignored, own = loss.get("ignore_index", -100), "labels" in loss
    data = drawn()
    labels = labels_of(data, own)
    exact = wanted(module, data, {"y": labels}, shifted(ignored))
    assert exact[0] == pytest.approx(of_library(module, data, labels, ignored), rel=1e-5)
    given = {} if own else {"y": labels}
    agree(found(model, spec_of(**loss), data, given), exact, 2e-6)
    agree(onnx_found(model, spec_of(**loss), data, given), exact, 1e-4)


def labels_of(data: Arrays, own: bool) -> np.ndarray:
    return data[IDS] if own else np.where(data[MASK] == 1, data[IDS], -100)


@pytest.mark.parametrize("loss", [{"labels": IDS, "ignore_index": 0}, pytest.param({}, marks=pytest.mark.thorough)])
def test_the_binary_trains_and_scores(loss: dict[str, Any], tmp_path: Path, kernel_cache: Path) -> None:
    """A step, and a data set that ends amid a batch."""
    module, model = language_model("llama")
    ignored, own = loss.get("ignore_index", -100), "labels" in loss
    data = drawn(2 * BATCH + 1)
    labels = labels_of(data, own)
    binary = StepBinary.unpack(compiled(model, spec_of(**loss), kernel_cache), tmp_path)
    words = binary.write_data(data, labels)
    words = words[:-2] if own else words
    before = load_file(binary.weights)
    losses, after = binary.train(before, 1, words)
    first = {key: array[:BATCH] for key, array in data.items()}
    exact, gradients = wanted(module, first, {"y": labels[:BATCH]}, shifted(ignored))
    assert losses[0] == pytest.approx(exact, rel=1e-5)
    for key, gradient in gradients.items():
        moved = (before[key] - after[key]) / 0.5
        assert np.abs(moved - gradient).max() <= 2e-5 * np.abs(gradient).max() + 2e-6, key
    (score,) = [one for one in binary.run("eval", "--weights", binary.weights, *words) if one["event"] == "eval"]
    assert score["loss"] == pytest.approx(of_library(module, data, labels, ignored), rel=1e-5)
    with torch.no_grad():
        best = module(*map(torch.from_numpy, data.values())).argmax(-1).numpy()[:, :-1]
    counted = labels[:, 1:] != ignored
    assert score["accuracy"] == pytest.approx((best == labels[:, 1:])[counted].mean())


class Small(nn.Module):
    """Positions first."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.rnn, self.head = nn.Embedding(9, 6), nn.GRU(6, 8), nn.Linear(8, 9)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.rnn(self.words(tokens))[0])


def test_positions_may_come_first() -> None:
    torch.manual_seed(5)
    module = Small().eval()
    model = export(module, (torch.zeros(4, BATCH, dtype=torch.long),), input_names=("tokens",), dynamic_batch=False)
    body = {"batch": BATCH, "inputs": {"tokens": {"batch_axis": 1}}, "loss": {"kind": "next_token", "labels": "tokens"}}
    tokens = np.random.default_rng(2).integers(0, 9, (4, BATCH))

    def loss(logits: Tensor) -> Tensor:
        return F.cross_entropy(logits[:-1].flatten(0, 1), torch.from_numpy(tokens)[1:].flatten())

    exact = wanted(module, {"tokens": tokens}, {}, loss)
    agree(found(model, TrainingSpec.parse(body), {"tokens": tokens}, {}), exact, 2e-6)


def test_no_logits_are_copied() -> None:
    """The last position is told by its label alone."""
    _, model = language_model("gpt2")
    step = attach_loss(run_passes(imported(model, batch=BATCH), FORWARD_PASSES), spec_of(labels=IDS).loss)
    large = [
        node.op
        for node in step.graph.nodes
        if node.layer == "loss"
        and any(step.graph.types[output].size >= BATCH * (PLACES - 1) * WORDS for output in node.outputs)
    ]
    assert large == []
