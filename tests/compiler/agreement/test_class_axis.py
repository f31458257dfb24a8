"""Cross-entropy over the axis that the spec names: PyTorch's cross_entropy on the module's own [N, C, H, W]."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.numpy import load_file
from torch import Tensor, nn

from compiler.errors import SpecError
from compiler.spec.documents import LossSpec, TrainingSpec
from compiler.step.loss import attach_loss
from tests.compiler.agreement.losses import agree, compiled, found, wanted
from tests.compiler.agreement.onnx_checks import same_on_onnx_runtime
from tests.compiler.agreement.step_binary import StepBinary
from tests.compiler.frontend.onnx_graphs import imported
from tests.models import export
from tests.sample import sample

BATCH, CLASSES, SIZE = 3, 5, 6


class Segmenter(nn.Module):
    """Logits [N, classes, H, W]; `axis` moves the classes elsewhere."""

    def __init__(self, axis: int = 1) -> None:
        super().__init__()
        self.first, self.second, self.axis = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, CLASSES, 1), axis

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x))).movedim(1, self.axis)


def drawn(samples: int = BATCH) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((samples, 3, SIZE, SIZE)).astype(np.float32)
    y = rng.integers(0, CLASSES, (samples, SIZE, SIZE))
    y[rng.random(y.shape) < 0.2] = -100
    return x, y


def spec_of(axis: int) -> TrainingSpec:
    optimizer = {"kind": "sgd", "learning_rate": 0.5}
    return TrainingSpec.parse({"batch": BATCH, "loss": {"class_axis": axis}, "optimizer": optimizer, "threads": 2})


def exported(axis: int) -> tuple[Segmenter, bytes]:
    torch.manual_seed(1)
    module = Segmenter(axis)
    return module, export(module.eval(), (torch.zeros(BATCH, 3, SIZE, SIZE),))


@pytest.mark.parametrize(
    ("axis", "said"),
    [(1, 1), (2, -2), *(pytest.param(*case, marks=pytest.mark.thorough) for case in ((2, 2), (3, -1), (1, -3)))],
)
def test_the_loss_is_pytorchs(axis: int, said: int) -> None:
    module, model = exported(axis)
    x, y = drawn()

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits.movedim(axis, 1), labels)

    want = wanted(module, {"input": x}, {"y": y}, loss)
    agree(found(model, spec_of(said), {"input": x}, {"y": y}), want)


@pytest.mark.parametrize("axis", sample([0, 4, -4, -5], {"0", "-4"}))
def test_an_axis_that_cannot_hold_classes_is_refused(axis: int) -> None:
    _, model = exported(1)
    with pytest.raises(SpecError, match="axis 0 is the batch") as caught:
        attach_loss(imported(model, batch=BATCH), LossSpec(class_axis=axis))
    assert caught.value.where == "spec.loss.class_axis"
    assert "give 1 or 2 or 3, or -1" in caught.value.hint


def test_the_axis_is_part_of_the_digest_only_where_it_is_said() -> None:
    assert "class_axis" not in TrainingSpec.parse("").canonical_json()
    said = TrainingSpec.parse("loss: {class_axis: 1}")
    assert TrainingSpec.parse(said.canonical_json()) == said
    assert said.digest != TrainingSpec.parse("").digest
    with pytest.raises(SpecError, match="class_axis"):
        TrainingSpec.parse("loss: {kind: mse, class_axis: 1}")


def test_the_binary_trains_scores_and_infers_so(tmp_path: Path, kernel_cache: Path) -> None:
    """One step's weights, the score of a data set that is no whole number of batches, the layout of the logits."""
    module, model = exported(1)
    x, y = drawn(BATCH + 2)
    want_loss, gradients = wanted(module, {"input": x[:BATCH]}, {"y": y[:BATCH]}, F.cross_entropy)
    binary = StepBinary.unpack(compiled(model, spec_of(1), kernel_cache), tmp_path)
    before = load_file(binary.weights)
    losses, after = binary.train(before, 1, binary.write_data({"input": x[:BATCH]}, y[:BATCH]))
    assert losses[0] == pytest.approx(want_loss, rel=1e-5)
    for name, gradient in gradients.items():
        moved = (before[name] - after[name]) / 0.5
        assert np.abs(moved - gradient).max() <= 1e-5 * np.abs(gradient).max() + 1e-6, name
    data = binary.write_data({"input": x}, y)
    same_on_onnx_runtime(binary, data)
    (score,) = [event for event in binary.run("eval", "--weights", binary.weights, *data) if event["event"] == "eval"]
    with torch.no_grad():
        logits = module(torch.from_numpy(x))
    labels = torch.from_numpy(y)
    assert score["loss"] == pytest.approx(F.cross_entropy(logits, labels).item(), rel=1e-5)
    hits = (logits.argmax(1) == labels)[labels >= 0]
    assert score["accuracy"] == pytest.approx(hits.double().mean().item())
    binary.run("infer", "--weights", binary.weights, *data[:2], "--out", tmp_path / "out.npy")
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), logits.numpy(), rtol=1e-4, atol=1e-5)
